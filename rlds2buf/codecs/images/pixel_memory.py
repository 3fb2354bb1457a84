"""Memory for pixels that is used again when whoever had it lets it go."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import deque
from typing import Any, Final

import numpy as np

__all__ = ["PixelMemory"]

_SMALLEST: Final = 1 << 16
"""Smaller arrays are left to numpy: the allocator under it keeps their memory itself."""


class PixelMemory:
    """Gives arrays, and takes back the memory of those that nobody holds any more.

    New memory comes from the system a page at a time, each to be cleared at the first touch, which
    takes as long as decoding a large picture.  Episodes come and go, so a few blocks do for all.

    An array's memory is taken back when the array is gone, and with it every view of it: numpy's
    views hold the array that they are made of, and so do memoryviews, tensors and the like.

    One thread asks for arrays; they may be let go in any.

    Args:
        most: bytes that are kept for later, at most.

    >>> memory = PixelMemory(1 << 20)
    >>> memory.empty((4, 256, 256), np.dtype(np.uint8)).shape
    (4, 256, 256)
    >>> memory.idle
    262144
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._blocks: deque[np.ndarray] = deque()
        self._given: dict[int, tuple[weakref.ref[np.ndarray], np.ndarray]] = {}  # by the reference's id
        # Not a method of this object, which an array should not keep alive.
        home = weakref.ref(self)
        self._taker = lambda gone: None if (here := home()) is None else here._take_back(gone)

    @property
    def idle(self) -> int:
        """Bytes kept for later."""
        return sum(block.nbytes for block in list(self._blocks))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """As :func:`numpy.empty`.

        Raises:
            MemoryError, ValueError: as that.
        """
        size = math.prod(shape) * dtype.itemsize
        if not _SMALLEST <= size <= self._most:
            return np.empty(shape, dtype)
        block = self._fitting(size)
        # Views hold the array itself only where what is under it is no numpy array; and of a memoryview numpy
        # takes what that is of.
        under: Any = (ctypes.c_char * block.nbytes).from_buffer(block.data)
        array: np.ndarray = np.ndarray(shape, dtype, buffer=under)
        reference = weakref.ref(array, self._taker)
        self._given[id(reference)] = (reference, block)
        return array

    def _fitting(self, size: int) -> np.ndarray:
        """A block that has the room and is not twice as large; a new one if none of those kept is."""
        for _ in range(len(self._blocks)):
            block = self._blocks.popleft()
            if size <= block.nbytes < 2 * size:
                return block
            self._blocks.append(block)
        return np.empty(size, np.uint8)

    def _take_back(self, gone: weakref.ref[np.ndarray]) -> None:
        """Called in any thread, at any moment: so nothing but single steps that are whole by themselves."""
        _, block = self._given.pop(id(gone))
        if self.idle + block.nbytes <= self._most:
            self._blocks.append(block)
