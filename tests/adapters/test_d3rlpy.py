"""d3rlpy's buffer filled from ours, and ours under its interface, beside what d3rlpy itself makes of the same data."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import pytest
from d3rlpy import dataset

from rlds2buf import Episode, NotEnoughItems, SpecMismatch, UnknownKey, convert, load_buffer, make_circular, spec_of
from rlds2buf.adapters.d3rlpy import ReplayBuffer, to_d3rlpy
from tests.adapters.logged import EPISODES, circular, corridor, episode


def picked(buffer: Any) -> list[Any]:
    """Every transition of theirs, in order."""
    return [buffer.transition_picker(one, i) for one in buffer.episodes for i in range(one.transition_count)]


def assert_equal(mine: Any, theirs: Any) -> None:
    np.testing.assert_allclose(mine.reward, theirs.reward, rtol=1e-6)
    # The row behind the last step of an episode that was cut counts among d3rlpy's, where its reward is padding.
    count = len(mine.rewards_to_go)
    np.testing.assert_array_equal(mine.rewards_to_go, theirs.rewards_to_go[:count])
    assert len(theirs.rewards_to_go) - count in (0, 1)
    for name in ("observation", "action", "next_observation", "next_action"):
        one, other = getattr(mine, name), getattr(theirs, name)
        ended = theirs.terminal and name == "next_observation"  # zeros there, and what was stored here
        parts = zip(one, other, strict=True) if isinstance(other, list) else [(one, other)]
        for left, right in parts:
            assert left.dtype == right.dtype and left.shape == right.shape, name
            if not ended:
                np.testing.assert_array_equal(left, right, err_msg=name)
    assert mine.terminal == theirs.terminal and mine.interval == theirs.interval


@pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])
@pytest.mark.parametrize("kind", ["array", "tuple"])
def test_is_what_d3rlpy_loads_of_a_file_that_we_write(tmp_path: Path, kind: str, discrete: bool) -> None:
    """Two ways to the same: the buffer handed over, and its episodes written as d3rlpy's file and read by d3rlpy."""
    buffer = circular(kind=kind, discrete=discrete)
    mine = to_d3rlpy(buffer)
    convert([episode(*one, kind=kind, discrete=discrete) for one in EPISODES], tmp_path / "file.h5", to="d3rlpy")
    with open(tmp_path / "file.h5", "rb") as file:
        theirs = dataset.ReplayBuffer.load(file, dataset.InfiniteBuffer())
    assert mine.transition_count == theirs.transition_count == len(buffer)
    assert mine.dataset_info == theirs.dataset_info
    for one, other in zip(picked(mine), picked(theirs), strict=True):
        assert_equal(one, other)


def test_of_whatever_can_be_opened(tmp_path: Path) -> None:
    buffer = circular()
    buffer.save(tmp_path / "saved")
    wanted = picked(to_d3rlpy(buffer))
    for data in (tmp_path / "saved", [episode(*one) for one in EPISODES], load_buffer(tmp_path / "saved")):
        for one, other in zip(picked(to_d3rlpy(data)), wanted, strict=True):
            assert_equal(one, other)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])
@pytest.mark.parametrize("kind", ["array", "tuple"])
def test_mini_batches_are_what_their_picker_picks(kind: str, discrete: bool, n_step: int) -> None:
    buffer = circular(kind=kind, discrete=discrete)
    ours = ReplayBuffer(buffer, n_step=n_step, gamma=0.9)
    assert ours.transition_count == len(buffer) and ours.size() == len(EPISODES)
    known = {float(np.ravel(one.reward_key)[0]): one for one in map(_Keyed, picked(ours))}
    batch = ours.sample_transition_batch(64)
    assert isinstance(batch, dataset.TransitionMiniBatch) and len(batch) == len(batch.transitions) == 64
    assert buffer.stats()["sampled"] == 64
    for i, mine in enumerate(batch.transitions):
        theirs = known[float(np.ravel(_Keyed(mine).reward_key)[0])].transition
        assert_equal(mine, theirs)
        assert batch.terminals[i, 0] == theirs.terminal and batch.intervals[i, 0] == theirs.interval
    again = dataset.TransitionMiniBatch.from_transitions(batch.transitions)
    for name in ("actions", "rewards", "next_actions", "terminals", "intervals"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(again, name))
    assert d3rlpy.dataset.check_dtype(batch.observations, np.float32)


class _Keyed:
    """A transition by the number of its step."""

    def __init__(self, transition: Any) -> None:
        self.transition = transition
        seen = transition.observation
        self.reward_key = seen[0] if isinstance(seen, list) else seen


def test_seeds_and_priorities_are_the_buffer_s() -> None:
    buffer = circular()
    other = copy.deepcopy(buffer)
    batch = ReplayBuffer(buffer).sample_transition_batch(32)
    wanted = other.sample(32, gamma=0.99).data
    np.testing.assert_array_equal(batch.observations, wanted.observation)
    np.testing.assert_array_equal(batch.rewards[:, 0], wanted.reward)


