"""Gymnasium's spaces as step specs, without importing Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec, StepSpec

__all__ = ["number_field", "spec_of_spaces", "step_spec"]


def step_spec(spec_or_spaces: Any) -> StepSpec:
    """A :class:`StepSpec` as it is, or a pair ``(observation space, action space)`` as one.

    Raises:
        TypeError: neither, or a space without a fixed shape.
    """
    if isinstance(spec_or_spaces, StepSpec):
        return spec_or_spaces
    if isinstance(spec_or_spaces, tuple) and len(spec_or_spaces) == 2:
        return spec_of_spaces(*spec_or_spaces)
    raise TypeError(
        f"expected a StepSpec or a pair (observation space, action space), got {type(spec_or_spaces).__name__}"
    )


def spec_of_spaces(observation_space: Any, action_space: Any) -> StepSpec:
    """The spec of steps in an environment with these spaces; rewards are float32.

    Any nest of ``Dict``, ``Tuple`` and spaces with a shape and a dtype (``Box``, ``Discrete``,
    ``MultiDiscrete``, ``MultiBinary``) will do, also nests of :class:`FieldSpec`.  Pass a single
    environment's spaces, not the batched ones of a vector environment.

    Raises:
        TypeError: a space has no fixed shape (``Text``, ``Sequence``, ``Graph``).
    """
    return StepSpec(
        observation=_fields(observation_space, "observation"),
        action=_fields(action_space, "action"),
        discount=None,
    )


def number_field(spec: StepSpec) -> FieldSpec:
    """The field of a reward, cost, value or log probability: float64 if the spec's reward is, else float32."""
    wide = isinstance(spec.reward, FieldSpec) and spec.reward.dtype == np.float64
    return FieldSpec((), np.dtype(np.float64 if wide else np.float32))


def _fields(space: Any, name: str) -> nest.Nest:
    if isinstance(space, FieldSpec):
        return space
    children = space if isinstance(space, Mapping | tuple) else getattr(space, "spaces", None)
    if isinstance(children, Mapping):
        return {key: _fields(child, f"{name}/{key}") for key, child in children.items()}
    if isinstance(children, tuple):
        return tuple(_fields(child, f"{name}/{i}") for i, child in enumerate(children))
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        raise TypeError(f"{name}: {type(space).__name__} has no fixed shape and dtype")
    return FieldSpec(tuple(shape), np.dtype(dtype))
