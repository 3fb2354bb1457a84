"""From the records of an RLDS dataset to episodes, pictures decoded ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from rlds2buf.codecs.images.decode import DamagedImage
from rlds2buf.codecs.images.pool import DecodePool, PendingFrames
from rlds2buf.codecs.tfrecord.example import Feature
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import DATA_FIELDS, FLAG_FIELDS, STEP_FIELDS
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, SourceError, SourceFormatError
from rlds2buf.formats.rlds.features import FeatureTree, Sequence, field_specs
from rlds2buf.formats.rlds.leaf_reader import LeafReader, leaf_readers
from rlds2buf.formats.rlds.own_metadata import OwnMetadata

__all__ = ["EpisodeReader", "Record"]

_STEPS: Final = "steps"
_AHEAD_BYTES: Final = 1 << 24
_AHEAD_EPISODES: Final = 16


class Record(NamedTuple):
    """One record: its features, and where it came from.

    Attributes:
        features: by key; values still encoded.
        file: of the record.
        number: of the record in its file, 0-based.
        episode: its number in the source, 0-based.
        data: the record itself and its checksum, for episodes that keep it.
    """

    features: Mapping[str, Feature]
    file: str
    number: int
    episode: int
    data: tuple[bytes, int] | None = None


class _Started(NamedTuple):
    """A record whose pictures are being decoded."""

    record: Record
    pictures: list[tuple[LeafReader, PendingFrames]]

    @property
    def nbytes(self) -> int:
        return sum(pending.nbytes for _, pending in self.pictures)


class EpisodeReader:
    """Makes episodes of records.

    Args:
        features: what features.json says, and how pictures are wanted.
        without: paths of fields to leave out (``"observation/image_0"``, ``"extras/depth"``), and of
            nests to leave out whole; their pictures are never decoded.
        own: what the folder says beyond RLDS, if rlds2buf wrote it.
        budget: for each record.

    Raises:
        SourceFormatError: there are no steps in it.
        ValueError: there is no such field to leave out.
    """

    def __init__(
        self,
        features: Mapping[str, FeatureTree],
        without: Collection[str] = (),
        own: OwnMetadata | None = None,
        budget: Budget = BUDGET,
    ) -> None:
        steps = features.get(_STEPS)
        if not isinstance(steps, Sequence) or not isinstance(steps.feature, dict) or not steps.feature:
            found = ", ".join(sorted(features)) or "nothing"
            raise SourceFormatError(f"not an RLDS dataset: no dataset of steps in it (found: {found})")
        kept = _without(steps.feature, without)
        self._own = own or OwnMetadata()
        self._budget = budget
        self.spec = _step_spec(self._own.specs(field_specs(dict(kept))))
        self._steps = self._own.steps(leaf_readers(kept, _STEPS, (None,)))
        self._metadata = leaf_readers({key: value for key, value in features.items() if key != _STEPS})
        both = (self._steps, self._metadata)
        self._pictures = [reader for _, reader in nest.flatten(both) if reader.has_pixels]

    def episodes(self, records: Iterator[Record], threads: int | None = None) -> Iterator[Episode | EpisodeError]:
        """Episodes in the records' order, or in place of one the error that says why it can't be had.

        While one is in use the pictures of the next ones are decoded: of at least one, and of more as
        long as they are at most 16 with 16 MiB of pixels together.

        Args:
            threads: see :class:`~rlds2buf.codecs.images.pool.DecodePool`.

        Raises:
            SourceFormatError: a record is not what features.json says; when its turn comes.
            SourceError: whatever `records` raises; when its turn comes.
        """
        if not self._pictures:
            for record in records:
                yield self._episode(record, {})
            return
        with DecodePool(threads) as pool:
            most = _AHEAD_EPISODES if pool.threads > 1 else 0
            waiting: deque[_Started | SourceError] = deque()
            for started in self._started(records, pool):
                waiting.append(started)
                while len(waiting) > most or (len(waiting) > 2 and _nbytes(waiting) > _AHEAD_BYTES):
                    yield self._finished(waiting.popleft())
            while waiting:
                yield self._finished(waiting.popleft())

    def _started(self, records: Iterator[Record], pool: DecodePool) -> Iterator[_Started | SourceError]:
        """The records at work; an error comes as the last one, behind those before it."""
        try:
            for record in records:
                yield self._start(record, pool)
        except SourceError as error:
            yield error

    def _start(self, record: Record, pool: DecodePool) -> _Started:
        try:
            tally = Tally(self._budget)
            files = [reader.files(record.features, tally) for reader in self._pictures]
        except SourceFormatError as cause:
            raise _damaged(record, cause) from cause
        pairs = zip(self._pictures, files, strict=True)
        return _Started(record, [(reader, pool.submit(column, reader.leaf)) for reader, column in pairs])

    def _finished(self, started: _Started | SourceError) -> Episode | EpisodeError:
        if isinstance(started, SourceError):
            raise started
        pixels = {}
        for reader, pending in started.pictures:
            try:
                pixels[reader.key] = pending.result()
            except DamagedImage as cause:
                return _unreadable(started.record, reader, cause)
        return self._episode(started.record, pixels)

    def _episode(self, record: Record, pixels: Mapping[str, Any]) -> Episode | EpisodeError:
        def read(reader: LeafReader) -> Any:
            return reader.read(record.features, pixels.get(reader.key), tally)

        tally = Tally(self._budget)

        try:
            steps = nest.map_structure(read, self._steps)
            known = {field: steps.pop(field) for field in STEP_FIELDS if field in steps}
            metadata = self._own.metadata(nest.map_structure(read, self._metadata))
            episode = Episode(**known, extras=steps, metadata=metadata, source=record.file, index=record.episode)
            episode.record = record.data
            return episode
        except EpisodeError as error:
            return error
        except SourceFormatError as cause:
            raise _damaged(record, cause) from cause


def _nbytes(waiting: Collection[_Started | SourceError]) -> int:
    return sum(started.nbytes for started in waiting if isinstance(started, _Started))


def _damaged(record: Record, cause: SourceFormatError) -> SourceFormatError:
    return cause.at(f"{record.file}: record {record.number} (episode {record.episode})")


def _unreadable(record: Record, reader: LeafReader, cause: DamagedImage) -> EpisodeError:
    """The record's framing is whole, so a picture that is not spoils its episode only."""
    names = reader.key.split("/")
    step = None
    if names[0] == _STEPS:
        names = names[1:] if names[1] in STEP_FIELDS else ["extras", *names[1:]]
        step = reader.step_of(record.features, cause.frame)
    error = EpisodeError(
        str(cause), source=record.file, episode=record.episode, step=step, path="/".join(names), rule="unreadable"
    )
    error.__cause__ = cause
    return error


def _step_spec(specs: Mapping[str, Any]) -> StepSpec:
    data: dict[str, Any] = {field: specs.get(field) for field in DATA_FIELDS}
    flags: dict[str, Any] = {field: specs[field] for field in FLAG_FIELDS if field in specs}
    return StepSpec(**data, **flags, extras={key: spec for key, spec in specs.items() if key not in STEP_FIELDS})


def _without(steps: dict[str, FeatureTree], paths: Collection[str]) -> dict[str, FeatureTree]:
    """The steps' features but for those at `paths`, and but for nests that nothing is left of."""
    left = set(paths)

    def keep(feature: FeatureTree, path: str) -> FeatureTree | None:
        if path in left:
            left.discard(path)
            return None
        if not isinstance(feature, dict) or not feature:
            return feature
        kept = {key: keep(child, f"{path}/{key}") for key, child in feature.items()}
        return {key: child for key, child in kept.items() if child is not None} or None

    kept = {key: keep(child, key if key in STEP_FIELDS else f"extras/{key}") for key, child in steps.items()}
    if left:
        raise ValueError(f"no such field: {', '.join(sorted(left))}")
    if not (found := {key: child for key, child in kept.items() if child is not None}):
        raise ValueError("no field would be left")
    return found
