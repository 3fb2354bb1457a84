"""Hindsight buffers: the worked tables, what each strategy may pick, and relabelling while sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, GoalMap, NotEnoughItems, ReplayError, StepSpec, Transition
from tests.buffers.compare import assert_same_nest
from tests.buffers.frequencies import p_value
from tests.buffers.read.her_columns import MISS, Columns, check, functions, goals, maps, never
from tests.contracts.buffer import BufferContract
from tests.data import GOLDEN
from tests.reference.hindsight import relabel


class TestContract(BufferContract):
    """Where goals are put in on request only, it samples as any buffer does."""

    options: dict[str, Any] = {  # noqa: RUF012 - constant
        "goals": [GoalMap(("place", [0]), ("place", [1]))],
        "reward_fn": never,
        "done_fn": never,
        "while_sampling": False,
    }

    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        return rlds2buf.make_hindsight(spec, capacity, seed=seed, **self.options)

    def load(self, path: Path | str) -> Any:
        return rlds2buf.load_buffer(path, reward_fn=never, done_fn=never)


class TestContractPrioritized(TestContract):
    def make(self, spec: StepSpec, capacity: int, seed: int | None = None) -> Any:
        return rlds2buf.make_hindsight_prioritized(spec, capacity, seed=seed, **self.options)


TABLE = json.loads((GOLDEN / "her.json").read_text())
TWO = TABLE["two_channels_two_goals"]


def buffer_for(info: list[Any], trajectory: list[Any], miss: float, capacity: int = 100, **options: Any) -> Any:
    """An empty hindsight buffer for trajectories like that of a table."""
    reward_fn, done_fn = functions(info, miss)
    columns = Columns(trajectory).transition
    spec = StepSpec(
        observation=tuple(rlds2buf.FieldSpec(channel.shape[1:], channel.dtype) for channel in columns.observation),
        action=tuple(rlds2buf.FieldSpec(channel.shape[1:], channel.dtype) for channel in columns.action),
        reward=rlds2buf.FieldSpec((), np.float64),
        discount=rlds2buf.FieldSpec((), np.float64),
    )
    return rlds2buf.make_hindsight(
        spec, capacity, goals=maps(info), reward_fn=reward_fn, done_fn=done_fn, seed=0, **options
    )


def as_episode(trajectory: list[Any]) -> Episode:
    """The same as N+1 rows, the last of them only an observation."""
    batch = Columns(trajectory).transition

    def grow(column: np.ndarray, last: np.ndarray) -> np.ndarray:
        return np.concatenate([column, last])

    return Episode(
        observation=tuple(
            grow(now, after[-1:]) for now, after in zip(batch.observation, batch.next_observation, strict=True)
        ),
        action=tuple(grow(channel, channel[-1:] * 0) for channel in batch.action),
        reward=grow(batch.reward, np.zeros(1)),
        discount=np.ones(len(batch.reward) + 1),
        is_last=np.arange(len(batch.reward) + 1) == len(batch.reward),
    )


def long_trajectory(steps: int, start: int = 0, last: int = 2) -> list[dict[str, Any]]:
    """As the table's: measurement (t+1, 2(t+1)) in elements 1 and 2, goal (9, 9) in 3 and 4, all numbers distinct."""

    def observation(t: int) -> list[list[float]]:
        return [[start + t, start + t, 2.0 * (start + t), 1e6, 1e6, 7.0]]

    return [
        {
            "obs": observation(t),
            "action": [[float(start + t)]],
            "next_obs": observation(t + 1),
            "reward": -0.01,
            "is_done": last if t == steps - 1 else 0,
        }
        for t in range(steps)
    ]


def read_picks(rows: list[dict[str, Any]], trajectory: list[dict[str, Any]]) -> list[list[int]]:
    """Which step each new goal came from, told by its first element, grouped by step."""
    by_measure = {step["next_obs"][0][1]: k for k, step in enumerate(trajectory)}
    by_action = {step["action"][0][0]: t for t, step in enumerate(trajectory)}
    picks: list[list[int]] = [[] for _ in trajectory]
    for row in rows:
        picks[by_action[row["action"][0][0]]].append(by_measure[row["obs"][0][3]])
    return picks


def by_twin(info: list[Any], trajectory: list[Any], picks: list[list[int]], miss: float) -> list[dict[str, Any]]:
    reward_fn, done_fn = functions(info, miss)

    def single(function: Any) -> Any:
        def of(*arguments: Any) -> Any:
            return function(*(tuple(np.array([channel]) for channel in nested) for nested in arguments))[0]

        return of

    return relabel(trajectory, goals(info), picks, single(reward_fn), single(done_fn))


