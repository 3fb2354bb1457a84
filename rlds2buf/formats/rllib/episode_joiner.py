"""Episodes out of RLlib's batches, which hold pieces of episodes, several at a time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.row_flags import OPEN_TAIL, PLACEHOLDER_FINAL_ROW
from rlds2buf.errors import EpisodeError, SourceFormatError, SpecMismatch
from rlds2buf.formats.rllib.columns import NAMES, rows_in
from rlds2buf.io.padding import FinalRows, padded

__all__ = ["EpisodeJoiner", "FLAGS"]

FLAGS = ("dones", "terminateds", "truncateds")
_OWN = {"obs": "observation", "actions": "action", "rewards": "reward"}
_BOOKKEEPING = ("new_obs", "t", *FLAGS, *(name for name in NAMES if name != "unroll_id"))
_MOST_OPEN = 256


@dataclasses.dataclass
class _Piece:
    """Rows of one episode that are still waiting for its end."""

    key: tuple[Any, ...]
    parts: list[dict[str, nest.Nest]]
    first_t: int
    next_t: int | None
    where: str


class EpisodeJoiner:
    """Joins pieces of episodes by ``eps_id`` (and agent), in the order of ``t``.

    An episode comes out when its end is flagged, when its ``t`` starts anew, when more than 256 are open
    (the one that has waited longest), and at the end of the data.

    Args:
        dones: whether a ``done`` is ``"terminated"`` or ``"truncated"``.
        max_episode_steps: a ``done`` after so many steps is a truncation.
        source: for messages.

    Attributes:
        index: of the next episode.
    """

    def __init__(self, *, dones: str, max_episode_steps: int | None, source: str) -> None:
        self._dones = dones
        self._limit = max_episode_steps
        self._source = source
        self._open: dict[tuple[Any, ...], _Piece] = {}
        self._dtypes: dict[nest.Path, np.dtype] = {}
        self.index = 0

    def add(self, columns: Mapping[str, nest.Nest], where: str) -> Iterator[Episode | EpisodeBatch | EpisodeError]:
        """Take one batch; yield the episodes that it ends, those that it has whole together.

        Raises:
            SourceFormatError: it lacks a column that is needed, or one that cuts episodes is malformed.
        """
        rows = rows_in(columns)
        if not rows:
            return
        for name in _OWN:
            if name not in columns:
                raise SourceFormatError(f"{where}: no column {name!r}; there are {', '.join(sorted(columns))}")
        ended = self._ended(columns, where)
        t = _numbers(columns, "t", where)
        names = [_names(columns, name, where) for name in _key_names(columns)]
        edges = _edges(rows, ended, t, names)
        keys = list(zip(*(column[edges[:-1]].tolist() for column in names), strict=True)) or [()] * (len(edges) - 1)
        closed = ended[edges[1:] - 1].tolist()
        for is_whole, run in itertools.groupby(enumerate(self._whole(keys, closed)), lambda piece: piece[1]):
            numbers = [number for number, _ in run]
            own = slice(numbers[0], numbers[-1] + 1)
            cuts = edges[own.start : own.stop + 1]
            block = self._block(dict(columns), cuts, keys[own], t, where) if is_whole and len(numbers) > 1 else None
            if block is not None:
                yield block
                continue
            for number, start, stop in zip(numbers, cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
                part = nest.map_structure(lambda column, a=start, b=stop: column[a:b], dict(columns))
                first = None if t is None else int(t[start])
                yield from self._take(keys[number], part, first, closed[number], where)

    def finish(self) -> Iterator[Episode | EpisodeError]:
        """Yield what is still open."""
        for key in list(self._open):
            yield self._built(self._open.pop(key))

    def _whole(self, keys: list[tuple[Any, ...]], closed: list[bool]) -> list[bool]:
        """Which pieces of a batch are episodes: they end, and nothing of their key was left open before."""
        is_open = dict.fromkeys(self._open, True)
        whole = []
        for key, is_closed in zip(keys, closed, strict=True):
            whole.append(is_closed and not is_open.get(key, False))
            is_open[key] = not is_closed
        return whole

    def _block(
        self,
        columns: dict[str, nest.Nest],
        edges: np.ndarray,
        keys: list[tuple[Any, ...]],
        t: np.ndarray | None,
        where: str,
    ) -> EpisodeBatch | None:
        """Whole episodes, which lie between `edges`, as a batch; None where something is wrong with the columns."""
        first, last = edges[:-1] - edges[0], edges[1:] - 1 - edges[0]
        columns = nest.map_structure(lambda column: column[edges[0] : edges[-1]], columns)
        reward, after = columns["rewards"], columns.get("new_obs")
        if not _is_reward(reward) or (after is not None and not _alike(after, columns["obs"])):
            return None
        first_t = np.zeros(len(first), np.int64) if t is None else t[edges[:-1]].astype(np.int64)
        terminal = self._terminals(columns, last, first_t + np.diff(edges))
        final = FinalRows(np.diff(edges), terminal if after is None else np.ones(len(first)))
        if after is None:
            observation = nest.map_structure(final.padded, columns["obs"])
        else:
            observation = nest.map_structure(
                lambda column, beside: final.spread(np.concatenate([column, beside[last]])), columns["obs"], after
            )
        extras = {name: column for name, column in columns.items() if name not in (*_OWN, *_BOOKKEEPING)}
        flags: dict[str, Any] = final.flags(terminal)
        rows = Episode(
            observation=observation,
            action=nest.map_structure(final.padded, columns["actions"]),
            reward=final.padded(_as_float(reward)),
            extras=nest.map_structure(final.padded, extras),
            **flags,
            source=where,
            index=self.index,
        )
        self.index += len(first)
        told = dict(zip(_key_names(columns), map(list, zip(*keys, strict=True)), strict=True))
        facts: Any = FactColumns(told, len(keys))
        if first_t.any():
            facts = [{**own, "first_t": t} if t else own for own, t in zip(facts, first_t.tolist(), strict=True)]
        placeholder = terminal if after is None and terminal.any() else None
        return EpisodeBatch(rows, final.starts, placeholder, metadata=facts)

    def _terminals(self, columns: dict[str, nest.Nest], last: np.ndarray, upto: np.ndarray) -> np.ndarray:
        """``[E] bool``: whether the row that the `last` one leads to is terminal; see :meth:`_end`."""
        if "terminateds" in columns or "truncateds" in columns:
            flag = columns.get("terminateds")
            return np.zeros(len(last), np.bool_) if flag is None else flag[last].astype(np.bool_)
        done = columns["dones"][last].astype(np.bool_)
        if self._dones != "terminated":
            return np.zeros_like(done)
        return done if self._limit is None else done & (upto < self._limit)

    def _take(
        self, key: tuple[Any, ...], part: dict[str, nest.Nest], first: int | None, ended: bool, where: str
    ) -> Iterator[Episode | EpisodeError]:
        piece = self._open.pop(key, None)
        if piece is not None and first is not None and first != piece.next_t:
            yield self._built(piece)
            piece = None
        if piece is None:
            piece = _Piece(key, [], first or 0, None, where)
        piece.parts.append(part)
        piece.next_t = None if first is None else first + rows_in(part)
        if ended:
            yield self._built(piece)
            return
        self._open[key] = piece  # last in the order, as the one touched last
        if len(self._open) > _MOST_OPEN:
            yield self._built(self._open.pop(next(iter(self._open))))

    def _ended(self, columns: Mapping[str, nest.Nest], where: str) -> np.ndarray:
        found = [flag for name in FLAGS if (flag := _flag(columns, name, where)) is not None]
        if not found:
            raise SourceFormatError(f"{where}: none of {', '.join(FLAGS)}, so nothing tells where an episode ends")
        return np.logical_or.reduce(found)

    def _built(self, piece: _Piece) -> Episode | EpisodeError:
        index = self.index
        self.index += 1
        place: dict[str, Any] = {"source": piece.where, "index": index}
        try:
            try:
                columns = nest.map_structure(lambda *parts: np.concatenate(parts), *piece.parts)
            except (KeyError, IndexError, TypeError, ValueError) as cause:
                raise SpecMismatch(
                    f"its pieces differ in their columns ({cause})", source=piece.where, episode=index, rule="spec"
                ) from cause
            return Episode(**self._fields(columns, piece, index), **place)
        except EpisodeError as error:
            return error

    def _fields(self, columns: dict[str, nest.Nest], piece: _Piece, index: int) -> dict[str, Any]:
        rows = rows_in(columns)
        terminal, last = self._end(columns, piece, rows)
        metadata = _metadata(columns, piece)
        if not last:
            metadata[OPEN_TAIL] = True
        fields = {field: columns[name] for name, field in _OWN.items()}
        if not _is_reward(fields["reward"]):
            raise SpecMismatch(
                "rewards should hold one number a step", source=piece.where, episode=index, path="reward", rule="spec"
            )
        fields["reward"] = _as_float(fields["reward"])
        after = columns.get("new_obs")
        if after is not None:
            final = nest.map_structure(lambda column: column[-1:], after)
            if not _alike(final, fields["observation"]):
                raise SpecMismatch(
                    "new_obs and obs differ in structure or shape", source=piece.where, episode=index, rule="spec"
                )
        elif terminal:
            final = nest.map_structure(lambda column: np.zeros_like(column[:1]), fields["observation"])
            metadata[PLACEHOLDER_FINAL_ROW] = True
        else:
            final = None  # the last row is the last observation known
        extras = {name: column for name, column in columns.items() if name not in (*_OWN, *_BOOKKEEPING)}
        if final is not None:
            fields["observation"] = nest.map_structure(
                lambda column, end: np.concatenate([column, end]), fields["observation"], final
            )
            for name in ("action", "reward"):
                fields[name] = nest.map_structure(_longer, fields[name])
            extras = nest.map_structure(_longer, extras)
            rows += 1
        flags = {name: np.zeros(rows, np.bool_) for name in ("is_first", "is_last", "is_terminal")}
        flags["is_first"][0] = flags["is_last"][-1] = True
        flags["is_terminal"][-1] = terminal
        discount = np.ones(rows, np.float32)
        if terminal:
            discount[-2:] = 0
        return {**fields, **flags, "discount": discount, "extras": extras, "metadata": metadata}

    def _end(self, columns: dict[str, nest.Nest], piece: _Piece, rows: int) -> tuple[bool, bool]:
        """Whether the last row ends in a terminal state, and whether its end is flagged at all."""
        flags = {name: bool(columns[name][-1]) for name in FLAGS if name in columns}
        if "terminateds" in flags or "truncateds" in flags:
            terminal = flags.get("terminateds", False)
            return terminal, terminal or flags.get("truncateds", False) or flags.get("dones", False)
        done = flags.get("dones", False)
        in_time = self._limit is None or piece.first_t + rows < self._limit
        return done and self._dones == "terminated" and in_time, done


def _is_reward(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "biuf"


def _as_float(column: np.ndarray) -> np.ndarray:
    return column if column.dtype.kind == "f" else column.astype(np.float64)


def _edges(rows: int, ended: np.ndarray, t: np.ndarray | None, names: list[np.ndarray]) -> np.ndarray:
    """Where pieces begin and end: behind each end, and where the names change or `t` does not go on."""
    border = ended[:-1].copy()
    for column in names:
        border |= np.asarray(column[1:] != column[:-1], np.bool_)
    if t is not None:
        border |= t[1:] != t[:-1] + 1
    return np.concatenate([[0], np.flatnonzero(border) + 1, [rows]])


def _flag(columns: Mapping[str, nest.Nest], name: str, where: str) -> np.ndarray | None:
    column = _numbers(columns, name, where)
    return None if column is None else column.astype(np.bool_)


def _numbers(columns: Mapping[str, nest.Nest], name: str, where: str) -> np.ndarray | None:
    column = columns.get(name)
    if column is None:
        return None
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "biuf":
        raise SourceFormatError(f"{where}: {name!r} should hold one number a step")
    return column


def _names(columns: Mapping[str, nest.Nest], name: str, where: str) -> np.ndarray:
    column = columns[name]
    if not isinstance(column, np.ndarray) or column.ndim != 1:
        raise SourceFormatError(f"{where}: {name!r} should hold one number or text a step")
    return column


def _alike(one: nest.Nest, other: nest.Nest) -> bool:
    """Whether the columns of two nests can be joined."""
    if not nest.same_structure(one, other):
        return False
    pairs = zip(nest.flatten(one), nest.flatten(other), strict=True)
    return all(column.shape[1:] == beside.shape[1:] for (_, column), (_, beside) in pairs)


def _metadata(columns: dict[str, nest.Nest], piece: _Piece) -> dict[str, Any]:
    return dict(zip(_key_names(columns), piece.key, strict=True)) | (
        {"first_t": piece.first_t} if piece.first_t else {}
    )


def _key_names(columns: Mapping[str, nest.Nest]) -> list[str]:
    """The columns that say which episode a row is of, and whose."""
    return [name for name in NAMES if name in columns and name != "unroll_id"]


def _longer(column: np.ndarray) -> np.ndarray:
    """By the final row."""
    return padded(column, len(column) + 1)
