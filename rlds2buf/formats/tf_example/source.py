"""Raw ``tf.train.Example`` records in TFRecord files, whose features the user names."""

from __future__ import annotations

import copy
import dataclasses
import functools
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlds2buf.codecs.images.resize import check_images
from rlds2buf.codecs.tfrecord.example import ExampleParser
from rlds2buf.codecs.tfrecord.frames import FrameReader, count_records
from rlds2buf.codecs.tfrecord.gzip_frames import GzipFrameReader, is_gzip
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import STEP_FIELDS
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, SourceError, SourceFormatError, SourceNotFound
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.tf_example.blocks import EpisodeBlocks, parsed
from rlds2buf.formats.tf_example.columns import describe_record, resolve
from rlds2buf.formats.tf_example.episode import field_tree
from rlds2buf.formats.tf_example.feature_map import METADATA, NEXT, ExampleSpec, read_spec
from rlds2buf.formats.tf_example.step_blocks import StepBlocks
from rlds2buf.io.look import Look
from rlds2buf.io.record_blocks import Part
from rlds2buf.io.source import Source

__all__ = ["TfExampleSource"]

_RECORDS = ("episode", "step")


class TfExampleSource(Source):
    """Episodes from TFRecord files of ``tf.train.Example`` messages that carry no description.

    What TFDS writes describes itself and is read by ``format="rlds"``; here the user says which
    feature holds what::

        open_source("train-*-of-00100", format="tf-example", features={
            "observation/position": {"key": "position", "shape": [3]},
            "observation/camera": {"key": "frames", "encoding": "image", "shape": [64, 64, 3]},
            "action": "action",
            "reward": "reward",
            "metadata/seed": "seed",
        })
        open_source("Breakout/run_1-00000-of-00100", format="tf-example", features="rlu-atari")

    Files may be GZIP-compressed as a whole; each is told by its first bytes.

    Args:
        path: a file, a glob pattern (``train-*``), or a folder, of which all files are read whose names
            do not start with a dot or an underscore; several files in the order of their names.
        features: for each field of a step ``{"key", "dtype", "shape", "encoding"}`` or just the key, as
            :func:`~rlds2buf.formats.tf_example.feature_map.read_spec` says; or the path of a JSON file with that; or
            the name of a known dataset, see :data:`~rlds2buf.formats.tf_example.feature_map.PRESETS`.  Paths below
            ``metadata`` are facts about the episode, names that RLDS does not know are extras.
        record: ``"episode"``, a record holds the whole columns of an episode; ``"step"``, a record is one
            row, and an episode ends behind a row with `is_last` or `is_terminal`, before one with
            `is_first`, where the value of `episode_id` changes, and where a file ends
            (``metadata["open_tail"]`` is True if nothing else ended it).
        episode_id: for records of one step, the key of a feature whose value tells episodes apart.
        check_crc: compare the checksum of every record.
        images: ``"decoded"``, pictures are pixels; ``"encoded"``, byte strings.  None is ``"decoded"``,
            unless :meth:`encoded` is asked for.
        resize: size that decoded pictures are to have, one number for a square or (height, width).
        budget: for each episode, and each record of a compressed file.

    A record of one step may be a transition: with features below ``next_observation`` (of the structure
    of ``observation``) an episode of N records has N + 1 rows, and a record's `is_terminal` and `is_last`
    speak of its next observation.  Without, the flags speak of the record's own observation.

    Raises:
        SourceNotFound: no file is there.
        SourceFormatError: a file holds no such records, or the first record is not as `features` says.
        ValueError, TypeError: the arguments; without `features` the message lists what the first record holds.
    """

    format: ClassVar[str] = "tf-example"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        features: Any = None,
        record: str = "episode",
        episode_id: str | None = None,
        check_crc: bool = True,
        images: str | None = None,
        resize: int | tuple[int, int] | None = None,
        budget: Budget = BUDGET,
    ) -> None:
        choice("record", record, _RECORDS)
        if episode_id is not None and record == "episode":
            raise ValueError("episode_id is for records of one step (record='step')")
        size = check_images(images, resize)
        self.name = os.fspath(path)
        self._kind = record
        self._episode_id = episode_id
        self._check_crc = check_crc
        self._images = images
        self._budget = budget
        self._files = _find_files(Path(path))
        self._gzip = {file: is_gzip(file) for file in self._files}
        first = self._first_record()
        if features is None:
            raise ValueError(
                "features= is needed: which feature of a record is which field of a step; "
                f"the first record of {self._files[0]} holds {describe_record(first)}"
            )
        self._example_spec = _checked(read_spec(features), record, episode_id)
        try:
            self._example_spec = resolve(self._example_spec, first, record)
        except SourceFormatError as cause:
            raise cause.at(f"{self._files[0]}: record 0") from cause
        self._size = size
        if size is not None:
            self._example_spec = _resized(self._example_spec, size)

    @functools.cached_property
    def _spec(self) -> StepSpec:
        encoded = self._images == "encoded"
        fields = [field for field in self._example_spec.fields if field.path[0] not in (METADATA, NEXT)]
        tree = field_tree({field.path: field.spec(encoded) for field in fields})
        known = {name: tree.pop(name, None) for name in STEP_FIELDS[:4]}
        for name in STEP_FIELDS[4:]:
            tree.pop(name, None)
        return StepSpec(**known, extras=tree)

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @functools.cached_property
    def num_episodes(self) -> int | None:  # type: ignore[override]
        if self._kind == "step" or any(self._gzip.values()):
            return None
        return sum(self._counts(file) for file in self._files)

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """See :meth:`Source.read_batches`.

        Raises:
            SourceFormatError: a file is damaged, or a record is not as `features` says.
        """
        if self._kind == "step":
            yield from _between(self._steps(rows, bytes), start, stop)
            return
        blocks = EpisodeBlocks(
            self._example_spec,
            encoded=self._images == "encoded",
            row_bytes=self.spec.row_bytes,
            rows=rows,
            bytes=bytes,
            budget=self._budget,
        )
        yield from blocks.read(self._parts(start, stop))

    def encoded(self) -> TfExampleSource:
        if (
            self._images is not None
            or self._size is not None
            or all(field.encoding != "image" for field in self._example_spec.fields)
        ):
            return self
        other = copy.copy(self)
        other._images = "encoded"
        other.__dict__.pop("_spec", None)
        return other

    def details(self) -> dict[str, Any]:
        return {
            "path": self.name,
            "files": [str(file) for file in self._files],
            "compressed": any(self._gzip.values()),
            "record": self._kind,
            "episode_id": self._episode_id,
            **self._example_spec.to_json(),
        }

    def fingerprint(self) -> str:
        told = json.dumps(
            [self._example_spec.to_json(), self._kind, self._episode_id, self._images, self._size], sort_keys=True
        )
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        return f"tf-example:{fingerprint_files(self._files)}:{digest}"

    def _counts(self, file: Path) -> int:
        known: dict[Path, int] = self.__dict__.setdefault("_known_counts", {})
        if file not in known:
            known[file] = count_records(file)
        return known[file]

    def _records(self, file: Path, start: int = 0) -> Iterator[bytes]:
        with self._opened(file, start) as reader:
            while len(records := reader.take()):
                yield from (record for record, _ in records)

    def _opened(self, file: Path, start: int) -> FrameReader:
        if self._gzip[file]:
            return GzipFrameReader(file, start, check_data=self._check_crc, budget=self._budget)
        return FrameReader(file, start, check_data=self._check_crc)

    def _first_record(self) -> Mapping[str, Any]:
        for file in self._files:
            for record in self._records(file):
                return parsed(ExampleParser(), record, str(file), 0)
        raise SourceFormatError(f"{self.name}: no records in {len(self._files)} files")

    def _parts(self, start: int, stop: int | None) -> Iterator[Part]:
        index = 0
        for file in self._files:
            if not self._gzip[file] and index < start and index + self._counts(file) <= start:
                index += self._counts(file)
                continue
            skip = max(start - index, 0)
            left = None if stop is None else stop - index - skip
            if left is not None and left <= 0:
                return
            reader = self._opened(file, skip)
            yield Part(functools.partial(_given, reader), str(file), index + reader.number, left)
            index += reader.number  # as far as it has been read

    def _steps(self, rows: int, bytes: int) -> Iterator[EpisodeBatch | EpisodeError]:
        blocks = StepBlocks(
            self._example_spec,
            self._episode_id,
            encoded=self._images == "encoded",
            rows=rows,
            bytes=bytes,
            row_bytes=self.spec.row_bytes,
            budget=self._budget,
        )
        for file in self._files:
            with self._opened(file, 0) as reader:
                yield from blocks.read(reader, str(file), compressed=self._gzip[file])


