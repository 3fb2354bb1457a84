from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf.codecs.images.pixel_memory import PixelMemory

UINT8 = np.dtype(np.uint8)
SIZE = 1 << 17


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_arrays_are_as_numpys(dtype):
    memory = PixelMemory(1 << 24)
    for _ in range(3):
        array = memory.empty((3, 100, 200, 3), np.dtype(dtype))
        assert array.shape == (3, 100, 200, 3) and array.dtype == dtype
        assert array.flags.writeable and array.flags.aligned and array.flags.c_contiguous
        array[...] = 7
        del array


def test_memory_comes_back_when_nobody_holds_it():
    memory = PixelMemory(1 << 20)
    array = memory.empty((SIZE,), UINT8)
    where = address(array)
    row = array.reshape(-1, 16)[3:, ::2]
    view = memoryview(array)
    del array
    assert memory.idle == 0
    del row
    assert memory.idle == 0
    view.release()
    del view
    assert memory.idle == SIZE
    assert address(memory.empty((SIZE // 4 - 5,), np.dtype(np.float32))) == where


def test_blocks_far_too_large_or_too_small_are_not_used():
    memory = PixelMemory(1 << 22)
    arrays = [memory.empty((size,), UINT8) for size in (SIZE, 4 * SIZE)]
    del arrays
    assert memory.idle == 5 * SIZE
    held = memory.empty((2 * SIZE - 7,), UINT8)
    assert memory.idle == 5 * SIZE and held.nbytes == 2 * SIZE - 7


def test_no_more_is_kept_than_was_said():
    memory = PixelMemory(3 * SIZE)
    arrays = [memory.empty((SIZE,), UINT8) for _ in range(10)]
    del arrays
    assert memory.idle == 3 * SIZE
    arrays = [memory.empty((size,), UINT8) for size in (4 * SIZE, 10)]
    del arrays
    assert memory.idle == 3 * SIZE


def test_arrays_outlive_the_memory_they_came_from():
    memory = PixelMemory(1 << 20)
    array = memory.empty((SIZE,), UINT8)
    array[:] = 9
    del memory
    gc.collect()
    assert (array == 9).all()


def test_absurd_sizes_are_numpys_errors():
    with pytest.raises((MemoryError, ValueError)):
        PixelMemory(1 << 20).empty((1 << 40, 1 << 40), UINT8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * SIZE)), max_size=30))
def test_no_two_arrays_share_memory(calls):
    memory = PixelMemory(8 * SIZE)
    held: list[tuple[np.ndarray, int]] = []
    for number, (let_go, size) in enumerate(calls):
        if let_go and held:
            held.pop(size % len(held))
        array = memory.empty((size,), UINT8)
        array[:] = number
        held.append((array, number))
        assert memory.idle <= 8 * SIZE
    assert all((array == number).all() for array, number in held)


def test_arrays_may_be_let_go_in_other_threads():
    memory = PixelMemory(1 << 22)
    for _ in range(20):
        arrays = [memory.empty((SIZE,), UINT8) for _ in range(8)]
        threads = [threading.Thread(target=lambda part: part.clear(), args=([arrays.pop()],)) for _ in range(8)]
        for thread in threads:
            thread.start()
        del arrays
        for thread in threads:
            thread.join(60)
        del threads, thread
    assert memory.idle == 8 * SIZE


def test_a_view_alone_holds_the_memory():
    memory = PixelMemory(1 << 22)
    array = memory.empty((4, SIZE), UINT8)
    array[:] = 5
    views = [array[1:3], array[0].reshape(-1, 2), np.split(array, [2])[1][0]]
    del array
    assert memory.idle == 0
    other = memory.empty((4, SIZE), UINT8)
    other[:] = 6
    assert all((view == 5).all() for view in views)
    del views
    assert memory.idle == 4 * SIZE
