"""Logged episodes as an environment's spaces have them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.adapters.step_replay import StepReplay, packed
from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.loading import load_buffer
from rlds2buf.core import nest
from rlds2buf.core.dtypes import dtype_name
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.nest import Nest
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SourceFormatError, SpecMismatch, TooLarge
from rlds2buf.pipeline.opening import open_source

__all__ = ["Fit", "fill", "logged_batches"]

_SLACK = 1e-5
"""By how much of its range an action may lie outside of it: what a cast to float32 does."""


def logged_batches(dataset: Any) -> Iterator[EpisodeBatch]:
    """The episodes of whatever holds some.

    Args:
        dataset: a :class:`Buffer`, or what :func:`rlds2buf.open_source` takes: an open source, a path (of a saved
            buffer too), a list of episodes. Transitions that stand alone are episodes of one.

    Raises:
        SourceNotFound, SourceFormatError, EpisodeError, TypeError: as reading it does.
    """
    if isinstance(dataset, Buffer):
        if len(dataset):
            yield packed(dataset.all())
        return
    try:
        source = open_source(dataset)
    except SourceFormatError:
        # A saved buffer of single transitions holds no episodes that could be read.
        if not isinstance(dataset, str | os.PathLike) or not (Path(dataset) / "manifest.json").is_file():
            raise
        yield from logged_batches(load_buffer(dataset, expect=Buffer))
        return
    yield from source.batches()


class Fit:
    """Brings logged episodes into the shapes and dtypes of an environment's spaces.

    Args:
        observation_space, action_space: Gymnasium's, of one environment; the observation may be a flat Dict.
        scale_actions: bring actions of a Box from its limits to [-1, 1].
        clip_actions: put actions of a Box that lie outside of its limits at these, in place of refusing them.

    Attributes:
        spec: of the rows: observations in the shape of their space (a number as ``[1]``), actions flat, rewards
            float32, and no discounts.

    Raises:
        ValueError: actions are to be scaled and have no limits.
        TypeError: a space has no fixed shape.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, scale_actions: bool = False, clip_actions: bool = False
    ) -> None:
        spaces = getattr(observation_space, "spaces", None)
        fields: Nest
        if isinstance(spaces, Mapping):
            fields = {name: _field(space, f"observation/{name}") for name, space in spaces.items()}
        else:
            fields = _field(observation_space, "observation")
        plain = _field(action_space, "action")
        action_dtype = np.dtype(np.float32) if plain.dtype == np.float64 else plain.dtype
        size = int(np.prod([n or 0 for n in plain.shape], dtype=np.int64))
        self.spec = StepSpec(observation=fields, action=FieldSpec((size,), action_dtype), discount=None)
        self._action = plain
        self._scale, self._clip = scale_actions, clip_actions
        self._limits = _limits(action_space) if hasattr(action_space, "low") else None
        if self._limits is not None:
            if scale_actions and not all(np.isfinite(limit).all() for limit in self._limits):
                raise ValueError(f"actions without limits can't be scaled: {action_space}; give scale_actions=False")

    def observation(self, values: Any, count: int) -> Nest:
        """Observations of `count` environments, in the spec's shapes and dtypes."""
        return nest.map_structure(lambda field, value: _shaped(field, value, count), self.spec.observation, values)

    def action(self, values: Any, count: int) -> np.ndarray:
        """Actions of `count` environments, likewise; not scaled."""
        return _shaped(self.spec.action, values, count)

    def unscaled(self, action: np.ndarray) -> np.ndarray:
        """Actions as the environment takes them, of those that are kept."""
        if not self._scale or self._limits is None:
            return action
        low, high = self._limits
        return np.clip(low + (action + 1.0) * 0.5 * (high - low), low, high).astype(action.dtype)

    def batch(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Logged episodes with the spec's fields; extras and discounts are left out.

        Raises:
            SpecMismatch: the data have other fields, shapes or dtypes than the spaces, or an action lies outside its
                space; the message names the episode, the step and the field.
        """
        rows = batch.rows
        fields = {"observation": self.spec.observation, "action": self._action, "reward": self.spec.reward}
        found = {name: _leaves(getattr(rows, name), fields[name], name, rows.source) for name in fields}
        observation = nest.unflatten(self.spec.observation, iter(found["observation"].values()))
        action = self._actions(next(iter(found["action"].values())), batch)
        reward = next(iter(found["reward"].values()))
        flags = {name: getattr(rows, name) for name in ("is_first", "is_last", "is_terminal")}
        return batch.with_rows(
            Episode(
                observation=observation, action=action, reward=reward, **flags, source=rows.source, index=rows.index
            )
        )

    def _actions(self, column: np.ndarray, batch: EpisodeBatch) -> np.ndarray:
        column = column.reshape(len(column), -1)
        if self._limits is None:
            return column.astype(self.spec.action.dtype)
        low, high = self._limits
        real = np.ones(len(column), np.bool_)
        real[batch.ends] = False  # padding
        slack = _SLACK * np.where(np.isfinite(high - low), high - low, 1.0)
        outside = ~((column >= low - slack) & (column <= high + slack)).all(1) & real
        if outside.any() and not self._clip:
            self._refuse(int(np.flatnonzero(outside)[0]), column, batch)
        fitted = np.clip(column, low, high)
        if self._scale:
            fitted = 2.0 * (fitted - low) / (high - low) - 1.0
        fitted[~real] = 0
        return fitted.astype(self.spec.action.dtype)

    def _refuse(self, row: int, column: np.ndarray, batch: EpisodeBatch) -> None:
        number = int(np.searchsorted(batch.starts, row, side="right")) - 1
        low, high = (limit.tolist() for limit in self._limits or ())
        raise SpecMismatch(
            f"the action {column[row].tolist()} lies outside of the environment's limits, {low} to {high}",
            source=batch.each_source()[number],
            episode=number if batch.index is None else int(batch.index[number]),
            step=row - int(batch.starts[number]),
            path="action",
            rule="spec",
            advice="is it the environment that the data are of? clip_actions=True puts such actions at the limits",
        )


def fill(replay: StepReplay, fit: Fit, dataset: Any) -> None:
    """Add a dataset's episodes.

    Raises:
        TooLarge: they have more transitions than there is room for.
        SpecMismatch, SourceNotFound, SourceFormatError, EpisodeError: as :meth:`Fit.batch` and reading them do.
    """
    buffer = replay.buffer
    for batch in logged_batches(dataset):
        if batch.num_transitions > buffer.capacity - len(buffer):
            raise TooLarge(
                f"the dataset has more transitions than the buffer's {buffer.capacity:,}: set buffer_size to what was "
                "logged and what is to come beside it"
            )
        replay.add_logged([fit.batch(batch)])


def _field(space: Any, name: str) -> FieldSpec:
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        raise TypeError(f"{name}: {type(space).__name__} has no fixed shape and dtype")
    # Discrete and its like are one number, which learners want as an axis of its own.
    return FieldSpec(tuple(shape) or (() if hasattr(space, "low") else (1,)), np.dtype(dtype))


def _limits(space: Any) -> tuple[np.ndarray, np.ndarray]:
    low, high = (
        np.broadcast_to(limit, space.shape).reshape(-1).astype(np.float64) for limit in (space.low, space.high)
    )
    return low, high


def _shaped(field: FieldSpec, value: Any, count: int) -> np.ndarray:
    shape = (count, *(n or 0 for n in field.shape))
    return np.asarray(value).reshape(shape).astype(field.dtype, copy=False)


def _leaves(data: Nest, fields: Nest, name: str, source: str | None) -> dict[nest.Path, np.ndarray]:
    """The columns of a field, each in its space's shape and dtype, in the order of the spec's leaves."""
    wanted, given = dict(nest.flatten(fields, (name,))), dict(nest.flatten(data, (name,)))
    if wanted.keys() != given.keys() or any(column is None for column in given.values()):
        have = ", ".join(nest.path_name(path) for path, column in given.items() if column is not None) or "nothing"
        want = ", ".join(nest.path_name(path) for path in wanted)
        raise SpecMismatch(
            f"the environment's space has {want}, and the data have {have}",
            source=source,
            path=name,
            rule="spec",
            advice="rlds2buf.open_source(dataset, map=..., drop=...) gives the data the environment's fields",
        )
    return {path: _fitted(given[path], field, path, source) for path, field in wanted.items()}


def _fitted(column: np.ndarray, field: FieldSpec, path: nest.Path, source: str | None) -> np.ndarray:
    """A column in its space's shape and dtype."""
    shape, rest = tuple(n or 0 for n in field.shape), column.shape[1:]
    if len(shape) == 3 and rest != shape and rest == (*shape[1:], shape[0]):
        column, rest = np.moveaxis(column, -1, 1), shape  # pictures whose channels a wrapper puts first
    one = int(np.prod(shape, dtype=np.int64)) == 1 and rest in ((), (1,))
    casting: Any = "unsafe" if path[0] == "reward" else "same_kind"
    if not (rest == shape or one) or not np.can_cast(column.dtype, field.dtype, casting):
        raise SpecMismatch(
            f"the environment has {field}, and the data have {dtype_name(column.dtype)}{list(rest)}",
            source=source,
            path=nest.path_name(path),
            rule="spec",
            advice="is it the environment that the data are of?",
        )
    return column.reshape(len(column), *shape).astype(field.dtype, copy=False)
