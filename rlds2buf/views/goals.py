"""Where in an observation a goal is written, and where that it was reached can be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec

__all__ = ["Goal", "GoalMap", "Part", "resolve_goals"]

_Place = tuple[str, tuple[int, ...] | None]


@dataclasses.dataclass(frozen=True)
class GoalMap:
    """One condition of a goal: which elements of the observation say what was reached, and which what was wanted.

    Each of the two is a path inside the observation, or a pair of a path and element numbers:

    - a path: ``"achieved_goal"``, ``"arm/pos"`` or ``("arm", "pos")`` in nested observations, ``0``
      for the first of a tuple, ``()`` for an observation of one array; all elements of that array.
    - a pair: ``("state", [3, 4])``, ``((), [0, 1])``; elements are counted from 0, through the whole
      array where it has several axes.

    Achieved and desired elements belong together by their order.

    Attributes:
        achieved: ``(name of the path, element numbers or None for all)``.
        desired: the same.

    Raises:
        ValueError: a place is none of the above, elements are negative or written twice, or the two
            have different numbers of elements.

    >>> GoalMap("achieved_goal", "desired_goal")
    GoalMap(achieved=('achieved_goal', None), desired=('desired_goal', None))
    >>> GoalMap(((), [1, 2]), ((), [3, 4])).desired
    ('', (3, 4))
    """

    achieved: Any
    desired: Any

    def __post_init__(self) -> None:
        for name in ("achieved", "desired"):
            object.__setattr__(self, name, _place(getattr(self, name), name))
        to = self.desired[1]
        if to is not None and len(set(to)) < len(to):
            raise ValueError(f"desired elements can't be written twice: {list(to)}")
        _same_count(self.achieved[1], to, self)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; :meth:`from_json` reads it back."""
        return {
            name: [path, None if elements is None else list(elements)]
            for name, (path, elements) in (("achieved", self.achieved), ("desired", self.desired))
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GoalMap:
        """The inverse of :meth:`to_json`."""
        places = [data[name][0] if data[name][1] is None else tuple(data[name]) for name in ("achieved", "desired")]
        return cls(*places)


class Part(NamedTuple):
    """Some elements of one leaf of the observation.

    Attributes:
        path: of the leaf.
        width: how many elements one row of the leaf has.
        elements: None for all, or which, counted through the row; a slice where they are neighbours.
    """

    path: nest.Path
    width: int
    elements: slice | np.ndarray | None

    def read(self, leaf: np.ndarray) -> np.ndarray:
        """The elements ``[B, n]`` of a leaf ``[B, ...]``."""
        rows = leaf if leaf.ndim == 2 else leaf.reshape(len(leaf), self.width)
        return rows if self.elements is None else rows[:, self.elements]

    def write(self, leaf: np.ndarray, values: np.ndarray, where: np.ndarray | None = None) -> None:
        """Set the elements of a leaf ``[B, ...]``, contiguous, to ``values [B, n]``, in rows ``where [B] bool``."""
        rows = leaf if leaf.ndim == 2 else leaf.reshape(len(leaf), self.width)
        if values.dtype != leaf.dtype:
            values = values.astype(leaf.dtype)
        if isinstance(self.elements, np.ndarray):
            for i, element in enumerate(self.elements.tolist()):
                np.copyto(rows[:, element], values[:, i], where=True if where is None else where)
            return
        part = rows if self.elements is None else rows[:, self.elements]
        if where is None:
            part[...] = values
        elif part.size:
            # Neighbours as one item of so many bytes: a mask is then one test per row, not per number.
            whole = f"V{part.shape[1] * leaf.itemsize}"
            np.copyto(part.view(whole), values.view(whole), where=where[:, None])


class Goal(NamedTuple):
    """A :class:`GoalMap` of known observations."""

    achieved: Part
    desired: Part


def resolve_goals(goals: Iterable[GoalMap], observation: nest.Nest) -> tuple[Goal, ...]:
    """Find the goals' elements.

    Args:
        goals: conditions, at least one.
        observation: nest of :class:`~rlds2buf.core.spec.FieldSpec`, or of columns ``[B, ...]``.

    Raises:
        ValueError: a path leads to no array, elements lie outside of it or are not as many on both
            sides, dtypes don't go together, or two conditions write to the same elements.
    """
    fields = nest.map_structure(
        lambda leaf: leaf if leaf is None or isinstance(leaf, FieldSpec) else FieldSpec(leaf.shape[1:], leaf.dtype),
        observation,
    )
    leaves = {nest.path_name(path): (path, field) for path, field in nest.flatten(fields) if field is not None}
    found: list[Goal] = []
    written: dict[str, set[int]] = {}
    for goal in goals:
        parts = []
        for name, elements in (goal.achieved, goal.desired):
            if name not in leaves:
                known = ", ".join(repr(each) for each in leaves) or "none"
                raise ValueError(f"{goal}: the observation has no array {name!r}; there are: {known}")
            path, field = leaves[name]
            if field.is_string or None in field.shape:
                raise ValueError(f"{goal}: {name!r} is {field}, and a goal needs a fixed number of numbers")
            width = int(np.prod(field.shape, dtype=np.int64))
            if elements is not None and max(elements) >= width:
                raise ValueError(f"{goal}: {name!r} has {width} elements, there is no number {max(elements)}")
            parts.append((Part(path, width, _selector(elements, width)), elements or tuple(range(width)), field.dtype))
        (achieved, read, have), (desired, write, want) = parts
        _same_count(read, write, goal)
        if not np.can_cast(have, want, "same_kind"):
            raise ValueError(f"{goal}: {have} can't be written into {want}")
        taken = written.setdefault(goal.desired[0], set())
        if taken & set(write):
            raise ValueError(f"{goal}: another condition writes to the same elements of {goal.desired[0]!r}")
        taken.update(write)
        found.append(Goal(achieved, desired))
    if not found:
        raise ValueError("hindsight needs at least one GoalMap")
    return tuple(found)


def _place(value: Any, name: str) -> _Place:
    """A path, or a path and elements, in the one form that is kept."""
    elements: tuple[int, ...] | None = None
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], Sequence | np.ndarray):
        if not isinstance(value[1], str):
            value, numbers = value
            elements = _numbers(numbers, name)
    parts = (value,) if isinstance(value, str | int) else value
    if not isinstance(parts, tuple | list) or not all(_is_part(part) for part in parts):
        raise ValueError(f"{name} must be a path or a pair (path, elements), got {value!r}")
    return nest.path_name(tuple(parts)), elements


def _numbers(values: Sequence[Any] | np.ndarray, name: str) -> tuple[int, ...]:
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu" or int(array.min()) < 0:
        raise ValueError(f"{name} elements must be numbers from 0 up, got {values!r}")
    return tuple(int(number) for number in array)


def _is_part(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _same_count(achieved: Sequence[int] | None, desired: Sequence[int] | None, goal: GoalMap) -> None:
    if achieved is not None and desired is not None and len(achieved) != len(desired):
        raise ValueError(f"{goal}: {len(achieved)} achieved elements for {len(desired)} desired ones")


def _selector(elements: tuple[int, ...] | None, width: int) -> slice | np.ndarray | None:
    if elements is None or elements == tuple(range(width)):
        return None
    if elements == tuple(range(elements[0], elements[-1] + 1)):
        return slice(elements[0], elements[-1] + 1)
    return np.array(elements, np.int64)
