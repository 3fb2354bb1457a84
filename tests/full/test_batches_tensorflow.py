"""Batches as TensorFlow tensors, which borrow the arrays' memory where they lie as it wants them."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

import rlds2buf
from rlds2buf.core import nest
from rlds2buf.core.frameworks import converter
from tests.buffers.numbered import SPEC, episode


def filled() -> Any:
    buffer = rlds2buf.make_circular(SPEC, 300, seed=1)
    for i in range(12):
        buffer.add(episode(100 * i, 4 + i))
    return buffer


@pytest.mark.parametrize("view", [{}, {"n_step": 3}, {"sequence_length": 3}], ids=str)
@pytest.mark.parametrize("size", [7, 64])
def test_tensors_equal_arrays(view: dict[str, Any], size: int) -> None:
    """Also where single batches of several at once start anywhere."""
    expected = list(filled().batches(size, steps=4, prefetch=0, **view))
    got = list(filled().batches(size, steps=4, prefetch=2, to="tf", together=3, **view))
    for mine, theirs in zip(got, expected, strict=True):
        for (path, tensor), (_, array) in zip(nest.flatten(mine.data), nest.flatten(theirs.data), strict=True):
            if array is None:
                assert tensor is None
                continue
            assert tf.is_tensor(tensor), path
            assert tensor.dtype == tf.as_dtype(array.dtype)
            np.testing.assert_array_equal((tf.identity(tensor)).numpy(), array)
        assert mine.info.key.dtype == tf.uint64
        assert mine.info.key.numpy().tolist() == theirs.info.key.tolist()
        assert mine.info.table_size == theirs.info.table_size
        tf.reduce_sum(mine.data.reward * 2 + 1)  # arithmetic on borrowed memory


def test_memory_is_borrowed_where_it_lies_right() -> None:
    batch = filled().sample(64)
    place = batch.data.observation["place"]
    tensors = converter("tf")(batch)
    place[0, 0] = -77
    assert tensors.data.observation["place"].numpy()[0, 0] == -77


@pytest.mark.parametrize("shift", [0, 4, 16, 32])
def test_memory_anywhere(shift: int) -> None:
    """TensorFlow would end the process over some of these."""
    block = np.zeros(4096, np.uint8)
    start = -block.ctypes.data % 64 + shift
    array = block[start : start + 400].view(np.float32)
    array[:] = np.arange(100)
    tensor = converter("tf")({"a": array})["a"]
    assert tf.reduce_sum(tensor).numpy() == 4950
    strided = converter("tf")(np.arange(100, dtype=np.int64)[::3])
    assert strided.numpy().tolist() == list(range(0, 100, 3))
    assert converter("tf")(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_strings_stay_arrays() -> None:
    text = np.array([b"a", b"bc"], object)
    assert converter("tf")({"text": text, "none": None, "size": 3}) == {"text": text, "none": None, "size": 3}


def test_devices() -> None:
    sample = filled().sample(8)
    for batch in (sample.to("tf", device="/CPU:0"), filled().sample(8, to="tf", device="CPU:0")):
        assert batch.data.reward.device.endswith("CPU:0")
        np.testing.assert_array_equal(batch.data.reward.numpy(), sample.data.reward)
    for device in ("/GPU:77", "nonsense"):
        with pytest.raises(ValueError, match=device):
            sample.to("tf", device=device)
