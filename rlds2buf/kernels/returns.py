"""Returns and advantages, backwards through time over a batch of streams.

All arrays are ``[T, B]``: time, then streams, C-contiguous.  ``end`` says how each step ends its
path: 0 it goes on, 1 terminated (nothing follows), 2 cut (the successor's value stands for the
rest).  The last row must not be 0: nothing follows it.  Sums are kept in float64 whatever the
arrays are.  Values of successors are never read where a step terminates, so they may be NaN there.
"""

from __future__ import annotations

import numpy as np

from rlds2buf.kernels.compiled import compiled

__all__ = ["discounted", "gae", "vtrace"]


@compiled
def discounted(reward, successor, end, gamma, out):  # type: ignore[no-untyped-def]
    """Fill `out` with ``reward + gamma * out[t + 1]``; a cut step has ``successor`` for ``out[t + 1]``."""
    steps, streams = reward.shape
    later = np.zeros(streams)
    for t in range(steps - 1, -1, -1):
        for b in range(streams):
            total = np.float64(reward[t, b])
            if end[t, b] == 0:
                total += gamma * later[b]
            elif end[t, b] == 2:
                total += gamma * successor[t, b]
            later[b] = total
            out[t, b] = total


@compiled
def gae(reward, value, successor, end, gamma, decay, advantage, target):  # type: ignore[no-untyped-def]
    """Fill `advantage` with GAE and `target` with ``advantage + value``; ``decay`` is ``gamma * lam``."""
    steps, streams = reward.shape
    later = np.zeros(streams)
    for t in range(steps - 1, -1, -1):
        for b in range(streams):
            here = np.float64(value[t, b])
            total = reward[t, b] - here
            if end[t, b] != 1:
                total += gamma * successor[t, b]
            if end[t, b] == 0:
                total += decay * later[b]
            later[b] = total
            advantage[t, b] = total
            target[t, b] = total + here


@compiled
def vtrace(  # type: ignore[no-untyped-def]
    reward, value, successor, ratio, end, gamma, lam, rho_bar, c_bar, advantage, target, rho
):
    """Fill `target` with V-trace targets, `advantage` with the policy's, `rho` with the clipped ratios."""
    steps, streams = reward.shape
    later = np.zeros(streams)
    for t in range(steps - 1, -1, -1):
        for b in range(streams):
            here = np.float64(value[t, b])
            weight = min(rho_bar, np.float64(ratio[t, b]))
            trace = lam * min(c_bar, np.float64(ratio[t, b]))
            error = reward[t, b] - here
            if end[t, b] != 1:
                error += gamma * successor[t, b]
            # What the target adds to the successor's own value; nothing where the path ends.
            beyond = gamma * later[b] if end[t, b] == 0 else 0.0
            later[b] = weight * error + trace * beyond
            target[t, b] = here + later[b]
            advantage[t, b] = weight * (error + beyond)
            rho[t, b] = weight
