"""V-D4RL's HDF5 shards: flat rows of dm_env time steps."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, is_dataset, open_hdf5
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.dreamer.rows import ROWS, in_place
from rlds2buf.io.blocks import blocks_of
from rlds2buf.io.source import Source

__all__ = ["VD4rlSource"]

_FIELDS = ("observation", "action", "reward", "discount")
_FIRST, _LAST = 0, 2


class VD4rlSource(Source):
    """Episodes of V-D4RL's HDF5 files (https://github.com/conglu1997/v-d4rl, ``conversion_scripts``).

    Row t of a file holds a dm_env time step: ``observation [N, C, H, W]``, ``step_type`` (0 first, 1, 2 last), and the
    action, reward and discount that led to it, those of a first row being zeros (the discount 1).  An episode begins
    at each first row.  Action, reward and discount are moved up by one row, as
    :class:`~rlds2buf.formats.dreamer.source.DreamerSource` does; the last row is terminal where its discount is 0.

    Args:
        path: a file, or a folder of them; no episode goes over from one to the next.
        rows: as of DreamerSource: ``"led"``, or ``"taken"``.
        external: data that a file has in other files: ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file; the message names the dataset.
    """

    format: ClassVar[str] = "v-d4rl"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rows: str = "led",
        external: str = "refuse",
        budget: Budget = BUDGET,
    ) -> None:
        choice("rows", rows, ROWS)
        self.path = Path(path)
        self.name = str(path)
        self._placed, self._budget = rows, budget
        self._open = functools.partial(open_hdf5, budget=budget, external=external)
        self._files = [self.path]
        if self.path.is_dir():
            self._files = sorted(file for file in self.path.iterdir() if file.suffix in (".hdf5", ".h5"))
            if not self._files:
                raise SourceFormatError(f"{path}: no HDF5 file in it")
        self._starts: list[np.ndarray] = []
        specs: list[StepSpec] = []
        for file in self._files:
            with self._open(file) as opened:
                spec, starts = self._layout(opened)
            specs.append(spec)
            self._starts.append(starts)
            if spec != specs[0]:
                raise SourceFormatError(
                    f"{file}: its columns differ in shape or type from those of {self._files[0].name}"
                )
        self._spec = specs[0]
        counts = np.array([len(starts) - 1 for starts in self._starts])
        self._before = np.append(0, np.cumsum(counts))

    def _layout(self, file: Hdf5File) -> tuple[StepSpec, np.ndarray]:
        """The fields of a file, and where its episodes start, with the end of the last one."""
        held = {name: file.get(name) for name in (*_FIELDS, "step_type")}
        missing = [f"`{name}`" for name, one in held.items() if not is_dataset(one) or not one.shape]
        if missing:
            there = ", ".join(sorted(map(str, file))) or "nothing"
            raise SourceFormatError(f"{file.path}: a V-D4RL file needs {', '.join(missing)}; it holds {there}")
        count = held["step_type"].shape[0]
        for name, dataset in held.items():
            file.check(dataset)
            if dataset.shape[0] != count:
                raise SourceFormatError(
                    f"{file.path}: `{name}` has {dataset.shape[0]} rows, but `step_type` has {count}"
                )
        self._budget.check_bytes(count * 8 - file.size, f"{file.path}: `step_type`")
        kinds = np.asarray(file.rows(held["step_type"], 0, count)).reshape(-1)
        wrong = (kinds < _FIRST) | (kinds > _LAST)
        if len(kinds) != count or wrong.any():
            got = kinds[np.argmax(wrong)] if len(kinds) == count else "several"
            raise SourceFormatError(f"{file.path}: `step_type`, row {int(np.argmax(wrong))}: 0, 1 or 2, got {got}")
        firsts = np.flatnonzero(kinds == _FIRST)
        if count and (not len(firsts) or firsts[0]):
            raise SourceFormatError(f"{file.path}: `step_type`, row 0: no episode begins there (0), it is {kinds[0]}")
        shapes: dict[str, Any] = {
            name: FieldSpec(() if name in ("reward", "discount") else held[name].shape[1:], native_dtype(held[name]))
            for name in _FIELDS
        }
        return StepSpec(**shapes), np.append(firsts, count)

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return int(self._before[-1])

    @property
    def num_steps(self) -> int:
        return sum(int(starts[-1]) for starts in self._starts)

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        stop = self.num_episodes if stop is None else min(stop, self.num_episodes)
        yield from blocks_of(self._items(start, stop), rows, bytes)

    def _items(self, start: int, stop: int) -> Iterator[Episode | EpisodeError]:
        for number, path in enumerate(self._files):
            low, high = (int(n) for n in self._before[number : number + 2])
            if min(high, stop) <= max(low, start):
                continue
            with self._open(path) as file:
                for index in range(max(low, start), min(high, stop)):
                    yield self._item(file, self._starts[number], index - low, index)

    def _item(self, file: Hdf5File, starts: np.ndarray, place: int, index: int) -> Episode | EpisodeError:
        low, high = int(starts[place]), int(starts[place + 1])
        where: dict[str, Any] = {"source": str(file.path), "episode": index}
        file.new_record()
        columns: dict[str, np.ndarray] = {}
        for name in (*_FIELDS, "step_type"):
            dataset = file.get(name)
            file.claim(dataset, high - low)
            values = file.rows(dataset, low, high)
            columns[name] = values.astype(native_dtype(dataset), copy=False)
        columns["is_last"] = columns.pop("step_type").reshape(high - low, -1)[:, :1] == _LAST
        observation = columns.pop("observation")
        try:
            fields = in_place(columns, rows=self._placed, where=where)
            return Episode(observation=observation, **fields, source=self.name, index=index)
        except EpisodeError as error:
            return error

    def details(self) -> dict[str, Any]:
        lengths = np.concatenate([np.diff(starts) for starts in self._starts])
        lasting = {"shortest": int(lengths.min()), "longest": int(lengths.max())} if len(lengths) else {}
        return {"files": len(self._files), "rows": self.num_steps, **lasting, "warnings": []}

    def fingerprint(self) -> str:
        return f"v-d4rl:{fingerprint_files(self._files)}:{self._placed}"
