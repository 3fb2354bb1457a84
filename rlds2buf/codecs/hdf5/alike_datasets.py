"""Datasets that each of many episodes has, found for all of them without the HDF5 library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.alike import Unfit, Window, walk
from rlds2buf.codecs.hdf5.gathering import Gathering
from rlds2buf.codecs.hdf5.reading import Hdf5File, as_numpy, is_dataset
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.core import nest

__all__ = ["LEAST", "AlikeDatasets", "find_alike", "window_of"]

_WINDOW_BYTES = 1 << 25
_MARGIN = 1 << 18
"""A dataset's structures lie behind its header; its values may be anywhere."""

_MAX_MAKES = 16
"""Small datasets lie in their headers, larger ones elsewhere, so that there are some."""

LEAST = 4
"""Fewer episodes are read one by one."""


@dataclasses.dataclass
class AlikeDatasets:
    """One dataset of each of E episodes, of one type and row shape.

    Attributes:
        stored: the dtype in the file.
        dtype: as a column.
        shape: of a row, or of the one value.
        is_value: they are single values, without an axis of rows.
        known: ``[E] bool``, whose are such, and plain bytes in the file.
        rows: ``[E] int64``, how many there are.
        places: ``[E] int64``, where in the file the rows lie.
        leaders: the numbers of episodes that others were found to be like.
    """

    stored: np.dtype
    dtype: np.dtype
    shape: tuple[int, ...]
    is_value: bool
    known: np.ndarray
    rows: np.ndarray
    places: np.ndarray
    leaders: list[int] = dataclasses.field(default_factory=list)

    @property
    def row_bytes(self) -> int:
        """Of one row, or value."""
        return self.stored.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def read(self, gathering: Gathering, run: slice, short: bool | np.ndarray = False) -> np.ndarray:
        """``[M, ...]``: the rows of some episodes; see :meth:`Gathering.read`."""
        if not self.row_bytes:
            return np.zeros((gathering.total, *self.shape), self.dtype)
        found = gathering.read(self.row_bytes, self.places[run], short)
        return found.view(self.stored).reshape(gathering.total, *self.shape).astype(self.dtype, copy=False)

    def last(self, gathering: Gathering, run: slice) -> np.ndarray:
        """``[E, ...]``: the last row of each of some episodes, which `gathering` has for one row each."""
        last = dataclasses.replace(self, places=self.places + (self.rows - 1) * self.row_bytes)
        return last.read(gathering, run)


def window_of(file: Hdf5File, places: np.ndarray) -> tuple[Window, int]:
    """A run of the file's bytes with the first of some episodes in it.

    Args:
        file: the open file.
        places: ``[D, E] int64``, where the headers of their datasets or groups lie; -1 for what is not there.

    Returns:
        The window, and how many episodes it holds.

    Raises:
        SourceFormatError: the file became shorter.
    """
    lows = np.where((places < 0).any(0), 1 << 62, places.min(0))
    highs = np.where((places < 0).any(0), -1, places.max(0))
    low, high = np.minimum.accumulate(lows), np.maximum.accumulate(highs)
    count = int(np.searchsorted(high - low, _WINDOW_BYTES - _MARGIN, "right"))
    if not count or high[count - 1] < 0:
        return Window(np.empty(0, np.uint8), 0), count
    first = int(low[count - 1])
    return Window(file.raw(first, int(high[count - 1]) - first + _MARGIN), first), count


def find_alike(
    file: Hdf5File, window: Window, places: np.ndarray, item: Callable[[int], Any], wanted: Sequence[str] = ()
) -> dict[nest.Path, AlikeDatasets]:
    """Find out about a dataset of each of E episodes, or about the datasets in a group of each.

    Args:
        file: the open file.
        window: where the headers are.
        places: ``[E] int64``, of the headers; -1 for those that are not there.
        item: gives the dataset or group of an episode, as the library has it.
        wanted: the members of groups.

    Returns:
        The datasets by their paths in the group, all of which an episode has that is known; nothing if none is.

    Raises:
        SourceFormatError: a dataset holds what is no column.
    """
    found: dict[nest.Path, AlikeDatasets] = {}
    left = np.flatnonzero((places >= 0) & window.holds(places, 16))
    for _ in range(_MAX_MAKES):
        if len(left) < LEAST:
            break
        leader, some = int(left[0]), left
        left = left[1:]
        try:
            alike = walk(window, file.size, places[some], [name.encode() for name in wanted])
        except Unfit:
            continue
        made = _made(file, item(leader), alike.tree, len(places))
        if made and (not found or _kinds(made) == _kinds(found)):
            mine = some[alike.fit]
            for path, leaf in nest.flatten(alike.tree):
                own = (found or made)[_texts(path)]
                own.known[mine] = True
                own.places[mine] = leaf.places[alike.fit]
                own.rows[mine] = 0 if leaf.rows is None else leaf.rows[alike.fit]
                own.leaders.append(leader)
            found = found or made
        left = some[~alike.fit]
    return found


def _made(file: Hdf5File, item: Any, tree: Any, count: int) -> dict[nest.Path, AlikeDatasets]:
    """What is found, of nobody yet; nothing if a dataset is not plain."""
    made: dict[nest.Path, AlikeDatasets] = {}
    if _has_empty(tree):
        return made
    for path, leaf in nest.flatten(tree):
        dataset = file.get("/".join(_texts(path)), item) if path else item
        if not isinstance(leaf.places, np.ndarray) or not is_dataset(dataset):
            return {}
        stored = dataset.dtype
        if not as_numpy(dataset.id.get_type(), stored):
            return {}
        none = np.zeros(count, np.int64)
        made[_texts(path)] = AlikeDatasets(
            stored, native_dtype(dataset), leaf.shape, leaf.rows is None, none > 0, none, none.copy()
        )
    return made


def _has_empty(tree: Any) -> bool:
    """Whether there is an empty group, of which the datasets' paths don't tell."""
    return isinstance(tree, dict) and (not tree or any(map(_has_empty, tree.values())))


def _kinds(found: Mapping[nest.Path, AlikeDatasets]) -> Any:
    return {path: (one.stored, one.shape, one.is_value) for path, one in found.items()}


def _texts(path: Iterable[Any]) -> tuple[str, ...]:
    return tuple(name.decode("utf-8", "replace") for name in path)
