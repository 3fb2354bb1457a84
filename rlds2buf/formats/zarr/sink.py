"""Episodes into a Zarr group as Diffusion Policy has it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError, SourceError
from rlds2buf.formats.zarr.rows import find_zarr
from rlds2buf.formats.zarr.store import Store
from rlds2buf.io.column_spool import ColumnSpool, TextColumn
from rlds2buf.io.rows_sink import RowsSink, longest_text

__all__ = ["ZarrSink"]

_CHUNK_BYTES = 2 << 20
"""Of a chunk before compression, as Diffusion Policy's get_optimal_chunks takes it."""
_SINGLE = "obs"
"""The name of an observation that is one array."""


class ZarrSink(RowsSink):
    """Writes a group as Diffusion Policy's ReplayBuffer has it: ``data/* [N, ...]`` and ``meta/episode_ends [E]``.

    ===================  =====================================================================
    of the episode       in the group, N rows of all episodes
    ===================  =====================================================================
    observation          ``data/NAME``, or ``data/obs`` where it is one array
    action, reward       ``data/action``, ``data/reward``
    extras               ``data/NAME``, read back as parts of the observation
    ===================  =====================================================================

    Every array keeps its type, has chunks along the first axis of about 2 MB, and is packed by blosc (zstd,
    shuffled by bits) as Diffusion Policy's own; text becomes byte strings of the longest one's length.  The path's
    name decides: ``.zarr.zip`` is an archive, every other a folder.  What the format has no place for is listed by
    :meth:`lost`: terminal flags, discounts, metadata.

    Args:
        path: the folder or archive to make.
        zarr_format: the version of Zarr: 2, which Diffusion Policy reads, or 3.
        final_rows: write each episode's last row, too.  In data of other formats its action is padding, zeros most
            often; false leaves these rows out, so that every row has an action that was taken.
        overwrite: replace such a group that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
    """

    what: ClassVar[str] = "a Diffusion Policy Zarr group"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        zarr_format: int = 2,
        final_rows: bool = True,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        if zarr_format not in (2, 3):
            raise ValueError(f"zarr_format must be 2 or 3, got {zarr_format}")
        options = {"zarr_format": zarr_format, "final_rows": final_rows}
        super().__init__(path, overwrite=overwrite, resume=resume, options=options)

    def name_fields(self, spec: StepSpec) -> None:
        zarr = find_zarr(f"{self.name}: Zarr")
        if self.options["zarr_format"] == 3 and int(zarr.__version__.split(".")[0]) < 3:
            raise SinkError(f"{self.name}: zarr {zarr.__version__} writes no Zarr version 3; zarr_format=2 is written")
        if spec.action is not None:
            self.place("action", ("action",), self.single(spec.action, "action"))
        if spec.reward is not None:
            self.place("reward", ("reward",), self.reward_field(spec.reward))
        for path, field in nest.flatten({"observation": spec.observation, "extras": spec.extras}):
            if field is not None:
                name = _SINGLE if path == ("observation",) else nest.path_name(path[1:])
                moved = path[0] == "extras" or any(isinstance(part, int) for part in path)
                self.place(name, path, field, read_back=f"observation/{name}" if moved else None)
        others = self.paths.keys() - {"action", "reward"}
        if self.paths.get(_SINGLE) == ("observation",) and others != {_SINGLE}:
            self.lose("observation", f"it is read back as observation/{_SINGLE}")
        if others == {_SINGLE} and (path := self.paths[_SINGLE]) != ("observation",):
            self._losses[nest.path_name(path)] = "it is read back as observation"

    def fault(self, name: str, path: nest.Path, field: FieldSpec) -> str | None:
        if not all(isinstance(part, int) or _is_plain(part) for part in path):
            return "its name can't be one in a Zarr group"
        if 0 in field.shape:
            return "it has no values, and a chunk of nothing can't be"
        if field.is_string and self.options["zarr_format"] == 3:
            return "it is text, for which Zarr version 3 has no settled type"
        if path[0] in ("observation", "extras") and name.partition("/")[0] in ("action", "reward"):
            return f"{name} is another field's"
        return None

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        lengths = self.lengths(spool)
        is_zip = self.name.lower().endswith(".zip")
        folder = target.with_name(f"{target.name}.folder") if is_zip else target
        try:
            _Group(folder, self.options["zarr_format"], self.provenance).write(
                {f"data/{name}": spool.columns[name] for name in self.paths}, np.cumsum(lengths)
            )
            if is_zip:
                _pack(folder, target)
        except (OSError, RuntimeError, ValueError, TypeError) as cause:
            raise SinkError(f"{self.name}: zarr can't write it ({cause})") from cause
        if self.padded:
            self.notes = (
                f"{self.padded} of {len(lengths)} episodes have zeros as their last action, which may be padding; "
                "final_rows=False leaves last rows out",
            )

    def replaceable(self, path: Path) -> bool:
        try:
            store = Store(path)
        except SourceError:
            return False
        with contextlib.closing(store):
            return store.names("data") != [] and store.array("meta/episode_ends") is not None