# -- new transitions for the caller to add ------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_final_gives_the_worked_table(whole: bool) -> None:
    trajectory = TABLE["trajectory"]
    buffer = buffer_for(TABLE["goal_info"], trajectory, MISS["one"], strategy="final")
    buffer.add(as_episode(trajectory) if whole else Columns(trajectory).transition)
    before = buffer.all()._asdict()
    new = buffer.generate_hindsight(4)
    check(Columns.rows(new), TABLE["final"]["expected"], trajectory)
    assert_same_nest(buffer.all()._asdict(), before)  # returned, not stored
    assert len(buffer.add(new)) == 4
    assert Columns.rows(buffer.all())[4:] == Columns.rows(new)


@pytest.mark.parametrize("whole", [False, True])
def test_two_channels_give_the_worked_table(whole: bool) -> None:
    buffer = buffer_for(TWO["goal_info"], TWO["trajectory"], MISS["two"], strategy="final")
    if whole:
        buffer.add(as_episode(TWO["trajectory"]))
    else:
        buffer.add(Columns(TWO["trajectory"]).transition)
    new = buffer.generate_hindsight(3)
    rows = Columns.rows(new)
    if whole:  # written as an episode its end is a cut one
        rows = [{**row, "is_done": 0 if row["is_done"] == 2 else row["is_done"]} for row in rows]
    check(rows, TWO["expected"], TWO["trajectory"])


@pytest.mark.parametrize("strategy", ["episode", "future"])
@pytest.mark.parametrize("include_current", [True, False])
def test_random_strategies_equal_the_twin_on_their_own_picks(strategy: str, include_current: bool) -> None:
    trajectory = long_trajectory(5)
    buffer = buffer_for(
        TABLE["goal_info"], trajectory, -0.01, strategy=strategy, num_goals=3, include_current=include_current
    )
    buffer.add(Columns(trajectory).transition)
    seen: set[tuple[int, int]] = set()
    for _ in range(60):
        rows = Columns.rows(buffer.generate_hindsight(5))
        picks = read_picks(rows, trajectory)
        assert [len(chosen) for chosen in picks] == [3] * 5
        assert rows == by_twin(TABLE["goal_info"], trajectory, picks, -0.01)
        seen |= {(t, k) for t, chosen in enumerate(picks) for k in chosen}
    every = {(t, k) for t in range(5) for k in range(5)}
    if strategy == "future":
        every = {(t, k) for t, k in every if k > t or (k == t and (include_current or t == 4))}
    assert seen == every


def test_only_the_newest_steps() -> None:
    trajectory = long_trajectory(6)
    buffer = buffer_for(TABLE["goal_info"], trajectory, -0.01, strategy="episode", num_goals=4)
    buffer.add(Columns(trajectory).transition)
    picks = read_picks(Columns.rows(buffer.generate_hindsight(2)), trajectory)
    assert [len(chosen) for chosen in picks] == [0, 0, 0, 0, 4, 4]
    assert {k for chosen in picks for k in chosen} <= {4, 5}


def test_one_step() -> None:
    for strategy in ("final", "episode", "future"):
        for include_current in (True, False):
            trajectory = long_trajectory(1)
            buffer = buffer_for(
                TABLE["goal_info"], trajectory, -0.01, strategy=strategy, num_goals=2, include_current=include_current
            )
            buffer.add(Columns(trajectory).transition)
            rows = Columns.rows(buffer.generate_hindsight(1))
            assert len(rows) == (1 if strategy == "final" else 2)
            assert all(row["reward"] == 1.0 and row["is_done"] == 1 for row in rows)


def test_lengths_out_of_range() -> None:
    assert TABLE["errors"]["length_0"] == TABLE["errors"]["length_longer_than_stored"] == "error"
    trajectory = long_trajectory(4)
    buffer = buffer_for(TABLE["goal_info"], trajectory, -0.01)
    with pytest.raises((ValueError, ReplayError)):
        buffer.generate_hindsight(1)  # empty
    buffer.add(Columns(trajectory).transition)
    for steps in (0, -1, 5):
        with pytest.raises((ValueError, ReplayError)):
            buffer.generate_hindsight(steps)
    buffer.add(Columns(long_trajectory(3, start=100)).transition)
    assert len(buffer.generate_hindsight(3).reward) > 0
    with pytest.raises((ValueError, ReplayError)):
        buffer.generate_hindsight(4)  # an episode ends inside


