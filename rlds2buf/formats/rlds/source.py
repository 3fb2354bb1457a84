"""RLDS datasets on disk, as TFDS writes them, read without TensorFlow."""

from __future__ import annotations

import copy
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rlds2buf.codecs.images.resize import check_images
from rlds2buf.codecs.tfrecord.array_record import ArrayRecordReader
from rlds2buf.codecs.tfrecord.frames import FrameReader
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.issue import WARNING, Issue
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, SourceFormatError, SourceNotFound
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.rlds.block_reader import RldsBlocks
from rlds2buf.formats.rlds.dataset_info import DatasetInfo, find_version_folder, read_dataset_info
from rlds2buf.formats.rlds.episode_reader import EpisodeReader
from rlds2buf.formats.rlds.features import describe, read_features, with_images
from rlds2buf.formats.rlds.own_metadata import RecordLayout, own_facts, read_own_metadata, read_record_layout
from rlds2buf.io.record_blocks import Part
from rlds2buf.io.source import Source
from rlds2buf.io.splits import pieces_of_split

__all__ = ["RldsDirSource"]

_MOST_NAMED = 5
"""Of files that are absent."""


class _Segment(NamedTuple):
    """Records ``first`` to ``first + length`` of one shard that holds `total`."""

    file: Path
    first: int
    length: int
    total: int


class _Chosen(NamedTuple):
    """Which columns are made of the files."""

    images: str | None
    size: tuple[int, int] | None
    left_out: frozenset[str]

    def text(self) -> str:
        """For the fingerprint: what differs from what there is by default."""
        size = "" if self.size is None else f"resized to {self.size}\n"
        left_out = "".join(f"without {path}\n" for path in sorted(self.left_out))
        return ("images encoded\n" if self.images == "encoded" else size) + left_out


