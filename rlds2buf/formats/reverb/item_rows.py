"""What the columns of an item are as rows of an episode."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import DATA_FIELDS, FLAG_FIELDS, STEP_FIRST, STEP_LAST
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.reverb.protocol.signature import TableField

__all__ = ["columns_of", "episode_of", "has_next", "nest_of", "sequence_of", "transitions_of"]

_TRAJECTORY = {"step_type", "observation", "action", "reward", "discount"}
_TRANSITION = {"observation", "action", "reward", "discount", "next_observation"}
_STEP = {"observation", "action", "start_of_episode"}
"""Of Acme's ``Step``, as its SequenceAdder and EpisodeAdder write it."""


def columns_of(item: Any, tensor: Callable[[int, int], np.ndarray]) -> list[np.ndarray]:
    """The columns of an item, each ``[T, ...]``, or without the axis of steps where it is squeezed.

    Args:
        item: a ``PrioritizedItem`` message.
        tensor: gives a chunk's tensor, by the chunk's key and the tensor's number.

    Raises:
        SourceFormatError: a slice lies outside its chunk, or there are no columns.
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
        whole = _joined(parts, item)
        columns.append(whole[0] if column.squeeze else whole)
    if not columns:
        raise SourceFormatError(f"item {item.key} has no columns; was it written by a Reverb older than 0.2?")
    return columns


def _joined(parts: Sequence[np.ndarray], item: Any) -> np.ndarray:
    try:
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    except ValueError as cause:
        raise SourceFormatError(f"item {item.key} has rows of different shapes in one column: {cause}") from cause


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
    Acme's Step                                   its T steps, flags from the starts and discounts
    Acme's Transition                             two rows, the second holds the next observation
    anything else, or none                        one row, every column is an extra field
    ============================================  ================================================

    The rows of a trajectory are a piece of an episode, so they need not begin with a first step nor
    end with a last one.

    Raises:
        SourceFormatError: the item has another number of columns than the signature.
    """
    about: dict[str, Any] = {"source": source, "index": index, "metadata": metadata}
    whole = nest_of(columns, fields, source)
    if fields is None:
        return Episode(extras={name: np.asarray(column)[None] for name, column in whole.items()}, **about)
    names = set(whole) if isinstance(whole, dict) else set()
    if names >= _TRAJECTORY and np.ndim(whole["step_type"]) == 1:
        return sequence_of(whole, about)
    if names >= _STEP and np.ndim(whole["start_of_episode"]) == 1:
        return sequence_of(whole, about)
    if names >= _TRANSITION and np.ndim(whole["reward"]) == 0:
        return _transition(whole, about)
    rows = nest.map_structure(lambda column: np.asarray(column)[None], whole)
    return Episode(extras=rows if isinstance(rows, dict) else {"item": rows}, **about)


def nest_of(columns: Sequence[Any], fields: Sequence[TableField] | None, source: str) -> Any:
    """The columns in the signature's structure; a dict of ``column_0``, ``column_1`` and so on where there is none.

    Raises:
        SourceFormatError: they are more or fewer than the signature's.
    """
    if fields is None:
        return {f"column_{i}": column for i, column in enumerate(columns)}
    if len(fields) != len(columns):
        raise SourceFormatError(f"{source}: an item has {len(columns)} columns, the table's signature {len(fields)}")
    return _nest_of([(field.path, column) for field, column in zip(fields, columns, strict=True)])


def has_next(whole: Any) -> bool:
    """Whether columns ``[T, ...]`` are transitions, with a next observation of the observation's shapes and types."""
    if not isinstance(whole, dict) or not {"observation", "next_observation"} <= whole.keys():
        return False
    own, following = (dict(nest.flatten(whole[name])) for name in ("observation", "next_observation"))
    return own.keys() == following.keys() and all(
        own[path].dtype == following[path].dtype and own[path].shape == following[path].shape for path in own
    )


