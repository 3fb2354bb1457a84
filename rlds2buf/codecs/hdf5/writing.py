"""Writing HDF5 files, with h5py's errors translated."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.errors import MissingDependency, SinkError

__all__ = ["SIGNATURE", "Hdf5Group", "Hdf5Writer", "create_hdf5", "find_h5py", "what_is_said"]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""How every HDF5 file begins that has no user block (HDF5 File Format Specification, II.A)."""


def find_h5py() -> Any:
    """The module; asked for before any work is done.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import h5py
    except ImportError as cause:
        raise MissingDependency("HDF5 files need h5py: pip install h5py") from cause
    return h5py


def what_is_said(error: BaseException) -> str:
    """The reason in an error of h5py's; with one of the system's comes a list of offsets, sizes and the time.

    >>> what_is_said(OSError("Can't write (file write failed: time = Sun\\n, errno = 28, error message = 'No space')"))
    'No space'
    """
    found = re.search(r"error message = '([^']*)'", str(error))
    return found[1] if found else " ".join(str(getattr(error, "strerror", None) or error).split())


@contextlib.contextmanager
def create_hdf5(path: Path) -> Iterator[Hdf5Writer]:
    """Write a new file at `path`, over whatever is there.

    The bytes depend on what is written and in which order, and on nothing else: no times are kept.

    Raises:
        SinkError: it can't be written.
        MissingDependency: h5py is not installed.
    """
    h5py = find_h5py()
    try:
        with _Output(path) as output:
            with h5py.File(output, "w") as file:
                yield Hdf5Writer(file, h5py)
            output.check()
    except (OSError, RuntimeError) as cause:
        raise SinkError(f"{path}: {what_is_said(cause)}") from cause


class _Output(io.FileIO):
    """A file for HDF5's library to write, which never hears that it can't be written.

    Told so it can neither close the file nor forget it, and ends the process with a signal when it tries again at
    exit.  So the first error is kept, what comes after it is dropped, and :meth:`check` raises.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            while self._error is None and done < len(view):
                done += super().write(view[done:])
        except OSError as error:
            self._error = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self._error = self._error or error
            return 0

    def flush(self) -> None:
        if not self.closed:
            super().flush()

    def check(self) -> None:
        """Raise the first error there was."""
        if self._error is not None:
            raise self._error


class Hdf5Writer:
    """The datasets, groups and attributes of one file; groups come into being with what is in them."""

    def __init__(self, file: Any, h5py: Any) -> None:
        self._file = file
        self._h5py = h5py
        self._calls = _Calls(file, h5py)

    def rows(self, name: str, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[np.ndarray]) -> None:
        """A dataset, block after block.

        Args:
            name: its path in the file.
            shape: ``[N, ...]``.
            dtype: of the blocks; ``object`` is byte strings without zero bytes.
            blocks: ``[n, ...]`` each, N rows together.
        """
        dataset = self._file.create_dataset(name, shape=shape, dtype=self._stored(dtype), track_times=False)
        done = 0
        for block in blocks:
            if block.size:
                dataset[done : done + len(block)] = block
            done += len(block)
        assert done == shape[0], f"{name}: {done} of {shape[0]} rows"

    def column(self, name: str, rows: np.ndarray) -> None:
        """A dataset ``[N, ...]`` in one go."""
        dtype = self._stored(rows.dtype)
        if rows.size:
            self._file.create_dataset(name, data=rows, dtype=dtype, track_times=False)
        else:
            self._file.create_dataset(name, shape=rows.shape, dtype=dtype, track_times=False)

    def value(self, name: str, value: Any) -> None:
        """A fact as :mod:`~rlds2buf.io.metadata_values` has them: None, text, or an array."""
        if isinstance(value, np.ndarray):
            self.column(name, value)
            return
        stored = self._h5py.Empty(np.float32) if value is None else value
        dtype = None if value is None else self._h5py.string_dtype()
        self._file.create_dataset(name, data=stored, dtype=dtype, track_times=False)

    def attribute(self, group: str, name: str, value: Any) -> None:
        """A fact as an attribute of a group; bytes stay bytes, text is text."""
        if isinstance(value, bytes):
            value = np.bytes_(value) if value else ""
        if isinstance(value, np.ndarray) and value.dtype == object:
            self._file[group].attrs.create(name, value, dtype=self._h5py.string_dtype())
            return
        self._file[group].attrs[name] = value

    def group(self, name: str) -> Hdf5Group:
        """A new group at the top, for many small things."""
        return Hdf5Group(self, name, self._calls)

    def _stored(self, dtype: np.dtype) -> Any:
        return self._h5py.string_dtype() if dtype.kind == "O" else dtype


