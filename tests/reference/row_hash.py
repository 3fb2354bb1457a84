"""The naive twin of ``rlds2buf.kernels.row_hash``: whole numbers of Python, one word after the other."""

from __future__ import annotations

__all__ = ["hash_rows", "mix"]

GOLDEN, WORD = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
MASK = 2**64 - 1


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hash_rows(rows: list[list[int]], keys: list[list[int]]) -> list[int]:
    """Both numbers of one episode, whose rows are lists of words."""
    totals = [0, 0]
    for number, row in enumerate(rows):
        for lane, odd in enumerate(keys):
            name = 0
            for word, key in zip(row, odd, strict=True):
                word ^= word >> 32
                word = (word * WORD) & MASK
                word ^= word >> 29
                name += word * key
            totals[lane] += mix((name + (number + 1) * GOLDEN) & MASK)
    return [total & MASK for total in totals]
