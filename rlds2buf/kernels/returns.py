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


def _seconds(reward: np.ndarray, *others: object) -> float:
    """What a twin takes, a step at a time."""
    return 2e-5 * len(reward) + 1e-8 * reward.size


@np.errstate(all="ignore")
def discounted_numpy(reward: np.ndarray, successor: np.ndarray, end: np.ndarray, gamma: float, out: np.ndarray) -> None:
    """:func:`discounted`."""
    later = np.zeros(reward.shape[1])
    for t in range(len(reward) - 1, -1, -1):
        beyond = np.where(end[t] == 0, later, successor[t].astype(np.float64))
        total = reward[t].astype(np.float64)
        later = np.where(end[t] == 1, total, total + gamma * beyond)
        out[t] = later


@np.errstate(all="ignore")
def gae_numpy(
    reward: np.ndarray,
    value: np.ndarray,
    successor: np.ndarray,
    end: np.ndarray,
    gamma: float,
    decay: float,
    advantage: np.ndarray,
    target: np.ndarray,
) -> None:
    """:func:`gae`."""
    later = np.zeros(reward.shape[1])
    for t in range(len(reward) - 1, -1, -1):
        here = value[t].astype(np.float64)
        total = reward[t] - here
        total = np.where(end[t] != 1, total + gamma * successor[t].astype(np.float64), total)
        later = np.where(end[t] == 0, total + decay * later, total)
        advantage[t], target[t] = later, later + here


@np.errstate(all="ignore")
def vtrace_numpy(
    reward: np.ndarray,
    value: np.ndarray,
    successor: np.ndarray,
    ratio: np.ndarray,
    end: np.ndarray,
    gamma: float,
    lam: float,
    rho_bar: float,
    c_bar: float,
    advantage: np.ndarray,
    target: np.ndarray,
    rho: np.ndarray,
) -> None:
    """:func:`vtrace`."""
    later = np.zeros(reward.shape[1])
    for t in range(len(reward) - 1, -1, -1):
        here, each = value[t].astype(np.float64), ratio[t].astype(np.float64)
        weight = np.where(each < rho_bar, each, rho_bar)
        trace = lam * np.where(each < c_bar, each, c_bar)
        error = reward[t] - here
        error = np.where(end[t] != 1, error + gamma * successor[t].astype(np.float64), error)
        beyond = np.where(end[t] == 0, gamma * later, 0.0)
        later = weight * error + trace * beyond
        target[t], advantage[t], rho[t] = here + later, weight * (error + beyond), weight


@compiled(twin=discounted_numpy, seconds=_seconds)
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


@compiled(twin=gae_numpy, seconds=_seconds)
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


@compiled(twin=vtrace_numpy, seconds=_seconds)
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
