"""A buffer whose columns are files that it writes in place."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import rlds2buf
from rlds2buf.buffers.state import describe
from rlds2buf.errors import SinkError, SnapshotExists
from rlds2buf.files.manifest import read_manifest, write_manifest

if TYPE_CHECKING:
    from rlds2buf.buffers.buffer import Buffer

__all__ = ["LiveFolder"]


class LiveFolder:
    """The folder of a directory-backed buffer.

    Columns are memory-mapped files, so the buffer may be larger than memory.  They change as the
    buffer does; :meth:`save` writes the manifest that makes them a saved buffer again, and the
    first change after it marks the manifest, so that files left behind by a killed process are not
    taken for a whole buffer.

    Args:
        path: the folder; created.
        existing: whether it holds a saved buffer that is to go on.

    Raises:
        SnapshotExists: the folder holds something already.
        SinkError: it can't be made.
    """

    def __init__(self, path: Path, *, existing: bool = False) -> None:
        self.path = path = path.resolve()
        self._clean = existing
        self._written = 0
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not existing and any(path.iterdir()):
                raise SnapshotExists(
                    f"{path}: holds something already; load_buffer(writable=True) goes on with a buffer "
                    "that was saved, and what was never saved can only be removed"
                )
            self._data = f"data-{uuid.uuid4().hex[:12]}"
            (path / self._data).mkdir()
        except OSError as cause:
            raise SinkError(f"{path}: {cause.strerror or cause}") from cause

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """A column of zeros in a new (sparse) file; an Allocator."""
        if 0 in shape:
            return np.zeros(shape, dtype)
        self._written += 1
        plain = re.sub(r"[^\w.-]+", ".", name)
        file = self.path / self._data / f"{self._written:03d}-{plain}.npy"
        try:
            return np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
        except OSError as cause:
            raise SinkError(f"{file}: {cause.strerror or cause}") from cause

    def touch(self) -> None:
        """The buffer is about to change: what is on the disk is no longer whole."""
        if self._clean:
            self._clean = False
            write_manifest(self.path, {**read_manifest(self.path), "clean": False})

    def save(self, buffer: Buffer) -> dict[str, Any]:
        """Flush the columns and write the manifest; files no longer used are removed."""
        entries, used = [], set()
        arrays = {
            **buffer._store.arrays(),
            **{f"sampler/{name}": array for name, array in buffer._sampler.live_arrays().items()},
        }
        for name, array in arrays.items():
            file = getattr(array, "filename", None)
            if file is None:  # kept in memory (a sampler's, or an empty column): a copy goes beside the others
                copy = self.allocate(name, array.shape, array.dtype)
                if 0 not in array.shape:
                    copy[...] = array
                array = copy
                file = getattr(copy, "filename", None)
            if isinstance(array, np.memmap):
                array.flush()
            relative = "" if file is None else str(Path(file).relative_to(self.path))
            used.add(relative)
            shape = list(array.shape)
            entries.append({"name": name, "file": relative, "dtype": array.dtype.str, "shape": shape, "crc32c": None})
        body = {
            **describe(buffer),
            "base": buffer._store.base,
            "data": ".",
            "columns": entries,
            "clean": True,
            "provenance": buffer.provenance,
            "rlds2buf": rlds2buf.__version__,
        }
        write_manifest(self.path, body)
        self._clean = True
        for file in self.path.glob("data-*/*.npy"):
            if str(file.relative_to(self.path)) not in used:
                file.unlink(missing_ok=True)
        return body
