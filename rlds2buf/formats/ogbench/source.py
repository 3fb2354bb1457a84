"""OGBench's .npz files: one flat table of steps, each trajectory with its last state."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rlds2buf.errors import SourceFormatError
from rlds2buf.io.npz_source import NpzLayout, NpzSource

__all__ = ["OgbenchSource"]

_ROLES = ("observations", "actions", "terminals")


class OgbenchSource(NpzSource):
    """Trajectories of an OGBench file (https://github.com/seohongpark/ogbench, ``ogbench/utils.py``).

    ``observations [N, ...]``, ``actions [N, ...]`` and ``terminals [N]`` hold the rows of all trajectories.  A
    terminal marks the *last state* of one, whose action has no successor: that row is an episode's final row here.
    It says nothing of the environment, whose tasks are told by goals, so every end is a cut and `is_terminal` is
    derived.  There are no rewards (OGBench makes them for a task when it loads a file); the reward is None.
    Further arrays of N rows (``qpos``, ``qvel``, ``button_states``) are extras.  The discount is 1 (float32).  The
    trajectories for validation, ``NAME-val.npz``, are opened by their own path.

    Args:
        path: the file.
        budget: what an episode, and a row, may take beyond the file's size.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file; the message names the array.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "pointmaze-v0.npz")
    >>> np.savez(path, observations=np.zeros((5, 2)), actions=np.zeros((5, 2)), terminals=[0, 0, 1, 0, 1])
    >>> list(OgbenchSource(path))
    [<Episode 0: 3 steps, truncated>, <Episode 1: 2 steps, truncated>]
    """

    format: ClassVar[str] = "ogbench"

    def layout(self) -> NpzLayout:
        last = self.flagged("terminals", "which marks the last state of each trajectory")
        count = self.array("observations").shape[0]
        self.same_length(["actions", "terminals"], count)
        others = {name: array for name, array in self.arrays.items() if name not in _ROLES and array.shape}
        self._unfit = {
            name: array.why or f"has {array.shape[0]} rows, not {count}"
            for name, array in others.items()
            if array.why is not None or array.shape[0] != count
        }
        self._is_open = bool(count) and (not len(last) or int(last[-1]) != count - 1)
        ends = np.append(last, count - 1) if self._is_open else last
        fields: dict[str, Any] = {
            "observation": self.arrays["observations"],
            "action": self.arrays["actions"],
            "extras": {name: array for name, array in others.items() if name not in self._unfit},
        }
        if "rewards" in fields["extras"]:
            raise SourceFormatError(f"{self.name}: OGBench's files have no rewards; format='npz' reads a log")
        return NpzLayout(fields, np.diff(ends, prepend=-1), is_open=self._is_open)

    def cautions(self) -> list[str]:
        warnings = ["no rewards, and ends of trajectories are cuts: tasks are told by goals"]
        warnings += [f"`{name}` {why}: left out" for name, why in self._unfit.items()]
        if self._is_open:
            warnings.append("the last trajectory has no end flag; it is kept as truncated")
        return warnings
