"""Walking from a stored row to its successors, as n-step returns and sequences do."""

from __future__ import annotations

import numpy as np

from rlds2buf.core.row_flags import BREAK, CODE, LINKED, TERMINATED
from rlds2buf.kernels.compiled import compiled

__all__ = ["finish", "finish_numpy", "walk"]


def walk_numpy(flags: np.ndarray, links: np.ndarray, starts: np.ndarray, out: np.ndarray, steps: np.ndarray) -> None:
    """:func:`walk`, all chains a step at a time."""
    steps[:] = 1
    going, here = np.arange(len(starts)), starts.copy()
    for count in range(out.shape[1]):
        out[:, count] = here
        if not len(going) or count == out.shape[1] - 1:
            out[:, count:] = here[:, None]
            return
        slot = here[going]
        flag = flags[slot]
        following = slot + 1
        following[following == len(flags)] = 0
        linked = (flag & LINKED) != 0
        if len(links):
            following[linked] = links[slot[linked]]
        goes_on = ((flag & (CODE | BREAK)) == 0) & ((flags[following] & CODE) != CODE)
        going = going[goes_on]
        here[going] = following[goes_on]
        steps[going] += 1


def finish_numpy(
    flags: np.ndarray, discount: np.ndarray, gamma: float, steps: np.ndarray, bootstrap: np.ndarray
) -> None:
    """:func:`finish`."""
    flags &= CODE
    discount[flags == TERMINATED] = 0
    steps[:] = 1
    bootstrap[:] = np.multiply(discount, gamma, dtype=np.float64)


@compiled(twin=walk_numpy)
def walk(flags, links, starts, out, steps):  # type: ignore[no-untyped-def]
    """Follow each chain for up to T rows, stopping at an end, a break, before a row that left, and at T.

    A row that left while its slot was not reused has code 3: no transition starts there any more.

    Args:
        flags: ``[capacity] uint8``.
        links: ``[capacity] int64`` successor slots, used where LINKED; may be empty if none is.
        starts: ``[B] int64`` first slots.
        out: ``[B, T] int64``, filled with the slots visited, the last one repeated.
        steps: ``[B] int32``, filled with how many were visited, 1 to T.
    """
    capacity = flags.shape[0]
    limit = out.shape[1]
    for i in range(starts.shape[0]):
        slot = starts[i]
        out[i, 0] = slot
        count = 1
        while count < limit:
            flag = flags[slot]
            if flag & CODE or flag & BREAK:
                break
            if flag & LINKED:
                following = links[slot]
            else:
                following = slot + 1
                if following == capacity:
                    following = 0
            if flags[following] & CODE == CODE:
                break
            slot = following
            out[i, count] = slot
            count += 1
        steps[i] = count
        for k in range(count, limit):
            out[i, k] = slot


@compiled(twin=finish_numpy)
def finish(flags, discount, gamma, steps, bootstrap):  # type: ignore[no-untyped-def]
    """Turn gathered one-step data into what a batch says of them.

    Args:
        flags: ``[B] uint8``, flag bytes; replaced by their ``is_done`` codes.
        discount: ``[B]`` logged discounts; set to 0 where the transition terminates.
        gamma: discount per step.
        steps: ``[B] int32``, filled with 1.
        bootstrap: ``[B]``, filled with ``gamma * discount``.
    """
    for i in range(flags.shape[0]):
        code = flags[i] & CODE
        flags[i] = code
        if code == TERMINATED:
            discount[i] = 0
        steps[i] = 1
        bootstrap[i] = gamma * discount[i]
