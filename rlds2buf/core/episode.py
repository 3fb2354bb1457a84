"""An episode: N rows as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2buf.core import nest, shown
from rlds2buf.core.fields import DATA_FIELDS, STEP_FIELDS
from rlds2buf.errors import EmptyEpisode, SpecMismatch

__all__ = ["Episode"]


class Episode:
    """N rows of one episode as columns ``[N, ...]``, in RLDS's alignment.

    Row t holds the observation, the action taken there, and the reward and discount that came of
    it.  Row N-1 is the last observation; its action, reward and discount are padding.  So an
    episode of N rows has N-1 transitions.  Observation, action and every extra may be nested dicts
    and tuples of columns.  A data field that the dataset lacks is None; a view that needs it says
    so.  Flags that are not given are derived from the record's own borders (no terminal), and
    named in `derived`.

    Args:
        observation, action: nests of arrays ``[N, ...]``, or None.
        reward, discount: arrays ``[N]`` (or ``[N, ...]``), or None.
        is_first, is_last, is_terminal: bool ``[N]``, or None.
        extras: further step fields, name to nest of arrays ``[N, ...]``.
        metadata: facts about the whole episode, any values.
        source: where the episode came from, for messages.
        index: its number there, 0-based.

    Attributes:
        derived: names of the flags that were not given.
        record: the bytes that it was read from and their checksum as TFRecord files have it, where a
            sink can take them as they are; an episode made of this one has none.

    Raises:
        SpecMismatch: columns differ in length, or a flag is not boolean ``[N]``.
        EmptyEpisode: there are no rows.

    >>> ep = Episode(observation=np.arange(3.0), action=np.zeros(3), reward=np.ones(3),
    ...              discount=np.ones(3), is_terminal=[False, False, True])
    >>> ep.num_steps, ep.num_transitions, ep.end
    (3, 2, 'terminated')
    """

    __slots__ = (
        "action",
        "derived",
        "discount",
        "extras",
        "index",
        "is_first",
        "is_last",
        "is_terminal",
        "metadata",
        "num_steps",
        "observation",
        "record",
        "reward",
        "source",
    )

    def __init__(
        self,
        *,
        observation: nest.Nest = None,
        action: nest.Nest = None,
        reward: npt.ArrayLike | None = None,
        discount: npt.ArrayLike | None = None,
        is_first: npt.ArrayLike | None = None,
        is_last: npt.ArrayLike | None = None,
        is_terminal: npt.ArrayLike | None = None,
        extras: Mapping[str, nest.Nest] | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        index: int | None = None,
    ) -> None:
        self.source = source
        self.index = index
        self.record: tuple[bytes, int] | None = None
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.observation = _columns(observation)
        self.action = _columns(action)
        self.reward: Any = _columns(reward)
        self.discount: Any = _columns(discount)
        self.extras: dict[str, nest.Nest] = _columns(dict(extras or {}))
        flags = {"is_first": is_first, "is_last": is_last, "is_terminal": is_terminal}
        self.derived = frozenset(name for name, flag in flags.items() if flag is None)
        given = {name: _column(flag) for name, flag in flags.items()}
        self.num_steps: int = self._length(given)
        self.is_first: np.ndarray = self._flag("is_first", given["is_first"], 0)
        self.is_last: np.ndarray = self._flag("is_last", given["is_last"], -1)
        self.is_terminal: np.ndarray = self._flag("is_terminal", given["is_terminal"], None)

    @property
    def num_transitions(self) -> int:
        """``num_steps - 1``: the last row starts none."""
        return self.num_steps - 1

    @property
    def end(self) -> str:
        """How it ended, by its last row: ``"terminated"``, ``"truncated"``, or ``"open"`` if not flagged last."""
        if self.is_terminal[-1]:
            return "terminated"
        return "truncated" if self.is_last[-1] else "open"

    def flatten(self) -> Iterator[tuple[nest.Path, np.ndarray]]:
        """Yield ``(path, column)`` for every field there is; extras are under ``("extras", ...)``."""
        for name in (*STEP_FIELDS, "extras"):
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                yield (name,), value
                continue
            for path, column in nest.flatten(value, (name,)):
                if column is not None:
                    yield path, column

    def replace(self, **changes: Any) -> Episode:
        """A new episode with these fields changed; columns not named are shared, not copied."""
        fields: dict[str, Any] = {
            name: getattr(self, name) for name in (*STEP_FIELDS, "extras", "metadata", "source", "index")
        }
        for name in self.derived:
            fields[name] = None
        fields.update(changes)
        return Episode(**fields)

    def rows(self, start: int, stop: int) -> Episode:
        """Rows ``start:stop`` as an episode that shares memory with this one; flags are kept as they are."""
        fields = {
            name: nest.map_structure(lambda c: None if c is None else c[start:stop], getattr(self, name))
            for name in (*STEP_FIELDS, "extras")
        }
        return Episode(**fields, metadata=self.metadata, source=self.source, index=self.index)

    def __len__(self) -> int:
        return self.num_steps

    def __repr__(self) -> str:
        number = "" if self.index is None else f" {self.index}"
        return f"<Episode{number}: {self.num_steps} steps, {self.end}>"

    def __str__(self) -> str:
        rows = shown.field_rows((name, getattr(self, name)) for name in (*DATA_FIELDS, "extras"))
        return shown.aligned(repr(self), rows)

    def _length(self, flags: Mapping[str, np.ndarray | None]) -> int:
        counts: set[int] = set()
        for value in (self.observation, self.action, self.reward, self.discount, self.extras, *flags.values()):
            _count_rows(value, counts)
        if len(counts) == 1 and (count := counts.pop()) > 0:
            return count
        lengths: dict[str, int] = {}
        data = {name: getattr(self, name) for name in (*DATA_FIELDS, "extras")}
        for path, column in nest.flatten({**data, **flags}):
            if column is None:
                continue
            name = nest.path_name(path)
            if column.ndim == 0:
                raise SpecMismatch("a column needs a time axis", source=self.source, episode=self.index, path=name)
            lengths[name] = len(column)
        if not lengths or max(lengths.values()) == 0:
            raise EmptyEpisode("the episode has no steps", source=self.source, episode=self.index, rule="empty-episode")
        if len(set(lengths.values())) > 1:
            first, first_length = next(iter(lengths.items()))
            name, length = next((n, k) for n, k in lengths.items() if k != first_length)
            raise SpecMismatch(
                f"{length} rows, but {first} has {first_length}",
                source=self.source,
                episode=self.index,
                path=name,
                rule="ragged-columns",
            )
        return next(iter(lengths.values()))

    def _flag(self, name: str, column: np.ndarray | None, default_row: int | None) -> np.ndarray:
        if column is None:
            column = np.zeros(self.num_steps, np.bool_)
            if default_row is not None:
                column[default_row] = True
            return column
        if column.dtype != np.bool_ or column.ndim != 1:
            raise SpecMismatch(
                f"expected bool[], got {column.dtype}{list(column.shape[1:])}",
                source=self.source,
                episode=self.index,
                path=name,
                rule="spec",
            )
        return column


def _column(value: Any) -> Any:
    if value is None or isinstance(value, np.ndarray):
        return value
    return np.asarray(value)


def _columns(value: Any) -> Any:
    return value if value is None or isinstance(value, np.ndarray) else nest.map_structure(_column, value)


def _count_rows(value: Any, counts: set[int]) -> None:
    """Add the lengths of a nest's columns to `counts`; -1 for one without a time axis."""
    if isinstance(value, np.ndarray):
        counts.add(value.shape[0] if value.ndim else -1)
    elif isinstance(value, dict):
        for child in value.values():
            _count_rows(child, counts)
    elif isinstance(value, tuple):
        for child in value:
            _count_rows(child, counts)
