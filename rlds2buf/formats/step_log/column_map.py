"""Which columns of a log are which step field."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.fields import STEP_FIELDS
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError

__all__ = ["FIELD_NAMES", "TARGETS", "ColumnMap", "Gather", "natural", "tells_ends"]

FIELD_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "observation": ("observation", "observations", "obs", "state", "states"),
    "action": ("action", "actions", "act", "acts"),
    "reward": ("reward", "rewards", "rew", "rews"),
    "discount": ("discount", "discounts"),
    "next_observation": (
        "next_observation", "next_observations", "next_obs", "new_obs", "next_state", "next_states",
    ),
    "terminated": ("terminated", "terminateds", "terminal", "terminals", "termination", "terminations"),
    "truncated": ("truncated", "truncateds", "truncation", "truncations", "timeout", "timeouts"),
    "done": ("done", "dones"),
    "is_first": ("is_first", "episode_starts"),
    "is_last": ("is_last",),
    "is_terminal": ("is_terminal",),
    "episode": (
        "episode", "episode_id", "episode_ids", "episode_index", "eps_id", "trajectory_id", "traj_id",
    ),
}  # fmt: skip
"""What a field is called in logs, the first name that is there wins; upper and lower case are one."""

TARGETS: Final = tuple(FIELD_NAMES)
_FIELD_OF: Final = {called: field for field, names in FIELD_NAMES.items() for called in names}
_SPELT: Final = {name: field for field in TARGETS if len(field) > 4 for name in (field, f"{field}s")}
"""Names that a target may not nearly have, each with the field."""
_NESTED = ("observation", "action", "next_observation")
_FLAGS = ("terminated", "truncated", "done", "is_first", "is_last", "is_terminal")
_CUTTING: Final = frozenset(called for field in (*_FLAGS, "episode") for called in FIELD_NAMES[field])


@dataclasses.dataclass(frozen=True)
class Gather:
    """The columns that make up one field.

    Attributes:
        names: the log's columns, in order.
        joined: whether they are put side by side, ``[N, k]``; else there is one, taken as it is.
        spec: one row's shape and dtype.
    """

    names: tuple[str, ...]
    joined: bool
    spec: FieldSpec

    def fill(self, out: np.ndarray, block: Mapping[str, np.ndarray]) -> None:
        """Lay the field's values, from the log's columns ``[N, ...]``, into `out` ``[N, ...]``."""
        if not self.joined:
            out[...] = block[self.names[0]].reshape(out.shape)
            return
        low = 0
        for name in self.names:
            part = block[name] if block[name].ndim > 1 else block[name][:, None]
            out[:, low : low + part.shape[1]] = part
            low += part.shape[1]

    def take(self, block: Mapping[str, np.ndarray]) -> np.ndarray:
        """The field's column ``[N, ...]`` from the log's."""
        out = self.room(len(block[self.names[0]]))
        self.fill(out, block)
        return out

    def room(self, rows: int) -> np.ndarray:
        """A column ``[rows, ...]`` to be filled."""
        shape: tuple[Any, ...] = (rows, *self.spec.shape)
        return np.empty(shape, self.spec.dtype)


class ColumnMap:
    """Finds the fields of a step among the columns of a log.

    A field is a *column* (taken as it is), a *glob* (``*`` and ``?``; the columns it fits, in natural
    order, ``obs_2`` before ``obs_10``, side by side as ``[N, k]``), a *list* of columns and globs (the
    same), or None (the field is not there, though a column is called so).  Fields below
    ``observation/``, ``action/`` and ``next_observation/`` make dicts.  A field may be given by any of its
    usual names (``episode_id`` for ``episode``), unless it is given by its own as well; another name makes an
    extra, but one that is nearly a field's is refused (``extras/NAME`` is an extra in any case).  Fields that
    are not given are found by their names (`FIELD_NAMES`), and observations and actions by numbered
    (``obs_0``, ``obs[1]``) or nested ones (``obs/arm``, ``obs.arm``) too.  Columns left over are extras.

    Args:
        columns: each column of the log, in its order: one row's shape and dtype.
        given: field to column, glob, list or None.
        name: the log's name, for messages.
        unfit: columns that can't be taken, each with the reason.
        notes: for columns of text, where they ceased to be numbers.
        final_rows: as :class:`~rlds2buf.formats.step_log.source.StepLogSource` has it.
        needed: fields that there must be, unless `given` says None.

    Attributes:
        fields: ``observation``, ``action``, ``reward``, ``discount`` and ``extras``: nests of
            :class:`Gather`, None for what is not there.
        following: ``next_observation``, a nest as the observation's; or None.
        flags: the end flags and the episode's id, as far as they are there.
        final_rows: whether the last row of an episode holds its last observation only.
        ignored: columns that are not read.

    Raises:
        SourceFormatError: a column is not there (the message names the nearest), or does not fit; or nothing
            is found for one that is needed.
        ValueError, TypeError: `given` is malformed, or names what is nearly a field.

    >>> number = FieldSpec((), np.dtype(float))
    >>> found = ColumnMap({name: number for name in ("obs_10", "obs_9", "r", "act", "terminated")}, {"reward": "r"})
    >>> found.fields["observation"].names, found.fields["reward"].names, found.flags["terminated"].names
    (('obs_9', 'obs_10'), ('r',), ('terminated',))
    """

    def __init__(
        self,
        columns: Mapping[str, FieldSpec],
        given: Mapping[str, Any] | None = None,
        *,
        name: str = "log",
        unfit: Mapping[str, str] | None = None,
        notes: Mapping[str, str] | None = None,
        final_rows: bool | None = None,
        needed: Collection[str] = (),
    ) -> None:
        self._columns = dict(columns)
        self._name = name
        self._unfit = dict(unfit or {})
        self._notes = dict(notes or {})
        self._used: set[str] = set()
        found, absent, explicit = self._given(given or {})
        for target in TARGETS:
            if target not in found and target not in absent:
                gathered = self._by_name(target)
                if gathered is not None:
                    found[target] = gathered
        self.final_rows = ("is_last" in found) if final_rows is None else final_rows
        self._settle(found, explicit)
        missing = [field for field in needed if field not in found and field not in absent]
        if missing or not {"observation", "action", "reward"} & found.keys():
            raise self._no_fields(missing)
        self.flags: dict[str, Gather] = {
            flag: self._scalar(flag, found.pop(flag)) for flag in (*_FLAGS, "episode") if flag in found
        }
        for target in ("reward", "discount"):
            if target in found:
                found[target] = self._scalar(target, found[target])
        self.following: nest.Nest = found.pop("next_observation", None)
        self.fields: dict[str, Any] = {target: found.pop(target, None) for target in STEP_FIELDS[:4]}
        self.ignored: list[str] = []
        self.fields["extras"] = self._extras(found)
        self._check_following()

    @property
    def names(self) -> list[str]:
        """Every column that the fields are made from."""
        found: dict[str, None] = {}
        for _, gather in nest.flatten({"fields": self.fields, "following": self.following, "flags": self.flags}):
            found.update(dict.fromkeys(gather.names if gather is not None else ()))
        return list(found)

    def _given(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], set[str], set[str]]:
        """What the caller named: the fields, those that shall not be there, and all of them."""
        found: dict[str, Any] = {}
        absent: set[str] = set()
        for target, wanted in given.items():
            if not isinstance(target, str) or not all(target.split("/")):
                raise TypeError(
                    f"columns: a field should be a name such as 'reward' or 'observation/arm', got {target!r}"
                )
            head, rest = _head(target, given)
            if wanted is None:
                absent.add(head)
                continue
            if rest and head in TARGETS and head not in _NESTED:
                raise ValueError(f"columns: {head!r} can't be nested, got {target!r}")
            if not _put(found, [head, *rest], self._wanted(target, wanted)):
                raise ValueError(f"columns: {target!r} goes where another entry is already")
        return found, absent, set(found) | absent

    def _wanted(self, target: str, wanted: Any) -> nest.Nest:
        if isinstance(wanted, str):
            if wanted in self._columns:
                return self._plain(wanted)
            if "*" not in wanted and "?" not in wanted:
                inner = self._below(wanted)
                if inner:
                    return inner
            return self._joined(target, self._fitting(target, wanted))
        if isinstance(wanted, Sequence) and wanted and all(isinstance(one, str) for one in wanted):
            return self._joined(target, [name for one in wanted for name in self._fitting(target, one)])
        raise TypeError(f"columns: {target!r} should be a column, a glob or a list of them, got {wanted!r}")

    def _fitting(self, target: str, pattern: str) -> list[str]:
        """The columns that a name or a glob stands for, in natural order."""
        if pattern in self._columns:
            return [pattern]
        wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
        fitting = [name for name in self._columns if re.fullmatch(wild, name, re.DOTALL)]
        if not fitting:
            if pattern in self._unfit:
                raise SourceFormatError(f"{self._name}: column `{pattern}` (for {target}) {self._unfit[pattern]}")
            raise SourceFormatError(f"{self._name}: no column `{pattern}` (for {target}){self._near(pattern)}")
        return sorted(fitting, key=natural)

    def _near(self, wanted: str) -> str:
        near = difflib.get_close_matches(wanted, self._columns, n=1, cutoff=0.5)
        held = ", ".join(list(self._columns)[:12]) + (", ..." if len(self._columns) > 12 else "")
        return f"; is it `{near[0]}`? The columns are: {held}" if near else f"; the columns are: {held}"

    def _plain(self, name: str) -> Gather:
        self._used.add(name)
        return Gather((name,), False, self._columns[name])

    def _joined(self, target: str, names: list[str]) -> Gather:
        """Columns side by side; those ``[N]`` count as ``[N, 1]``."""
        self._used.update(names)
        specs = [self._columns[name] for name in names]
        shapes = [spec.shape or (1,) for spec in specs]
        for name, spec, shape in zip(names, specs, shapes, strict=True):
            fits = shape[1:] == shapes[0][1:] and spec.is_string == specs[0].is_string and None not in shape
            if not fits:
                message = f"column `{name}` holds {spec}, which does not go beside `{names[0]}`, {specs[0]}"
                raise SourceFormatError(f"{self._name}: {target}: {message}{self._note(name)}")
        width = sum(shape[0] for shape in shapes if shape[0] is not None)
        dtype = specs[0].dtype if specs[0].is_string else np.result_type(*(spec.dtype for spec in specs))
        return Gather(tuple(names), True, FieldSpec((width, *shapes[0][1:]), dtype))

    def _by_name(self, target: str) -> nest.Nest:
        """The field found by what such fields are called; None if it is not there."""
        free = {name.lower(): name for name in self._columns if name not in self._used}
        for called in FIELD_NAMES[target]:
            if called in free:
                return self._plain(free[called])
            if called in self._unfit:
                raise SourceFormatError(f"{self._name}: column `{called}` {self._unfit[called]}")
            if target not in _NESTED:
                continue
            numbered = self._numbered(target, called, free.values())
            if numbered:
                return self._joined(target, numbered)
            inner = self._below(called)
            if inner:
                return inner
        return None

    def _numbered(self, target: str, called: str, free: Iterable[str]) -> list[str]:
        pattern = re.compile(rf"{called}[_.\-/]?\[?(\d+)\]?", re.IGNORECASE)
        found = {int(match[1]): name for name in free if (match := pattern.fullmatch(name))}
        numbers = sorted(found)
        if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            gap = next(n for n in range(numbers[0], numbers[-1]) if n not in found)
            message = f"columns `{found[numbers[0]]}` to `{found[numbers[-1]]}` lack number {gap}"
            raise SourceFormatError(f"{self._name}: {message}; name those that make up the {target}")
        return [found[number] for number in numbers]

    def _below(self, called: str) -> dict[str, nest.Nest]:
        """Columns ``called/...`` or ``called.something`` as a nested dict."""
        found: dict[str, Any] = {}
        for name in self._columns:
            if name in self._used or not re.match(re.escape(called) + r"[/.].", name, re.IGNORECASE):
                continue
            parts = [part for part in re.split(r"[/.]", name[len(called) + 1 :]) if part]
            if parts:
                _put(found, parts, self._plain(name))
        return found

    def _settle(self, found: dict[str, Any], explicit: set[str]) -> None:
        """Decide between flags that say the same; what is not needed is an extra again."""

        def release(target: str) -> None:
            if target in found and target not in explicit:
                for _, gather in nest.flatten(found.pop(target)):
                    self._used.difference_update(gather.names)

        if "terminated" in found and "is_terminal" in found:
            release("terminated" if self.final_rows else "is_terminal")
        if self.final_rows:
            release("next_observation")
            release("truncated")
        if "done" not in found:
            return
        if {"terminated", "is_terminal", "is_last"} & found.keys():
            release("done")
        elif "truncated" not in found:
            (name,) = found["done"].names if isinstance(found["done"], Gather) else ("done",)
            raise SourceFormatError(
                f"{self._name}: `{name}` does not say whether the environment ended an episode or a limit cut it: "
                f"name it terminated (columns={{'terminated': '{name}'}}) "
                "if only the environment does, truncated if only a limit does, or name a column truncated beside it"
            )

    def _scalar(self, target: str, gather: nest.Nest) -> Gather:
        """One number a row; for an episode's id also text."""
        if isinstance(gather, Gather) and np.prod([n or 0 for n in gather.spec.shape]) == 1 and len(gather.names) == 1:
            spec = gather.spec
            if spec.dtype.kind in "biuf" or (target == "episode" and spec.is_string):
                return Gather(gather.names, False, FieldSpec((), spec.dtype))
            note = self._note(gather.names[0])
            message = f"column `{gather.names[0]}` should hold numbers, it holds {spec}{note}"
            raise SourceFormatError(f"{self._name}: {target}: {message}")
        names = [name for _, one in nest.flatten(gather) for name in one.names]
        got = str(gather.spec) if isinstance(gather, Gather) and len(names) == 1 else f"{len(names)} columns"
        raise SourceFormatError(f"{self._name}: {target}: `{names[0]}` should hold one number a row, got {got}")

    def _note(self, column: str) -> str:
        return f" ({self._notes[column]})" if column in self._notes else ""

    def _extras(self, found: dict[str, Any]) -> dict[str, Any]:
        """What is left: named by the caller, or left over."""
        extras: dict[str, Any] = {}
        for target, gather in found.items():
            extras[target] = gather
        for name in self._columns:
            if name in self._used:
                continue
            parts = [part for part in name.split("/") if part]
            if (
                not parts
                or parts[0] in STEP_FIELDS
                or not _put(extras, parts, Gather((name,), False, self._columns[name]))
            ):
                self.ignored.append(name)
        self.ignored += list(self._unfit)
        return extras

    def _check_following(self) -> None:
        if self.following is None:
            return
        own, other = self.fields["observation"], self.following
        same = own is not None and nest.same_structure(own, other)
        if same:
            pairs = zip(nest.flatten(own), nest.flatten(other), strict=True)
            same = all(one.spec.shape == two.spec.shape for (_, one), (_, two) in pairs)
        if not same:
            raise SourceFormatError(f"{self._name}: the next observation has not the observation's shape or names")

        def common(one: Gather, two: Gather) -> Gather:
            if one.spec.is_string != two.spec.is_string:
                raise SourceFormatError(f"{self._name}: `{one.names[0]}` and `{two.names[0]}`: one is text, one is not")
            dtype = one.spec.dtype if one.spec.is_string else np.result_type(one.spec.dtype, two.spec.dtype)
            return dataclasses.replace(one, spec=FieldSpec(one.spec.shape, dtype))

        self.fields["observation"] = nest.map_structure(common, own, other)
        self.following = nest.map_structure(common, other, own)

    def _no_fields(self, missing: Sequence[str]) -> SourceFormatError:
        if not self._columns:
            return SourceFormatError(f"{self._name}: the log is empty: it has no columns")
        missing = missing or ["observation", "action", "reward"]
        names = " or ".join(f"{'an' if field[0] in 'ao' else 'a'} {field}" for field in missing)
        entries = {field: self._guess(field) for field in missing}
        there = f", drop=[{missing[0]!r}] says that there is none" if missing[0] != "reward" else ""
        held = ", ".join(list(self._columns)[:12]) + (", ..." if len(self._columns) > 12 else "")
        return SourceFormatError(
            f"{self._name}: no column is called as {names} usually is; "
            f"columns={entries} (for example) names it{there}; the columns are: {held}"
        )

    def _guess(self, field: str) -> str:
        """The glob or column that may well be meant."""
        free = [name for name in self._columns if name not in self._used and not name.startswith("next")]
        for called in FIELD_NAMES[field]:
            for joint in "_.-":
                fitting = [name for name in free if name.startswith(f"{called}{joint}")]
                if fitting:
                    return fitting[0] if len(fitting) == 1 else f"{called}{joint}*"
        near = [name for called in FIELD_NAMES[field] for name in difflib.get_close_matches(called, free, n=1)]
        return near[0] if near else {"observation": "obs_*", "action": "act_*"}.get(field, "r")


