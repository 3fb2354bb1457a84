"""Which datasets of a D4RL file are which step field."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, check_names
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.core import nest
from rlds2buf.core.budget import Tally
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SourceFormatError

__all__ = ["REQUIRED", "Column", "Layout", "flagged_rows"]

REQUIRED = ("observations", "actions", "rewards", "terminals")
_FIELDS = (*REQUIRED, "next_observations", "infos")
_FLAG_ROWS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Column:
    """One dataset of N rows.

    Attributes:
        dataset: the open h5py dataset ``[N, ...]``.
        squeeze: it is ``[N, 1]`` and taken as ``[N]``.
    """

    dataset: Any
    squeeze: bool = False

    @property
    def spec(self) -> FieldSpec:
        """One row's shape and dtype."""
        return FieldSpec(() if self.squeeze else self.dataset.shape[1:], native_dtype(self.dataset))


class Layout:
    """The columns of an open D4RL file, checked to belong together.

    Args:
        file: the open file.
        name: its name for messages.
        infos: whether ``infos/*`` are step fields.
        timeouts: what the file calls the flags of ends that are not terminal.

    Attributes:
        count: rows in every column.
        fields: ``observation``, ``action``, ``reward`` and ``extras`` as nests of :class:`Column`.
        following: ``next_observations`` as a nest of :class:`Column` like the observation's, or None.
        flags: ``terminals`` and, where there is one, ``timeouts``.
        has_metadata: whether it holds ``metadata``.
        ignored: names in the file that are no step field, nor metadata.

    Raises:
        SourceFormatError: a column is missing or does not fit; the message names it.
    """

    def __init__(self, file: Hdf5File, name: str, *, infos: bool = True, timeouts: str = "timeouts") -> None:
        self._name = name
        self._file = file
        check_names(file, name)
        held = {key: file.get(key) for key in (*_FIELDS, timeouts)}
        missing = [f"`{want}`" for want in REQUIRED if held.get(want) is None]
        if missing:
            there = ", ".join(sorted(file)) or "nothing"
            raise SourceFormatError(f"{name}: a D4RL file needs {', '.join(missing)}; it holds {there}")
        self.count = self._length("rewards", held["rewards"])
        flags = {"terminals": "terminals", "timeouts": timeouts}
        found = {flag: (key, held.get(key)) for flag, key in flags.items()}
        self.flags = {flag: self._number(key, item) for flag, (key, item) in found.items() if item is not None}
        others = [key for key in file if key not in (*_FIELDS, "metadata", timeouts)]
        held.update((key, file.get(key)) for key in others)
        extras = [key for key in others if _has_rows(held[key], self.count)]
        self.ignored = sorted(set(others) - set(extras))
        if held.get("infos") is not None:
            (extras if infos else self.ignored).append("infos")
        self.has_metadata = "metadata" in list(file)
        self.fields: dict[str, Any] = {
            "observation": self._nest("observations", held["observations"]),
            "action": self._nest("actions", held["actions"]),
            "reward": self._number("rewards", held["rewards"]),
            "extras": {key: self._nest(key, held[key]) for key in extras},
        }
        self.following: nest.Nest = None
        if held.get("next_observations") is not None:
            self.following = self._nest("next_observations", held["next_observations"])
            self._check_following(name)

    def spec(self) -> StepSpec:
        """The steps' spec; the discount is ours, float32."""
        fields = nest.map_structure(lambda column: column.spec, self.fields)
        return StepSpec(discount=FieldSpec((), np.dtype(np.float32)), **fields)

    def _check_following(self, name: str) -> None:
        """Raise unless ``next_observations`` can take the observations' place."""
        if _shapes(self.following) != _shapes(self.fields["observation"]):
            raise SourceFormatError(f"{name}: next_observations and observations differ in shape or names")
        pairs = zip(nest.flatten(self.following), nest.flatten(self.fields["observation"]), strict=True)
        for (_, after), (_, before) in pairs:
            if not np.can_cast(after.spec.dtype, before.spec.dtype, "same_kind"):
                raise SourceFormatError(
                    f"{name}: next_observations are {after.spec.dtype} and observations {before.spec.dtype}, "
                    "which can't hold them"
                )

    def _nest(self, key: str, group: Any) -> nest.Nest:
        found = self._file.tree(group, f"{self._name}: {key}")
        for path, dataset in nest.flatten(found, (key,)):
            self._check(nest.path_name(path), dataset)
        return nest.map_structure(Column, found)

    def _number(self, key: str, dataset: Any) -> Column:
        self._check(key, dataset)
        squeeze = dataset.shape[1:] == (1,)
        if native_dtype(dataset).kind not in "biuf" or not (squeeze or dataset.ndim == 1):
            got = f"{dataset.dtype}{list(dataset.shape)}"
            raise SourceFormatError(f"{self._name}: `{key}` should hold one number a row, got {got}")
        return Column(dataset, squeeze)

    def _check(self, key: str, dataset: Any) -> None:
        length = self._length(key, dataset)
        if length != self.count:
            hint = " (infos=False leaves these out)" if key.startswith("infos/") else ""
            raise SourceFormatError(f"{self._name}: `{key}` has {length} rows, but `rewards` has {self.count}{hint}")
        native_dtype(dataset)
        self._file.check(dataset)

    def _length(self, key: str, dataset: Any) -> int:
        if not getattr(dataset, "shape", None):
            raise SourceFormatError(f"{self._name}: `{key}` should be a dataset of rows, it is {dataset}")
        return int(dataset.shape[0])


def flagged_rows(file: Hdf5File, column: Column, name: str) -> np.ndarray:
    """The rows where a flag is set, ascending ``int64``; read in blocks.

    Args:
        file: the open file.
        column: flags ``[N]`` or ``[N, 1]`` of any numeric type.
        name: where it is, for messages.

    Raises:
        SourceFormatError: a value is neither 0 nor 1; the message names the row.
        LimitExceeded: their numbers would take too much memory.
    """
    found = []
    tally = Tally(file.budget)
    count = column.dataset.shape[0]
    for start in range(0, count, _FLAG_ROWS):
        values = file.rows(column.dataset, start, min(start + _FLAG_ROWS, count)).reshape(-1)
        if values.dtype != np.bool_:
            wrong = (values != 0) & (values != 1)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise SourceFormatError(f"{name}, row {start + row}: a flag should be 0 or 1, got {values[row]}")
        found.append(np.flatnonzero(values) + start)
        tally.bytes(found[-1].nbytes, f"{name}: the list of rows that it is set in")
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)


def _has_rows(item: Any, count: int) -> bool:
    shape: tuple[int, ...] = getattr(item, "shape", None) or ()
    return len(shape) > 0 and shape[0] == count


def _shapes(columns: nest.Nest) -> list[tuple[nest.Path, tuple[int | None, ...]]]:
    return [(path, column.spec.shape) for path, column in nest.flatten(columns)]
