"""How rows of episodes are laid down in a buffer: the bits of a row's flag byte, and the columns' names."""

from __future__ import annotations

from typing import Final

from rlds2buf.core import nest

__all__ = ["CODE", "IS_FIRST", "IS_LAST", "IS_TERMINAL", "NOT_RECORDED", "OWN_NEXT", "column_name"]

CODE: Final = 3
"""Mask of a row's ``is_done`` code; :data:`~rlds2buf.core.fields.FINAL_ROW` is an episode's last row."""

IS_FIRST: Final = 1 << 2
IS_LAST: Final = 1 << 3
IS_TERMINAL: Final = 1 << 4
"""The flags as they were logged."""

OWN_NEXT: Final = 1 << 5
"""The row is a transition of its own, with its own next observation."""

NOT_RECORDED: Final = 1 << 6
"""On a final row: its observation is a placeholder. (On others: what follows is not stored.)"""


def column_name(path: nest.Path) -> str:
    """``observation/arm``; a slash inside a key is written ``~1`` (as in RFC 6901), so that no two names meet.

    >>> column_name(("extras", "a/b", 0))
    'extras/a~1b/0'
    """
    return "/".join(str(part).replace("~", "~0").replace("/", "~1") for part in path)
