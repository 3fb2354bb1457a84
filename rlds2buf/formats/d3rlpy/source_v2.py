"""d3rlpy's dataset files: a dataset for each column of each episode."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, describe_value, is_dataset, open_hdf5
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EmptyEpisode, EpisodeError, SourceFormatError, SpecMismatch
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.d3rlpy.together import COLUMNS, Together
from rlds2buf.io.blocks import blocks_of
from rlds2buf.io.padding import padded
from rlds2buf.io.source import Source, spec_of_first

__all__ = ["D3rlpyH5Source"]

_MOST_COLUMNS = 1000


class D3rlpyH5Source(Source):
    """Episodes of a file that ``ReplayBuffer.dump`` or ``MDPDataset.dump`` of d3rlpy 2 wrote.

    Source: d3rlpy 2.8, ``d3rlpy/dataset/io.py``, file version 2.1.  The dataset ``columns`` names what
    an episode has, ``num_episodes`` says how many there are, and ``<column>_<i>`` holds a column of
    episode i, or ``<column>_<i>_<j>`` part j of a tuple.  What becomes of an episode of n observations,
    actions and rewards, as its number of transitions and the last one's successor:

    ==================  ===================  ===============================================
    the episode is      here                 d3rlpy (``BasicTransitionPicker``)
    ==================  ===================  ===============================================
    terminated          n, zeros (marked)    n, zeros
    not terminated      n-1                  n-1: the last action and reward start nothing
    ==================  ===================  ===============================================

    *Marked*: ``metadata["placeholder_final_row"]`` is True.  Rewards ``[n, 1]`` are taken as ``[n]``;
    actions keep d3rlpy's shape, ``[n, 1]`` for discrete ones.  Observations that are tuples are
    tuples.  The discount is 1 (float32), and 0 on the step into a terminal row and on that row.
    Columns of d3rlpy's own are those four; further ones with n rows are extras, others metadata.

    Args:
        path: the file.
        external: data that the file has in other files, by links, external storage or virtual datasets:
            ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file.

    >>> import h5py, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.h5")
    >>> with h5py.File(path, "w") as file:
    ...     file["columns"] = ["observations", "actions", "rewards", "terminated"]
    ...     file["num_episodes"] = 1
    ...     file["observations_0"] = np.arange(3, dtype=np.float32)[:, None]
    ...     file["actions_0"] = np.zeros((3, 1), np.int64)
    ...     file["rewards_0"] = np.ones((3, 1), np.float32)
    ...     file["terminated_0"] = True
    ...     file["version"] = "2.1"
    >>> list(D3rlpyH5Source(path))
    [<Episode 0: 4 steps, terminated>]
    """

    format: ClassVar[str] = "d3rlpy"

    def __init__(self, path: str | os.PathLike[str], *, external: str = "refuse", budget: Budget = BUDGET) -> None:
        self.path = Path(path)
        self.name = str(path)
        self._open = functools.partial(open_hdf5, self.path, budget=budget, external=external)
        with self._open() as file:
            missing = [f"`{want}`" for want in ("columns", "num_episodes") if not hasattr(file.get(want), "shape")]
            if missing:
                held = ", ".join(sorted(file)[:8]) or "nothing"
                raise SourceFormatError(f"{path}: a d3rlpy file needs {', '.join(missing)}; it holds {held}")
            version = file.get("version")
            self._version = describe_value(file.value(version) if is_dataset(version) else b"")
            self._columns = self._read_columns(file)
            self._count = self._read_count(file)

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return self._count

    @property
    def num_steps(self) -> int:
        return self._num_steps

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        stop = self._count if stop is None else min(stop, self._count)
        with self._open() as file:
            yield from blocks_of(self._together(file).read(start, stop, rows, bytes), rows, bytes)

    def _together(self, file: Hdf5File) -> Together:
        return Together(file, self._columns, functools.partial(self._item, file), self.name)

    def _item(self, file: Hdf5File, index: int) -> Episode | EpisodeError:
        file.new_record()
        try:
            return self._episode(file, index)
        except EpisodeError as error:
            return error

    def details(self) -> dict[str, Any]:
        with self._open() as file:
            lengths, flags = self._together(file).ends(self._count)
            others = (file.get(f"terminated_{i}") for i in np.flatnonzero(lengths == 0).tolist())
            terminated = int(flags.sum()) + sum(bool(file.value(item)) for item in others if item is not None)
        warnings = []
        if terminated:
            warnings.append(f"d3rlpy keeps no final observations: the {terminated} terminal ones are zeros")
        if terminated < self._count:
            cut = self._count - terminated
            warnings.append(f"the last action and reward of the {cut} episodes that were cut start no transition")
        return {
            "version": self._version,
            "columns": self._columns,
            "terminated": terminated,
            "truncated": self._count - terminated,
            "warnings": warnings,
        }

    def fingerprint(self) -> str:
        return f"d3rlpy:{fingerprint_files([self.path])}"

    def _read_columns(self, file: Hdf5File) -> list[str]:
        dataset = file.get("columns")
        if dataset.ndim != 1 or dataset.size > _MOST_COLUMNS:
            raise SourceFormatError(f"{self.path}: `columns` should be a list of names, it is {list(dataset.shape)}")
        names = [
            name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in file.read(dataset)
        ]
        missing = [f"`{want}`" for want in COLUMNS if want not in names]
        if missing:
            raise SourceFormatError(f"{self.path}: `columns` lacks {', '.join(missing)}; it has {', '.join(names)}")
        return names

    def _read_count(self, file: Hdf5File) -> int:
        value = file.value(file.get("num_episodes"))
        if not isinstance(value, np.integer) or not 0 <= value:
            raise SourceFormatError(f"{self.path}: `num_episodes` should be a number of episodes, got {value!r}")
        # A damaged number must not be counted up to; every episode has a dataset for each column.
        if int(value) * len(self._columns) > len(file):
            message = f"`num_episodes` says {int(value)}, but there are only {len(file)} datasets"
            raise SourceFormatError(f"{self.path}: {message}")
        return int(value)

    def _episode(self, file: Hdf5File, index: int) -> Episode:
        where: dict[str, Any] = {"source": self.name, "episode": index}
        parts = {name: self._part(file, name, index) for name in self._columns}
        action = parts.pop("actions")
        if not isinstance(action, np.ndarray) or not action.ndim:
            raise SpecMismatch("actions should be one dataset of rows", path="action", rule="spec", **where)
        count = len(action)
        if not count:
            raise EmptyEpisode("the episode has no steps", rule="empty-episode", **where)
        terminated = _flag(parts.pop("terminated"), where)
        reward = _numbers(parts.pop("rewards"), where)
        observation = parts.pop("observations")
        for field, column in (("observation", observation), ("reward", reward)):
            _check_length(column, field, count, where)
        extras = {name: part for name, part in parts.items() if _has_rows(part, count)}
        rows = count + terminated
        fields = nest.map_structure(
            lambda column: padded(column, rows),
            {"observation": observation, "action": action, "reward": reward, "extras": extras},
        )
        flags: dict[str, Any] = {name: np.zeros(rows, np.bool_) for name in ("is_first", "is_last", "is_terminal")}
        flags["is_first"][0] = flags["is_last"][-1] = True
        discount = np.ones(rows, np.float32)
        if terminated:
            flags["is_terminal"][-1] = True
            discount[-2:] = 0
        metadata = {name: part for name, part in parts.items() if name not in extras and part is not None}
        if terminated:
            metadata[PLACEHOLDER_FINAL_ROW] = True
        return Episode(**fields, **flags, discount=discount, metadata=metadata, source=self.name, index=index)

    def _part(self, file: Hdf5File, name: str, index: int) -> nest.Nest:
        """A column of one episode; a tuple where it is stored in numbered parts."""
        whole = f"{name}_{index}"
        if (item := file.get(whole)) is not None:
            return _read(file, item, self.name)
        found: list[np.ndarray] = []
        while (item := file.get(f"{whole}_{len(found)}")) is not None:
            found.append(_read(file, item, self.name))
        if not found:
            raise SourceFormatError(f"{self.path}: `{whole}` is missing, which `columns` and `num_episodes` promise")
        return tuple(found)

    @functools.cached_property
    def _spec(self) -> StepSpec:
        return spec_of_first(self)

    @functools.cached_property
    def _num_steps(self) -> int:
        with self._open() as file:
            lengths, _ = self._together(file).ends(self._count)
            return int(lengths.sum()) + sum(self._length(file, i) for i in np.flatnonzero(lengths == 0).tolist())

    def _length(self, file: Hdf5File, index: int) -> int:
        """How many rows an episode has, from the shapes and its flag alone."""
        shape = getattr(file.get(f"actions_{index}"), "shape", None) or (0,)
        flag = file.get(f"terminated_{index}")
        if not is_dataset(flag):
            raise SourceFormatError(f"{self.path}: `terminated_{index}` is missing, or no dataset")
        return int(shape[0]) + bool(file.value(flag))


def _read(file: Hdf5File, dataset: Any, name: str) -> np.ndarray:
    if not hasattr(dataset, "shape") or dataset.shape is None:
        raise SourceFormatError(f"{name}: {dataset.name} should be a dataset")
    dtype = native_dtype(dataset)
    return np.asarray(file.read(dataset)).astype(dtype, copy=False)


def _flag(value: Any, where: dict[str, Any]) -> bool:
    if not isinstance(value, np.ndarray) or value.size != 1 or value.item() not in (0, 1):
        got = value.tolist() if isinstance(value, np.ndarray) and value.size == 1 else "something else"
        raise SpecMismatch(f"terminated should be one flag, got {got}", path="is_terminal", rule="spec", **where)
    return bool(value.item())


def _numbers(value: Any, where: dict[str, Any]) -> np.ndarray:
    if isinstance(value, np.ndarray) and value.shape[1:] == (1,):
        value = value[:, 0]
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "biuf":
        got = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else "a tuple"
        raise SpecMismatch(f"rewards should be one number a step, got {got}", path="reward", rule="spec", **where)
    return value


def _has_rows(part: nest.Nest, count: int) -> bool:
    return all(leaf.ndim and len(leaf) == count for _, leaf in nest.flatten(part))


def _check_length(columns: nest.Nest, field: str, count: int, where: dict[str, Any]) -> None:
    for path, column in nest.flatten(columns, (field,)):
        length = len(column) if column.ndim else 0
        if length != count:
            message = f"{length} rows, but {count} actions"
            raise SpecMismatch(message, path=nest.path_name(path), rule="ragged-columns", **where)