def test_trajectories_are_what_their_slicer_cuts() -> None:
    ours = ReplayBuffer(circular())
    batch = ours.sample_trajectory_batch(50, 4)
    assert batch.observations.shape == (50, 4, 2) and batch.returns_to_go.shape == (50, 4, 1)
    known = {}
    for one in ours.episodes:
        for end in range(one.transition_count):
            cut = dataset.BasicTrajectorySlicer()(one, end, 4)
            known[cut.observations.tobytes()] = cut
    for i in range(50):
        cut = known[batch.observations[i].tobytes()]
        np.testing.assert_array_equal(batch.returns_to_go[i], cut.returns_to_go)
        np.testing.assert_array_equal(batch.terminals[i], cut.terminals)
        np.testing.assert_array_equal(batch.masks[i], cut.masks)
    assert ours.sample_trajectory(3).length == 3


def test_steps_that_are_appended() -> None:
    """What an online run tells its buffer, and the episodes that it means."""
    spec = spec_of(episode(0, 3, "terminated"))
    ours = ReplayBuffer(make_circular(spec, 100, seed=0))
    rng, told = np.random.default_rng(0), []
    for length, terminated in ((5, True), (4, False), (1, True), (1, False), (3, True)):
        columns = [rng.normal(size=(length, width)).astype(np.float32) for width in (2, 1, 1)]
        for seen, action, reward in zip(*columns, strict=True):
            ours.append(seen, action, float(reward[0]))
        ours.clip_episode(terminated)
        if length + terminated > 1:
            told.append(dataset.Episode(*columns, terminated))
    ours.clip_episode(True)  # nothing was appended
    theirs = dataset.ReplayBuffer(dataset.InfiniteBuffer(), episodes=told)
    assert ours.transition_count == theirs.transition_count == 12
    for one, other in zip(picked(ours), picked(theirs), strict=True):
        assert_equal(one, other)
    before = ours.transition_count
    ours.append_episode(told[0])
    assert ours.transition_count == before + 5 and ours.size() == 5


def test_a_batch_of_what_has_left() -> None:
    buffer = circular()
    ours = ReplayBuffer(buffer)
    batch = ours.sample_transition_batch(4)
    buffer.clear()
    with pytest.raises(UnknownKey, match="has left"):
        batch.transitions[0]


def test_dumped_and_loaded(tmp_path: Path) -> None:
    ours = ReplayBuffer(circular())
    with open(tmp_path / "file.h5", "w+b") as file:
        ours.dump(file)
    with open(tmp_path / "file.h5", "rb") as file:
        theirs = ReplayBuffer.load(file, dataset.InfiniteBuffer())
    for one, other in zip(picked(ours), picked(theirs), strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("returns_to_go", [False, True], ids=["td3+bc", "cal-ql"])
def test_an_algorithm_of_theirs_learns_from_it(tmp_path: Path, returns_to_go: bool) -> None:
    """Logged random steps along a line; a learner that takes values in finds that it is best to go on."""
    episodes = corridor(150)
    buffer = make_circular(spec_of(episodes[0]), 4000, seed=0)
    buffer.add(episodes)
    config: Any
    if returns_to_go:
        config = d3rlpy.algos.CalQLConfig(batch_size=32, n_action_samples=2)
    else:
        config = d3rlpy.algos.TD3PlusBCConfig(
            batch_size=128, alpha=20.0, actor_learning_rate=1e-3, critic_learning_rate=1e-3
        )
    algorithm = config.create()
    steps = 10 if returns_to_go else 600
    losses = algorithm.fit(
        ReplayBuffer(buffer),
        n_steps=steps,
        n_steps_per_epoch=steps,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )
    assert np.isfinite(list(losses[0][1].values())).all()
    if not returns_to_go:
        places = np.linspace(-0.9, 0.9, 10, dtype=np.float32)[:, None]
        assert np.mean(algorithm.predict(places)) > 0.6


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observation": {"a": np.zeros((3, 2))}}, "nested .observation/a."),
        ({"action": np.array([b"left"] * 3, object)}, "text"),
        ({"reward": None}, "have none"),
    ],
)
def test_what_has_no_place_is_refused(changes: dict[str, Any], says: str) -> None:
    one = episode(0, 3, "terminated").replace(**changes)
    with pytest.raises(SpecMismatch, match=says):
        to_d3rlpy([one])
    buffer = make_circular(spec_of(one), 10)
    with pytest.raises(SpecMismatch, match=says):
        ReplayBuffer(buffer)


def test_bad_arguments() -> None:
    with pytest.raises(NotEnoughItems, match="no transition"):
        to_d3rlpy([Episode(observation=np.zeros((1, 2)), action=np.zeros((1, 1)), reward=np.zeros(1))])
    with pytest.raises(TypeError, match="Buffer or the path"):
        ReplayBuffer([1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="nonsense"):
        ReplayBuffer(circular(), nonsense=3)
    with pytest.raises(ValueError, match="n_step"):
        ReplayBuffer(circular(), n_step=0)
    with pytest.raises(ValueError, match="action_size"):
        ReplayBuffer(make_circular(spec_of(episode(0, 3, "terminated", discrete=True)), 10))
    with pytest.raises(NotEnoughItems):
        ReplayBuffer(make_circular(spec_of(episode(0, 3, "terminated")), 10)).sample_transition_batch(4)
