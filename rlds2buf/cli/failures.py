"""How an error leaves the command line: an exit code, one sentence, or one JSON object."""

from __future__ import annotations

from typing import Any

import click

from rlds2buf.cli.wording import as_options
from rlds2buf.errors import (
    EpisodeError,
    ReplayError,
    Rlds2bufError,
    SinkError,
    SnapshotError,
    SourceError,
    TooLarge,
    told,
)

__all__ = ["BUG", "INTERRUPTED", "INVALID", "MEANINGS", "TERMINATED", "USAGE", "as_json", "exit_code", "message"]

INVALID = 1
USAGE = 2
BUG = 70
"""An error that nobody foresaw (the number is EX_SOFTWARE of BSD's sysexits)."""
INTERRUPTED = 130
"""Stopped by Ctrl-C: 128 and the signal's number, as shells have it."""
TERMINATED = 143
"""Stopped by SIGTERM, likewise."""

MEANINGS = {
    0: "done",
    INVALID: "the data are invalid",
    USAGE: "usage: an argument is wrong",
    3: "the source can't be read, or an optional package is not installed",
    4: "the output can't be written",
    5: "a buffer or snapshot is bad, or there already",
    BUG: "a bug in rlds2buf",
    INTERRUPTED: "interrupted (Ctrl-C)",
    TERMINATED: "terminated (SIGTERM)",
}
"""What each exit code says."""

_BY_CLASS: tuple[tuple[type[BaseException], int], ...] = (
    (EpisodeError, INVALID),
    (SourceError, 3),
    (SinkError, 4),
    (SnapshotError, 5),
    (TooLarge, USAGE),
    (ReplayError, 5),
    (click.UsageError, USAGE),
    (click.Abort, INTERRUPTED),
    (KeyboardInterrupt, INTERRUPTED),
    (ValueError, USAGE),  # a plain one: an argument is wrong (rlds2buf/errors.py)
)

_STOPPED = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}


def exit_code(error: BaseException) -> int:
    """The documented exit code of an error's class.

    >>> from rlds2buf.errors import SourceNotFound
    >>> exit_code(SourceNotFound("no such folder"))
    3
    """
    if isinstance(error, SystemExit) and error.code == TERMINATED:
        return TERMINATED
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return BUG


def message(error: BaseException, command: str = "") -> str:
    """One sentence for a person who typed a command.

    >>> message(ValueError("n_step must be at least 1"), "sample")
    '--n-step must be at least 1'
    """
    code = exit_code(error)
    advice = told(error, "advice")
    if code in _STOPPED:
        return f"{_STOPPED[code]}; {as_options(advice)}" if advice else _STOPPED[code]
    if isinstance(error, click.UsageError):
        return as_options(error.format_message(), command)
    if code == BUG:
        return f"{type(error).__name__}: {error} (unexpected; RLDS2BUF_DEBUG=1 shows where)"
    return as_options(str(error), command)


def as_json(error: BaseException, command: str = "") -> dict[str, Any]:
    """The object that ``--json`` prints instead of the command's own.

    >>> from rlds2buf.errors import BoundaryError
    >>> found = as_json(BoundaryError("no first step", source="a.hdf5", episode=3, step=0, path="is_first"))
    >>> found["error"], found["class"], found["episode"], found["exit_code"]
    ('no first step', 'BoundaryError', 3, 1)
    """
    known: dict[str, Any] = {
        "error": as_options(error.message) if isinstance(error, EpisodeError) else message(error, command),
        "class": "KeyboardInterrupt" if isinstance(error, click.Abort) else type(error).__name__,
        "exit_code": exit_code(error),
    }
    known["source"] = error.source if isinstance(error, Rlds2bufError) else None
    for name in ("episode", "step", "path", "rule"):
        known[name] = getattr(error, name) if isinstance(error, EpisodeError) else None
    if advice := told(error, "advice"):
        known["advice"] = as_options(advice)
    if (report := told(error, "report")) is not None:
        known["report"] = report.to_json()
    return known
