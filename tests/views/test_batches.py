"""Views of a batch, against those of its episodes one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, step_pairs, transitions, windows
from rlds2buf.core import nest

VIEWS: dict[str, Callable[[Any], Any]] = {
    "transitions": transitions,
    "n-step": lambda data: transitions(data, n_step=3, gamma=0.9),
    "pairs": step_pairs,
    "boundary": lambda data: step_pairs(data, terminal_discount="boundary"),
    "windows": lambda data: windows(data, 4, stride=3),
    "whole windows": lambda data: windows(data, 3, stride=2, pad=False),
}


def episodes(kinds: list[tuple[int, str]], discount: bool) -> list[Episode]:
    rng = np.random.default_rng(len(kinds))
    made = []
    for rows, end in kinds:
        last = np.arange(rows) == rows - 1
        made.append(
            Episode(
                observation={
                    "q": rng.normal(size=(rows, 2)),
                    "word": np.array([b"%d" % t for t in range(rows)], object),
                },
                action=(rng.integers(0, 9, rows), rng.normal(size=(rows, 1)).astype(np.float32)),
                reward=rng.normal(size=rows).astype(np.float32),
                discount=rng.random(rows) if discount else None,
                is_last=last & (end != "open"),
                is_terminal=last & (end == "terminated"),
                extras={"note": rng.integers(0, 9, (rows, 2))},
            )
        )
    return made


@settings(deadline=None)
@pytest.mark.parametrize("name", VIEWS)
@given(
    kinds=st.lists(
        st.tuples(st.integers(1, 50), st.sampled_from(["terminated", "truncated", "open"])), min_size=1, max_size=9
    ),
    discount=st.booleans(),
)
def test_a_batch_has_the_views_of_its_episodes(name: str, kinds: list[tuple[int, str]], discount: bool) -> None:
    given = episodes(kinds, discount)
    together = dict(nest.flatten(tuple(VIEWS[name](EpisodeBatch.of(given)))))
    apart = [dict(nest.flatten(tuple(VIEWS[name](episode)))) for episode in given]
    assert all(part.keys() == together.keys() for part in apart)
    for path, column in together.items():
        if column is None:
            assert all(part[path] is None for part in apart)
            continue
        others = np.concatenate([part[path] for part in apart])
        assert column.dtype == others.dtype and column.shape == others.shape, path
        if column.dtype == object:
            assert column.tolist() == others.tolist(), path
        else:
            assert column.tobytes() == others.tobytes(), path
