"""Opening HDF5 files, with h5py's errors translated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.errors import MissingDependency, SourceError, SourceFormatError, SourceNotFound

__all__ = ["describe_value", "open_hdf5", "read_value", "tree"]

MAX_DEPTH = 32
"""Groups nested deeper than this are taken for a cycle of links."""


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open `path` for reading, as an ``h5py.File`` that closes at the end of the block.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: it is not HDF5, or it is cut short.
        SourceError: it can't be opened for another reason (permissions).
        MissingDependency: h5py is not installed.
    """
    try:
        import h5py
    except ImportError as cause:
        raise MissingDependency("HDF5 files need h5py: pip install h5py") from cause
    if path.exists() and not path.is_file():
        raise SourceFormatError(f"{path}: not a file, so no HDF5 file")
    try:
        file = h5py.File(path, "r")
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{path}: no such file") from cause
    except PermissionError as cause:
        raise SourceError(f"{path}: can't be opened: {cause.strerror or cause}") from cause
    except OSError as cause:
        why = "the file is cut short" if "truncated" in str(cause) else "not a readable HDF5 file"
        raise SourceFormatError(f"{path}: {why} ({cause})") from cause
    with file:
        yield file


def tree(group: Any, name: str, depth: int = 0) -> Any:
    """The datasets below an HDF5 group as nested dicts; a dataset is itself a leaf.

    Links that lead nowhere and named types are left out.

    Args:
        group: an h5py group or dataset.
        name: what to call it in messages.

    Raises:
        SourceFormatError: the groups nest without end.
    """
    import h5py

    if isinstance(group, h5py.Dataset):
        return group
    if depth > MAX_DEPTH:
        raise SourceFormatError(f"{name}: groups nest deeper than {MAX_DEPTH} levels (a link back to itself?)")
    return {
        key: tree(child, f"{name}/{key}", depth + 1)
        for key, child in group.items()
        if isinstance(child, h5py.Dataset | h5py.Group)
    }


def read_value(dataset: Any) -> Any:
    """A whole small dataset: bytes for a string, a numpy scalar or array otherwise; None if it has no data."""
    if dataset.shape is None:
        return None
    value = dataset[()]
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes) else value


def describe_value(value: Any) -> Any:
    """A value as plain JSON: text and numbers as they are, arrays by dtype and shape.

    >>> describe_value({"algorithm": b"SAC", "weight": np.zeros((256, 11), np.float32)})
    {'algorithm': 'SAC', 'weight': 'float32[256, 11]'}
    """
    if isinstance(value, dict):
        return {str(key): describe_value(child) for key, child in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return describe_value(value.item())
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
