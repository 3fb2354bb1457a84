"""What lies at a path, as far as a glance tells."""

from __future__ import annotations

import functools
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SourceError

__all__ = ["Look"]

_HDF5 = b"\x89HDF\r\n\x1a\n"
_SIGNATURES = (
    (b"\x1f\x8b", "gzip-compressed data; unpack it first"),
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh", "bzip2-compressed data; unpack it first"),
    (b"\xfd7zXZ\x00", "xz-compressed data; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data; unpack it first"),
    (b"PAR1", "a Parquet file"),
    (b"\x93NUMPY", "a single numpy array"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x80\x02", "a Python pickle, which is never loaded"),
    (b"\x80\x03", "a Python pickle, which is never loaded"),
    (b"\x80\x04", "a Python pickle, which is never loaded"),
    (b"\x80\x05", "a Python pickle, which is never loaded"),
)
_MAX_NAMES = 10_000
_MAX_JSON = 50_000_000


class Look:
    """A file or folder, looked into when asked.

    Args:
        path: where to look.

    Attributes:
        path: the same.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "notes.txt").write_text("hello")
    >>> Look(folder).describe()
    'a folder containing notes.txt'
    >>> Look(folder / "notes.txt").describe()
    'a text file of 5 bytes'
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether there is anything."""
        return os.path.exists(self.path)

    @functools.cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return os.path.isdir(self.path)

    @functools.cached_property
    def names(self) -> list[str]:
        """What a folder holds, sorted (of a huge one, some of it); of a file, nothing."""
        if not self.is_folder:
            return []
        with os.scandir(self.path) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(_MAX_NAMES), strict=False))

    @functools.cached_property
    def head(self) -> bytes:
        """The first 512 bytes of a file; of a folder or a special file, none."""
        if not self.path.is_file():
            return b""
        with open(self.path, "rb") as file:
            return file.read(512)

    @functools.cached_property
    def first_line(self) -> bytes:
        """The first line of a file, at most 1 MiB of it."""
        if not self.path.is_file():
            return b""
        with open(self.path, "rb") as file:
            return file.readline(1 << 20)

    @functools.cached_property
    def parquet(self) -> list[str] | None:
        """The columns of a Parquet file; None if it is none, can't be read, or pyarrow is not installed."""
        if not self.head.startswith(b"PAR1"):
            return None
        from rlds2buf.codecs.arrow.tables import parquet_names

        try:
            return parquet_names(self.path)
        except SourceError:
            return None

    @functools.cached_property
    def archive(self) -> frozenset[str] | None:
        """The names in a zip archive; None if it is none, or damaged."""
        if not self.head.startswith(b"PK\x03\x04"):
            return None
        try:
            with zipfile.ZipFile(self.path) as archive:
                return frozenset(archive.namelist())
        except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError):
            return None

    @functools.cached_property
    def hdf5(self) -> Mapping[str, list[str]] | None:
        """The names at an HDF5 file's top, each with some of those in that group; None if it is no HDF5 file.

        Raises:
            SourceFormatError: it begins as HDF5 and can't be opened.
        """
        if not self._has_hdf5_signature():
            return None
        from rlds2buf.codecs.hdf5.reading import open_hdf5

        with open_hdf5(self.path) as file:
            return _Hdf5Names(self.path, [_as_text(name) for name in file])

    def hdf5_has(self, name: str) -> bool:
        """Whether an HDF5 file has something of that path, for example ``"data/demo_0/obs"``."""
        if not self._has_hdf5_signature():
            return False
        from rlds2buf.codecs.hdf5.reading import open_hdf5

        with open_hdf5(self.path) as file:
            return _peek(file, name) is not None

    def inside(self, *parts: str) -> Look:
        """A look at something in this folder."""
        return Look(self.path.joinpath(*parts))

    def folders(self, depth: int) -> Iterator[Look]:
        """This folder, and those below it down to a depth; of a file, nothing."""
        if not self.is_folder:
            return
        yield self
        if depth:
            for name in self.names:
                yield from self.inside(name).folders(depth - 1)

    def has_names(self, *ends: str) -> bool:
        """Whether it is a file whose name ends so, or a folder with such a name in it."""
        return any(name.lower().endswith(ends) for name in (self.names or [self.path.name]))

    def json(self) -> Any:
        """The file's JSON value; None if it is missing, too large, or no JSON."""
        try:
            if self.path.is_file() and self.path.stat().st_size <= _MAX_JSON:
                return parse_json(self.path.read_bytes())
        except (OSError, ValueError):
            pass
        return None

    def is_tfrecord(self) -> bool:
        """Whether a file begins with a record header whose length fits the file."""
        if len(self.head) < 16:
            return False
        length = int.from_bytes(self.head[:8], "little")
        return 0 < length <= self.path.stat().st_size - 16

    def describe(self) -> str:
        """What is there, for a message that says what was found."""
        if self.is_folder:
            return _listing("a folder", self.names)
        if self.hdf5 is not None:
            return _listing("an HDF5 file", sorted(self.hdf5))
        if not self.path.is_file():
            return "neither a file nor a folder"
        size = f"{self.path.stat().st_size:,} bytes"
        for signature, what in _SIGNATURES:
            if self.head.startswith(signature):
                return f"{what} ({size})"
        if not self.head:
            return "an empty file"
        if self.is_tfrecord():
            return f"TFRecords ({size})"
        if b"\x00" not in self.head:
            kind = "a JSON" if self.head.lstrip()[:1] in (b"{", b"[") else "a text"
            return f"{kind} file of {size}"
        return f"a file of {size} that begins with {self.head[:8].hex(' ')}"

    def _has_hdf5_signature(self) -> bool:
        """At byte 0, or behind a user block of 512 bytes or a power of two times that."""
        if self.head.startswith(_HDF5):
            return True
        if not self.head:
            return False
        size = self.path.stat().st_size
        with open(self.path, "rb") as file:
            for shift in range(9, 17):
                if 1 << shift >= size:
                    break
                file.seek(1 << shift)
                if file.read(len(_HDF5)) == _HDF5:
                    return True
        return False


class _Hdf5Names(Mapping[str, list[str]]):
    """The names at a file's top; what is in a group is looked up when it is asked for."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self._path = path
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> list[str]:
        if name not in self._names:
            raise KeyError(name)
        from rlds2buf.codecs.hdf5.reading import open_hdf5

        with open_hdf5(self._path) as file:
            child = _peek(file, name)
            return sorted(map(_as_text, child))[:20] if hasattr(child, "keys") else []

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _as_text(name: str | bytes) -> str:
    """h5py gives what is not UTF-8 as bytes; escaped, such a name can be shown, and fits nothing."""
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name


def _peek(file: Any, name: str) -> Any:
    """What an HDF5 file has there; None also where that can't be told without looking into other files."""
    try:
        return file.get(name)
    except SourceError:
        return None


def _listing(what: str, names: list[str], most: int = 5) -> str:
    if not names:
        return f"{what} that is empty" if what.startswith("a folder") else f"{what} that holds nothing"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{what} containing {', '.join(names[:most])}{more}"
