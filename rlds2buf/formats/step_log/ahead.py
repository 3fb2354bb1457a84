"""Work that releases the interpreter's lock, done a few pieces ahead of who takes its results."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ahead"]

_MOST: int = 8
_MOST_BYTES: int = 1 << 25
_T = TypeVar("_T")
_R = TypeVar("_R")


def ahead(work: Callable[[_T], _R], items: Iterator[_T], size: Callable[[_T], int]) -> Iterator[tuple[_T, _R]]:
    """Each item with what `work` makes of it, in order; done on as many threads as there are cores, at most 8.

    Args:
        work: called with each item.
        items: taken as far ahead as there are threads, and no further where they are large.
        size: an item's bytes.

    Not for iterators that stand still while a process is forked: the child has no threads to wait for.

    Raises:
        what `work` and `items` raise, behind all that precedes it.

    >>> list(ahead(len, iter(["a", "bcd"]), len))
    [('a', 1), ('bcd', 3)]
    """
    threads = min(_MOST, os.cpu_count() or 1)
    if threads == 1:
        for item in items:
            yield item, work(item)
        return
    waiting: deque[tuple[_T, Future[_R]]] = deque()
    error: Exception | None = None
    held = 0
    with ThreadPoolExecutor(threads, thread_name_prefix="rlds2buf-parse") as pool:
        try:
            while error is None or waiting:
                try:
                    while error is None and len(waiting) <= threads and (held < _MOST_BYTES or not waiting):
                        item = next(items)
                        held += size(item)
                        waiting.append((item, pool.submit(work, item)))
                except Exception as cause:  # what precedes it comes first
                    error = cause
                if waiting:
                    done, result = waiting.popleft()
                    held -= size(done)
                    yield done, result.result()
        finally:
            for _, result in waiting:
                result.cancel()
    if not isinstance(error, StopIteration):
        raise error
