"""Episodes into an HDF5 file with D4RL's keys."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.datasets import extra_fault, field_fault, texts_misfit
from rlds2buf.codecs.hdf5.writing import SIGNATURE, Hdf5Writer, create_hdf5, find_h5py
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError, SpecMismatch
from rlds2buf.io.column_spool import BLOCK_BYTES, ColumnSpool
from rlds2buf.io.metadata_values import SharedFacts
from rlds2buf.io.spooled_sink import SpooledSink, started

__all__ = ["D4rlHdf5Sink"]

_ROLES = frozenset(
    ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations", "infos", "metadata")
)
_LENGTHS, _ENDS = "lengths", "terminated"


class D4rlHdf5Sink(SpooledSink):
    """Writes a file as D4RL's are (Fu et al. 2020, https://arxiv.org/abs/2004.07219).

    An episode of N rows becomes N - 1 rows of the file: each observation with the action taken there,
    its reward and the next observation, the last of them flagged in ``terminals`` or ``timeouts``.

    ====================  ==================================================================
    of the episode        in the file, M rows of all episodes
    ====================  ==================================================================
    observation           ``observations [M, ...]`` and ``next_observations [M, ...]``
    action, reward        ``actions [M, ...]``, ``rewards [M]``
    is_terminal, is_last  ``terminals [M] bool``, ``timeouts [M] bool``
    extras["infos"]       ``infos/*``
    an array in extras    a dataset of its name
    other extras          ``infos/*``
    metadata              ``metadata/*``, where all episodes have the same
    ====================  ==================================================================

    Every column keeps its dtype.  What such a file has no place for is listed by :meth:`lost`:
    discounts other than 1 and 0 at a terminal, values of final rows, metadata that differ between
    episodes, episodes of one row, axes that vary.  The limits of a field's spec are not kept.

    Args:
        path: the file to make.
        next_observations: without them the last observation of each episode is lost.
        overwrite: replace an HDF5 file that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.

    >>> D4rlHdf5Sink("hopper.hdf5")
    <D4rlHdf5Sink hopper.hdf5>
    """

    what: ClassVar[str] = "a D4RL file"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        next_observations: bool = True,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        if not isinstance(next_observations, bool):
            raise TypeError(f"next_observations must be true or false, got {next_observations!r}")
        super().__init__(path, overwrite=overwrite, resume=resume, options={"next_observations": next_observations})
        self._extras: dict[str, nest.Path] = {}
        self._shared = SharedFacts()
        self._left_out = 0

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        self._shared, self._left_out, self._extras = SharedFacts(), 0, {}
        columns = {name: self._single(spec, name) for name in ("observation", "action")}
        columns["reward"] = self.reward_field(spec.reward)
        columns[_LENGTHS] = FieldSpec((), np.dtype(np.int64))
        columns[_ENDS] = FieldSpec((), np.dtype(np.bool_))
        if not self.options["next_observations"]:
            self.lose("observation", "next_observations=False: the last one of each episode is left out")
        # The infos first: what has to make way for another is what would be put among them.
        for path, field in sorted(nest.flatten(spec.extras), key=lambda leaf: leaf[0][0] != "infos"):
            if field is not None and (name := self._place(path, field)) is not None:
                self._extras[name] = path
                columns[f"extras/{name}"] = field
        find_h5py()
        return columns

    def misfit(self, batch: EpisodeBatch) -> tuple[int, SpecMismatch] | None:
        columns = {path: column for _, path, column in self._started_columns(batch)}
        return texts_misfit(batch, {("observation",): batch.rows.observation, **columns})

    def take(self, batch: EpisodeBatch) -> None:
        short = batch.lengths == 1
        if short.any():
            self._leave_out(int(short.sum()))
            if short.all():
                return
            batch = batch.take(~short)
        rows = {"observation": batch.rows.observation, _LENGTHS: batch.lengths}
        for name, path, column in self._started_columns(batch):
            self.notice_final(batch, path, column)
            rows[name] = started(batch, column)
        self._shared.add_batch(batch, self.lose)
        self.notice_discount(batch)
        self.notice_ends(batch)
        rows["reward"] = self.rewards(batch)
        rows[_ENDS] = batch.rows.is_terminal[batch.ends]
        self.append(rows)

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        lengths = spool.columns[_LENGTHS].read(0, spool.columns[_LENGTHS].rows)
        ends = np.cumsum(lengths - 1, dtype=np.int64)
        terminated = spool.columns[_ENDS].read(0, len(lengths))
        count = int(ends[-1]) if len(ends) else 0
        with create_hdf5(target) as file:
            self._observations(file, spool, ends, count)
            for name, column in (("actions", "action"), ("rewards", "reward")):
                self._copy(file, name, spool, column, count)
            for name, rows in (("terminals", ends[terminated] - 1), ("timeouts", ends[~terminated] - 1)):
                file.rows(name, (count,), np.dtype(np.bool_), _flags(count, rows))
            for name in self._extras:
                self._copy(file, name, spool, f"extras/{name}", count)
            for name, value in (self._shared.facts or {}).items():
                file.value(f"metadata/{name}", value)
            file.attribute("/", "rlds2buf", json.dumps(self.provenance, sort_keys=True))

    def replaceable(self, path: Path) -> bool:
        try:
            with open(path, "rb") as file:
                return file.read(len(SIGNATURE)) == SIGNATURE
        except OSError:
            return False

    def state(self) -> dict[str, Any]:
        return {"shared": self._shared.to_json(), "left_out": self._left_out}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._shared = SharedFacts.from_json(state["shared"])
        self._left_out = int(state["left_out"])

    def _started_columns(self, batch: EpisodeBatch) -> Iterator[tuple[str, nest.Path, np.ndarray]]:
        """Name in the spool, path and ``[M, ...]`` of what is kept of the rows that start a transition only."""
        yield "action", ("action",), batch.rows.action
        for name, path in self._extras.items():
            yield f"extras/{name}", ("extras", *path), nest.get(batch.rows.extras, path)

    def _leave_out(self, count: int) -> None:
        """Note episodes of one row."""
        self._left_out += count
        word = "one has" if self._left_out == 1 else f"{self._left_out} have"
        self._losses["episodes"] = f"{word} one row only, so no transition: left out"

    def _single(self, spec: StepSpec, name: str) -> FieldSpec:
        """The spec of a field that has to be one array."""
        value = getattr(spec, name)
        if isinstance(value, FieldSpec):
            fault = field_fault(value)
            if fault is None:
                return value
            raise SinkError(f"{self.name}: {name}: {fault}")
        leaves = [nest.path_name(path) for path, leaf in nest.flatten(value, (name,)) if leaf is not None]
        if not leaves:
            raise SinkError(f"{self.name}: the data have no {name}, which {self.what} needs")
        raise SinkError(
            f"{self.name}: {name} is nested ({', '.join(leaves)}), and {self.what} holds one array of {name}s; "
            f"choose or join its fields, for example map={{'{name}': '{leaves[0]}'}}"
        )

    def _place(self, path: nest.Path, field: FieldSpec) -> str | None:
        """The dataset for an extra; None if there is none for it."""
        own = path[0] == "infos" or (len(path) == 1 and path[0] not in _ROLES)
        place = path if own else ("infos", *path)
        return self.extra_name(path, place, extra_fault(field, path, place, self._extras))

    def _copy(self, file: Hdf5Writer, name: str, spool: ColumnSpool, column: str, count: int) -> None:
        source = spool.columns[column]
        sample = source.read(0, 0)
        file.rows(name, (count, *sample.shape[1:]), sample.dtype, source.blocks())

    def _observations(self, file: Hdf5Writer, spool: ColumnSpool, ends: np.ndarray, count: int) -> None:
        """Each row of each episode but the last, and each but the first."""
        column = spool.columns["observation"]
        sample = column.read(0, 0)
        step = max(1, BLOCK_BYTES // max(1, sample.dtype.itemsize * int(np.prod(sample.shape[1:], dtype=np.int64))))

        def blocks(ahead: int) -> Iterator[np.ndarray]:
            surplus = ends + np.arange(len(ends)) + ahead  # the spool has one row more of each episode
            for start in range(0, count, step):
                rows = np.array([start, min(start + step, count) - 1])
                first, last = (rows + np.searchsorted(ends, rows, "right") + ahead).tolist()
                low, high = np.searchsorted(surplus, [first, last])
                yield np.delete(column.read(first, last + 1), surplus[low:high] - first, 0)

        file.rows("observations", (count, *sample.shape[1:]), sample.dtype, blocks(0))
        if self.options["next_observations"]:
            file.rows("next_observations", (count, *sample.shape[1:]), sample.dtype, blocks(1))


def _flags(count: int, rows: np.ndarray) -> Iterator[np.ndarray]:
    """A column of flags ``[count]`` that is true at `rows`, in blocks."""
    for start in range(0, count, BLOCK_BYTES):
        block = np.zeros(min(BLOCK_BYTES, count - start), np.bool_)
        low, high = np.searchsorted(rows, [start, start + len(block)])
        block[rows[low:high] - start] = True
        yield block
