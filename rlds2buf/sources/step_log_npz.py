"""Logs as numpy arrays: an .npz file, several of them, or a folder of .npy files."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.sources.json_episodes import FOLLOWING
from rlds2buf.sources.json_values import common
from rlds2buf.sources.npy_rows import NpyRows
from rlds2buf.sources.step_log import StepLogSource
from rlds2buf.sources.step_table import BLOCK_BYTES, Block, Table, log_files

__all__ = ["NpzTable", "StepLogNpzSource"]

SUFFIX: Final = ".npz"


class StepLogNpzSource(StepLogSource):
    """Steps in numpy arrays ``[N, ...]``: the members of an .npz file, or the .npy files of a folder.

    A folder of .npz files is one log; no episode goes over from one file to the next.  Most arrays
    have N rows; others can't be fields, but a file with a single episode may have an observation more
    than steps.  Single values (``[]``) are the metadata of the file's episodes.  Names with a slash
    (``observation/arm``) nest.  Arrays of objects are pickles, which are never loaded.  See
    :class:`~rlds2buf.sources.step_log.StepLogSource` for what columns become, and for the arguments.

    Raises:
        SourceNotFound, SourceFormatError: as there.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.npz"
    >>> np.savez(path, obs=np.zeros((4, 2)), act=np.zeros(4, int), rew=np.ones(4), timeouts=[0, 1, 0, 1])
    >>> list(StepLogNpzSource(path))
    [<Episode 0: 2 steps, truncated>, <Episode 1: 2 steps, truncated>]
    """

    format: ClassVar[str] = "npz"

    def _open(self) -> Table:
        return NpzTable(self.path)


@dataclasses.dataclass(frozen=True)
class _Part:
    """One file's arrays: how many rows its columns have, and which have one more."""

    arrays: dict[str, NpyRows]
    rows: int
    longer: frozenset[str]


class NpzTable(Table):
    """Arrays as columns.

    Args:
        path: an .npz file, a folder of them, or a folder of .npy files.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.following, self.oddities, self.notes = {}, {}, []
        self.columns, self.unfit = {}, {}
        self._parts: list[_Part] = []
        loose = path.is_dir() and not any(child.suffix == SUFFIX for child in path.iterdir())
        self.files = log_files(path, (".npy",) if loose else (SUFFIX,))
        if loose:
            self._add({file.stem: NpyRows(file) for file in self.files})
        else:
            for file in self.files:
                self._add({name: NpyRows(file, member) for name, member in _members(file).items()})
        counts = [part.rows for part in self._parts]
        self.borders = (np.cumsum(counts) - counts).astype(np.int64)
        self.count = sum(counts)
        for name in list(self.columns):
            if all(name in part.longer for part in self._parts):
                self.following = {**self.following, name: name + FOLLOWING}
            elif any(name in part.longer for part in self._parts):
                self.unfit[name] = "has one row more than there are steps in some files only"
                del self.columns[name]
        self.by_borders = bool(self.following)

    def blocks(self, names: Sequence[str], start: int = 0) -> Iterator[Block]:
        for begin, part in zip(self.borders.tolist(), self._parts, strict=True):
            if begin + part.rows <= start:
                continue
            first = max(0, start - begin)
            width = sum(self._spec(name).row_bytes for name in names)
            step = max(1, BLOCK_BYTES // max(1, width))
            with contextlib.ExitStack() as stack:
                readers = {}
                for name in names:
                    moved = name not in self.columns and name.endswith(FOLLOWING)
                    array = part.arrays[name[: -len(FOLLOWING)] if moved else name]
                    readers[name] = stack.enter_context(array.reading(first + moved))
                for low in range(first, part.rows, step):
                    count = min(step, part.rows - low)
                    yield begin + low, {name: self._cast(read(count), name) for name, read in readers.items()}

    def _spec(self, name: str) -> FieldSpec:
        return self.columns[name if name in self.columns else name[: -len(FOLLOWING)]]

    def _cast(self, values: np.ndarray, name: str) -> np.ndarray:
        return values.astype(self._spec(name).dtype, copy=False)

    def _add(self, arrays: dict[str, NpyRows]) -> None:
        """Take up one file: its columns must be those of the files before."""
        where = next(iter(arrays.values())).file if arrays else Path(self.name)
        lengths = [array.shape[0] for array in arrays.values() if array.shape and array.why is None]
        if not lengths:
            reasons = "; ".join(f"`{name}` {array.why}" for name, array in arrays.items() if array.why)
            raise SourceFormatError(f"{where}: no array of steps in it{': ' + reasons if reasons else ''}")
        counted = collections.Counter(lengths)
        rows = max(counted, key=lambda length: (counted[length], length))
        if counted[rows - 1] == counted[rows]:
            rows -= 1  # as many with a last observation more
        columns: dict[str, FieldSpec] = {}
        notes: dict[str, Any] = {}
        longer: set[str] = set()
        for name, array in arrays.items():
            if array.why is not None:
                self.unfit[name] = array.why
            elif not array.shape:
                notes[name] = array.value()
            elif array.shape[0] not in (rows, rows + 1):
                self.unfit[name] = f"has {array.shape[0]} rows, where most have {rows}"
            else:
                columns[name] = FieldSpec(array.shape[1:], array.dtype)
                longer.update({name} if array.shape[0] == rows + 1 else ())
        self._merge(columns, where)
        self.notes.append(notes)
        self._parts.append(_Part(arrays, rows, frozenset(longer)))

    def _merge(self, columns: dict[str, FieldSpec], where: Path) -> None:
        if not self._parts:
            self.columns = columns
            return
        if columns.keys() != self.columns.keys():
            name = sorted(columns.keys() ^ self.columns.keys())[0]
            what = "is missing" if name in self.columns else "is not in the files before"
            raise SourceFormatError(f"{where}: `{name}` {what}")
        for name, spec in columns.items():
            both = common(self.columns[name], spec)
            if both is None:
                raise SourceFormatError(f"{where}: `{name}` is {spec}, but before it is {self.columns[name]}")
            self.columns[name] = both


def _members(file: Path) -> dict[str, str]:
    """The arrays of an .npz file by name: which member of the archive each is."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError) as cause:
        raise SourceFormatError(f"{file}: no readable .npz file ({cause})") from cause
    if not names:
        raise SourceFormatError(f"{file}: a zip archive without numpy arrays")
    return {name[: -len(".npy")]: name for name in names}
