"""A buffer whose columns are files that it writes in place."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import rlds2buf
from rlds2buf.buffers.blobs import OBJECT
from rlds2buf.buffers.live_blobs import LiveBlobs, Segment
from rlds2buf.buffers.saving import MemoryColumns, write_tables
from rlds2buf.buffers.state import describe
from rlds2buf.errors import SinkError, SnapshotCorrupt, SnapshotExists
from rlds2buf.files.blob_file import SavedBlobs
from rlds2buf.files.local_path import refuse_address
from rlds2buf.files.manifest import inside, read_manifest, write_manifest

if TYPE_CHECKING:
    from rlds2buf.buffers.buffer import Buffer
    from rlds2buf.buffers.storage import RowStore

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
        ValueError: it is an address.
    """

    def __init__(self, path: Path, *, existing: bool = False) -> None:
        refuse_address(path)
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

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """A column of zeros (or of empty strings) in a new (sparse) file; an Allocator."""
        if 0 in shape and dtype != OBJECT:
            return np.zeros(shape, dtype)
        if dtype == OBJECT:
            places = self.allocate(f"{name}/places", (*shape, 2), np.dtype(np.int64))
            # Named for the file of places, so that no two columns meet.
            stem = self.path / self._data / f"{self._written:03d}-{_plain(name)}"
            return LiveBlobs(stem, places)
        self._written += 1
        plain = _plain(name)
        file = self.path / self._data / f"{self._written:03d}-{plain}.npy"
        try:
            return np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
        except OSError as cause:
            raise SinkError(f"{file}: {cause.strerror or cause}") from cause

    def take_over(self, store: RowStore) -> None:
        """Go on with the byte strings of a saved buffer: what was written stays where it is, new ones come beside."""
        for name, columns, k in store.blob_places():
            saved, stem = columns[k], self.path / self._data / f"taken-{_plain(name)}"
            if isinstance(saved, SavedBlobs):
                places = self.allocate(f"{name}/places", (*saved.shape, 2), np.dtype(np.int64))
                places[...] = saved.places()
                columns[k] = LiveBlobs(stem, places, _segments(saved.data))
                store.layout += 1
            elif isinstance(saved, LiveBlobs):
                saved.stem = stem

    def touch(self) -> None:
        """The buffer is about to change: what is on the disk is no longer whole."""
        if self._clean:
            self._clean = False
            write_manifest(self.path, {**read_manifest(self.path), "clean": False})

    def save(self, buffer: Buffer) -> dict[str, Any]:
        """Flush the columns and write the manifest; files no longer used are removed."""
        entries: list[dict[str, Any]] = []
        used: set[str] = set()
        arrays: dict[str, Any] = {
            **buffer._store.arrays(),
            **{f"sampler/{name}": array for name, array in buffer._sampler.live_arrays().items()},
        }
        tables = MemoryColumns()
        strings = write_tables(buffer._store, tables.column)
        arrays.update(tables.arrays())
        segments: dict[str, list[list[Any]]] = {}
        for name, array in list(arrays.items()):
            if isinstance(array, LiveBlobs):
                array.flush()
                segments[name] = [[self._relative(s.path), s.start, s.size, s.offset] for s in array.segments]
                used.update(str(path) for path, *_ in segments[name])
                arrays[f"{name}/places"] = arrays.pop(name).places
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
            relative = "" if file is None else self._relative(Path(file))
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
            **({"version": 2, "segments": segments} if segments or strings else {}),
            "rlds2buf": rlds2buf.__version__,
        }
        write_manifest(self.path, body)
        self._clean = True
        for file in [*self.path.glob("data-*/*.npy"), *self.path.glob("data-*/*.bytes")]:
            if self._relative(file) not in used:
                file.unlink(missing_ok=True)
        return body

    def _relative(self, file: Path) -> str:
        return str(file.relative_to(self.path))


def live_blobs(folder: Path, manifest: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, LiveBlobs]:
    """The byte strings that a directory-backed buffer left, taking their places from `arrays`.

    Raises:
        SnapshotCorrupt: files are missing, or do not fit together.
    """
    found = {}
    try:
        for name, listed in (manifest.get("segments") or {}).items():
            # Files of segments get removed, too.
            segments = [
                Segment(inside(folder, file), int(start), int(size), int(at)) for file, start, size, at in listed
            ]
            for segment in segments:
                if segment.path.stat().st_size < segment.offset + segment.size:
                    raise SnapshotCorrupt(f"{segment.path}: the file is shorter than the manifest says")
            found[str(name)] = LiveBlobs(folder / "unnamed", arrays.pop(f"{name}/places"), segments)
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as cause:
        raise SnapshotCorrupt(f"{folder}: its byte strings do not fit together: {cause!r}") from cause
    return found


def _segments(data: np.ndarray) -> list[Segment]:
    """A saved column's file of bytes as a segment."""
    if not isinstance(data, np.memmap) or data.filename is None:
        return []
    return [Segment(Path(data.filename), 0, len(data), data.offset)]


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", ".", name)
