"""flashbax's states made of ours: its own functions sample from them and add to them."""

from __future__ import annotations

from typing import Any

import flashbax as fbx
import jax
import numpy as np
import pytest

from rlds2buf import SpecMismatch
from rlds2buf.adapters.flashbax import to_flashbax
from tests.adapters.logged import circular, episode

NUMBERS = [*range(5), *range(100, 103), 200, *range(300, 308)]


def step_of(state: Any) -> Any:
    """A time step as flashbax's `init` takes it."""
    return jax.tree.map(lambda column: column[0, 0], state.experience)


def test_its_item_buffer_samples_every_transition_whole() -> None:
    state = to_flashbax(circular(), max_length_time_axis=300)
    buffer = fbx.make_item_buffer(max_length=300, min_length=1, sample_batch_size=256)
    assert jax.tree.structure(buffer.init(step_of(state)).experience) == jax.tree.structure(state.experience)
    assert bool(buffer.can_sample(state))
    found = buffer.sample(state, jax.random.PRNGKey(0)).experience
    assert set(np.asarray(found["observation"][:, 0]).astype(int).tolist()) == set(NUMBERS)
    np.testing.assert_array_equal(found["next_observation"][:, 0], found["observation"][:, 0] + 1)


def test_its_add_goes_on_behind_the_newest() -> None:
    state = to_flashbax(circular(), max_length_time_axis=20)
    buffer = fbx.make_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=64,
        sample_sequence_length=2,
        period=1,
        min_length_time_axis=2,
        max_length_time_axis=20,
    )
    more = jax.tree.map(lambda column: column[:, :5], to_flashbax([episode(900, 6, "terminated")]).experience)
    state = jax.jit(buffer.add)(state, more)
    assert bool(state.is_full) and int(state.current_index) == 2
    held = np.asarray(state.experience["observation"][0, :, 0]).astype(int).tolist()
    assert held == [903, 904, *NUMBERS[2:], 900, 901, 902]
    pairs = buffer.sample(state, jax.random.PRNGKey(1)).experience
    inside = np.asarray(pairs["is_done"][:, 0] == 0)
    seen = np.asarray(pairs["observation"][..., 0])
    assert (np.diff(seen[inside], axis=1) == 1).all()


def test_rows_of_a_vector_environment() -> None:
    with pytest.raises(ValueError, match="drop_remainder=True, which leaves out the newest 1"):
        to_flashbax(circular(), add_batch_size=4)
    state = to_flashbax(circular(kind="dict"), add_batch_size=4, drop_remainder=True, next_observation=False)
    assert state.experience["observation"]["vector"].shape == (4, 4, 2) and "next_observation" not in state.experience
    assert np.ravel(state.experience["observation"]["vector"][..., 0]).tolist() == NUMBERS[:16]
    assert bool(state.is_full) and int(state.current_index) == 0
    assert state.experience["observation"]["image"].dtype == np.uint8


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="max_length_time_axis is 16"):
        to_flashbax(circular(), max_length_time_axis=16)
    text = np.array([b"left"] * 3, object)
    with pytest.raises(SpecMismatch, match="text"):
        to_flashbax([episode(0, 3, "terminated").replace(extras={"note": text})])
