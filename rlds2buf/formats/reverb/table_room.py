"""Room in a table: a push fills it, and never makes the table drop what is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rlds2buf.errors import ServerUnavailable
from rlds2buf.formats.reverb.protocol.connection import TableState
from rlds2buf.formats.reverb.protocol.insert_stream import ServerRestarted

__all__ = ["RoomLeft"]

ASK_SECONDS: Final = 1.0
"""Other writers fill the table too, so the server is asked again from time to time."""


class RoomLeft:
    """How many more items may be sent to one table before it would have to drop one.

    What is sent counts against the room that the server told of, though some items may be there already; where
    that is not enough, everything under way is waited for and the server asked again.

    Args:
        state: of the table, before anything is sent.
        ask: gives the table as it is now.
        settle: waits until everything sent is acknowledged.
        under_way: how many items are sent and not acknowledged.
    """

    def __init__(
        self,
        state: TableState,
        *,
        ask: Callable[[], TableState],
        settle: Callable[[], None],
        under_way: Callable[[], int],
    ) -> None:
        self._left = state.room
        self._ask, self._settle, self._under_way = ask, settle, under_way
        self._asked = time.monotonic()

    def left(self, wanted: int) -> int:
        """How many items may be sent; at least `wanted`, unless the table has not the room.

        Raises:
            SinkError: what is under way can't be waited for, or the server does not answer then.
        """
        if time.monotonic() - self._asked > ASK_SECONDS:
            self._look(wanted)
        if wanted > self._left:
            self._settle()
            self._left = self._ask().room
            self._asked = time.monotonic()
        return self._left

    def take(self, items: int) -> None:
        """Note that so many are sent."""
        self._left -= items

    def _look(self, wanted: int) -> None:
        """See whether others have left less room than our own count says."""
        self._asked = time.monotonic()
        try:
            room = self._ask().room
        except ServerRestarted:
            raise
        except ServerUnavailable:
            return  # the stream will find out, and knows how long to try
        sure = room - self._under_way()  # some of what is under way may be in the table already
        self._left = min(self._left, room if sure >= wanted else sure)
