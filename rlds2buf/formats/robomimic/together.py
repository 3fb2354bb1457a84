"""Many demonstrations, whose datasets are alike, read together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.alike import Window
from rlds2buf.codecs.hdf5.alike_datasets import LEAST, AlikeDatasets, find_alike, window_of
from rlds2buf.codecs.hdf5.gathering import Gathering
from rlds2buf.codecs.hdf5.reading import H5PY_RAISES, Hdf5File
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.same import is_same
from rlds2buf.errors import EpisodeError, SourceError
from rlds2buf.formats.robomimic.demonstration import FIELDS, SIMULATOR
from rlds2buf.io.blocks import runs

__all__ = ["Together"]

_NAMES = 1 << 12
"""Of so many demonstrations is asked at a time where they are."""

_FAILURES = (EpisodeError, SourceError, *H5PY_RAISES)


class Together:
    """Reads runs of demonstrations that have the same datasets, all of plain numbers, of one type and shape each.

    The first of each make is read alone, too, and has to be the same.

    Args:
        file: the open file.
        demos: the names of the demonstrations.
        terminals, states: as of :class:`~rlds2buf.formats.robomimic.source.RobomimicHdf5Source`.
        alone: reads one, by its number.
        facts: gives the metadata of one, by its number and group.
        source: for messages.
    """

    def __init__(
        self,
        file: Hdf5File,
        demos: Sequence[str],
        *,
        terminals: str,
        states: bool,
        alone: Callable[[int], Episode | EpisodeError],
        facts: Callable[[int, Any], Mapping[str, Any]],
        source: str,
    ) -> None:
        self._file = file
        self._demos = demos
        self._terminals = terminals
        self._states = states
        self._alone = alone
        self._facts = facts
        self._source = source
        self._useful = file.is_flat and bool(file.addresses(["data"])[0] >= 0)

    def read(self, start: int, stop: int, rows: int, bytes: int) -> Iterator[EpisodeBatch | Episode | EpisodeError]:
        """Yield demonstrations ``start`` up to (not with) ``stop``, those that are not alike one by one.

        Raises:
            SourceFormatError: as reading one alone does, or the file became shorter.
        """
        while start < stop:
            count = min(stop - start, _NAMES)
            held = self._window(start, count) if self._useful and count >= LEAST else None
            if held is None:
                yield self._alone(start)
                start += 1
                continue
            for first, upto in runs(held.known, held.lengths, min(rows, bytes // max(1, held.row_bytes))):
                block = self._batch(held, start, slice(first, upto)) if held.known[first] else None
                if block is not None:
                    yield block
                else:
                    yield from map(self._alone, range(start + first, start + upto))
            start += len(held.known)

    def _window(self, start: int, count: int) -> _Window | None:
        """What is known of some demonstrations from `start` on; None if nothing is."""
        names = self._demos[start : start + count]
        try:
            data = self._file.get("data")
            places = self._file.addresses(names, data)
            window, count = window_of(self._file, places[np.newaxis])
            if count < LEAST:
                return None
            skipped = () if self._states else SIMULATOR
            wanted = [name for name in self._file.get(names[0], data) if name not in skipped]
            found = find_alike(self._file, window, places[:count], lambda i: self._file.get(names[i], data), wanted)
            held = _Window(self._file, window, found) if found else None
            if held is not None and held.known.any() and self._is_proven(held, start):
                return held
        except _FAILURES:
            pass
        self._useful = False
        return None

    def _is_proven(self, held: _Window, start: int) -> bool:
        leaders = {i for i in held.columns["actions",].leaders if held.known[i]} | {int(np.argmax(held.known))}
        for i in leaders:
            block = self._batch(held, start, slice(i, i + 1))
            if block is None or not is_same(self._alone(start + i), next(iter(block))):
                return False
        return True

    def _batch(self, held: _Window, start: int, run: slice) -> EpisodeBatch | None:
        """Some of a window, all known; None if something is wrong with them."""
        gathering, columns = held.columns_of(run)
        starts, total = gathering.starts, gathering.total
        ends = np.append(starts[1:], total) - 1
        dones = columns.pop("dones", None)
        extras = {name: column for name, column in columns.items() if name not in FIELDS}
        flags = {name: np.zeros(total, np.bool_) for name in ("is_first", "is_last")}
        flags["is_first"][starts] = flags["is_last"][ends] = True
        discount = np.ones(total, np.float32)
        terminal = np.zeros(total, np.bool_)
        if dones is not None:
            if ((dones != 0) & (dones != 1)).any():
                return None
            if self._terminals != "dones":
                extras["dones"] = dones
            if self._terminals != "none":
                terminal[1:] = dones[:-1] != 0
                terminal[starts] = False
            if self._terminals == "last":
                terminal &= flags["is_last"]
            discount[terminal] = 0
            discount[:-1][terminal[1:]] = 0
        rows = Episode(
            observation=columns["obs"],
            action=columns["actions"],
            reward=columns.get("rewards"),
            discount=discount,
            is_terminal=terminal,
            extras=extras,
            source=self._source,
            index=start + run.start,
            **flags,  # type: ignore[arg-type]
        )
        derived = ("is_terminal",) if dones is None and self._terminals != "none" else ()
        data = self._file.get("data")
        numbers = range(start + run.start, start + run.stop)
        facts = [self._facts(i, self._file.get(self._demos[i], data)) for i in numbers]
        return EpisodeBatch(rows, starts, metadata=facts, derived=derived)


class _Window:
    """Demonstrations side by side.

    Attributes:
        columns: their datasets by path.
        known: ``[E] bool``, which can be read together.
        lengths: ``[E] int64``, their rows with final ones.
        row_bytes: of all columns.
    """

    def __init__(self, file: Hdf5File, window: Window, columns: dict[nest.Path, AlikeDatasets]) -> None:
        self._file = file
        self._window = window
        self.columns = columns
        self.row_bytes = sum(column.row_bytes for column in columns.values())
        actions = columns["actions",]
        self._samples = actions.rows
        self.known = actions.known & (self._samples > 0) & (not actions.is_value)
        self.known &= self._samples <= file.budget.max_bytes // max(1, self.row_bytes)
        parts: dict[str, list[AlikeDatasets]] = {}
        for path, column in columns.items():
            parts.setdefault(str(path[0]), []).append(column)
        self._extras = {name for name in parts if name not in FIELDS}
        for name, held in parts.items():
            whole = np.all([(column.rows == self._samples) & (not column.is_value) for column in held], axis=0)
            if name in FIELDS:
                self.known &= whole
            elif self.known.any() and whole[int(np.argmax(self.known))]:
                self.known &= whole
            else:
                self._extras.discard(name)
                self.known &= ~whole
        for name in ("rewards", "dones"):
            if name in parts and not ((name,) in columns and _is_number(columns[name,])):
                self.known[:] = False
        own, following = (_kinds(columns, name) for name in ("obs", "next_obs"))
        self._has_next = "next_obs" in parts
        if not own or (self._has_next and own != following):
            self.known[:] = False
        self.lengths = self._samples + self._has_next

    def columns_of(self, run: slice) -> tuple[Gathering, dict[str, Any]]:
        """The rows of some, all known, by the names at the top; the last row of each is zeros where there is none."""
        gathering = Gathering(self._file, self._window, self.lengths[run])
        ends = gathering.starts + self.lengths[run] - 1
        final = Gathering(self._file, self._window, np.ones(len(ends), np.int64)) if self._has_next else None
        found: dict[str, Any] = {}
        for path, column in self.columns.items():
            if path[0] == "next_obs" or (path[0] not in FIELDS and path[0] not in self._extras):
                continue
            values = column.read(gathering, run, self._has_next)
            if path[0] == "obs" and final is not None:
                beside: nest.Path = ("next_obs", *path[1:])
                after = self.columns[beside]
                values = values.astype(np.result_type(column.dtype, after.dtype), copy=False)
                values[ends] = after.last(final, run)
            if path[0] in ("rewards", "dones"):
                values = values.reshape(gathering.total)
            _put(found, path, values)
        return gathering, found


def _is_number(column: AlikeDatasets) -> bool:
    return column.shape in ((), (1,)) and column.dtype.kind in "biuf"


def _kinds(columns: Mapping[nest.Path, AlikeDatasets], name: str) -> dict[nest.Path, Any]:
    return {path[1:]: column.shape for path, column in columns.items() if path[0] == name}


def _put(tree: dict[str, Any], path: nest.Path, value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(str(name), {})
    tree[str(path[-1])] = value
