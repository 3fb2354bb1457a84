"""The shuffle of :mod:`rlds2buf.kernels.shuffle` in Python's own integers, and who gets which item of an epoch."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["place_in_shuffle", "shares"]

_WORD = (1 << 64) - 1


def place_in_shuffle(place: int, count: int, bits: int, keys: Sequence[int]) -> int:
    """What stands at this place of the shuffle of 0 to ``count - 1`` that these keys make."""
    value = place
    while True:
        low, high = bits - bits // 2, bits // 2
        for key in keys:
            right = value % (1 << low)
            word = (right * 0x9E3779B97F4A7C15 + int(key)) & _WORD
            word ^= word >> 29
            word = (word * 0xFF51AFD7ED558CCD) & _WORD
            left = (value >> low) ^ ((word >> 32) % (1 << high))
            value = (right << high) | left
            low, high = high, low
        if value < count:
            return value


def shares(order: Sequence[int], batch_size: int, world_size: int, drop_last: bool) -> list[list[list[int]]]:
    """Rank to its batches of the items in this order: every item once, and as many batches on every rank."""
    ranks = [list(order[rank::world_size]) for rank in range(world_size)]
    if drop_last:
        batches = len(order) // world_size // batch_size
        return [[mine[i * batch_size : (i + 1) * batch_size] for i in range(batches)] for mine in ranks]
    batches = -(-len(ranks[0]) // batch_size)
    cut = [[mine[i : i + batch_size] for i in range(0, len(mine), batch_size)] for mine in ranks]
    for mine in cut:
        if len(mine) < batches:
            mine.append([mine[-1].pop()])
    return cut
