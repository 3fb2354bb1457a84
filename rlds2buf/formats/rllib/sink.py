"""Episodes into RLlib's columns, a Parquet file with a step a row."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.arrow.step_table import SIGNATURE, write_parquet
from rlds2buf.codecs.arrow.tables import import_pyarrow
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.spooled_sink import SpooledSink, started

__all__ = ["RllibSink"]

_LENGTHS, _ENDS = "lengths", "ends"
_MODULE = b"default_policy"
_SCHEMA = (
    *("eps_id", "agent_id", "module_id", "agent_index", "unroll_id", "obs", "actions", "rewards", "infos", "new_obs"),
    *("terminateds", "truncateds", "dones", "t", "type", "item", "policy_batches"),
)
_BYTES, _ROWS = 1 << 25, 1 << 16


class RllibSink(SpooledSink):
    """Writes the columns that RLlib's new API stack reads (``config.offline_data(input_=[path])``), a step a row.

    Source: rllib/offline/offline_prelearner.py, https://github.com/ray-project/ray.  An episode of N rows becomes
    N - 1 rows of the file:

    ====================  ==================================================================
    of the episode        in the file
    ====================  ==================================================================
    its number, the step  ``eps_id`` (text), ``t``; ``module_id`` is "default_policy"
    observation           ``obs`` and ``new_obs``
    action, reward        ``actions``, ``rewards``
    is_terminal, is_last  ``terminateds``, ``truncateds`` of the last row
    an array in extras    a column of its name: to RLlib an output of the module
    ====================  ==================================================================

    Arrays are lists of fixed length (of such lists); nothing is packed.  What the format has no place for is listed
    by :meth:`lost`: discounts, metadata, values of final rows, text, episodes of one row.

    Args:
        path: the file to make; RLlib's readers ask for a name that ends in ``.parquet``.
        overwrite: replace a Parquet file that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
    """

    what: ClassVar[str] = "a file of RLlib's columns"

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, resume: bool = False) -> None:
        super().__init__(path, overwrite=overwrite, resume=resume, options={})
        self._fields: dict[str, FieldSpec] = {}
        self._extras: dict[str, str] = {}
        self._left_out = 0

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        import_pyarrow(f"{self.name}: Parquet")
        self._left_out, self._extras = 0, {}
        self._fields = {name: self._single(spec, name) for name in ("observation", "action")}
        self._fields["reward"] = self.reward_field(spec.reward)
        if self._fields["reward"].dtype.kind != "f":
            self.lose("reward", "it is read back as float64")
        for path, field in nest.flatten(spec.extras, ("extras",)):
            if field is None:
                continue
            fault = self._fault(path, field)
            if fault is not None:
                self.lose(nest.path_name(path), fault)
                continue
            self._extras[str(path[1])] = f"extras/{path[1]}"
            self._fields[f"extras/{path[1]}"] = field
        return {
            **self._fields,
            _LENGTHS: FieldSpec((), np.dtype(np.int64)),
            _ENDS: FieldSpec((), np.dtype(np.bool_)),
        }

    def take(self, batch: EpisodeBatch) -> None:
        short = batch.lengths == 1
        if short.any():
            self._left_out += int(short.sum())
            word = "one has" if self._left_out == 1 else f"{self._left_out} have"
            self._losses["episodes"] = f"{word} one row only, so no transition: left out"
            if short.all():
                return
            batch = batch.take(~short)
        rows = {"observation": batch.rows.observation, _LENGTHS: batch.lengths}
        for name, path in {
            "action": ("action",),
            **{self._extras[key]: ("extras", key) for key in self._extras},
        }.items():
            column = batch.rows.action if name == "action" else batch.rows.extras[path[1]]
            self.notice_final(batch, path, column)
            rows[name] = started(batch, column)
        rows["reward"] = self.rewards(batch)
        rows[_ENDS] = batch.rows.is_terminal[batch.ends]
        self.notice_discount(batch)
        self.notice_ends(batch)
        for name in sorted(batch.fact_names):
            self.lose(f"metadata/{name}", "a row a step has no place for facts about an episode")
        if batch.placeholder is not None and batch.placeholder.any():
            self.lose("metadata/placeholder_final_row", "made-up final observations are written as if they were real")
        self.append(rows)

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        columns = {"actions": "action", "rewards": "reward", **self._extras}
        fields = {name: self._fields[held] for name, held in columns.items()}
        text, flag, whole = (FieldSpec((), np.dtype(kind)) for kind in (object, np.bool_, np.int64))
        fields["rewards"] = FieldSpec((), fields["rewards"].dtype)
        names = {"eps_id": text, "module_id": text, "t": whole, "terminateds": flag, "truncateds": flag}
        observed = self._fields["observation"]
        fields = {**names, "obs": observed, "new_obs": observed, **fields}
        lengths = spool.columns[_LENGTHS].read(0, spool.columns[_LENGTHS].rows)
        blocks = self._blocks(spool, lengths - 1, columns, fields)
        facts = {"rlds2buf": json.dumps(self.provenance, sort_keys=True)}
        write_parquet(target, fields, blocks, utf8=("eps_id", "module_id"), facts=facts)

    def replaceable(self, path: Path) -> bool:
        try:
            with open(path, "rb") as file:
                return file.read(len(SIGNATURE)) == SIGNATURE
        except OSError:
            return False

    def state(self) -> dict[str, Any]:
        return {"left_out": self._left_out}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._left_out = int(state["left_out"])

    def _blocks(
        self, spool: ColumnSpool, steps: np.ndarray, columns: Mapping[str, str], fields: Mapping[str, FieldSpec]
    ) -> Iterator[dict[str, np.ndarray]]:
        """The columns, some rows at a time."""
        stops = np.cumsum(steps)
        terminated = spool.columns[_ENDS].read(0, len(steps))
        size = sum(field.dtype.itemsize * math.prod(n or 0 for n in field.shape) for field in fields.values())
        step = max(1, min(_ROWS, _BYTES // size))
        count = int(stops[-1]) if len(stops) else 0
        for low in range(0, count, step):
            rows = np.arange(low, min(low + step, count))
            episode = np.searchsorted(stops, rows, "right")
            seen = rows + episode  # the spool has one observation more of each episode
            observed = spool.columns["observation"].read(int(seen[0]), int(seen[-1]) + 2)
            last = rows == stops[episode] - 1
            found = {name: spool.columns[held].read(low, int(rows[-1]) + 1) for name, held in columns.items()}
            found["obs"], found["new_obs"] = observed[seen - seen[0]], observed[seen - seen[0] + 1]
            found["t"] = rows - (stops - steps)[episode]
            found["terminateds"], found["truncateds"] = last & terminated[episode], last & ~terminated[episode]
            found["eps_id"], found["module_id"] = (np.empty(len(rows), object) for _ in range(2))
            found["eps_id"][:] = [b"%d" % number for number in episode.tolist()]
            found["module_id"][:] = _MODULE
            yield found

    def _single(self, spec: StepSpec, name: str) -> FieldSpec:
        """The spec of a field that has to be one array of numbers."""
        value = getattr(spec, name)
        if isinstance(value, FieldSpec):
            fault = self._fault((name,), value)
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

    def _fault(self, path: nest.Path, field: FieldSpec) -> str | None:
        if None in field.shape:
            return "its length varies, and a column's rows have one shape"
        if field.is_string or field.dtype.kind not in "biuf":
            return "it is no number, and the columns hold numbers"
        if 0 in field.shape:
            return "it has no values"
        if path[0] == "extras" and (len(path) > 2 or path[1] in _SCHEMA):
            return "a column of its name would be something else to RLlib"
        return None
