"""From one record of an RLDS dataset to an episode, or to the words for what is wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from rlds2buf.codecs.images.decode import DamagedImage
from rlds2buf.codecs.images.pool import PendingFrames
from rlds2buf.codecs.tfrecord.example import Feature
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import DATA_FIELDS, FLAG_FIELDS, STEP_FIELDS
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.formats.rlds.features import FeatureTree, Sequence, field_specs
from rlds2buf.formats.rlds.leaf_reader import LeafReader, leaf_readers
from rlds2buf.formats.rlds.own_metadata import OwnMetadata

__all__ = ["EpisodeReader", "Record"]

_STEPS: Final = "steps"


class Record(NamedTuple):
    """One record: its features, and where it came from.

    Attributes:
        features: by key; values still encoded.
        file: of the record.
        number: of the record in its file, 0-based.
        episode: its number in the source, 0-based.
    """

    features: Mapping[str, Feature]
    file: str
    number: int
    episode: int


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
        self.own = own or OwnMetadata()
        self.budget = budget
        self.spec = _step_spec(self.own.specs(field_specs(dict(kept))))
        self.steps = self.own.steps(leaf_readers(kept, _STEPS, (None,)))
        self.metadata = leaf_readers({key: value for key, value in features.items() if key != _STEPS})
        both = (self.steps, self.metadata)
        self._pictures = [reader for _, reader in nest.flatten(both) if reader.has_pixels]

    def episode(self, record: Record, pixels: Mapping[str, Any]) -> Episode | EpisodeError:
        """The episode, or the error that says why it can't be had.

        Args:
            record: of the episode.
            pixels: what has become of pictures, by the key of their leaf, where they are decoded already.

        Raises:
            SourceFormatError: the record is not what features.json says.
        """
        tally = Tally(self.budget)

        def read(reader: LeafReader) -> Any:
            return reader.read(record.features, pixels.get(reader.key), tally)

        try:
            pixels = {**pixels, **self._decoded(record, pixels)}
            steps = nest.map_structure(read, self.steps)
            known = {field: steps.pop(field) for field in STEP_FIELDS if field in steps}
            metadata = self.own.metadata(nest.map_structure(read, self.metadata))
            return Episode(**known, extras=steps, metadata=metadata, source=record.file, index=record.episode)
        except EpisodeError as error:
            return error
        except SourceFormatError as cause:
            raise _damaged(record, cause) from cause

    def _decoded(self, record: Record, pixels: Mapping[str, Any]) -> dict[str, Any]:
        """Of every picture that is not decoded yet."""
        tally = Tally(self.budget)
        pictures = [reader for reader in self._pictures if reader.key not in pixels]
        files = [reader.files(record.features, tally) for reader in pictures]
        found = {}
        for reader, column in zip(pictures, files, strict=True):
            try:
                found[reader.key] = PendingFrames(column, reader.leaf).result()
            except DamagedImage as cause:
                raise _unreadable(record, reader, cause) from cause
        return found


def _damaged(record: Record, cause: SourceFormatError) -> SourceFormatError:
    return cause.at(f"{record.file}: record {record.number} (episode {record.episode})")


def _unreadable(record: Record, reader: LeafReader, cause: DamagedImage) -> EpisodeError:
    """The record's framing is whole, so a picture that is not spoils its episode only."""
    names = reader.key.split("/")
    step = None
    if names[0] == _STEPS:
        names = names[1:] if names[1] in STEP_FIELDS else ["extras", *names[1:]]
        step = reader.step_of(record.features, cause.frame)
    return EpisodeError(
        str(cause), source=record.file, episode=record.episode, step=step, path="/".join(names), rule="unreadable"
    )


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