def transitions_of(whole: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[tuple[int, Episode]]:
    """T transitions, all columns ``[T, ...]``, as episodes: the number of the first transition of each, and it.

    One follows another where its observation is the other's next one; a discount of 0 ends an episode, which is
    terminal.  The last row of each holds the last next observation, and padding.
    """
    discount = whole.get("discount")
    count = len(next(iter(nest.flatten(whole["observation"])))[1])
    told = isinstance(discount, np.ndarray) and discount.ndim == 1
    ended: np.ndarray = np.asarray(discount == 0) if told else np.zeros(count, np.bool_)
    borders = ended.copy()
    for (_, own), (_, following) in zip(
        nest.flatten(whole["observation"]), nest.flatten(whole["next_observation"]), strict=True
    ):
        borders[:-1] |= _any_differs(own[1:], following[:-1])
    edges = [0, *(np.flatnonzero(borders[:-1]) + 1).tolist(), count]
    own_extras = whole.get("extras", {})
    extras = own_extras if isinstance(own_extras, dict) else {"extras": own_extras}
    known = {"observation", "next_observation", "action", "reward", "discount", "extras"}
    extras = {**extras, **{name: column for name, column in whole.items() if name not in known}}
    for start, stop in itertools.pairwise(edges):
        rows = slice(start, stop)

        def padded(column: np.ndarray, rows: slice = rows) -> np.ndarray:
            filler = np.full((1, *column.shape[1:]), b"" if column.dtype == object else 0, column.dtype)
            return np.concatenate([column[rows], filler])

        def with_next(own: np.ndarray, following: np.ndarray, rows: slice = rows) -> np.ndarray:
            return np.concatenate([own[rows], following[rows.stop - 1 : rows.stop]])

        is_last = np.arange(stop - start + 1) == stop - start
        flags = {"is_terminal": is_last & bool(ended[stop - 1])} if told else {}
        yield (
            start,
            Episode(
                observation=nest.map_structure(with_next, whole["observation"], whole["next_observation"]),
                **{
                    name: nest.map_structure(padded, whole[name])
                    for name in ("action", "reward", "discount")
                    if name in whole
                },
                **flags,
                extras=nest.map_structure(padded, extras),
                **about,
            ),
        )


def sequence_of(whole: Any, about: Mapping[str, Any]) -> Episode:
    """Columns ``[T, ...]`` as an episode of T rows; its flags are as the columns tell them, and no more.

    ``observation``, ``action``, ``reward`` and ``discount`` are what they are called, all else is an extra.  Flags
    come from step types (TF-Agents, dm_env), from ``start_of_episode`` and discounts (Acme), or from columns
    that are called as RLDS calls them; those that nothing tells are derived.
    """
    if not isinstance(whole, dict):
        return Episode(extras={"item": whole}, **about)
    data = {name: whole[name] for name in DATA_FIELDS if name in whole and _is_field(name, whole[name])}
    flags, told = _flags(whole)
    extras = {name: column for name, column in whole.items() if name not in data and name not in told}
    if isinstance(extras.get("extras"), dict):  # Acme's name for just that
        extras |= extras.pop("extras")
    fields: dict[str, Any] = {**data, **flags, "extras": extras, **about}
    return Episode(**fields)


def _is_field(name: str, value: Any) -> bool:
    return name in ("observation", "action") or isinstance(value, np.ndarray)


def _is_flag(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.bool_ and value.ndim == 1


def _flags(whole: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], set[str]]:
    """Those of the three flags that the columns tell, and which columns tell nothing else."""
    kinds, starts = whole.get("step_type"), whole.get("start_of_episode")
    given = whole.get("discount")
    discount = given if isinstance(given, np.ndarray) and given.ndim == 1 else None
    if isinstance(kinds, np.ndarray) and kinds.ndim == 1 and kinds.dtype.kind in "iu":
        is_last = np.asarray(kinds == STEP_LAST)
        flags = {"is_first": np.asarray(kinds == STEP_FIRST), "is_last": is_last}
        ends = {} if discount is None else {"is_terminal": _ended(is_last, discount)}
        return {**flags, **ends}, {"step_type", "next_step_type"}
    if isinstance(starts, np.ndarray) and _is_flag(starts) and discount is not None:
        return _acme_flags(whole, starts, discount), {"start_of_episode"}
    found = {name: whole[name] for name in FLAG_FIELDS if _is_flag(whole.get(name))}
    if not found and discount is not None and len(discount) > 1:
        is_last = np.asarray(np.arange(len(discount)) == len(discount) - 1)
        return {"is_terminal": _ended(is_last, discount)}, set()
    return found, set(found)


def _ended(is_last: np.ndarray, discount: np.ndarray) -> np.ndarray:
    """Last rows behind a discount of 0 (or with one of their own)."""
    before = np.ones(len(is_last), discount.dtype)
    before[1:] = discount[:-1]
    return is_last & ((before == 0) | (discount == 0))


def _acme_flags(whole: Mapping[str, Any], starts: np.ndarray, discount: np.ndarray) -> dict[str, np.ndarray]:
    """Of Acme's steps: the first of a discount of 0 leads into a terminal one, or is itself the padding of a cut one.

    Acme pads an episode's last step with zeros, and may add steps that are nothing but zeros
    (``EndBehavior.ZERO_PAD``) behind it.
    """
    is_last, is_terminal = np.zeros(len(starts), np.bool_), np.zeros(len(starts), np.bool_)
    zero = _zero_rows(whole)
    acts = ~_zero_rows({name: whole[name] for name in ("action", "reward") if name in whole})
    edges = [0, *(np.flatnonzero(starts[1:]) + 1).tolist(), len(starts)]
    for start, stop in itertools.pairwise(edges):
        ends = np.flatnonzero(discount[start:stop] == 0)
        if not len(ends):
            continue
        end = start + int(ends[0])
        follows = end + 1 < stop
        if follows and (acts[end] or not zero[end + 1]):
            is_last[end + 1] = is_terminal[end + 1] = True
        elif not acts[end]:
            is_last[end] = True
    return {"is_first": starts, "is_last": is_last, "is_terminal": is_terminal}


def _zero_rows(columns: Any) -> np.ndarray:
    """``[T] bool``: rows of which every number is 0 and every text empty."""
    leaves = [leaf for _, leaf in nest.flatten(columns)]
    zero = np.ones(len(leaves[0]) if leaves else 0, np.bool_)
    for leaf in leaves:
        zero &= ~_any_differs(leaf, b"" if leaf.dtype == object else 0)
    return zero


def _any_differs(rows: np.ndarray, others: Any) -> np.ndarray:
    """``[T] bool``: rows in which any value is another than in the others."""
    differs = np.asarray(rows != others)
    return np.asarray(differs.any(axis=tuple(range(1, differs.ndim))))


def _transition(whole: Mapping[str, Any], about: Mapping[str, Any]) -> Episode:
    """Acme's Transition as two rows, of which nothing says that the first begins an episode."""
    rows = nest.map_structure(lambda column: np.asarray(column)[None], dict(whole))
    ((_, one),) = transitions_of(rows, about)
    ended = bool(np.all(whole["discount"] == 0))
    flags = {
        "is_first": np.zeros(2, bool),
        "is_last": np.array([False, ended]),
        "is_terminal": np.array([False, ended]),
    }
    return one.replace(**flags)


def _nest_of(leaves: Sequence[tuple[nest.Path, Any]]) -> Any:
    """Dicts for keys, tuples for positions."""
    if len(leaves) == 1 and leaves[0][0] == ():
        return leaves[0][1]
    groups: dict[str | int, list[tuple[nest.Path, Any]]] = {}
    for path, leaf in leaves:
        groups.setdefault(path[0], []).append((path[1:], leaf))
    built = {key: _nest_of(group) for key, group in groups.items()}
    return tuple(built.values()) if built and all(isinstance(key, int) for key in built) else built
