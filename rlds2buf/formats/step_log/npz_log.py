"""Logs as numpy arrays: an .npz file, several of them, or a folder of .npy files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from rlds2buf.codecs.npy_rows import NpyRows
from rlds2buf.codecs.npz import members_of
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.formats.step_log.array_table import ArrayTable
from rlds2buf.formats.step_log.source import StepLogSource
from rlds2buf.formats.step_log.table import BLOCK_BYTES, Block, Table, log_files

__all__ = ["NpzTable", "StepLogNpzSource"]

SUFFIX: Final = ".npz"


class StepLogNpzSource(StepLogSource):
    """Steps in numpy arrays ``[N, ...]``: the members of an .npz file, or the .npy files of a folder.

    A folder of .npz files is one log; no episode goes over from one file to the next.  Most arrays
    have N rows; others can't be fields, but a file with a single episode may have an observation more
    than steps.  Single values (``[]``) are the metadata of the file's episodes.  Names with a slash
    (``observation/arm``) nest.  Arrays of objects are pickles, which are never loaded.  See
    :class:`~rlds2buf.formats.step_log.source.StepLogSource` for what columns become, and for the arguments.

    Raises:
        SourceNotFound, SourceFormatError: as there.

    >>> import tempfile
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "log.npz"
    >>> np.savez(path, obs=np.zeros((4, 2)), act=np.zeros(4, int), rew=np.ones(4), timeouts=[0, 1, 0, 1])
    >>> list(StepLogNpzSource(path))
    [<Episode 0: 2 steps, truncated>, <Episode 1: 2 steps, truncated>]
    """

    format: ClassVar[str] = "npz"

    def _open(self) -> Table:
        return NpzTable(self.path, self._budget)


class NpzTable(ArrayTable[NpyRows]):
    """Arrays in files as columns.

    Args:
        path: an .npz file, a folder of them, or a folder of .npy files.
        budget: see :class:`~rlds2buf.codecs.npy_rows.NpyRows`.
    """

    def __init__(self, path: Path, budget: Budget = BUDGET) -> None:
        super().__init__(str(path))
        loose = path.is_dir() and not any(child.suffix == SUFFIX for child in path.iterdir())
        self.files = log_files(path, (".npy",) if loose else (SUFFIX,))
        if loose:
            self.add({file.stem: NpyRows(file, None, budget) for file in self.files})
        else:
            for file in self.files:
                self.add({name: NpyRows(file, member, budget) for name, member in members_of(file).items()})
        self.finish()

    def blocks(self, names: Sequence[str], start: int = 0) -> Iterator[Block]:
        origins = {name: self.origin(name) for name in names}
        dtypes = {name: self.columns[own].dtype for name, (own, _) in origins.items()}
        for begin, part in zip(self.starts, self.parts, strict=True):
            if begin + part.rows <= start:
                continue
            first = max(0, start - begin)
            step = max(1, BLOCK_BYTES // max(1, sum(part.arrays[own].row_bytes for own, _ in origins.values())))
            with contextlib.ExitStack() as stack:
                readers = {
                    name: stack.enter_context(part.arrays[own].reading(first + moved))
                    for name, (own, moved) in origins.items()
                }
                for low in range(first, part.rows, step):
                    count = min(step, part.rows - low)
                    yield (
                        begin + low,
                        {name: read(count).astype(dtypes[name], copy=False) for name, read in readers.items()},
                    )
