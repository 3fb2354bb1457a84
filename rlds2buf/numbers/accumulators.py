"""Numbers of a dataset that goes by in blocks: kept by dimension, within a budget of memory, then counted.

What is kept of a field is its values, ``[D, rows]``: exact quantiles need all of them.  Sums are taken when all are
there, in a tree that depends on nothing but the order of the rows: :data:`LEAF` rows at a time, and those of these
leaves in numpy's pairwise order.  So however the rows came (in which blocks, in how many parts that were joined),
the result is the same to the last bit.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Final

import numpy as np

from rlds2buf.errors import SinkError
from rlds2buf.numbers.quantiles import LEVELS, order_statistics, places, weighted

__all__ = ["LEAF", "ColumnNumbers", "Columns", "Spool", "moments"]

LEAF: Final = 4096
"""Rows that are added up together, counted from the first row of the dataset."""

_BLOCK: Final = LEAF * 16
"""Rows that are looked at together: what is made of them stays in the processor's memory, and is given back by no
system call."""


_TILE: Final = 512
"""Rows that are turned together: lines of as many columns fit into the processor's nearest memory."""

_Piece = np.ndarray | tuple[IO[bytes], int, int]
"""Values ``[D, rows]``: held, or in which file from where on, and how many rows."""


@dataclasses.dataclass(frozen=True)
class ColumnNumbers:
    """What is known of the values of a field, by dimension.

    Attributes:
        count: ``[D] int64``, how many values are finite; only those are counted in what follows.
        min, max: ``[D]`` of the field's own type.
        mean, std: ``[D] float64``, of the population (ddof 0).
        quantiles: ``[q, D] float64``, at :data:`~rlds2buf.numbers.quantiles.LEVELS`.

    Of a dimension without a finite value, all but the count are NaN (0 in integers).
    """

    count: np.ndarray
    min: np.ndarray
    max: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    quantiles: np.ndarray


