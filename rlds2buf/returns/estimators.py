"""Returns and advantages of one path, of a stream of paths, or of many streams side by side.

Arrays give arrays.  PyTorch tensors, one is enough, give tensors on the first one's device, without gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlds2buf.core.tensors import tensors_too
from rlds2buf.returns.streams import Streams, ends_of, fraction, time_first

__all__ = ["Advantages", "VTrace", "discounted_return", "gae", "gae_rtg", "plain", "successor_values", "vtrace"]


class Advantages(NamedTuple):
    """What a policy and its value function learn from; both in the shape of the rewards.

    Attributes:
        advantage: how much better the action was than the value function expected.
        target: what the value function should have said.
    """

    advantage: np.ndarray
    target: np.ndarray


class VTrace(NamedTuple):
    """:class:`Advantages` with the importance weights that were used.

    Attributes:
        advantage, target: as in :class:`Advantages`; `advantage` holds the weight `rho` already.
        rho: ``min(rho_bar, ratio)``.
    """

    advantage: np.ndarray
    target: np.ndarray
    rho: np.ndarray


@tensors_too
def discounted_return(
    rewards: npt.ArrayLike,
    *,
    gamma: float = 0.99,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    next_values: npt.ArrayLike | None = None,
    last_value: npt.ArrayLike | None = None,
    time_axis: int = 0,
) -> np.ndarray:
    """``G_t = r_t + gamma * G_{t+1}`` up to the end of each path: rewards-to-go.

    A path ends where `terminated` or `truncated` is set, and with the data.  A path that
    terminates is worth nothing more.  One that is cut is worth its successor's value if values
    are given, and nothing more otherwise: then this is the Monte-Carlo return of what was
    recorded.

    Args:
        rewards: ``[T, ...]``: rewards or costs, any batch axes behind time.
        gamma: discount per step, in [0, 1].
        terminated, truncated: bool, the shape of `rewards`; None: nowhere.  If both are set,
            terminated wins.
        next_values: the shape of `rewards`: the value of each step's true successor, read only
            where a path is cut.  See :func:`successor_values`.
        last_value: ``[...]`` (no time axis) or a number: the same for the end of the data alone.
        time_axis: which axis of `rewards` is time.

    Returns:
        The shape of `rewards`, float32 if they are (or float16), else float64; sums are kept in
        float64 either way.

    Raises:
        ValueError: shapes differ, `gamma` is out of range, both kinds of values are given, or
            only `last_value` is and paths are cut before the end of the data.

    >>> discounted_return([1.0, 2.0, 3.0], gamma=0.9)
    array([5.23, 4.7 , 3.  ])
    >>> discounted_return([1.0, 2.0, 3.0], gamma=0.9, terminated=[False, True, False], last_value=10)
    array([ 2.8,  2. , 12. ])
    """
    from rlds2buf.kernels import returns as kernels

    gamma = fraction("gamma", gamma)
    streams = Streams.of(
        (rewards,), terminated, truncated, next_values, last_value, time_axis=time_axis, need_values=False
    )
    out = streams.empty()
    kernels.discounted(streams.columns[0], streams.successor, streams.end, gamma, out)
    return streams.restore(out)


@tensors_too
def gae(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    gamma: float = 0.99,
    lam: float = 0.95,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    next_values: npt.ArrayLike | None = None,
    last_value: npt.ArrayLike | None = None,
    time_axis: int = 0,
) -> Advantages:
    """Generalised advantage estimation; the target is advantage + value, TD(lam)'s return.

    ::

        delta_t = r_t + gamma * V(successor of t) - V_t        without V(successor) where terminated
        A_t     = delta_t + gamma * lam * A_{t+1}              without A_{t+1} where the path ends

    `lam` 1 gives return minus value, `lam` 0 the one-step error.

    The successor of a step that a time limit cut is the episode's final observation, not the
    first one after the reset: pass `next_values` if a path is cut before the end of the data.

    Args:
        rewards, values: ``[T, ...]``: rewards (or costs), and values of the observations acted on.
        gamma, lam: in [0, 1].
        terminated, truncated: bool ``[T, ...]``; None: nowhere.  If both are set, terminated wins.
        next_values: ``[T, ...]``: the value of each step's true successor; not read where
            terminated.  See :func:`successor_values`.
        last_value: ``[...]`` or a number: the value of the last step's successor, enough if no
            path is cut before the end of the data.  With no flags and no values at all, the
            rewards are one path that terminates.
        time_axis: which axis is time.

    Returns:
        :class:`Advantages`, float32 if `rewards` and `values` are (or float16), else float64; sums
        are kept in float64 either way.  Tensors where PyTorch tensors were given.

    Raises:
        ValueError: shapes differ, a parameter is out of range, or a value of a successor is missing.

    Source: Schulman et al. 2016, https://arxiv.org/abs/1506.02438

    >>> gae([1.0, 2.0, 3.0], [0.5, 0.6, 0.7], gamma=0.9, lam=0.8, last_value=0.8).advantage.round(4)
    array([4.0672, 4.2044, 3.02  ])
    """
    from rlds2buf.kernels import returns as kernels

    gamma, lam = fraction("gamma", gamma), fraction("lam", lam)
    streams = Streams.of((rewards, values), terminated, truncated, next_values, last_value, time_axis=time_axis)
    advantage, target = streams.empty(), streams.empty()
    kernels.gae(*streams.columns, streams.successor, streams.end, gamma, gamma * lam, advantage, target)
    return Advantages(streams.restore(advantage), streams.restore(target))


@tensors_too
def gae_rtg(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    gamma: float = 0.99,
    lam: float = 0.95,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    next_values: npt.ArrayLike | None = None,
    last_value: npt.ArrayLike | None = None,
    time_axis: int = 0,
) -> Advantages:
    """:func:`gae`'s advantage with the discounted return (rewards-to-go) as the target.

    Arguments, results and errors are those of :func:`gae`.

    >>> gae_rtg([1.0, 2.0, 3.0], [0.5, 0.6, 0.7], gamma=0.9, lam=0.8, last_value=0.8).target
    array([5.8132, 5.348 , 3.72  ])
    """
    from rlds2buf.kernels import returns as kernels

    gamma, lam = fraction("gamma", gamma), fraction("lam", lam)
    streams = Streams.of((rewards, values), terminated, truncated, next_values, last_value, time_axis=time_axis)
    advantage, target = streams.empty(), streams.empty()
    kernels.gae(*streams.columns, streams.successor, streams.end, gamma, gamma * lam, advantage, target)
    kernels.discounted(streams.columns[0], streams.successor, streams.end, gamma, target)
    return Advantages(streams.restore(advantage), streams.restore(target))


@tensors_too
def plain(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    gamma: float = 0.99,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    next_values: npt.ArrayLike | None = None,
    last_value: npt.ArrayLike | None = None,
    time_axis: int = 0,
) -> Advantages:
    """The one-step error ``r_t + gamma * V(successor) - V_t``, with the discounted return as the target.

    Arguments, results and errors are those of :func:`gae`.

    >>> plain([1.0, 2.0, 3.0], [0.5, 0.6, 0.7], gamma=0.9, last_value=0.8).advantage
    array([1.04, 2.03, 3.02])
    """
    flags: dict[str, Any] = {"terminated": terminated, "truncated": truncated}
    return gae_rtg(
        rewards,
        values,
        gamma=gamma,
        lam=0.0,
        **flags,
        next_values=next_values,
        last_value=last_value,
        time_axis=time_axis,
    )


@tensors_too
def vtrace(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    ratio: npt.ArrayLike | None = None,
    *,
    policy_logp: npt.ArrayLike | None = None,
    behavior_logp: npt.ArrayLike | None = None,
    gamma: float = 0.99,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    next_values: npt.ArrayLike | None = None,
    last_value: npt.ArrayLike | None = None,
    time_axis: int = 0,
) -> VTrace:
    """V-trace: targets and advantages for a policy other than the one that acted.

    With ``w`` the ratio of the learner's probability of the action to the actor's, and v the target::

        rho_t   = min(rho_bar, w_t)          c_t = lam * min(c_bar, w_t)          g_t = gamma, 0 where terminated
        v_t     = V_t + rho_t * (r_t + g_t * V_{t+1} - V_t) + g_t * c_t * (v_{t+1} - V_{t+1})
        A_t     = rho_t * (r_t + g_t * v_{t+1} - V_t)

    Where the path ends, ``v_{t+1}`` is ``V_{t+1}``, the true successor's value.  If both policies are
    the same, v is GAE(gamma, lam) + V, and for `lam` 1 the discounted return; that is what OmniSafe's
    estimator named "vtrace" computes.

    Args:
        rewards, values: ``[T, ...]``.
        ratio: ``[T, ...]``, at least 0: probability under the learner's policy by that under the
            actor's.  None: from `policy_logp` and `behavior_logp`; if there is none of these, 1.
        policy_logp, behavior_logp: ``[T, ...]``: log probabilities (or log densities) of the
            actions under the learner's policy and the one that acted.
        gamma, lam: in [0, 1].
        rho_bar, c_bar: where the ratios are clipped, ``0 <= c_bar <= rho_bar``; may be infinite.
        terminated, truncated, next_values, last_value, time_axis: as in :func:`gae`.

    Returns:
        :class:`VTrace`; dtypes as in :func:`gae`; tensors where tensors were given.

    Raises:
        ValueError: as in :func:`gae`; or `c_bar` exceeds `rho_bar`, a ratio is negative or NaN, or the
            log probabilities do not come as a pair.

    Source: Espeholt et al. 2018, https://arxiv.org/abs/1802.01561

    >>> result = vtrace([1.0, 2.0, 3.0], [0.5, 0.6, 0.7], [2.0, 0.75, 0.5], gamma=0.9, last_value=0.8)
    >>> result.target, result.rho
    (array([3.827575, 3.14175 , 2.21    ]), array([1.  , 0.75, 0.5 ]))
    """
    from rlds2buf.kernels import returns as kernels

    gamma, lam = fraction("gamma", gamma), fraction("lam", lam)
    if not 0.0 <= c_bar <= rho_bar:
        raise ValueError(f"c_bar must be in [0, rho_bar], got c_bar {c_bar} and rho_bar {rho_bar}")
    streams = Streams.of((rewards, values), terminated, truncated, next_values, last_value, time_axis=time_axis)
    weights = streams.like("ratio", _ratio(ratio, policy_logp, behavior_logp), fill=1.0)
    if not (weights >= 0).all():
        raise ValueError("ratio has a negative number or NaN; it is a quotient of probabilities")
    advantage, target, rho = streams.empty(), streams.empty(), streams.empty()
    kernels.vtrace(
        *streams.columns,
        streams.successor,
        weights,
        streams.end,
        gamma,
        lam,
        float(rho_bar),
        float(c_bar),
        advantage,
        target,
        rho,
    )
    return VTrace(streams.restore(advantage), streams.restore(target), streams.restore(rho))


@tensors_too
def successor_values(
    values: npt.ArrayLike,
    *,
    last_value: npt.ArrayLike = 0.0,
    truncated: npt.ArrayLike | None = None,
    final_values: npt.ArrayLike | None = None,
    time_axis: int = 0,
) -> np.ndarray:
    """The `next_values` of a rollout: each step's successor is the next row, but where a time limit cut.

    Args:
        values: ``[T, ...]``: values of the observations acted on.
        last_value: ``[...]`` or a number: values of the observations after the last row.
        truncated: bool ``[T, ...]``, or None.
        final_values: values of the final observations, where `truncated` is set: ``[T, ...]`` (read
            there only), or ``[K]`` for its K true entries in order, as ``critic(final_obs[truncated])``
            gives them.
        time_axis: which axis is time.

    Returns:
        ``[T, ...]`` in the dtype of `values` (float32 for float16, float64 if they are no floats).

    Raises:
        ValueError: shapes differ, or truncated rows lack their final values.

    >>> successor_values([1.0, 2.0, 3.0], last_value=4.0, truncated=[False, True, False], final_values=[9.0])
    array([2., 9., 4.])
    """
    columns = time_first("values", values, time_axis)
    dtype = np.result_type(columns.dtype, np.float32) if columns.dtype.kind == "f" else np.dtype(np.float64)
    out = np.empty(columns.shape, dtype)
    if len(out):
        out[:-1] = columns[1:]
        out[-1] = ends_of("last_value", last_value, out.shape[1:])
    out = np.moveaxis(out, 0, time_axis)
    if truncated is not None:
        cut = np.asarray(truncated, np.bool_)
        if cut.shape != out.shape:
            raise ValueError(f"truncated has shape {list(cut.shape)}, values {list(out.shape)}")
        if final_values is not None:
            final, count = np.asarray(final_values), np.count_nonzero(cut)
            if final.shape not in (out.shape, (count,)):
                expected = f"{list(out.shape)} or [{count}]"
                raise ValueError(f"final_values has shape {list(final.shape)}, expected {expected}")
            out[cut] = final[cut] if final.shape == out.shape else final
        elif cut.any():
            raise ValueError(f"{np.count_nonzero(cut)} rows are truncated; final_values must say what follows them")
    return out


def _ratio(
    ratio: npt.ArrayLike | None, policy_logp: npt.ArrayLike | None, behavior_logp: npt.ArrayLike | None
) -> npt.ArrayLike | None:
    if (policy_logp is None) != (behavior_logp is None):
        raise ValueError("policy_logp and behavior_logp go together")
    if policy_logp is None or behavior_logp is None:
        return ratio
    if ratio is not None:
        raise ValueError("give ratio or the log probabilities, not both")
    # Differences beyond e**80 would overflow float32; every finite clip is far below.
    difference = np.asarray(policy_logp, np.float64) - np.asarray(behavior_logp, np.float64)
    return np.exp(np.minimum(difference, 80.0))
