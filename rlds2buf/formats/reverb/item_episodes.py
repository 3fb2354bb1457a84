"""Items of a Reverb table as episodes, so that they can be looked at."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import STEP_FIRST, STEP_LAST
from rlds2buf.core.spec import StepSpec, spec_of
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.reverb.protocol.signature import TableField
from rlds2buf.io.source import Source

__all__ = ["ItemSource", "columns_of", "episode_of"]

_TRAJECTORY = {"step_type", "observation", "action", "reward", "discount"}
_TRANSITION = {"observation", "action", "reward", "discount", "next_observation"}


class ItemSource(Source):
    """Items of a table, each as an episode.

    Attributes:
        fields: of the table's signature; None where it has none.
    """

    fields: Sequence[TableField] | None

    @property
    def spec(self) -> StepSpec:
        """That of the first item."""
        return self._spec

    @property
    @abc.abstractmethod
    def num_episodes(self) -> int:
        """How many items are read in a pass."""

    @functools.cached_property
    def _spec(self) -> StepSpec:
        for item in self.read(0, 1):
            if isinstance(item, Episode):
                return spec_of(item)
        raise SourceFormatError(f"{self.name}: the table is empty, so nothing tells what an item looks like")

    def signature(self) -> dict[str, str] | None:
        """The signature in words: type and shape by name."""
        return None if self.fields is None else {nest.path_name(field.path): str(field) for field in self.fields}

    def episode(self, item: Any, index: int, tensor: Callable[[int, int], np.ndarray]) -> Episode:
        """An item as an episode; see :func:`columns_of` and :func:`episode_of`."""
        metadata = {"key": item.key, "priority": item.priority, "times_sampled": item.times_sampled}
        return episode_of(columns_of(item, tensor), self.fields, source=self.name, index=index, metadata=metadata)


def columns_of(item: Any, tensor: Callable[[int, int], np.ndarray]) -> list[np.ndarray]:
    """The columns of an item, each ``[T, ...]``, or without the axis of steps where it is squeezed.

    Args:
        item: a ``PrioritizedItem`` message.
        tensor: gives a chunk's tensor, by the chunk's key and the tensor's number.

    Raises:
        SourceFormatError: a slice lies outside its chunk.
    """
    columns = []
    for column in item.flat_trajectory.columns:
        parts = []
        for part in column.chunk_slices:
            rows = tensor(part.chunk_key, part.index)
            if part.offset < 0 or part.length < 1 or part.offset + part.length > len(rows):
                raise SourceFormatError(
                    f"item {item.key} points at rows {part.offset} to {part.offset + part.length} of a chunk of "
                    f"{len(rows)}"
                )
            parts.append(rows[part.offset : part.offset + part.length])
        if not parts:
            raise SourceFormatError(f"item {item.key} has a column without rows")
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        columns.append(whole[0] if column.squeeze else whole)
    return columns


def episode_of(
    columns: Sequence[np.ndarray],
    fields: Sequence[TableField] | None,
    *,
    source: str,
    index: int,
    metadata: Mapping[str, Any],
) -> Episode:
    """One item as an episode.

    ============================================  ================================================
    the table's signature                         the episode
    ============================================  ================================================
    TF-Agents' Trajectory                         its T frames, flags from the step types
    Acme's Transition                             two rows, the second holds the next observation
    anything else, or none                        one row, every column is an extra field
    ============================================  ================================================

    The rows of a trajectory are a piece of an episode, so they need not begin with a first step nor
    end with a last one.

    Raises:
        SourceFormatError: the item has another number of columns than the signature.
    """
    about: dict[str, Any] = {"source": source, "index": index, "metadata": metadata}
    if fields is None:
        extras = {f"column_{i}": np.asarray(column)[None] for i, column in enumerate(columns)}
        return Episode(extras=extras, **about)
    if len(fields) != len(columns):
        raise SourceFormatError(f"{source}: an item has {len(columns)} columns, the table's signature {len(fields)}")
    whole = _nest_of([(field.path, column) for field, column in zip(fields, columns, strict=True)])
    names = set(whole) if isinstance(whole, dict) else set()
    if names >= _TRAJECTORY and np.ndim(whole["step_type"]) == 1:
        return _trajectory(whole, about)
    if names >= _TRANSITION and np.ndim(whole["reward"]) == 0:
        return _transition(whole, about)
    rows = nest.map_structure(lambda column: np.asarray(column)[None], whole)
    return Episode(extras=rows if isinstance(rows, dict) else {"item": rows}, **about)


def _trajectory(whole: dict[str, Any], about: dict[str, Any]) -> Episode:
    kinds, discount = whole["step_type"], whole["discount"]
    is_last = kinds == STEP_LAST
    extras = {name: whole[name] for name in whole if name not in _TRAJECTORY and name != "next_step_type"}
    return Episode(
        observation=whole["observation"],
        action=whole["action"],
        reward=whole["reward"],
        discount=discount,
        is_first=kinds == STEP_FIRST,
        is_last=is_last,
        is_terminal=_ended(is_last, discount),
        extras=extras,
        **about,
    )


def _ended(is_last: np.ndarray, discount: np.ndarray) -> np.ndarray:
    """Last rows behind a discount of 0 (or with one of their own)."""
    before = np.ones(len(is_last), discount.dtype)
    before[1:] = discount[:-1]
    return is_last & ((before == 0) | (discount == 0))


def _transition(whole: dict[str, Any], about: dict[str, Any]) -> Episode:
    def two(first: Any, second: Any) -> np.ndarray:
        return np.stack([np.asarray(first), np.asarray(second)])

    def padded(column: Any) -> np.ndarray:
        return two(column, np.full_like(column, b"") if np.asarray(column).dtype == object else np.zeros_like(column))

    extras = whole.get("extras")
    names = extras if isinstance(extras, dict) else {} if extras is None else {"extras": extras}
    ended = bool(np.all(whole["discount"] == 0))
    return Episode(
        observation=nest.map_structure(two, whole["observation"], whole["next_observation"]),
        action=nest.map_structure(padded, whole["action"]),
        reward=padded(whole["reward"]),
        discount=padded(whole["discount"]),
        is_first=np.zeros(2, bool),
        is_last=np.array([False, ended]),
        is_terminal=np.array([False, ended]),
        extras={name: nest.map_structure(padded, child) for name, child in names.items()},
        **about,
    )


def _nest_of(leaves: Sequence[tuple[nest.Path, Any]]) -> Any:
    """Dicts for keys, tuples for positions."""
    if len(leaves) == 1 and leaves[0][0] == ():
        return leaves[0][1]
    groups: dict[str | int, list[tuple[nest.Path, Any]]] = {}
    for path, leaf in leaves:
        groups.setdefault(path[0], []).append((path[1:], leaf))
    built = {key: _nest_of(group) for key, group in groups.items()}
    return tuple(built.values()) if built and all(isinstance(key, int) for key in built) else built
