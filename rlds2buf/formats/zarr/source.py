"""Zarr groups as Diffusion Policy and UMI have them: flat columns and where episodes end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.formats.zarr.rows import DamagedChunk, ZarrRows, opened_group
from rlds2buf.formats.zarr.store import ArrayInfo, Store
from rlds2buf.io.blocks import spans
from rlds2buf.io.padding import FinalRows
from rlds2buf.io.source import Source

__all__ = ["ZarrSource"]

_ENDS = "meta/episode_ends"
_BLOCK_BYTES = 24 << 20
"""Larger blocks are memory that the system maps anew each time, which takes longer than decoding what goes there."""
_SINGLE = "obs"
"""The name of an observation that is one array."""


class ZarrSource(Source):
    """Episodes of a Zarr group as Diffusion Policy's ReplayBuffer has it (https://github.com/real-stanford/diffusion_policy).

    Arrays ``data/* [N, ...]`` hold the rows of all episodes, ``meta/episode_ends [E]`` the row behind each one's
    last.  A folder or a zip archive (``.zarr.zip``, as UMI's), of Zarr version 2 or 3.

    ================  ===========================================================================
    the group         the episode, of as many rows
    ================  ===========================================================================
    ``data/action``   the action; where there is none (UMI takes the next pose for it), None
    ``data/reward``   the reward, if it is one number a row
    other ``data/*``  the observation, a dict by their names; ``data/obs`` alone, that array
    the end           a cut: nothing tells terminal states, so `is_terminal` is derived
    ================  ===========================================================================

    A row is an observation and the action taken there; what came of the last one was not recorded, so its action
    starts no transition.  Values keep their types: pictures that are stored as floats stay floats (``cast`` makes
    them uint8).  The discount is 1 (float32).  Each chunk is decoded once.  A chunk that is missing or damaged costs
    the episodes that it holds rows of.

    Args:
        path: the folder or the archive.
        missing_chunks: ``"refuse"`` one that is not there, or take it for its array's ``"fill"`` value: zarr 3
            leaves out chunks of nothing else.
        budget: what an episode, and a chunk, may take beyond the store's size.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such group; the message names the array.
        MissingDependency: zarr, or a codec, is not installed.
    """

    format: ClassVar[str] = "zarr"

    def __init__(
        self, path: str | os.PathLike[str], *, missing_chunks: str = "refuse", budget: Budget = BUDGET
    ) -> None:
        choice("missing_chunks", missing_chunks, ("refuse", "fill"))
        self.path = Path(path)
        self.name = str(path)
        self._fill = missing_chunks == "fill"
        self._budget = budget
        self._store = Store(self.path)
        found = self._store.tree("data")
        if not isinstance(found, Mapping):
            raise SourceFormatError(f"{path}: a Diffusion Policy group needs arrays data/*; there are none")
        infos = {info.path: info for _, info in nest.flatten(found)}
        self._ignored = {name: info.why for name, info in infos.items() if info.why is not None}
        self._ends = self._read_ends()
        self._columns = self._fields(_without(found))
        self._spec = StepSpec(
            discount=FieldSpec((), np.dtype(np.float32)),
            **nest.map_structure(lambda column: None if column is None else column.spec, self._columns),
        )

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._ends)

    @property
    def num_steps(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        row_bytes = max(1, self._spec.row_bytes)
        most = max(1, min(rows, min(bytes, _BLOCK_BYTES, self._budget.max_bytes) // row_bytes))
        with opened_group(self._store) as opened:
            readers = nest.map_structure(
                lambda column: None if column is None else self._reader(column.info, opened), self._columns
            )
            for first, upto in spans(self._ends, start, stop, most):
                yield from self._blocks(readers, first, upto)

    def _reader(self, info: ArrayInfo, opened: Any) -> ZarrRows:
        return ZarrRows(self._store, info, opened(info), self._budget, fill=self._fill)

    def _blocks(self, readers: Any, start: int, stop: int) -> Iterator[EpisodeBatch | EpisodeError]:
        """Episodes ``start`` up to (not with) ``stop``; of those that touch damaged chunks, an error each."""
        try:
            yield self._block(readers, start, stop)
        except DamagedChunk as damage:
            if stop - start == 1:
                error = EpisodeError(str(damage), source=self.name, episode=start, path=damage.field)
                error.__cause__ = damage
                yield error
                return
            middle = (start + stop) // 2
            yield from self._blocks(readers, start, middle)
            yield from self._blocks(readers, middle, stop)

    def _block(self, readers: Any, start: int, stop: int) -> EpisodeBatch:
        low, high = int(self._ends[start - 1]) if start else 0, int(self._ends[stop - 1])
        self._claim(high - low, start)
        columns: dict[str, Any] = nest.map_structure(
            lambda reader: None if reader is None else reader.read(low, high), readers
        )
        reward = columns["reward"]
        if reward is not None:
            columns["reward"] = reward.reshape(-1)
        lengths = np.diff(self._ends[start:stop], prepend=low)
        final = FinalRows(lengths, np.zeros(len(lengths), np.bool_))
        columns.update(final.flags(np.zeros(len(lengths), np.bool_)))
        rows = Episode(**columns, source=self.name, index=start)
        return EpisodeBatch(rows, final.starts, derived={"is_terminal"})

    def _claim(self, rows: int, episode: int) -> None:
        size = rows * self._spec.row_bytes
        if size > self._budget.max_bytes:
            self._budget.check_bytes(size - self._store.size, f"{self.name}: the {rows} rows of episode {episode}")

    def details(self) -> dict[str, Any]:
        arrays = {
            column.info.path: [list(column.info.shape), str(column.info.dtype)]
            for _, column in nest.flatten(self._columns)
            if column is not None
        }
        return {
            "rows": self.num_steps,
            "zarr_format": self._version,
            "arrays": arrays,
            "ignored": self._ignored,
            "warnings": self._warnings(),
        }

    def fingerprint(self) -> str:
        return f"{self.format}:{self._store.fingerprint()}:{self._fill}"

    def close(self) -> None:
        self._store.close()

    def _warnings(self) -> list[str]:
        warnings = ["no end flags: every episode is taken as truncated; its last action starts no transition"]
        if self._columns["action"] is None:
            warnings.append("no data/action (UMI takes the next pose for it); map={'action': FIELD} names a field")
        warnings += [f"{path} {why}: left out" for path, why in self._ignored.items()]
        infos = [column.info for _, column in nest.flatten(self._columns) if column is not None]
        more = {info.path: info.shape[0] - self.num_steps for info in infos if info.shape[0] > self.num_steps}
        if more:
            path, rows = next(iter(more.items()))
            warnings.append(f"{path} has {rows} rows behind the last of {_ENDS}: they are of no episode, and left out")
        return warnings

    def _read_ends(self) -> np.ndarray:
        """``[E] int64``, the row behind the last one of each episode."""
        info = self._store.array(_ENDS)
        if info is None:
            raise SourceFormatError(f"{self.name}: no {_ENDS}, so nothing tells where episodes end")
        self._version = info.version
        if info.dtype.kind not in "iu" or len(info.shape) != 1 or info.why is not None:
            what = info.why or f"holds {info.dtype}{list(info.shape)}"
            raise SourceFormatError(f"{self.name}: {_ENDS} {what}, not a row number for each episode")
        self._budget.check_bytes(info.shape[0] * 8 - self._store.size, f"{self.name}: {_ENDS}")
        with opened_group(self._store) as opened:
            ends = self._reader(info, opened).read(0, info.shape[0])
        ends = ends.astype(np.int64)  # of uint64 beyond it negative ones, which fall
        wrong = np.diff(ends, prepend=0) < 1
        if wrong.any():
            episode = int(np.argmax(wrong))
            before = int(ends[episode - 1]) if episode else 0
            raise SourceFormatError(
                f"{self.name}: {_ENDS}: episode {episode} ends at row {ends[episode]}, and begins at {before}"
            )
        return ends

    def _fields(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Step fields as nests of columns, or None."""
        for _, info in nest.flatten(dict(found)):
            self._check_length(info)
        fields = nest.map_structure(_Column, dict(found))
        action, reward = fields.pop("action", None), fields.get("reward")
        if isinstance(reward, _Column) and reward.info.dtype.kind in "biuf" and reward.info.row_shape in ((), (1,)):
            reward.is_number = True
            del fields["reward"]
        else:
            reward = None
        observation = fields.get(_SINGLE) if list(fields) == [_SINGLE] else fields
        if not observation and action is None:
            raise SourceFormatError(f"{self.name}: no array of data/* can be a column of steps: {self._ignored}")
        return {"observation": observation or None, "action": action, "reward": reward}

    def _check_length(self, info: ArrayInfo) -> None:
        rows = info.shape[0] if info.shape else 0
        if not info.shape or rows < self.num_steps:
            has = f"has {rows} rows" if info.shape else "is a single value"
            episode = int(np.searchsorted(self._ends, rows, "right"))
            raise SourceFormatError(
                f"{self.name}: {info.path} {has}, but episode {episode} ends at row {self._ends[episode]} "
                f"by {_ENDS}: the store is cut short, or not of one piece"
            )


class _Column:
    """An array that is a step field."""

    def __init__(self, info: ArrayInfo) -> None:
        self.info = info
        self.is_number = False

    @property
    def spec(self) -> FieldSpec:
        """One row's shape and dtype."""
        return FieldSpec(() if self.is_number else self.info.row_shape, self.info.dtype)


def _without(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays that make columns; no empty dicts."""
    found: dict[str, Any] = {}
    for name, child in tree.items():
        kept = _without(child) if isinstance(child, Mapping) else child if child.why is None else None
        if kept:
            found[name] = kept
    return found
