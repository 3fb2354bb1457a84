"""Minari's HDF5 layout: one file ``main_data.hdf5`` with a group an episode.

::

    episode_0/            attributes: id, total_steps, seed, options/name, ...
        observations      [T + 1, ...], or a group of them for a Dict, of _index_0, _index_1, ... for a Tuple
        actions           [T, ...], the same
        rewards, terminations, truncations   [T]
        infos/            [T + 1, ...] as Minari collects them

Source: minari/dataset/_storages/hdf5_storage.py, https://github.com/Farama-Foundation/Minari
"""

from __future__ import annotations

import array
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, open_hdf5
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.errors import SourceFormatError, SourceNotFound, SpecMismatch
from rlds2buf.formats.minari.episode import BatchParts, EpisodeParts, Proof
from rlds2buf.formats.minari.hdf5_group import read_group
from rlds2buf.formats.minari.hdf5_groups import Groups

__all__ = ["Hdf5Episodes"]

_EPISODE = re.compile(r"episode_(\d+)")
_PLAIN = re.compile(r"episode_(0|[1-9][0-9]{0,17})")


class Hdf5Episodes:
    """The episodes in such a file, by number.

    Args:
        path: the file.
        infos: whether to read the infos.
        external: data that the file has in other files, by links, external storage or virtual datasets:
            ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Attributes:
        names: of the episodes.
        files: all files that hold them.
        ignored: what else lies at the file's top.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: it can't be read.
    """

    def __init__(self, path: Path, *, infos: bool, external: str = "refuse", budget: Budget = BUDGET) -> None:
        if not path.is_file():
            raise SourceNotFound(f"{path}: no such file, though metadata.json is beside it")
        self.path = path
        self.files = [path]
        self._infos = infos
        self._open = functools.partial(open_hdf5, path, budget=budget, external=external)
        with self._open() as file:
            self.names, self.ignored = _names(file)

    def read(self, start: int, stop: int) -> Iterator[EpisodeParts | SpecMismatch]:
        """Yield the parts of these episodes, one by one.

        Raises:
            SourceFormatError: the file is damaged.
        """
        with self._open() as file:
            for number in range(start, min(stop, len(self.names))):
                yield self._read(file, number)

    def read_batches(
        self, start: int, stop: int, rows: int, bytes: int, prove: Proof
    ) -> Iterator[BatchParts | EpisodeParts | SpecMismatch]:
        """Yield the parts of these episodes, of many together where their groups are alike.

        Args:
            start, stop, rows, bytes: as of :meth:`Source.read_batches`.
            prove: asked about one of those that are alike, whether it is the same when read alone.

        Raises:
            SourceFormatError: the file is damaged.
        """
        stop = min(stop, len(self.names))
        with self._open() as file:
            alike = Groups(file, self.names, self._infos, lambda number: self._read(file, number), prove)
            while start < stop:
                for found in alike.read(start, stop, rows, bytes):
                    parts = self._read(file, start) if found is None else found
                    yield parts
                    file.require_whole()
                    start += len(parts) if isinstance(parts, BatchParts) else 1

    def _read(self, file: Hdf5File, number: int) -> EpisodeParts | SpecMismatch:
        name = self.names[number]
        group = file.get(name)
        if group is None:
            raise SourceFormatError(f"{self.path}: {name} is gone; did the file change?")
        file.new_record()
        return read_group(file, name, group, infos=self._infos)


class _Numbered(Sequence[str]):
    """Names that are ``episode_`` and a number: eight bytes for each, as there may be millions.

    Args:
        numbers: ``[N] int64``.
    """

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...
    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return [f"episode_{number}" for number in self._numbers[which].tolist()]
        return f"episode_{self._numbers[which]}"


def _names(file: Hdf5File) -> tuple[Sequence[str], list[str]]:
    """The episodes by number, and what else there is.  Of two names with one number, the last counts."""
    plain, others = array.array("q"), []

    def see(name: str) -> None:
        match = _PLAIN.fullmatch(name)
        if match:
            plain.append(int(match[1]))
        else:
            others.append(name)

    file.visit(see)
    episodes = _Numbered(np.sort(np.frombuffer(plain, np.int64)))
    if not any(map(_EPISODE.fullmatch, others)):
        return episodes, sorted(others)
    every = sorted([*episodes, *others])
    numbers = {int(match[1]): name for name in every if (match := _EPISODE.fullmatch(name))}
    names = [numbers[number] for number in sorted(numbers)]
    return names, sorted(set(every) - set(names))
