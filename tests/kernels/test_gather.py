"""Gathering rows of many columns against taking them one column at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2buf.kernels.gather import ALIGN, AT_LAST, AT_SLOT, BEHIND_LAST, BEHIND_SLOT, gather_rows

KINDS: list[tuple[Any, tuple[int, ...]]] = [
    (np.uint8, ()),
    (np.uint8, (3,)),
    (np.uint8, (7, 5, 3)),
    (np.uint8, (64, 64, 3)),
    (np.bool_, (2,)),
    (np.int16, ()),
    (np.float16, (5,)),
    (np.float32, ()),
    (np.float32, (17,)),
    (np.float64, (6,)),
    (np.int64, ()),
    (np.complex128, (3,)),
    (np.float32, (0,)),
]


def gather(columns: list[np.ndarray], choice: list[int], slots: np.ndarray, last: np.ndarray) -> list[np.ndarray]:
    capacity = len(columns[0])
    widths = [column.itemsize * int(np.prod(column.shape[1:])) for column in columns]
    sizes = [-(-width * len(slots) // 64) * 64 + 64 for width in widths]
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    out = np.full(sum(sizes) + ALIGN, 0xAB, np.uint8)
    addresses = np.array([column.ctypes.data for column in columns], np.int64)
    row_bytes = np.array(widths, np.int64)
    skip = gather_rows(addresses, row_bytes, np.array(choice, np.uint8), slots, last, capacity, out, offsets)
    assert 0 <= skip < ALIGN and (out.ctypes.data + skip) % ALIGN == 0
    out = out[skip:]
    parts = []
    for column, width, offset, size in zip(columns, widths, offsets, sizes, strict=True):
        used = width * len(slots)
        assert (out[offset + used : offset + size] == 0xAB).all()  # nothing is written beside the part
        parts.append(np.ndarray((len(slots), *column.shape[1:]), column.dtype, out, offset))
    return parts


@pytest.mark.parametrize("capacity", [1, 2, 33])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_every_dtype_at_once(capacity: int, count: int) -> None:
    rng = np.random.default_rng(capacity + count)
    columns, choice = [], []
    for which in (AT_SLOT, AT_LAST, BEHIND_LAST, BEHIND_SLOT):
        for dtype, shape in KINDS:
            raw = rng.integers(
                0, 2 if dtype is np.bool_ else 256, (capacity, *shape, np.dtype(dtype).itemsize), np.uint8
            )
            columns.append(np.ascontiguousarray(raw).view(dtype).reshape(capacity, *shape))
            choice.append(which)
    slots, last = rng.integers(0, capacity, count), rng.integers(0, capacity, count)
    for got, column, which in zip(gather(columns, choice, slots, last), columns, choice, strict=True):
        behind = {BEHIND_LAST: (last + 1) % capacity, BEHIND_SLOT: (slots + 1) % capacity}
        rows = {AT_SLOT: slots, AT_LAST: last, **behind}[which]
        assert got.tobytes() == column[rows].tobytes()


def test_columns_at_odd_addresses() -> None:
    """As columns of a file are that lie behind a header of any length."""
    rng = np.random.default_rng(0)
    for shift in (1, 2, 4, 9):
        block = rng.integers(0, 256, 8 * 50 * 3 + shift, np.uint8)
        column = np.ndarray((50, 3), np.float64, block, shift)
        slots = rng.integers(0, 50, 20)
        (got,) = gather([column], [AT_SLOT], slots, slots)
        assert got.tobytes() == column[slots].tobytes()
