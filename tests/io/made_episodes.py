"""Random episodes: of several layouts, lengths, nests and types."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from rlds2buf import Episode

__all__ = ["LAYOUTS", "episodes", "made"]


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


def _texts(steps: int, rng: np.random.Generator) -> np.ndarray:
    out = np.empty(steps, object)
    out[:] = [b"x" * int(n) for n in rng.integers(0, 4, steps)]
    return out


def made(layout: int, steps: int, seed: int) -> Episode:
    """One of the :data:`LAYOUTS`."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 100, steps)
    flags: dict[str, Any] = {"is_terminal": values > 90}
    if layout % 2:
        flags |= {"is_first": np.arange(steps) == 0, "is_last": values > 50}
    fields: dict[str, Any] = [
        {"observation": np.stack([values, values], 1).astype(np.float32), "action": values.astype(np.int8)},
        {"observation": np.stack([values, values], 1), "action": values.astype(np.int8)},
        {"observation": {"a": values.astype(np.float16), "b": {"word": _texts(steps, rng)}}, "action": None},
        {"observation": Pair(values, (values > 3, values[:, None, None])), "extras": {"x": {}, "y": values * 1j}},
        {"observation": np.asfortranarray(np.stack([values] * 3, 1).astype(">f8")), "reward": values[::-1]},
    ][layout % 5]
    metadata = {"number": seed} if seed % 3 == 0 else {}
    if seed % 7 == 0:
        metadata["placeholder_final_row"] = True
    return Episode(**fields, **flags, discount=np.ones(steps, np.float32), metadata=metadata)


LAYOUTS = 10
"""How many :func:`made` knows."""


@st.composite
def episodes(draw: st.DrawFn) -> list[Episode]:
    """Lists of them, of mostly one layout."""
    layouts = draw(st.lists(st.integers(0, LAYOUTS - 1), min_size=1, max_size=3))
    count = draw(st.integers(1, 30))
    seed = draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    kinds = np.sort(rng.choice(layouts, count)) if draw(st.booleans()) else rng.choice(layouts, count)
    return [made(int(kind), int(rng.integers(1, 50)), seed + i) for i, kind in enumerate(kinds)]
