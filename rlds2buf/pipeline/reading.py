"""Blocks of a source, read by this process or by several."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

from rlds2buf.core.arguments import integer
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.errors import EpisodeError, SourceError
from rlds2buf.io.source import Source

__all__ = ["blocks", "jobs_for"]

_PROGRAM = """
import sys
sys.path[:] = sys.argv[2:]
from rlds2buf.pipeline.reading_process import main
main(int(sys.argv[1]))
"""
"""Of a process that reads. It imports what this one would, and not the program that is running here."""
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
_ROWS_UNKNOWN = 100
"""Of an episode, where the source does not say how many rows it has."""


def jobs_for(source: Source, jobs: int) -> int:
    """How many processes can read a source, of those that were asked for.

    One, unless it was opened by :func:`rlds2buf.open_source` from a path, with options that can be sent to another
    process, and knows how many episodes it has.

    Raises:
        ValueError: fewer than one are asked for.
    """
    if (
        integer("jobs", jobs, 1) == 1
        or source.recipe is None
        or not source.num_items
        or not _can_be_sent(source.recipe)
    ):
        return 1
    return min(jobs, source.num_items)


def blocks(
    source: Source,
    start: int = 0,
    stop: int | None = None,
    *,
    jobs: int = 1,
    rows: int = 1 << 14,
    bytes: int = 64 << 20,
) -> Iterator[EpisodeBatch | EpisodeError]:
    """As :meth:`Source.read_batches <rlds2buf.io.source.Source.read_batches>`, by as many processes as `jobs` says.

    The same episodes in the same order; only where one block ends and another begins may differ.

    Raises:
        SourceError: as reading raises it, or a process that reads was killed.
    """
    count = source.num_items
    stop = count if stop is None else stop if count is None else min(stop, count)
    if jobs == 1 or stop is None or source.recipe is None:
        yield from source.read_batches(start, stop, rows=rows, bytes=bytes)
        return
    with contextlib.ExitStack() as stack:
        step = _episodes_of(source, rows)
        spans = [(begin, min(begin + step, stop)) for begin in range(start, stop, step)]
        readers = [stack.enter_context(_Reader(source)) for _ in range(min(jobs, len(spans)))]
        sizes = {"rows": rows, "bytes": bytes}
        for number, span in enumerate(spans[: len(readers)]):
            readers[number].ask(*span, sizes)
        for number in range(len(spans)):
            reader = readers[number % len(readers)]
            yield from reader.answers()
            if number + len(readers) < len(spans):
                reader.ask(*spans[number + len(readers)], sizes)


def _can_be_sent(recipe: Any) -> bool:
    try:
        json.dumps(recipe)
    except (TypeError, ValueError):  # a function given as `where`, say
        return False
    return True


def _episodes_of(source: Source, rows: int) -> int:
    """How many make about one block."""
    steps, count = source.num_steps, source.num_items
    length = _ROWS_UNKNOWN if not steps or not count else steps / count
    return max(1, int(rows / length))


class _Reader:
    """One process that reads; it ends with the context, whatever it is doing."""

    def __init__(self, source: Source) -> None:
        self._name = source.name
        assert source.recipe is not None
        path, options, lanes = source.recipe
        self._connection, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._connection.send((path, options, lanes))

    def ask(self, start: int, stop: int, sizes: dict[str, int]) -> None:
        """Have episodes read."""
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            self._connection.send((start, stop, sizes))

    def answers(self) -> Iterator[EpisodeBatch | EpisodeError]:
        """What was read of the oldest span that has no answer yet."""
        while (item := self._answer()) is not None:
            if isinstance(item, BaseException) and not isinstance(item, EpisodeError):
                raise item
            yield item

    def _answer(self) -> Any:
        try:
            while not self._connection.poll(_LOOK_SECONDS):
                if self._process.poll() is not None and not self._connection.poll(0):
                    break
            else:
                return self._connection.recv()
        except (EOFError, ConnectionResetError):
            pass
        code = self._process.wait(_PATIENCE_SECONDS)
        raise SourceError(f"{self._name}: a process that read it ended with {code}; jobs=1 reads it in this one")

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait(_PATIENCE_SECONDS)
