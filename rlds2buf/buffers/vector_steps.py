"""Steps of Gymnasium's vector environments, which reset their environments by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rlds2buf.buffers.add.intake import step_codes
from rlds2buf.buffers.engine import Engine
from rlds2buf.buffers.read.view import View
from rlds2buf.core import nest
from rlds2buf.core.sample import Transition
from rlds2buf.errors import SpecMismatch

__all__ = ["MODES", "add_vector_step"]

MODES: Final = ("next_step", "same_step", "disabled")
"""``gymnasium.vector.AutoresetMode``: when an environment whose episode has ended is reset."""


def add_vector_step(
    engine: Engine,
    data: Any,
    mode: Any,
    source_id: Any = 0,
    priorities: npt.ArrayLike | None = None,
    check_limits: bool = False,
) -> np.ndarray:
    """Store what one step of a vector environment gave; call it with the lock held.

    Args:
        engine: of the buffer.
        data: as ``Buffer.add`` has it, of as many transitions as environments, and perhaps ``info``.
        mode: one of :data:`MODES`, or Gymnasium's own.
        source_id: of the environments; 0 numbers them.
        priorities, check_limits: as of ``Buffer.add``.

    Returns:
        Keys ``uint64`` of the transitions stored, in the order of the environments.

    Raises:
        SpecMismatch, ValueError, TypeError: as ``Buffer.add`` says; nothing was added.
    """
    name = _mode(mode)
    if isinstance(data, Transition):
        data = data._asdict()
    if not isinstance(data, Mapping):
        raise TypeError(f"autoreset is for the transitions of one step, as a mapping, got {type(data).__name__}")
    step = {key: value for key, value in data.items() if key != "info" and value is not None}
    codes = _codes(step)
    sources = _sources(source_id, len(codes))
    kept = np.ones(len(codes), np.bool_)
    if name == "same_step":
        step["next_observation"] = _with_last(step.get("next_observation"), codes != 0, data.get("info"))
    elif name == "next_step":
        kept = ~_resets(engine, step, sources)
    if priorities is not None:
        priorities = np.asarray(priorities)
        if priorities.shape != kept.shape:
            raise ValueError(f"{len(kept)} environments need as many priorities, got shape {list(priorities.shape)}")
        priorities = priorities[kept]
    rows = step if kept.all() else nest.map_structure(lambda leaf: _rows(leaf, kept), step)
    keys = np.zeros(0, np.uint64)
    if kept.any():
        keys = engine.add(engine.prepare(rows, sources[kept], priorities, True, check_limits))
    ended = engine.contents.ended
    for source in sources.tolist():
        ended.pop(source, None)
    if name == "next_step":
        over = codes[kept] != 0
        ended.update(zip(sources[kept][over].tolist(), keys[over].tolist(), strict=True))
    return keys


def _mode(mode: Any) -> str:
    text = str(getattr(mode, "value", mode)).replace("_", "").lower()
    for name in MODES:
        if text == name.replace("_", ""):
            return name
    raise ValueError(f"autoreset must be one of {', '.join(MODES)}, or Gymnasium's AutoresetMode, got {mode!r}")


def _codes(step: Mapping[str, Any]) -> np.ndarray:
    """How each environment's step ended, ``[n] uint8``."""
    told = [step[name] for name in ("is_done", "terminated", "truncated") if name in step]
    if not told or np.ndim(told[0]) != 1:
        raise SpecMismatch(
            "a step of a vector environment says for each of them whether its episode ended: is_done, or terminated "
            "and truncated, of as many elements as environments",
            path="is_done",
            rule="spec",
        )
    return step_codes(step, len(told[0]))


def _sources(source_id: Any, count: int) -> np.ndarray:
    if np.ndim(source_id) == 0:
        return np.arange(count) + int(source_id)
    sources = np.asarray(source_id)
    if sources.shape != (count,) or len(np.unique(sources)) < count:
        raise ValueError(f"source_id has one number of its own for each of {count} environments, got {source_id!r}")
    return sources


def _resets(engine: Engine, step: Mapping[str, Any], sources: np.ndarray) -> np.ndarray:
    """Which rows ``[n] bool`` lead from an episode's last observation to another episode's first one.

    Such is the row behind each end; but where it starts elsewhere, somebody has reset the environment himself.
    """
    contents = engine.contents
    after = [contents.ended.get(source) for source in sources.tolist()]
    found = np.array([key is not None for key in after], np.bool_)
    rows = np.flatnonzero(found)
    keys = np.array([key for key in after if key is not None], np.uint64)
    held = contents.holds(keys)
    if not held.any():
        return found
    rows, keys = rows[held], keys[held]
    last = engine.get(keys, View(decode=False)).next_observation
    same = np.ones(len(rows), np.bool_)
    for path, column in nest.flatten(last):
        given = _rows(nest.get(step["observation"], path), rows)
        same &= np.array([_alike(one, other) for one, other in zip(given, column, strict=True)])
    found[rows] = same
    return found


def _alike(one: Any, other: Any) -> bool:
    if isinstance(other, bytes):
        return bool(one == other or (isinstance(one, str) and one.encode() == other))
    return bool(np.array_equal(np.asarray(one).astype(np.asarray(other).dtype), other, equal_nan=_has_nan(other)))


def _has_nan(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "fc"


def _with_last(following: Any, over: np.ndarray, info: Any) -> Any:
    """The next observations, with the last ones of episodes that ended in place of the first ones of the next."""
    if not over.any() or following is None:
        return following
    last = info.get("final_obs") if isinstance(info, Mapping) else None
    if last is None:
        raise SpecMismatch(
            f"the episode of environment {int(np.argmax(over))} ended, and its last observation is not here: with "
            "autoreset='same_step' give the step's infos too, as data['info'], which have it as final_obs",
            path="info/final_obs",
            rule="spec",
        )
    rows = np.flatnonzero(over)

    def replaced(path: nest.Path, column: Any) -> np.ndarray:
        column = np.array(column)
        for row in rows.tolist():
            column[row] = _last_of(last, row, path)
        return column

    paths = {path: replaced(path, column) for path, column in nest.flatten(following)}
    for path, column in paths.items():
        following = nest.replaced(following, path, column)
    return following


def _last_of(last: Any, row: int, path: nest.Path) -> Any:
    """A leaf of an environment's last observation: of an array of observations, or of one observation of arrays."""
    if isinstance(last, np.ndarray) and last.dtype == object:
        here = last[row]
        if here is None:
            raise SpecMismatch(f"environment {row} has none, and its episode ended", path="info/final_obs", rule="spec")
        return nest.get(here, path)
    return nest.get(last, path)[row]


def _rows(leaf: Any, rows: np.ndarray) -> Any:
    return leaf[rows] if hasattr(leaf, "detach") else np.asarray(leaf)[rows]
