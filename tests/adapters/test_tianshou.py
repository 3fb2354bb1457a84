"""Tianshou's buffer filled from ours: its own neighbours, n-step returns and sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tianshou import data

from rlds2buf import SpecMismatch
from rlds2buf.adapters.tianshou import from_data_arguments, to_tianshou
from tests.adapters.logged import circular, episode

NUMBERS = [*range(5), *range(100, 103), 200, *range(300, 308)]


def test_what_from_data_is_given() -> None:
    given = from_data_arguments(circular())
    assert given["obs"][:, 0].tolist() == NUMBERS and (given["obs_next"][:, 0] == given["obs"][:, 0] + 1).all()
    assert np.flatnonzero(given["terminated"]).tolist() == [4, 8]
    assert np.flatnonzero(given["truncated"]).tolist() == [7, 16]
    assert (given["done"] == given["terminated"] | given["truncated"]).all()


@pytest.mark.parametrize("kind", ["array", "dict", "tuple"])
def test_its_buffer_knows_neighbours_and_samples(kind: str) -> None:
    buffer = to_tianshou(circular(kind=kind), random_seed=1)
    assert isinstance(buffer, data.ReplayBuffer) and len(buffer) == 17
    np.testing.assert_array_equal(buffer.next(np.arange(17)), [1, 2, 3, 4, 4, 6, 7, 7, 8, *range(10, 17), 16])
    np.testing.assert_array_equal(buffer.prev(np.arange(17)), [0, 0, 1, 2, 3, 5, 5, 6, 8, 9, *range(9, 16)])
    batch, indices = buffer.sample(32)
    part = {"array": lambda: batch.obs, "dict": lambda: batch.obs.vector, "tuple": lambda: batch.obs["0"]}[kind]
    assert part()[:, 0].tolist() == [NUMBERS[i] for i in indices]


def test_goes_on_behind_the_newest() -> None:
    buffer = to_tianshou(circular(), size=18)
    step: dict[str, Any] = {
        "obs": np.array([900, -900], np.float32),
        "act": np.zeros(1, np.float32),
        "rew": 1.0,
        "terminated": True,
        "truncated": False,
        "obs_next": np.array([901, -901], np.float32),
    }
    buffer.add(data.Batch(step))
    assert len(buffer) == 18 and buffer.obs[17, 0] == 900 and buffer.obs[16, 0] == 307


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="size is 3"):
        to_tianshou(circular(), size=3)
    with pytest.raises(SpecMismatch, match="have none"):
        to_tianshou([episode(0, 3, "terminated").replace(action=None)])
    with pytest.raises(SpecMismatch, match="text"):
        to_tianshou([episode(0, 3, "terminated").replace(observation=np.array([b"a"] * 3, object))])
