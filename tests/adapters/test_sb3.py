"""Our buffers in place of Stable-Baselines3's: the same batches, algorithms that train, saving, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3 import HerReplayBuffer as TheirHer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer as TheirReplay
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import rlds2buf
from rlds2buf.adapters import cleanrl
from rlds2buf.adapters.sb3 import HerReplayBuffer, ReplayBuffer
from rlds2buf.core import nest

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 4], np.float32))


def steps(rng: np.random.Generator, count: int, envs: int, space: Any = BOX, actions: Any = ACTIONS) -> list[Any]:
    """What a vector environment gives to ``add``; a step's observation is numbered by its reward."""
    made = []
    number = 0
    last: Any = None
    for _ in range(count):
        done = rng.random(envs) < 0.1
        cut = done & (rng.random(envs) < 0.5)
        before = _observations(space, rng, envs) if last is None else last
        after = _observations(space, rng, envs)
        action = np.stack([actions.sample() for _ in range(envs)])
        reward = np.arange(number, number + envs, dtype=np.float32)
        number += envs
        infos = [{"TimeLimit.truncated": True} if one else {} for one in cut]
        made.append((before, after, action, reward, done, infos))
        fresh = _observations(space, rng, envs)
        last = _chosen(done, fresh, after)
    return made


def _observations(space: Any, rng: np.random.Generator, envs: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _observations(one, rng, envs) for name, one in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, envs)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (envs, *space.shape), np.uint8)
    return rng.random((envs, *space.shape)).astype(space.dtype)


def _chosen(done: np.ndarray, fresh: Any, after: Any) -> Any:
    if isinstance(after, dict):
        return {name: _chosen(done, fresh[name], after[name]) for name in after}
    return np.where(done.reshape(-1, *[1] * (after.ndim - 1)), fresh, after)


def rows(samples: Any) -> dict[float, tuple[Any, ...]]:
    """By their rewards, which number them."""
    flat = [leaf for _, leaf in nest.flatten(tuple(samples[:4]))]
    return {
        float(samples.rewards[i]): tuple(leaf[i].numpy().tobytes() + str(leaf.dtype).encode() for leaf in flat)
        for i in range(len(samples.rewards))
    }


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small are slower with several, the more so if the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SPACES = {
    "box": (BOX, ACTIONS, TheirReplay),
    "pictures": (spaces.Box(0, 255, (3, 4, 5), np.uint8), spaces.Discrete(4), TheirReplay),
    "discrete": (spaces.Discrete(9), spaces.MultiDiscrete([2, 3]), TheirReplay),
    "dict": (spaces.Dict({"a": BOX, "b": spaces.Box(0, 255, (2, 2, 1), np.uint8)}), ACTIONS, DictReplayBuffer),
    "wide": (spaces.Box(-1, 1, (2, 2), np.float64), spaces.Box(-1, 1, (2,), np.float64), TheirReplay),
    "bits": (spaces.MultiBinary(3), spaces.MultiBinary(2), TheirReplay),
}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("timeouts", [True, False])
def test_batches_are_theirs(name: str, envs: int, timeouts: bool) -> None:
    space, actions, theirs = SPACES[name]
    rng = np.random.default_rng(0)
    actions.seed(0)
    options: dict[str, Any] = {"device": "cpu", "n_envs": envs, "handle_timeout_termination": timeouts}
    one, other = ReplayBuffer(300, space, actions, **options), theirs(300, space, actions, **options)
    for step in steps(rng, 70, envs, space, actions):
        one.add(*step)
        other.add(*step)
    assert one.size() == other.size() == 70 and not one.full and one.pos == other.pos
    mine, known = rows(one.sample(2000)), rows(other.sample(8000))
    assert len(mine) > 0.9 * 70 * envs and mine.items() <= known.items()
    got, want = one.sample(5), other.sample(5)
    assert type(got) is type(want)
    for (_, a), (_, b) in zip(nest.flatten(got), nest.flatten(want), strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a.shape == b.shape and a.dtype == b.dtype)


