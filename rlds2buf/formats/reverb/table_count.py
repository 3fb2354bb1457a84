"""What a table's own counts say of a push, whoever else writes to the table."""

from __future__ import annotations

import dataclasses

from rlds2buf.formats.reverb.protocol.connection import TableState

__all__ = ["ServerCount"]


@dataclasses.dataclass
class ServerCount:
    """One server's table before and after, and whether that agrees with what was pushed.

    A server acknowledges an item by its key once it is in the table, and a table holds a key once; it lists no keys.
    So an acknowledged item can only be missing if it has left the table since, and how many items have left, of
    whomever, follows from the counts: ``size_before + inserted - size_after``.

    Attributes:
        address: ``host:port``.
        size_before, size_after: items in the table.
        items: of this push (earlier runs of its journal included) that belong to this server.
        acknowledged: of those, sent and acknowledged in this run.
        new: items of this push that the server counted as inserted; None if it was never asked, or where others
            have inserted too, since it does not tell whose an item is.
        already_there: ``items - new``: sent, and only updated.  Beside other writers it is at least so many.
        removed: items that have left the table since the push began, of whomever.
        agrees: every item is in the table once (or was, if the table may remove it), by the server's own counts;
            None while unknown, and where items have left beside other writers: then nothing tells whose.
        others: items that others have inserted since the push began, at least.
        unchecked: how many of `items` may be among those that have left.
    """

    address: str
    size_before: int = 0
    size_after: int = 0
    items: int = 0
    acknowledged: int = 0
    new: int | None = None
    already_there: int = 0
    removed: int = 0
    agrees: bool | None = None
    others: int = 0
    unchecked: int = 0

    def take(self, state: TableState, inserted: int) -> None:
        """Take the table as it is now, with so many items inserted since `size_before`."""
        self.size_after = state.size
        self.others = max(0, inserted - self.items)
        self.new = None if self.others else inserted
        self.already_there = min(self.items, max(0, self.items - inserted))
        self.removed = self.size_before + inserted - state.size

    def judge(self, state: TableState, *, may_evict: bool) -> None:
        """Find `agrees` and `unchecked`, once everything is acknowledged.

        Args:
            state: of the table, as it was taken.
            may_evict: whether the table may remove items of the push to make place for others.
        """
        self.unchecked = min(self.items, max(0, self.removed))
        keeps_all = not may_evict and not state.max_times_sampled
        if self.removed < 0 or self.items > self.size_before + self.inserted:
            self.agrees = False  # the table was emptied meanwhile: its counts began anew
        elif keeps_all and self.items > self.size_after:
            self.agrees = False
        elif not self.removed or (may_evict and state.size == state.max_size):
            self.agrees = True
        elif state.max_times_sampled or self.others:
            self.agrees = None
        else:
            self.agrees = False

    @property
    def inserted(self) -> int:
        """Items inserted since the push began, of whomever."""
        return self.removed + self.size_after - self.size_before

    def note(self) -> str | None:
        """What the user should know of others, and of what could not be checked."""
        if self.agrees is None:
            others = f", where others have inserted at least {self.others:,}" if self.others else ""
            return (
                f"{self.address}: {self.removed:,} items have left the table{others}, and the server does not tell "
                f"whose they were: of the {self.items:,} of this push, all acknowledged, up to {self.unchecked:,} may "
                "be gone; that could not be checked"
            )
        if self.agrees and self.removed:
            return (
                f"{self.address}: the table's remover has dropped {self.removed:,} items, up to {self.unchecked:,} of "
                "this push"
            )
        if self.agrees and self.others:
            return (
                f"{self.address}: others have inserted at least {self.others:,} items meanwhile; nothing has left the "
                f"table, so all {self.items:,} of this push are in it"
            )
        return None
