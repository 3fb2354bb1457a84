"""What several datasets or buffers have in common: one spec for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SpecMismatch

__all__ = ["common_spec", "same_columns"]


def common_spec(specs: Sequence[StepSpec], names: Sequence[str], advice: str = "") -> StepSpec:
    """The spec that data of any of them fit; limits that differ are left out.

    Args:
        specs: at least one.
        names: what each belongs to, for the message.
        advice: what to do about a difference, for the message.

    Raises:
        SpecMismatch: fields, shapes or types differ; it names the first field by name and both sides.

    >>> import numpy as np
    >>> one, two = (StepSpec(observation=FieldSpec((), np.float32, low=low)) for low in (0, -1))
    >>> common_spec([one, two], ["one", "two"]).observation
    FieldSpec(float32[])
    """
    every = [dict(spec.fields()) for spec in specs]
    for found, name in zip(every[1:], names[1:], strict=True):
        for path in sorted({*every[0], *found}, key=nest.path_name):
            fields = every[0].get(path), found.get(path)
            if not _alike(*fields):
                shown = ["has none" if field is None else f"has {field}" for field in fields]
                message = f"{names[0]} {shown[0]}, but {name} {shown[1]}{advice}"
                raise SpecMismatch(message, path=nest.path_name(path), rule="spec")
    same = {path for path, field in every[0].items() if all(found[path] == field for found in every)}

    def strip(value: Any, path: nest.Path) -> Any:
        if isinstance(value, FieldSpec):
            return value if path in same else dataclasses.replace(value, low=None, high=None, values=None)
        if isinstance(value, dict):
            return {key: strip(child, (*path, key)) for key, child in value.items()}
        return tuple(strip(child, (*path, i)) for i, child in enumerate(value)) if isinstance(value, tuple) else value

    return StepSpec(**{part: strip(getattr(specs[0], part), (part,)) for part in specs[0].__dataclass_fields__})


def same_columns(saved: Any, spec: StepSpec) -> bool:
    """Whether a saved spec (:meth:`StepSpec.to_json`) has the fields, shapes and types of another; limits may differ.

    >>> import numpy as np
    >>> bounded = StepSpec(observation=FieldSpec((), np.float32, low=0.0))
    >>> same_columns(bounded.to_json(), StepSpec(observation=FieldSpec((), np.float32)))
    True
    """
    try:
        fields = dict(StepSpec.from_json(saved).fields())
    except (AttributeError, LookupError, TypeError, ValueError):
        return False
    mine = dict(spec.fields())
    return fields.keys() == mine.keys() and all(_alike(field, mine[path]) for path, field in fields.items())


def _alike(one: FieldSpec | None, other: FieldSpec | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.shape, one.dtype, one.image, one.is_video) == (other.shape, other.dtype, other.image, other.is_video)
