"""Which steps around each drawn one a batch shows, of which field."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice, guess
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.kernels.windows import AHEAD, AHEAD_RECORDED, ENDS, STARTS, WITHIN

__all__ = ["Given", "Layout", "Offsets", "Part", "offsets_of", "plain_offsets"]

Given = tuple[tuple[str, tuple[float, ...]], ...]
"""Names of fields and their offsets, as they were given: steps, or seconds."""

PADDINGS = ("edge", "zero")
TOLERANCE = 1e-4
"""Seconds by which an offset may miss a step, as LeRobot's ``tolerance_s``."""
_FARTHEST = 1 << 30
_STACKED = ("observation", "next_observation")
_CONTEXT = ("observation", "action", "reward", "return_to_go", "time_step")
_MADE = ("is_done", "return_to_go", "time_step")
"""What is no column of the data."""
_NESTS = ("observation", "action", "reward", "discount", "extras", "next_observation")


@dataclasses.dataclass(frozen=True, eq=False)
class Offsets:
    """Offsets in steps, by the names of fields as they were given; `zero` is what `pad` says of other steps.

    Those of the same options are one object.

    `stack` and `context` are what some of them come from, for messages; else 0.
    """

    fields: tuple[tuple[str, tuple[int, ...]], ...]
    zero: bool = False
    stack: int = 0
    context: int = 0

    def said(self, name: str) -> str:
        """What the offsets of a field were given as."""
        if self.stack and name in _STACKED:
            return f"stack={self.stack}"
        if self.context and name in _CONTEXT:
            return f"context={self.context}"
        return f"offsets of {name!r}"


def plain_offsets(offsets: Any) -> Given | None:
    """Offsets as somebody gave them, in a form that can be compared and remembered.

    Raises:
        TypeError: they are no mapping of names to lists of numbers.
        ValueError: a list is empty, or a number is not finite.

    >>> plain_offsets({"observation": [-1, 0], "action": range(3)})
    (('observation', (-1, 0)), ('action', (0, 1, 2)))
    """
    if offsets is None or isinstance(offsets, tuple):
        return offsets  # a tuple is what this function made
    if not isinstance(offsets, Mapping):
        raise TypeError(
            f"offsets is a mapping such as {{'observation': [-1, 0], 'action': range(16)}}, got {repr(offsets)[:80]}"
        )
    return tuple([(_name(name), _numbers(name, values)) for name, values in offsets.items()])


def offsets_of(given: Given | None, fps: float | None, stack: int, context: int, pad: str) -> Offsets | None:
    """What the options of these names ask for; None for no windows.

    Raises:
        ValueError: an offset is no number of steps, or a field is named twice.
    """
    whole = given is None or all(type(value) is int for _, values in given for value in values)
    return _remembered(given, whole, fps, stack, context, pad)  # 1.0 is the same as 1 to a dict


@functools.lru_cache(maxsize=256)
def _remembered(
    given: Given | None, whole: bool, fps: float | None, stack: int, context: int, pad: str
) -> Offsets | None:
    """:func:`offsets_of`; `whole` says whether all numbers given are integers."""
    choice("pad", pad, PADDINGS)
    if fps is not None and not (fps > 0 and math.isfinite(fps)):
        raise ValueError(f"fps must be a positive number of steps per second, got {fps}")
    if fps is not None and given is None:
        raise ValueError("fps says how long a step of offsets in seconds is: give offsets too")
    if stack and context:
        raise ValueError("stack and context both say what comes of the observation: give one of them, or offsets")
    fields: dict[str, tuple[int, ...]] = {}
    if context:
        fields.update(dict.fromkeys(_CONTEXT, tuple(range(1 - context, 1))))
    if stack:
        fields.update(dict.fromkeys(_STACKED, tuple(range(1 - stack, 1))))
    for name, values in given or ():
        if name in fields:
            raise ValueError(f"{name!r} is named by {'stack' if stack else 'context'} and by offsets: leave one out")
        fields[name] = tuple([_steps(name, value, fps) for value in values])
    return Offsets(tuple(fields.items()), pad == "zero", stack, context) if fields else None


