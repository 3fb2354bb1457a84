"""What breaks in the middle: the client, the connection, the server."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlds2buf import Episode, ServerUnavailable, SinkError, SourceError, push
from rlds2buf.formats.memory.source import MemorySource
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.io.blocks import blocks_of
from tests.full.proxy import Proxy
from tests.full.pushed import contents, episodes, expected, items_in_order
from tests.full.quiet import reverb
from tests.full.servers import ServerProcess

TIGHT = 20 * 299
TABLES = [
    {"name": "plain"},
    {"name": "once", "sampler": "fifo", "max_times_sampled": 1},
    {"name": "tight", "max_size": TIGHT},
]


def many(count: int, rows: int = 300) -> list[Episode]:
    rng = np.random.default_rng(count)
    ends = np.arange(rows) == rows - 1
    return [
        Episode(
            observation=rng.normal(size=(rows, 17)).astype(np.float32),
            action=rng.normal(size=(rows, 6)).astype(np.float32),
            reward=rng.normal(size=rows).astype(np.float32),
            discount=np.ones(rows, np.float32),
            is_first=np.arange(rows) == 0,
            is_last=ends,
            is_terminal=ends,
            index=number,
        )
        for number in range(count)
    ]


def size(address: str, table: str = "plain") -> int:
    return reverb.Client(address).server_info()[table].current_size


class Pushing(threading.Thread):
    """A push in a thread; `result` gives its report or raises its error."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()
        self._arguments, self._options = arguments, options
        self._report: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._report = push(*self._arguments, **self._options)
        except BaseException as error:
            self._error = error

    def result(self, timeout: float) -> Any:
        self.join(timeout)
        assert not self.is_alive(), "the push hangs"
        if self._error is not None:
            raise self._error
        return self._report


def wait_for_items(address: str, count: int, table: str = "plain") -> None:
    client = reverb.Client(address)
    for _ in range(4000):
        if client.server_info()[table].current_size >= count:
            return
        time.sleep(0.002)
    raise AssertionError("nothing arrives")


@pytest.fixture(scope="module")
def server():
    with ServerProcess(TABLES, [{"name": "other"}], TABLES) as process:
        yield process


@pytest.fixture(scope="module")
def mortal(tmp_path_factory):
    """A server that tests may stop and kill; each leaves it running, the last one but dead."""
    with ServerProcess(TABLES, checkpoint=str(tmp_path_factory.mktemp("checkpoints"))) as process:
        yield process


@pytest.fixture(autouse=True)
def emptied(request):
    for name in ("server", "mortal"):
        if name in request.fixturenames:
            addresses = request.getfixturevalue(name).addresses
            for address in addresses[::2]:
                for table in TABLES:
                    reverb.Client(address).reset(table["name"])


def push_and_die(items: int, *arguments: Any, **options: Any) -> int:
    """Push in a forked process that is killed once the table holds so many items; returns its exit code."""
    child = os.fork()
    if child == 0:
        try:
            push(*arguments, **options)
            os._exit(0)
        except BaseException:
            os._exit(1)
    try:
        wait_for_items(arguments[1], items, arguments[2])
    finally:
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code


def test_a_client_killed_at_any_moment_goes_on_where_it_was(server, tmp_path):
    rng = np.random.default_rng(20)
    given = many(60)
    total = 60 * 299
    codes, resumed = [], []
    for attempt in range(20):
        reverb.Client(server.address).reset("plain")
        journal = tmp_path / f"journal{attempt}"
        for moment in sorted(rng.integers(0, total, 1 + attempt % 2).tolist()):
            codes.append(push_and_die(moment, given, server.address, "plain", resume=journal))
        report = push(given, server.address, "plain", resume=journal)
        assert report.agrees and report.items == total == report.resumed + report.acknowledged
        assert size(server.address) == total
        resumed.append(report.resumed)
    assert set(codes) <= {-signal.SIGKILL, 0}
    assert codes.count(-signal.SIGKILL) >= 20, codes
    assert sum(0 < count < total for count in resumed) >= 10, resumed