def test_length_over_a_border_of_episodes_or_sources() -> None:
    trajectory = long_trajectory(4)
    buffer = buffer_for(TABLE["goal_info"], trajectory, -0.01)
    buffer.add(as_episode(trajectory))
    buffer.add(as_episode(long_trajectory(2, start=50)))
    assert len(buffer.generate_hindsight(2).reward) > 0
    with pytest.raises((ValueError, ReplayError)):
        buffer.generate_hindsight(3)
    buffer = buffer_for(TABLE["goal_info"], trajectory, -0.01)
    open_ended = long_trajectory(2, last=0)
    buffer.add(Columns(open_ended).transition, source_id=1)
    buffer.add(Columns(long_trajectory(2, start=50, last=0)).transition, source_id=2)
    with pytest.raises((ValueError, ReplayError)):
        buffer.generate_hindsight(3)


def test_bad_goals_at_construction() -> None:
    assert TABLE["errors"]["mixed_length_measurement_goal"].startswith("error")
    assert TABLE["errors"]["index_out_of_range"] == "error at construction"
    trajectory = TABLE["trajectory"]
    for info in (
        [[0, [1, 2], 0, [3]]],
        [[0, [1, 2], 0, [3, 6]]],
        [[0, [1, -1], 0, [3, 4]]],
        [[1, [1], 0, [3]]],
        [],
    ):
        with pytest.raises(ValueError, match=r"element|number|GoalMap|array"):
            buffer_for(info, trajectory, -0.01)


@pytest.mark.parametrize("options", [{"strategy": "last"}, {"num_goals": 0}, {"num_goals": 1.5}], ids=str)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        buffer_for(TABLE["goal_info"], TABLE["trajectory"], -0.01, **options)


def test_functions_that_give_the_wrong_shape_are_named() -> None:
    trajectory = TABLE["trajectory"]
    spec = buffer_for(TABLE["goal_info"], trajectory, -0.01).spec
    for name in ("reward_fn", "done_fn"):
        reward_fn, done_fn = functions(TABLE["goal_info"], -0.01)
        broken = {"reward_fn": reward_fn, "done_fn": done_fn, name: lambda *arguments: np.zeros((2, 2))}
        buffer = rlds2buf.make_hindsight(spec, 10, goals=maps(TABLE["goal_info"]), strategy="final", **broken)
        buffer.add(Columns(trajectory).transition)
        before = buffer.all()._asdict()
        with pytest.raises(ValueError, match=name):
            buffer.generate_hindsight(4)
        assert_same_nest(buffer.all()._asdict(), before)


# -- goals put in while sampling ----------------------------------------------------------------

LENGTHS = (6, 1, 4, 9)


