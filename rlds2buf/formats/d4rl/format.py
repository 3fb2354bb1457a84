"""D4RL's files, told by the names of their columns."""

from __future__ import annotations

from rlds2buf.io.format import Format
from rlds2buf.io.look import Look

__all__ = ["FORMATS", "has_columns"]

_COLUMNS = {"observations", "actions", "rewards", "terminals"}


def has_columns(look: Look) -> bool:
    """Whether an HDF5 file has at least two of the columns that every such file has."""
    return look.hdf5 is not None and len(_COLUMNS & set(look.hdf5)) >= 2


FORMATS = (
    Format(
        "d4rl",
        "a D4RL HDF5 file",
        source="rlds2buf.formats.d4rl.source:D4rlHdf5Source",
        sink="rlds2buf.formats.d4rl.sink:D4rlHdf5Sink",
        fits=has_columns,
        takes=("budget", "reward_shift"),
        target_suffixes=(".hdf5", ".h5"),
        told_by="observations, actions, rewards and terminals at the top",
        near=lambda look: 3 * (look.hdf5 is not None),
    ),
)
