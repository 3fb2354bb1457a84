"""Dreamer's episodes: an .npz file each."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.npy_rows import NpyRows
from rlds2buf.codecs.npz import ForwardRows, open_npz
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EmptyEpisode, EpisodeError, SourceFormatError, SourceNotFound, SpecMismatch
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.dreamer.format import episode_names
from rlds2buf.formats.dreamer.rows import ROWS, in_place
from rlds2buf.io.blocks import blocks_of
from rlds2buf.io.source import Source, spec_of_first

__all__ = ["DreamerSource"]

_STEP = ("action", "reward", "discount", "is_terminal", "is_last")
_FLAGS = ("is_first", "is_last", "is_terminal")
_EXTRA = "log_"


class DreamerSource(Source):
    """Episodes as DreamerV2 and V-D4RL save them (https://github.com/danijar/dreamerv2, ``common/replay.py``).

    A file ``TIMESTAMP-ID-LENGTH.npz`` is an episode of N rows.  Row t of it holds the observation, and the action,
    reward and discount that *led to* it; those of row 0 are zeros (the discount 1).  Here each is on the row before:

    ==========================  ===================================================================
    the file                    the episode, of N rows
    ==========================  ===================================================================
    ``action``, ``reward``      action and reward, moved up by one row; zeros on the last one
    ``discount``                the discount, moved up; the last one stays.  Where there is none, 1,
                                and 0 on the step into a terminal row and on that row
    ``is_terminal``             whether the last row is terminal; in older files ``discount`` is 0
    ``log_*``                   extras
    others (``image``)          the observation, a dict by their names
    ==========================  ===================================================================

    That an action led to its row is checked: where the first one is not zeros, the episode is an error that says so.

    Args:
        path: a file, or a folder of them, read in the order of their names.
        rows: ``"led"``, as above, or ``"taken"``: the action of a row was taken there, as DreamerV3 logs it; only
            rewards and discounts are moved up.
        budget: what an array may take beyond its file's size.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file.
    """

    format: ClassVar[str] = "dreamer"

    def __init__(self, path: str | os.PathLike[str], *, rows: str = "led", budget: Budget = BUDGET) -> None:
        choice("rows", rows, ROWS)
        self.path = Path(path)
        self.name = str(path)
        self._placed, self._budget = rows, budget
        self._files = [self.path]
        if self.path.is_dir():
            names = episode_names(os.listdir(self.path))
            if not names:
                raise SourceFormatError(f"{path}: no TIMESTAMP-ID-LENGTH.npz in it")
            self._files = [self.path / name for name in names]
        elif not self.path.exists():
            raise SourceNotFound(f"{path}: no such file or folder")
        else:
            open_npz(self.path, budget)

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @functools.cached_property
    def _spec(self) -> StepSpec:
        return spec_of_first(self)

    @property
    def num_episodes(self) -> int:
        return len(self._files)

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        stop = len(self._files) if stop is None else min(stop, len(self._files))
        yield from blocks_of((self._item(index) for index in range(start, stop)), rows, bytes)

    def _item(self, index: int) -> Episode | EpisodeError:
        try:
            return self._episode(index)
        except EpisodeError as error:
            return error
        except (SourceFormatError, SourceNotFound) as cause:  # one file says nothing of the others
            if len(self._files) == 1:
                raise
            damaged = EpisodeError(str(cause), source=self.name, episode=index)
            damaged.__cause__ = cause
            return damaged

    def _episode(self, index: int) -> Episode:
        file = self._files[index]
        where: dict[str, Any] = {"source": str(file), "episode": index}
        arrays = {name: array for name, array in open_npz(file, self._budget).items() if _is_column(array)}
        columns = self._columns(arrays, where)
        first = columns.pop("is_first", None)
        if first is not None and np.count_nonzero(first[1:]):
            step = int(np.flatnonzero(first[1:])[0]) + 1
            message = "another episode begins here; a file of several, as DreamerV3's chunks are, is not read"
            raise SpecMismatch(message, step=step, path="is_first", rule="spec", **where)
        fields = in_place(
            {name: columns.pop(name) for name in _STEP if name in columns}, rows=self._placed, where=where
        )
        extras = {name: columns.pop(name) for name in list(columns) if name.startswith(_EXTRA)}
        return Episode(observation=columns or None, extras=extras, **fields, source=self.name, index=index)

    def _columns(self, arrays: dict[str, NpyRows], where: dict[str, Any]) -> dict[str, np.ndarray]:
        missing = [f"`{name}`" for name in ("action", "reward") if name not in arrays]
        if missing:
            there = ", ".join(sorted(arrays)) or "nothing"
            raise SpecMismatch(f"no {' and '.join(missing)}; it holds {there}", rule="spec", **where)
        count = arrays["action"].shape[0]
        for name, array in arrays.items():
            if array.shape[0] != count:
                message = f"{array.shape[0]} rows, but `action` has {count}"
                raise SpecMismatch(message, path=name, rule="ragged-columns", **where)
        if not count:
            raise EmptyEpisode("`action` has no rows", rule="empty-episode", path="action", **where)
        size = sum(array.row_bytes for array in arrays.values()) * count
        if size > self._budget.max_bytes:
            self._budget.check_bytes(
                size - Path(where["source"]).stat().st_size, f"{where['source']}: its {count} rows"
            )
        with ForwardRows(arrays) as reader:
            found: dict[str, np.ndarray] = reader.read(count)
        return found

    def details(self) -> dict[str, Any]:
        arrays = open_npz(self._files[0], self._budget)
        left_out = {name: array.why for name, array in arrays.items() if not _is_column(array)}
        warnings = [f"`{name}` {why or 'is a single value'}: left out" for name, why in left_out.items()]
        if not {"is_terminal", "discount"} & arrays.keys():
            warnings.append("neither `is_terminal` nor `discount`: every episode is taken as truncated")
        shapes = {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items()}
        return {"files": len(self._files), "arrays": shapes, "warnings": warnings}

    def fingerprint(self) -> str:
        return f"dreamer:{fingerprint_files(self._files)}:{self._placed}"


def _is_column(array: NpyRows) -> bool:
    return array.why is None and len(array.shape) > 0