def test_n_step_returns_are_theirs() -> None:
    options: dict[str, Any] = {"device": "cpu", "n_steps": 3, "gamma": 0.9}
    one, other = ReplayBuffer(12_800, BOX, ACTIONS, **options), NStepReplayBuffer(12_800, BOX, ACTIONS, **options)
    for step in steps(np.random.default_rng(0), 190, 1):  # all of them wait
        one.add(*step)
        other.add(*step)

    def by_observation(samples: Any) -> dict[bytes, tuple[bytes, float, float, float]]:
        return {
            samples.observations[i].numpy().tobytes(): (
                samples.next_observations[i].numpy().tobytes(),
                float(samples.dones[i]),
                round(float(samples.rewards[i]), 2),
                round(float(samples.discounts[i]), 6),
            )
            for i in range(len(samples.rewards))
        }

    known = by_observation(other.sample(8000))
    mine = by_observation(one.sample(2000))
    assert len(mine) > 150 and mine.items() <= known.items()
    assert one.sample(7).discounts.shape == (7, 1)
    # Packed, it is the same but where a stretch ends.
    packs = ReplayBuffer(640, BOX, ACTIONS, **options)
    for step in steps(np.random.default_rng(0), 190, 1):
        packs.add(*step)
    assert packs.buffer.num_rows > 150
    got = by_observation(packs.sample(2000))
    assert sum(got[key] == known[key] for key in got) > 0.5 * len(got)


def test_a_vec_normalize_is_heeded() -> None:
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    env.reset()
    for _ in range(50):
        env.step(np.array([env.action_space.sample()]))
    space, actions = env.observation_space, env.action_space
    one, other = ReplayBuffer(100, space, actions, device="cpu"), TheirReplay(100, space, actions, device="cpu")
    for step in steps(np.random.default_rng(0), 50, 1, space, actions):
        one.add(*step)
        other.add(*step)
    assert rows(one.sample(500, env)).items() <= rows(other.sample(3000, env)).items()


def test_full_it_keeps_the_newest_and_takes_less_memory() -> None:
    space = spaces.Box(-1, 1, (17,), np.float32)
    actions = spaces.Box(-1, 1, (6,), np.float32)
    one = ReplayBuffer(20_000, space, actions, device="cpu")
    other = TheirReplay(20_000, space, actions, device="cpu")
    rng = np.random.default_rng(0)
    seen = rng.random((30_001, 1, 17)).astype(np.float32)
    for t in range(30_000):
        done = np.array([t % 1000 == 999])
        one.add(seen[t], seen[t + 1], np.zeros((1, 6), np.float32), np.array([t], np.float32), done, [{}])
    held = sum(getattr(other, name).nbytes for name in ("observations", "next_observations", "actions", "rewards"))
    held += other.dones.nbytes + other.timeouts.nbytes
    assert one.size() == 20_000 and one.full
    assert float(one.sample(2000).rewards.min()) >= 9000
    assert one.nbytes < 0.63 * held, one.nbytes / held


# -- algorithms -----------------------------------------------------------------------------------


def logged(path: Path, count: int = 3) -> Path:
    """Random episodes of Pendulum, as a saved buffer."""
    env = gymnasium.make("Pendulum-v1")
    env.action_space.seed(0)
    episodes = []
    for number in range(count):
        seen = [env.reset(seed=number)[0]]
        acted, rewards = [], []
        for _ in range(200):
            action = env.action_space.sample()
            observation, reward, _, _, _ = env.step(action)
            seen.append(observation)
            acted.append(action)
            rewards.append(reward)
        acted.append(np.zeros_like(acted[-1]))
        episodes.append(
            rlds2buf.Episode(
                observation=np.array(seen, np.float32), action=np.array(acted), reward=np.array([*rewards, 0.0])
            )
        )
    rlds2buf.convert(episodes, path)
    return path


