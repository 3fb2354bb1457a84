"""HDF5 files, opened and read no further than they may be, with h5py's errors translated."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.writing import find_h5py, what_is_said
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.errors import (
    Rlds2bufError,
    SourceError,
    SourceFormatError,
    SourceNotFound,
)

__all__ = [
    "EXTERNAL",
    "H5PY_RAISES",
    "Hdf5File",
    "as_numpy",
    "check_names",
    "describe_value",
    "is_dataset",
    "is_group",
    "open_hdf5",
]

EXTERNAL = ("refuse", "allow")
"""What becomes of data that a file has elsewhere, outside of its folder."""

H5PY_RAISES = (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""A flipped byte in the file's own structure comes out as nearly anything."""

_MOST_COMPRESSION = 10_000
"""Deflate makes at most 1032 bytes of one; other filters make more of constants."""

_SLACK = 1 << 20
_MAX_DEPTH = 32
"""Groups nested deeper than this are taken for a cycle of links."""

_MAX_LINKS = 16
_HARD = 0
"""H5L_TYPE_HARD."""

_LEAST_STRINGS = 64
_SMALL_PART = 10
"""What is smaller than the budget by so many powers of two is not looked into."""


@contextlib.contextmanager
def open_hdf5(path: Path, *, budget: Budget = BUDGET, external: str = "refuse") -> Iterator[Hdf5File]:
    """Open `path` for reading; it closes at the end of the block.

    What h5py raises inside the block, where a damaged file may show anywhere, is translated too.

    Args:
        path: the file.
        budget: what one record of it may take.
        external: see :data:`EXTERNAL`.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: it is not HDF5, is cut short, or is damaged.
        SourceError: it can't be opened for another reason (permissions).
        MissingDependency: h5py is not installed.
        ValueError: no such choice of `external`.
    """
    choice("external", external, EXTERNAL)
    h5py = find_h5py()
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
        raise SourceFormatError(f"{path}: {why} ({what_is_said(cause)})") from cause
    with file:
        try:
            yield Hdf5File(file, path, budget, is_free=external == "allow")
        except Rlds2bufError:
            raise
        except H5PY_RAISES as cause:
            raise SourceFormatError(
                f"{path}: the file is damaged ({type(cause).__name__}: {what_is_said(cause)})"
            ) from cause


