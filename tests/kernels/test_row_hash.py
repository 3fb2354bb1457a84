"""Hashes of rows, beside whole numbers of Python."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.kernels.row_hash import hash_rows, hash_rows_numpy, mix
from tests.reference import row_hash as naive


@given(
    dtype=st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]),
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    width=st.integers(0, 7),
    seed=st.integers(0, 2**32),
)
def test_hashes_are_those_of_the_naive_twin(dtype, rows, width, seed):
    rng = np.random.default_rng(seed)
    edges = np.append(0, np.cumsum(rows))
    words = rng.integers(0, np.iinfo(dtype).max, (int(edges[-1]), width), dtype, endpoint=True)
    keys = rng.integers(0, 2**64, (2, width), np.uint64) | np.uint64(1)
    expected = [naive.hash_rows(words[start:stop].tolist(), keys.tolist()) for start, stop in itertools.pairwise(edges)]
    for run in (hash_rows, hash_rows_numpy):
        out = np.zeros((len(rows), 2), np.uint64)
        run(words, edges, keys, out)
        assert out.tolist() == expected


@given(values=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=9))
def test_mixing_is_splitmix(values):
    assert mix(np.array(values, np.uint64)).tolist() == [naive.mix(value) for value in values]