def _between(
    items: Iterator[EpisodeBatch | EpisodeError], start: int, stop: int | None
) -> Iterator[EpisodeBatch | EpisodeError]:
    """Those of the episodes `start` up to (not with) `stop`."""
    first = 0
    while stop is None or first < stop:
        item = next(items, None)
        if item is None:
            return
        count = len(item) if isinstance(item, EpisodeBatch) else 1
        low, high = max(start - first, 0), count if stop is None else min(stop - first, count)
        if low < high:
            yield item.take(slice(low, high)) if isinstance(item, EpisodeBatch) else item
        first += count


def _resized(spec: ExampleSpec, size: tuple[int, int]) -> ExampleSpec:
    fields = [dataclasses.replace(f, size=size) if f.encoding == "image" else f for f in spec.fields]
    return dataclasses.replace(spec, fields=tuple(fields))


def _checked(spec: ExampleSpec, record: str, episode_id: str | None) -> ExampleSpec:
    names = {field.path[0] for field in spec.fields}
    if record == "episode":
        if NEXT in names:
            raise ValueError(f"features: {NEXT} is for records of one step (record='step')")
        return spec
    if not names & {"is_first", "is_last", "is_terminal"} and episode_id is None:
        raise ValueError(
            "records of one step need something that tells where an episode ends: "
            "is_first, is_last or is_terminal among the features, or episode_id="
        )
    after = {field.path[1:] for field in spec.fields if field.path[0] == NEXT}
    if after and after != {field.path[1:] for field in spec.fields if field.path[0] == "observation"}:
        raise ValueError(f"features: {NEXT} and observation differ in structure")
    return spec


def _given(reader: FrameReader) -> FrameReader:
    return reader


def _find_files(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            inside = [file for file in path.iterdir() if file.name[0] not in "._" and file.is_file()]
            files = sorted(file for file in inside if file.suffix not in (".json", ".spec", ".txt", ".md"))
        else:
            files = [path] if path.exists() else sorted(Path(name) for name in glob.glob(str(path)))
        if not files:
            raise SourceNotFound(f"{path}: no files there")
        for file in files:
            look = Look(file)
            if file.stat().st_size and not look.is_tfrecord() and not look.head.startswith(b"\x1f\x8b"):
                raise SourceFormatError(f"{file}: no TFRecord file, saw {look.describe()}")
        return files
    except OSError as cause:
        if isinstance(cause, SourceError):
            raise
        raise SourceError(f"{cause.filename or path}: {cause.strerror or cause}") from cause
