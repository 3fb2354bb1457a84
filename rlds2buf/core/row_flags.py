"""How rows of episodes are laid down: the bits of a row's flag byte, the markers in an episode's metadata.

All of them are on disk, in saved buffers and in RLDS folders, so their values stay.  Nothing else spells them.
"""

from __future__ import annotations

from typing import Final

from rlds2buf.core import nest

__all__ = [
    "BREAK",
    "CODE",
    "CONTINUE",
    "FINAL_ROW",
    "IS_FIRST",
    "IS_LAST",
    "IS_TERMINAL",
    "LINKED",
    "NOT_RECORDED",
    "OPEN_TAIL",
    "OWN_NEXT",
    "PLACEHOLDER_FINAL_ROW",
    "REAL_FINAL_ACTION",
    "TERMINATED",
    "TRUNCATED",
    "column_name",
]

CODE: Final = 3
"""Mask of a row's ``is_done`` code, one of the next four, in its flag byte."""

CONTINUE: Final = 0
TERMINATED: Final = 1
TRUNCATED: Final = 2
"""``is_done`` of a transition: goes on, ended by the environment (no bootstrap), cut (bootstrap)."""

FINAL_ROW: Final = 3
"""``is_done`` of a stored row from which no transition starts: it only holds the last observation."""

IS_FIRST: Final = 1 << 2
IS_LAST: Final = 1 << 3
IS_TERMINAL: Final = 1 << 4
"""The flags as they were logged."""

OWN_NEXT: Final = 1 << 5
"""The row is a transition of its own, with its own next observation."""

BREAK: Final = 1 << 6
"""The row goes on, but its successor is not stored (yet)."""

NOT_RECORDED: Final = BREAK
"""The same bit on a final row: its observation is a placeholder."""

LINKED: Final = 1 << 7
"""The successor is not the next slot; ``links`` says which (only in memory)."""

PLACEHOLDER_FINAL_ROW: Final = "placeholder_final_row"
"""In an episode's metadata, True: the observation of the final row was not recorded and is made up."""

REAL_FINAL_ACTION: Final = "real_final_action"
"""In an episode's metadata, True: action and reward of the final row are no padding; the observation that they led to
was not recorded.  Where the final row is a placeholder it says nothing."""

OPEN_TAIL: Final = "open_tail"
"""In an episode's metadata, True: no flag ended it, but the end of the file, and it is taken as truncated."""


def column_name(path: nest.Path) -> str:
    """``observation/arm``; a slash inside a key is written ``~1`` (as in RFC 6901), so that no two names meet.

    >>> column_name(("extras", "a/b", 0))
    'extras/a~1b/0'
    """
    return "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)
