"""Time slots as a dictionary of lists: the naive twin of lockstep replay's table."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ListSlots"]

Row = tuple[str, int, int]
"""Policy, key and agent."""


class ListSlots:
    """Rows by episode and time; a slot leaves when one of its rows does.

    Attributes:
        slots: ``(episode, time)`` to its rows, in the order in which they came.
    """

    def __init__(self, capacities: dict[str, int]) -> None:
        self.capacities = capacities
        self.held: dict[str, list[int]] = {policy: [] for policy in capacities}
        self.slots: dict[tuple[int, int], list[Row]] = {}

    def clashes(self, policy: str, steps: Sequence[tuple[int, int, int]]) -> bool:
        """Whether one of the ``(episode, time, agent)`` is there already, or comes twice."""
        if len(set(steps)) < len(steps):
            return True
        return any(
            other == policy and number == agent
            for episode, time, agent in steps
            for other, _, number in self.slots.get((episode, time), [])
        )

    def add(self, calls: dict[str, list[tuple[int, tuple[int, int, int]]]]) -> None:
        """Policy to ``(key, (episode, time, agent))`` of each new row."""
        gone: set[tuple[str, int]] = set()
        for policy, rows in calls.items():
            held = self.held[policy] + [key for key, _ in rows]
            kept = held[max(0, len(held) - self.capacities[policy]) :]
            gone |= {(policy, key) for key in held if key not in kept}
            self.held[policy] = kept
        # What was there before leaves first; a step of which it was a part starts anew.
        self._drop(gone)
        for policy, rows in calls.items():
            for key, (episode, time, agent) in rows:
                self.slots.setdefault((episode, time), []).append((policy, key, agent))
        self._drop(gone)

    def _drop(self, gone: set[tuple[str, int]]) -> None:
        for name in [name for name, rows in self.slots.items() if any((p, key) in gone for p, key, _ in rows)]:
            del self.slots[name]
