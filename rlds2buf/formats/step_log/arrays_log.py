"""Logs as arrays in memory: a dict of columns, or a list of such dicts, each an episode."""

from __future__ import annotations

import bisect
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.step_log.array_table import ArrayTable
from rlds2buf.formats.step_log.column_map import FIELD_NAMES, ColumnMap
from rlds2buf.formats.step_log.source import StepLogSource
from rlds2buf.formats.step_log.table import BLOCK_BYTES, Block, Table

__all__ = ["StepLogArraysSource", "holds_columns"]

_METADATA: Final = "metadata/"
_ENDS: Final = ("truncated", "is_first", "is_last", "episode", "done")


class StepLogArraysSource(StepLogSource):
    """Steps in arrays that are in memory, by the names that logs have.

    ============================================================  =============================================
    `data`                                                        episodes
    ============================================================  =============================================
    a dict of arrays ``[N, ...]``, as D4RL's ``get_dataset()``    where its flags cut it; where it has next
    and ``qlearning_dataset()`` give                              observations and no flag for time limits, also
                                                                  where the next row's observation is another
    a list of dicts of arrays ``[T, ...]``, T by entry            each entry is one
    ============================================================  =============================================

    Dicts nest (``{"infos": {"qpos": ...}}``, or ``"infos/qpos"``).  Every array has a row for each step, but
    an observation may have one more in every entry of a list.  Single values, and what is below
    ``metadata``, are the metadata of the episodes.  See :class:`~rlds2buf.formats.step_log.source.StepLogSource` for
    what columns become, and for the other arguments.

    Args:
        data: as above; arrays are not copied.

    Raises:
        SourceFormatError: an array has another length, or holds neither numbers nor text.
        TypeError: an entry is no dict.

    >>> episodes = [{"obs": np.zeros((n, 2)), "act": np.zeros(n), "timeout": np.arange(n) == n - 1} for n in (2, 3)]
    >>> list(StepLogArraysSource(episodes))
    [<Episode 0: 2 steps, truncated>, <Episode 1: 3 steps, truncated>]
    """

    format: ClassVar[str] = "arrays"

    def __init__(
        self,
        data: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        columns: Mapping[str, Any] | None = None,
        final_rows: bool | None = None,
        max_episode_steps: int | None = None,
        optional: Collection[str] = (),
    ) -> None:
        self._data = data
        self._is_cut = False
        super().__init__(
            "memory", columns=columns, final_rows=final_rows, max_episode_steps=max_episode_steps, optional=optional
        )

    def _open(self) -> Table:
        return _HeldTable(self._data)

    def _map_columns(self, final_rows: bool | None) -> ColumnMap:
        found = super()._map_columns(final_rows)
        if found.following is not None and not self._table.by_borders and not {*_ENDS} & found.flags.keys():
            self._is_cut = self._cut_at_jumps(found)
        return found

    def details(self) -> dict[str, Any]:
        told = super().details()
        if self._is_cut:
            told["warnings"].append("no flag for time limits: cut where the next row is not the next observation, too")
        return told

    def fingerprint(self) -> str:
        """Of all values."""
        crc = 0
        for name in sorted(self._map.names):
            crc = zlib.crc32(name.encode(), crc)
            for _, block in self._table.blocks([name]):
                rows = block[name]
                data = repr(rows.tolist()).encode() if rows.dtype == object else np.ascontiguousarray(rows).data
                crc = zlib.crc32(data, zlib.crc32(f"{rows.dtype}{rows.shape[1:]}".encode(), crc))
        return f"{self.format}:{self._table.count}:{crc:08x}:{super().fingerprint()}"

    def _cut_at_jumps(self, columns: ColumnMap) -> bool:
        """Make borders where a row's next observation is not the next row's observation; whether there are any."""
        table = self._table
        parts = [block for _, block in table.blocks(columns.names)]
        held = {name: np.concatenate([part[name] for part in parts]) for name in columns.names} if parts else {}
        jumps = np.zeros(table.count - 1, np.bool_)
        pairs = zip(nest.flatten(columns.fields["observation"]), nest.flatten(columns.following), strict=True)
        for (_, own), (_, following) in pairs:
            jumps |= _differ(following.take(held)[:-1], own.take(held)[1:])
        table.borders = np.concatenate([table.borders, np.flatnonzero(jumps) + 1]).astype(np.int64)
        table.notes = table.notes * len(table.borders)
        return bool(jumps.any())


