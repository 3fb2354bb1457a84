"""Episodes into HDF5 files as ALOHA and ACT record them, one each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.datasets import is_plain_name
from rlds2buf.codecs.hdf5.writing import create_hdf5, find_h5py
from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError
from rlds2buf.formats.aloha.format import episode_names
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.rows_sink import RowsSink

__all__ = ["AlohaSink"]

_TAKEN = ("action", "observations", "compress_len")


class AlohaSink(RowsSink):
    """Writes a folder of ``episode_N.hdf5`` as ACT's ``record_sim_episodes.py`` does (https://github.com/tonyzhaozh/act).

    ===================  =====================================================================
    of the episode       in its file, N rows
    ===================  =====================================================================
    observation          ``observations/NAME``; ``observations/qpos`` where it is one array
    action               ``action [N, ...]``
    extras               datasets of their names at the top
    ===================  =====================================================================

    Pictures are written as pixels.  ACT's loaders look for ``observations/qpos``, ``qvel`` and ``images/CAMERA``: map
    fields to these names.  What the format has no place for is listed by :meth:`lost`: rewards, terminal flags,
    discounts, metadata.

    Args:
        path: the folder to make.
        sim: whether the data were recorded in simulation; of those that were not, ACT's loader takes each row's
            action from the row before it.
        final_rows: write each episode's last row, too.  In data of other formats its action is padding, zeros most
            often; false leaves these rows out.
        overwrite: replace such a folder that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
    """

    what: ClassVar[str] = "a folder of ALOHA's files"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sim: bool = True,
        final_rows: bool = True,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        super().__init__(path, overwrite=overwrite, resume=resume, options={"sim": sim, "final_rows": final_rows})

    def name_fields(self, spec: StepSpec) -> None:
        find_h5py()
        self.place("action", ("action",), self.single(spec.action, "action"))
        if spec.reward is not None:
            self.lose("reward", "the format has none")
        for path, field in nest.flatten(spec.observation, ("observation",)):
            if field is not None:
                name = nest.path_name(("observations", *(path[1:] or ("qpos",))))
                moved = len(path) == 1 or any(isinstance(part, int) for part in path)
                place = nest.path_name(("observation", *(path[1:] or ("qpos",))))
                self.place(name, path, field, read_back=place if moved else None)
        for path, field in nest.flatten(spec.extras, ("extras",)):
            if field is not None:
                moved = any(isinstance(part, int) for part in path)
                self.place(nest.path_name(path[1:]), path, field, read_back=nest.path_name(path) if moved else None)
        if not any(name.startswith("observations/") for name in self.paths):
            raise SinkError(f"{self.name}: the data have no observation, which {self.what} needs")
        if "observations/qpos" not in self.paths:
            self.notes = ("no observations/qpos, which ACT's loaders look for, and by which such files are told",)

    def fault(self, name: str, path: nest.Path, field: FieldSpec) -> str | None:
        if not all(is_plain_name(part) for part in path):
            return "its name can't be one in an HDF5 file"
        if field.is_string:
            return "it is text, and the format holds numbers"
        if path[0] == "extras" and path[1] in _TAKEN:
            return f"{path[1]} is another field's"
        return None

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        target.mkdir()
        low = 0
        provenance = json.dumps(self.provenance, sort_keys=True)
        for number, rows in enumerate(self.lengths(spool).tolist()):
            with create_hdf5(target / f"episode_{number}.hdf5") as file:
                for name in self.paths:
                    file.column(name, spool.columns[name].read(low, low + rows))
                file.attribute("/", "sim", np.bool_(self.options["sim"]))
                file.attribute("/", "rlds2buf", provenance)
            low += rows

    def replaceable(self, path: Path) -> bool:
        names = os.listdir(path) if path.is_dir() else []
        return bool(names) and len(episode_names(names)) == len(names)
