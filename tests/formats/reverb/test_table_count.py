"""What a table's counts say of a push, against a table that knows whose each item is."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import ServerUnavailable
from rlds2buf.formats.reverb import table_room
from rlds2buf.formats.reverb.protocol.connection import TableState
from rlds2buf.formats.reverb.table_count import ServerCount
from rlds2buf.formats.reverb.table_room import RoomLeft


class NaiveTable:
    """Keys in the order of insertion; counts as Reverb's do, and evicts the oldest when it is full."""

    def __init__(self, max_size: int, max_times_sampled: int = 0) -> None:
        self.max_size, self.max_times_sampled = max_size, max_times_sampled
        self.keys: list[Any] = []
        self.inserted = 0

    def insert(self, key: Any) -> None:
        if key in self.keys:
            return
        self.keys.append(key)
        self.inserted += 1
        if len(self.keys) > self.max_size:
            self.keys.pop(0)

    def delete(self, place: int) -> None:
        if self.keys:
            self.keys.pop(place % len(self.keys))

    @property
    def state(self) -> TableState:
        return TableState(
            "t",
            len(self.keys),
            self.max_size,
            self.max_times_sampled,
            0,
            self.inserted,
            0,
            1.0,
            -1e9,
            1e9,
            1,
            False,
            None,
        )


OURS, OTHERS, DELETE = range(3)


@settings(deadline=None, max_examples=400)
@given(
    before=st.lists(st.tuples(st.sampled_from([OURS, OTHERS]), st.integers(0, 9)), max_size=8),
    then=st.lists(st.tuples(st.sampled_from([OURS, OURS, OTHERS, DELETE]), st.integers(0, 9)), max_size=20),
    max_size=st.integers(4, 30),
    sampled=st.sampled_from([0, 0, 0, 1]),
    may_evict=st.booleans(),
)
def test_the_verdict_is_never_wrong(before, then, max_size, sampled, may_evict):
    table = NaiveTable(max_size, sampled)
    for who, key in before:
        table.insert((who, key))
    count = ServerCount("here", size_before=len(table.keys))
    inserted_before, acknowledged, removed = table.inserted, set(), 0
    theirs = 0
    for who, key in then:
        size, inserted = len(table.keys), table.inserted
        if who == DELETE:
            table.delete(key)
        else:
            table.insert((who, key))
        removed += size + table.inserted - inserted - len(table.keys)
        theirs += (table.inserted - inserted) * (who == OTHERS)
        acknowledged |= {(OURS, key)} if who == OURS else set()
    count.items = len(acknowledged)
    count.take(table.state, table.inserted - inserted_before)
    count.judge(table.state, may_evict=may_evict)
    missing = len(acknowledged - set(table.keys))
    assert count.removed == removed and count.others <= theirs + removed
    assert missing <= count.unchecked <= count.items
    if count.agrees and not may_evict:
        assert not missing
    if count.agrees is False:
        assert removed, "nothing has left the table"
    if removed and (count.others or sampled) and count.items <= count.size_after:
        assert count.agrees is not False
    assert (count.note() is None) <= (count.agrees is not None)


def test_a_table_that_was_emptied_meanwhile_is_found_out():
    table = NaiveTable(50)
    for key in range(20):
        table.insert(key)
    count = ServerCount("here", size_before=20, items=30)
    table.keys, before = [], table.inserted
    table.inserted = 0
    for key in range(25):
        table.insert((1, key))
    count.take(table.state, table.inserted - before)
    count.judge(table.state, may_evict=False)
    assert count.agrees is False


@settings(deadline=None, max_examples=300)
@given(max_size=st.integers(1, 40), seed=st.integers(0, 9999), others=st.booleans())
def test_what_is_sent_never_evicts(max_size, seed, others):
    """Also beside others, as long as the server is asked before each write."""
    rng = random.Random(seed)
    table = NaiveTable(max_size)
    for key in range(rng.randrange(max_size + 1)):
        table.insert(("old", key))
    waiting: list[Any] = []
    room = RoomLeft(
        table.state,
        ask=lambda: table.state,
        settle=lambda: [table.insert(waiting.pop(0)) for _ in range(len(waiting))],  # type: ignore[arg-type,func-returns-value]
        under_way=lambda: len(waiting),
    )
    seconds, table_room.ASK_SECONDS = table_room.ASK_SECONDS, 0.0 if others else 1e9  # type: ignore[misc]
    sent = 0
    try:
        for _ in range(30):
            if others and rng.random() < 0.5 and not waiting and len(table.keys) < max_size:
                table.insert(("other", rng.random()))
            keys = [("old" if rng.random() < 0.3 else "new", rng.randrange(30)) for _ in range(rng.randrange(1, 6))]
            if room.left(len(keys)) < len(keys):
                assert not waiting and len(table.keys) + len(keys) > max_size
                break
            waiting += keys
            room.take(len(keys))
            sent += len(keys)
            for _ in range(rng.randrange(len(waiting) + 1)):
                table.insert(waiting.pop(0))
    finally:
        table_room.ASK_SECONDS = seconds  # type: ignore[misc]
    for key in waiting:
        table.insert(key)
    assert table.inserted == len(table.keys), "something was evicted"


def test_a_server_that_does_not_answer_for_a_while_is_left_to_the_stream(monkeypatch):
    monkeypatch.setattr(table_room, "ASK_SECONDS", 0.0)

    def ask() -> TableState:
        raise ServerUnavailable("gone")

    room = RoomLeft(NaiveTable(5).state, ask=ask, settle=lambda: None, under_way=lambda: 0)
    assert room.left(5) == 5
    room.take(5)
    with pytest.raises(ServerUnavailable):
        room.left(1)
