"""What a Zarr store holds, told by its metadata alone: folders and zip archives, of version 2 and of version 3.

Sources: https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html and .../v3/core/index.html
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.core.dtypes import parse_dtype
from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound
from rlds2buf.files.fingerprint import fingerprint_files

__all__ = ["ArrayInfo", "Store"]

_MAX_JSON = 50_000_000
_MOST_SAMPLED = 4096
_SAMPLED = 256
_MAX_DEPTH = 16
_MOST_NAMES = 10_000
_TEXT_CODECS = ("vlen-utf8", "vlen-bytes")
_TEXTS = ("string", "bytes", "variable_length_bytes")
"""Data types of version 3."""


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
    """An array, as its metadata tell it.

    Attributes:
        path: in the store, ``"data/img"``.
        version: of its metadata, 2 or 3.
        shape: ``(N, ...)``.
        chunk: of what lies in the store as one thing.
        step: how many rows are decoded together: fewer than those of `chunk` where that is a shard.
        dtype: in memory, native byte order; text is ``object``.
        why: why it makes no column, or None.
        codecs: names of the codecs, in the order of the metadata, each with its configuration.
        prefix, separator: of the names of its chunks.
    """

    path: str
    version: int
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    step: int
    dtype: np.dtype
    why: str | None
    codecs: tuple[tuple[str, dict[str, Any]], ...]
    prefix: str
    separator: str

    @property
    def row_shape(self) -> tuple[int, ...]:
        """One row's."""
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        """Of one row in memory."""
        return self.dtype.itemsize * math.prod(self.row_shape)

    @property
    def is_blosc(self) -> bool:
        """Whether what is stored of a chunk is what blosc packed."""
        if self.version == 3:
            return bool(self.codecs) and self.codecs[-1][0] == "blosc"
        return "blosc" in [name for name, _ in self.codecs[-1:]]

    def chunks(self, number: int) -> Iterator[str]:
        """The keys of all chunks that hold the rows of the chunks of a number on the first axis."""
        rest = (range(-(-size // part)) for size, part in zip(self.row_shape, self.chunk[1:], strict=True))
        for place in itertools.product([number], *rest):
            yield f"{self.path}/{self.prefix}{self.separator.join(map(str, place))}"


class Store:
    """A folder, or a zip archive, that holds a Zarr group.

    Args:
        path: of it.

    Raises:
        SourceNotFound: nothing is there.
        SourceFormatError: it is a file, and no zip archive that can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive: zipfile.ZipFile | None = None
        if path.is_dir():
            return
        if not os.path.exists(path):
            raise SourceNotFound(f"{path}: no such file or folder")
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as cause:
            raise SourceFormatError(f"{path}: neither a folder nor a readable zip archive ({cause})") from cause

    @property
    def is_zip(self) -> bool:
        """Whether it is an archive."""
        return self._archive is not None

    @functools.cached_property
    def _members(self) -> frozenset[str]:
        return frozenset(self._archive.namelist()) if self._archive is not None else frozenset()

    @functools.cached_property
    def _levels(self) -> dict[str, set[str]]:
        """What lies below each folder of an archive."""
        found: dict[str, set[str]] = {}
        for member in self._members:
            folder, _, name = member.rstrip("/").rpartition("/")
            while name and name not in found.setdefault(folder, set()):
                found[folder].add(name)
                folder, _, name = folder.rpartition("/")
        return found

    def has(self, key: str) -> bool:
        """Whether there is something of this key."""
        return key in self._members if self.is_zip else os.path.isfile(self.path / key)

    def head(self, key: str, count: int) -> tuple[bytes, int]:
        """The first bytes of something, and how many it has."""
        if self._archive is not None:
            with self._archive.open(key) as member:
                return member.read(count), self._archive.getinfo(key).file_size
        with open(self.path / key, "rb") as file:
            return file.read(count), file.seek(0, os.SEEK_END)

    def names(self, folder: str) -> list[str]:
        """What lies in a folder of it, sorted; nothing, if that is none."""
        if self.is_zip:
            return sorted(self._levels.get(folder, ()))
        try:
            with os.scandir(self.path / folder) as entries:
                return sorted(entry.name for entry, _ in zip(entries, range(_MOST_NAMES), strict=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def json(self, key: str) -> dict[str, Any] | None:
        """A file of metadata; None if there is none.

        Raises:
            SourceFormatError: it is no JSON object.
        """
        if not self.has(key):
            return None
        try:
            value = parse_json(self._bytes(key))
        except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as cause:
            raise SourceFormatError(f"{self.path}: {key}: no readable metadata ({cause})") from cause
        if not isinstance(value, dict):
            raise SourceFormatError(f"{self.path}: {key}: metadata should be a JSON object")
        return value

    def array(self, path: str) -> ArrayInfo | None:
        """The array of a path; None if there is none.

        Raises:
            SourceFormatError: its metadata are damaged.
        """
        told, version = self.json(f"{path}/.zarray"), 2
        if told is None:
            told, version = self.json(f"{path}/zarr.json"), 3
        if told is None or (version == 3 and told.get("node_type") != "array"):
            return None
        try:
            return _version_2(path, told) if version == 2 else _version_3(path, told)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as cause:
            raise SourceFormatError(f"{self.path}: {path}: its metadata are damaged ({cause!r})") from cause

    def tree(self, path: str, depth: int = 0) -> Any:
        """The arrays below a group as nested dicts; an array is itself a leaf; None if there is neither.

        Raises:
            SourceFormatError: metadata are damaged, or groups nest without end.
        """
        found = self.array(path)
        if found is not None:
            return found
        if depth > _MAX_DEPTH:
            raise SourceFormatError(f"{self.path}: {path}: groups nest deeper than {_MAX_DEPTH} levels")
        children = {name: self.tree(f"{path}/{name}", depth + 1) for name in self.names(path) if name[0] != "."}
        return {name: child for name, child in children.items() if child is not None} or None

    def fingerprint(self) -> str:
        """As :func:`~rlds2buf.files.fingerprint.fingerprint_files`; of very many files some, and how many there are."""
        if self.is_zip:
            return fingerprint_files([self.path])
        files = sorted(path for path in self.path.rglob("*") if path.is_file())
        if len(files) <= _MOST_SAMPLED:
            return fingerprint_files(files)
        told = [path for path in files if path.name.startswith((".z", "zarr.json")) or path.parent.name == "meta"]
        evenly = files[:: len(files) // _SAMPLED]
        size = sum(path.stat().st_size for path in files)
        return f"{fingerprint_files([*told[:_MOST_SAMPLED], *evenly])}:{len(files)}:{size}"

    @functools.cached_property
    def size(self) -> int:
        """How many bytes it takes."""
        if self.is_zip:
            return self.path.stat().st_size
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def close(self) -> None:
        """Let go of the archive; idempotent."""
        if self._archive is not None:
            self._archive.close()

    def _bytes(self, key: str) -> bytes:
        if self._archive is not None:
            if self._archive.getinfo(key).file_size > _MAX_JSON:
                raise ValueError("it is too large")
            return self._archive.read(key)
        if (self.path / key).stat().st_size > _MAX_JSON:
            raise ValueError("it is too large")
        try:
            return (self.path / key).read_bytes()
        except OSError as cause:
            raise SourceError(f"{self.path / key}: can't be read: {cause.strerror or cause}") from cause


def _version_2(path: str, told: dict[str, Any]) -> ArrayInfo:
    shape, chunk = _lengths(told["shape"], 0), _lengths(told["chunks"], 1)
    given = [*(told.get("filters") or []), *([told["compressor"]] if told.get("compressor") else [])]
    codecs = tuple((str(codec["id"]), codec) for codec in given)
    names = [name for name, _ in codecs]
    kind, why = _numpy_type(told["dtype"])
    if why is None and kind == np.dtype(object) and told["dtype"][1:2] == "O" and not set(names) & set(_TEXT_CODECS):
        why = "holds Python objects, which are pickled and never loaded"
    if "pickle" in names:
        why = "holds Python objects, which are pickled and never loaded"
    _check(shape, chunk)
    separator = str(told.get("dimension_separator", "."))
    return ArrayInfo(path, 2, shape, chunk, chunk[0] if chunk else 1, kind, why, codecs, "", separator)


def _version_3(path: str, told: dict[str, Any]) -> ArrayInfo:
    grid, keys = told["chunk_grid"], told["chunk_key_encoding"]
    if grid["name"] != "regular":
        raise ValueError(f"a {grid['name']} grid of chunks")
    shape, chunk = _lengths(told["shape"], 0), _lengths(grid["configuration"]["chunk_shape"], 1)
    codecs = tuple((str(codec["name"]), dict(codec.get("configuration") or {})) for codec in told["codecs"])
    step = chunk[0] if chunk else 1
    for name, given in codecs:
        if name == "sharding_indexed":
            step = _lengths(given["chunk_shape"], 1)[0]
    is_default = keys["name"] == "default"
    separator = str((keys.get("configuration") or {}).get("separator", "/" if is_default else "."))
    kind, why = _numpy_type(told["data_type"])
    _check(shape, chunk)
    return ArrayInfo(path, 3, shape, chunk, step, kind, why, codecs, f"c{separator}" if is_default else "", separator)


def _lengths(value: Any, least: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and least <= n < 1 << 62 for n in value):
        raise ValueError(f"{str(value)[:60]} should be a list of lengths")
    return tuple(value)


def _check(shape: tuple[int, ...], chunk: tuple[int, ...]) -> None:
    if len(shape) != len(chunk):
        raise ValueError(f"chunks of {len(chunk)} axes for an array of {len(shape)}")


def _numpy_type(told: Any) -> tuple[np.dtype, str | None]:
    """The type in memory, and why values of it are no column."""
    if told in _TEXTS:
        return np.dtype(object), None
    if isinstance(told, dict):  # an extension of version 3: {"name": ..., "configuration": ...}
        fixed = told.get("name") in ("null_terminated_bytes", "fixed_length_utf32")
        return np.dtype(object), None if fixed else f"holds {str(told.get('name'))[:40]}, which is no column of steps"
    if not isinstance(told, str):
        return np.dtype(object), "holds structures, which are no column of steps"
    kind = parse_dtype(told)
    if kind.kind in "SU" or kind == np.dtype(object):
        return np.dtype(object), None
    if kind.kind not in "biufc":
        return np.dtype(object), f"holds {kind}, which is no column of steps"
    return kind.newbyteorder("="), None
