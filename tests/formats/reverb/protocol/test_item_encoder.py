from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.formats.reverb.protocol.item_encoder import Column, ItemEncoder, RowSpan, split_items
from rlds2buf.formats.reverb.protocol.messages import message


def naive(table, columns, keys, priorities, spans, borders, chunk_keys):
    """The same items, one field at a time."""
    items = []
    for i, key in enumerate(keys):
        item = message("PrioritizedItem", key=int(key), table=table, priority=float(priorities[i]))
        for column in columns:
            out = item.flat_trajectory.columns.add(squeeze=column.squeeze)
            start, stop = int(spans[column.span].starts[i]), int(spans[column.span].stops[i])
            for j, chunk in enumerate(chunk_keys):
                a, b = max(start, int(borders[j])), min(stop, int(borders[j + 1]))
                if a < b:
                    out.chunk_slices.add(
                        chunk_key=int(chunk), offset=a - int(borders[j]), length=b - a, index=column.tensor
                    )
        items.append(item)
    return items


@st.composite
def cases(draw):
    sizes = draw(st.lists(st.integers(1, 200), min_size=1, max_size=6))
    borders = np.cumsum([0, *sizes])
    count = draw(st.integers(1, 20))
    spans = []
    for _ in range(draw(st.integers(1, 3))):
        starts = np.array(draw(st.lists(st.integers(0, int(borders[-1]) - 1), min_size=count, max_size=count)))
        stops = np.array([draw(st.integers(int(start) + 1, int(borders[-1]))) for start in starts])
        spans.append(RowSpan(starts, stops))
    columns = draw(
        st.lists(
            st.builds(Column, st.sampled_from([0, 1, 7, 200]), st.integers(0, len(spans) - 1)), min_size=1, max_size=5
        )
    )
    number = st.integers(0, 2**64 - 1)
    keys = np.array(draw(st.lists(number, min_size=count, max_size=count)), np.uint64)
    chunk_keys = np.array(draw(st.lists(number, min_size=len(sizes), max_size=len(sizes))), np.uint64)
    priorities = np.array(draw(st.lists(st.floats(0, 1e9), min_size=count, max_size=count)))
    table = draw(st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()))
    return table, columns, keys, priorities, spans, borders, chunk_keys


@given(case=cases(), timed=st.booleans())
def test_bulk_items_are_those_made_one_by_one(case, timed):
    table, columns, keys, priorities, spans, borders, chunk_keys = case
    encoder = ItemEncoder(table, columns, max_chunk_length=int(np.diff(borders).max()), timed=timed)
    times = np.arange(len(keys)) * 999_999_999 + 10**18 if timed else None
    data = encoder.encode(keys, priorities, spans, borders, chunk_keys, times=times)
    expected = naive(*case)
    for item, time in zip(expected, [] if times is None else times.tolist(), strict=False):
        item.inserted_at.seconds, item.inserted_at.nanos = divmod(time, 10**9)
    assert list(message("InsertStreamRequest", data).items) == expected
    assert [message("PrioritizedItem", item) for item in split_items(data)] == expected


def test_squeezed_columns_say_so():
    encoder = ItemEncoder("t", [Column(0, 0, True), Column(0, 1, True)], max_chunk_length=3)
    rows = np.arange(3)
    items = encoder.encode(
        rows.astype(np.uint64),
        np.ones(3),
        [RowSpan(rows, rows + 1), RowSpan(rows + 1, rows + 2)],
        np.array([0, 3, 4]),
        np.array([5, 6], np.uint64),
    )
    last = message("InsertStreamRequest", items).items[-1].flat_trajectory.columns
    assert [column.squeeze for column in last] == [True, True]
    assert [(c.chunk_slices[0].chunk_key, c.chunk_slices[0].offset) for c in last] == [(5, 2), (6, 0)]


@pytest.mark.parametrize("length", [127, 128, 16383, 16384, 2**31 - 1])
def test_lengths_of_every_varint_width(length):
    encoder = ItemEncoder("t", [Column(0)], max_chunk_length=length)
    items = encoder.encode(
        np.ones(1, np.uint64),
        np.ones(1),
        [RowSpan(np.zeros(1, np.int64), np.full(1, length))],
        np.array([0, length]),
        np.ones(1, np.uint64),
    )
    item = message("InsertStreamRequest", items).items[0]
    assert item.flat_trajectory.columns[0].chunk_slices[0].length == length
