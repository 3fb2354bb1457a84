"""Items of several transitions as lists of steps: the naive twin of the other storage units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlds2buf.core.episode import Episode
from tests.reference.replay import CONTINUE, ListReplay, goes_on

__all__ = ["ItemReplay", "Whole"]


class ItemReplay(ListReplay):
    """Remembers every row there ever was; `items` are lists of serials, oldest first.

    An item leaves whole; `unit` says what of it counts: its rows, its transitions, or itself.
    """

    def __init__(self, capacity: int, unit: str, storage_unit: str, item_length: int | None = None) -> None:
        super().__init__(10**9)
        self.limit = capacity
        self.counted = unit
        self.storage_unit = storage_unit
        self.item_length = item_length
        self.items: list[list[int]] = []
        self.item_rows: dict[int, int] = {}
        self.evicted = 0

    def add_episode(self, episode: Episode, source: int = 0) -> list[int]:
        serials = super().add_episode(episode, source)
        codes = [CONTINUE] * len(serials)
        return self._store(self._cut(list(zip(serials, codes, strict=True))), final_row=True)

    def add_transitions(self, items: Sequence[Mapping[str, Any]], sources: int | Sequence[int] = 0) -> list[int]:
        serials = super().add_transitions(items, sources)
        ids = [sources] * len(items) if isinstance(sources, int) else list(sources)
        codes = [int(item["is_done"]) for item in items]
        firsts = []
        for source in sorted(set(ids)):
            mine = [(serials[i], codes[i]) for i in range(len(items)) if ids[i] == source]
            firsts += self._store(self._cut(mine), final_row=False)
        return firsts

    def _cut(self, steps: list[tuple[int, int]]) -> list[list[int]]:
        pieces: list[list[int]] = []
        for serial, _ in steps:
            earlier, before = steps[[s for s, _ in steps].index(serial) - 1] if pieces else (serial, CONTINUE)
            ended = before != CONTINUE or (pieces and not goes_on(self.rows[earlier].ids, self.rows[serial].ids))
            ended = ended and self.storage_unit != "fragments"
            if not pieces or ended or len(pieces[-1]) == self.item_length:
                pieces.append([])
            pieces[-1].append(serial)
        return pieces

    def _store(self, pieces: list[list[int]], final_row: bool) -> list[int]:
        for piece in pieces:
            self.item_rows[piece[0]] = len(piece) + (final_row and piece is pieces[-1])
            self.items.append(piece)
            while self.used() > self.limit:
                self.items.pop(0)
                self.evicted += 1
        return [piece[0] for piece in pieces]

    def used(self) -> int:
        """How much of the capacity is."""
        each = {"rows": lambda item: self.item_rows[item[0]], "transitions": len}.get(self.counted, lambda item: 1)
        return sum(each(item) for item in self.items)

    def held_rows(self) -> int:
        """Rows of the items held."""
        return sum(self.item_rows[item[0]] for item in self.items)

    def keys(self) -> list[int]:
        """Serials of the items' first transitions, oldest first."""
        return [item[0] for item in self.items]

    def members(self, serial: int) -> list[int]:
        """The transitions of an item, from this one on."""
        (item,) = [item for item in self.items if serial in item]
        return item[item.index(serial) :]

    def _after(self, i: int) -> int | None:
        following = super()._after(i)
        if following is None or self.rows[following].serial not in self.members(self.rows[i].serial):
            return None
        return following


class Whole:
    """An :class:`ItemReplay` seen as sequences that are whole items, ends of episodes inside included."""

    def __init__(self, twin: ItemReplay) -> None:
        self.twin = twin

    def sequence(self, serial: int, length: int) -> list[dict[str, Any]]:
        """All steps of an item from this one on."""
        out = []
        for each in self.twin.members(serial)[:length]:
            row = self.twin.rows[self.twin._position(each)]
            out.append({**self.twin.transition(each), "flags": row.flags, "from_episode": row.episode is not None})
        return out