class Spool:
    """Where the values of several fields are kept: in memory, and in a file as soon as that is full.

    The file has no name and is gone with the process, however that ends.

    Args:
        memory: bytes that are held; the rest goes to the file.
        folder: where the file is; by default that of temporary files (``TMPDIR``).

    >>> with Spool(memory=1 << 20) as spool:
    ...     column = spool.columns((2,), np.dtype(np.float32))
    ...     assert column.add(np.array([[1, 2], [3, 2]], np.float32))
    ...     column.numbers().mean.tolist(), column.numbers().max.tolist()
    ([2.0, 2.0], [3.0, 2.0])
    """

    def __init__(self, memory: int = 1 << 30, folder: str | None = None) -> None:
        self.memory = memory
        self._folder = folder
        self._held = 0
        self._all: list[Columns] = []
        self._file: IO[bytes] | None = None
        self._end = 0

    def columns(self, shape: tuple[int, ...], dtype: np.dtype) -> Columns:
        """For the values of one more field, whose rows are of this shape and type."""
        made = Columns(self, shape, dtype)
        self._all.append(made)
        return made

    def grow(self, size: int) -> None:
        """So many bytes more are held.

        Raises:
            SinkError: the file can't be written.
        """
        self._held += size
        if self._held > self.memory:
            self._held = 0
            for columns in self._all:
                columns.let_go()

    def write(self, values: np.ndarray) -> tuple[IO[bytes], int]:
        """Append an array to the file; returns that, and where the array begins there."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
            start = self._end
            left = memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
            while left:
                written = os.pwrite(self._file.fileno(), left, self._end)
                left, self._end = left[written:], self._end + written
        except OSError as cause:
            where = self._folder or tempfile.gettempdir()
            message = f"{where}: {cause.strerror or cause}; the values are kept there while they are counted (TMPDIR)"
            raise SinkError(message) from cause
        return self._file, start

    def close(self) -> None:
        """Let go of everything; idempotent."""
        self._all = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Columns:
    """The values of one field, by dimension; made by :meth:`Spool.columns`.

    Attributes:
        shape: of one row.
        dtype: of the values that are kept: the field's own, long doubles as float64.
        rows: how many there are.
    """

    def __init__(self, spool: Spool, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape = shape
        kept = np.dtype(dtype).newbyteorder("=")
        self.dtype = np.dtype(np.float64) if kept.kind == "f" and kept.itemsize > 8 else kept
        if self.dtype.kind not in "biuf":
            raise TypeError(f"numbers are counted, not {dtype}")
        self.rows = 0
        self._spool = spool
        self._width = int(np.prod(shape, dtype=np.int64))
        self._pieces: list[_Piece] = []
        self._is_finite = np.ones(self._width, np.bool_)

    def add(self, rows: np.ndarray) -> bool:
        """Count ``[m, ...]`` rows; they are copied.

        Returns:
            Whether all of their values are finite; those that are not are left out.

        Raises:
            SinkError: what does not fit into the memory can't be written.
        """
        if not len(rows):
            return True
        flat = rows.reshape(len(rows), self._width)
        is_finite = self.dtype.kind != "f" or bool(np.isfinite(flat).all())
        if not is_finite:
            self._is_finite &= np.isfinite(flat).all(axis=0)
        piece = np.empty((self._width, len(rows)), self.dtype)
        for start in range(0, len(rows), _TILE):
            piece[:, start : start + _TILE] = flat[start : start + _TILE].T
        self.rows += len(rows)
        self._pieces.append(piece)
        self._spool.grow(piece.nbytes)
        return is_finite

    def join(self, other: Columns) -> None:
        """Count what another one has counted, behind all of one's own; it must stay open meanwhile.

        Raises:
            ValueError: it is of another shape or type.
        """
        if (other.shape, other.dtype) != (self.shape, self.dtype):
            raise ValueError(f"{other.dtype}{list(other.shape)} can't be joined to {self.dtype}{list(self.shape)}")
        self.rows += other.rows
        self._is_finite &= other._is_finite
        self._pieces += other._pieces

    def let_go(self) -> None:
        """Put what is held in memory into the file."""
        first = next((i for i, piece in enumerate(self._pieces) if isinstance(piece, np.ndarray)), None)
        if first is None:
            return
        done: list[_Piece] = self._pieces[:first]
        held: list[np.ndarray] = []
        for piece in [*self._pieces[first:], None]:
            if isinstance(piece, np.ndarray):
                held.append(piece)
                continue
            if held:
                whole = np.concatenate(held, axis=1)
                done.append((*self._spool.write(whole), whole.shape[1]))
                held = []
            if piece is not None:
                done.append(piece)
        self._pieces = done

    def numbers(self) -> ColumnNumbers:
        """What is known of the values so far; every dimension on a core of its own.

        Raises:
            SinkError: the file can't be read.
        """
        with np.errstate(over="ignore", invalid="ignore"), ThreadPoolExecutor(_cores()) as pool:
            each = list(pool.map(self._of_dimension, range(self._width)))
        count, low, high, mean, std, levels = zip(*each, strict=True) if each else ((),) * 6
        return ColumnNumbers(
            count=np.array(count, np.int64),
            min=np.array(low, self.dtype),
            max=np.array(high, self.dtype),
            mean=np.array(mean, np.float64),
            std=np.array(std, np.float64),
            quantiles=np.array(levels, np.float64).reshape(self._width, len(LEVELS)).T,
        )

    def _of_dimension(self, d: int) -> tuple[int, Any, Any, float, float, np.ndarray]:
        blocks = self._blocks(d)
        count = self.rows if self._is_finite[d] else sum(map(len, blocks()))
        if not count:
            none = self.dtype.type(np.nan) if self.dtype.kind == "f" else self.dtype.type(0)
            return 0, none, none, np.nan, np.nan, np.full(len(LEVELS), np.nan)
        below, above, weight = places(count)
        ordered = order_statistics(blocks, count, [0, count - 1, *below, *above], (self._width - 1) * self.rows)
        low, high = ordered[:2]
        lower, upper = ordered[2:].astype(np.float64).reshape(2, -1)
        mean, std = (float(low), 0.0) if low == high else moments(blocks, count)
        return count, low, high, mean, std, weighted(lower, upper, weight)

    def _blocks(self, d: int) -> Callable[[], Iterable[np.ndarray]]:
        """The finite values of a dimension, in pieces of whole leaves; they are held, if they are not too many."""
        if self.rows * self.dtype.itemsize * 4 * _cores() > max(self._spool.memory, 1 << 20):
            return lambda: _rechunked(self._runs(d), _BLOCK)
        held = list(_rechunked(self._runs(d), _BLOCK))
        return lambda: held

    def _runs(self, d: int) -> Iterator[np.ndarray]:
        """The finite values of a dimension, in order, as they lie."""
        for piece in self._pieces:
            run = piece[d] if isinstance(piece, np.ndarray) else self._read(d, *piece)
            yield run if self._is_finite[d] else run[np.isfinite(run)]

    def _read(self, d: int, file: IO[bytes], start: int, rows: int) -> np.ndarray:
        out = np.empty(rows, self.dtype)
        left = memoryview(out.view(np.uint8).data)
        at = start + d * out.nbytes
        while left:
            try:
                count = os.preadv(file.fileno(), [left], at)
            except OSError as cause:
                raise SinkError(f"the file of values can't be read: {cause.strerror or cause}") from cause
            if not count:
                raise SinkError("the file of values has become shorter")
            left, at = left[count:], at + count
        return out


def moments(blocks: Callable[[], Iterable[np.ndarray]], count: int) -> tuple[float, float]:
    """Mean and standard deviation (ddof 0), float64, in one pass: those of each leaf, put together as Chan, Golub and
    LeVeque do (1979).

    Args:
        blocks: the values in pieces, each of whole leaves but for the last.
        count: how many there are.

    >>> moments(lambda: [np.array([1, 2, 3, 4])], 4)
    (2.5, 1.118033988749895)
    """
    leaves = np.concatenate([leaf for block in blocks() for leaf in _leaves(block)], axis=1)
    sizes, sums, squares = leaves
    mean = np.sum(sums) / count
    around = np.square(sums / sizes - mean) * sizes
    return float(mean), float(np.sqrt(np.sum(squares + around) / count))


def _leaves(values: np.ndarray) -> Iterator[np.ndarray]:
    """``[3, k]``: how many values each leaf has, their sum, and the sum of squared distances from their mean."""
    whole = len(values) - len(values) % LEAF
    for part, size in ((values[:whole], LEAF), (values[whole:], len(values) - whole)):
        if len(part):
            exact = part.astype(np.float64).reshape(-1, size)
            sums = exact.sum(axis=1)
            exact -= (sums / size)[:, None]
            yield np.stack([np.full(len(sums), float(size)), sums, np.square(exact, out=exact).sum(axis=1)])


def _rechunked(runs: Iterable[np.ndarray], rows: int) -> Iterator[np.ndarray]:
    """The same values in pieces of so many, but for the last."""
    held: list[np.ndarray] = []
    size = 0
    for run in runs:
        while size + len(run) >= rows:
            cut = rows - size
            yield np.concatenate([*held, run[:cut]])
            run, held, size = run[cut:], [], 0
        if len(run):
            held.append(run)
            size += len(run)
    if held:
        yield np.concatenate(held)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
