"""Which transitions of a :class:`~tests.reference.replay.ListReplay` belong together, by following each to the next."""

from __future__ import annotations

from tests.reference.replay import FINAL_ROW, ListReplay

__all__ = ["picks", "runs"]


def runs(twin: ListReplay) -> list[list[int]]:
    """Serials of the held transitions, chain by chain."""
    positions = [i for i, row in enumerate(twin.rows) if row.is_done != FINAL_ROW]
    after = {i: twin._after(i) for i in positions}
    following = set(after.values())
    found = []
    for i in positions:
        if i in following:
            continue
        chain = []
        step: int | None = i
        while step is not None:
            chain.append(twin.rows[step].serial)
            step = after[step]
        found.append(chain)
    return found


def picks(chain: list[int], serial: int, strategy: str, include_current: bool, unrecorded: set[int]) -> list[int]:
    """What a transition's goal may be taken from, in order; nothing for one without a real next observation."""
    real = [each for each in chain if each not in unrecorded]
    if serial not in real:
        return []
    if strategy == "final":
        return real[-1:]
    if strategy == "episode":
        return real
    later = real[real.index(serial) :]
    return later if include_current or len(later) == 1 else later[1:]