def test_sac_starts_from_logged_data(tmp_path: Path) -> None:
    path = logged(tmp_path / "pendulum-buffer")
    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs={"dataset": str(path)},
        buffer_size=10_000,
        learning_starts=0,
        policy_kwargs={"net_arch": [16]},
        seed=0,
        device="cpu",
    )
    held = model.replay_buffer
    assert held.size() == 600
    actions = held.sample(2000).actions
    assert actions.abs().max() <= 1 and actions.abs().max() > 0.9  # the environment's are from -2 to 2
    assert not held.sample(500).dones.any()
    model.learn(250)
    assert held.size() == 850
    model.save_replay_buffer(tmp_path / "replay.pkl")
    again = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [16]}, learning_starts=0, device="cpu")
    again.load_replay_buffer(tmp_path / "replay.pkl")
    assert again.replay_buffer.size() == 850
    again.learn(20)
    assert again.replay_buffer.size() == 870


def test_what_an_agent_did_becomes_a_dataset(tmp_path: Path) -> None:
    env = DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")] * 2)
    model = SAC(
        "MlpPolicy",
        env,
        replay_buffer_class=ReplayBuffer,
        policy_kwargs={"net_arch": [8]},
        learning_starts=10_000,
        buffer_size=5000,
        optimize_memory_usage=True,
        device="cpu",
    )
    model.learn(900)
    taken = [step["action"] for step in _steps(model.replay_buffer.episodes())]
    assert 1.9 < np.abs(taken).max() <= 2
    rlds2buf.convert(list(model.replay_buffer.episodes()), tmp_path / "log")
    episodes = list(rlds2buf.open_source(tmp_path / "log"))
    assert sum(episode.num_transitions for episode in episodes) == 900
    assert {episode.end for episode in episodes} == {"truncated"}
    with pytest.warns(UserWarning, match="will be truncated"):
        model.learn(100)
    assert model.replay_buffer.size() == 500


def _steps(batch: Any) -> Any:
    for episode in batch:
        for t in range(episode.num_transitions):
            yield {"action": episode.action[t]}


def test_seeds_decide_draws() -> None:
    def drawn() -> list[float]:
        model = SAC(
            "MlpPolicy",
            "Pendulum-v1",
            replay_buffer_class=ReplayBuffer,
            policy_kwargs={"net_arch": [8]},
            learning_starts=10,
            seed=3,
            device="cpu",
        )
        model.learn(60)
        return model.replay_buffer.sample(10).rewards[:, 0].tolist()

    assert drawn() == drawn()


@pytest.mark.filterwarnings("ignore:`n_steps=3` is ignored because a custom")  # it is told the buffer, too
def test_n_steps_and_discrete_actions() -> None:
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs={"n_steps": 3, "gamma": 0.99},
        n_steps=3,
        learning_starts=50,
        buffer_size=500,
        policy_kwargs={"net_arch": [8]},
        seed=0,
        device="cpu",
    )
    model.learn(700)
    assert model.replay_buffer.full
    batch = model.replay_buffer.sample(300)
    assert {round(discount, 4) for discount in batch.discounts[:, 0].tolist()} <= {0.9703, 0.9801, 0.99}