class Hdf5File:
    """An open file, of which every object and value is had through here.

    HDF5 files may lead elsewhere: by external links, by storage in other files, by virtual datasets.
    That is followed inside the file's own folder, elsewhere only where it is free to.  Groups and
    datasets may claim any size; what reading them takes is held against the budget before.  And the
    library reads zeros behind the end of a file, so after each reading the file must be as long as ever.

    Args:
        file: the open ``h5py.File``.
        path: as the user names it.
        budget: for each record.
        is_free: whether what it leads to may lie anywhere.
    """

    def __init__(self, file: Any, path: Path, budget: Budget, *, is_free: bool = False) -> None:
        self.root = file
        self.path = path
        self.budget = budget
        self._is_free = is_free
        self._folders = {os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path))}
        self._descriptor = int(file.id.get_vfd_handle()) if file.driver == "sec2" else None
        self.size = self._length()
        self._others: dict[str, int] = {}
        self.new_record()

    def __iter__(self) -> Iterator[str]:
        """The names at the top."""
        return iter(self.root)

    def visit(self, see: Callable[[str], None]) -> None:
        """Show each name at the top, of which there may be millions, without keeping them.

        Args:
            see: called with each, in alphabetical order; one that is not UTF-8 is escaped.
        """
        self.root.id.links.iterate(lambda name: see(name.decode("utf-8", "backslashreplace")))

    def __len__(self) -> int:
        return len(self.root)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    # -- finding ------------------------------------------------------------------------------

    def get(self, name: str, below: Any = None) -> Any:
        """A group, dataset or named type by its path; None if there is none, or links lead nowhere.

        Args:
            name: names joined by ``/``.
            below: the group to begin at; None for the top.

        Raises:
            SourceFormatError: it lies in a file that may not be read, or below something that is no group.
        """
        return self._follow(self.root if below is None else below, name, 0)

    def tree(self, item: Any, name: str) -> Any:
        """The datasets below a group as nested dicts; a dataset is itself a leaf.

        Links that lead nowhere and named types are left out.

        Args:
            item: a group or dataset.
            name: what to call it in messages.

        Raises:
            SourceFormatError: the groups nest without end, one is there twice, a name is no text, or a
                dataset claims more than the file can hold.
            LimitExceeded: there are too many.
        """
        return self._tree(item, name, 0, {}, Tally(self.budget))

    def _tree(self, item: Any, name: str, depth: int, seen: dict[Any, str], tally: Tally) -> Any:
        tally.objects(1, name)
        if is_dataset(item):
            self.check(item)
            return item
        if not is_group(item):
            raise SourceFormatError(f"{name}: neither a dataset nor a group, but {item}")
        if depth > _MAX_DEPTH:
            raise SourceFormatError(f"{name}: groups nest deeper than {_MAX_DEPTH} levels")
        place = _place(item)
        if place in seen:  # with each level of such groups there would be twice as much
            raise SourceFormatError(f"{name}: the same group as {seen[place]}, and a group of fields is read once")
        seen[place] = name
        check_names(item, name)
        found = ((key, self._step(item, key, 0)) for key in item)
        return {
            key: self._tree(child, f"{name}/{key}", depth + 1, seen, tally)
            for key, child in found
            if is_dataset(child) or is_group(child)
        }

    def _follow(self, group: Any, path: str, links: int) -> Any:
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not is_group(group):
                raise SourceFormatError(f"{self.path}: {group.name} should be a group, it is {group}")
            group = self._step(group, name, links)
            if group is None:
                return None
        return group

    def _step(self, group: Any, name: str, links: int) -> Any:
        """What a group has by a name; of links, every file that they lead through is asked for."""
        own = group.id.links
        if links > _MAX_LINKS or not own.exists(name.encode()):
            return None
        if own.get_info(name.encode()).type == _HARD:
            return group.get(name)
        link = group.get(name, getlink=True)
        if hasattr(link, "filename"):
            return self._elsewhere(group, name, link, links)
        return self._follow(group.file if link.path.startswith("/") else group, link.path, links + 1)

    def _elsewhere(self, group: Any, name: str, link: Any, links: int) -> Any:
        what = f"{group.name.rstrip('/')}/{name} (an external link)"
        folder = os.path.dirname(os.path.realpath(group.file.filename))
        # Where the library looks.
        places = [os.path.join(folder, link.filename), os.path.join(folder, os.path.basename(link.filename))]
        there = next(filter(os.path.exists, [*places, os.path.abspath(link.filename)]), None)
        if there is None:
            return None
        self._permit(there, what)
        with type(self.root)(there, "r") as file:  # whose links may lead on
            if self._follow(file, link.path, links + 1) is None:
                return None
        found = group.get(name)
        if found is not None:
            self._permit(found.file.filename, what)
        return found

    def _permit(self, there: str, what: str) -> None:
        """Refuse a file that is not in the folder; note how long it is.

        Raises:
            SourceFormatError: it is not.
        """
        real = os.path.realpath(there)
        inside = os.path.isfile(real) and any(os.path.commonpath([own, real]) == own for own in self._folders)
        if not (inside or self._is_free):
            raise SourceFormatError(
                f"{self.path}: {what} leads to {there}, which is no file in the dataset's folder; "
                "external='allow' reads it"
            )
        if os.path.isfile(real):
            self._others.setdefault(real, os.path.getsize(real))

    # -- sizes --------------------------------------------------------------------------------

    def check(self, dataset: Any) -> None:
        """Refuse a dataset that lies in files that may not be read, or whose shape no bytes stand behind.

        A damaged byte makes such a shape, and reading would not end.

        Raises:
            SourceFormatError, LimitExceeded: it does.
        """
        if dataset.shape is None:
            return
        kept = dataset.id.get_create_plist()
        most = _MOST_COMPRESSION if kept.get_nfilters() else 1
        is_elsewhere = kept.get_external_count() or dataset.is_virtual
        size = dataset.size * dataset.dtype.itemsize
        if not is_elsewhere and size <= min(self.size * most + _SLACK, self.budget.max_bytes):
            return
        claim = f"{self.path}: {dataset.name} claims {dataset.dtype}{list(dataset.shape)}"
        if is_elsewhere:
            stored = self._stored_elsewhere(dataset, set())
            if dataset.external and size > stored:
                raise SourceFormatError(f"{claim}, more than the {stored:,} bytes that its files hold")
            self.budget.check_bytes(size - stored * _MOST_COMPRESSION, f"{claim}, which")
            return
        if size > self.size * most + _SLACK:
            held = os.path.getsize(dataset.file.filename)  # another one, if a link leads there
            if size > held * most + _SLACK:
                raise SourceFormatError(f"{claim}, more than the file of {held:,} bytes can hold")
        if size > self.budget.max_bytes and most > 1:
            stored = dataset.id.get_storage_size()
            self.budget.check_bytes(size - stored * _MOST_COMPRESSION, f"{claim}, which")
            chunk = int(np.prod(dataset.chunks, dtype=object)) * dataset.dtype.itemsize
            self.budget.check_bytes(chunk, f"{self.path}: a chunk of {dataset.name}")

    def _stored_elsewhere(self, dataset: Any, seen: set[tuple[str, str]]) -> int:
        """How many bytes lie in the files of a dataset, by whatever way; each other file is asked for."""
        if dataset.external:
            return sum(self._held(dataset, *part) for part in dataset.external)
        if not dataset.is_virtual:
            return self._stored(dataset)
        return sum(self._source(dataset, part.file_name, part.dset_name, seen) for part in dataset.virtual_sources())

    def _held(self, dataset: Any, name: str, offset: int, size: int) -> int:
        """What there is of a piece of external storage."""
        there = os.path.abspath(name)
        self._permit(there, f"{dataset.name} (external storage)")
        return min(size, max(0, os.path.getsize(there) - offset)) if os.path.isfile(there) else 0

    def _source(self, dataset: Any, name: str, path: str, seen: set[tuple[str, str]]) -> int:
        """What there is of a piece of a virtual dataset; each of its sources counts once."""
        what = f"{dataset.name} (a virtual dataset)"
        if "%" in name + path and not self._is_free:
            raise SourceFormatError(f"{self.path}: {what} is of {name}, a pattern of names; external='allow' reads it")
        own = os.path.realpath(dataset.file.filename)
        if "%" in name + path:  # files and datasets with numbers in their names, of which some may be yet to come
            return 0
        folder = os.path.dirname(own)
        # Where the library looks; it fills with zeros what it does not find.
        places = [os.path.join(folder, name), os.path.join(folder, os.path.basename(name)), os.path.abspath(name)]
        there = next(filter(os.path.exists, [own] if name == "." else places), None)
        if there is None:
            raise SourceFormatError(f"{self.path}: {what} is of {name}, which is not there")
        if (there, path) in seen:
            return 0
        seen.add((there, path))
        if name != ".":
            self._permit(there, what)
        with type(self.root)(there, "r") as file:
            source = self._follow(file, path, 0)
            if not is_dataset(source):
                raise SourceFormatError(f"{self.path}: {what} is of {path} in {there}, where no such dataset is")
            return self._stored_elsewhere(source, seen)

    def _stored(self, dataset: Any) -> int:
        """How many bytes of a dataset lie in its file."""
        return min(int(dataset.id.get_storage_size()), os.path.getsize(dataset.file.filename))

    def new_record(self) -> None:
        """What is claimed from now on is another record's."""
        self._tally = Tally(self.budget)
        self._claims: list[tuple[Any, int]] = []
        self._claimed = 0

    def claim(self, dataset: Any, rows: int | None = None) -> None:
        """Refuse to read a dataset, or some rows of it, if the record would then take too much.

        What lies in the file as it is does not count: it is no larger in memory.

        Raises:
            LimitExceeded: it would.
        """
        size = dataset.size * dataset.dtype.itemsize
        if rows is not None:
            size = size * rows // max(1, dataset.shape[0])
        if dataset.dtype.kind in "OS":
            self._tally.objects(dataset.size if rows is None else rows, f"{self.path}: {dataset.name}")
        self._claimed += size
        if size > self.budget.max_bytes >> _SMALL_PART:
            self._claims.append((dataset, size))
        if self._claimed > self.budget.max_bytes:
            # One dataset may be there by several names, but its bytes once.
            lie = {_place(one): min(size, self._stored(one)) for one, size in self._claims if not _is_elsewhere(one)}
            excess = self._claimed - sum(lie.values())
            self.budget.check_bytes(excess, f"{self.path}: {dataset.name}, with the rest of its record,")

    # -- reading ------------------------------------------------------------------------------

    def read(self, dataset: Any) -> Any:
        """A whole dataset: what is read like this is a record's together until the :meth:`new_record`.

        Raises:
            SourceFormatError: it has no data, can't be read, or the file became shorter.
            LimitExceeded: it would take too much memory.
        """
        if dataset.shape is None:
            raise SourceFormatError(f"{self.path}: {dataset.name} has no data")
        self.check(dataset)
        self.claim(dataset)
        return self._values(dataset, None)

    def read_into(self, dataset: Any, out: np.ndarray) -> None:
        """As :meth:`read`, into an array of the dataset's shape and dtype that is there.

        Raises:
            SourceFormatError, LimitExceeded: as :meth:`read`.
        """
        self.check(dataset)
        self.claim(dataset)
        with self._reading(dataset):
            dataset.read_direct(out)

    def rows(self, dataset: Any, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` up to (not with) ``stop`` of a dataset that is read piece by piece.

        Raises:
            SourceFormatError: they can't be read, or the file became shorter.
        """
        found = self._values(dataset, slice(start, stop))
        if len(found) != stop - start:
            raise SourceFormatError(f"{self.path}: {dataset.name} ends early; did the file change?")
        return np.asarray(found)

    def value(self, dataset: Any) -> Any:
        """A whole small dataset: bytes for a string, a numpy scalar or array otherwise; None if it has no data."""
        if not is_dataset(dataset):
            raise SourceFormatError(f"{self.path}: {dataset.name} is a group, where a value belongs")
        value = None if dataset.shape is None else self.read(dataset)
        if isinstance(value, str):
            return value.encode()
        return bytes(value) if isinstance(value, bytes) else value

    def place(self, dataset: Any) -> tuple[int, int] | None:
        """Where the rows of a dataset lie as plain numbers of this machine's kind, one behind the other.

        Returns:
            This file's descriptor, and the byte of the first row; None if they do not, or it can't be told.

        Raises:
            SourceFormatError: the file ends before them.
        """
        if self._descriptor is None or not hasattr(os, "preadv") or not _is_plain(dataset, self.root):
            return None
        offset = dataset.id.get_offset()
        if offset is None:
            return None
        if offset + dataset.size * dataset.dtype.itemsize > self._length():
            raise SourceFormatError(f"{self.path}: {dataset.name} is cut short; did the file change?")
        return self._descriptor, int(offset)

    # -- without the library --------------------------------------------------------------------

    @functools.cached_property
    def is_flat(self) -> bool:
        """Whether addresses in it are plain offsets of eight bytes, for :meth:`raw`."""
        if self._descriptor is None or not hasattr(os, "preadv"):
            return False
        made = self.root.id.get_create_plist()
        return bool(made.get_userblock() == 0 and made.get_sizes() == (8, 8))

    def addresses(self, names: Iterable[str], below: Any = None) -> np.ndarray:
        """``[N] int64``: where the headers of things in a group lie; -1 for those that are there by a link, or not.

        Args:
            names: of them.
            below: the group, which is in this file; None for the top.
        """
        links = (self.root if below is None else below).id.links
        out = []
        for name in names:
            try:
                info = links.get_info(name.encode())
            except (KeyError, RuntimeError):
                out.append(-1)
                continue
            out.append(int(info.u) if info.type == _HARD else -1)
        return np.array(out, np.int64)

    def raw(self, start: int, size: int, room: np.ndarray | None = None) -> np.ndarray:
        """``[n] uint8``: so many bytes of the file, or as many as there are.

        Args:
            start, size: which.
            room: ``uint8``, at least as many, which they are read into; None for memory of their own.

        Raises:
            SourceFormatError: the file became shorter.
        """
        assert self._descriptor is not None
        count = max(0, min(size, self.size - start))
        out = np.empty(count, np.uint8) if room is None else room[:count]
        left = memoryview(out.data)
        while left:
            count = os.preadv(self._descriptor, [left], start + len(out) - len(left))
            if not count:
                break
            left = left[count:]
        self.require_whole()
        return out

    def _values(self, dataset: Any, rows: slice | None) -> Any:
        with self._reading(dataset, rows):
            if dataset.dtype.kind == "O" and dataset.shape:
                return self._strings(dataset, rows or slice(0, dataset.shape[0]))
            return dataset[() if rows is None else rows]

    @contextlib.contextmanager
    def _reading(self, dataset: Any, rows: slice | None = None) -> Iterator[None]:
        """Say what can't be read, and see afterwards that it was all there."""
        try:
            yield
        except (OSError, RuntimeError) as cause:
            part = "" if rows is None else f", rows {rows.start} to {rows.stop - 1}"
            raise SourceFormatError(
                f"{self.path}: {dataset.name}{part} can't be read ({what_is_said(cause)})"
            ) from cause
        self.require_whole()

    def _strings(self, dataset: Any, rows: slice) -> np.ndarray:
        """Values of any length, some at a time: many may be one and the same in the file."""
        width = max(1, dataset.size // max(1, dataset.shape[0]))
        most = max(_LEAST_STRINGS, self.budget.max_bytes // max(1, self.size))
        step = max(1, most // width)
        parts = []
        taken = 0
        for start in range(rows.start, max(rows.stop, rows.start + 1), step):
            part = dataset[start : min(start + step, rows.stop)]
            taken += sum(getattr(value, "nbytes", 0) or len(value) for value in part.reshape(-1))
            if taken > self.size:
                self.budget.check_bytes(taken, f"{self.path}: {dataset.name}")
            parts.append(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def require_whole(self) -> None:
        """Refuse what was read if a file has become shorter: the library reads zeros there.

        Raises:
            SourceFormatError: it has.
        """
        now = self._length()
        if now < self.size:
            raise SourceFormatError(
                f"{self.path}: became shorter while it was read, from {self.size:,} bytes to {now:,}"
            )
        for name, size in self._others.items():
            if not os.path.isfile(name) or os.path.getsize(name) < size:
                raise SourceFormatError(f"{name}: became shorter while it was read")

    def _length(self) -> int:
        return os.path.getsize(self.path) if self._descriptor is None else os.fstat(self._descriptor).st_size


def is_dataset(item: Any) -> bool:
    """Whether something in a file is a dataset."""
    return hasattr(item, "shape")


def is_group(item: Any) -> bool:
    """Whether something in a file is a group."""
    return hasattr(item, "keys")


def check_names(group: Any, name: str) -> None:
    """Refuse a group in which something has a name that is no text, as a flipped byte makes one.

    Raises:
        SourceFormatError: there is one.
    """
    if odd := next((key for key in group if not isinstance(key, str)), None):
        raise SourceFormatError(f"{name}: a name in it is no text: {odd!r}")


def _place(item: Any) -> tuple[int, int]:
    """What tells an object from every other, by whatever name it was found."""
    import h5py

    info = h5py.h5o.get_info(item.id)
    return int(info.fileno), int(info.addr)


def _is_elsewhere(dataset: Any) -> bool:
    return bool(dataset.external or dataset.is_virtual)


def as_numpy(stored: Any, dtype: np.dtype) -> bool:
    """Whether values of an HDF5 type lie in the file with just the bytes that NumPy has for them.

    Args:
        stored: the ``h5py.h5t.TypeID``.
        dtype: what the library says it is.
    """
    import h5py

    return dtype.kind in "biufcS" and bool(stored.equal(h5py.h5t.py_create(dtype)))


def _is_plain(dataset: Any, file: Any) -> bool:
    """Whether a dataset is one run of numbers in just this file, of just the bytes that NumPy has for them."""
    import h5py

    contiguous = dataset.chunks is None and not _is_elsewhere(dataset) and dataset.size
    if not contiguous or dataset.dtype.kind not in "iuf" or not dataset.dtype.isnative:
        return False
    layout = dataset.id.get_create_plist().get_layout()
    same_bytes = as_numpy(dataset.id.get_type(), dataset.dtype)
    return bool(layout == h5py.h5d.CONTIGUOUS and same_bytes and _place(dataset)[0] == _place(file)[0])


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
