"""The arrays of an .npz file, by name; rows of some of them, read forward side by side; and files written in pieces."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.npy_rows import NpyRows
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.errors import SinkError, SourceError, SourceFormatError, SourceNotFound

__all__ = ["ForwardRows", "members_of", "open_npz", "write_npz"]

_SUFFIX = ".npy"


def members_of(file: Path) -> dict[str, str]:
    """The arrays of an .npz file by name: which member of the archive each is.

    Raises:
        SourceNotFound, SourceFormatError: there is no such file, or it is no archive of arrays.
        SourceError: it can't be opened.
    """
    with _archive(file) as archive:
        return _members(archive, file)


@contextlib.contextmanager
def _archive(file: Path) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(file)
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{file}: no such file") from cause
    except PermissionError as cause:
        raise SourceError(f"{file}: can't be opened: {cause.strerror or cause}") from cause
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError) as cause:
        raise SourceFormatError(f"{file}: no readable .npz file ({cause})") from cause
    with archive:
        yield archive


def _members(archive: zipfile.ZipFile, file: Path) -> dict[str, str]:
    names = [name for name in archive.namelist() if name.endswith(_SUFFIX)]
    if not names:
        raise SourceFormatError(f"{file}: a zip archive without numpy arrays")
    return {name[: -len(_SUFFIX)]: name for name in names}


def open_npz(file: Path, budget: Budget = BUDGET) -> dict[str, NpyRows]:
    """The arrays of an .npz file; only their headers are read.

    Raises:
        SourceNotFound, SourceFormatError, SourceError: as from :func:`members_of`; an array is cut short.
        LimitExceeded: a row of one takes more than the `budget`.
    """
    with _archive(file) as archive:
        return {name: NpyRows(file, member, budget, archive) for name, member in _members(archive, file).items()}


class ForwardRows:
    """Rows of several arrays, read forward; a context manager.

    Args:
        arrays: a nest of :class:`~rlds2buf.codecs.npy_rows.NpyRows`; None stays None.
        start: the first row that is read.
    """

    def __init__(self, arrays: nest.Nest, start: int = 0) -> None:
        self._opened = contextlib.ExitStack()
        self._archives: dict[Path, zipfile.ZipFile] = {}
        self._at = start
        self._readers = nest.map_structure(lambda array: None if array is None else self._reader(array), arrays)

    def _reader(self, array: NpyRows) -> Callable[[int], np.ndarray]:
        """Members of one file share it: whoever opens an archive reads the names of all its members."""
        archive = None
        if array.member is not None:
            archive = self._archives.get(array.file)
            if archive is None:
                archive = self._archives[array.file] = self._opened.enter_context(_archive(array.file))
        return self._opened.enter_context(array.reading(self._at, archive))

    def read(self, stop: int) -> Any:
        """The rows from where the last call ended up to (not with) ``stop``, as a nest of columns ``[n, ...]``.

        Raises:
            SourceFormatError: they can't be read; the message names the array.
        """
        count, self._at = stop - self._at, stop
        return nest.map_structure(lambda reader: None if reader is None else reader(count), self._readers)

    def __enter__(self) -> ForwardRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def write_npz(
    path: Path, arrays: Mapping[str, tuple[tuple[int, ...], np.dtype, Iterable[np.ndarray]]], *, compressed: bool
) -> None:
    """A new file of these arrays, as ``numpy.savez`` writes them, piece by piece; no times are kept.

    Args:
        path: of it.
        arrays: name to shape ``[N, ...]``, type, and blocks ``[n, ...]`` of N rows together.
        compressed: as ``numpy.savez_compressed``.

    Raises:
        SinkError: it can't be written.
    """
    how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    try:
        with zipfile.ZipFile(path, "w", how) as archive:
            for name, (shape, dtype, blocks) in arrays.items():
                info = zipfile.ZipInfo(f"{name}{_SUFFIX}")
                info.compress_type = how
                with archive.open(info, "w", force_zip64=True) as member:
                    told = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(member, told)
                    for block in blocks:
                        member.write(np.ascontiguousarray(block, dtype).data)
    except OSError as cause:
        raise SinkError(f"{path}: {cause.strerror or cause}") from cause
