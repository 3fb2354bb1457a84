"""Requests against the naive server: every item is whole, wherever the stream is cut."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import EpisodeBatch, spec_of
from rlds2buf.core import nest
from rlds2buf.formats.reverb.item_keys import EpisodeKeys, keys_of
from rlds2buf.formats.reverb.patterns.trajectories import EpisodePattern, TrajectoryPattern
from rlds2buf.formats.reverb.patterns.transitions import TransitionPattern
from rlds2buf.formats.reverb.protocol.item_encoder import ItemEncoder
from rlds2buf.formats.reverb.request_builder import RequestBuilder
from rlds2buf.io.blocks import blocks_of
from tests.formats.reverb.numbered import numbered
from tests.reference.reverb_server import NaiveStream, NaiveTable
from tests.views.episodes import episodes

PATTERNS = st.one_of(
    st.builds(
        TrajectoryPattern,
        st.integers(1, 7),
        st.integers(1, 5),
    ),
    st.builds(TrajectoryPattern, st.integers(1, 9), pad=st.just(True), tile=st.booleans()),
    st.builds(TrajectoryPattern, st.integers(1, 4), cross=st.just(True)),
    st.builds(EpisodePattern),
    st.builds(TransitionPattern, n_step=st.integers(1, 3)),
)


def build(pattern, given_episodes, chunk_length, max_items, max_bytes=1 << 20, together=False):
    """The requests, the marks that came without one, and what each key must hold."""
    requests, loose, expected = [], [], {}
    spec = spec_of(given_episodes[0])
    encoder = ItemEncoder("replay", pattern.columns(spec), max_chunk_length=chunk_length)
    builder = RequestBuilder(
        encoder, chunk_length, send=requests.append, mark=loose.extend, max_items=max_items, max_bytes=max_bytes
    )
    pattern.reset()
    batches = [EpisodeBatch.of_one(episode) for episode in given_episodes]
    if together:
        batches = [batch for batch in blocks_of(given_episodes) if isinstance(batch, EpisodeBatch)]
    number = 0
    for batch in batches:
        laid = pattern.lay(batch)
        numbers = np.arange(number, number + len(batch))
        number += len(batch)
        item, chunk = (np.full(len(batch), seed, np.uint64) for seed in (1, 2))
        keys = EpisodeKeys(item, chunk, chunk, numbers)
        priorities = np.concatenate([np.arange(count, dtype=np.float64) for count in laid.counts.tolist()])
        edges = laid.first_items()
        for i, (start, stop) in enumerate(itertools.pairwise(edges)):
            if start == stop:
                continue
            whole = [leaf for _, leaf in nest.flatten(tuple(laid.items(slice(start, stop))))]
            for j, key in enumerate(keys_of(1, int(numbers[i]), laid.numbers[start:stop]).tolist()):
                expected[key] = (float(j), [leaf[j] for leaf in whole])
        builder.add(laid, keys, priorities, numbers.tolist())
    builder.flush()
    return requests, loose, expected


def play(requests, table, *, fresh=True):
    stream = NaiveStream(table)
    acknowledged = []
    for number, request in enumerate(requests):
        for data in request.encode(fresh=fresh and number == 0):
            acknowledged += stream.feed(data)
    assert not stream.chunks
    return acknowledged


def same(table, expected):
    assert list(table.items) == list(expected)
    for key, (priority, columns) in expected.items():
        assert table.items[key][0] == priority
        for one, other in zip(table.items[key][1], columns, strict=True):
            assert np.array_equal(one, other)


@settings(deadline=None)
@given(
    first=episodes(max_rows=12),
    more=st.integers(0, 4),
    pattern=PATTERNS,
    chunk_length=st.integers(1, 6),
    max_items=st.integers(1, 12),
    max_bytes=st.sampled_from([1, 200, 1 << 20]),
    together=st.booleans(),
)
def test_the_server_gets_every_item_whole_and_in_order(
    first, more, pattern, chunk_length, max_items, max_bytes, together
):
    many = [first] + [first.rows(0, max(1, first.num_steps - i)) for i in range(more)]
    requests, loose, expected = build(pattern, many, chunk_length, max_items, max_bytes, together)
    table = NaiveTable("replay")
    acknowledged = play(requests, table)
    assert acknowledged == list(expected) == [key for request in requests for key in request.keys]
    same(table, expected)
    assert [mark for request in requests for mark in request.marks] + loose == list(range(len(many)))
    assert all(len(request.keys) <= max_items for request in requests)


@settings(deadline=None)
@given(pattern=PATTERNS, lengths=st.lists(st.integers(1, 15), min_size=1, max_size=4), chunk_length=st.integers(1, 5))
def test_a_new_stream_can_go_on_from_any_request(pattern, lengths, chunk_length):
    many = [numbered(i, rows) for i, rows in enumerate(lengths)]
    requests, _, expected = build(pattern, many, chunk_length, 3)
    for cut in range(len(requests) + 1):
        table = NaiveTable("replay")
        stream = NaiveStream(table)
        for number, request in enumerate(requests[:cut]):
            for data in request.encode(fresh=number == 0):
                stream.feed(data)
        # The last one or two were lost on the way back, so they are sent again on a new stream.
        play(requests[max(0, cut - 2) :], table)
        same(table, expected)


def test_marks_come_with_the_request_that_ends_their_episode():
    requests, loose, _ = build(TrajectoryPattern(2), [numbered(0, 10), numbered(1, 1), numbered(2, 3)], 4, 4)
    assert [request.marks for request in requests] == [[], [], [0, 1, 2]]
    assert [len(request.keys) for request in requests] == [4, 4, 3]
    assert loose == []


def test_episodes_without_items_are_marked_too():
    requests, loose, _ = build(TrajectoryPattern(2), [numbered(0, 1), numbered(1, 1)], 4, 4)
    assert requests == [] and loose == [0, 1]


def test_a_large_request_is_spread_over_messages():
    ep = numbered(0, 5000).replace(action=np.random.default_rng(0).normal(size=(5000, 512)))
    requests, _, expected = build(EpisodePattern(), [ep], 100, 512)
    assert len(requests) == 1
    sizes = [len(data) for data in requests[0].encode(fresh=True)]
    assert len(sizes) > 3 and max(sizes) < 9 << 20
    table = NaiveTable("replay")
    play(requests, table)
    same(table, expected)
