from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, windows
from rlds2buf.core import nest
from rlds2buf.views.windows import window_starts
from tests.reference import views as naive
from tests.views.compare import frozen
from tests.views.episodes import episodes

FIELDS = ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal", "extras")


@settings(max_examples=200)
@given(episodes(), st.integers(1, 18), st.integers(1, 18), st.booleans())
def test_windows_are_those_cut_by_hand(episode, length, stride, pad):
    view = windows(frozen(episode), length, stride=stride, pad=pad)
    expected = naive.windows(naive.steps_of(episode), length, stride, pad)
    assert view.mask.shape == (len(expected), length) and view.mask.dtype == bool
    assert view.next_observation is None and view.is_done is None
    for b, window in enumerate(expected):
        for t, row in enumerate(window):
            assert view.mask[b, t] == (row is not None)
            for name in FIELDS:
                leaves = dict(nest.flatten(getattr(view, name)))
                if row is None:
                    for leaf in leaves.values():
                        if leaf is not None:
                            padding = b"" if leaf.dtype == object else 0
                            assert (leaf[b, t] == padding).all() if np.ndim(leaf[b, t]) else leaf[b, t] == padding
                    continue
                for path, value in nest.flatten(row[name]):
                    if value is None:
                        assert leaves[path] is None
                    else:
                        np.testing.assert_array_equal(leaves[path][b, t], value)
    for path, column in episode.flatten():
        name, *rest = path
        assert nest.get(getattr(view, name), tuple(rest)).dtype == column.dtype


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 70), st.booleans())
def test_where_windows_start(rows, length, stride, pad):
    starts = window_starts(rows, length, stride=stride, pad=pad)
    assert starts.tolist() == naive.window_starts(rows, length, stride, pad)
    assert starts.dtype == np.int64


@given(st.integers(1, 60), st.integers(1, 70), st.integers(1, 70))
def test_with_padding_every_row_is_in_some_window_unless_the_stride_skips_it(rows, length, stride):
    covered = np.zeros(rows, bool)
    for start in window_starts(rows, length, stride=stride):
        covered[start : start + length] = True
    skipped = np.arange(rows) % stride >= length
    np.testing.assert_array_equal(covered, ~skipped)


def test_a_window_is_a_copy():
    episode = Episode(observation=np.arange(4.0))
    view = windows(episode, 2)
    view.observation[:] = -1
    assert episode.observation.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("length, stride", [(0, 1), (1, 0), (-1, 1), (3, -2)])
def test_lengths_and_strides_below_one(length, stride):
    with pytest.raises(ValueError, match="at least 1"):
        windows(Episode(observation=np.zeros(3)), length, stride=stride)
