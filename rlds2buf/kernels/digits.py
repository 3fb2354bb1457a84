"""Numbers sorted out by some of their bits: how many have which, and those that have some of them.

The bits of a number are turned so that they are in the order of the numbers: ``turn`` holds the bit of the sign, what
is turned where it is not set, and what where it is; the *digit* of a number is some of these bits, from `low` on, as
many as the table has entries for.
"""

from __future__ import annotations

import numpy as np

from rlds2buf.kernels.compiled import compiled

__all__ = ["count_digits", "pick_digits"]


def _turned(bits: np.ndarray, turn: np.ndarray) -> np.ndarray:
    sign, plain, signed = turn
    if plain == signed:
        return bits ^ plain if plain else bits
    width = bits.dtype.itemsize * 8
    is_signed = (bits.view(f"i{bits.dtype.itemsize}") >> (width - 1)).view(bits.dtype)  # all ones where it is
    return bits ^ ((is_signed & signed) | sign)


def _digits(keys: np.ndarray, low: int, size: int) -> np.ndarray:
    kind = keys.dtype.type
    shifted = keys >> kind(low) if low else keys
    return (shifted & kind(size - 1)).astype(np.intp)


def count_digits_numpy(bits: np.ndarray, turn: np.ndarray, low: int, counts: np.ndarray) -> None:
    """:func:`count_digits`, by ``bincount``."""
    counts += np.bincount(_digits(_turned(bits, turn), low, len(counts)), minlength=len(counts))


@compiled(twin=count_digits_numpy)
def count_digits(bits, turn, low, counts):  # type: ignore[no-untyped-def]
    """Count how many numbers have each digit.

    Args:
        bits: ``[n]`` unsigned: of the numbers.
        turn: ``[3]`` of the same type, as above; where only the sign's bit is turned or nothing is, both are alike.
        low: the lowest bit of the digit.
        counts: ``[a power of two] int64``, what is counted is added to it.
    """
    sign, plain, signed = turn[0], turn[1], turn[2]
    mask = counts.shape[0] - 1
    for i in range(bits.shape[0]):
        key = bits[i] ^ (signed if bits[i] & sign else plain)
        counts[np.intp(key >> low) & mask] += 1


def pick_digits_numpy(
    bits: np.ndarray, turn: np.ndarray, low: int, is_wanted: np.ndarray, out: np.ndarray, start: int
) -> int:
    """:func:`pick_digits`, by ``take``."""
    keys = _turned(bits, turn)
    found = keys[is_wanted.take(_digits(keys, low, len(is_wanted)))]
    out[start : start + len(found)] = found
    return start + len(found)


@compiled(twin=pick_digits_numpy)
def pick_digits(bits, turn, low, is_wanted, out, start):  # type: ignore[no-untyped-def]
    """Write out the numbers that have one of some digits, in order, with their bits turned.

    Args:
        bits, turn, low: as of :func:`count_digits`.
        is_wanted: ``[a power of two] bool``, by digit.
        out: of the type of `bits`, with room for all of them.
        start: where in it the first one goes.

    Returns:
        Behind the last one.
    """
    sign, plain, signed = turn[0], turn[1], turn[2]
    mask = is_wanted.shape[0] - 1
    for i in range(bits.shape[0]):
        key = bits[i] ^ (signed if bits[i] & sign else plain)
        if is_wanted[np.intp(key >> low) & mask]:
            out[start] = key
            start += 1
    return start
