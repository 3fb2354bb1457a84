"""Windows as d3rlpy slices episodes for decision transformers, and as tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from d3rlpy.dataset import BasicTrajectorySlicer
from d3rlpy.dataset import Episode as Theirs

import rlds2buf
from rlds2buf import Episode, Windows

LENGTHS = (7, 1, 12)


def episodes() -> list[Episode]:
    rng = np.random.default_rng(0)
    return [
        Episode(
            observation=rng.standard_normal((rows + 1, 3)).astype(np.float32),
            action=rng.standard_normal((rows + 1, 2)).astype(np.float32),
            reward=rng.standard_normal(rows + 1).astype(np.float32),
            discount=np.ones(rows + 1, np.float32),
            is_terminal=np.arange(rows + 1) == rows,
        )
        for rows in LENGTHS
    ]


@pytest.mark.parametrize("size", [1, 4, 10])
def test_the_same_as_d3rlpy_s_slices(size: int) -> None:
    made = episodes()
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(made[0]), 100, view={"context": size, "pad": "zero"})
    keys = [buffer.add(ep) for ep in made]
    for ep, mine in zip(made, map(buffer.get, keys), strict=True):
        assert isinstance(mine, Windows)
        steps = ep.num_steps - 1
        theirs = Theirs(ep.observation[:steps], ep.action[:steps], ep.reward[:steps, None], True)
        for end in range(steps):
            part = BasicTrajectorySlicer()(theirs, end, size)
            real = part.masks == 1
            assert (~mine.is_pad["observation"][end]).tolist() == real.tolist()
            np.testing.assert_array_equal(mine.observation[end], part.observations)
            np.testing.assert_array_equal(mine.action[end], part.actions)
            np.testing.assert_array_equal(mine.reward[end], part.rewards[:, 0])
            np.testing.assert_allclose(mine.return_to_go[end], part.returns_to_go[:, 0], rtol=1e-4, atol=1e-5)
            # d3rlpy counts from 1, so that 0 is padding.
            np.testing.assert_array_equal(mine.time_step[end][real] + 1, part.timesteps[real])


def test_tensors() -> None:
    made = episodes()
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(made[0]), 100, seed=0)
    buffer.add(made)
    with buffer.batches(8, to="torch", steps=2, offsets={"observation": [-1, 0], "action": range(4)}) as batches:
        for batch in batches:
            assert isinstance(batch.data, Windows)
            assert batch.data.observation.shape == (8, 2, 3) and batch.data.action.dtype == torch.float32
            assert batch.data.is_pad["action"].dtype == torch.bool and batch.data.next_observation is None
