"""What TF-Agents' agents want to know before there is an environment: their specs, from logged data.

Needs TensorFlow and TF-Agents: ``pip install 'rlds2buf[tf-agents]'``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.io.source import Source
from rlds2buf.pipeline.opening import open_source
from rlds2buf.reverb.tf_tables import load

__all__ = ["action_spec", "collect_data_spec", "time_step_spec"]


def time_step_spec(source: Any) -> Any:
    """TF-Agents' ``TimeStep`` of tensor specs: the first argument of its agents.

    Observations are bounded where the source tells finite limits, rewards are as logged, the discount is float32 in
    [0, 1].

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.

    Raises:
        MissingDependency: TF-Agents is not installed.
        SourceError: the source can't be read.
        ValueError: the data lack observations or rewards.

    ::

        agent = sac_agent.SacAgent(time_step_spec(source), action_spec(source), ...)
    """
    time_step = load("tf_agents.trajectories.time_step", "tf-agents")
    with _opened(source) as opened:
        observation, reward = (_field(opened, name) for name in ("observation", "reward"))
    return time_step.time_step_spec(
        nest.map_structure(_tensor_spec, observation), nest.map_structure(lambda field: _plain(field, "reward"), reward)
    )


def action_spec(source: Any, *, limits: Any = "source") -> Any:
    """The spec of actions, bounded where the limits are known: the second argument of TF-Agents' agents.

    Continuous agents scale their actions to these limits and discrete ones count them, so both need them.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        limits: where they come from.  ``"source"``: from what it tells (an environment's spaces, say); fields
            without are not bounded.  ``"data"``: where it tells none, the smallest and the largest logged action of
            each element, for which the data are read once.  Or a pair ``(low, high)``: numbers, arrays of the
            action's shape, or nests of them.

    Raises:
        MissingDependency: TF-Agents is not installed.
        SourceError: the source can't be read.
        ValueError: the data have no actions, or `limits` is none of these or does not fit them; no action was logged.

    ::

        action_spec(open_source("hopper.hdf5"), limits=(-1, 1))
        action_spec("rlds/cartpole", limits="data")
    """
    load("tf_agents.trajectories.time_step", "tf-agents")
    with _opened(source) as opened:
        fields = _field(opened, "action")
        if isinstance(limits, str) and limits == "source":
            bounded = fields
        elif isinstance(limits, str) and limits == "data":
            bounded = _measured(opened, fields)
        elif isinstance(limits, tuple | list) and len(limits) == 2:
            bounded = _limited(fields, *limits)
        else:
            raise ValueError(f"limits must be 'source', 'data' or a pair (low, high), got {limits!r}")
    return nest.map_structure(_tensor_spec, bounded)


def collect_data_spec(source: Any, *, limits: Any = "source", policy_info: str | None = None) -> Any:
    """The ``Trajectory`` of tensor specs that an agent with these specs expects: its ``collect_data_spec``.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        limits: of the actions, as for :func:`action_spec`.
        policy_info: the extra step field that is to be the ``policy_info``.

    Raises:
        MissingDependency: TF-Agents is not installed.
        SourceError: the source can't be read.
        ValueError: the data lack a field, or `limits` does not fit.

    ::

        spec = collect_data_spec(source, limits=(-1, 1))
        table = reverb.Table("replay", ..., signature=tensor_spec.add_outer_dim(spec))
        rlds2buf.push(source, "localhost:8000", "replay")
    """
    trajectory = load("tf_agents.trajectories.trajectory", "tf-agents")
    policy_step = load("tf_agents.trajectories.policy_step", "tf-agents")
    with _opened(source) as opened:
        info: Any = ()
        if policy_info is not None:
            if policy_info not in opened.spec.extras:
                known = sorted(opened.spec.extras)
                raise ValueError(f"the data have no extra field {policy_info!r}; they have {known}")
            info = nest.map_structure(_tensor_spec, opened.spec.extras[policy_info])
        step = time_step_spec(opened)
        action = policy_step.PolicyStep(action_spec(opened, limits=limits), (), info)
    return trajectory.from_transition(step, action, step)


def _opened(source: Any) -> contextlib.AbstractContextManager[Source]:
    return contextlib.nullcontext(source) if isinstance(source, Source) else open_source(source)


def _field(source: Source, name: str) -> Any:
    spec = source.spec
    field = getattr(spec, name)
    if field is None:
        raise ValueError(f"{source.name}: the data have no {name}")
    return field


def _measured(source: Source, fields: nest.Nest) -> nest.Nest:
    """The fields, those without limits with the smallest and largest values that were logged."""
    wanted = [path for path, field in nest.flatten(fields) if _limits(field) is None and not field.is_string]
    found: dict[nest.Path, tuple[Any, Any]] = {}
    for batch in source.batches() if wanted else ():
        acted = np.ones(batch.num_steps, np.bool_)
        acted[batch.ends] = False  # the last row's action was never taken
        if not acted.any():
            continue
        for path in wanted:
            column = nest.get(batch.rows.action, path)[acted]
            low, high = column.min(axis=0), column.max(axis=0)
            if path in found:
                low, high = np.minimum(low, found[path][0]), np.maximum(high, found[path][1])
            found[path] = low, high
    if len(found) < len(wanted):
        raise ValueError(f"{source.name}: no action was taken, so the data tell no limits")

    def with_limits(path: nest.Path, field: FieldSpec) -> FieldSpec:
        return FieldSpec(field.shape, field.dtype, *found[path]) if path in found else field

    return nest.unflatten(fields, iter([with_limits(path, field) for path, field in nest.flatten(fields)]))


def _limited(fields: nest.Nest, low: Any, high: Any) -> nest.Nest:
    """The fields with limits given as one value for all of them, or as nests."""
    paths = [path for path, _ in nest.flatten(fields)]

    def values(limit: Any) -> list[Any]:
        if isinstance(limit, dict | tuple):
            if not nest.same_structure(limit, fields):
                raise ValueError("the limits are nested in another way than the actions")
            return [leaf for _, leaf in nest.flatten(limit)]
        return [limit] * len(paths)

    out = []
    for (path, field), least, most in zip(nest.flatten(fields), values(low), values(high), strict=True):
        name = nest.path_name(("action", *path))
        try:
            ends = [np.broadcast_to(np.asarray(value, field.dtype), field.shape) for value in (least, most)]
        except (TypeError, ValueError, OverflowError) as cause:
            raise ValueError(f"{name}: {field} has no limits {least} and {most}") from cause
        if not np.all(ends[0] <= ends[1]):
            raise ValueError(f"{name}: the lower limit {least} is above {most}")
        out.append(FieldSpec(field.shape, field.dtype, low=ends[0], high=ends[1]))
    return nest.unflatten(fields, iter(out))


def _limits(field: FieldSpec) -> tuple[np.ndarray, np.ndarray] | None:
    """What a field's values lie between, as arrays of its dtype; None where that is not known or not finite."""
    low, high = field.low, field.high
    if low is None and high is None and field.values and field.dtype.kind in "iu":
        low, high = min(field.values), max(field.values)
    if low is None or high is None or field.dtype.kind not in "iuf":
        return None
    ends = np.asarray(low), np.asarray(high)
    if not all(np.isfinite(end).all() for end in ends):
        return None
    return ends[0].astype(field.dtype), ends[1].astype(field.dtype)


def _tensor_spec(field: FieldSpec) -> Any:
    limits = _limits(field)
    if limits is None:
        return _plain(field)
    tensor_spec = load("tf_agents.specs.tensor_spec", "tf-agents")
    tf = load("tensorflow", "server")
    return tensor_spec.BoundedTensorSpec(field.shape, tf.as_dtype(field.dtype), *limits)


def _plain(field: FieldSpec, name: str | None = None) -> Any:
    tf = load("tensorflow", "server")
    return tf.TensorSpec(field.shape, tf.string if field.is_string else tf.as_dtype(field.dtype), name=name)