class _HeldTable(ArrayTable["_Held"]):
    """Arrays in memory as columns: those of one dict, or of each entry of a list."""

    def __init__(self, data: Any) -> None:
        super().__init__("memory")
        entries = [data] if isinstance(data, Mapping) else list(data)
        for number, entry in enumerate(entries):
            place = Path("memory" if isinstance(data, Mapping) else f"entry {number}")
            leaves = _leaves_of(entry, place)
            notes = {name: leaf for name, leaf in leaves.items() if name.startswith(_METADATA)}
            self.add({name: _Held(leaf, place) for name, leaf in leaves.items() if name not in notes})
            self.notes[-1].update({name[len(_METADATA) :]: leaf for name, leaf in notes.items()})
            if self.unfit:
                name, why = next(iter(self.unfit.items()))
                raise SourceFormatError(f"{place}: `{name}` {why}")
        self.finish()
        if self.unfit:
            name, why = next(iter(self.unfit.items()))
            raise SourceFormatError(f"{self.name}: `{name}` {why}")
        self.by_borders = not isinstance(data, Mapping) or self.by_borders

    def blocks(self, names: Sequence[str], start: int = 0) -> Iterator[Block]:
        """Entries that are short several at a time."""
        origins = {name: self.origin(name) for name in names}
        while start < self.count:
            first = bisect.bisect_right(self.starts, start) - 1
            arrays = self.parts[first].arrays
            width = max(1, sum(arrays[own].row_bytes for own, _ in origins.values()))
            high = start + max(1, BLOCK_BYTES // width)
            last = max(first + 1, bisect.bisect_right(self.starts, high) - 1)
            end = self.starts[last] if last < len(self.starts) else self.count
            stop = min(high, end) if last == first + 1 else end
            yield start, {name: self._rows(own, first, last, start, stop, at) for name, (own, at) in origins.items()}
            start = stop

    def _rows(self, name: str, first: int, last: int, start: int, stop: int, moved: int) -> np.ndarray:
        """Rows ``start`` to ``stop`` of an array, which lie in the entries ``first`` to ``last`` (not with)."""
        parts = []
        for begin, part in zip(self.starts[first:last], self.parts[first:last], strict=True):
            low, high = max(start - begin, 0), min(stop - begin, part.rows)
            parts.append(part.arrays[name].rows(low + moved, high + moved))
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.astype(self.columns[name].dtype, copy=False)


class _Held:
    """An array in memory (:class:`~rlds2buf.formats.step_log.array_table.Rows`)."""

    def __init__(self, values: Any, file: Path) -> None:
        self.file = file
        try:
            array = np.asarray(values)
        except ValueError:
            array = np.asarray(None)
        self.why = None if array.dtype.kind in "biufcSU" or _is_text(array) else "holds neither numbers nor text"
        self._array = array
        self.shape = array.shape
        self.row_bytes = array.nbytes // max(1, len(array)) if array.ndim else 0
        self.dtype = np.dtype(object) if array.dtype.kind in "SUO" else array.dtype.newbyteorder("=")

    def value(self) -> Any:
        return self._array.item()

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Some rows; numbers are not copied."""
        rows = self._array[start:stop]
        return _as_bytes(rows) if self.dtype == object else rows.astype(self.dtype, copy=False)


def holds_columns(value: Any) -> bool:
    """Whether a dict holds the columns of steps: no ``steps``, and no single reward or flag.

    >>> holds_columns({"observation": [0.0, 1.0], "reward": [1.0, 1.0]})
    True
    >>> holds_columns({"observation": [0.0, 1.0], "reward": 1.0}), holds_columns({"steps": []}), holds_columns({})
    (False, False, False)
    """
    if not isinstance(value, Mapping) or "steps" in value:
        return False
    single = {name for field in _SINGLE for name in FIELD_NAMES[field]}
    lengths = {name: _has_rows(leaf) for name, leaf in _leaves(value)}
    return any(lengths.values()) and all(found for name, found in lengths.items() if name in single)


_SINGLE: Final = (
    "reward", "discount", "terminated", "truncated", "done", "is_first", "is_last", "is_terminal",
)  # fmt: skip


def _has_rows(value: Any) -> bool:
    return bool(getattr(value, "shape", ())) or isinstance(value, list | tuple)


def _leaves(value: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, child in value.items():
        if isinstance(child, Mapping):
            yield from _leaves(child, f"{before}{name}/")
        elif child is not None:
            yield f"{before}{name}", child


def _leaves_of(entry: Mapping[str, Any], place: Path) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        got = type(entry).__name__
        raise TypeError(f"{place} should be a dict of arrays, as the first entry is, got {got}")
    return dict(_leaves(entry))


def _is_text(array: np.ndarray) -> bool:
    return array.dtype == object and array.ndim > 0 and all(isinstance(x, str | bytes) for x in array.ravel().tolist())


def _as_bytes(rows: np.ndarray) -> np.ndarray:
    out = np.empty(rows.size, object)
    out[:] = [text if isinstance(text, bytes) else text.encode() for text in rows.ravel().tolist()]
    return out.reshape(rows.shape)


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """``[N] bool``, whether rows differ; NaN equals NaN."""
    different = one != other
    if one.dtype.kind == "f":
        different &= ~(np.isnan(one) & np.isnan(other))
    return different.reshape(len(one), -1).any(axis=1)