def test_a_killed_push_leaves_whole_items(server, tmp_path):
    given = episodes(*[40] * 50)
    want = expected(make_pattern(), given)
    push_and_die(len(want) // 3, given, server.address, "once", resume=tmp_path / "journal")
    push(given, server.address, "once", resume=tmp_path / "journal")
    assert contents(items_in_order(server.address, "once", len(want))) == contents(want)


def test_cut_connections_are_made_again(server):
    given = many(300)
    rng = np.random.default_rng(3)
    with Proxy(server.address) as proxy:
        pushing = Pushing(given, proxy.address, "plain", timeout=20)
        wait_for_items(server.address, 1)
        for _ in range(5):
            time.sleep(rng.uniform(0.05, 0.3))
            proxy.cut()
        report = pushing.result(60)
    assert report.reconnects >= 2 and report.agrees
    assert size(server.address) == report.items == 300 * 299


def test_cut_connections_lose_and_double_nothing(server):
    given = episodes(*[90] * 40)
    want = expected(make_pattern(sequence_length=3), given)
    with Proxy(server.address) as proxy:
        pushing = Pushing(given, proxy.address, "once", timeout=20, sequence_length=3)
        wait_for_items(server.address, 1, "once")
        proxy.cut()
        report = pushing.result(60)
    assert report.items == len(want)
    assert contents(items_in_order(server.address, "once", len(want))) == contents(want)


def test_one_of_two_servers_is_gone_for_a_while(server, tmp_path):
    given = many(200)
    journal = tmp_path / "journal"
    with Proxy(server.addresses[2]) as proxy:
        both = [server.address, proxy.address]
        pushing = Pushing(given, both, "plain", timeout=2, resume=journal)
        wait_for_items(server.addresses[2], 1)
    with pytest.raises(ServerUnavailable, match=proxy.address) as caught:
        pushing.result(60)
    report = caught.value.report
    assert [one.address for one in report.servers] == both and report.acknowledged < 200 * 299
    with Proxy(server.addresses[2], proxy.port):
        report = push(given, both, "plain", resume=journal)
    assert report.agrees and report.items == 200 * 299 and report.resumed > 0
    assert [size(server.address), size(server.addresses[2])] == [one.items for one in report.servers]


def test_a_long_push_goes_on_reading_where_it_was(server, tmp_path, monkeypatch):
    """From time to time everything is waited for, and what lies before need not be read again."""
    monkeypatch.setattr(sys.modules["rlds2buf.pipeline.conversion"], "CHECKPOINT_SECONDS", 0.02)
    given = many(300)  # several blocks
    total = 300 * 299
    gone_on = []
    for attempt in range(4):
        reverb.Client(server.address).reset("plain")
        journal = tmp_path / f"journal{attempt}"
        for moment in (total // 3, 2 * total // 3):
            push_and_die(moment, given, server.address, "plain", resume=journal)
        report = push(given, server.address, "plain", resume=journal)
        assert report.agrees and size(server.address) == total == report.items
        assert report.conversion.read == report.conversion.episodes == 300
        gone_on.append(report.conversion.resumed)
    assert max(gone_on) > 10, gone_on


def test_equal_episodes_are_counted_on_after_a_kill(server, tmp_path, monkeypatch):
    """What came before the point that reading goes on from is known, though it is not read again."""
    monkeypatch.setattr(sys.modules["rlds2buf.pipeline.conversion"], "CHECKPOINT_SECONDS", 0.02)
    given = many(100) * 3
    total = 300 * 299
    gone_on = []
    for attempt in range(2):
        reverb.Client(server.address).reset("plain")
        journal = tmp_path / f"journal{attempt}"
        for moment in (total // 2, 3 * total // 4, 4 * total // 5):
            push_and_die(moment, given, server.address, "plain", resume=journal)
        report = push(given, server.address, "plain", resume=journal)
        assert report.agrees and size(server.address) == total == report.items
        assert push(given, server.address, "plain").new == 0
        assert size(server.address) == total
        gone_on.append(report.conversion.resumed)
    assert max(gone_on) > 100, gone_on


def test_a_server_that_stops_answering(mortal, tmp_path):
    given = many(100)
    pushing = Pushing(given, mortal.address, "plain", timeout=1.5, resume=tmp_path / "journal")
    wait_for_items(mortal.address, 1)
    mortal.stop()
    start = time.monotonic()
    with pytest.raises(ServerUnavailable, match=mortal.address) as caught:
        pushing.result(60)
    assert time.monotonic() - start < 20
    held = caught.value.report.acknowledged
    assert held < 100 * 299
    mortal.go_on()
    report = push(given, mortal.address, "plain", resume=tmp_path / "journal")
    assert report.agrees and size(mortal.address) == report.items == 100 * 299
    assert report.resumed <= held


class Interrupted(MemorySource):
    """Calls `between` before it hands out episode number `at`, the first time."""

    def __init__(self, given: list[Episode], at: int, between: Any) -> None:
        super().__init__(given)
        self._at, self._between = at, between
        self._whole = MemorySource(given)

    def fingerprint(self) -> str:
        return self._whole.fingerprint()

    def read_batches(self, start: int = 0, stop: int | None = None, **size: int) -> Any:
        return blocks_of(self._told(start, stop), **size)

    def _told(self, start: int, stop: int | None) -> Iterator[Any]:
        for item in self._whole.read(start, stop):
            if item.index == self._at and self._between is not None:
                between, self._between = self._between, None
                between()
            yield item


def test_a_server_restarted_while_nothing_is_under_way(mortal, tmp_path):
    """What an earlier run had acknowledged is gone with the server, though this run has sent nothing yet."""
    given = many(20)
    journal = tmp_path / "journal"

    def stop_reading() -> None:
        raise SourceError("the disk is gone")

    with pytest.raises(SourceError):
        push(Interrupted(given, 10, stop_reading), mortal.address, "plain", resume=journal)
    assert size(mortal.address) == 10 * 299

    def restart() -> None:
        mortal.kill()
        mortal.begin()
        mortal.ready()

    report = push(Interrupted(given, 10, restart), mortal.address, "plain", resume=journal, timeout=60)
    assert report.restarts == 1 and report.agrees
    assert size(mortal.address) == report.items == 20 * 299


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_server_that_is_restarted(mortal, tmp_path, with_checkpoint):
    given = many(400)
    total = 400 * 299
    journal = tmp_path / "journal"
    pushing = Pushing(given, mortal.address, "plain", timeout=60, resume=journal)
    wait_for_items(mortal.address, 2000)
    if with_checkpoint:
        reverb.Client(mortal.address).checkpoint()
    mortal.kill()
    mortal.begin()
    mortal.ready()
    report = pushing.result(120)
    assert report.restarts == 1 and report.agrees
    assert size(mortal.address) == report.items == total
    assert (report.already_there > 0) is with_checkpoint
    # The journal belongs to the server that is there now ...
    again = push(given, mortal.address, "plain", resume=journal)
    assert again.acknowledged == 0 and again.agrees
    if not with_checkpoint:
        # ... and is not believed by the next one, which knows of nothing.
        mortal.kill()
        mortal.begin()
        mortal.ready()
        again = push(given, mortal.address, "plain", resume=journal)
        assert again.acknowledged == total == size(mortal.address) and again.agrees


def test_a_server_restarted_with_a_table_that_is_just_large_enough(mortal, tmp_path):
    given = many(20)
    journal = tmp_path / "journal"

    def restart() -> None:
        wait_for_items(mortal.address, 1, "tight")
        reverb.Client(mortal.address).checkpoint()
        mortal.kill()
        mortal.begin()
        mortal.ready()

    def stop_reading() -> None:
        raise SourceError("the disk is gone")

    # Some items are there already, and nobody knows which, so all are sent again.
    with pytest.raises(SourceError):
        push(Interrupted(given, 10, stop_reading), mortal.address, "tight", resume=journal)
    report = push(Interrupted(given, 10, restart), mortal.address, "tight", resume=journal, timeout=60)
    assert report.restarts == 1 and report.agrees and size(mortal.address, "tight") == report.items == TIGHT
    restart()
    report = push(given, mortal.address, "tight", resume=journal)
    assert report.agrees and report.already_there == TIGHT == size(mortal.address, "tight")
    restart()
    with pytest.raises(SinkError, match="room for 0 more items"):
        push(many(19), mortal.address, "tight")


def test_a_server_that_dies_for_good(mortal):
    pushing = Pushing(many(400), mortal.address, "plain", timeout=2)
    wait_for_items(mortal.address, 1)
    mortal.kill()
    with pytest.raises(ServerUnavailable, match="gave up after") as caught:
        pushing.result(60)
    assert caught.value.report.items > 0


def test_the_wrong_table_on_one_of_two_servers(server):
    with pytest.raises(SinkError, match="no table 'plain'"):
        push(many(2), server.addresses[:2], "plain")
    assert size(server.address) == 0