class _Group:
    """A new group, written by zarr of any version."""

    def __init__(self, folder: Path, version: int, provenance: Mapping[str, Any]) -> None:
        self._zarr = find_zarr(f"{folder}: Zarr")
        self._version = version
        self._is_new = int(self._zarr.__version__.split(".")[0]) >= 3
        how: dict[str, Any] = {"zarr_format": version} if self._is_new else {}
        self._root = self._zarr.open_group(str(folder), mode="w", **how)
        self._root.attrs["rlds2buf"] = json.dumps(provenance, sort_keys=True)
        for name in ("data", "meta"):
            self._root.require_group(name)

    def write(self, columns: Mapping[str, Any], ends: np.ndarray) -> None:
        """Columns of the spool, by path, and where episodes end."""
        count = int(ends[-1]) if len(ends) else 0
        for path, column in columns.items():
            sample = column.read(0, 0)
            dtype = np.dtype(f"S{longest_text(column)}") if isinstance(column, TextColumn) else sample.dtype
            self._array(path, (count, *sample.shape[1:]), dtype, column.blocks())
        self._array("meta/episode_ends", ends.shape, np.dtype(np.int64), iter([ends]))

    def _array(self, path: str, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterator[np.ndarray]) -> None:
        rows = max(1, min(shape[0], _CHUNK_BYTES // (dtype.itemsize * math.prod(shape[1:]))))
        array = self._made(path, shape, (rows, *shape[1:]), dtype)
        at, left = 0, np.empty((0, *shape[1:]), dtype)
        for block in blocks:  # whole chunks, each packed once
            left = np.concatenate([left, block.astype(dtype, copy=False)])
            whole = len(left) // rows * rows
            if whole:
                array[at : at + whole] = left[:whole]
                at, left = at + whole, left[whole:]
        if len(left):
            array[at:] = left

    def _made(self, path: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype) -> Any:
        if self._version == 3:
            blosc = self._zarr.codecs.BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle")
        else:
            import numcodecs

            blosc = numcodecs.Blosc("zstd", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)
        if not self._is_new:
            return self._root.create_dataset(
                path, shape=shape, chunks=chunks, dtype=dtype, compressor=blosc, write_empty_chunks=True
            )
        return self._root.create_array(
            path, shape=shape, chunks=chunks, dtype=dtype, compressors=blosc, config={"write_empty_chunks": True}
        )


def _pack(folder: Path, target: Path) -> None:
    """A folder as an archive of the same bytes whenever it is made; Zarr's chunks are compressed already."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix()), path.read_bytes())


def _is_plain(part: Any) -> bool:
    return part not in ("", ".", "..") and not set(part) & set("/\\\0") and part[0] != "." and part != "zarr.json"
