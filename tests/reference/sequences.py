"""Sequences with burn-in, found by looking at every held row: the naive twin of walking back."""

from __future__ import annotations

from tests.reference.replay import ListReplay

__all__ = ["burn_in_of", "sequence_of"]


def burn_in_of(twin: ListReplay, serial: int, burn_in: int) -> list[int]:
    """Serials of up to `burn_in` transitions that lead to a held one, in the order of time."""
    held = twin.keys()
    before: list[int] = []
    current = serial
    while len(before) < burn_in:
        leading = [other for other in held if len(twin.sequence(other, 2)) == 2 and _second(twin, other) == current]
        if not leading:
            break
        assert len(leading) == 1
        current = leading[0]
        before.insert(0, current)
    return before


def sequence_of(twin: ListReplay, serial: int, length: int) -> list[int]:
    """Serials of a sequence's own steps."""
    return [step["last"] for step in twin.sequence(serial, length)]


def _second(twin: ListReplay, serial: int) -> int:
    return int(twin.sequence(serial, 2)[1]["last"])
