"""Returns and advantages by their definitions: one path at a time, a sum for every step, plain floats.

Nothing here recurses backwards through time, as the kernels do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

GOES_ON, TERMINATED, CUT = 0, 1, 2


def paths(end: Sequence[int]) -> Iterator[range]:
    """The steps of each path; the last one ends with the data."""
    start = 0
    for t, code in enumerate(end):
        if code != GOES_ON or t == len(end) - 1:
            yield range(start, t + 1)
            start = t + 1


def discounted(reward: Sequence[float], successor: Sequence[float], end: Sequence[int], gamma: float) -> list[float]:
    out = []
    for path in paths(end):
        last = path[-1]
        for t in path:
            total = sum(gamma ** (k - t) * float(reward[k]) for k in range(t, last + 1))
            if end[last] == CUT:
                total += gamma ** (last + 1 - t) * float(successor[last])
            out.append(total)
    return out


def errors(
    reward: Sequence[float], value: Sequence[float], successor: Sequence[float], end: Sequence[int], gamma: float
) -> list[float]:
    """One-step errors; a terminated step has no successor."""
    out = []
    for t, code in enumerate(end):
        follows = 0.0 if code == TERMINATED else gamma * float(successor[t])
        out.append(float(reward[t]) + follows - float(value[t]))
    return out


def gae(
    reward: Sequence[float],
    value: Sequence[float],
    successor: Sequence[float],
    end: Sequence[int],
    gamma: float,
    lam: float,
) -> tuple[list[float], list[float]]:
    delta = errors(reward, value, successor, end, gamma)
    advantage = []
    for path in paths(end):
        for t in path:
            advantage.append(sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, path[-1] + 1)))
    return advantage, [a + float(v) for a, v in zip(advantage, value, strict=True)]


def vtrace(
    reward: Sequence[float],
    value: Sequence[float],
    successor: Sequence[float],
    ratio: Sequence[float],
    end: Sequence[int],
    gamma: float,
    lam: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[list[float], list[float], list[float]]:
    """Definition 4.1 of Espeholt et al. 2018: a product of traces in front of every later error."""
    delta = errors(reward, value, successor, end, gamma)
    rho = [min(rho_bar, float(w)) for w in ratio]
    trace = [lam * min(c_bar, float(w)) for w in ratio]
    correction = []
    for path in paths(end):
        for s in path:
            total = 0.0
            for t in range(s, path[-1] + 1):
                product = 1.0
                for i in range(s, t):
                    product *= gamma * trace[i]
                total += product * rho[t] * delta[t]
            correction.append(total)
    target = [float(v) + c for v, c in zip(value, correction, strict=True)]
    advantage = []
    for path in paths(end):
        for s in path:
            beyond = correction[s + 1] if s + 1 in path else 0.0
            advantage.append(rho[s] * (delta[s] + gamma * beyond))
    return advantage, target, rho