class RldsDirSource(Source):
    """An RLDS dataset as TFDS writes it: TFRecord or ArrayRecord shards, features.json, dataset_info.json.

    A record is an episode.  Every field has the values, dtypes and shapes that
    ``tfds.builder_from_directory(path).as_dataset(split)`` gives, with two things added: bfloat16
    becomes float32, and features that TFDS can write but not read (sequences of fixed length in a
    step) are read.  Fields whose shape varies from step to step are ``[N] object`` columns of
    arrays in episodes where it does.

    Episodes come in the order of the files, shard after shard.  TFDS mixes the shards of a large
    dataset (it interleaves 16 at a time) unless told ``interleave_cycle_length=1``.

    Args:
        path: the dataset's folder (if it has one config), a config's folder (the newest version is
            taken) or a version's folder.
        split: as TFDS writes them: ``"train"``, ``"train[:10%]"``, ``"train[5:20]"``,
            ``"train+test"``; None: ``train``, or the only split there is.
        check_crc: compare the checksum of every TFRecord; ArrayRecord's are always compared.
        images: ``"decoded"``, pictures are columns of pixels; ``"encoded"``, pictures are byte strings,
            the JPEG and PNG files untouched, whose FieldSpec has an ``image`` (what the pixels would
            be).  None is ``"decoded"``, unless :meth:`encoded` is asked for.
        resize: size that decoded pictures are to have, one number for a square or (height, width);
            see :func:`~rlds2buf.codecs.images.resize.resize_frames`.  Not with ``images="encoded"``.
        image_threads: how many threads decode pictures; None: one for each core; with 1 the reading
            thread does it itself.
        budget: for each record, see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound: the path, the split or one of its shards is not there; or the path stands
            for several configs.
        SourceFormatError: features.json or dataset_info.json is malformed, is not about RLDS, or
            names a record format other than TFRecord and ArrayRecord.
        MissingDependency: when ArrayRecord shards are read without the package array_record.
        ValueError: an option is none of those.

    For a dataset that TFDS has prepared::

        source = RldsDirSource("tensorflow_datasets/d4rl_mujoco_hopper/v2-medium", split="train[:1]")
        source.num_episodes, source.spec.observation  # 1, float32[11]
    """

    format: ClassVar[str] = "rlds"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str | None = None,
        check_crc: bool = True,
        images: str | None = None,
        resize: int | tuple[int, int] | None = None,
        image_threads: int | None = None,
        budget: Budget = BUDGET,
    ) -> None:
        size = check_images(images, resize)
        if image_threads is not None and image_threads < 1:
            raise ValueError(f"image_threads must be at least 1, got {image_threads}")
        self._folder = find_version_folder(Path(path))
        self._info = read_dataset_info(self._folder)
        self._features = read_features(self._folder / "features.json")
        self._own = read_own_metadata(self._folder)
        self._check_crc = check_crc
        self._threads = image_threads
        self._budget = budget
        self._wanted: Callable[[int], bool] | None = None
        self._keeps_records = False
        self._choose(_Chosen(images, size, frozenset()))
        self._split = _default_split(self._info, self._folder) if split is None else split
        self._segments = _segments(self._info, self._split, self._folder)
        self.name = f"{self._folder} [{self._split}]"

    def _choose(self, chosen: _Chosen) -> RldsDirSource:
        """Make the fields of these files what is chosen; the constructor calls it, and others on a copy."""
        self._chosen = chosen
        features: Any = self._features
        if chosen.images == "encoded":
            features = with_images(features, keep_encoded=True)
        elif chosen.size is not None:
            features = with_images(features, size=chosen.size)
        try:
            self._reader = EpisodeReader(features, chosen.left_out, self._own, self._budget)
        except SourceFormatError as cause:
            raise cause.at(self._folder / "features.json") from cause
        return self

    @property
    def spec(self) -> StepSpec:
        return self._reader.spec

    @property
    def num_episodes(self) -> int:
        return sum(segment.length for segment in self._segments)

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """See :meth:`Source.read_batches`; an episode with a damaged picture is yielded as its EpisodeError.

        Raises:
            SourceFormatError: a shard is truncated, a checksum does not match, a record is not what
                features.json says, or a shard holds more or fewer records than dataset_info.json says.
        """
        reader = RldsBlocks(
            self._reader,
            rows=rows,
            bytes=bytes,
            threads=self._threads,
            wanted=self._wanted,
            keeps_records=self._keeps_records,
        )
        return reader.read(self._parts(start, stop))

    def encoded(self) -> RldsDirSource:
        """See :meth:`Source.encoded`; itself if `images` or `resize` was given, or there are no pictures."""
        plain = self._chosen.images is None and self._chosen.size is None
        if not plain or with_images(self._features, keep_encoded=True) == self._features:
            return self
        return copy.copy(self)._choose(self._chosen._replace(images="encoded"))

    def without(self, paths: Iterable[str]) -> RldsDirSource:
        """See :meth:`Source.without`."""
        return copy.copy(self)._choose(self._chosen._replace(left_out=self._chosen.left_out | set(paths)))

    def only(self, wanted: Callable[[int], bool]) -> RldsDirSource:
        """See :meth:`Source.only`: the records of the others are neither parsed nor decoded."""
        fewer = copy.copy(self)
        fewer._wanted = wanted
        return fewer

    def with_records(self) -> tuple[RldsDirSource, RecordLayout] | None:
        """See :meth:`Source.with_records`; None where its episodes are not all that the records hold."""
        changed = self._chosen.size is not None or self._chosen.left_out or self.encoded() is not self
        if changed or not self._check_crc:
            return None
        layout = read_record_layout(self._folder)
        if layout is None:
            return None
        keeping = copy.copy(self)
        keeping._keeps_records = True
        return keeping, layout

    def details(self) -> dict[str, Any]:
        info = self._info
        splits = {
            split.name: {"episodes": sum(split.lengths), "shards": len(split.lengths), "bytes": split.num_bytes}
            for split in info.splits.values()
        }
        return {
            "path": str(self._folder),
            "dataset": info.name,
            "config": info.config,
            "version": info.version,
            "file_format": info.file_format,
            "splits": splits,
            "split": self._split,
            "files": [segment.file.name for segment in self._segments],
            "features": describe(self._features),
        }

    def findings(self, *, quick: bool = False) -> Iterator[Issue]:
        """See :meth:`Source.findings`: files of splits that are not there, and records that no split names.

        A shard with more or fewer records than dataset_info.json says ends reading, and so is no finding.
        """
        splits = self._info.splits.values()
        for split in splits:
            absent = [file.name for file in split.files if not file.is_file()]
            if absent:
                text = f"{len(absent)} of the {len(split.files)} files of the split {split.name!r} are not there"
                yield self._finding("absent-files", f"{text}: {_some(absent)}")
        there = {path.name for path in self._folder.glob(f"*.{self._info.file_format}-*")}
        unused = sorted(there.difference(file.name for split in splits for file in split.files))
        if unused:
            text = f"files of records that no split in dataset_info.json names, {len(unused)} of them"
            yield self._finding("unused-files", f"{text}: {_some(unused)}")

    def _finding(self, rule: str, message: str) -> Issue:
        return Issue(rule, WARNING, None, None, None, message, str(self._folder))

    def facts(self) -> dict[str, Any]:
        """See :meth:`Source.facts`: of the dataset that the folder was made from, if rlds2buf wrote it."""
        return own_facts(self._folder)

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in (self._info.name, self._info.config, self._info.version):
            digest.update(f"{part}\n".encode())
        digest.update((self._folder / "features.json").read_bytes())
        digest.update(self._chosen.text().encode())
        for segment in self._segments:
            digest.update(f"{segment.file.name} {segment.first} {segment.length}\n".encode())
            # The ends of an ArrayRecord file are mostly padding.
            is_padded = self._info.file_format == "array_record"
            digest.update(fingerprint_files([segment.file]).encode() if is_padded else _ends_of(segment.file))
        return digest.hexdigest()

    def _parts(self, start: int, stop: int | None) -> Iterator[Part]:
        index = 0
        for segment in self._segments:
            skip = min(max(start - index, 0), segment.length)
            count = segment.length - skip
            if stop is not None:
                count = min(count, stop - index - skip)
            if count > 0:
                first = segment.first + skip
                open_file = functools.partial(self._opened, segment.file, first)
                yield Part(open_file, str(segment.file), index + skip, count, segment.total)
            index += segment.length

    def _opened(self, file: Path, first: int) -> FrameReader | ArrayRecordReader:
        if self._info.file_format == "array_record":
            return ArrayRecordReader(file, first)
        return FrameReader(file, first, check_data=self._check_crc)