def tells_ends(column: str, given: Mapping[str, Any]) -> bool:
    """Whether a column may be a flag or the episode's id, by its name or by what the caller named."""
    return column.lower() in _CUTTING or any(target in _CUTTING and name == column for target, name in given.items())


def _head(target: str, given: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The field or extra that a target is of, and the path below it.

    Raises:
        ValueError: it is nearly called as a field is.
    """
    head, *rest = target.split("/")
    if head == "extras" and rest:
        return rest[0], rest[1:]
    field = _FIELD_OF.get(head)
    if field is not None:
        return (head if field in given else field), rest
    near = difflib.get_close_matches(head, _SPELT, n=1, cutoff=0.8)
    # reward_scale and my_action are names of one's own; rewrad and observatoin are not.
    if near and not head.startswith(_SPELT[near[0]]) and not head.endswith(near[0]):
        right = "/".join([_SPELT[near[0]], *rest])
        raise ValueError(f"columns: {target!r} is no field; is it {right!r}? (an extra is 'extras/{target}')")
    return head, rest


def natural(text: str) -> tuple[Any, ...]:
    """A sort key that puts numbers in names in numeric order.

    >>> sorted(["obs_10", "obs_2", "obs"], key=natural)
    ['obs', 'obs_2', 'obs_10']
    """
    parts = re.split(r"(\d{1,18})", text)
    return tuple((int(part), part) if i % 2 else part for i, part in enumerate(parts))


def _put(into: dict[str, Any], parts: Sequence[str], value: Any) -> bool:
    """Put a value into nested dicts; False if something else is there."""
    here = into
    for part in parts[:-1]:
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            return False
    if parts[-1] in here:
        return False
    here[parts[-1]] = value
    return True
