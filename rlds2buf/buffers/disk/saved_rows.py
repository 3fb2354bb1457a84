"""The columns of a saved buffer, opened: for the buffer that goes on with them, and for who only reads rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.buffers.disk.live_folder import live_blobs
from rlds2buf.buffers.disk.manifest import inside
from rlds2buf.buffers.rows.columns import saved_columns
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import SnapshotCorrupt, SpecMismatch
from rlds2buf.files.column_file import MappedFiles, checksum, open_column

__all__ = ["is_of_rows", "open_columns", "open_rows"]

_VERIFY_BELOW = 1 << 28


def is_of_rows(name: str) -> bool:
    """Whether a column is the rows' and not their sampler's."""
    return not name.startswith("sampler/")


def open_columns(
    folder: Path,
    manifest: Mapping[str, Any],
    *,
    verify: bool | None = None,
    writable: bool = False,
    private: Callable[[dict[str, np.ndarray]], None] | None = None,
) -> tuple[dict[str, Any], MappedFiles]:
    """All columns of a saved buffer by their names, memory-mapped, and their files, to be looked after.

    Args:
        folder: of the buffer.
        manifest: its own.
        verify: compare every column's checksum; None does it below 256 MiB.
        writable: whether they are to be written in place.
        private: called with the columns by their names before anything is read of them, as arrays that can be written
            to without changing the files; what is returned has these, read-only.

    Raises:
        SnapshotCorrupt: a file is missing, damaged, or not what the manifest says.
    """
    files: dict[str, tuple[Path, int | None]] = {}
    arrays: dict[str, Any] = {}
    try:
        for entry in manifest["columns"]:
            name, file = entry["name"], inside(folder, manifest["data"], entry["file"])
            files[name] = file, entry["crc32c"]
            how = {"writable": writable, "private": private is not None}
            arrays[name] = open_column(file, tuple(entry["shape"]), entry["dtype"], **how)
    except (KeyError, TypeError, ValueError) as cause:
        raise SnapshotCorrupt(f"{folder}: its manifest does not describe a buffer: {cause}") from cause
    if private is not None:
        private(dict(arrays))
        for name, array in arrays.items():
            arrays[name] = array.view()
            arrays[name].flags.writeable = False
    if verify or (verify is None and sum(array.nbytes for array in arrays.values()) < _VERIFY_BELOW):
        for name, (file, crc) in files.items():
            if crc is not None and checksum(arrays[name]) != crc:
                raise SnapshotCorrupt(f"{file}: its checksum does not match, it was changed or damaged")
    mapped = MappedFiles(list(arrays.values()))
    arrays.update(live_blobs(folder, manifest, arrays))
    return arrays, mapped


def open_rows(folder: Path, manifest: Mapping[str, Any], *, verify: bool | None = None) -> RowStore:
    """The rows of a saved buffer of one agent, to be read and not written; its sampler is left alone.

    Args, Raises: as :func:`open_columns`.
    """
    columns = [entry for entry in manifest["columns"] if is_of_rows(entry["name"])]
    arrays, mapped = open_columns(folder, {**manifest, "columns": columns}, verify=verify)
    try:
        store = RowStore(StepSpec.from_json(manifest["spec"]), 0)
        arrays, vocabularies = saved_columns(store, manifest["strings"], arrays)
        store.adopt(arrays, base=manifest["base"], oldest=manifest["oldest"], newest=manifest["newest"])
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, SpecMismatch) as cause:
        raise SnapshotCorrupt(f"{folder}: its manifest and files do not fit together: {cause!r}") from cause
    store.vocabularies, store.mapped = vocabularies, mapped
    return store
