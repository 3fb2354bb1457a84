"""Hashes of episodes: everything counts that reaches a table, and nothing else."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.formats.reverb.content_hash import content_hashes
from tests.formats.reverb.several import DTYPES, LENGTHS, WIDTHS, several


def one(*columns):
    (found,) = content_hashes(columns, np.array([0, len(columns[0])]))
    return tuple(found.tolist())


@given(rows=LENGTHS, dtypes=DTYPES, width=WIDTHS)
def test_hashes_of_many_episodes_are_those_of_each(rows, dtypes, width):
    columns, edges, apart = several(rows, dtypes, width)
    assert [tuple(found) for found in content_hashes(columns, edges).tolist()] == [one(*some) for some in apart]


def test_everything_counts():
    def text(*values):
        return np.array([*values, None], object)[:-1]

    column = np.arange(12.0).reshape(3, 4)
    found = [
        one(column),
        one(column[::-1]),
        one(column[:, ::-1]),
        one(-column),
        one(column.reshape(3, 2, 2)),
        one(column.view(np.int64)),
        one(column.astype(np.float32)),
        one(column[:2]),
        one(column, np.zeros(3)),
        one(np.zeros(3), column),
        one(np.zeros(3)),
        one(np.zeros(4)),
        one(np.zeros((3, 1))),
        one(np.zeros((3, 0))),
        one(np.zeros((4, 0))),
        one(np.zeros(3, bool)),
        one(np.zeros(3, np.uint8)),
        one(text(b"ab", b"c", b"")),
        one(text(b"a", b"bc", b"")),
        one(text(b"c", b"ab", b"")),
        one(text(b"abc", b"", b"")),
    ]
    names, checks = zip(*found, strict=True)
    assert len({*names, *checks}) == 2 * len(found)


def test_memory_layout_and_byte_order_do_not_count():
    column = np.arange(12.0).reshape(3, 4)
    assert (
        one(column) == one(np.asfortranarray(column)) == one(column.astype(">f8")) == one(np.repeat(column, 2, 0)[::2])
    )


@given(flips=st.sets(st.tuples(st.integers(0, 49), st.integers(0, 6)), min_size=1, max_size=4), bit=st.integers(0, 63))
def test_flipped_bits_are_seen_in_both_numbers(flips, bit):
    """Also signs, and other bits at the same place of many words."""
    column = np.random.default_rng(0).normal(size=(50, 7))
    other = column.copy()
    for row, place in flips:
        other.view(np.uint64)[row, place] ^= np.uint64(1 << bit)
    assert not set(one(column)) & set(one(other))


def test_numbers_that_are_small_and_whole_have_hashes_of_their_own():
    """Grid worlds: a few states in all orders."""
    grids = np.array(list(itertools.product(range(4), repeat=6)), np.float64)
    found = content_hashes([grids.reshape(-1)], np.arange(0, grids.size + 1, 6))
    assert len(np.unique(found)) == 2 * 4**6
    low = found & np.uint64(0xFFFF)
    counts = np.bincount(low[:, 0].astype(np.int64) >> 8, minlength=256)
    assert (counts > 0).all() and counts.max() < 48, "as random numbers would be"
