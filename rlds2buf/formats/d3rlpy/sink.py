"""Episodes into a dataset file of d3rlpy 2."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.writing import SIGNATURE, create_hdf5, find_h5py
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.rows_sink import RowsSink
from rlds2buf.io.spooled_sink import OPEN_END

__all__ = ["D3rlpySink"]

_COLUMNS = ("observations", "actions", "rewards", "terminated")
_ENDS = "ends"
_VERSION = "2.1"
_NO_FINAL = "d3rlpy keeps no final observation of an episode that terminated: zeros are read back"


class D3rlpySink(RowsSink):
    """Writes a file as ``ReplayBuffer.dump`` of d3rlpy 2 does (``d3rlpy/dataset/io.py``, file version 2.1).

    ======================  ==================================================================
    of an episode, N rows   in the file, as episode i
    ======================  ==================================================================
    that terminated         N - 1 rows of ``observations_i``, ``actions_i``, ``rewards_i``, and
                            ``terminated_i`` true: the last row is the step that terminated
    that was cut            N rows and ``terminated_i`` false: d3rlpy takes the last row for the
                            successor of the one before, and nothing else of it
    an observation that is  ``observations_i_0``, ``observations_i_1``, ...
    a tuple
    ======================  ==================================================================

    Single numbers get the axis of length 1 that d3rlpy has.  What the format has no place for is listed by
    :meth:`lost`: final observations of episodes that terminated, discounts, extras, metadata, episodes of one row.

    Args:
        path: the file to make.
        overwrite: replace an HDF5 file that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
    """

    what: ClassVar[str] = "a d3rlpy file"

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False) -> None:
        super().__init__(path, overwrite=overwrite, resume=resume, options={})

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        find_h5py()
        return {
            **super().plan(spec),
            "rewards": self.reward_field(spec.reward),
            _ENDS: FieldSpec((), np.dtype(np.bool_)),
        }

    def name_fields(self, spec: StepSpec) -> None:
        self._place_single("actions", ("action",), self.single(spec.action, "action"))
        if isinstance(spec.observation, tuple) and all(isinstance(part, FieldSpec) for part in spec.observation):
            for number, part in enumerate(spec.observation):
                self._place_single(f"observations_{number}", ("observation", number), part)
        else:
            self._place_single("observations", ("observation",), self.single(spec.observation, "observation"))
        for path, field in nest.flatten(spec.extras, ("extras",)):
            if field is not None:
                self.lose(nest.path_name(path), "d3rlpy has observations, actions, rewards and ends, and nothing else")

    def fault(self, name: str, path: nest.Path, field: FieldSpec) -> str | None:
        return "it is text, and d3rlpy takes numbers" if field.is_string else None

    def take(self, batch: EpisodeBatch) -> None:
        short = batch.lengths == 1
        if short.any():
            self.left_out += int(short.sum())
            word = "one has" if self.left_out == 1 else f"{self.left_out} have"
            self._losses["episodes"] = f"{word} one row only, so no transition: left out"
            if short.all():
                return
            batch = batch.take(~short)
        super().take(batch)
        reward = batch.rows.reward
        rewards = np.zeros(batch.num_steps, np.float32) if reward is None else np.asarray(reward).reshape(-1)
        self.append({"rewards": rewards[self.kept_rows(batch)], _ENDS: batch.rows.is_terminal[batch.ends]})

    def kept_rows(self, batch: EpisodeBatch) -> np.ndarray:
        kept = super().kept_rows(batch)
        kept[batch.ends[batch.rows.is_terminal[batch.ends]]] = False
        return kept

    def notice(self, batch: EpisodeBatch) -> None:
        rows, ends = batch.rows, batch.ends
        terminated = rows.is_terminal[ends]
        own = terminated if batch.placeholder is None else terminated & ~batch.placeholder
        if own.any():
            self.lose("observation", _NO_FINAL)
        if batch.placeholder is not None and (batch.placeholder & ~terminated).any():
            self.lose("metadata/placeholder_final_row", "final rows whose observation is made up are left out")
        last = ends[terminated]
        for name, column in self.columns_of(batch).items():
            if name == "actions" and last.size and column[last].any():
                self.lose("action", "the last row's of an episode that terminated is not kept: zeros are read back")
        if rows.reward is not None and last.size and np.any(rows.reward[last]):
            self.lose("reward", "the last row's of an episode that terminated is not kept: zeros are read back")
        self.notice_discount(batch)
        if not (rows.is_last[ends] | rows.is_terminal[ends]).all():
            self.lose("is_last", OPEN_END)
        for name in sorted(batch.fact_names):
            self.lose(f"metadata/{name}", "the format has no place for facts about an episode")

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        lengths = self.lengths(spool)
        ends = spool.columns[_ENDS].read(0, len(lengths))
        low = 0
        with create_hdf5(target) as file:
            names = np.empty(len(_COLUMNS), object)
            names[:] = [name.encode() for name in _COLUMNS]
            file.column("columns", names)
            file.column("num_episodes", np.array(len(lengths)))
            file.value("version", _VERSION)
            for number, (rows, terminated) in enumerate(zip(lengths.tolist(), ends.tolist(), strict=True)):
                for name in (*self.paths, "rewards"):
                    column = spool.columns[name].read(low, low + rows)
                    base, _, part = name.partition("_")
                    place = f"{base}_{number}_{part}" if part else f"{base}_{number}"
                    file.column(place, column[:, None] if column.ndim == 1 else column)
                file.column(f"terminated_{number}", np.array(terminated))
                low += rows

    def replaceable(self, path: Path) -> bool:
        try:
            with open(path, "rb") as file:
                return file.read(len(SIGNATURE)) == SIGNATURE
        except OSError:
            return False

    def _place_single(self, name: str, path: nest.Path, field: FieldSpec) -> None:
        self.place(name, path, field)
        if name not in self.paths:
            raise SinkError(
                f"{self.name}: {nest.path_name(path)} can't be in {self.what}: {self.lost()[nest.path_name(path)]}"
            )
        if not field.shape:
            self.lose(nest.path_name(path), "it is read back with an axis of length 1")
