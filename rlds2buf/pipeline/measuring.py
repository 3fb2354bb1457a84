"""The pass over a dataset that counts its numbers, and the sample of its pictures."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.images.decode import decode_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.row_flags import REAL_FINAL_ACTION
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, FilteredOut
from rlds2buf.io.sink import Sink
from rlds2buf.io.source import Source
from rlds2buf.numbers.accumulators import Columns, Spool
from rlds2buf.numbers.dataset_numbers import FieldStatistics, Statistics
from rlds2buf.numbers.pictures import PictureNumbers, channel_axis, thinned

__all__ = ["Measure", "MeasuringSink", "PictureSample", "measured_pictures", "picture_fields", "without_pictures"]

_MOST_DIMENSIONS = 1 << 14
_FRAMES_OF_AN_EPISODE = 10


class Measure:
    """Counts the numbers of the rows that go by.

    What no learner uses is not counted.  Of an episode's last row, from which no transition starts, that is all but
    the observation, unless it is marked that its action is real; and the observation too where it was made up.

    Args:
        spec: of the episodes that will come; fields that they lack then are not counted.
        spool: where values are kept.
        final_is_real: the last row's action is real in every episode, marked or not.
        allow_nonfinite: NaN and infinity are left out, by dimension; else they are errors.
        only: names of the fields that are counted; None for all.

    Attributes:
        episodes, steps, transitions: so far, as of :class:`~rlds2buf.numbers.dataset_numbers.Statistics`.
        left_out: fields without numbers, to the reason; those of pictures are not among them.
    """

    def __init__(
        self,
        spec: StepSpec,
        spool: Spool,
        *,
        final_is_real: bool = False,
        allow_nonfinite: bool = False,
        only: Collection[str] | None = None,
    ) -> None:
        self._spec = spec
        self._columns: dict[nest.Path, Columns] = {}
        self._final_is_real = final_is_real
        self._allow_nonfinite = allow_nonfinite
        self.episodes = self.steps = self.transitions = 0
        self.left_out: dict[str, str] = {}
        for path, field in spec.fields():
            unwanted = only is not None and nest.path_name(path) not in only
            if unwanted or path[0] in FLAG_FIELDS or channel_axis(field) is not None:
                continue
            why = _why_not(field)
            if why is not None:
                self.left_out[nest.path_name(path)] = why
            else:
                self._columns[path] = spool.columns(tuple(n for n in field.shape if n is not None), field.dtype)

    def add(self, batch: EpisodeBatch) -> None:
        """Count several whole episodes.

        Raises:
            EpisodeError: a value is not finite, and that is not allowed.
            SpecMismatch: the episodes have other fields, or of other shapes or types, than the spec says.
            SinkError: the values can't be kept.
        """
        self._spec.check(batch.rows)
        placeholder = np.zeros(len(batch), np.bool_) if batch.placeholder is None else batch.placeholder
        real = (np.ones(len(batch), np.bool_) if self._final_is_real else _marked_as_real(batch)) & ~placeholder
        seen = _others(batch, batch.ends[placeholder])
        used = _others(batch, batch.ends[~real])
        for path, column in batch.rows.flatten():
            columns = self._columns.get(path)
            if columns is None:
                continue
            rows = seen if path[0] == "observation" else used
            counted = column if rows is None else column.take(rows, axis=0)
            if not columns.add(counted) and not self._allow_nonfinite:
                raise _not_finite(batch, path, column, rows)
        self.episodes += len(batch)
        self.steps += batch.num_steps
        self.transitions += batch.num_steps if used is None else len(used)

    def join(self, other: Measure) -> None:
        """Count what another one has counted, behind all of one's own: of the episodes that follow in the dataset.

        The result is, to the last bit, that of one which counted all.  The other one's spool stays open meanwhile.

        Raises:
            ValueError: it counts other fields.
        """
        if self._columns.keys() != other._columns.keys():
            raise ValueError("parts of a dataset with different fields can't be joined")
        for path, columns in self._columns.items():
            columns.join(other._columns[path])
        self.episodes += other.episodes
        self.steps += other.steps
        self.transitions += other.transitions

    def fields(self) -> dict[nest.Path, FieldStatistics]:
        """What was counted, by path.

        Raises:
            SinkError: the values can't be read back.
        """
        found = self._columns.items()
        return {path: FieldStatistics.of_columns(columns.numbers(), columns.shape) for path, columns in found}

    def statistics(
        self,
        source: Source,
        pictures: Mapping[nest.Path, FieldStatistics] | None = None,
        left_out: Mapping[str, str] | None = None,
        warnings: Sequence[str] = (),
    ) -> Statistics:
        """All that is known of a source's episodes, in the order of its fields.

        Args:
            source: that they came from.
            pictures: what is known of the fields of pictures.
            left_out: as the attribute, if more is left out.
            warnings: what should be known of the data.
        """
        every = {**self.fields(), **(pictures or {})}
        order = [*(path for path, _ in source.spec.fields() if path in every)]
        order += [path for path in every if path not in order]  # of columns that were added
        return Statistics(
            source=source.name,
            format=source.format,
            episodes=self.episodes,
            steps=self.steps,
            transitions=self.transitions,
            fields={nest.path_name(path): every[path] for path in order},
            left_out=dict(self.left_out if left_out is None else left_out),
            warnings=tuple(warnings),
        )


class MeasuringSink(Sink):
    """What a conversion would write is counted instead.

    Args:
        spool: where values are kept.
        only, allow_nonfinite: as of :class:`Measure`.
    """

    name = "statistics"
    keeps_provenance = False
    holds_last_actions = True  # they count

    def __init__(self, spool: Spool, only: Collection[str] | None = None, *, allow_nonfinite: bool = False) -> None:
        self._spool = spool
        self._how: dict[str, Any] = {"only": only, "allow_nonfinite": allow_nonfinite}
        self._measure: Measure | None = None

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Begin."""
        self._measure = Measure(spec, self._spool, **self._how)

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Count several whole episodes."""
        assert self._measure is not None, "write before open"
        self._measure.add(batch)
        return len(batch)

    def statistics(self, source: Source) -> Statistics:
        """Of what was written.

        Args:
            source: that it came from.
        """
        assert self._measure is not None, "statistics before open"
        return self._measure.statistics(source)

    def commit(self) -> None:
        """Nothing is left to do."""

    def abort(self) -> None:
        """Nothing was written."""


def picture_fields(spec: StepSpec) -> list[nest.Path]:
    """The paths of the fields that hold pictures."""
    return [path for path, field in spec.fields() if channel_axis(field) is not None]


def without_pictures(source: Source) -> Source:
    """The source, whose pictures nobody will look at."""
    pictures = [nest.path_name(path) for path in picture_fields(source.spec)]
    with contextlib.suppress(ValueError):  # nothing but flags would be left
        return source.without(pictures) if pictures else source
    return source


@dataclasses.dataclass(frozen=True)
class PictureSample:
    """Which frames of a dataset are looked at: a number of them, evenly spread.

    Attributes:
        episodes: ``[n]``, numbers of episodes, as their `index` says, ascending.
        rows: for each of these, ``[k]``, which of its rows.
    """

    episodes: np.ndarray
    rows: list[np.ndarray]

    @classmethod
    def of(cls, index: np.ndarray, lengths: np.ndarray, frames: int | None) -> PictureSample:
        """About so many frames of episodes ``[E]``, some of each of few episodes; None: all frames.

        >>> sample = PictureSample.of(np.arange(50), np.full(50, 100), 20)
        >>> sample.episodes.tolist(), [rows.tolist() for rows in sample.rows]
        ([0, 49], [[0, 11, 22, 33, 44, 55, 66, 77, 88, 99], [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]])
        """
        if frames is None:
            return cls(index, [np.arange(length) for length in lengths.tolist()])
        chosen = _spread(len(index), -(-frames // _FRAMES_OF_AN_EPISODE))
        shares = [len(share) for share in np.array_split(np.arange(frames), max(1, len(chosen)))]
        rows = [_spread(length, most) for length, most in zip(lengths[chosen].tolist(), shares, strict=False)]
        return cls(index[chosen], rows)


def measured_pictures(
    source: Source, paths: list[nest.Path], sample: PictureSample
) -> dict[nest.Path, FieldStatistics]:
    """The numbers of the fields of pictures, of a sample of their frames; the episodes are read again.

    Args:
        source: whose episodes `sample` names.
        paths: of the fields.
        sample: which frames.

    Raises:
        SourceError, EpisodeError: they can't be read, or a picture is damaged.
    """
    reading = source.with_video_frames().encoded()
    fields = {path: field for path, field in reading.spec.fields() if path in set(paths)}
    found = {path: PictureNumbers() for path in fields}
    rows_of = dict(zip(sample.episodes.tolist(), sample.rows, strict=True))
    for batch in _chosen_episodes(reading, rows_of):
        assert batch.index is not None
        for position, number in enumerate(batch.index.tolist()):
            rows = int(batch.starts[position]) + rows_of[number]
            for path, column in batch.rows.flatten():
                if path in found:
                    frames = column[rows]
                    for some in _pixels(frames, fields[path], source.name, number, path):
                        found[path].add(thinned(some))
    return {path: FieldStatistics(**counted.numbers(), is_picture=True) for path, counted in found.items()}


def _chosen_episodes(source: Source, rows_of: Mapping[int, np.ndarray]) -> Iterator[EpisodeBatch]:
    """Those of some numbers, in order; the others are not read where the source can do without."""
    numbers = sorted(rows_of)
    if not numbers:
        return
    fewer = source.only(rows_of.__contains__)
    spans = [(numbers[0], numbers[-1] + 1)] if fewer is not source else [(n, n + 1) for n in numbers]
    for start, stop in spans:
        place = start
        for item in fewer.read_batches(start, stop, rows=1 << 10):
            if isinstance(item, EpisodeError):
                place += 1
                if isinstance(item, FilteredOut):
                    continue
                raise item
            if item.index is None:
                item.index = place + np.arange(len(item))
            place = int(item.index[-1]) + 1
            wanted = np.array([number in rows_of for number in item.index.tolist()])
            if wanted.any():
                yield item.take(wanted)


def _pixels(frames: np.ndarray, field: FieldSpec, source: str, episode: int, path: nest.Path) -> Iterator[np.ndarray]:
    """Frames as arrays ``[n, H, W, C]``; one by one where their sizes may differ."""
    if field.is_video:
        yield _of_videos(frames, field)
    elif field.is_string:
        shape = field.image.shape if field.image is not None else (None, None, 3)
        try:
            decoded = decode_frames(frames.tolist(), StoredImage(shape, np.dtype(np.uint8)))
        except ValueError as cause:
            name = nest.path_name(path)
            raise EpisodeError(str(cause), source=source, episode=episode, path=name, rule="unreadable") from cause
        for frame in decoded:
            yield frame[None]
    elif frames.dtype == object:
        for frame in frames:
            yield frame[None]
    elif channel_axis(field) == -3:
        yield np.moveaxis(frames, 1, -1)
    else:
        yield frames


def _of_videos(names: np.ndarray, field: FieldSpec) -> np.ndarray:
    from rlds2buf.codecs.video.decode import decode_into
    from rlds2buf.codecs.video.frame_names import runs

    assert field.image is not None
    out = np.zeros((len(names), *(n or 1 for n in field.image.shape)), np.uint8)
    decode_into(out, runs(names))
    return out


def _why_not(field: FieldSpec) -> str | None:
    """Why a field has no numbers; None if it has."""
    if field.is_string:
        return "pictures that are not of bytes" if field.image is not None else "text"
    if None in field.shape:
        return "its length varies"
    if field.dtype.kind not in "biuf":
        return f"{field.dtype} are no numbers"
    size = int(np.prod([n or 1 for n in field.shape], dtype=np.int64))
    return f"{size:,} numbers a step are too many to be listed" if size > _MOST_DIMENSIONS else None


def _marked_as_real(batch: EpisodeBatch) -> np.ndarray:
    """``[E] bool``: whose last row's action is no padding, as their metadata say."""
    if batch.rows.metadata.get(REAL_FINAL_ACTION):
        return np.ones(len(batch), np.bool_)
    facts = batch.metadata
    if facts is None or (isinstance(facts, FactColumns) and REAL_FINAL_ACTION not in facts.columns):
        return np.zeros(len(batch), np.bool_)
    if isinstance(facts, FactColumns):
        return np.array(facts.columns[REAL_FINAL_ACTION], np.bool_)
    return np.array([bool(each.get(REAL_FINAL_ACTION)) for each in facts])


def _others(batch: EpisodeBatch, without: np.ndarray) -> np.ndarray | None:
    """The rows of a batch but for some; None: all."""
    if not len(without):
        return None
    stays = np.ones(batch.num_steps, np.bool_)
    stays[without] = False
    return np.flatnonzero(stays)


def _not_finite(batch: EpisodeBatch, path: nest.Path, column: np.ndarray, rows: np.ndarray | None) -> EpisodeError:
    """The error that names the first such value of some rows."""
    bad = ~np.isfinite(column).reshape(len(column), -1).all(axis=1)
    if rows is not None:
        bad[np.setdiff1d(np.arange(len(bad)), rows)] = False
    row = int(np.argmax(bad))
    position = int(np.searchsorted(batch.starts, row, "right")) - 1
    return EpisodeError(
        f"{nest.path_name(path)} has NaN or infinity",
        source=batch.each_source()[position],
        episode=None if batch.index is None else int(batch.index[position]),
        step=row - int(batch.starts[position]),
        path=nest.path_name(path),
        rule="nonfinite",
        advice="allow_nonfinite=True leaves such values out",
    )


def _spread(count: int, most: int) -> np.ndarray:
    """``[k]``: so many of `count` places, from the first to the last."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(np.int64))
