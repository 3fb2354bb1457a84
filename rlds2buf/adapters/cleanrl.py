"""A replay buffer for CleanRL's scripts that starts from logged data and keeps each observation once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.adapters.logged_steps import Fit, fill
from rlds2buf.adapters.step_replay import StepReplay, end_codes
from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.factories import make_circular
from rlds2buf.core import nest
from rlds2buf.core.arguments import integer
from rlds2buf.core.row_flags import TERMINATED
from rlds2buf.errors import MissingDependency

try:
    import torch
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.cleanrl needs PyTorch: pip install torch") from cause

__all__ = ["ReplayBuffer", "ReplayBufferSamples"]


class ReplayBufferSamples(NamedTuple):
    """A batch as CleanRL's scripts read it: tensors ``[B, ...]``; dones and rewards float32 ``[B, 1]``."""

    observations: Any
    actions: Any
    next_observations: Any
    dones: Any
    rewards: Any


class ReplayBuffer:
    """What ``cleanrl_utils.buffers.ReplayBuffer`` does, over rows that are kept once; Stable-Baselines3 is not needed.

    In a script of CleanRL's, replace the import: ``from rlds2buf.adapters.cleanrl import ReplayBuffer``.

    Args:
        buffer_size: transitions of all environments together; the oldest leave first, the logged ones before others.
        observation_space, action_space: of one environment.
        device: where tensors go; ``"auto"`` is a GPU where there is one.
        n_envs: environments that step together.
        optimize_memory_usage: either way every observation is kept once.
        handle_timeout_termination: take ``infos[i]["TimeLimit.truncated"]`` for an end by a time limit.
        dataset: what it starts from: whatever :func:`rlds2buf.open_source` opens (a path, a list of episodes), or a
            Buffer.  Discounts and extras are left out.
        clip_actions: put logged actions outside of the limits at these, in place of refusing them.
        seed: of the draws; None takes NumPy's global one, as CleanRL's does.

    Attributes:
        buffer: the :class:`rlds2buf.Buffer` behind it; the newest steps are not in there yet.

    Raises:
        SpecMismatch: the data don't fit the spaces, or an action lies outside of its limits.
        TooLarge: there are more logged transitions than `buffer_size`.
        SourceNotFound, SourceFormatError, EpisodeError: `dataset` can't be read.
        ValueError: an argument is out of range.

    >>> from gymnasium import spaces
    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.zeros((4, 3), np.float32), action=np.full((4, 1), 2.0), reward=np.arange(4.0))
    >>> buffer = ReplayBuffer(100, spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (1,)), "cpu", dataset=[ep], seed=0)
    >>> batch = buffer.sample(8)
    >>> buffer.size(), tuple(batch.observations.shape), batch.actions.unique().tolist()
    (3, (8, 3), [2.0])
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
        clip_actions: bool = False,
        seed: int | None = None,
    ) -> None:
        self.n_envs = integer("n_envs", n_envs, 1)
        self.buffer_size = max(integer("buffer_size", buffer_size, 1) // self.n_envs, 1)
        self.handle_timeout_termination = handle_timeout_termination
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self._fit = Fit(observation_space, action_space, clip_actions=clip_actions)
        capacity = self.buffer_size * self.n_envs
        seeds = np.random.SeedSequence(np.random.randint(1 << 31) if seed is None else seed).generate_state(2)
        made = make_circular(self._fit.spec, capacity, capacity_unit="transitions", seed=int(seeds[0]))
        self._replay = StepReplay(made, capacity, self.n_envs, seed=int(seeds[1]))
        if dataset is not None:
            fill(self._replay, self._fit, dataset)

    @property
    def buffer(self) -> Buffer:
        """The buffer behind it."""
        return self._replay.buffer

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self._replay.nbytes

    @property
    def full(self) -> bool:
        """Whether it holds all that it can."""
        return self.size() == self.buffer_size

    def size(self) -> int:
        """How many transitions of each environment can be drawn, at most `buffer_size`."""
        return min(len(self._replay) // self.n_envs, self.buffer_size)

    def add(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Add one step of each environment: arrays ``[n_envs, ...]``."""
        fit, count = self._fit, self.n_envs
        # Gymnasium's vector environments give one dict of arrays, and CleanRL's scripts that do say only terminations.
        told = infos if self.handle_timeout_termination and not isinstance(infos, Mapping) else ()
        self._replay.add(
            fit.observation(obs, count),
            fit.action(action, count),
            np.asarray(reward, np.float32).reshape(count),
            fit.observation(next_obs, count),
            end_codes(done, told),
        )

    def reset(self) -> None:
        """Drop everything."""
        self._replay.clear()

    def sample(self, batch_size: int) -> ReplayBufferSamples:
        """Draw with replacement.

        Raises:
            NotEnoughItems: there is nothing to draw.
        """
        data = self._replay.sample(batch_size)
        return ReplayBufferSamples(
            self._put(data.observation),
            self._put(data.action),
            self._put(data.next_observation),
            self._put((data.is_done == TERMINATED).astype(np.float32).reshape(-1, 1)),
            self._put(data.reward.reshape(-1, 1)),
        )

    def _put(self, values: Any) -> Any:
        # A batch is nobody else's, so its memory is borrowed.
        return nest.map_structure(lambda array: torch.from_numpy(array).to(self.device), values)