class Part(NamedTuple):
    """One array of a batch.

    Attributes:
        column: number of the data column.
        group: number of the list of rows it has.
        width: how many positions it has, K; None where it has no axis of them.
    """

    column: int
    group: int
    width: int | None


class Layout:
    """Offsets resolved against the fields of some data.

    Attributes:
        offsets: what they come from.
        groups: lists of rows to be found: ``(anchor, reach, offsets)``; the first is the drawn step itself, the second
            the last one of its transition.
        current: a Part for each data column, in their order.
        following: a Part for each of the observation's columns, likewise, of next observations; or None.
        pads: name, as given, to its group.
        discount, codes, to_go, time: the groups of `discount`, `is_done`, `return_to_go` and `time_step`; None for
            those that are not named.
        reward: whether rewards are named.
        rewards: the column of the rewards, where there is one.
        need: how many steps an episode has to have for no position to be padding always.
        needed_by: the field that needs most.
        item_bytes: of one item's windows, about.
        plans: for who reads to remember something, by the size of a batch.

    Raises:
        ValueError: the data have no such field.
    """

    def __init__(self, offsets: Offsets, spec: StepSpec) -> None:
        self.offsets = offsets
        fields = [(path, field) for path, field in spec.fields() if path[0] not in FLAG_FIELDS]
        names = [nest.path_name(path) for path, _ in fields]
        observation = [i for i, (path, _) in enumerate(fields) if path[0] == "observation"]
        self.groups: list[tuple[int, int, tuple[int, ...]]] = [(STARTS, WITHIN, (0,)), (ENDS, WITHIN, (0,))]
        self.current = [Part(i, 0, None) for i in range(len(fields))]
        self.following: list[Part] | None = None
        self.pads: dict[str, int] = {}
        self.codes: int | None = None
        self.discount: int | None = None
        self.reward = False
        self.rewards = names.index("reward") if "reward" in names else -1
        self.to_go: int | None = None
        self.time: int | None = None
        self.need, self.needed_by = 0, ""
        self.plans: dict[int, Any] = {}
        told = [nest.path_name(("next_observation", *fields[i][0][1:])) for i in observation]
        known = [*_known([*names, *told]), "is_done", "return_to_go", "time_step"]
        # What is named more closely comes last and holds.
        for name, steps in sorted(offsets.fields, key=lambda named: named[0].count("/")):
            root = name.split("/")[0]
            ahead = root in _STACKED
            shift = 1 if root == "next_observation" else 0
            reach = AHEAD_RECORDED if ahead else WITHIN
            group = self._group(ENDS if shift else STARTS, reach, tuple([step + shift for step in steps]))
            self.pads[name] = group
            self._note_need(name, group, ahead)
            if name in _MADE:
                self._made(name, group, spec)
            elif shift:
                self._following(name, told, observation, group, known)
            else:
                self._current(name, names, group, known)
        self.pads = {name: self.pads[name] for name, _ in offsets.fields}
        self.edges = np.cumsum([0, *(len(steps) for _, _, steps in self.groups)]).astype(np.int64)
        self.steps = np.array([step for _, _, steps in self.groups for step in steps], np.int64)
        self.anchor = np.array([anchor for anchor, _, _ in self.groups], np.int64)
        self.reach = np.array([reach for _, reach, _ in self.groups], np.uint8)
        parts = [*self.current, *(self.following or ())]
        self.item_bytes = sum(fields[part.column][1].row_bytes * (part.width or 1) for part in parts)
        self.item_bytes += 24 * int(self.edges[-1])

    def refuse_judged(self) -> None:
        """Raise if there are windows of what new goals change.

        Raises:
            ValueError: there are.
        """
        judged = {"reward": self.reward, "discount": self.discount, "is_done": self.codes, "return_to_go": self.to_go}
        for name, group in judged.items():
            if group is not None and group is not False:
                raise ValueError(
                    f"windows of {name} can't be given new goals in hindsight: that of the drawn transition is judged "
                    "anew, those around it are not; leave it out, or use get(keys, ...) for what is stored"
                )

    def width(self, group: int) -> int:
        """How many offsets a group has."""
        return len(self.groups[group][2])

    def _group(self, anchor: int, reach: int, steps: tuple[int, ...]) -> int:
        wanted = anchor, reach, steps
        if wanted not in self.groups:
            self.groups.append(wanted)
        return self.groups.index(wanted)

    def _note_need(self, name: str, group: int, ahead: bool) -> None:
        steps = self.groups[group][2]
        need = max(1 - min(steps), max(steps) + (0 if ahead else 1))
        if need > self.need:
            self.need, self.needed_by = need, name

    def _current(self, name: str, names: list[str], group: int, known: list[str]) -> None:
        for i in _matching(name, names, known):
            self.current[i] = Part(i, group, self.width(group))
        self.reward |= name.split("/")[0] == "reward"
        if name == "discount":
            self.discount = group

    def _following(self, name: str, told: list[str], observation: list[int], group: int, known: list[str]) -> None:
        if self.following is None:
            plain = self._group(ENDS, AHEAD, (1,))
            self.following = [Part(i, plain, None) for i in observation]
        for k in _matching(name, told, known):
            self.following[k] = Part(observation[k], group, self.width(group))

    def _made(self, name: str, group: int, spec: StepSpec) -> None:
        if name == "is_done":
            self.codes = group
        elif name == "time_step":
            self.time = group
        else:
            reward = spec.reward
            if not isinstance(reward, FieldSpec) or reward.shape != () or reward.dtype.kind not in "biuf":
                raise ValueError(f"return_to_go needs one reward per step, and the data have {reward or 'none'}")
            self.to_go = group


