"""Which row holds the action and the reward, against steps as flat dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf import Episode, open_source, transitions
from rlds2buf.core import nest
from rlds2buf.transform.alignment import ALIGNMENTS, realign, shift_reward
from tests.made import MADE
from tests.reference.rows import columns_of, realign_rows, rows_of, shift_rewards


def log(rows: int) -> Episode:
    """An episode in which every value tells its row."""
    words = np.empty(rows, object)
    words[:] = [b"%d" % t for t in range(rows)]
    return Episode(
        observation={"state": np.arange(rows * 2.0).reshape(rows, 2)},
        action={"arm": np.arange(rows * 3).reshape(rows, 3) + 1, "grip": np.arange(rows, dtype=np.int8) + 1},
        reward=np.arange(rows, dtype=np.float32) + 0.5,
        discount=np.linspace(1, 0.5, rows),
        is_terminal=np.arange(rows) == rows - 1,
        extras={"note": np.arange(rows), "word": words},
        metadata={"task": 1},
        source="a",
        index=3,
    )


def assert_same(episode: Episode, expected: dict[str, Any]) -> None:
    found = {nest.path_name(path): column for path, column in episode.flatten()}
    assert found.keys() == expected.keys()
    for name, column in found.items():
        assert np.array_equal(column, expected[name]), name


@given(st.integers(1, 7), st.sampled_from(ALIGNMENTS), st.integers(0, 9))
def test_row_by_row(rows: int, alignment: str, shift: int) -> None:
    ep = log(rows)
    out = shift_reward(realign(ep, alignment), shift)
    assert_same(out, columns_of(shift_rewards(realign_rows(rows_of(ep), alignment), shift)))
    assert [(c.dtype, c.shape) for _, c in out.flatten()] == [(c.dtype, c.shape) for _, c in ep.flatten()]
    assert (out.metadata, out.source, out.index, out.derived) == (ep.metadata, ep.source, ep.index, ep.derived)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_logger_of_each_kind_gives_the_same_episode(terminal: bool) -> None:
    """One run of an environment, written down in the three ways."""
    states, actions = [10, 11, 12, 13], [1, 2, 3]
    rewards, discounts = [0.1, 0.2, 0.3], [1.0, 1.0, 0.0 if terminal else 1.0]
    flags = {"is_terminal": [False] * 3 + [terminal]}
    sar = Episode(
        observation=states, action=[*actions, 0], reward=[*rewards, 0], discount=[*discounts, discounts[-1]], **flags
    )
    ars = Episode(observation=states, action=[7, *actions], reward=[7, *rewards], discount=[1.0, *discounts], **flags)
    rsa = Episode(observation=states, action=[*actions, 0], reward=[7, *rewards], discount=[1.0, *discounts], **flags)
    for logged, alignment in ((sar, "sar"), (ars, "ars"), (rsa, "rsa")):
        out = realign(logged, alignment)
        assert_same(out, {nest.path_name(path): column for path, column in sar.flatten()})
        found = transitions(out)
        assert found.action.tolist() == actions and found.reward.tolist() == rewards
        assert found.next_observation.tolist() == states[1:] and found.discount.tolist() == discounts


@pytest.mark.parametrize("alignment", ["ars", "rsa"])
@pytest.mark.parametrize("rows", [1, 2, 3, 6])
def test_a_discount_that_a_reader_made_up_is_aligned_already(alignment: str, rows: int) -> None:
    """As of D4RL's files, which have none: the step into the terminal row has 0, and that row."""
    discount = np.ones(rows, np.float32)
    discount[-2:] = 0
    out = realign(log(rows).replace(discount=discount), alignment)
    assert out.discount.tolist() == discount.tolist()
    lasting = realign(log(rows).replace(discount=np.ones(rows), is_terminal=np.zeros(rows, bool)), alignment)
    assert lasting.discount.tolist() == [1.0] * rows


def test_a_file_without_discounts() -> None:
    for episode in open_source(MADE / "d4rl/hopper_medium-v2.hdf5", alignment="rsa"):
        assert transitions(episode).discount.tolist() == [1.0] * (len(episode) - 2) + [0.0]


def test_what_does_not_move_is_shared() -> None:
    ep = log(4)
    out = realign(ep, "rsa")
    assert out.action["arm"] is ep.action["arm"] and out.observation["state"] is ep.observation["state"]
    assert realign(ep, "sar") is ep and shift_reward(ep, 0) is ep


def test_text_and_fields_of_varying_length_are_padded_with_nothing() -> None:
    ragged, words = np.empty(2, object), np.empty(2, object)
    ragged[:] = [np.array([1.0]), np.array([2.0, 3.0])]
    words[:] = [b"left", b"right"]
    out = realign(Episode(action={"plan": ragged, "say": words}), "ars").action
    assert [part.tolist() for part in out["plan"]] == [[2.0, 3.0], [0.0, 0.0]]
    assert out["say"].tolist() == [b"right", b""] and words.tolist() == [b"left", b"right"]


def test_without_reward_or_action() -> None:
    out = realign(Episode(observation=np.arange(3)), "ars")
    assert out.reward is None and out.action is None and out.discount is None
    assert shift_reward(out, 2) is out


@pytest.mark.parametrize(("call", "says"), [
    (lambda: realign(log(2), "SAR"), "one of sar, ars, rsa"),
    (lambda: shift_reward(log(2), -1), "must not be negative"),
])  # fmt: skip
def test_wrong_arguments(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
