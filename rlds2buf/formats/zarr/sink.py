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
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError, SourceError, SpecMismatch
from rlds2buf.formats.zarr.rows import find_zarr
from rlds2buf.formats.zarr.store import Store
from rlds2buf.io.column_spool import ColumnSpool, TextColumn
from rlds2buf.io.spooled_sink import NO_DISCOUNT, OPEN_END, SpooledSink

__all__ = ["ZarrSink"]

_CHUNK_BYTES = 2 << 20
"""Of a chunk before compression, as Diffusion Policy's get_optimal_chunks takes it."""
_LENGTHS = "lengths"
_NO_END = "the format has no flag for it: every end is read back as a cut"
_MADE_UP = "final rows whose observation is made up are left out"


class ZarrSink(SpooledSink):
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
        self._paths: dict[str, nest.Path] = {}
        self._left_out = self._padded = 0

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        zarr = find_zarr(f"{self.name}: Zarr")
        if self.options["zarr_format"] == 3 and int(zarr.__version__.split(".")[0]) < 3:
            raise SinkError(f"{self.name}: zarr {zarr.__version__} writes no Zarr version 3; zarr_format=2 is written")
        self._paths, self._left_out, self._padded = {}, 0, 0
        columns = {_LENGTHS: FieldSpec((), np.dtype(np.int64))}
        if spec.action is not None:
            self._add(columns, "action", ("action",), self._action(spec.action))
        if spec.reward is not None:
            self._add(columns, "reward", ("reward",), self.reward_field(spec.reward))
        for path, field in nest.flatten({"observation": spec.observation, "extras": spec.extras}):
            if field is not None:
                name = "obs" if path == ("observation",) else nest.path_name(path[1:])
                self._add(columns, name, path, field)
        if not self._paths:
            raise SinkError(f"{self.name}: the data have no field that {self.what} can hold")
        self._lose_places()
        return columns

    def _action(self, action: nest.Nest) -> FieldSpec:
        if isinstance(action, FieldSpec):
            return action
        leaf = nest.path_name(next(nest.flatten(action, ("action",)))[0])
        raise SinkError(
            f"{self.name}: action is nested, and {self.what} holds one array of actions; "
            f"choose or join its fields, for example map={{'action': '{leaf}'}}"
        )

    def _lose_places(self) -> None:
        """Note what is read back in another place, since a group does not tell one array from several."""
        others = self._paths.keys() - {"action", "reward"}
        if self._paths.get("obs") == ("observation",) and others != {"obs"}:
            self.lose("observation", "it is read back as observation/obs")
        if others == {"obs"} and self._paths["obs"] != ("observation",):
            self._losses[nest.path_name(self._paths["obs"])] = "it is read back as observation"
        if not self.options["final_rows"]:
            self.lose("observation", "final_rows=False: the last row of each episode is left out")

    def misfit(self, batch: EpisodeBatch) -> tuple[int, SpecMismatch] | None:
        for path in self._paths.values():
            column = _column(batch, path)
            texts = column.reshape(-1).tolist() if column.dtype == object else []
            bad = next((i for i, text in enumerate(texts) if text.endswith(b"\0")), None)
            if bad is None:
                continue
            row = bad // (column.size // len(column))
            place = int(np.searchsorted(batch.starts, row, "right")) - 1
            episode = None if batch.index is None else int(batch.index[place])
            message = "a text that ends in zero bytes, which Zarr's byte strings can't tell from padding"
            where: dict[str, Any] = {
                "source": batch.rows.source,
                "episode": episode,
                "step": row - int(batch.starts[place]),
            }
            return place, SpecMismatch(message, path=nest.path_name(path), rule="spec", **where)
        return None

    def take(self, batch: EpisodeBatch) -> None:
        self._notice(batch)
        kept = np.ones(batch.num_steps, np.bool_)
        if not self.options["final_rows"]:
            kept[batch.ends] = False
        elif batch.placeholder is not None:
            kept[batch.ends[batch.placeholder]] = False
        lengths = np.add.reduceat(kept, batch.starts, dtype=np.int64)
        if not lengths.all():
            self._left_out += int((lengths == 0).sum())
            self._losses["episodes"] = f"{self._left_out} have no row but a final one: left out"
        columns = {name: _column(batch, path) for name, path in self._paths.items()}
        if "action" in columns:
            self._padded += int((kept[batch.ends] & ~_any(columns["action"][batch.ends])).sum())
        if "reward" in columns:
            columns["reward"] = columns["reward"].reshape(-1)
        whole = bool(kept.all())
        rows = {name: column if whole else column[kept] for name, column in columns.items()}
        self.append({**rows, _LENGTHS: lengths[lengths > 0]})

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        lengths = spool.columns[_LENGTHS].read(0, spool.columns[_LENGTHS].rows)
        is_zip = self.name.lower().endswith(".zip")
        folder = target.with_name(f"{target.name}.folder") if is_zip else target
        try:
            _Group(folder, self.options["zarr_format"], self.provenance).write(
                {f"data/{name}": spool.columns[name] for name in self._paths}, np.cumsum(lengths)
            )
            if is_zip:
                _pack(folder, target)
        except (OSError, RuntimeError, ValueError, TypeError) as cause:
            raise SinkError(f"{self.name}: zarr can't write it ({cause})") from cause
        if self._padded:
            self.notes = (
                f"{self._padded} of {len(lengths)} episodes have zeros as their last action, which may be padding; "
                "final_rows=False leaves last rows out",
            )

    def replaceable(self, path: Path) -> bool:
        try:
            store = Store(path)
        except SourceError:
            return False
        with contextlib.closing(store):
            return store.names("data") != [] and store.array("meta/episode_ends") is not None

    def state(self) -> dict[str, Any]:
        return {"left_out": self._left_out, "padded": self._padded}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._left_out, self._padded = int(state["left_out"]), int(state["padded"])

    def _add(self, columns: dict[str, FieldSpec], name: str, path: nest.Path, field: FieldSpec) -> None:
        """Note a field's array, or why it has none."""
        where = nest.path_name(path)
        fault = self._fault(name, path, field)
        if fault is not None and path == ("action",):
            raise SinkError(f"{self.name}: action: {fault}")
        if fault is not None:
            self.lose(where, fault)
            return
        columns[name], self._paths[name] = field, path
        if path[0] == "extras":
            self.lose(where, f"it is read back as observation/{name}")
        elif any(isinstance(part, int) for part in path):
            self.lose(where, f"it is read back as observation/{name}")

    def _fault(self, name: str, path: nest.Path, field: FieldSpec) -> str | None:
        fault: str | None = None
        if None in field.shape:
            fault = "its length varies, and rows of an array have one shape"
        elif not field.is_string and field.dtype.kind not in "biufc":
            fault = f"it is {field.dtype}, which Zarr has no type for"
        elif not all(isinstance(part, int) or _is_plain(part) for part in path):
            fault = "its name can't be one in a Zarr group"
        elif 0 in field.shape:
            fault = "it has no values, and a chunk of nothing can't be"
        elif field.is_string and self.options["zarr_format"] == 3:
            fault = "it is text, for which Zarr version 3 has no settled type"
        else:
            own = path[0] in ("action", "reward")
            taken = [*self._paths, *([] if own else ["action", "reward"])]
            if any(_clash(name, other) for other in taken):
                fault = f"data/{name} is another field's"
        return fault

    def _notice(self, batch: EpisodeBatch) -> None:
        """Note what the format has no place for."""
        rows, ends = batch.rows, batch.ends
        if rows.discount is not None and (not isinstance(rows.discount, np.ndarray) or not _is_ones(rows.discount)):
            self.lose("discount", NO_DISCOUNT.partition(",")[0] + ": 1 is read back (float32)")
        if rows.is_terminal.any():
            self.lose("is_terminal", _NO_END)
        if not (rows.is_last[ends] | rows.is_terminal[ends]).all():
            self.lose("is_last", OPEN_END)
        for name in sorted(batch.fact_names):
            self.lose(f"metadata/{name}", "the format has no place for facts about an episode")
        if batch.placeholder is not None and batch.placeholder.any():
            self.lose("metadata/placeholder_final_row", _MADE_UP)


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
            dtype = np.dtype(f"S{_longest(column)}") if isinstance(column, TextColumn) else sample.dtype
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


def _clash(one: str, other: str) -> bool:
    """Whether two paths can't both be arrays."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _longest(column: TextColumn) -> int:
    """Bytes of the longest text, at least 1."""
    return max((len(text) for block in column.blocks() for text in block.reshape(-1).tolist()), default=0) or 1


def _pack(folder: Path, target: Path) -> None:
    """A folder as an archive of the same bytes whenever it is made; Zarr's chunks are compressed already."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix()), path.read_bytes())


def _column(batch: EpisodeBatch, path: nest.Path) -> np.ndarray:
    column: np.ndarray = nest.get(getattr(batch.rows, str(path[0])), path[1:])
    return column


def _any(rows: np.ndarray) -> np.ndarray:
    """``[n] bool``: which rows are more than zeros."""
    return (rows != (b"" if rows.dtype == object else 0)).reshape(len(rows), -1).any(axis=1)


def _is_ones(discount: np.ndarray) -> bool:
    return discount.dtype == np.float32 and discount.ndim == 1 and bool((discount == 1).all())


def _is_plain(part: Any) -> bool:
    return part not in ("", ".", "..") and not set(part) & set("/\\\0") and part[0] != "." and part != "zarr.json"
