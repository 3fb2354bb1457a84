"""Episodes into an .npz file as OGBench's are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from rlds2buf.codecs.npz import members_of, write_npz
from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SourceError
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.rows_sink import RowsSink

__all__ = ["OgbenchSink"]

_TAKEN = ("terminals", "rewards", "next_observations", "timeouts", "rlds2buf")


class OgbenchSink(RowsSink):
    """Writes a file as OGBench's are (https://github.com/seohongpark/ogbench): every row of every episode.

    ===================  =====================================================================
    of the episode       in the file, N rows of all episodes
    ===================  =====================================================================
    observation, action  ``observations [N, ...]``, ``actions [N, ...]``
    the last row         flagged in ``terminals [N] bool``
    an array in extras   an array of its name (``qpos``, ``qvel``, ...)
    ===================  =====================================================================

    What the format has no place for is listed by :meth:`lost`: rewards (OGBench makes them for a task when it loads
    a file), terminal flags, discounts, metadata, nested extras.

    Args:
        path: the file to make.
        compressed: as OGBench's own are.
        overwrite: replace such a file that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
    """

    what: ClassVar[str] = "an OGBench file"

    def __init__(
        self, path: str | os.PathLike[str], *, compressed: bool = True, overwrite: bool = False, resume: bool = False
    ) -> None:
        super().__init__(path, overwrite=overwrite, resume=resume, options={"compressed": compressed})

    def name_fields(self, spec: StepSpec) -> None:
        self.place("observations", ("observation",), self.single(spec.observation, "observation"))
        self.place("actions", ("action",), self.single(spec.action, "action"))
        if spec.reward is not None:
            self.lose("reward", "the format has none: OGBench makes them for a task when it loads a file")
        for path, field in nest.flatten(spec.extras, ("extras",)):
            if field is not None:
                self.place(nest.path_name(path[1:]), path, field)

    def fault(self, name: str, path: nest.Path, field: FieldSpec) -> str | None:
        if field.is_string:
            return "it is text, and the format holds numbers"
        if path[0] == "extras" and (len(path) > 2 or name in _TAKEN or "/" in name or "\\" in name or "\0" in name):
            return "its name can't be that of an array in the file"
        return None

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        ends = np.cumsum(self.lengths(spool)) - 1
        count = int(ends[-1]) + 1 if len(ends) else 0
        arrays: dict[str, tuple[tuple[int, ...], np.dtype, Iterable[np.ndarray]]] = {}
        for name in self.paths:
            sample = spool.columns[name].read(0, 0)
            arrays[name] = (count, *sample.shape[1:]), sample.dtype, spool.columns[name].blocks()
        arrays["terminals"] = (count,), np.dtype(np.bool_), _flags(count, ends)
        provenance = np.array(json.dumps(self.provenance, sort_keys=True))
        arrays["rlds2buf"] = (), provenance.dtype, [provenance]
        write_npz(target, arrays, compressed=self.options["compressed"])

    def replaceable(self, path: Path) -> bool:
        try:
            return {"observations", "actions", "terminals"} <= members_of(path).keys()
        except SourceError:
            return False


def _flags(count: int, rows: np.ndarray) -> Iterator[np.ndarray]:
    flags = np.zeros(count, np.bool_)
    flags[rows] = True
    yield flags