def sampled(strategy: str, num_goals: int, draws: int, **options: Any) -> tuple[list[Any], Transition, np.ndarray]:
    """Many draws from episodes of several lengths; their trajectories, the batch, and each row's (episode, t)."""
    stored = [long_trajectory(length, start=100 * (i + 1), last=1 + i % 2) for i, length in enumerate(LENGTHS)]
    buffer = buffer_for(TABLE["goal_info"], stored[0], -0.01, strategy=strategy, num_goals=num_goals, **options)
    for i, trajectory in enumerate(stored):
        if i % 2:
            buffer.add(as_episode(trajectory))
        else:
            buffer.add(Columns(trajectory).transition)
    batches = [buffer.sample(500) for _ in range(draws // 500)]
    parts = [np.concatenate(column) for column in zip(*(batch.data.observation for batch in batches), strict=True)]
    after = [np.concatenate(column) for column in zip(*(batch.data.next_observation for batch in batches), strict=True)]
    data = Transition(
        observation=tuple(parts),
        action=(np.concatenate([batch.data.action[0] for batch in batches]),),
        reward=np.concatenate([batch.data.reward for batch in batches]),
        discount=np.concatenate([batch.data.discount for batch in batches]),
        next_observation=tuple(after),
        is_done=np.concatenate([batch.data.is_done for batch in batches]),
    )
    action = data.action[0][:, 0].astype(int)
    return stored, data, np.stack([action // 100 - 1, action % 100], axis=1)


@pytest.mark.parametrize("strategy", ["final", "episode", "future"])
@pytest.mark.parametrize("num_goals", [1, 4])
def test_sampling_puts_goals_in_at_the_ratio(strategy: str, num_goals: int) -> None:
    _, data, place = sampled(strategy, num_goals, 20_000)
    goal = data.observation[0][:, 3]
    new = goal != 1e6
    assert p_value([new.sum(), (~new).sum()], [num_goals / (num_goals + 1), 1 / (num_goals + 1)]) > 1e-3
    np.testing.assert_array_equal(data.next_observation[0][:, 3], goal)
    np.testing.assert_array_equal(data.observation[0][:, 4], np.where(new, 2 * goal, 1e6))
    np.testing.assert_array_equal(data.observation[0][:, 5], 7.0)
    picked = np.where(new, goal - 100 * (place[:, 0] + 1) - 1, -1).astype(int)
    lengths = np.array(LENGTHS)[place[:, 0]]
    assert ((picked >= 0) & (picked < lengths))[new].all()  # of the same episode
    if strategy == "final":
        assert (picked == lengths - 1)[new].all()
    if strategy == "future":
        assert (picked >= place[:, 1])[new].all()
    met = new & (picked == place[:, 1])
    ended = np.array([1 + i % 2 for i in range(len(LENGTHS))])[place[:, 0]]
    last = place[:, 1] == lengths - 1
    code = np.where(last, ended, 0)
    code = np.where(met, 1, np.where(new & (code == 1), 0, code))
    assert data.is_done.tolist() == code.tolist()
    np.testing.assert_array_equal(data.reward, np.where(met, 1.0, -0.01))
    assert (data.discount == (data.is_done != 1)).all()
    for episode in range(len(LENGTHS)):
        for t in range(LENGTHS[episode]):
            mine = picked[new & (place == [episode, t]).all(axis=1)]
            allowed = {"final": [LENGTHS[episode] - 1], "episode": range(LENGTHS[episode])}.get(
                strategy, range(t, LENGTHS[episode])
            )
            counts = [int((mine == k).sum()) for k in allowed]
            assert sum(counts) == len(mine) > 100
            if len(counts) > 1:
                assert p_value(counts, np.full(len(counts), 1 / len(counts))) > 1e-4


def test_without_the_current_step() -> None:
    _, data, place = sampled("future", 4, 10_000, include_current=False)
    goal = data.observation[0][:, 3]
    new = goal != 1e6
    picked = (goal - 100 * (place[:, 0] + 1) - 1)[new].astype(int)
    t, length = place[new, 1], np.array(LENGTHS)[place[new, 0]]
    assert ((picked > t) | ((t == length - 1) & (picked == t))).all()


def test_transitions_are_drawn_uniformly() -> None:
    _, _, place = sampled("future", 4, 20_000)
    counts = [int((place == [e, t]).all(axis=1).sum()) for e, length in enumerate(LENGTHS) for t in range(length)]
    assert p_value(counts, np.full(sum(LENGTHS), 1 / sum(LENGTHS))) > 1e-3


def test_wrapped_ring_picks_only_what_is_held() -> None:
    stored = [long_trajectory(7, start=100 * (i + 1)) for i in range(9)]
    for whole in (False, True):
        buffer = buffer_for(TABLE["goal_info"], stored[0], -0.01, capacity=18, strategy="episode", num_goals=4)
        for trajectory in stored:
            buffer.add(as_episode(trajectory) if whole else Columns(trajectory).transition)
            batch = buffer.sample(300)
            held = {(int(action) // 100, int(action) % 100) for action in buffer.all().action[0][:, 0]}
            action = batch.data.action[0][:, 0].astype(int)
            goal = batch.data.observation[0][:, 3]
            picked = {(int(a) // 100, int(g) % 100 - 1) for a, g in zip(action, goal, strict=True) if g != 1e6}
            assert {(int(a) // 100, int(a) % 100) for a in action} <= held
            assert picked <= held
            buffer.check_valid()


def test_interleaved_sources() -> None:
    """Two actors write in turn; goals come from the same actor's episode."""
    one, two = long_trajectory(8, start=100), long_trajectory(8, start=200)
    buffer = buffer_for(TABLE["goal_info"], one, -0.01, strategy="future", num_goals=4)
    for left, right in zip(one, two, strict=True):
        buffer.add(Columns([left]).transition, source_id=1)
        buffer.add(Columns([right]).transition, source_id=2)
        batch = buffer.sample(200)
        action = batch.data.action[0][:, 0].astype(int)
        goal = batch.data.observation[0][:, 3]
        new = goal != 1e6
        assert new.any()
        assert (goal[new] // 100 == action[new] // 100).all()
        assert (goal[new] - 1 >= action[new]).all()


def test_stored_data_stay_as_they_are() -> None:
    trajectory = long_trajectory(5)
    buffer = buffer_for(TABLE["goal_info"], trajectory, -0.01)
    keys = buffer.add(Columns(trajectory).transition)
    before = buffer.all()._asdict()
    for _ in range(20):
        buffer.sample(50)
    assert_same_nest(buffer.all()._asdict(), before)
    assert Columns.rows(buffer.get(keys)) == trajectory  # by key comes what was stored


def test_seed_and_snapshots(tmp_path: Path) -> None:
    trajectory = long_trajectory(9)
    reward_fn, done_fn = functions(TABLE["goal_info"], -0.01)

    def filled() -> Any:
        buffer = buffer_for(TABLE["goal_info"], trajectory, -0.01, capacity=12)
        for start in (0, 100, 200):
            buffer.add(Columns(long_trajectory(7, start=start)).transition)
        return buffer

    one, two = filled(), filled()
    one.save(tmp_path / "saved")
    state = one.state_dict()
    expected = [Columns.rows(one.sample(30).data) for _ in range(3)]
    assert [Columns.rows(two.sample(30).data) for _ in range(3)] == expected
    loaded = rlds2buf.load_buffer(tmp_path / "saved", reward_fn=reward_fn, done_fn=done_fn)
    loaded.check_valid()
    assert [Columns.rows(loaded.sample(30).data) for _ in range(3)] == expected
    two.load_state_dict(state)
    two.check_valid()
    assert [Columns.rows(two.sample(30).data) for _ in range(3)] == expected
    assert len(loaded.generate_hindsight(3).reward) > 0


def test_empty() -> None:
    with pytest.raises(NotEnoughItems):
        buffer_for(TABLE["goal_info"], TABLE["trajectory"], -0.01).sample(1)


def test_nested_observations_of_other_dtypes() -> None:
    """As goal environments have them: a dict with achieved and desired goals."""
    count = np.arange(6)
    ep = Episode(
        observation={
            "observation": count.astype(np.float32),
            "achieved_goal": np.stack([count, -count], axis=1).astype(np.float32),
            "desired_goal": np.full((6, 2), 50, np.float32),
            "camera": np.full((6, 4, 4, 3), 9, np.uint8),
        },
        action=count,
        reward=np.full(6, -1.0, np.float32),
        discount=np.ones(6, np.float32),
        is_last=count == 5,
    )
    met = lambda observation, action, after: (after["achieved_goal"] == after["desired_goal"]).all(axis=-1)  # noqa: E731
    buffer = rlds2buf.make_hindsight(
        rlds2buf.spec_of(ep),
        20,
        goals=[GoalMap("achieved_goal", "desired_goal")],
        reward_fn=lambda *arguments: met(*arguments) - 1.0,
        done_fn=met,
        strategy="final",
        seed=0,
    )
    buffer.add(ep)
    new = buffer.generate_hindsight(5)
    assert new.observation["desired_goal"].tolist() == [[5, -5]] * 5
    assert new.next_observation["desired_goal"].tolist() == [[5, -5]] * 5
    assert new.reward.tolist() == [-1, -1, -1, -1, 0] and new.reward.dtype == np.float32
    assert new.is_done.tolist() == [0, 0, 0, 0, 1]
    assert (new.observation["camera"] == 9).all() and new.observation["achieved_goal"].tolist() == [
        [i, -i] for i in range(5)
    ]


# -- with priorities ----------------------------------------------------------------------------


def test_prioritized_hindsight() -> None:
    trajectory = long_trajectory(5)
    reward_fn, done_fn = functions(TABLE["goal_info"], -0.01)
    spec = buffer_for(TABLE["goal_info"], trajectory, -0.01).spec
    buffer = rlds2buf.make_hindsight_prioritized(
        spec,
        100,
        goals=maps(TABLE["goal_info"]),
        reward_fn=reward_fn,
        done_fn=done_fn,
        strategy="final",
        num_goals=4,
        alpha=1.0,
        eps=0.0,
        seed=0,
    )
    keys = buffer.add(Columns(trajectory).transition)
    buffer.update_priorities(keys, [1.0, 2.0, 3.0, 4.0, 6.0])
    batch = buffer.sample(20_000)
    counts = np.bincount(np.searchsorted(keys, batch.info.key), minlength=5)
    assert p_value(counts, np.array([1, 2, 3, 4, 6]) / 16) > 1e-3
    goal = batch.data.observation[0][:, 3]
    assert p_value([(goal != 1e6).sum(), (goal == 1e6).sum()], [0.8, 0.2]) > 1e-3
    new = buffer.add(buffer.generate_hindsight(5))
    buffer.check_valid()
    info = buffer.sample(2000).info
    assert (info.priority[np.isin(info.key, new)] == 6.0).all()  # new ones come in at the running maximum
