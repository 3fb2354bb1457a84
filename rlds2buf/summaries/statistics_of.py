"""The statistics of a dataset, in one pass over its numbers."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice, integer
from rlds2buf.errors import EpisodeError, FilteredOut
from rlds2buf.io.source import Source
from rlds2buf.numbers.accumulators import Spool
from rlds2buf.numbers.dataset_numbers import FieldStatistics, Statistics
from rlds2buf.pipeline.measuring import Measure, PictureSample, measured_pictures, picture_fields, without_pictures
from rlds2buf.pipeline.opening import open_source
from rlds2buf.pipeline.progress import Tracked

__all__ = ["PICTURE_SAMPLE", "statistics"]

PICTURE_SAMPLE = 1000
"""Frames of each field of pictures that are looked at unless told otherwise."""


def statistics(
    source: Any,
    *,
    picture_sample: int | str = PICTURE_SAMPLE,
    final_transition: str = "drop",
    allow_nonfinite: bool = False,
    on_invalid: str = "raise",
    memory: int = 1 << 30,
    progress: bool = False,
    split: str | None = None,
    format: str | None = None,
    **options: Any,
) -> Statistics:
    """Count, minimum, maximum, mean, standard deviation and five quantiles of every dimension of every number field.

    All of them are exact: quantiles are what ``numpy.quantile`` gives of all values.  What no learner uses is not
    counted.  Of an episode's last row that is all but the observation (action, reward and discount are padding in
    RLDS) unless its action is real, as in LeRobot's datasets; and the observation too where it was made up.  Flags are
    not counted.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes, which is then closed again.
        picture_sample: how many frames of each field of pictures are looked at, evenly spread over at most a tenth as
            many episodes; 0 for none, ``"all"`` for all.  Pictures are not decoded otherwise.
        final_transition: ``"keep"`` where action, reward and discount of the last rows are real, and nothing in the
            data says so.
        allow_nonfinite: leave NaN and infinity out, by dimension; else they are errors.
        on_invalid: what becomes of an episode that can't be built: ``"raise"`` stops, ``"skip"`` leaves it out, and a
            warning says how many.
        memory: bytes of values that are held; more are kept in a temporary file.
        progress: show a bar on standard error, if that is a terminal.
        split, format, options: for :func:`rlds2buf.open_source`, if `source` is not a Source.

    Returns:
        :class:`~rlds2buf.numbers.dataset_numbers.Statistics`: ``statistics["action"].mean``, ``.q01``...

    Raises:
        EpisodeError: an episode can't be built, or holds NaN or infinity; the message says where.
        SourceError: the dataset can't be read.
        SinkError: there is no room for the temporary file.
        ValueError, TypeError: a wrong argument, or options for a Source that is open.

    >>> import rlds2buf
    >>> episode = rlds2buf.Episode(observation=np.arange(4.0), action=np.array([1.0, 3.0, 5.0, 0.0]))
    >>> found = rlds2buf.statistics([episode])
    >>> found["action"].mean.item(), found["action"].q50.item(), found["observation"].max.item()
    (3.0, 3.0, 3.0)
    """
    choice("final_transition", final_transition, ("drop", "keep"))
    choice("on_invalid", on_invalid, ("raise", "skip"))
    frames = None if picture_sample == "all" else integer("picture_sample", picture_sample, 0)
    with contextlib.ExitStack() as stack:
        if not isinstance(source, Source):
            source = stack.enter_context(open_source(source, split=split, format=format, **options))
        elif split is not None or format is not None or options:
            raise ValueError("split, format and further options are for a path, not for an opened source")
        if source.is_endless:
            raise ValueError(f"{source.name}: a mixture without end (stop='never') has no statistics")
        spool = stack.enter_context(Spool(integer("memory", memory, 0)))
        how: dict[str, Any] = {"final_is_real": final_transition == "keep", "allow_nonfinite": allow_nonfinite}
        shown = picture_fields(source.spec)
        reading = without_pictures(source)
        measure = Measure(reading.spec, spool, **how)
        index, lengths, unreadable = _read(Tracked(reading, "stats", enabled=progress), measure, on_invalid)
        found: dict[nest.Path, FieldStatistics] = {}
        left_out = dict(measure.left_out)
        if shown and frames != 0:
            found = measured_pictures(source, shown, PictureSample.of(index, lengths, frames))
        else:
            left_out.update({nest.path_name(path): "pictures were not asked for" for path in shown})
        warnings = [*source.warnings(), *unreadable]
        return measure.statistics(source, found, left_out=left_out, warnings=warnings)


def _read(source: Source, measure: Measure, on_invalid: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Count all episodes; their numbers and lengths, and what is to be said of those that can't be built."""
    index: list[np.ndarray] = [np.empty(0, np.int64)]
    lengths: list[np.ndarray] = [np.empty(0, np.int64)]
    errors: list[EpisodeError] = []
    place = 0
    for item in source.read_batches():
        if isinstance(item, EpisodeError):
            place = place + 1 if item.episode is None else item.episode + 1
            if isinstance(item, FilteredOut):
                continue
            if on_invalid == "raise":
                item.advice = item.advice or "on_invalid='skip' leaves such episodes out"
                raise item
            errors.append(item)
            continue
        measure.add(item)
        index.append(place + np.arange(len(item)) if item.index is None else item.index)
        made_up = 0 if item.placeholder is None else item.placeholder
        lengths.append(item.lengths - made_up)
        place = int(index[-1][-1]) + 1
    said = [f"{len(errors):,} episodes could not be read and are left out, the first: {errors[0]}"] if errors else []
    return np.concatenate(index), np.concatenate(lengths), said