class Hdf5Group:
    """A new group, its groups, datasets and attributes; what is written is what :class:`Hdf5Writer` writes.

    Args:
        writer: of the file.
        name: the group's.
        calls: the library's own.
    """

    def __init__(self, writer: Hdf5Writer, name: str, calls: _Calls) -> None:
        self._writer = writer
        self._name = name
        self._calls = calls
        self._groups = {"": calls.group(None, name)}

    def column(self, name: str, rows: np.ndarray) -> None:
        """As :meth:`Hdf5Writer.column`."""
        parent, _, last = name.rpartition("/")
        self._calls.dataset(self._group(parent), last, rows)

    def value(self, name: str, value: Any) -> None:
        """As :meth:`Hdf5Writer.value`."""
        self._writer.value(f"{self._name}/{name}", value)

    def attribute(self, name: str, value: Any) -> None:
        """As :meth:`Hdf5Writer.attribute`."""
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
            self._calls.attribute(self._groups[""], name, np.asarray(value))
        else:
            self._writer.attribute(self._name, name, value)

    def group(self, name: str) -> None:
        """A group in it, though there may be nothing in that."""
        self._group(name)

    def _group(self, path: str) -> Any:
        found = self._groups.get(path)
        if found is None:
            parent, _, last = path.rpartition("/")
            found = self._groups[path] = self._calls.group(self._group(parent), last)
        return found


class _Calls:
    """The library's own calls, with all that they are given made once: h5py's usual ones take six times as long.

    Args:
        file: the open ``h5py.File``.
        h5py: the module.
    """

    def __init__(self, file: Any, h5py: Any) -> None:
        self._top = file.id
        self._h5d, self._h5g, self._h5a, self._h5s, self._h5t = h5py.h5d, h5py.h5g, h5py.h5a, h5py.h5s, h5py.h5t
        self._string = h5py.string_dtype()
        self._dataset_list = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._dataset_list.set_obj_track_times(False)
        self._utf8 = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        self._utf8.set_char_encoding(self._h5t.CSET_UTF8)
        self._types = functools.lru_cache(self._type)
        self._spaces = functools.lru_cache(self._h5s.create_simple)

    def group(self, parent: Any, name: str) -> Any:
        """A new one; None for the file's top."""
        links = None if name.isascii() else self._utf8
        return self._h5g.create(self._top if parent is None else parent, _encoded(name), lcpl=links)

    def dataset(self, parent: Any, name: str, rows: np.ndarray) -> None:
        """A new one of these values."""
        stored, in_memory = self._types(rows.dtype)
        space = self._spaces(rows.shape)
        dataset = self._h5d.create(parent, _encoded(name), stored, space, dcpl=self._dataset_list)
        if rows.size:
            rows = rows.astype(self._string) if rows.dtype == object else np.ascontiguousarray(rows)
            dataset.write(self._h5s.ALL, self._h5s.ALL, rows, in_memory)

    def attribute(self, group: Any, name: str, value: np.ndarray) -> None:
        """A new one of numbers."""
        stored, in_memory = self._types(value.dtype)
        attribute = self._h5a.create(group, _encoded(name), stored, self._spaces(value.shape))
        attribute.write(value, mtype=in_memory)

    def _type(self, dtype: np.dtype) -> tuple[Any, Any]:
        """How values are stored, and how they are in memory."""
        dtype = self._string if dtype.kind == "O" else dtype
        return self._h5t.py_create(dtype, logical=True), self._h5t.py_create(dtype)


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
