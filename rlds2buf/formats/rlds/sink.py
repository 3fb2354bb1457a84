"""Episodes into an RLDS folder as TFDS writes it, without TensorFlow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.tfrecord.frames import frame
from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.hashing import unit_intervals_of
from rlds2buf.core.records import Records
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import SinkError, SpecMismatch
from rlds2buf.files.foreign import replaceable_folder
from rlds2buf.files.partial import PartialFolder, plain_json
from rlds2buf.formats.rlds.dataset_info import (
    MIN_SHARD,
    WrittenSplit,
    check_names,
    dataset_info_json,
    names_from,
    number_of_shards,
    shard_lengths,
    shard_name,
)
from rlds2buf.formats.rlds.features import FeatureTree, Sequence
from rlds2buf.formats.rlds.features_writer import features_json, names_of, step_features
from rlds2buf.formats.rlds.format import is_file_of_folder
from rlds2buf.formats.rlds.leaf_writer import LeafWriter, Pieces, example_records, leaf_writers
from rlds2buf.formats.rlds.metadata_writer import MetadataWriter
from rlds2buf.formats.rlds.own_metadata import FILE_NAME, RecordLayout, adopted_metadata_json, own_metadata_json
from rlds2buf.formats.rlds.record_spool import RecordSpool
from rlds2buf.io.sink import Sink
from rlds2buf.version import __version__

__all__ = ["RldsDirSink"]

_STEPS: Final = "steps"
_FEATURES: Final = "features.json"
_INFO: Final = "dataset_info.json"
_IMAGES: Final = ("png", "tensor")
_MAGIC: Final = {b"\xff\xd8": "jpeg", b"\x89P": "png"}


class RldsDirSink(Sink):
    """Writes a folder that ``tfds.builder_from_directory`` and :func:`rlds2buf.open_source` open.

    A record is an episode.  Episodes lie in the order written, and TFDS is told to read them in it.
    Pictures that come as files are kept byte for byte.  Values, dtypes and shapes are kept for every
    field (:mod:`rlds2buf.formats.rlds.features_writer` says how); what is not is told by :meth:`lost`.

    Args:
        path: the folder to make.
        overwrite: replace an RLDS folder that is there, if there is nothing else in it.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
        name: of the dataset; None: the folder's, or if that is a version such as 1.0.0 its parent's.
        version: three numbers; None: the folder's name if it is one, else 1.0.0.
        split: the split's name.
        val_fraction: write this share of the episodes (0 to 1) to a second split, ``val``; which ones
            depends on `seed` and on each episode's number in the source alone, and they are those that
            ``open_source(val_fraction=..., part="val")`` gives.
        seed: see `val_fraction`.
        shard_size: bytes a shard should have at most, about; None: as TFDS cuts
            (:func:`rlds2buf.formats.rlds.shards.number_of_shards`).
        num_shards: of each split, instead.
        images: what becomes of pixels: ``"png"`` (lossless; what looks like a picture, see
            :func:`rlds2buf.formats.rlds.features_writer.step_features`) or ``"tensor"``.

    Raises:
        ValueError: a name, or another option, is not of that form.

    >>> RldsDirSink("data/hopper/1.0.0")
    <RldsDirSink data/hopper/1.0.0>
    """

    takes_encoded_images = True
    holds_last_actions = True

    def __init__(
        self,
        path: str | Path,
        *,
        overwrite: bool = False,
        resume: bool = False,
        name: str | None = None,
        version: str | None = None,
        split: str = "train",
        val_fraction: float = 0.0,
        seed: int = 0,
        shard_size: int | None = None,
        num_shards: int | None = None,
        images: str = "png",
    ) -> None:
        self.name = str(path)
        usual_name, usual_version = names_from(Path(path))
        self._dataset = usual_name if name is None else name
        self._version = usual_version if version is None else version
        self._splits = (split, "val") if val_fraction else (split,)
        check_names(self._dataset, self._version, self._splits)
        if not 0 <= val_fraction <= 1:
            raise ValueError(f"val_fraction is a share from 0 to 1, got {val_fraction}")
        choice("images", images, _IMAGES)
        for option, number in (("shard_size", shard_size), ("num_shards", num_shards)):
            if number is not None and number < 1:
                raise ValueError(f"{option} must be at least 1, got {number}")
        if shard_size is not None and num_shards is not None:
            raise ValueError("give shard_size or num_shards, not both")
        self._overwrite, self._resume = overwrite, resume
        self._val_fraction, self._seed = val_fraction, seed
        self._shard_size, self._num_shards, self._images = shard_size, num_shards, images
        self._part: PartialFolder | None = None
        self._expected: int | None = None
        self._lost: dict[str, str] = {}
        self._layout: RecordLayout | None = None

    def adopt(self, layout: RecordLayout) -> bool:
        """Records of an RLDS folder are written as they are: no picture and no number is encoded again."""
        self._layout = layout
        return True

    def expect(self, episodes: int | None, items: int | None = None, source_ids: Iterable[str] = ()) -> None:
        """See :meth:`Sink.expect`: where the number comes true, shards are written without a second copy."""
        self._expected = episodes

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Make the part folder, or find the one to resume.

        Raises:
            SnapshotExists: the target is there already, or another process is writing it.
            SnapshotError: resuming, and the source or the options are not the same.
            SinkError: the files can't be written.
        """
        self._spec = spec
        self._provenance = plain_json(provenance)
        self._steps, self._unwritten = step_features(spec, images=self._images)
        self._columns = _columns(spec, self._steps)
        self._metadata = MetadataWriter()
        self._formats: dict[str, str] = {}
        self._spools: dict[str, RecordSpool] = {}
        self._part = PartialFolder(
            Path(self.name),
            provenance={"source": self._provenance, "spec": spec.to_json(), "sink": self._choices()},
            overwrite=self._overwrite,
            resume=self._resume,
            replaceable=_replaceable,
            what="an RLDS folder",
        )
        self.found = self._part.notes
        try:
            self._begin(self._part)
        except BaseException:
            self.abort()
            raise

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Append episodes: an item each.

        Raises:
            SpecMismatch: one doesn't fit the spec, or is larger than the 2 GiB that TensorFlow reads; those before
                it are written.
            SinkError: the disk is full, for one.
        """
        assert self._part is not None, "write before open"
        if self._layout is not None:
            self._append(batch, _kept_records(batch))
            return len(batch)
        first = next(iter(batch))
        self._spec.check(first)
        found = dict(batch.rows.flatten())
        try:
            records = self._records(batch, found)
        except SpecMismatch as error:
            if len(batch) > 1:
                return sum(self.write_batch(batch.take([i])) for i in range(len(batch)))
            error.source, error.episode = first.source, first.index
            raise
        for path, writer in self._columns:
            if isinstance(writer.leaf, StoredImage):
                self._note_formats(writer.key, found[path][batch.starts])
        self._append(batch, records)
        return len(batch)

    def _records(self, batch: EpisodeBatch, found: Mapping[nest.Path, np.ndarray]) -> Records:
        edges = np.append(batch.starts, batch.num_steps)
        pieces: list[Pieces] = []
        for path, writer in self._columns:
            pieces += writer.write(found[path], edges)
        before = self._metadata.state() if len(batch) > 1 else None
        try:
            return example_records([*pieces, *self._metadata.write(batch)])
        except SpecMismatch:
            if before is not None:  # it will be written again, in parts
                self._metadata.go_on_from(before)
            raise

    def _append(self, batch: EpisodeBatch, records: Records) -> None:
        if len(self._splits) == 1:
            self._spools[self._splits[0]].append(records)
            return
        number = sum(map(len, self._spools.values()))
        numbers = number + np.arange(len(batch)) if batch.index is None else batch.index
        chosen = self._splits_of(numbers)
        for i, spool in enumerate(self._spools.values()):
            spool.append(records.take(np.flatnonzero(chosen == i)))

    def resumed(self) -> Mapping[str, Any] | None:
        """What the last checkpoint of the killed run was given."""
        assert self._part is not None, "resumed before open"
        return self._part.journal["progress"] if self._part.journal else None

    def checkpoint(self, progress: Mapping[str, Any]) -> None:
        """Sync the records and note how far they are."""
        assert self._part is not None, "checkpoint before open"
        records = {split: spool.checkpoint() for split, spool in self._spools.items()}
        self._part.write_journal(
            {
                "progress": dict(progress),
                "records": records,
                "metadata": self._metadata.state(),
                "formats": self._formats,
            }
        )

    def lost(self) -> Mapping[str, str]:
        """Fields and metadata that are not in the folder, or not as they were."""
        return dict(self._lost)

    def commit(self) -> None:
        """Cut the records into shards, write the JSON files, and move the folder to its place.

        Raises:
            SinkError: it can't be written.
        """
        assert self._part is not None, "commit before open"
        folder = self._part.folder
        self._lost = {} if self._layout else {**self._unwritten, **_told(self._metadata.lost)}
        written, finishers = self._cut(folder)
        description = f"Written by rlds2buf from {self._provenance.get('source', 'memory')}."
        _write(folder / _FEATURES, self._features_text())
        _write_json(folder / _INFO, dataset_info_json(self._dataset, self._version, written, description))
        _write_json(folder / FILE_NAME, self._own_metadata())
        self._part.forget_journal()
        for finish in finishers:
            finish()
        self._part.publish()
        self._part = None

    def abort(self) -> None:
        """Remove the part folder, or with `resume` leave it for another run to resume."""
        part, self._part = self._part, None
        if part is not None:
            for spool in self._spools.values():
                spool.close()
            part.close(keep=self._resume)

    def _begin(self, part: PartialFolder) -> None:
        journal = part.journal
        if journal is not None:
            self._metadata.go_on_from(journal["metadata"])
            self._formats = dict(journal["formats"])
        for split in self._splits:
            self._spools[split] = RecordSpool(
                part.folder,
                f"{split}.records",
                self._count,
                expected=self._expected_in(split),
                look_at=self._look_at(),
                reached=journal["records"][split] if journal else None,
            )
        if journal is not None:
            _remove_others(part.folder, {file.name for spool in self._spools.values() for file in spool.files})

    def _expected_in(self, split: str) -> int | None:
        if self._expected is None or len(self._splits) == 1:
            return self._expected
        return int((self._splits_of(np.arange(self._expected)) == self._splits.index(split)).sum())

    def _look_at(self) -> int:
        """How many bytes are enough to guess how many shards there will be."""
        if self._num_shards is not None:
            return 1
        return (self._shard_size or MIN_SHARD) // 2

    def _choices(self) -> dict[str, Any]:
        return {
            "name": self._dataset,
            "version": self._version,
            "splits": list(self._splits),
            "val_fraction": self._val_fraction,
            "seed": self._seed,
            "shard_size": self._shard_size,
            "num_shards": self._num_shards,
            "images": self._images,
            **({"records": self._layout.digest} if self._layout else {}),
        }

    def _splits_of(self, numbers: np.ndarray) -> np.ndarray:
        """Which split episodes belong to, by their numbers in the source."""
        return (unit_intervals_of(self._seed, numbers) < self._val_fraction).astype(np.int64)

    def _note_formats(self, key: str, firsts: np.ndarray) -> None:
        """What the pictures are, by each episode's first row."""
        cells = firsts.reshape(len(firsts), -1)[:, :1].reshape(-1) if firsts.dtype == object else ["pixels"]
        known = {_MAGIC.get(cell[:2], "") if isinstance(cell, bytes) else "png" for cell in cells} or {""}
        for found in known:
            if self._formats.setdefault(key, found) != found:
                self._formats[key] = ""

    def _cut(self, folder: Path) -> tuple[list[WrittenSplit], list[Callable[[], None]]]:
        """Copy the shards behind each split's first one; what makes that one comes last, and in no time."""
        written: list[WrittenSplit] = []
        finishers: list[Callable[[], None]] = []
        for split, spool in self._spools.items():
            if not len(spool) and any(map(len, self._spools.values())):
                finishers.append(spool.remove)  # TFDS has no splits without records
                continue
            lengths = shard_lengths(len(spool), self._count(spool.num_bytes, len(spool)))
            names = [shard_name(self._dataset, split, i, len(lengths)) for i in range(len(lengths))]
            finishers.append(spool.cut(lengths, [folder / name for name in names]))
            written.append(WrittenSplit(split, lengths, spool.num_bytes))
        return written, finishers

    def _count(self, num_bytes: int, num_records: int) -> int:
        """How many shards records make."""
        if self._num_shards is not None:
            count = self._num_shards
        elif self._shard_size is not None:
            count = -(-num_bytes // self._shard_size)
        else:
            count = number_of_shards(num_bytes, num_records)
        return max(1, min(count, num_records))

    def _features_text(self) -> str:
        if self._layout is not None:
            return self._layout.features
        features = {_STEPS: Sequence(self._steps), **self._metadata.features()}
        return _json_text(features_json(features, self._formats))

    def _own_metadata(self) -> dict[str, Any]:
        facts = {
            "version": __version__,
            "provenance": self._provenance,
            "sink": self._choices(),
            "lost": self._lost,
        }
        if self._layout is not None:
            return adopted_metadata_json(self._layout.own, **facts)
        return own_metadata_json(self._spec, self._metadata.paths(), self._metadata.python_kinds(), **facts)


def _columns(spec: StepSpec, steps: Mapping[str, FeatureTree]) -> list[tuple[nest.Path, LeafWriter]]:
    """What writes each field, by its path in an episode; those without a feature are left out."""
    writers = leaf_writers(Sequence(dict(steps)), _STEPS)
    return [
        (path, writers[key])
        for path, _ in spec.fields()
        if (key := "/".join((_STEPS, *names_of(path)))) in writers and not _is_shadowed(path, spec)
    ]


def _kept_records(batch: EpisodeBatch) -> Records:
    """What the episodes were read from."""
    if batch.records is not None:
        return batch.records
    assert batch.rows.record is not None, "adopted records, and the episodes have none"
    whole = frame(*batch.rows.record)
    return Records(whole, np.array([0, len(whole)]))


def _is_shadowed(path: nest.Path, spec: StepSpec) -> bool:
    """Whether an earlier field has the same key."""
    names = "/".join(names_of(path))
    return next(other for other, _ in spec.fields() if "/".join(names_of(other)) == names) != path


def _told(lost: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Counts of lost metadata as sentences."""
    return {
        f"metadata/{path}": "; ".join(f"{reason} ({count} episodes)" for reason, count in reasons.items())
        for path, reasons in lost.items()
    }


def _replaceable(path: Path) -> bool | str:
    """Whether it is an RLDS folder; of one with other files in it, which one would be lost."""
    if not ((path / _FEATURES).is_file() and (path / _INFO).is_file()):
        return False
    return replaceable_folder(path, is_file_of_folder, "an RLDS folder")


def _remove_others(folder: Path, spools: set[str]) -> None:
    """What a run that was killed in its commit has left."""
    for child in folder.iterdir():
        if child.name in spools or child.name.startswith(("journal.json", "lock")):
            continue
        shutil.rmtree(child) if child.is_dir() else child.unlink()


def _json_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    _write(path, _json_text(content))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise SinkError(f"{path}: {cause.strerror or cause}") from cause
