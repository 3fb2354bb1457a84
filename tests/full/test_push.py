"""Pushing to a real server: what arrives, what is refused, and what the report says."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, ServerUnavailable, SignatureMismatch, SinkError, WriteTimeout, push
from rlds2buf.formats.memory.source import MemorySource
from rlds2buf.formats.reverb import table_room
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.io.blocks import blocks_of
from tests.full.pushed import contents, episode, episodes, expected, items_in_order, trajectory_signature
from tests.full.quiet import reverb
from tests.full.servers import ServerProcess

# Each of these tables gives every item once, in the order of insertion, so a test can read them back.
ONCE = {"sampler": "fifo", "max_times_sampled": 1}
PLAIN = ["plain", "by_priority", "small", "typed", "dict_typed", "fixed", "blocked"]


@pytest.fixture(scope="module")
def servers():
    dict_typed = {"dict": {key: value for key, value in trajectory_signature()["named"][1] if key != "policy_info"}}
    fixed = json.loads(json.dumps(trajectory_signature()).replace("null", "2"))
    tables = [
        {"name": "once", **ONCE},
        {"name": "plain"},
        {"name": "by_priority", "sampler": "max_heap"},
        {"name": "small", "max_size": 10},
        {"name": "typed", "signature": trajectory_signature()},
        {"name": "dict_typed", "signature": dict_typed, **ONCE},
        {"name": "fixed", "signature": fixed},
        {"name": "blocked", "limiter": ["Queue", 7]},
        {"name": "queue", "max_size": 7, "limiter": ["Queue", 7], **ONCE},
    ]
    small = {"name": "small", "max_size": 10}
    with ServerProcess(tables, [{"name": "plain"}, small], [{"name": "plain"}]) as process:
        yield process


@pytest.fixture
def server(servers):
    client = reverb.Client(servers.address)
    for table in client.server_info():
        client.reset(table)
    for address in servers.addresses[1:]:
        reverb.Client(address).reset("plain")
    return servers


def size(server, table="plain"):
    return reverb.Client(server.address).server_info()[table].current_size


PATTERNS = [
    {},
    {"sequence_length": 3, "stride": 2},
    {"sequence_length": 1},
    {"sequence_length": 5, "pad": True},
    {"sequence_length": 4, "pad": True, "tile": True},
    {"sequence_length": 2, "cross_episodes": True},
    {"terminal_discount": "boundary"},
    {"pattern": "transition"},
    {"pattern": "transition", "n_step": 3, "gamma": 0.9, "extras": ("weight",)},
    {"pattern": "episode"},
]


@pytest.mark.parametrize("arguments", PATTERNS, ids=str)
@pytest.mark.parametrize("nested", [False, True])
def test_every_row_arrives_as_it_is(server, arguments, nested):
    given = episodes(3, 1, 40, 17, nested=nested, terminal=True)
    kind = {**arguments}
    want = expected(make_pattern(kind.pop("pattern", "trajectory"), **kind), given)
    for chunk_length in (None, 1, 7):
        report = push(given, server.address, "once", chunk_length=chunk_length, **arguments)
        assert report.items == report.acknowledged == len(want)
        assert report.agrees and report.already_there == 0
        got = items_in_order(server.address, "once", len(want))
        for one, other in zip(got, want, strict=True):
            assert contents([one]) == contents([other])
        reverb.Client(server.address).reset("once")


def test_a_long_push_arrives_in_order(server):
    given = episodes(5000, 2, 3000)
    want = expected(make_pattern(), given)
    report = push(given, server.address, "once")
    assert report.items == 8002 - 3
    got = items_in_order(server.address, "once", len(want))
    for position in range(6):
        np.testing.assert_array_equal(
            np.array([item[position] for item in got]), np.array([item[position] for item in want])
        )


def test_pushing_again_changes_nothing(server):
    given = episodes(30, 20)
    first = push(given, server.address, "plain")
    again = push(given, server.address, "plain", chunk_length=3)
    assert (first.items, first.already_there) == (48, 0)
    assert (again.items, again.acknowledged, again.already_there) == (48, 48, 48)
    assert again.agrees and size(server) == 48
    more = push(given, server.address, "plain", sequence_length=3)
    assert more.already_there == 0 and size(server) == 48 + 46
    grown = push(episodes(30, 20, 2), server.address, "plain")
    assert (grown.items, grown.already_there, grown.new) == (49, 48, 1), "what was there has its keys still"
    assert any("48 items were in the table before" in note for note in grown.notes)


def test_priorities(server):
    given = episodes(6)

    def highest():
        sample = next(iter(reverb.Client(server.address).sample("by_priority", emit_timesteps=False)))
        return sample.info.priority, float(sample.data[1].flat[0])

    push(given, server.address, "by_priority", priority=2.5)
    assert highest()[0] == 2.5
    push(given, server.address, "by_priority", priority="extras/weight")
    assert highest() == (4 / 7.0, 4.0)
    push(given, server.address, "by_priority", priority=lambda items: 9 - items.reward[:, 0] * 2)
    assert highest() == (9.0, 0.0)
    push(given, server.address, "by_priority", pattern="transition", priority=lambda items: items.reward * 0 + 11)
    assert highest()[0] == 11.0
    assert size(server, "by_priority") == 10


@pytest.mark.parametrize(
    ("priority", "words"),
    [
        ("extras/nothing", "one number per step"),
        ("observation", "one number per step"),
        (lambda items: -items.reward[:, 0], "must be finite and not negative"),
        (lambda items: items.reward[:, 0] * np.nan, "must be finite and not negative"),
    ],
)
def test_priorities_that_are_none(server, priority, words):
    with pytest.raises(rlds2buf.EpisodeError, match=words):
        push(episodes(6), server.address, "plain", priority=priority)
    assert size(server) == 0


def test_skipping_an_episode_with_bad_priorities(server):
    given = [episode(0, 5), episode(1, 4).replace(extras={"weight": np.array([1, -1, 1, 1.0])}), episode(2, 3)]
    report = push(given, server.address, "plain", priority="extras/weight", on_invalid="skip")
    assert report.items == 4 + 2 and report.conversion.rejected == {"priority": 1}
    assert size(server) == 6


@pytest.mark.parametrize("table", ["typed", "dict_typed", "fixed"])
def test_fitting_signatures_are_taken(server, table):
    assert push(episodes(9), server.address, table).items == 8
    if table == "dict_typed":
        sample = next(
            iter(reverb.Client(server.address).sample(table, emit_timesteps=False, unpack_as_table_signature=True))
        )
        assert sample.data["action"].tolist() == [[0, 0], [1, -1]]
        assert sample.data["next_step_type"].tolist() == [1, 1]


@pytest.mark.parametrize("table", ["plain", "typed", "dict_typed"])
def test_items_can_be_sampled_step_by_step(server, table):
    push(episodes(9), server.address, table, sequence_length=4, chunk_length=3)
    (steps,) = reverb.Client(server.address).sample(table)
    assert len(steps) == 4
    flat = [[np.asarray(column) for column in step.data] for step in steps]
    observed = next(i for i, column in enumerate(flat[0]) if column.shape == (3,))
    assert np.diff([step[observed][0] for step in flat]).tolist() == [1, 1, 1]


def test_another_signature_is_refused_field_by_field(server):
    given = [episode(0, 5).replace(observation=np.zeros((5, 4), np.float64), action={"x": np.zeros(5, np.int64)})]
    with pytest.raises(SignatureMismatch) as caught:
        push(given, server.address, "typed")
    text = str(caught.value)
    assert "observation: the data are float64[2, 4], the table takes float32[?, 3]" in text
    assert "action/x: only in the data, int64[2]" in text
    assert "action: only in the table, float32[?, 2]" in text
    with pytest.raises(SignatureMismatch, match=r"the data are float32\[3, 3\], the table takes float32\[2, 3\]"):
        push(episodes(5), server.address, "fixed", sequence_length=3)
    with pytest.raises(SignatureMismatch, match="next_observation: only in the data"):
        push(episodes(5), server.address, "typed", pattern="transition")
    assert size(server, "typed") == 0


def test_no_such_table(server):
    with pytest.raises(SinkError, match=r"no table 'nonsense'; its tables: 'blocked', 'by_priority'"):
        push(episodes(5), server.address, "nonsense")


def test_a_table_that_is_too_small(server):
    with pytest.raises(SinkError, match="holds at most 10 items, and this push has 19 or more") as caught:
        push(episodes(20), server.address, "small")
    assert size(server, "small") == 0 and caught.value.report.acknowledged == 0
    push(episodes(11), server.address, "small")
    assert push(episodes(11), server.address, "small").already_there == 10
    report = push(episodes(30), server.address, "small", allow_eviction=True)
    assert report.agrees and report.servers[0].removed == 29 and size(server, "small") == 10


def test_a_table_that_proves_too_small(server):
    """The number of three-step items is not known before the episodes are read."""
    with pytest.raises(SinkError, match="holds at most 10 items") as caught:
        push(episodes(8, 8), server.address, "small", sequence_length=3)
    assert caught.value.report.acknowledged == 6 == size(server, "small")


@pytest.mark.parametrize("how", [{}, {"final_transition": "keep"}, {"sequence_length": 3}], ids=str)
def test_a_table_too_full_is_left_as_it_is(server, how):
    push(episodes(9), server.address, "small")
    with pytest.raises(
        SinkError, match=r"room for 2 more items .it holds 8 of at most 10., and this push has [678]"
    ) as caught:
        push([episode(5, 8)], server.address, "small", **how)
    assert caught.value.report.acknowledged == 0 and caught.value.report.agrees is False
    assert size(server, "small") == 8 and push(episodes(9), server.address, "small").already_there == 8
    report = push([episode(5, 8)], server.address, "small", allow_eviction=True)
    assert report.agrees and report.servers[0].removed == 5
    assert "remover has dropped 5 items" in report.notes[-1]


def test_in_a_full_table_only_what_is_there_already_is_pushed_again(server, tmp_path):
    journal = tmp_path / "journal"
    push([episode(7, 5)], server.address, "small")
    push(episodes(7), server.address, "small", resume=journal)
    assert size(server, "small") == 10
    for again in (episodes(7), [episode(7, 5)]):
        report = push(again, server.address, "small")
        assert report.already_there == report.items and report.agrees
    assert push(episodes(7), server.address, "small", resume=journal).acknowledged == 0
    for other in (episodes(8), [episode(7, 6)], [episode(3, 4)]):
        with pytest.raises(SinkError, match=r"room for 0 more items .* nothing was sent"):
            push(other, server.address, "small")


def test_a_journal_tells_what_of_a_log_that_has_grown_needs_room(server, tmp_path):
    journal = tmp_path / "journal"
    push(episodes(7), server.address, "small", resume=journal)
    for other in ([episode(50, 6)], [*episodes(7), episode(50, 6)]):
        with pytest.raises(SinkError, match=r"room for 4 more items|holds at most 10 items"):
            push(other, server.address, "small", resume=journal)
        assert size(server, "small") == 6
    with pytest.raises(SinkError, match="room for 4 more items"):  # the journal has as many items, but others
        push([episode(50, 6), episode(51, 2)], server.address, "small", resume=journal)
    report = push([*episodes(7), episode(50, 5)], server.address, "small", resume=journal)
    assert report.agrees and (report.acknowledged, report.resumed, size(server, "small")) == (4, 6, 10)


@pytest.mark.parametrize("how", [{"cross_episodes": True}, {"pattern": "episode"}, {"sequence_length": 1}], ids=str)
def test_every_kind_of_item_is_known_again_in_a_full_table(server, how):
    given = [episode(number, 1) for number in range(10)] if "sequence_length" not in how else episodes(4, 6)
    given = episodes(5, 6) if "cross_episodes" in how else given
    assert push(given, server.address, "small", **how).items == size(server, "small") == 10
    assert push(given, server.address, "small", **how).already_there == 10
    with pytest.raises(SinkError, match="none of which seem to be there"):
        push([episode(44, 3)], server.address, "small", **how)


def test_of_several_servers_each_must_have_room(server):
    given = episodes(*[2] * 15)
    both = [server.address, server.addresses[1]]
    reverb.Client(both[1]).reset("small")
    report = push(given, both, "small")
    assert report.agrees and sorted(one.items for one in report.servers)[1] <= 10
    assert push(given, both, "small").already_there == 15
    with pytest.raises(SinkError, match=r"room for \d more items"):
        push([episode(100 + number, 2) for number in range(14)], both, "small")
    assert sum(reverb.Client(one).server_info()["small"].current_size for one in both) == 15


class Meanwhile(MemorySource):
    """Calls `between` before it hands out episode number `at`, the first time after it was told to."""

    def __init__(self, given: list[Episode], at: int, between: Any) -> None:
        super().__init__(given)
        self._at, self._between = at, between

    def fingerprint(self) -> str:
        return "the same"

    def read_batches(self, start: int = 0, stop: int | None = None, **size: int) -> Any:
        return blocks_of(self._told(start, stop), 1, 1)

    def _told(self, start: int, stop: int | None) -> Any:
        for item in MemorySource(list(self._episodes)).read(start, stop):
            if item.index == self._at and self._between is not None:
                between, self._between = self._between, None
                between()
            yield item


def test_what_others_insert_meanwhile_is_not_held_against_a_push(server):
    def others() -> None:
        actor = reverb.Client(server.address)
        for number in range(40):
            actor.insert([np.zeros(number % 5 + 1)], {"plain": 1.0})

    report = push(Meanwhile(episodes(9, 8), 1, others), server.address, "plain")
    (count,) = report.servers
    assert report.agrees and (count.others, count.new, count.removed, count.unchecked) == (40, None, 0, 0)
    assert size(server) == 15 + 40 and report.already_there == 0
    assert "at least 40 items meanwhile; nothing has left the table, so all 15" in report.notes[-1]
    assert report.to_json()["servers"][0]["new"] is None


def test_two_pushers_and_an_actor_at_once(server):
    stop = threading.Event()
    sent = []

    def act() -> None:
        client = reverb.Client(server.address)
        with client.trajectory_writer(num_keep_alive_refs=2) as writer:
            while not stop.is_set() or len(sent) < 10:
                writer.append([np.full(3, len(sent), np.float32)])
                writer.create_item("plain", 1.0, {"x": writer.history[0][-1:]})
                sent.append(1)
                if len(sent) % 50 == 0:
                    writer.flush()

    actor = threading.Thread(target=act, daemon=True)
    actor.start()
    sets = [[episode(base + number, 40) for number in range(30)] for base in (0, 100)]
    reports: list[Any] = []
    pushers = [
        threading.Thread(target=lambda given=given: reports.append(push(given, server.address, "plain")))
        for given in sets
    ]
    for pusher in pushers:
        pusher.start()
    for pusher in pushers:
        pusher.join(timeout=60)
    stop.set()
    actor.join(timeout=60)
    assert not actor.is_alive() and [report.agrees for report in reports] == [True, True]
    assert size(server) == 2 * 30 * 39 + len(sent)


def test_others_who_take_the_room_meanwhile_lose_nothing(server, monkeypatch):
    monkeypatch.setattr(table_room, "ASK_SECONDS", 0.0)

    def others() -> None:
        for number in range(6):
            reverb.Client(server.address).insert([np.full(1, number)], {"small": 1.0})

    with pytest.raises(SinkError, match=r"is full: it holds 10 of at most 10 items. 4 of this push .* removed nothing"):
        push(Meanwhile(episodes(3, 3, 3, 3, 3), 2, others), server.address, "small")
    info = reverb.Client(server.address).server_info()["small"]
    assert info.current_size == info.rate_limiter_info.insert_stats.completed == 10


def test_what_has_left_beside_others_can_not_be_checked(server, monkeypatch):
    monkeypatch.setattr(table_room, "ASK_SECONDS", 1e9)

    def others() -> None:
        for number in range(9):
            reverb.Client(server.address).insert([np.full(1, number)], {"small": 1.0})

    report = push(Meanwhile(episodes(3, 3), 1, others), server.address, "small")
    (count,) = report.servers
    assert (count.agrees, count.others, count.removed, count.unchecked) == (None, 9, 3, 3)
    assert report.agrees is False and "up to 3 may be gone; that could not be checked" in report.notes[-1]


def test_a_queue_evicts_nothing_so_any_number_goes_through(server):
    read = []

    def reader() -> None:
        for sample in reverb.Client(server.address).sample("queue", num_samples=49, emit_timesteps=False):
            read.append(sample.info.item.key if hasattr(sample.info, "item") else sample.info.key)

    thread = threading.Thread(target=reader, daemon=True)
    thread.start()
    report = push(episodes(50), server.address, "queue", timeout=10)
    thread.join(timeout=60)
    assert not thread.is_alive() and report.items == report.acknowledged == 49 == len(set(read))


def test_a_rate_limiter_that_lets_nothing_in(server):
    start = time.monotonic()
    with pytest.raises(WriteTimeout) as caught:
        push(episodes(50), server.address, "blocked", timeout=1)
    assert time.monotonic() - start < 12
    text = str(caught.value)
    assert "rate limiter lets nothing in until somebody samples" in text
    assert "table 'blocked': 7 of at most 1000000 items" in text
    assert any("will wait for samples after 7 new items" in note for note in caught.value.report.notes)


def test_a_rate_limiter_that_waits_for_a_reader(server):
    client = reverb.Client(server.address)

    def read():
        for _ in client.sample("blocked", num_samples=49, emit_timesteps=False):
            time.sleep(0.01)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    report = push(episodes(50), server.address, "blocked", timeout=5)
    reader.join(timeout=60)
    assert not reader.is_alive()
    assert report.items == report.acknowledged == 49


def test_what_was_sent_in_vain_is_not_counted_as_resumed(server, tmp_path):
    for attempt in range(2):  # more items than may be under way, so it is a write that gives up
        with pytest.raises(WriteTimeout) as caught:
            push(episodes(*[5000] * 8), server.address, "blocked", timeout=1, resume=tmp_path / "journal")
        report = caught.value.report
        assert report.resumed == 0 and 0 <= report.to_json()["acknowledged"] <= 7, attempt


def test_episodes_spread_over_servers(server):
    given = episodes(*[5] * 40)
    report = push(given, server.addresses[1:], "plain")
    counts = [one.items for one in report.servers]
    assert report.agrees and sum(counts) == 160 and min(counts) > 20
    assert [reverb.Client(address).server_info()["plain"].current_size for address in server.addresses[1:]] == counts
    again = push(given[::-1], server.addresses[:0:-1], "plain")
    assert again.already_there == 160 and [one.items for one in again.servers] == counts[::-1]
    assert [one.address for one in again.servers] == server.addresses[:0:-1]
    with pytest.raises(ValueError, match="several servers"):
        push(given, server.addresses, "plain", cross_episodes=True)
    with pytest.raises(ValueError, match="named twice"):
        push(given, [server.address, server.address], "plain")


def test_invalid_half_way(server):
    bad = episode(2, 6).replace(reward=np.array([1, 2, np.nan, 4, 5, 6], np.float32))
    given = [episode(0, 5), episode(1, 9), bad, episode(3, 4)]
    with pytest.raises(rlds2buf.EpisodeError, match="reward is not finite") as caught:
        push(given, server.address, "plain")
    report = caught.value.report
    assert report.acknowledged == 12 == size(server) == report.items == report.servers[0].items
    report = push(given, server.address, "plain", on_invalid="skip")
    assert report.items == 15 == size(server)
    assert report.already_there == 12 and report.conversion.rejected == {"nonfinite": 1}


def test_episodes_too_short_for_the_pattern_are_counted(server):
    report = push(episodes(1, 3, 9), server.address, "plain", sequence_length=4)
    assert report.items == 6 and report.episodes_without_items == 2
    assert "2 episodes are too short" in report.notes[-1]
    nothing = push(episodes(1, 3), server.address, "plain", sequence_length=4)
    assert nothing.items == 0 and nothing.agrees


def test_a_journal_passes_over_what_is_acknowledged(server, tmp_path):
    journal = tmp_path / "journal"
    given = episodes(5, 6, 7)
    broken = [*given[:2], given[2].replace(is_terminal=np.arange(7) == 3)]
    with pytest.raises(rlds2buf.BoundaryError):
        push(broken, server.address, "plain", resume=journal)
    assert size(server) == 9
    # What was right is known by its content, whatever is read now.
    first = push(given, server.address, "plain", resume=journal)
    again = push(given, server.address, "plain", resume=journal)
    assert (first.acknowledged, first.resumed) == (6, 9)
    assert (again.acknowledged, again.resumed, again.items) == (0, 15, 15)
    assert again.agrees and size(server) == 15
    with pytest.raises(SinkError, match="priority"):
        push(given, server.address, "plain", resume=journal, priority=2)


def test_a_table_that_was_emptied_since_gets_everything_again(server, tmp_path):
    journal = tmp_path / "journal"
    push(episodes(5, 6), server.address, "plain", resume=journal)
    reverb.Client(server.address).reset("plain")
    report = push(episodes(5, 6), server.address, "plain", resume=journal)
    assert report.acknowledged == 9 == size(server) and report.agrees
    assert any("restarted or its table emptied" in note for note in report.notes)


def test_every_sampler_and_remover():
    kinds = ["uniform", "fifo", "lifo", "prioritized", "max_heap", "min_heap"]
    tables = [
        {"name": f"{sampler} {remover}", "sampler": sampler, "remover": remover, "max_size": 20, "limiter": limiter}
        for sampler in kinds
        for remover in kinds
        for limiter in [["MinSize", 5] if sampler != "fifo" else ["SampleToInsertRatio", 1, 5, 100]]
    ]
    given = episodes(15, 20)
    allowed = set(contents(expected(make_pattern(), given)))
    with ServerProcess(tables) as process:
        client = reverb.Client(process.address)
        for table in tables:
            report = push(given, process.address, table["name"], priority="extras/weight", allow_eviction=True)
            assert report.agrees and report.servers[0].removed == 33 - 20, table
            samples = client.sample(table["name"], num_samples=5, emit_timesteps=False)
            assert set(contents([list(sample.data) for sample in samples])) <= allowed


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(ServerUnavailable, match=address):
        push(episodes(5), address, "plain", timeout=1)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_listens(greeting):
    with socket.create_server(("localhost", 0)) as listener:
        done = threading.Event()

        def answer():
            held = []
            listener.settimeout(0.1)
            while not done.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                connection.sendall(greeting)
                held.append(connection)
            for connection in held:
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        start = time.monotonic()
        try:
            with pytest.raises(ServerUnavailable, match=f"localhost:{listener.getsockname()[1]}"):
                push(episodes(5), f"localhost:{listener.getsockname()[1]}", "plain", timeout=1)
        finally:
            done.set()
            thread.join(timeout=30)
        assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(timeout=0), "timeout"),
        (dict(timeout=float("inf")), "timeout"),
        (dict(priority=-1), "priority"),
        (dict(priority=float("nan")), "priority"),
        (dict(chunk_length=0), "chunk_length"),
        (dict(priority="reward", cross_episodes=True), "cross"),
        (dict(split="train"), "split"),
    ],
)
def test_arguments_out_of_range(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        push(episodes(5), "localhost:1", "plain", **arguments)
    with pytest.raises(ValueError, match="HOST:PORT"):
        push(episodes(5), "localhost", "plain")
    with pytest.raises(ValueError, match="at least one server"):
        push(episodes(5), [], "plain")


def test_data_without_rewards_are_refused(server):
    with pytest.raises(SinkError, match="no reward"):
        push([Episode(observation=np.zeros(3), action=np.zeros(3))], server.address, "plain")


def test_the_report_is_json(server):
    report = push(episodes(5), server.address, "plain").to_json()
    assert json.loads(json.dumps(report))["servers"][0]["size_after"] == 4
    assert set(itertools.chain(report)) >= {"items", "acknowledged", "already_there", "agrees", "notes", "seconds"}
