"""Signals that come at a bad moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

import rlds2buf
from rlds2buf.pipeline import interruption
from rlds2buf.pipeline.progress import Tracked
from tests.buffers.numbered import episode


class Signalling:
    """Sends a signal when it is destroyed, where an exception has nowhere to go."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def swallowed(number: int) -> None:
    """A signal whose exception Python does not pass on."""
    Signalling(number)


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_lost_signal_stops_the_next_read(number: int, kind: type[BaseException]) -> None:
    with rlds2buf.open_source([episode(0, 3), episode(10, 3)]) as source, interruption.watched():
        blocks = Tracked(source, "count").read_batches(rows=3)
        next(blocks)
        swallowed(number)
        with pytest.raises(kind):
            next(blocks)


def test_it_is_forgotten_afterwards_and_the_handlers_are_as_before() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with interruption.watched():
        swallowed(signal.SIGTERM)
        with pytest.raises(SystemExit):
            interruption.check()
    interruption.check()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_other_threads_have_no_signals() -> None:
    done: list[str] = []

    def work(into: Callable[[str], None]) -> None:
        with interruption.watched():
            into("worked")

    thread = threading.Thread(target=work, args=(done.append,))
    thread.start()
    thread.join(timeout=60)
    assert done == ["worked"]
