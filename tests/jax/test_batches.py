"""Batches as JAX arrays, which borrow the arrays' memory where they can."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import rlds2buf
from rlds2buf.core import nest
from rlds2buf.core.frameworks import converter
from tests.buffers.numbered import SPEC, episode


def filled() -> Any:
    buffer = rlds2buf.make_circular(SPEC, 300, seed=1)
    for i in range(12):
        buffer.add(episode(100 * i, 4 + i))
    return buffer


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("size", [7, 64])
def test_arrays_equal(wide: bool, size: int) -> None:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", wide)
    try:
        expected = list(filled().batches(size, steps=4, prefetch=0))
        got = list(filled().batches(size, steps=4, prefetch=2, to="jax", together=3))
        for mine, theirs in zip(got, expected, strict=True):
            for (path, tensor), (_, array) in zip(nest.flatten(mine.data), nest.flatten(theirs.data), strict=True):
                assert isinstance(tensor, jax.Array), path
                narrow = {"float64": "float32", "int64": "int32"}
                name = array.dtype.name
                assert tensor.dtype.name == (name if wide else narrow.get(name, name))
                np.testing.assert_array_equal(np.asarray(tensor), array)
            # Keys are never cut to 32 bits.
            assert isinstance(mine.info.key, jax.Array if wide else np.ndarray)
            assert np.asarray(mine.info.key).dtype == np.uint64
            assert np.asarray(mine.info.key).tolist() == theirs.info.key.tolist()
    finally:
        jax.config.update("jax_enable_x64", before)


def test_memory_is_borrowed() -> None:
    batch = filled().sample(64)
    place = batch.data.observation["place"]
    given = converter("jax")(batch)
    place[0, 0] = -77
    assert given.data.observation["place"][0, 0] == -77


def test_strings_stay_arrays() -> None:
    text = np.array([b"a", b"bc"], object)
    assert converter("jax")({"text": text, "none": None, "size": 3}) == {"text": text, "none": None, "size": 3}


def test_devices() -> None:
    sample = filled().sample(8)
    for device in ("cpu", "cpu:0", jax.devices("cpu")[0]):
        for batch in (sample.to("jax", device=device), filled().sample(8, to="jax", device=device)):
            assert batch.data.reward.devices() == {jax.devices("cpu")[0]}
            np.testing.assert_array_equal(np.asarray(batch.data.reward), sample.data.reward.astype(np.float32))
    for device in ("tpu:7", "cpu:99", "cpu:x"):
        with pytest.raises(ValueError, match=device):
            sample.to("jax", device=device)
