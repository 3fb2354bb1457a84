"""Opening HDF5 files, with h5py's errors translated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.errors import MissingDependency, Rlds2bufError, SourceError, SourceFormatError, SourceNotFound

__all__ = ["check_names", "check_size", "describe_value", "open_hdf5", "read_value", "tree"]

_H5PY_RAISES = (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""A flipped byte in the file's own structure comes out as nearly anything."""

_MOST_COMPRESSION = 10_000
"""Deflate makes at most 1032 bytes of one; other filters make more of constants."""

_SLACK = 1 << 20

MAX_DEPTH = 32
"""Groups nested deeper than this are taken for a cycle of links."""


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open `path` for reading, as an ``h5py.File`` that closes at the end of the block.

    What h5py raises inside the block, where a damaged file may show anywhere, is translated too.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: it is not HDF5, is cut short, or is damaged.
        SourceError: it can't be opened for another reason (permissions).
        MissingDependency: h5py is not installed.
    """
    try:
        import h5py
    except ImportError as cause:
        raise MissingDependency("HDF5 files need h5py: pip install h5py") from cause
    if os.path.exists(path) and not os.path.isfile(path):
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
        try:
            yield file
        except Rlds2bufError:
            raise
        except _H5PY_RAISES as cause:
            raise SourceFormatError(f"{path}: the file is damaged ({type(cause).__name__}: {cause})") from cause


def tree(group: Any, name: str, depth: int = 0) -> Any:
    """The datasets below an HDF5 group as nested dicts; a dataset is itself a leaf.

    Links that lead nowhere and named types are left out.

    Args:
        group: an h5py group or dataset.
        name: what to call it in messages.

    Raises:
        SourceFormatError: the groups nest without end, a name is no text, or a dataset claims more than
            the file can hold.
    """
    import h5py

    if isinstance(group, h5py.Dataset):
        check_size(group)
        return group
    if not isinstance(group, h5py.Group):
        raise SourceFormatError(f"{name}: neither a dataset nor a group, but {group}")
    if depth > MAX_DEPTH:
        raise SourceFormatError(f"{name}: groups nest deeper than {MAX_DEPTH} levels (a link back to itself?)")
    check_names(group, name)
    return {
        key: tree(child, f"{name}/{key}", depth + 1)
        for key, child in group.items()
        if isinstance(child, h5py.Dataset | h5py.Group)
    }


def check_names(group: Any, name: str) -> None:
    """Refuse a group in which something has a name that is no text, as a flipped byte makes one.

    Raises:
        SourceFormatError: there is one.
    """
    if odd := next((key for key in group if not isinstance(key, str)), None):
        raise SourceFormatError(f"{name}: a name in it is no text: {odd!r}")


def check_size(dataset: Any) -> None:
    """Refuse a dataset whose shape, by a damaged byte, is far beyond what is stored: reading would not end.

    Raises:
        SourceFormatError: it is.
    """
    if dataset.shape is None or dataset.external or dataset.is_virtual:
        return
    size = dataset.file.id.get_filesize()
    filters = dataset.id.get_create_plist().get_nfilters()
    if dataset.size * dataset.dtype.itemsize > size * (_MOST_COMPRESSION if filters else 1) + _SLACK:
        claim = f"{dataset.name} claims {dataset.dtype}{list(dataset.shape)}"
        raise SourceFormatError(f"{dataset.file.filename}: {claim}, more than the file of {size:,} bytes can hold")


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
