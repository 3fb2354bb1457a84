"""Replay buffers for Stable-Baselines3 that start from logged data and keep each observation once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.adapters.logged_steps import Fit, fill
from rlds2buf.adapters.step_replay import StepReplay, end_codes
from rlds2buf.buffers.factories import make_circular, make_hindsight
from rlds2buf.core.arguments import fraction, integer
from rlds2buf.core.row_flags import TERMINATED
from rlds2buf.core.sample import Transition
from rlds2buf.errors import MissingDependency
from rlds2buf.views.goals import GoalMap

try:
    from stable_baselines3 import her
    from stable_baselines3.common import buffers, type_aliases
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.sb3 needs Stable-Baselines3: pip install stable-baselines3") from cause

__all__ = ["HerReplayBuffer", "ReplayBuffer"]


class _Replay:
    """What both have: a :class:`StepReplay` in place of SB3's arrays.

    It stands before SB3's class, whose methods say how a buffer is called and whose constructor, which would
    allocate those arrays, is passed over.
    """

    _whole_episodes = False
    _replay: StepReplay

    def _set_up(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any,
        n_envs: int,
        handle_timeout_termination: bool,
        fit: Mapping[str, Any],
    ) -> None:
        buffer_size = integer("buffer_size", buffer_size, 1)
        n_envs = integer("n_envs", n_envs, 1)
        buffers.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self._fit = Fit(observation_space, action_space, **fit)
        self._samples: Any = type_aliases.ReplayBufferSamples
        if isinstance(self._fit.spec.observation, dict):
            self._samples = type_aliases.DictReplayBufferSamples
        self._made()

    def _made(self) -> None:
        """An empty replay; its draws follow NumPy's global seed, which SB3 sets from its own."""
        seeds = np.random.randint(1 << 31, size=2)
        capacity = self.buffer_size * self.n_envs
        self._replay = StepReplay(
            self._make(capacity, int(seeds[0])),
            capacity,
            self.n_envs,
            whole_episodes=self._whole_episodes,
            seed=int(seeds[1]),
        )

    def _make(self, capacity: int, seed: int) -> Any:
        return make_circular(self._fit.spec, capacity, capacity_unit="transitions", seed=seed)

    def _load(self, dataset: Any) -> None:
        if dataset is not None:
            fill(self._replay, self._fit, dataset)
            self._count()

    @property
    def buffer(self) -> Any:
        """The :class:`rlds2buf.Buffer` behind it; the newest steps are not in there yet."""
        return self._replay.buffer

    @property
    def dones(self) -> _Cut:
        """What an algorithm marks to cut the episodes under way, where it was told to save memory."""
        return _Cut(self._replay)

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self._replay.nbytes

    def size(self) -> int:
        """How many transitions of each environment can be drawn, at most `buffer_size`."""
        return min(len(self._replay) // self.n_envs, self.buffer_size)

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add one step of each environment, as SB3 calls it: arrays ``[n_envs, ...]``."""
        fit, count = self._fit, self.n_envs
        self._replay.add(
            fit.observation(obs, count),
            fit.action(action, count),
            np.asarray(reward, np.float32).reshape(count),
            fit.observation(next_obs, count),
            end_codes(done, infos if self.handle_timeout_termination else ()),
        )
        self._count()

    def reset(self) -> None:
        """Drop everything."""
        self._replay.clear()
        self._count()

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw with replacement.

        Args:
            batch_size: B.
            env: a VecNormalize, whose statistics observations and rewards are normalised by.

        Returns:
            SB3's ``ReplayBufferSamples`` (``DictReplayBufferSamples``) of tensors ``[B, ...]`` on `device`.

        Raises:
            NotEnoughItems: there is nothing to draw.
        """
        return self._as_samples(self._replay.sample(batch_size), env)

    def episodes(self) -> Any:
        """All that can be drawn as an :class:`rlds2buf.EpisodeBatch`, actions as the environment took them.

        So what an agent did while it learned becomes a dataset: ``rlds2buf.convert(list(buffer.episodes()), path)``.

        Raises:
            NotEnoughItems: there is nothing.
        """
        batch = self._replay.episodes()
        batch.rows.action[...] = self._fit.unscaled(batch.rows.action)
        batch.rows.is_last[batch.ends] = True  # those under way are cut here
        return batch

    def _as_samples(self, data: Transition, env: Any, discounts: np.ndarray | None = None) -> Any:
        rewards = data.reward.reshape(-1, 1)
        parts = (
            self._normalize_obs(data.observation, env),  # type: ignore[attr-defined]
            data.action,
            self._normalize_obs(data.next_observation, env),  # type: ignore[attr-defined]
            (data.is_done == TERMINATED).astype(np.float32).reshape(-1, 1),
            self._normalized(rewards, env),
        )
        tensors = [self._tensors(part) for part in parts]
        return self._samples(*tensors, **({} if discounts is None else {"discounts": self._tensors(discounts)}))

    def _normalized(self, rewards: np.ndarray, env: Any) -> Any:
        return self._normalize_reward(rewards, env)  # type: ignore[attr-defined]

    def _tensors(self, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: self._tensors(value) for name, value in values.items()}
        # A batch is nobody else's, so its memory is borrowed.
        return self.to_torch(values, copy=False)  # type: ignore[attr-defined]

    def _count(self) -> None:
        """What SB3's own code reads of a buffer."""
        held = len(self._replay) // self.n_envs
        self.full = held >= self.buffer_size
        self.pos = 0 if self.full else held

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_replay"] = self._replay.state()
        state.pop("env", None)
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        state = dict(state)
        held = state.pop("_replay")
        self.__dict__.update(state)
        self._made()
        self._replay.set_state(held)

    buffer_size: int
    n_envs: int


class _Cut:
    """Stands for SB3's array of ends, of which only the newest ones are ever set from outside."""

    def __init__(self, replay: StepReplay) -> None:
        self._replay = replay

    def __setitem__(self, at: Any, value: Any) -> None:
        self._replay.cut()


class ReplayBuffer(_Replay, buffers.ReplayBuffer):
    """SB3's ReplayBuffer (DictReplayBuffer, NStepReplayBuffer) over rows that are kept once.

    It is made by the algorithm, for example
    ``SAC("MlpPolicy", env, replay_buffer_class=ReplayBuffer, replay_buffer_kwargs={"dataset": "hopper-buffer"})``,
    which then learns from logged and from its own steps alike. ``save_replay_buffer`` and ``load_replay_buffer``
    work as with SB3's.  Draws are uniform over all transitions, SB3's `seed` decides them.

    Args:
        buffer_size: transitions of all environments together; the oldest leave first, the logged ones before others.
        observation_space, action_space, device, n_envs, handle_timeout_termination: as SB3 gives them.
        optimize_memory_usage: either way every observation is kept once.
        dataset: what it starts from: whatever :func:`rlds2buf.open_source` opens (a path, a list of episodes), or a
            Buffer.  Discounts and extras are left out; pictures whose channels SB3 moves to the front are turned too.
        n_steps: horizon of the returns; less at an episode's end, and where steps that are packed into the buffer
            meet newer ones, and `discounts` of a batch says so.  An algorithm takes its targets from that.
        gamma: discount of n-step returns; give the algorithm's.
        scale_actions: bring logged actions of a Box from its limits to [-1, 1], where SB3 keeps its own.
        clip_actions: put logged actions outside of the limits at these, in place of refusing them.

    Attributes:
        buffer: the :class:`rlds2buf.Buffer` behind it.

    Raises:
        SpecMismatch: the data don't fit the spaces, or an action lies outside of its limits.
        TooLarge: there are more logged transitions than `buffer_size`.
        SourceNotFound, SourceFormatError, EpisodeError: `dataset` can't be read.
        ValueError: an argument is out of range.

    >>> from gymnasium import spaces
    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.zeros((4, 3), np.float32), action=np.full((4, 1), 2.0), reward=np.arange(4.0))
    >>> box = spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (1,))
    >>> buffer = ReplayBuffer(100, *box, device="cpu", dataset=[ep])
    >>> batch = buffer.sample(8)
    >>> buffer.size(), tuple(batch.observations.shape), batch.actions.unique().tolist(), tuple(batch.dones.shape)
    (3, (8, 3), [1.0], (8, 1))
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        dataset: Any = None,
        n_steps: int = 1,
        gamma: float = 0.99,
        scale_actions: bool = True,
        clip_actions: bool = False,
    ) -> None:
        self.n_steps, self.gamma = integer("n_steps", n_steps, 1), fraction("gamma", gamma)
        self._set_up(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            handle_timeout_termination,
            {"scale_actions": scale_actions and hasattr(action_space, "low"), "clip_actions": clip_actions},
        )
        self._load(dataset)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """As :meth:`_Replay.sample`, over `n_steps`."""
        if self.n_steps == 1:
            return super().sample(batch_size, env)
        data = self._replay.sample(batch_size, self.n_steps, self.gamma)
        return self._as_samples(data, env, np.float32(self.gamma) ** data.steps.astype(np.float32).reshape(-1, 1))

    def _normalized(self, rewards: np.ndarray, env: Any) -> Any:
        if self.n_steps == 1 or env is None or not env.norm_reward:
            return super()._normalized(rewards, env)
        # The limit that VecNormalize puts rewards under is one for single steps.
        return (rewards / np.sqrt(env.ret_rms.var + env.epsilon)).astype(np.float32)


class HerReplayBuffer(_Replay, her.HerReplayBuffer):
    """SB3's HerReplayBuffer over rows that are kept once; ``future`` goals are inclusive, as there.

    Episodes can be drawn once they have ended.  Each drawn transition gets a new goal with probability
    ``n_sampled_goal / (n_sampled_goal + 1)`` and the reward that the environment's ``compute_reward`` gives for it;
    how it ended stays as it was.

    Args:
        env: the VecEnv whose ``compute_reward(achieved_goal, desired_goal, infos)`` judges new goals, with empty infos.
        n_sampled_goal: new goals for each stored one.
        goal_selection_strategy: ``"future"``, ``"final"`` or ``"episode"``, or SB3's constant.
        copy_info_dict: must be False: infos are not kept.
        others: as of :class:`ReplayBuffer`.

    Raises:
        ValueError: an argument is out of range.
        SpecMismatch, TooLarge, SourceNotFound, SourceFormatError, EpisodeError: as of :class:`ReplayBuffer`.
    """

    _whole_episodes = True

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        env: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: Any = "future",
        copy_info_dict: bool = False,
        *,
        dataset: Any = None,
        scale_actions: bool = True,
        clip_actions: bool = False,
    ) -> None:
        if copy_info_dict:
            raise ValueError("infos are not kept, so compute_reward gets empty ones: leave copy_info_dict out")
        self.env = env
        self.copy_info_dict = False
        name = goal_selection_strategy
        name = name.name if isinstance(name, GoalSelectionStrategy) else str(name)
        self.goal_selection_strategy = GoalSelectionStrategy[name.upper()]
        self.n_sampled_goal = integer("n_sampled_goal", n_sampled_goal, 1)
        self.her_ratio = 1 - 1.0 / (self.n_sampled_goal + 1)
        self._set_up(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            handle_timeout_termination,
            {"scale_actions": scale_actions and hasattr(action_space, "low"), "clip_actions": clip_actions},
        )
        self._load(dataset)

    def _make(self, capacity: int, seed: int) -> Any:
        return make_hindsight(
            self._fit.spec,
            capacity,
            capacity_unit="transitions",
            goals=[GoalMap("achieved_goal", "desired_goal")],
            reward_fn=self._reward_fn(),
            done_fn=_nothing_ends,
            strategy=self.goal_selection_strategy.name.lower(),
            num_goals=self.n_sampled_goal,
            seed=seed,
        )

    def _reward_fn(self) -> Callable[..., np.ndarray]:
        def reward(observation: Any, action: Any, after: Any) -> np.ndarray:
            if self.env is None:
                raise ValueError("call set_env first: the environment gives new goals their rewards")
            achieved, desired = after["achieved_goal"], observation["desired_goal"]
            infos: list[dict[str, Any]] = [{} for _ in range(len(achieved))]
            # Of the first environment, all being alike.
            rewards = self.env.env_method("compute_reward", achieved, desired, infos, indices=[0])[0]
            return np.asarray(rewards, np.float32)

        return reward

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.env = None  # given by set_env
        super().__setstate__(state)

    def truncate_last_trajectory(self) -> None:
        """The episodes under way, of which no more will come, were cut here, and can be drawn."""
        self._replay.cut()
        self._count()


def _nothing_ends(observation: Any, action: Any, after: Any) -> np.ndarray:
    return np.zeros(len(after["achieved_goal"]), np.bool_)
