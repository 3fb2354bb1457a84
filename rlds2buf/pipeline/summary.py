"""What a dataset holds: counts, fields, episode lengths, returns and ends."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.errors import EpisodeError, FilteredOut
from rlds2buf.io.source import Source
from rlds2buf.pipeline.findings import Findings
from rlds2buf.transform.facts import episode_returns

__all__ = ["Summary", "summarize"]


@dataclasses.dataclass(frozen=True)
class Summary:
    """One pass over a dataset.

    Attributes:
        source, format: the source's name and format.
        details: further facts that the format knows (splits, files, versions).
        episodes, steps, transitions: counts; `steps` are rows, final rows included.
        unreadable: episodes that could not be built, and the first such error's text.
        fields: field name to ``{"shape", "dtype"}`` and, where the dataset states them,
            ``"low"``, ``"high"``, ``"values"``.
        bytes_per_step: of all fields together; variable-length strings count as pointers.
        lengths: min, median and max rows per episode; None without episodes.
        returns: min, mean and max over episodes of the sum of the rewards of their transitions;
            None without episodes, or where the reward is missing or not one number a step.
        ends: how many episodes terminated, were truncated, or are open (no last step flagged).
        filtered: episodes that a filter left out, by rule; they are in no other count.
        warnings: what should be known of the data before they are used.
    """

    source: str
    format: str
    details: dict[str, Any]
    episodes: int
    steps: int
    transitions: int
    unreadable: int
    first_error: str | None
    fields: dict[str, dict[str, Any]]
    bytes_per_step: int
    lengths: dict[str, float] | None
    returns: dict[str, float] | None
    ends: dict[str, int]
    filtered: dict[str, int] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for ``rlds2buf inspect --json``."""
        return dataclasses.asdict(self)


def summarize(source: Source) -> Summary:
    """Read a dataset once and say what it holds; episodes that can't be built are counted.

    Raises:
        SourceError: the files are damaged.

    >>> import rlds2buf
    >>> ep = rlds2buf.Episode(observation=np.zeros((3, 2)), action=np.zeros(3), reward=[1.0, 2.0, 0.0],
    ...                       is_terminal=[False, False, True])
    >>> found = summarize(rlds2buf.open_source([ep, ep]))
    >>> found.episodes, found.transitions, found.returns["mean"], found.ends["terminated"]
    (2, 4, 3.0, 2)
    """
    lengths: list[int] = []
    returns: list[float] = []
    ends = Counter(terminated=0, truncated=0, open=0)
    errors: list[EpisodeError] = []
    filtered: Counter[str] = Counter()
    for item in source.with_video_frames().read_batches():  # nobody looks at the pixels
        if isinstance(item, EpisodeBatch):
            lengths += item.lengths.tolist()
            terminated, last = item.rows.is_terminal[item.ends], item.rows.is_last[item.ends]
            ended, cut = int(np.count_nonzero(terminated)), int(np.count_nonzero(last & ~terminated))
            ends.update(terminated=ended, truncated=cut, open=len(item) - ended - cut)
            totals = episode_returns(item)
            returns += [] if totals is None else totals.tolist()
        elif isinstance(item, FilteredOut):
            filtered[str(item.rule)] += 1
        else:
            errors.append(item)
    spec = source.spec
    return Summary(
        source=source.name,
        format=source.format,
        details=source.details(),
        episodes=len(lengths),
        steps=sum(lengths),
        transitions=sum(lengths) - len(lengths),
        unreadable=len(errors),
        first_error=str(errors[0]) if errors else None,
        fields={nest.path_name(path): field.to_json() for path, field in spec.fields()},
        bytes_per_step=spec.row_bytes,
        lengths=_of(lengths, min=np.min, median=np.median, max=np.max),
        returns=_of(returns, min=np.min, mean=np.mean, max=np.max),
        ends=dict(ends),
        filtered=dict(filtered),
        warnings=[*source.warnings(), *Findings(source.findings(quick=True)).warnings()],
    )


def _of(values: list[Any], **how: Any) -> dict[str, float] | None:
    return {name: float(fn(values)) for name, fn in how.items()} if values else None
