"""Many demonstrations, whose datasets are alike, read together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.alike import Unfit, Window
from rlds2buf.codecs.hdf5.alike_datasets import LEAST, AlikeDatasets, find_alike, window_of
from rlds2buf.codecs.hdf5.gathering import Gathering
from rlds2buf.codecs.hdf5.reading import Hdf5File
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.errors import EpisodeError
from rlds2buf.formats.robomimic.demonstration import FIELDS, SIMULATOR
from rlds2buf.io.alike_episodes import AlikeEpisodes

__all__ = ["Together"]


class Together(AlikeEpisodes["_Window"]):
    """Reads runs of demonstrations that have the same datasets.

    Args:
        file: the open file.
        demos: the names of the demonstrations.
        terminals, states: as of :class:`~rlds2buf.formats.robomimic.source.RobomimicHdf5Source`.
        alone: as of :class:`AlikeEpisodes`.
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
        super().__init__(alone, file.is_flat and bool(file.addresses(["data"])[0] >= 0))
        self._file = file
        self._demos = demos
        self._terminals = terminals
        self._states = states
        self._facts = facts
        self._source = source

    def look(self, start: int, count: int) -> _Window | None:
        """See :meth:`AlikeEpisodes.look`."""
        names = self._demos[start : start + count]
        data = self._file.get("data")
        places = self._file.addresses(names, data)
        window, count = window_of(self._file, places[np.newaxis])
        if count < LEAST:
            return None
        skipped = () if self._states else SIMULATOR
        wanted = [name for name in self._file.get(names[0], data) if name not in skipped]
        found = find_alike(self._file, window, places[:count], lambda i: self._file.get(names[i], data), wanted)
        if not found:
            raise Unfit
        return _Window(self._file, window, found, start)

    def batch(self, held: _Window, first: int, upto: int) -> EpisodeBatch | None:
        """See :meth:`AlikeEpisodes.batch`."""
        gathering, columns = held.columns_of(slice(first, upto))
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
            index=held.start + first,
            **flags,  # type: ignore[arg-type]
        )
        derived = ("is_terminal",) if dones is None and self._terminals != "none" else ()
        data = self._file.get("data")
        numbers = range(held.start + first, held.start + upto)
        facts = [self._facts(i, self._file.get(self._demos[i], data)) for i in numbers]
        return EpisodeBatch(rows, starts, metadata=facts, derived=derived)


class _Window:
    """Demonstrations side by side.

    Attributes:
        columns: their datasets by path.
        start: the first one's number.
        known: ``[E] bool``, which can be read together.
        lengths: ``[E] int64``, their rows with final ones.
        row_bytes: of all columns.
    """

    def __init__(self, file: Hdf5File, window: Window, columns: dict[nest.Path, AlikeDatasets], start: int) -> None:
        self._file = file
        self._window = window
        self.start = start
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

    @property
    def leaders(self) -> set[int]:
        """Whom others are like."""
        return set(self.columns["actions",].leaders)

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
