"""Episodes into a robomimic HDF5 file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.datasets import clash, field_fault, is_plain_name, texts_misfit
from rlds2buf.codecs.hdf5.writing import SIGNATURE, Hdf5Writer, create_hdf5, find_h5py
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError, SpecMismatch
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.metadata_values import SharedFacts
from rlds2buf.io.spooled_sink import SpooledSink, started

__all__ = ["RobomimicHdf5Sink"]

_TAKEN = ("obs", "next_obs", "actions", "rewards", "dones")
_LENGTHS, _ENDS = "lengths", "terminated"
_NO_ENVIRONMENT = {"env_name": "", "type": 1, "env_kwargs": {}}


class RobomimicHdf5Sink(SpooledSink):
    """Writes a file of robomimic's layout (https://robomimic.github.io/docs/datasets/overview.html).

    An episode of N rows becomes a demonstration of N - 1 samples:

    ====================  ==================================================================
    of the episode        in ``data/demo_<k>``
    ====================  ==================================================================
    observation           ``obs/*`` and ``next_obs/*``; ``obs/observation`` for one array
    action, reward        ``actions``, ``rewards``
    is_terminal           ``dones``: 1 at the last sample, if the row it led to is terminal
    extras                datasets of their names
    metadata              ``env_args``, where all have the same, is the file's
    ====================  ==================================================================

    Every column keeps its dtype.  What such a file has no place for is listed by :meth:`lost`: discounts other than 1
    and 0 at a terminal, values of final rows, other metadata, episodes of one row, text in observations.

    Args:
        path: the file to make.
        next_obs: without them the last observation of each episode is lost.
        overwrite: replace an HDF5 file that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
    """

    what: ClassVar[str] = "a robomimic file"

    def __init__(
        self, path: str | os.PathLike[str], *, next_obs: bool = True, overwrite: bool = False, resume: bool = False
    ) -> None:
        super().__init__(path, overwrite=overwrite, resume=resume, options={"next_obs": next_obs})
        self._names: dict[str, nest.Path] = {}
        self._shared = SharedFacts()
        self._left_out = 0

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        find_h5py()
        self._shared, self._left_out, self._names = SharedFacts(), 0, {}
        columns = {
            "reward": self.reward_field(spec.reward),
            _LENGTHS: FieldSpec((), np.dtype(np.int64)),
            _ENDS: FieldSpec((), np.dtype(np.bool_)),
        }
        if spec.action is None:
            raise SinkError(f"{self.name}: the data have no action, which {self.what} needs")
        for path, field in nest.flatten(
            {"action": spec.action, "observation": spec.observation, "extras": spec.extras}
        ):
            if field is not None:
                self._place(columns, path, field)
        if not any(name.startswith("obs/") for name in self._names):
            raise SinkError(f"{self.name}: the data have no observation, which {self.what} needs")
        if not self.options["next_obs"]:
            self.lose("observation", "next_obs=False: the last one of each episode is left out")
        return columns

    def misfit(self, batch: EpisodeBatch) -> tuple[int, SpecMismatch] | None:
        return texts_misfit(batch, {path: _column(batch, path) for path in self._names.values()})

    def take(self, batch: EpisodeBatch) -> None:
        short = batch.lengths == 1
        if short.any():
            self._left_out += int(short.sum())
            word = "one has" if self._left_out == 1 else f"{self._left_out} have"
            self._losses["episodes"] = f"{word} one row only, so no transition: left out"
            if short.all():
                return
            batch = batch.take(~short)
        rows = {_LENGTHS: batch.lengths, "reward": self.rewards(batch), _ENDS: batch.rows.is_terminal[batch.ends]}
        for name, path in self._names.items():
            column = _column(batch, path)
            if path[0] == "observation":
                rows[name] = column
            else:
                self.notice_final(batch, path, column)
                rows[name] = started(batch, column)
        self._shared.add_batch(batch, lambda path, why: self.lose(path, why) if path == "metadata/env_args" else None)
        for fact in sorted(batch.fact_names - {"env_args"}):
            self.lose(f"metadata/{fact}", "the format has no place for such facts about a demonstration")
        if batch.placeholder is not None and batch.placeholder.any():
            self.lose("metadata/placeholder_final_row", "made-up final observations are written as if they were real")
        self.notice_discount(batch)
        self.notice_ends(batch)
        self.append(rows)

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        lengths = spool.columns[_LENGTHS].read(0, spool.columns[_LENGTHS].rows)
        terminated = spool.columns[_ENDS].read(0, len(lengths))
        facts = (self._shared.facts or {}).get("env_args")
        with create_hdf5(target) as file:
            data = file.group("data")
            low = 0
            for number, (rows, is_terminal) in enumerate(zip(lengths.tolist(), terminated.tolist(), strict=True)):
                samples = rows - 1
                for name, column in self._columns(spool, low, number, samples):
                    data.column(f"demo_{number}/{name}", column)
                dones = np.zeros(samples, np.int64)
                dones[-1] = is_terminal
                data.column(f"demo_{number}/dones", dones)
                low += rows
            self._attributes(file, lengths - 1, facts)

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

    def _columns(self, spool: ColumnSpool, low: int, number: int, samples: int) -> Iterator[tuple[str, np.ndarray]]:
        """Each dataset of a demonstration; `low` is the first row of its observations."""
        first = low - number  # of the rows that start a transition
        yield "rewards", spool.columns["reward"].read(first, first + samples)
        for name, path in self._names.items():
            if path[0] != "observation":
                yield name, spool.columns[name].read(first, first + samples)
                continue
            column = spool.columns[name].read(low, low + samples + 1)
            yield name, column[:-1]
            if self.options["next_obs"]:
                yield f"next_{name}", column[1:]

    def _attributes(self, file: Hdf5Writer, samples: np.ndarray, env_args: Any) -> None:
        for number, count in enumerate(samples.tolist()):
            file.attribute(f"data/demo_{number}", "num_samples", np.int64(count))
        file.attribute("data", "total", np.int64(samples.sum()))
        text = env_args.decode("utf-8", "replace") if isinstance(env_args, bytes) else env_args
        file.attribute("data", "env_args", text if isinstance(text, str) else json.dumps(_NO_ENVIRONMENT))
        file.attribute("/", "rlds2buf", json.dumps(self.provenance, sort_keys=True))

    def _place(self, columns: dict[str, FieldSpec], path: nest.Path, field: FieldSpec) -> None:
        """Note a field's dataset, or why it has none."""
        rest = path[1:]
        if path[0] == "observation":
            name = nest.path_name(("obs", *(rest or ("observation",))))
        else:
            name = nest.path_name(("actions", *rest) if path[0] == "action" else rest)
        where = nest.path_name(path)
        fault = field_fault(field)
        if fault is None and not all(is_plain_name(part) for part in path):
            fault = "its name can't be one in an HDF5 file"
        if fault is None and path[0] == "extras" and rest[0] in _TAKEN:
            fault = f"{rest[0]} is another field's"
        if fault is None and any(clash(name, other) for other in self._names):
            fault = f"{name} is another field's"
        if fault is not None and path[0] == "action":
            raise SinkError(f"{self.name}: {where}: {fault}")
        if fault is not None:
            self.lose(where, fault)
            return
        columns[name], self._names[name] = field, path
        if path == ("observation",) or any(isinstance(part, int) for part in rest):
            self.lose(where, f"it is read back as {nest.path_name((path[0], *(rest or ('observation',))))}")


def _column(batch: EpisodeBatch, path: nest.Path) -> np.ndarray:
    column: np.ndarray = nest.get(getattr(batch.rows, str(path[0])), path[1:])
    return column