def _default_split(info: DatasetInfo, folder: Path) -> str:
    if "train" in info.splits:
        return "train"
    if len(info.splits) == 1:
        return next(iter(info.splits))
    raise SourceNotFound(f"{folder}: no split named; there are: {', '.join(info.splits) or 'none'}")


def _segments(info: DatasetInfo, split: str, folder: Path) -> list[_Segment]:
    try:
        pieces = pieces_of_split(split, {name: entry.lengths for name, entry in info.splits.items()})
    except SourceNotFound as cause:
        raise SourceNotFound(f"{folder}: {cause}") from cause
    segments = []
    for piece in pieces:
        begin = 0
        entry = info.splits[piece.split]
        for file, length in zip(entry.files, entry.lengths, strict=True):
            first, last = max(piece.start - begin, 0), min(piece.stop - begin, length)
            if first < last:
                segments.append(_Segment(file, first, last - first, length))
            begin += length
    missing = sorted({segment.file.name for segment in segments if not segment.file.is_file()})
    if missing:
        raise SourceNotFound(f"{folder}: missing {len(missing)} of the shards of {split!r}: {_some(missing)}")
    return segments


def _some(names: list[str]) -> str:
    """The first few."""
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


def _ends_of(path: Path, size: int = 1 << 12) -> bytes:
    """The file's length and its first and last bytes."""
    with open(path, "rb") as file:
        total = os.fstat(file.fileno()).st_size
        head = file.read(size)
        file.seek(max(total - size, 0))
        return b"%d " % total + head + file.read(size)
