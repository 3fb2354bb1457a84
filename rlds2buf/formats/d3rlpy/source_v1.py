"""d3rlpy's first dataset files: one flat table of steps."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from rlds2buf.codecs.hdf5.reading import describe_value
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.formats.d4rl.source import D4rlHdf5Source

__all__ = ["D3rlpyV1Source"]

_SINGLE = ("discrete_action", "version", "create_mask", "mask_size")


class D3rlpyV1Source(D4rlHdf5Source):
    """Episodes of a file that ``MDPDataset.dump`` of d3rlpy 0.2 to 1.1 wrote.

    The layout is D4RL's: ``observations``, ``actions``, ``rewards``, ``terminals`` of N rows; and
    ``episode_terminals`` (since 0.70), set at every row that ends an episode, whether it is terminal
    or not.  Everything else is as in :class:`~rlds2buf.formats.d4rl.source.D4rlHdf5Source`.  What
    becomes of an episode of n rows, here and in d3rlpy, as its number of transitions and the last
    one's successor:

    ============================  ====================  ====================  ======================
    the episode ends in           here                  d3rlpy 1.1            d3rlpy 2.8 (`load_v1`)
    ============================  ====================  ====================  ======================
    both flags                    n, zeros (marked)     n, zeros              n, zeros
    ``episode_terminals`` alone   n-1                   n-1                   n-1
    ``terminals`` alone           n, zeros (marked)     goes on, not ended    n, zeros
    nothing (open tail)           n-1, marked           dropped               dropped
    no ``episode_terminals``      ends at terminals     ends at terminals     ends at terminals
    ============================  ====================  ====================  ======================

    *Marked*: ``metadata["placeholder_final_row"]`` or ``metadata["open_tail"]`` is True.  Values keep
    the file's dtypes (d3rlpy makes them float32 and int32).  ``discrete_action`` and ``version`` are in
    `details`.

    Args:
        path: the file.
        max_episode_steps: cut also after so many rows; for files whose time-outs are not marked.
        external: data that the file has in other files, by links, external storage or virtual datasets:
            ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file.

    >>> import h5py, tempfile
    >>> import numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.h5")
    >>> with h5py.File(path, "w") as file:
    ...     file["observations"] = np.arange(5, dtype=np.float32)[:, None]
    ...     file["actions"] = np.zeros(5, np.int32)
    ...     file["rewards"] = np.ones(5, np.float32)
    ...     file["terminals"] = np.array([0, 0, 1, 0, 0], np.float32)
    ...     file["episode_terminals"] = np.array([0, 0, 1, 0, 1], np.float32)
    ...     file["discrete_action"] = True
    >>> list(D3rlpyV1Source(path))
    [<Episode 0: 4 steps, terminated>, <Episode 1: 2 steps, truncated>]
    """

    format: ClassVar[str] = "d3rlpy-v1"
    _timeouts: ClassVar[str] = "episode_terminals"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_episode_steps: int | None = None,
        external: str = "refuse",
        budget: Budget = BUDGET,
    ) -> None:
        super().__init__(path, max_episode_steps=max_episode_steps, external=external, budget=budget)

    def details(self) -> dict[str, Any]:
        with self._open() as file:
            items = {key: file.get(key) for key in _SINGLE}
            single = {key: describe_value(file.value(item)) for key, item in items.items() if _is_single(item)}
        told = super().details()
        told["episode_terminals"] = told.pop("timeouts")
        told["ignored"] = [key for key in told["ignored"] if key not in single]
        return {**single, **told}


def _is_single(item: Any) -> bool:
    return getattr(item, "shape", None) == ()
