"""Opening saved buffers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import numpy as np

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.disk.following import Follower
from rlds2buf.buffers.disk.manifest import read_manifest
from rlds2buf.buffers.disk.opening import open_saved, open_state
from rlds2buf.buffers.factories import MAKERS
from rlds2buf.buffers.multi_agent.buffer import MultiAgentBuffer
from rlds2buf.buffers.multi_agent.saved import load
from rlds2buf.buffers.vectorized.cost_replay import CostReplay
from rlds2buf.buffers.vectorized.on_policy import OnPolicyBuffer
from rlds2buf.errors import SnapshotError

__all__ = ["load_buffer"]

_B = TypeVar("_B")

_CLASSES: Final = {"cost_replay": CostReplay, "multi_agent": MultiAgentBuffer, "on_policy": OnPolicyBuffer}
"""By the kind that a manifest has; all others are those of :data:`~rlds2buf.buffers.factories.MAKERS`."""
_FUNCTIONS = frozenset({"done_fn", "policy_mapping", "reward_fn"})


@overload
def load_buffer(
    path: str | os.PathLike[str],
    *,
    seed: int | None = None,
    verify: bool | None = None,
    writable: bool = False,
    follow: bool = False,
    expect: None = None,
    **functions: Any,
) -> Buffer: ...
@overload
def load_buffer(
    path: str | os.PathLike[str],
    *,
    seed: int | None = None,
    verify: bool | None = None,
    writable: bool = False,
    follow: bool = False,
    expect: type[_B],
    **functions: Any,
) -> _B: ...
def load_buffer(
    path: str | os.PathLike[str],
    *,
    seed: int | None = None,
    verify: bool | None = None,
    writable: bool = False,
    follow: bool = False,
    expect: type[Any] | None = None,
    **functions: Any,
) -> Any:
    """Open a saved buffer, of whatever class it was.

    The columns are memory-mapped, so this takes milliseconds whatever the size.  Sampling reads
    the files; the first ``add`` copies the rows into memory, and the files never change.

    The files' sizes are compared when they are opened, and up to ten times a second before rows are
    read: one that somebody cut short is an error.  If that happens within a tenth of a second before
    a read, the system ends the process (SIGBUS), as it does where a disk can't be read any more.

    Args:
        path: the folder.
        seed: start the draws anew instead of going on where the saved buffer was.
        verify: compare every column's checksum; None does it below 256 MiB. (Files of a
            directory-backed buffer have none.)
        writable: go on with the files in place, as a directory-backed buffer, of the `durability` that it
            had. One process does that at a time; a buffer of the same process that has nothing unsaved
            gives the folder up.
        follow: read along while another process writes the folder's buffer (one made with a `directory`, or opened with
            `writable`, of durability ``"save"``). What is sampled is of the state that was saved last, exactly,
            whatever is changed meanwhile; each batch looks whether another one was saved, and opens it.  Nothing can be
            added or saved here. `seed` None is one that no other reader has.
        expect: the class that it must be of: ``Buffer``, ``MultiAgentBuffer``, ``OnPolicyBuffer`` or ``CostReplay``.
            None takes any; a type checker then counts on a ``Buffer``, which most are.
        functions: what can't be saved, for kinds that need it (``reward_fn``, ``done_fn``, ``policy_mapping``).

    Raises:
        SourceNotFound: there is no such folder.
        SnapshotCorrupt: it is incomplete or damaged, or a process has changed it and not saved it yet.
        SnapshotExists: `writable`, and somebody else writes it.
        SnapshotError: it is of another class than expected, or needs a function that was not given.
        SnapshotTooNew: a newer rlds2buf wrote it.
        SinkError: what a killed process left can't be put back as it was last saved.
        TypeError, ValueError: `seed` is none, or a function is one that no buffer, or not this kind, takes; or both
            `follow` and `writable` are given.

    >>> import tempfile
    >>> import rlds2buf
    >>> from rlds2buf import Episode
    >>> ep = Episode(observation=np.arange(4.0), action=np.zeros(4), is_terminal=[False, False, False, True])
    >>> buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 100)
    >>> keys = buffer.add(ep)
    >>> folder = Path(tempfile.mkdtemp()) / "saved"
    >>> buffer.save(folder)
    >>> len(load_buffer(folder, seed=0))
    3
    """
    _check_arguments(seed, functions)
    folder = Path(path)
    manifest = read_manifest(folder)
    found = _CLASSES.get(manifest["kind"], Buffer)
    if expect is not None and not issubclass(found, expect):
        raise SnapshotError(f"{folder}: holds a saved {found.__name__}, expected was a saved {expect.__name__}")
    if follow and writable:
        raise ValueError("a buffer that follows a folder does not write it: give one of follow and writable")
    if found is not Buffer and follow:
        raise SnapshotError(f"{folder}: a {found.__name__} is saved as a whole, and can't be followed")
    if found is not Buffer and writable:
        raise SnapshotError(f"{folder}: a {found.__name__} is not kept in files that can be gone on with in place")
    if found is MultiAgentBuffer:
        return MultiAgentBuffer(load(folder, manifest, seed=seed, verify=verify, **functions))
    if "policy_mapping" in functions:
        raise TypeError(f"{folder}: the buffer takes no policy_mapping, for it is of one agent")
    if found is OnPolicyBuffer or found is CostReplay:
        if functions:
            raise TypeError(f"{folder}: a {found.__name__} takes no {min(functions)}: it knows no goals")
        return open_state(folder, manifest, found.of_saved, seed=seed, verify=verify)
    if follow:
        return Follower(folder, MAKERS, seed=seed, verify=verify, functions=functions).buffer
    return open_saved(folder, manifest, MAKERS, seed=seed, verify=verify, writable=writable, functions=functions)


def _check_arguments(seed: Any, functions: Mapping[str, Any]) -> None:
    """Say what is wrong with arguments before anything of it is taken for a damaged buffer."""
    np.random.default_rng(seed)
    unknown = set(functions) - _FUNCTIONS
    if unknown:
        raise TypeError(f"load_buffer has no option {min(unknown)!r}; functions are {', '.join(sorted(_FUNCTIONS))}")
