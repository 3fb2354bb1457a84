"""Episodes of every kind, for Hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from rlds2buf import Episode

OBSERVATIONS = ("flat", "dict", "tuple", "image")
DISCOUNTS = (None, np.float32, np.float64, np.int32)


def observation_of(kind: str, rows: int, rng: np.random.Generator):
    if kind == "flat":
        return rng.normal(size=(rows, 3)).astype(np.float32)
    if kind == "dict":
        text = np.array([f"row {t}".encode() for t in range(rows)], object)
        return {"b": rng.normal(size=rows), "a": {"text": text, "mode": rng.integers(0, 9, (rows, 2))}}
    if kind == "tuple":
        return (rng.integers(0, 2, rows).astype(bool), (rng.normal(size=(rows, 2, 2)),))
    return rng.integers(0, 256, (rows, 4, 4, 3)).astype(np.uint8)


@st.composite
def episodes(draw, max_rows: int = 14, ends=("terminated", "truncated", "open")) -> Episode:
    """An episode that obeys the grammar (an open one lacks its last flag)."""
    rows = draw(st.integers(1, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    end = draw(st.sampled_from(ends))
    kind = draw(st.sampled_from(DISCOUNTS))
    first, last, terminal = (np.zeros(rows, bool) for _ in range(3))
    first[0] = True
    last[-1] = end != "open"
    terminal[-1] = end == "terminated"
    discount = None
    if kind is not None:
        whole = np.dtype(kind).kind == "i"
        discount = rng.integers(0, 2, rows).astype(kind) if whole else rng.uniform(0, 1, rows).astype(kind)
    reward_shape = draw(st.sampled_from([(), (), (), (2,)]))
    return Episode(
        observation=observation_of(draw(st.sampled_from(OBSERVATIONS)), rows, rng),
        action=draw(st.sampled_from([rng.normal(size=(rows, 2)).astype(np.float32), rng.integers(0, 4, rows)])),
        reward=rng.normal(size=(rows, *reward_shape)).astype(draw(st.sampled_from([np.float32, np.float64]))),
        discount=discount,
        is_first=first,
        is_last=last,
        is_terminal=terminal,
        extras=draw(st.sampled_from([{}, {"id": np.arange(rows), "info": {"z": rng.normal(size=(rows, 1))}}])),
        source="drawn",
        index=draw(st.sampled_from([None, 5])),
    )
