"""Batches for a learner, drawn ahead of it in the background."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from rlds2buf.core import forks
from rlds2buf.core.arguments import integer
from rlds2buf.errors import ReplayError

__all__ = ["Batches"]

_Batch = TypeVar("_Batch")

_TICK = 0.1
"""Seconds between two looks at whether the other side is still there."""

_Entry = tuple[list[Any], BaseException | None]
"""Batches, and the error that comes after them."""


class Batches(Iterator[_Batch]):
    """An iterator over batches; ``buffer.batches(...)`` makes it.

    A daemon thread draws and converts the next batches while the learner computes, and sees to
    their order: it is that of the draws, however many are under way.  It ends with the last batch,
    with an error (which the learner gets, after the batches that were drawn before it), with
    :meth:`close`, and when the iterator is let go, by ``break`` for instance.

    Args:
        draw: gives that many next batches.
        convert: turns one into what the learner gets.
        together: how many batches are drawn at a time.
        steps: how many there are; None for no end.
        prefetch: how many are kept ready; 0 draws in the learner's own thread, when asked.
        timeout: seconds that the learner waits for a batch, and :meth:`close` for the thread.

    Raises:
        ReplayError: while iterating: no batch came within the time-out, or the process was forked.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        draw: Callable[[int], Sequence[_Batch]],
        convert: Callable[[_Batch], Any],
        *,
        together: int = 1,
        steps: int | None = None,
        prefetch: int = 2,
        timeout: float = 60.0,
    ) -> None:
        steps = None if steps is None else integer("steps", steps, 0)
        together, prefetch = integer("together", together, 1), integer("prefetch", prefetch, 0)
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        self._timeout = timeout
        self._over = False
        self._generation = forks.generation()  # a process id takes a call of the system
        made = _made(draw, convert, together, steps)
        self._made: Iterator[Any] = iter(()) if prefetch else made
        self._worker: _Worker | None = None
        if prefetch:
            self._worker = _Worker(made, prefetch, together)
            # The thread knows nothing of this object, so that letting go of it ends the thread.
            weakref.finalize(self, _stop, self._worker.stop, self._generation)

    def __next__(self) -> _Batch:
        if self._over:
            raise StopIteration
        if forks.generation() != self._generation:
            raise ReplayError(
                "these batches are those of the process that this one was forked from; call batches() here"
            )
        try:
            batch: _Batch = next(self._made) if self._worker is None else self._worker.take(self._timeout)
            return batch
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Draw no more, and wait for the thread to end.  Idempotent."""
        self._over = True
        worker, self._worker = self._worker, None
        if worker is not None and forks.generation() == self._generation:  # a child has no thread
            worker.stop.set()
            worker.thread.join(self._timeout)

    def __enter__(self) -> Batches[_Batch]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stop(event: threading.Event, generation: int) -> None:
    if forks.generation() == generation:
        event.set()


class _Worker:
    """A thread that puts what an iterator gives into a queue, several at a time, and the error it ends with."""

    def __init__(self, made: Iterator[Any], ahead: int, together: int) -> None:
        self.stop = threading.Event()
        self._ready: queue.Queue[_Entry] = queue.Queue(max(1, ahead // together))
        self._taken: deque[Any] = deque()
        self._error: BaseException | None = None
        arguments = made, self._ready, self.stop, min(ahead, together)
        self.thread = threading.Thread(target=_fill, args=arguments, name="rlds2buf-batches", daemon=True)
        self.thread.start()

    def take(self, timeout: float) -> Any:
        """The next one, or the error."""
        while not self._taken:
            if self._error is not None:
                raise self._error
            batches, self._error = self._wait(timeout)
            self._taken.extend(batches)
        return self._taken.popleft()

    def _wait(self, timeout: float) -> _Entry:
        waited = 0.0
        while True:
            try:
                return self._ready.get(timeout=min(_TICK, timeout))
            except queue.Empty:
                if self.stop.is_set():  # closed by another thread
                    return [], StopIteration()
                waited += min(_TICK, timeout)
            if waited >= timeout:
                raise ReplayError(f"no batch was drawn within {timeout:g} seconds")


def _fill(made: Iterator[Any], ready: queue.Queue[_Entry], stop: threading.Event, together: int) -> None:
    """The thread's work; it always ends with an error, StopIteration if there is no other."""
    error: BaseException | None = None
    while error is None and not stop.is_set():
        batches: list[Any] = []
        try:
            while len(batches) < together:
                batches.append(next(made))
        except BaseException as cause:  # handed to the learner, whatever it is
            error = cause
        while not stop.is_set():
            try:
                ready.put((batches, error), timeout=_TICK)
                break
            except queue.Full:
                continue


def _made(
    draw: Callable[[int], Sequence[_Batch]], convert: Callable[[_Batch], Any], together: int, steps: int | None
) -> Iterator[Any]:
    made = 0
    while steps is None or made < steps:
        count = together if steps is None else min(together, steps - made)
        for batch in draw(count):
            yield convert(batch)
        made += count
