"""Ctrl-C and SIGTERM that are not lost.

A signal handler raises wherever the program happens to be; inside a destructor or a weak reference's
callback Python prints that exception and goes on.  So what has been signalled is also remembered,
and a long loop asks; the print is left out.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["check", "watched"]

_pending = 0
"""The number of the signal that has come, 0 for none."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT, and SystemExit(143) on SIGTERM, so that both clean up; remember them.

    Outside the main thread, where Python knows no signals, it does nothing.

    >>> with watched():
    ...     try:
    ...         signal.raise_signal(signal.SIGTERM)
    ...     except SystemExit as stop:
    ...         print(stop.code)
    143
    """
    global _pending
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, _handle)
    except ValueError:
        yield
        return
    _pending = 0
    report = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if _pending and _is_stop(lost.exc_type) else report(lost)
    try:
        yield
    finally:
        for taken, handler in before.items():
            signal.signal(taken, handler)
        sys.unraisablehook = report
        _pending = 0


def check() -> None:
    """Raise again what a signal raised while nobody could be told.

    >>> check()
    """
    if _pending:
        raise _error(_pending)


def _handle(number: int, frame: FrameType | None) -> None:
    global _pending
    _pending = number
    raise _error(number)


def _is_stop(kind: type[BaseException]) -> bool:
    return issubclass(kind, KeyboardInterrupt | SystemExit)


def _error(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
