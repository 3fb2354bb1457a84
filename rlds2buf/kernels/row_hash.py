"""A hash of each episode's rows of one column: two numbers of 64 bits that share no randomness.

Every word of a row is mixed (a multiplication by an odd number between two shifts, a bijection) and multiplied by odd
numbers of its place; the sum names the row (multilinear hashing: Lemire and Kaser, 2014, "Strongly universal string
hashing is fast").  What SplitMix64 makes of a row's name and its number in the episode is summed over the rows.  There
are no chains, so that a processor works on several words at a time, and numpy on all of them.
"""

from __future__ import annotations

import numpy as np

from rlds2buf.kernels.compiled import compiled

__all__ = ["hash_rows", "mix"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = np.uint64(0xD6E8FEB86659FD93)
_ONE, _TWO = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S29, _S30, _S31, _S32 = (np.uint64(shift) for shift in (27, 29, 30, 31, 32))
_NOTHING = np.uint64(0)

_AT_ONCE = 1 << 14
"""Words that numpy has in work at a time: they stay in the processor's cache."""


def mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's bijection of 64-bit numbers, each for itself."""
    values = (values ^ (values >> _S30)) * _ONE
    values = (values ^ (values >> _S27)) * _TWO
    return values ^ (values >> _S31)


def hash_rows_numpy(words: np.ndarray, edges: np.ndarray, keys: np.ndarray, out: np.ndarray) -> None:
    """:func:`hash_rows`, many rows at a time."""
    names = np.empty((len(words), 2), np.uint64)
    step = max(1, _AT_ONCE // max(1, words.shape[1]))
    for start in range(0, len(words), step):
        mixed = words[start : start + step].astype(np.uint64)
        mixed ^= mixed >> _S32
        mixed *= _WORD
        mixed ^= mixed >> _S29
        for lane in range(2):
            names[start : start + step, lane] = (mixed * keys[lane]).sum(axis=1, dtype=np.uint64)
    places = (np.arange(len(words)) - np.repeat(edges[:-1], np.diff(edges)) + 1).astype(np.uint64) * _GOLDEN
    total = np.zeros((len(words) + 1, 2), np.uint64)
    np.cumsum(mix(names + places[:, None]), axis=0, out=total[1:])
    out[:] = total[edges[1:]] - total[edges[:-1]]


@compiled(twin=hash_rows_numpy)
def hash_rows(words, edges, keys, out):  # type: ignore[no-untyped-def]
    """Hash each of E episodes.

    Args:
        words: ``[R, W]`` of any unsigned type, the rows of all episodes.
        edges: ``[E+1] int64``: the first row of each, then R.
        keys: ``[2, W] uint64``, odd.
        out: ``[E, 2] uint64``, the answer.
    """
    for e in range(edges.shape[0] - 1):
        one, two = _NOTHING, _NOTHING
        place = _NOTHING
        for r in range(edges[e], edges[e + 1]):
            place += _GOLDEN
            a, b = place, place
            for j in range(words.shape[1]):
                word = np.uint64(words[r, j])
                word ^= word >> _S32
                word *= _WORD
                word ^= word >> _S29
                a += word * keys[0, j]
                b += word * keys[1, j]
            one += _mixed(a)
            two += _mixed(b)
        out[e, 0], out[e, 1] = one, two


@compiled(inline="always")
def _mixed(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> _S30)) * _ONE
    value = (value ^ (value >> _S27)) * _TWO
    return value ^ (value >> _S31)
