"""Episodes and sources for the tests of validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rlds2buf.check.continuity import changes
from rlds2buf.core.episode import Episode
from rlds2buf.core.spec import StepSpec, spec_of
from rlds2buf.errors import EpisodeError
from rlds2buf.io.source import Source


def flags(rows: int, end: str = "truncated") -> dict[str, np.ndarray]:
    """The flags of a good episode."""
    first, last, terminal = (np.zeros(rows, bool) for _ in range(3))
    first[0] = last[-1] = True
    terminal[-1] = end == "terminated"
    return {"is_first": first, "is_last": last, "is_terminal": terminal}


def good(rows: int = 30, end: str = "truncated", *, seed: int = 0, index: int | None = None, **changes) -> Episode:
    """An episode without any finding: a random walk with 5 dimensions."""
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=rows).astype(np.float32)
    discount = np.ones(rows, np.float32)
    reward[-1] = 0
    if end == "terminated":
        discount[-2:] = 0
    fields = {
        "observation": np.cumsum(rng.normal(size=(rows, 5)), axis=0).astype(np.float32),
        "action": rng.normal(size=(rows, 2)).astype(np.float32),
        "reward": reward,
        "discount": discount,
        **flags(rows, end),
        **changes,
    }
    return Episode(**fields, source="walks", index=index)


class Listed(Source):
    """A source over episodes and over errors of episodes that could not be built."""

    format = "listed"

    def __init__(self, items: Sequence[Episode | EpisodeError], spec: StepSpec | None = None) -> None:
        self.name = "walks"
        self._items = list(items)
        self._spec = spec or spec_of(next(item for item in items if isinstance(item, Episode)))

    @property
    def spec(self) -> StepSpec:
        return self._spec

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        yield from self._items[start:stop]


def jump_rows(rows: np.ndarray) -> np.ndarray:
    """Rows ``[K]`` of observations ``[N, D]`` whose step from the row before is a jump."""
    with np.errstate(over="ignore", invalid="ignore"):
        return changes(rows)[2]
