"""A shuffle that is computed place by place, and needs no memory however much is shuffled.

A Feistel network (Luby and Rackoff 1988, https://doi.org/10.1137/0217022) is a bijection of the numbers of so many
bits, whatever its round function is; where it leads beyond the numbers that are shuffled, it is applied
again until it doesn't (cycle walking: Black and Rogaway 2002, https://doi.org/10.1007/3-540-45760-7_9), which is
less than twice on average.
"""

from __future__ import annotations

import numpy as np

from rlds2buf.kernels.compiled import compiled

__all__ = ["ROUNDS", "shuffled"]

ROUNDS = 6
"""Even, so that both halves are as wide behind the last round as before the first."""

_ODD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD)
_29, _32 = np.uint64(29), np.uint64(32)


def shuffled_numpy(first: int, step: int, count: int, bits: int, keys: np.ndarray, out: np.ndarray) -> None:
    """:func:`shuffled`."""
    values = (first + step * np.arange(len(out))).astype(np.uint64)
    beyond = np.arange(len(out))
    while len(beyond):
        values[beyond] = _network_numpy(values[beyond], bits, keys)
        beyond = beyond[values[beyond] >= np.uint64(count)]
    out[:] = values.astype(np.int64)


def _network_numpy(values: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    low, high = np.uint64(bits - bits // 2), np.uint64(bits // 2)
    one = np.uint64(1)
    for key in keys:
        right = values & ((one << low) - one)
        word = right * _ODD + key
        word ^= word >> _29
        word *= _MIX
        left = (values >> low) ^ ((word >> _32) & ((one << high) - one))
        values = (right << high) | left
        low, high = high, low
    return values


@compiled(twin=shuffled_numpy)
def shuffled(first, step, count, bits, keys, out):  # type: ignore[no-untyped-def]
    """Which numbers stand at some places of a shuffle of 0 to ``count - 1``.

    Args:
        first, step: int64: the places are ``first + step * i``, all of them below `count`.
        count: int64, at least 1.
        bits: int64, at most 62: ``count <= 2**bits``, and at least 2.
        keys: ``[ROUNDS] uint64``, which shuffle it is.
        out: ``[B] int64``, filled.
    """
    bound = np.uint64(count)
    for i in range(out.shape[0]):
        value = _network(np.uint64(first + step * i), bits, keys)
        while value >= bound:
            value = _network(value, bits, keys)
        out[i] = np.int64(value)


@compiled(inline="always")
def _network(value, bits, keys):  # type: ignore[no-untyped-def]
    low, high = np.uint64(bits - bits // 2), np.uint64(bits // 2)
    one = np.uint64(1)
    for i in range(keys.shape[0]):
        right = value & ((one << low) - one)
        word = right * _ODD + keys[i]
        word ^= word >> _29
        word *= _MIX
        left = (value >> low) ^ ((word >> _32) & ((one << high) - one))
        value = (right << high) | left
        low, high = high, low
    return value
