"""Readers of a directory-backed buffer that another process goes on writing.

A reader has what the writer saved last, exactly, and goes over to what is saved next.  The columns are the
writer's own files, mapped privately: where the writer changes rows of the saved state, it keeps what they were in
its undo file first (see buffers/disk/undo.py), and the reader puts that into its own pages.  So a batch is read, and
then the reader looks whether rows were kept, or another state was saved, meanwhile; if so, it reads again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from rlds2buf.buffers.disk.manifest import manifest_mark, read_manifest
from rlds2buf.buffers.disk.opening import of_columns
from rlds2buf.buffers.disk.saved_rows import open_columns
from rlds2buf.buffers.disk.undo import UndoReader, settled
from rlds2buf.buffers.engine import Engine, HasEngine
from rlds2buf.core import forks
from rlds2buf.errors import ReplayError, SnapshotCorrupt, SnapshotError
from rlds2buf.files.folder_lock import writer_of

__all__ = ["Follower"]

_R = TypeVar("_R")

_TRIES: Final = 100
"""Each is another one because the writer did something in the microseconds in between."""


class _State:
    """One saved state, opened.

    Args:
        folder: of the buffer.
        manifest: its own.
        mark: of that manifest's file.
        make: a buffer of the manifest and of the columns, with the rows as they are in them.
        verify: as for ``load_buffer``.

    Attributes:
        buffer: of its rows.
        engine: the buffer's.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        mark: Any,
        make: Callable[[Mapping[str, Any], Any, Any], HasEngine],
        verify: bool | None,
    ) -> None:
        self.folder, self.manifest, self.mark = folder, manifest, mark
        self._undo: UndoReader | None = None
        self._own: dict[str, np.ndarray] = {}
        arrays, mapped = open_columns(folder, manifest, verify=verify, private=self._take)
        while True:  # what an engine knows of its rows it found out from whole ones
            self.buffer: Any = make(manifest, dict(arrays), mapped)
            self.engine = self.buffer.engine
            if not self._put_back():
                break

    def is_whole(self) -> bool:
        """Whether the rows, as they were read until now, were those of the saved state; where not, they are now.

        Raises:
            SnapshotCorrupt: the folder has another state by now, or none.
        """
        mark = manifest_mark(self.folder)
        if mark == self.mark:
            return not self._put_back()
        manifest = read_manifest(self.folder)
        if _saved(manifest) != _saved(self.manifest):
            raise SnapshotCorrupt(f"{self.folder}: another state was saved")
        self.manifest, self.mark = manifest, mark
        self._read_undo()
        return False

    def close(self) -> None:
        """Let go of the undo file."""
        if self._undo is not None:
            self._undo.close()

    def _take(self, columns: dict[str, np.ndarray]) -> None:
        self._own = columns
        self._read_undo()

    def _read_undo(self) -> None:
        self.close()
        told = self.manifest.get("undo")
        self._undo = None
        if not self.manifest.get("clean", True):
            if told is None:
                raise SnapshotError(
                    f"{self.folder}: its writer keeps nothing of what it changes (durability='none'), so nobody can "
                    "read along; make it with durability='save'"
                )
            self._undo = UndoReader(self.folder, told, self._own)
        self._put_back()

    def _put_back(self) -> bool:
        return self._undo is not None and self._undo.put_back()


class Follower:
    """Stands for the engine of a buffer that follows a folder: whatever is read is of the state saved last.

    Args:
        folder: of the buffer.
        makers: the factories there are, by the kind of their buffers.
        seed: of the draws; None for one that no other reader has.
        verify: compare checksums, as ``load_buffer`` does.
        functions: that the kind needs.

    Attributes:
        buffer: which has it as its engine.

    Raises:
        SourceNotFound, SnapshotError, SnapshotCorrupt: as ``load_buffer`` says.
    """

    def __init__(
        self,
        folder: Path,
        makers: Mapping[str, Callable[..., HasEngine]],
        *,
        seed: Any = None,
        verify: bool | None = None,
        functions: Mapping[str, Any],
    ) -> None:
        self.folder, self.functions = folder.resolve(), dict(functions)
        self.lock: Any = threading.RLock()
        self._makers, self._verify = makers, verify
        self._seed = np.random.SeedSequence().entropy if seed is None else seed
        self._state = self._opened(None)
        self.buffer: Any = self._state.buffer
        self.buffer.engine = self
        forks.register(self, Follower._forked, lock=lambda follower: follower.lock)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._state.engine, name)

    def draw(self, *args: Any) -> Any:
        """As :meth:`Engine.draw`."""
        return self._read(lambda engine: engine.draw(*args))

    def draw_many(self, *args: Any) -> Any:
        """As :meth:`Engine.draw_many`."""
        return self._read(lambda engine: engine.draw_many(*args))

    def draw_together(self, *args: Any) -> Any:
        """As :meth:`Engine.draw_together`."""
        return self._read(lambda engine: engine.draw_together(*args))

    def refresh(self) -> None:
        """Go over to what was saved last."""
        self._read(lambda engine: None)

    def get(self, *args: Any) -> Any:
        """As :meth:`Engine.get`."""
        return self._read(lambda engine: engine.get(*args))

    def at_once(self, read: Callable[[Engine], _R]) -> _R:
        """As :meth:`Engine.at_once`; the function may be called more than once."""
        return self._read(read)

    def state(self) -> Any:
        """As :meth:`Engine.state`."""
        return self._read(lambda engine: engine.state())

    def touch(self, *_: Any, **__: Any) -> Any:
        """Refuse a change.

        Raises:
            ReplayError: always.
        """
        raise ReplayError(
            f"{self.folder}: this buffer follows the one that is written there, and is neither changed nor saved; "
            "load_buffer(path) has what was saved last as a buffer of its own"
        )

    prepare = add = set_state = change_goals = write = touch

    def _read(self, read: Callable[[Engine], _R]) -> _R:
        """What was read of one saved state, exactly: the one that is the last as far as is known."""
        with self.lock:
            for _ in range(_TRIES):
                state = self._state
                try:
                    if state.mark == manifest_mark(self.folder) or state.is_whole():
                        found = read(state.engine)
                        if state.is_whole():
                            return found
                except (SnapshotCorrupt, OSError):
                    if manifest_mark(self.folder) == state.mark:
                        raise
                    self._state = self._opened(state.engine)
                    state.close()
        raise ReplayError(f"{self.folder}: it is saved and changed faster than a batch is read")

    def _opened(self, before: Engine | None) -> _State:
        for left in range(_TRIES, 0, -1):
            mark = manifest_mark(self.folder)
            manifest = read_manifest(self.folder)
            try:
                if not manifest.get("clean", True) and writer_of(self.folder) is None:
                    manifest, mark = settled(self.folder, manifest), manifest_mark(self.folder)
                state = _State(self.folder, manifest, mark, self._of_columns, self._verify)
                break
            except (SnapshotCorrupt, OSError):
                if left == 1 or mark == manifest_mark(self.folder):
                    raise
        if before is not None:
            state.engine.rng, state.engine.seed = before.rng, before.seed
            state.engine.sampled = before.sampled
        return state

    def _of_columns(self, manifest: Mapping[str, Any], arrays: Any, mapped: Any) -> HasEngine:
        return of_columns(
            self.folder, manifest, arrays, mapped, self._makers, seed=self._seed, functions=self.functions
        )

    def _forked(self, number: int) -> None:
        """This is a child now: see core/forks.py."""
        self.lock = threading.RLock()


def _saved(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of the saved state, and not of what became of it."""
    return {key: value for key, value in manifest.items() if key not in ("clean", "undo")}
