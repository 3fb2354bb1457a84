"""A buffer as plain values and as files."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlds2buf.buffers.copies import parts_of, require_names, revived
from rlds2buf.buffers.disk.live_folder import LiveFolder
from rlds2buf.errors import SnapshotExists

if TYPE_CHECKING:
    from rlds2buf.buffers.buffer import Buffer

__all__ = ["Saved"]


class Saved:
    """The part of a :class:`~rlds2buf.buffers.buffer.Buffer` that outlives it."""

    _lock: threading.RLock | Any
    _home: LiveFolder | None
    _origin: Path | None
    provenance: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        """A deep copy of everything; :meth:`load_state_dict` restores it, draws included."""
        from rlds2buf.buffers.state import get_state

        with self._lock:
            return get_state(cast("Buffer", self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            SnapshotError: it is of a buffer of another kind, spec or capacity; nothing was changed.
        """
        from rlds2buf.buffers.state import set_state

        with self._lock:
            self._touch()
            set_state(cast("Buffer", self), state)

    def save(
        self, path: str | Path | None = None, *, overwrite: bool = False, provenance: Mapping[str, Any] | None = None
    ) -> None:
        """Write the buffer to a folder that :func:`rlds2buf.load_buffer` opens.

        An interrupted save leaves what was there before.

        Args:
            path: the folder; None for a directory-backed buffer's own, where only the manifest
                is left to write.
            overwrite: replace a saved buffer that is there.
            provenance: plain JSON values to keep with it.

        Raises:
            SnapshotExists: `path` is there already and `overwrite` is False.
            SinkError: the files can't be written.
            ValueError: no path, and the buffer is not directory-backed.
        """
        from rlds2buf.buffers.disk.snapshot import save_buffer

        buffer = cast("Buffer", self)
        with self._lock:
            if provenance is not None:
                self.provenance = dict(provenance)
            if self._home is not None and (path is None or Path(path).resolve() == self._home.path):
                if path is not None and not overwrite:
                    raise SnapshotExists(f"{path}: is this buffer's own folder; save() without a path keeps it whole")
                self._home.save(buffer)
            elif path is not None:
                save_buffer(buffer, Path(path), overwrite=overwrite)
            else:
                raise ValueError("save needs a path: this buffer has no directory of its own")

    def __reduce__(self) -> tuple[Any, ...]:
        """For ``pickle``: rows held, priorities, draws and all; of a buffer in a folder its path."""
        with self._lock:
            parts = parts_of(cast("Buffer", self))
        require_names(parts["functions"])
        return revived, (parts,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A buffer of its own that goes on alike; of one in a folder, all saved, one that reads there."""
        with self._lock:
            return revived(parts_of(cast("Buffer", self)))

    def __copy__(self) -> Any:
        """As a deep copy: two buffers never share rows that one of them may change."""
        return self.__deepcopy__({})

    def _touch(self) -> None:
        """Call before anything that is saved changes."""
        self._origin = None
        if self._home is not None:
            self._home.touch(cast("Buffer", self)._store)