def _known(names: list[str]) -> list[str]:
    """Names of fields, and of what is above them."""
    out: dict[str, None] = {}
    for name in names:
        parts = name.split("/")
        for count in range(1, len(parts) + 1):
            out["/".join(parts[:count])] = None
    return list(out)


def _matching(name: str, names: list[str], known: list[str]) -> list[int]:
    """The numbers of the leaves that a name stands for."""
    found = [i for i, other in enumerate(names) if other == name or other.startswith(f"{name}/")]
    if not found:
        raise ValueError(f"offsets name {name!r}, which the data don't have; {guess(name, known)}")
    return found


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"offsets name fields, such as 'observation' or 'observation/image', got {name!r}")
    return name


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"offsets of {name!r} are a list of numbers, got {repr(values)[:80]}")
    numbers = tuple([_number(name, value) for value in values])
    if not numbers:
        raise ValueError(f"offsets of {name!r} are empty: [0] is the drawn step itself")
    return numbers


def _number(name: str, value: Any) -> float:
    if type(value) is int:
        return value
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"offsets of {name!r} are numbers, got {repr(value)[:80]}")
    if not math.isfinite(value):
        raise ValueError(f"offsets of {name!r} are finite, got {value}")
    return value


def _steps(name: str, value: float, fps: float | None) -> int:
    if fps is None:
        if not isinstance(value, int):
            raise ValueError(f"offsets of {name!r}: {value} is no number of steps; for seconds give fps too")
        steps = value
    else:
        steps = round(value * fps)
        if abs(value * fps - steps) / fps > TOLERANCE:
            raise ValueError(
                f"offsets of {name!r}: {value} seconds are {value * fps:g} steps at fps={fps:g}; "
                f"give multiples of 1/{fps:g}"
            )
    if abs(steps) > _FARTHEST:
        raise ValueError(f"offsets of {name!r}: {steps:,} steps are more than any episode has")
    return int(steps)
