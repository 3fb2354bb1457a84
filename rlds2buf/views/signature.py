"""What a table or buffer must hold: names, shapes and dtypes of the items of a view."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.sample import StepPairs, Trajectory, Transition
from rlds2buf.core.spec import FieldSpec, StepSpec

__all__ = ["item_spec"]

_BOOL = np.dtype(np.bool_)


def item_spec(spec: StepSpec, view: str = "transitions", *, length: int | None = None) -> Any:
    """The spec of one item, for any nesting.

    Args:
        spec: of the steps, from ``source.spec`` or ``spec_of``.
        view: ``"transitions"`` (also n-step), ``"pairs"`` (TF-Agents trajectories) or ``"windows"``.
        length: rows per window or pair item; adds a leading axis. Needed for windows.

    Returns:
        A Transition, StepPairs or Trajectory of :class:`~rlds2buf.core.spec.FieldSpec`.

    Raises:
        TypeError: `spec` is no StepSpec.
        ValueError: unknown view, windows without a length, or the data lack a field that it needs.

    >>> steps = StepSpec(observation=FieldSpec((3,), np.float32), action=FieldSpec((), np.int64))
    >>> item_spec(steps).next_observation, item_spec(steps, "windows", length=8).observation
    (FieldSpec(float32[3]), FieldSpec(float32[8, 3]))
    """
    if not isinstance(spec, StepSpec):
        raise TypeError(f"spec must be a StepSpec (source.spec, or spec_of(episode)), got {type(spec).__name__}")
    view = _SINGULAR.get(view, view)
    choice("view", view, _VIEWS)
    needed = {"transitions": ("observation",), "pairs": ("observation", "action", "reward"), "windows": ()}[view]
    missing = [name for name in needed if getattr(spec, name) is None]
    if missing:
        raise ValueError(f"the data have no {', '.join(missing)}, and {view} need it")
    if view == "windows" and length is None:
        raise ValueError("windows need a length")
    item = _VIEWS[view](spec)
    if length is None:
        return item

    def lengthen(field: FieldSpec | None) -> FieldSpec | None:
        return (
            None
            if field is None
            else FieldSpec((length, *field.shape), field.dtype, field.low, field.high, field.values)
        )

    return nest.map_structure(lengthen, item)


def _transition(spec: StepSpec) -> Transition:
    floating = spec.discount is not None and spec.discount.dtype.kind == "f"
    return Transition(
        observation=spec.observation,
        action=spec.action,
        reward=spec.reward,
        discount=FieldSpec((), spec.discount.dtype if floating else np.dtype(np.float32), 0.0, 1.0),
        next_observation=spec.observation,
        extras=spec.extras,
        is_done=FieldSpec((), np.dtype(np.uint8), values=(0, 1, 2)),
        steps=FieldSpec((), np.dtype(np.int32), low=1),
        bootstrap_discount=FieldSpec((), np.dtype(np.float32), 0.0, 1.0),
    )


def _pair(spec: StepSpec) -> StepPairs:
    kind = FieldSpec((), np.dtype(np.int32), values=(0, 1, 2))
    return StepPairs(
        step_type=kind,
        observation=spec.observation,
        action=spec.action,
        policy_info=(),
        next_step_type=kind,
        reward=spec.reward,
        discount=FieldSpec((), np.dtype(np.float32), 0.0, 1.0),
    )


def _window(spec: StepSpec) -> Trajectory:
    parts = {name: getattr(spec, name) for name in Trajectory._fields[:8]}
    return Trajectory(**parts, mask=FieldSpec((), _BOOL))


_VIEWS = {"transitions": _transition, "pairs": _pair, "windows": _window}
_SINGULAR = {"transition": "transitions", "pair": "pairs", "step_pairs": "pairs", "window": "windows"}
