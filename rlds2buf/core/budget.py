"""How much memory data that come from elsewhere may ask for.

A few bytes can stand for gigabytes: compressed values, shapes that nothing is stored for, links to one
thing from many places.  What such a thing takes is told before it is made, and refused beyond a limit.
The limits are for one thing and for one record (an episode, or what a file keeps together), not for a
whole dataset, which is read record by record and may be of any size.
"""

from __future__ import annotations

import dataclasses

from rlds2buf.core.arguments import integer
from rlds2buf.errors import LimitExceeded

__all__ = ["BUDGET", "Budget", "Tally"]


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits, the same for every format.

    Args:
        max_bytes: that one record, or one thing in it, may take in memory beyond what lies in the file as it is.
        max_objects: how many things (groups, values of their own, strings) one record may be made of.

    Raises:
        TypeError, ValueError: it is no positive integer.

    >>> Budget().check_bytes(1 << 40, "observation")
    Traceback (most recent call last):
    rlds2buf.errors.LimitExceeded: observation takes 1,099,511,627,776 bytes, and the limit is 1,073,741,824; \
max_bytes=1099511627776 (--max-bytes) allows it
    """

    max_bytes: int = 1 << 30
    max_objects: int = 1_000_000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, integer(field.name, getattr(self, field.name), 1))

    def check_bytes(self, wanted: int, what: str) -> None:
        """Refuse `what` if it takes too much memory.

        Raises:
            LimitExceeded: it does; the message has the limit and the option.
        """
        if wanted > self.max_bytes:
            raise LimitExceeded(
                f"{what} takes {wanted:,} bytes, and the limit is {self.max_bytes:,}; "
                f"max_bytes={wanted} (--max-bytes) allows it"
            )

    def check_objects(self, wanted: int, what: str) -> None:
        """Refuse `what` if it is made of too many things.

        Raises:
            LimitExceeded: it is; the message has the limit and the option.
        """
        if wanted > self.max_objects:
            raise LimitExceeded(
                f"{what} is made of {wanted:,} things, and the limit is {self.max_objects:,}; "
                f"max_objects={wanted} (--max-objects) allows it"
            )


BUDGET = Budget()
"""What holds where nothing else is asked for."""


class Tally:
    """What one record has taken so far.

    Args:
        budget: the limits.

    >>> tally = Tally(Budget(max_bytes=100))
    >>> tally.bytes(60, "observation")
    >>> tally.bytes(60, "action")
    Traceback (most recent call last):
    rlds2buf.errors.LimitExceeded: action, with the rest of its record, takes 120 bytes, and the limit is 100; \
max_bytes=120 (--max-bytes) allows it
    """

    __slots__ = ("_bytes", "_objects", "budget")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._bytes = self._objects = 0

    @property
    def bytes_left(self) -> int:
        """How much more the record may take."""
        return self.budget.max_bytes - self._bytes

    @property
    def objects_left(self) -> int:
        """How many more things the record may be made of."""
        return self.budget.max_objects - self._objects

    def bytes(self, wanted: int, what: str) -> None:
        """Note that `what` will take so many bytes.

        Raises:
            LimitExceeded: that is too much.
        """
        before, self._bytes = self._bytes, self._bytes + wanted
        if self._bytes > self.budget.max_bytes:
            self.budget.check_bytes(self._bytes, f"{what}, with the rest of its record," if before else what)

    def objects(self, wanted: int, what: str) -> None:
        """Note that `what` will be so many things.

        Raises:
            LimitExceeded: that is too many.
        """
        before, self._objects = self._objects, self._objects + wanted
        if self._objects > self.budget.max_objects:
            self.budget.check_objects(self._objects, f"{what}, with the rest of its record," if before else what)
