"""imitation's rollout files: trajectories one behind the other, and where they are cut."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rlds2buf.errors import SourceFormatError
from rlds2buf.io.npz_source import NpzLayout, NpzSource

__all__ = ["ImitationSource"]


class ImitationSource(NpzSource):
    """Trajectories of an .npz file that imitation saved.

    Source: https://github.com/HumanCompatibleAI/imitation, ``data/types.py``.

    ==================  ======================================================================
    the file            the episode
    ==================  ======================================================================
    ``acts [M, ...]``   the action of each step; the rows of all E trajectories
    ``obs [M + E]``     the observation: one row more of each trajectory, its last one
    ``rews [M]``        the reward; where there is none, None
    ``indices [E - 1]`` where ``acts`` is cut
    ``terminal [E]``    whether the last observation is terminal
    ``infos``           left out: they are pickled, and pickles are never loaded
    ==================  ======================================================================

    The last row has zeros as action and reward.  The discount is 1 (float32), and 0 on the step into a terminal row
    and on that row.  Older versions took the end at a time limit for terminal, too.

    Args:
        path: the file.
        budget: what an episode, and a row, may take beyond the file's size.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file; the message names the array.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "final.npz")
    >>> np.savez(path, obs=np.zeros((7, 3)), acts=np.zeros((5, 1)), indices=[2], terminal=[True, False])
    >>> list(ImitationSource(path))
    [<Episode 0: 3 steps, terminated>, <Episode 1: 4 steps, truncated>]
    """

    format: ClassVar[str] = "imitation"

    def layout(self) -> NpzLayout:
        actions, observations = self.array("acts"), self.array("obs")
        terminal = self.numbers("terminal", "which tells how each trajectory ends") != 0
        cuts = self.numbers("indices", "which tells where trajectories are cut")
        if cuts.dtype.kind not in "iu" and len(cuts):
            raise SourceFormatError(f"{self.name}: `indices` should hold row numbers, got {cuts.dtype}")
        count, episodes = actions.shape[0], len(terminal)
        if len(cuts) != max(episodes - 1, 0):
            raise SourceFormatError(f"{self.name}: `indices` has {len(cuts)} cuts for {episodes} values of `terminal`")
        edges = np.concatenate([[0], cuts.astype(np.int64), [count]]) if episodes else np.zeros(1, np.int64)
        rows = np.diff(edges)
        if (rows < 1).any():
            episode = int(np.argmax(rows < 1))
            low, high = edges[episode : episode + 2].tolist()
            raise SourceFormatError(
                f"{self.name}: `indices`: episode {episode} begins at row {low} of `acts` and ends at row {high}"
            )
        if observations.shape[0] != count + episodes:
            raise SourceFormatError(
                f"{self.name}: `obs` has {observations.shape[0]} rows; it should have {count + episodes}, those of "
                f"`acts` and one more of each of the {episodes} trajectories"
            )
        reward = None
        if "rews" in self.arrays:
            self.same_length(["rews"], count)
            reward = self.number("rews")
        fields = {"observation": observations, "action": actions, "reward": reward}
        return NpzLayout(fields, rows, terminated=terminal, has_final=True)

    def cautions(self) -> list[str]:
        known = ("obs", "acts", "rews", "terminal", "indices")
        return [
            f"`{name}` {array.why or 'is no array of this format'}: left out"
            for name, array in self.arrays.items()
            if name not in known
        ]
