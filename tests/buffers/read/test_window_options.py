"""Windows with goals in hindsight, horizons that are drawn, windows in other parts, and options that make no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, NotEnoughItems, TooLarge, Windows
from rlds2buf.buffers.read.view import View, plain_view
from tests.buffers import goals
from tests.buffers.compare import assert_same_nest
from tests.buffers.numbered import SPEC, episode
from tests.buffers.read.filled import filled as with_goals

OFFSETS = {"observation": [-1, 0], "action": [0, 1, 2], "next_observation": [-1, 0]}


def filled(**options: Any) -> Any:
    buffer = rlds2buf.make_circular(SPEC, 400, seed=0, **options)
    for i in range(20):
        buffer.add(episode(100 * i, 10 + i % 3, ("terminated", "truncated", "open")[i % 3]))
    return buffer


# -- horizons that are drawn --------------------------------------------------------------------------


def test_a_horizon_for_each() -> None:
    buffer = filled()
    batch = buffer.sample(4000, n_step=(1, 5), gamma=0.9)
    whole = buffer.get(batch.info.key, n_step=5, gamma=0.9)
    assert (batch.data.steps <= whole.steps).all()
    for n in range(1, 6):
        mine = batch.data.steps == n
        expected = buffer.get(batch.info.key[mine], n_step=n, gamma=0.9)
        if n < 5:
            assert (np.minimum(n, whole.steps[mine]) == n).all()
        for name in ("reward", "discount", "is_done", "bootstrap_discount", "observation", "next_observation"):
            got = rlds2buf.core.nest.map_structure(lambda column, mine=mine: column[mine], getattr(batch.data, name))
            if n == 1:
                got = got.astype(np.float64) if name == "reward" else got
            assert_same_nest(got, getattr(expected, name), name)
    # Far from every end, all horizons are as likely.
    free = whole.steps == 5
    counts = np.bincount(batch.data.steps[free], minlength=6)[1:]
    expected_count = free.sum() / 5
    assert ((counts - expected_count) ** 2 / expected_count).sum() < 25, counts


def test_a_horizon_of_its_own_in_windows_too() -> None:
    one, other = filled(), filled()
    plain, data = one.sample(64, n_step=(2, 4)), other.sample(64, n_step=(2, 4), stack=2)
    assert set(plain.data.steps.tolist()) == {1, 2, 3, 4}
    for name in ("reward", "discount", "is_done", "steps", "bootstrap_discount"):
        np.testing.assert_array_equal(getattr(plain.data, name), getattr(data.data, name))
    np.testing.assert_array_equal(plain.data.next_observation["count"], data.data.next_observation["count"][:, -1])


def test_drawn_horizons_in_other_ways() -> None:
    buffer = filled(view={"n_step": (1, 3)})
    expected = [buffer.sample(16) for _ in range(3)]
    for mine, theirs in zip(filled().sample_many(3, 16, n_step=[1, 3]), expected, strict=True):
        assert_same_nest(mine.data, theirs.data)
    with pytest.raises(ValueError, match=r"get draws nothing, so it takes one n_step, not one of \(1, 3\)"):
        buffer.get(buffer.keys())
    assert buffer.get(buffer.keys(), n_step=2).steps.max() == 2
    assert filled(view={"n_step": (2, 2)}).engine.view.n_step == 2


@pytest.mark.parametrize("n_step", [(0, 2), (3, 2), (1, 2, 3), (1,), (1.0, 2), "13", (True, 2)])
def test_horizons_that_make_no_sense(n_step: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="n_step"):
        filled().sample(4, n_step=n_step)


def test_epochs() -> None:
    """Every item once, with a horizon that is the same whoever asks again; windows likewise."""
    buffer = filled()
    batches = list(buffer.epoch(32, seed=1, n_step=(1, 3), stack=2))
    assert sorted(np.concatenate([batch.info.key for batch in batches]).tolist()) == buffer.keys().tolist()
    assert set(np.concatenate([batch.data.steps for batch in batches]).tolist()) == {1, 2, 3}
    buffer.sample(5)  # what is drawn meanwhile changes nothing
    for mine, theirs in zip(buffer.epoch(32, seed=1, n_step=(1, 3), stack=2), batches, strict=True):
        assert isinstance(mine.data, Windows)
        assert_same_nest(mine.data, theirs.data)


# -- goals in hindsight -------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", ["edge", "zero"])
@pytest.mark.parametrize("n_step", [1, 3, (1, 4)])
def test_goals_stand_in_all_of_a_window(n_step: Any, pad: str) -> None:
    """The same draws with and without windows: goals, rewards and ends are those of the transition."""
    plain = with_goals().sample(300, n_step=n_step, gamma=0.9)
    batch = with_goals().sample(300, n_step=n_step, gamma=0.9, offsets=OFFSETS, pad=pad)
    data = batch.data
    assert isinstance(data, Windows)
    np.testing.assert_array_equal(batch.info.key, plain.info.key)
    for name in ("reward", "discount", "is_done", "steps", "bootstrap_discount"):
        np.testing.assert_array_equal(getattr(data, name), getattr(plain.data, name), err_msg=name)
    goal = plain.data.observation["goal"]
    assert len(set(goal[:, 0].tolist())) > 10
    for name in ("observation", "next_observation"):
        seen, pads = getattr(data, name)["goal"], data.is_pad[name]
        if pad == "zero":
            assert not seen[pads].any()
        else:
            np.testing.assert_array_equal(seen, np.broadcast_to(goal[:, None], seen.shape))
        np.testing.assert_array_equal(seen[~pads], np.broadcast_to(goal[:, None], seen.shape)[~pads])
        # A placeholder is nothing to look at: what was there before stands in for it.
        there = ~pads[:, -1]
        np.testing.assert_array_equal(
            getattr(data, name)["state"][there, -1], getattr(plain.data, name)["state"][there]
        )
    stored = with_goals().get(batch.info.key, offsets=OFFSETS, pad=pad)
    np.testing.assert_array_equal(data.action, stored.action)
    np.testing.assert_array_equal(data.observation["state"], stored.observation["state"])


def test_what_is_judged_anew_has_no_windows() -> None:
    buffer = with_goals()
    for name in ("reward", "discount", "is_done", "return_to_go"):
        with pytest.raises(ValueError, match=f"windows of {name} can't be given new goals in hindsight"):
            buffer.sample(4, offsets={name: [0, 1]})
        assert getattr(buffer.get(buffer.keys(), offsets={name: [0, 1]}), name).shape[1:] == (2,)
    with pytest.raises(ValueError, match="hindsight"):
        buffer.sample(4, context=3)
    data = buffer.sample(4, offsets={"time_step": [0], "observation/goal": [0, 1]}).data
    assert data.time_step.shape == (4, 1) and data.observation["goal"].shape == (4, 2, 2)
    assert data.observation["state"].shape == (4, 3)
    still = goals.make(50, while_sampling=False)
    still.add(goals.episode(0, 5))
    assert still.sample(4, offsets={"reward": [0, 1]}).data.reward.shape == (4, 2)


# -- with others --------------------------------------------------------------------------------------


def test_mixed_buffers() -> None:
    mixed = rlds2buf.MixedBuffers([filled(), filled()], weights=[0.5, 0.5], seed=0)
    data = mixed.sample(20, offsets=OFFSETS).data
    assert isinstance(data, Windows) and data.action.shape == (20, 3)
    np.testing.assert_array_equal(data.action[:, 0] // 10, data.observation["count"][:, 1])
    assert data.is_pad["action"].shape == (20, 3)


def test_a_learner_that_asks_for_steps() -> None:
    assert len(rlds2buf.sample_min_n_steps(filled(), 30, stack=3).data.steps) == 30
    items = rlds2buf.make_circular(SPEC, 400, seed=0, storage_unit="episodes")
    items.add(episode(0, 9))
    assert len(rlds2buf.sample_min_n_steps(items, 30, stack=3).data.steps) == 30


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
@pytest.mark.parametrize("ratio", [None, 0.5])
def test_several_agents(mode: str, ratio: float | None) -> None:
    policies = {name: (SPEC, {"capacity": 200}) for name in ("walker", "runner")}
    buffer = rlds2buf.make_multi_agent(policies, mode=mode, replay_ratio=ratio, seed=0)
    for name, start in (("walker", 0), ("runner", 1000)):
        data = rlds2buf.transitions(episode(start, 20))
        ids = {"episode_id": np.ones(19, np.int64), "t": np.arange(19), "agent_index": np.full(19, start)}
        buffer.add({name: data}, **(ids if mode == "lockstep" else {}))
    batch = buffer.sample(8, offsets=OFFSETS, n_step=(1, 3))
    assert set(batch) == {"walker", "runner"}
    for sample in batch.values():
        np.testing.assert_array_equal(sample.data.action[:, 0] // 10, sample.data.observation["count"][:, 1])
        assert set(sample.data.steps.tolist()) <= {1, 2, 3}


# -- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offsets": [0, 1]}, "offsets is a mapping such as"),
        ({"offsets": {"action": 3}}, "offsets of 'action' are a list of numbers, got 3"),
        ({"offsets": {"action": "012"}}, "offsets of 'action' are a list of numbers"),
        ({"offsets": {"action": ["a"]}}, "offsets of 'action' are numbers, got 'a'"),
        ({"offsets": {"action": [True]}}, "offsets of 'action' are numbers, got True"),
        ({"offsets": {"action": []}}, "offsets of 'action' are empty"),
        ({"offsets": {"action": [float("nan")]}, "fps": 10}, "offsets of 'action' are finite, got nan"),
        ({"offsets": {"action": [0.5]}}, "0.5 is no number of steps; for seconds give fps too"),
        ({"offsets": {"action": [1 << 40]}}, "more than any episode has"),
        ({"offsets": {3: [0]}}, "offsets name fields, such as 'observation'"),
        ({"offsets": {"observation/plaice": [0]}}, "did you mean observation/place"),
        ({"offsets": {"extras/task": [0]}}, "offsets name 'extras/task', which the data don't have"),
        ({"offsets": {"reward_to_go": [0]}}, "did you mean return_to_go"),
        ({"offsets": {"action": [0]}, "fps": 0}, "fps must be a positive number"),
        ({"fps": 10}, "fps says how long a step of offsets in seconds is: give offsets too"),
        ({"stack": -1}, "stack must not be negative"),
        ({"stack": 2.0}, "stack must be an integer"),
        ({"context": True}, "context must be an integer"),
        ({"stack": 2, "context": 3}, "stack and context both"),
        ({"stack": 2, "offsets": {"observation": [0]}}, "'observation' is named by stack and by offsets"),
        ({"context": 2, "offsets": {"reward": [0]}}, "'reward' is named by context and by offsets"),
        ({"stack": 2, "pad": "wrap"}, "pad must be one of edge, zero, got 'wrap'"),
        ({"stack": 2, "sequence_length": 3}, "sequence_length can't be used together with offsets, stack or context"),
        ({"stack": 2, "burn_in": 3}, "burn_in, initial_state and state are for sequences"),
        ({"stack": 2, "concatenate": True}, "concatenate is for items"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    buffer = filled()
    with pytest.raises((ValueError, TypeError), match=message):
        buffer.sample(4, **options)
    if "concatenate" in options:
        return
    with pytest.raises((ValueError, TypeError), match=message):
        buffer.get(buffer.keys(), **options)
    with pytest.raises((ValueError, TypeError), match=message):
        rlds2buf.make_circular(SPEC, 100, view=options)


def test_a_folder_is_not_made_for_a_view_that_the_data_lack(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="extras/task"):
        rlds2buf.make_circular(SPEC, 100, directory=tmp_path / "buffer", view={"offsets": {"extras/task": [0]}})
    assert not (tmp_path / "buffer").exists()


def test_offsets_beyond_every_episode() -> None:
    buffer = rlds2buf.make_circular(SPEC, 400, seed=0)
    buffer.add(episode(0, 6))
    for options, said in (
        ({"stack": 7}, r"stack=7 reach over 7 consecutive steps, .* holds has 5: add longer ones"),
        ({"context": 6}, r"context=6 reach over 6 consecutive steps"),
        ({"offsets": {"action": range(20)}}, r"offsets of 'action' reach over 20 consecutive steps"),
        ({"offsets": {"next_observation": [5]}}, r"offsets of 'next_observation' reach over 6 consecutive steps"),
    ):
        with pytest.raises(NotEnoughItems, match=said):
            buffer.sample(4, **options)
        with pytest.raises(NotEnoughItems, match=said):
            buffer.get(buffer.keys(), **options)
    assert buffer.sample(
        4, offsets={"observation": [-4, 5], "action": [4], "next_observation": [4]}
    ).data.action.shape == (4, 1)
    assert buffer.get(np.zeros(0, np.uint64), stack=7).action.shape == (0,)
    buffer.add(episode(100, 8))
    assert buffer.sample(4, stack=7).data.action.shape == (4,)


def test_an_episode_that_goes_on_may_become_long() -> None:
    """An agent that has just started stacks what there is."""
    buffer = rlds2buf.make_circular(SPEC, 400, seed=0)
    buffer.add(rlds2buf.transitions(episode(0, 3, "open")))
    data = buffer.sample(8, stack=4).data
    assert data.is_pad["observation"][:, 0].all()


def test_a_return_to_go_needs_one_reward_per_step() -> None:
    rows = np.zeros((4, 2))
    ep = Episode(observation=rows, action=rows, reward=rows, discount=np.ones(4))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 10)
    keys = buffer.add(ep)
    with pytest.raises(ValueError, match=r"return_to_go needs one reward per step, and the data have float64\[2\]"):
        buffer.get(keys, context=2)
    assert buffer.get(keys, offsets={"reward": [0, 1]}).reward.shape == (3, 2, 2)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.longdouble, np.int8, np.int64, np.uint64, np.bool_]
)
def test_rewards_of_every_type(dtype: Any) -> None:
    ep = Episode(observation=np.arange(5), action=np.arange(5), reward=np.ones(5, dtype), discount=np.ones(5))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 10)
    data = buffer.get(buffer.add(ep), context=2)
    assert data.return_to_go.tolist() == [[4, 4], [4, 3], [3, 2], [2, 1]]
    assert data.return_to_go.dtype == buffer.get(buffer.keys(), n_step=2).reward.dtype


def test_a_batch_that_memory_cannot_hold() -> None:
    with pytest.raises(TooLarge, match="offsets: windows of 1,000,000 items"):
        filled().sample(1_000_000, offsets={"observation": [0] * 100_000})


def test_views() -> None:
    view = View.of({"stack": 4, "n_step": [1, 3]}, whole=True)
    assert not view.whole and view.n_step == (1, 3) and view.longest == 3
    assert view.changed(stack=0).windows is None and view.changed(stack=0).n_step == (1, 3)
    assert view.changed(sequence_length=3).windows is None
    assert view.changed(gamma=0.5).windows == view.windows
    assert View(sequence_length=4, burn_in=2).changed(stack=2).sequence_length is None
    assert View.of({"pad": "zero"}, whole=True).whole
    assert plain_view({"offsets": {"action": np.arange(2)}, "fps": np.float32(2)}) == {
        "offsets": {"action": [0, 1]},
        "fps": 2.0,
    }


def test_a_batch_says_what_is_in_it() -> None:
    text = repr(filled().sample(4, stack=2).data)
    assert "observation/place        float32[4, 2, 2]" in text and "is_pad/observation" in text