class Reach(gymnasium.Env):  # type: ignore[type-arg]
    """Walk to a number; the reward is -1 until it is reached."""

    observation_space = spaces.Dict(
        {name: spaces.Box(-9, 9, (1,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = np.zeros(1, np.float32), 0
        self.goal = self.np_random.uniform(-3, 3, 1).astype(np.float32)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = np.clip(self.at + np.asarray(action, np.float32), -9, 9)
        self.steps += 1
        reward = float(self.compute_reward(self.at[None], self.goal[None], [{}])[0])
        return self._seen(), reward, False, self.steps == 10, {}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> np.ndarray:
        return -(np.abs(achieved - desired)[:, 0] > 0.5).astype(np.float32)

    def _seen(self) -> dict[str, np.ndarray]:
        return {"observation": self.at.copy(), "achieved_goal": self.at.copy(), "desired_goal": self.goal.copy()}


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_hindsight_is_theirs(strategy: str) -> None:
    env = DummyVecEnv([Reach, Reach])
    options: dict[str, Any] = {"device": "cpu", "n_envs": 2, "goal_selection_strategy": strategy}
    one = HerReplayBuffer(500, env.observation_space, env.action_space, env, **options)
    other = TheirHer(500, env.observation_space, env.action_space, env, **options)
    with pytest.raises(rlds2buf.NotEnoughItems, match="learning_starts"):
        one.sample(4)
    seen = env.reset()
    rng = np.random.default_rng(0)
    for _ in range(205):
        action = rng.uniform(-1, 1, (2, 1)).astype(np.float32)
        after, reward, done, infos = env.step(action)
        last = {name: value.copy() for name, value in after.items()}
        for i in np.flatnonzero(done):
            for name in last:
                last[name][i] = infos[i]["terminal_observation"][name]
        for buffer in (one, other):
            buffer.add(seen, last, action, reward, done, infos)
        seen = after

    def told(samples: Any) -> dict[bytes, Any]:
        """Rewards and dones by everything else."""
        parts = [samples.observations[name] for name in sorted(samples.observations)]
        parts += [samples.next_observations[name] for name in sorted(samples.next_observations)]
        table = torch.cat([*parts, samples.actions], 1).numpy()
        ends = torch.cat([samples.rewards, samples.dones], 1).numpy()
        return {table[i].tobytes(): ends[i].tolist() for i in range(len(table))}

    mine, known = told(one.sample(4000)), told(other.sample(60_000))
    assert mine.items() <= known.items() and len(mine) > 300
    assert one.size() * 2 == 400  # whole episodes
    assert abs(float(one.sample(4000).rewards.mean()) - float(other.sample(4000).rewards.mean())) < 0.06
    one.truncate_last_trajectory()
    assert one.size() * 2 == 410
    again = pickle.loads(pickle.dumps(one))
    with pytest.raises(ValueError, match="set_env"):
        again.sample(10)
    again.set_env(env)
    assert again.size() == one.size() and again.sample(10).rewards.shape == (10, 1)


def test_an_algorithm_learns_goals(tmp_path: Path) -> None:
    model = SAC(
        "MultiInputPolicy",
        Reach(),
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4},
        learning_starts=30,
        policy_kwargs={"net_arch": [16]},
        device="cpu",
    )
    model.learn(100)
    model.save_replay_buffer(tmp_path / "her.pkl")
    model.load_replay_buffer(tmp_path / "her.pkl")
    model.learn(40, reset_num_timesteps=False)
    assert model.replay_buffer.size() >= 130


# -- what is refused ------------------------------------------------------------------------------


def episode(**changes: Any) -> rlds2buf.Episode:
    given = {
        "observation": np.zeros((4, 3), np.float32),
        "action": np.ones((4, 2)),
        "reward": np.zeros(4),
        **changes,
    }
    return rlds2buf.Episode(**given)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"observation": np.zeros((4, 5), np.float32)},
            rlds2buf.SpecMismatch,
            r"observation: .*float32\[3\].*float32\[5\]",
        ),
        ({"observation": {"a": np.zeros((4, 3))}}, rlds2buf.SpecMismatch, "the data have observation/a"),
        ({"action": np.zeros((4, 1))}, rlds2buf.SpecMismatch, r"action: .*float32\[2\].*float64\[1\]"),
        ({"action": None}, rlds2buf.SpecMismatch, "action: .*have nothing"),
        ({"reward": None}, rlds2buf.SpecMismatch, "reward"),
        (
            {"action": np.array([[0, 0], [0, 0], [3, 1], [0, 0]])},
            rlds2buf.SpecMismatch,
            r"episode 0, step 2, action: .*\[3.*outside.*clip_actions=True",
        ),
    ],
)
def test_data_of_another_environment_are_refused(changes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ReplayBuffer(100, BOX, ACTIONS, device="cpu", dataset=[episode(**changes)])


def test_actions_are_clipped_if_that_is_wanted_and_padding_is_none() -> None:
    acted = np.array([[3.0, 1.0], [2.0, 4.0], [-2.0, 0.0], [99.0, 99.0]])
    held = ReplayBuffer(100, BOX, ACTIONS, device="cpu", dataset=[episode(action=acted)], clip_actions=True)
    assert sorted(set(map(tuple, held.sample(100).actions.tolist()))) == [(-1.0, -1.0), (1.0, -0.5), (1.0, 1.0)]


def test_a_dataset_that_does_not_fit_is_refused() -> None:
    with pytest.raises(rlds2buf.TooLarge, match="set buffer_size"):
        ReplayBuffer(5, BOX, ACTIONS, device="cpu", dataset=[episode(), episode()])
    assert ReplayBuffer(6, BOX, ACTIONS, device="cpu", dataset=[episode(), episode()]).size() == 6


def test_single_transitions_and_open_buffers_are_data_too(tmp_path: Path) -> None:
    made = rlds2buf.make_circular((BOX, ACTIONS), 100)
    for t in range(5):
        made.add(
            {
                "observation": np.full(3, t / 10),
                "action": np.ones(2),
                "reward": t,
                "next_observation": np.full(3, (t + 1) / 10),
            }
        )
    made.save(tmp_path / "saved")
    for dataset in (made, tmp_path / "saved"):
        held = ReplayBuffer(10, BOX, ACTIONS, device="cpu", dataset=dataset)
        assert sorted(set(held.sample(200).rewards[:, 0].tolist())) == [0, 1, 2, 3, 4]
        assert held.buffer.num_rows == 6


def test_pictures_are_turned_as_the_environment_s_are() -> None:
    seen = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
    data = rlds2buf.Episode(observation=seen, action=np.zeros(3, np.int64), reward=np.arange(3.0))
    held = ReplayBuffer(10, spaces.Box(0, 255, (3, 4, 5), np.uint8), spaces.Discrete(2), device="cpu", dataset=[data])
    batch = held.sample(20)
    for i in range(20):
        number = int(batch.rewards[i])
        np.testing.assert_array_equal(batch.observations[i], np.moveaxis(seen[number], -1, 0))


@pytest.mark.parametrize("option", [{"n_steps": 0}, {"gamma": 2.0}])
def test_arguments_out_of_range(option: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        ReplayBuffer(10, BOX, ACTIONS, device="cpu", **option)


def test_unlimited_actions_are_not_scaled() -> None:
    wide = spaces.Box(-np.inf, np.inf, (2,))
    with pytest.raises(ValueError, match="scale_actions=False"):
        ReplayBuffer(10, BOX, wide, device="cpu")
    assert ReplayBuffer(10, BOX, wide, device="cpu", scale_actions=False, dataset=[episode()]).size() == 3


def test_infos_are_not_kept() -> None:
    env = DummyVecEnv([Reach])
    with pytest.raises(ValueError, match="copy_info_dict"):
        HerReplayBuffer(10, env.observation_space, env.action_space, env, copy_info_dict=True)


# -- CleanRL --------------------------------------------------------------------------------------


def test_cleanrl_s_buffer() -> None:
    """As its scripts use it: `terminations` as ends, actions as they are, one dict of infos."""
    one = cleanrl.ReplayBuffer(
        500, BOX, ACTIONS, "cpu", n_envs=2, handle_timeout_termination=False, dataset=[episode()]
    )
    other = TheirReplay(500, BOX, ACTIONS, "cpu", n_envs=2, handle_timeout_termination=False)
    for step in steps(np.random.default_rng(0), 60, 2):
        one.add(*step[:5], {})
        other.add(*step)
    batch = one.sample(3000)
    logged_rows = (batch.observations == 0).all(1)
    assert logged_rows.any() and batch.actions[logged_rows].unique().tolist() == [1.0]
    some = ~logged_rows
    mine = rows(type(batch)(*(part[some] for part in batch)))
    assert len(mine) > 100 and mine.items() <= rows(other.sample(8000)).items()
    assert one.size() == (3 + 120) // 2 and not one.full
    assert int(batch.dones.sum()) > 0
