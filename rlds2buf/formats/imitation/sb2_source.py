"""Expert files of Stable-Baselines 2: one flat table of steps with a flag where an episode starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from rlds2buf.io.npz_source import NpzLayout, NpzSource

__all__ = ["Sb2Source"]

_ROLES = ("obs", "actions", "rewards", "episode_starts", "episode_returns")


class Sb2Source(NpzSource):
    """Episodes of a file that Stable-Baselines 2's ``generate_expert_traj`` made (https://github.com/hill-a/stable-baselines).

    ``obs``, ``actions`` and ``rewards`` hold a row for each step, ``episode_starts`` is 1 where an episode begins.
    Nothing tells how one ended: every end is taken as a cut, and `is_terminal` is derived.  What came of the last
    action was not recorded, so that row starts no transition.  ``episode_returns [E]`` is each episode's metadata
    ``return``, where there are as many.  The discount is 1 (float32).  Pictures that were recorded as files have
    their names as the observation.

    Args:
        path: the file.
        budget: what an episode, and a row, may take beyond the file's size.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file; the message names the array.
    """

    format: ClassVar[str] = "sb2"

    def layout(self) -> NpzLayout:
        count = self.array("obs").shape[0]
        starts = self.flagged("episode_starts", "which tells where episodes begin")
        self.same_length(["actions", "rewards", "episode_starts"], count)
        edges = np.unique(np.append(starts, [0, count]))
        rows = np.diff(edges)
        returns = self.numbers("episode_returns") if "episode_returns" in self.arrays else np.empty(0)
        self._has_returns = len(returns) == len(rows)
        self._returns = len(returns)
        facts: list[Mapping[str, Any]] | None = [{"return": value} for value in returns] if self._has_returns else None
        fields = {"observation": self.arrays["obs"], "action": self.array("actions"), "reward": self.number("rewards")}
        return NpzLayout(fields, rows, facts=facts)

    def cautions(self) -> list[str]:
        warnings = ["no end flags: every episode is taken as truncated; its last action starts no transition"]
        if not self._has_returns:
            warnings.append(f"`episode_returns` has {self._returns} values for {self.num_episodes} episodes: left out")
        warnings += [
            f"`{name}` {array.why or 'is no array of this format'}: left out"
            for name, array in self.arrays.items()
            if name not in _ROLES
        ]
        return warnings
