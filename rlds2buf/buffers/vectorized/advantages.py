"""How an on-policy buffer turns rewards, costs and values into advantages and targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.vectorized.rollout_paths import Ends
from rlds2buf.core.row_flags import TERMINATED, TRUNCATED
from rlds2buf.returns import discounted_return, gae, gae_rtg, vtrace
from rlds2buf.returns.streams import fraction

__all__ = ["BOOTSTRAPS", "ESTIMATORS", "AdvantageSettings", "centered", "standardized"]

ESTIMATORS = ("gae", "gae-rtg", "vtrace", "plain")
BOOTSTRAPS = ("reward", "omnisafe")


@dataclasses.dataclass(frozen=True)
class AdvantageSettings:
    """See :func:`rlds2buf.make_on_policy`, whose arguments these are.

    Raises:
        ValueError: one is out of range.
    """

    gamma: float
    lam: float
    lam_c: float
    estimator: str
    penalty_coefficient: float
    bootstrap: str
    standardize_reward: bool
    standardize_cost: bool

    def __post_init__(self) -> None:
        for name in ("gamma", "lam", "lam_c"):
            fraction(name, getattr(self, name))
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"estimator must be one of {', '.join(ESTIMATORS)}, got {self.estimator!r}")
        if self.bootstrap not in BOOTSTRAPS:
            raise ValueError(f"bootstrap must be one of {', '.join(BOOTSTRAPS)}, got {self.bootstrap!r}")
        if not 0.0 <= self.penalty_coefficient < float("inf"):
            raise ValueError(f"penalty_coefficient must be at least 0 and finite, got {self.penalty_coefficient}")

    def estimate(self, columns: Mapping[str, np.ndarray], ends: Ends) -> dict[str, np.ndarray]:
        """The computed columns of a :class:`~rlds2buf.buffers.vectorized.rollout.Rollout`.

        Args:
            columns: ``reward``, ``cost``, ``value_r``, ``value_c``: ``[N]`` of one float dtype.
            ends: of the N steps; the last one is an end.

        Returns:
            adv_r, adv_c, target_value_r, target_value_c, discounted_ret, in the columns' dtype.
        """
        reward, cost = columns["reward"], columns["cost"]
        charged, rest = reward, ends.value_r
        if self.penalty_coefficient:
            # In float64, as the sums are: the dtype of the result is restored below.
            charged = reward - self.penalty_coefficient * cost.astype(np.float64)
            if self.bootstrap == "omnisafe":
                rest = ends.value_r - self.penalty_coefficient * ends.value_c.astype(np.float64)
        flags = {"terminated": ends.is_done == TERMINATED, "truncated": ends.is_done == TRUNCATED, "gamma": self.gamma}
        adv_r, target_r = self._advantages(charged, columns["value_r"], ends.value_r, rest, self.lam, flags)
        adv_c, target_c = self._advantages(cost, columns["value_c"], ends.value_c, ends.value_c, self.lam_c, flags)
        computed = {
            "adv_r": standardized(adv_r) if self.standardize_reward else adv_r,
            "adv_c": centered(adv_c) if self.standardize_cost else adv_c,
            "target_value_r": target_r,
            "target_value_c": target_c,
            "discounted_ret": discounted_return(reward, next_values=ends.value_r, **flags),
        }
        return {name: column.astype(reward.dtype, copy=False) for name, column in computed.items()}

    def _advantages(
        self,
        reward: np.ndarray,
        value: np.ndarray,
        last: np.ndarray,
        rest: np.ndarray,
        lam: float,
        flags: dict[str, Any],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Advantage and target; at cuts `last` is the successor's value, `rest` what the target's sum goes on with."""
        successor = np.append(value[1:], value.dtype.type(0))
        successor[flags["truncated"]] = last[flags["truncated"]]
        if self.estimator == "vtrace":
            advantage, target, _ = vtrace(reward, value, next_values=successor, lam=1.0, **flags)
            return advantage, target
        if self.estimator == "gae":
            return gae(reward, value, next_values=successor, lam=lam, **flags)
        # For "plain" the one-step error: GAE with lam 0.
        lam = lam if self.estimator == "gae-rtg" else 0.0
        advantage, target = gae_rtg(reward, value, next_values=successor, lam=lam, **flags)
        if rest is not last:
            target = discounted_return(reward, next_values=rest, **flags)
        return advantage, target


def standardized(advantage: np.ndarray) -> np.ndarray:
    """``(x - mean) / (standard deviation of the population + 1e-8)``; zeros if all are equal.

    >>> standardized(np.array([1.0, 2.0, 3.0])).round(4)
    array([-1.2247,  0.    ,  1.2247])
    >>> standardized(np.array([0.1, 0.1]))
    array([0., 0.])
    """
    if advantage.max() == advantage.min():
        return np.zeros_like(advantage)
    wide = advantage.astype(np.float64)
    wide -= wide.mean()
    return np.asarray(wide / (wide.std() + 1e-8), advantage.dtype)


def centered(advantage: np.ndarray) -> np.ndarray:
    """``x - mean``; zeros if all are equal.

    Costs keep their scale: it is compared with the limit on the cost, and with a multiplier.

    >>> centered(np.array([1.0, 2.0, 3.0]))
    array([-1.,  0.,  1.])
    """
    if advantage.max() == advantage.min():
        return np.zeros_like(advantage)
    return np.asarray(advantage - advantage.mean(dtype=np.float64), advantage.dtype)
