"""How hindsight buffers are made, saved and opened, and what is refused."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import FieldSpec, GoalMap, ReplayError, SnapshotError, StepSpec
from tests.buffers.compare import assert_same_nest
from tests.buffers.goals import GOALS, SPEC, done_fn, episode, make, reward_fn, wanted_of
from tests.buffers.numbered import SPEC as OTHER
from tests.buffers.read.filled import batches, filled

KINDS: dict[str, dict[str, Any]] = {"hindsight": {}, "hindsight_prioritized": {"alpha": 0.7, "stratified": True}}


# -- saved and opened --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_saved_with_all_but_the_functions(kind: str, tmp_path: Path) -> None:
    options = {"strategy": "episode", "num_goals": 7, "include_current": False, **KINDS[kind]}
    buffer = filled(**options)
    assert buffer.kind == kind
    buffer.save(tmp_path / "saved")
    state = buffer.state_dict()
    json.dumps({name: value for name, value in state.items() if name != "arrays"})  # plain values
    expected = batches(buffer)
    loaded = rlds2buf.load_buffer(tmp_path / "saved", reward_fn=reward_fn, done_fn=done_fn)
    loaded.check_valid()
    assert loaded.kind == kind
    assert loaded.engine.hindsight.options() == buffer.engine.hindsight.options()
    assert loaded.engine.hindsight.maps == GOALS
    other = make(60, seed=5, **options)
    other.load_state_dict(state)
    buffer.load_state_dict(state)
    for one in (loaded, other, buffer):
        one.check_valid()
        for mine, theirs in zip(batches(one), expected, strict=True):
            assert_same_nest(mine, theirs)


@pytest.mark.parametrize(
    "given", [{}, {"reward_fn": reward_fn}, {"done_fn": done_fn}], ids=["neither", "reward", "done"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_opening_needs_the_functions(kind: str, given: dict[str, Any], tmp_path: Path) -> None:
    filled(**KINDS[kind]).save(tmp_path / "saved")
    with pytest.raises(SnapshotError, match=r"reward_fn=\.\.\., done_fn=\.\.\."):
        rlds2buf.load_buffer(tmp_path / "saved", **given)


def test_other_buffers_take_no_functions(tmp_path: Path) -> None:
    rlds2buf.make_circular(SPEC, 10).save(tmp_path / "saved")
    with pytest.raises(TypeError, match="circular buffer takes no done_fn or reward_fn"):
        rlds2buf.load_buffer(tmp_path / "saved", reward_fn=reward_fn, done_fn=done_fn)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", [{}, {"n_step": 3, "gamma": 0.5}], ids=str)
def test_several_at_once_are_the_same(kind: str, view: dict[str, Any]) -> None:
    one, other = filled(**KINDS[kind]), filled(**KINDS[kind])
    expected = [one.sample(16, **view) for _ in range(3)]
    got = other.sample_many(3, 16, **view)
    for mine, theirs in zip(got, expected, strict=True):
        assert_same_nest(mine.data._asdict(), theirs.data._asdict())
        assert mine.info.key.tolist() == theirs.info.key.tolist()
    assert_same_nest(one.sample(16).data._asdict(), other.sample(16).data._asdict())


def test_directory_backed(tmp_path: Path) -> None:
    buffer = filled(directory=tmp_path / "live")
    expected = batches(filled())
    for mine, theirs in zip(batches(buffer), expected, strict=True):
        assert_same_nest(mine, theirs)
    buffer.save()
    loaded = rlds2buf.load_buffer(tmp_path / "live", writable=True, reward_fn=reward_fn, done_fn=done_fn)
    for one in (buffer, loaded):
        one.check_valid()
    assert_same_nest(batches(loaded)[0], batches(buffer)[0])
    loaded.add(episode(9000, 9))
    assert wanted_of(loaded.sample(400).data).max() > 9000


def test_nothing_is_made_where_an_argument_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="elsewhere"):
        make(10, goals=[GoalMap("elsewhere", "goal")], directory=tmp_path / "live")
    assert not (tmp_path / "live").exists()


# -- refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reward_fn", "done_fn"])
def test_functions_must_be_functions(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a function"):
        make(10, **{name: 3})


@pytest.mark.parametrize("reward", [None, FieldSpec((2,), np.float32), {"a": FieldSpec((), np.float32)}], ids=str)
def test_data_need_one_reward_per_step(reward: Any) -> None:
    spec = StepSpec(observation=SPEC.observation, action=SPEC.action, reward=reward)
    with pytest.raises(ValueError, match="one reward per step"):
        rlds2buf.make_hindsight(spec, 10, goals=GOALS, reward_fn=reward_fn, done_fn=done_fn)


def test_other_buffers_know_no_goals() -> None:
    with pytest.raises(ReplayError, match="make_hindsight"):
        rlds2buf.make_circular(OTHER, 10).generate_hindsight(1)


def test_one_goal_need_not_be_in_a_list() -> None:
    assert make(10, goals=GOALS[0]).engine.hindsight.maps == GOALS


# -- functions ---------------------------------------------------------------------------------------


def test_functions_of_single_transitions_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    expected = batches(filled())
    seen: list[Any] = []

    def single(observation: Any, action: Any, after: Any) -> float:
        seen.append(observation["state"].shape)
        return float(reward_fn(observation, action, after))

    with caplog.at_level(logging.WARNING):
        buffer = filled(vectorized=False, reward_fn=single)
        got = batches(buffer)
    assert [record.message for record in caplog.records if "vectorized=False" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
    assert set(seen) == {(3,)}
    for mine, theirs in zip(got, expected, strict=True):
        assert_same_nest(mine, theirs)


@pytest.mark.parametrize("elements", [[0, 1], [1, 0]], ids=str)
@pytest.mark.parametrize("achieved", [np.float16, np.float32, np.float64, np.int8, np.bool_])
@pytest.mark.parametrize("desired", [np.float16, np.float64])
def test_goals_and_rewards_of_any_dtype(achieved: Any, desired: Any, elements: list[int]) -> None:
    """Compiled where it can be, and the same where not."""
    count = np.arange(8)
    ep = rlds2buf.Episode(
        observation={"at": (np.stack([count, -count], 1) % 2).astype(achieved), "to": np.full((8, 3), 9, desired)},
        action=count,
        reward=np.zeros(8, desired),
        discount=np.ones(8, np.float32),
        is_last=count == 7,
    )

    def met(observation: Any, action: Any, after: Any) -> Any:
        return (after["at"] == after["to"][:, [elements[0], elements[1]]]).all(1)

    buffer = rlds2buf.make_hindsight(
        rlds2buf.spec_of(ep), 10, goals=[GoalMap("at", ("to", elements))], reward_fn=met, done_fn=met, seed=0
    )
    buffer.add(ep)
    data = buffer.sample(100).data
    new = data.observation["to"][:, 0] != 9
    assert 50 < new.sum() < 100
    last = ep.observation["at"][7].astype(desired)
    assert (data.next_observation["to"][new][:, elements] == last).all() and data.reward.dtype == desired
    assert (data.next_observation["to"][:, 2] == 9).all() and data.observation["to"].dtype == desired
    reached = new & (data.next_observation["at"].astype(desired) == last).all(1)
    assert data.reward.tolist() == reached.tolist() and (data.is_done == 1).tolist() == reached.tolist()


def test_a_function_that_fails_leaves_the_buffer_as_it_was() -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("mine")

    buffer = filled(reward_fn=broken)
    before = buffer.all()._asdict()
    with pytest.raises(ZeroDivisionError, match="mine"):
        buffer.sample(5)
    assert_same_nest(buffer.all()._asdict(), before)
    buffer.check_valid()
    threading.Thread(target=buffer.keys).start()  # the lock is free


def test_functions_run_without_the_lock() -> None:
    """So that a reward computed by other threads that use the buffer can't wait for itself."""
    counted: list[int] = []

    def asks_from_another_thread(*arguments: Any) -> Any:
        thread = threading.Thread(target=lambda: counted.append(len(buffer.keys())))
        thread.start()
        thread.join(timeout=20)
        assert not thread.is_alive()
        return reward_fn(*arguments)

    buffer = filled(reward_fn=asks_from_another_thread)
    buffer.sample(4)
    assert counted == [len(buffer)]


@pytest.mark.parametrize("options", [{"alpha": 1.0, "stratified": True}, {"alpha": 1.0}, {}], ids=str)
def test_goals_do_not_depend_on_the_place_in_the_batch(options: dict[str, Any]) -> None:
    """Stratified draws come in order of age; goals must not only go to the old."""
    buffer = make(400, strategy="final", num_goals=1, **options)
    buffer.add(episode(0, 300, "truncated"))
    new = np.mean([wanted_of(buffer.sample(64).data) != -1 for _ in range(400)], axis=0)
    assert (np.abs(new - 0.5) < 5 * 0.5 / 400**0.5).all()
    assert buffer.sample(16, replace=False).info.key.shape == (16,)


def test_stats_count_the_index() -> None:
    buffer = filled()
    before = buffer.stats()["bytes"]
    buffer.sample(3)
    assert buffer.stats()["bytes"] > before
