"""One demonstration's group in a robomimic file, as columns."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.errors import EmptyEpisode, SpecMismatch
from rlds2buf.io.padding import padded

__all__ = ["FIELDS", "SIMULATOR", "TERMINALS", "plain", "read_demo"]

TERMINALS: Final = ("last", "dones", "none")
"""What to take for the end of an environment; see RobomimicHdf5Source."""

FIELDS: Final = ("obs", "next_obs", "actions", "rewards", "dones")
SIMULATOR: Final = ("states",)
"""What belongs to the simulator, beside the model in the attributes."""


def read_demo(file: Hdf5File, group: Any, *, terminals: str, states: bool, source: str, index: int) -> Episode:
    """The episode in an HDF5 group ``demo_<k>``.

    Args:
        file: the open file.
        group: of it.
        terminals: a member of `TERMINALS`.
        states: whether to read simulator states and the model.
        source, index: the episode's place, for messages.

    Raises:
        SpecMismatch: a part is missing, or as long as no part should be.
        EmptyEpisode: it has no samples.
        SourceFormatError: the bytes can't be read.
    """
    demo = _Demo(file, group, source, index)
    has_next = demo.has("next_obs")
    rows = demo.samples + has_next
    observation = demo.observations() if has_next else demo.part("obs", "observation")
    dones = demo.numbers("dones", "is_terminal") if demo.has("dones") else None
    extras = {key: demo.part(key, f"extras/{key}") for key in demo.others(states)}
    if dones is not None and terminals != "dones":
        extras["dones"] = dones
    rewards = demo.numbers("rewards", "reward") if demo.has("rewards") else None
    is_terminal = _terminals(dones, terminals, rows, demo, index)
    is_first, is_last = (np.zeros(rows, np.bool_) for _ in range(2))
    is_first[0] = is_last[-1] = True
    discount = np.ones(rows, np.float32)
    if is_terminal is not None:
        discount[is_terminal] = 0
        discount[:-1][is_terminal[1:]] = 0
    return Episode(
        observation=observation,
        action=nest.map_structure(lambda column: padded(column, rows), demo.part("actions", "action")),
        reward=None if rewards is None else padded(rewards, rows),
        discount=discount,
        is_first=is_first,
        is_last=is_last,
        is_terminal=is_terminal,
        extras=nest.map_structure(lambda column: padded(column, rows), extras),
        source=source,
        index=index,
    )


class _Demo:
    """The datasets of one demonstration, checked to be of one length."""

    def __init__(self, file: Hdf5File, group: Any, source: str, index: int) -> None:
        self.file = file
        self.group = group
        self.where: dict[str, Any] = {"source": source, "episode": index}
        self.samples = 0
        missing = next((name for name in ("actions", "obs") if not self.has(name)), None)
        if missing is not None:
            field = "action" if missing == "actions" else "observation"
            raise SpecMismatch(f"{self._name} has no `{missing}`", path=field, rule="spec", **self.where)
        shape = getattr(file.get("actions", group), "shape", None)
        if not shape:
            raise SpecMismatch(f"{self._name}/actions should have rows", path="action", rule="spec", **self.where)
        self.samples = int(shape[0])
        if self.samples == 0:
            raise EmptyEpisode(f"{self._name} has no samples", rule="empty-episode", **self.where)

    @property
    def _name(self) -> str:
        return str(self.group.name).strip("/")

    def has(self, name: str) -> bool:
        """Whether there is such a part."""
        return self.file.get(name, self.group) is not None

    def part(self, name: str, field: str) -> nest.Nest:
        """A dataset, or a group of them, as columns ``[N, ...]``."""
        return nest.map_structure(self._read, self._datasets(name, field))

    def observations(self) -> nest.Nest:
        """``obs`` and the last row of ``next_obs`` as columns ``[N + 1, ...]``; of the latter no more is read."""
        own, following = (self._datasets(name, "observation") for name in ("obs", "next_obs"))
        self._same_shapes(own, following)
        return nest.map_structure(self._read_with_last, own, following)

    def _datasets(self, name: str, field: str) -> nest.Nest:
        item = self.file.get(name, self.group)
        found = self.file.tree(item, f"{self.where['source']}: {self._name}/{name}")
        for path, dataset in nest.flatten(found, (field,)):
            length = dataset.shape[0] if dataset.shape else 0
            if length != self.samples:
                message = f"{length} rows in `{name}`, but {self.samples} actions"
                raise SpecMismatch(message, path=nest.path_name(path), rule="ragged-columns", **self.where)
        return found

    def numbers(self, name: str, field: str) -> np.ndarray:
        """A column ``[N]`` of numbers; ``[N, 1]`` is taken as that."""
        column = self.part(name, field)
        if isinstance(column, np.ndarray) and column.shape[1:] == (1,):
            column = column[:, 0]
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "biuf":
            got = f"{column.dtype}{list(column.shape[1:])}" if isinstance(column, np.ndarray) else "a group"
            message = f"`{name}` should hold one number a sample, got {got}"
            raise SpecMismatch(message, path=field, rule="spec", **self.where)
        return column

    def others(self, states: bool) -> list[str]:
        """The names of further datasets and groups with a row for each sample."""
        skipped = FIELDS if states else FIELDS + SIMULATOR
        return [key for key in self.group if key not in skipped and self._has_rows(key)]

    def _has_rows(self, name: str) -> bool:
        item = self.file.get(name, self.group)
        if item is None:
            return False
        leaves = [leaf for _, leaf in nest.flatten(self.file.tree(item, f"{self._name}/{name}"))]
        return bool(leaves) and all(leaf.shape and leaf.shape[0] == self.samples for leaf in leaves)

    def _read(self, dataset: Any) -> np.ndarray:
        dtype = native_dtype(dataset)
        return np.asarray(self.file.read(dataset)).astype(dtype, copy=False)

    def _read_with_last(self, dataset: Any, following: Any) -> np.ndarray:
        """All rows of one dataset, and the last one of another."""
        dtype = np.result_type(native_dtype(dataset), native_dtype(following))
        out = np.empty((dataset.shape[0] + 1, *dataset.shape[1:]), dtype)
        if dtype == dataset.dtype and dataset.size and dtype.kind != "O":
            self.file.read_into(dataset, out[:-1])
        else:
            out[:-1] = self.file.read(dataset)
        out[-1:] = self.file.rows(following, following.shape[0] - 1, following.shape[0])
        return out

    def _same_shapes(self, one: nest.Nest, other: nest.Nest) -> None:
        """Check that ``obs`` and ``next_obs`` hold the same."""
        shapes = [{path: dataset.shape for path, dataset in nest.flatten(part)} for part in (one, other)]
        if shapes[0] != shapes[1]:
            path = min(
                (path for path in shapes[0].keys() | shapes[1].keys() if shapes[0].get(path) != shapes[1].get(path)),
                key=nest.path_name,
            )
            raise SpecMismatch(
                "`obs` and `next_obs` differ in names or shapes",
                path=nest.path_name(("observation", *path)),
                rule="spec",
                **self.where,
            )


def plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """HDF5 attributes as Python values; arrays stay arrays.

    >>> plain({"num_samples": np.int64(59), "env": b"Lift"})
    {'num_samples': 59, 'env': 'Lift'}
    """
    out: dict[str, Any] = {}
    for key, value in attributes.items():
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
            value = str(value.tolist())
        if isinstance(value, bool | int | float | str | np.ndarray) and isinstance(key, str):
            out[key] = value
    return out


def _terminals(dones: np.ndarray | None, choice: str, rows: int, demo: _Demo, index: int) -> np.ndarray | None:
    """``[rows] bool``: the rows that a done led to; None where nothing tells.

    The last sample's done leads to a row only where there is a row behind it.
    """
    if dones is None:
        return None if choice != "none" else np.zeros(rows, np.bool_)
    wrong = (dones != 0) & (dones != 1)
    if wrong.any():
        step = int(np.argmax(wrong))
        message = f"a done should be 0 or 1, got {dones[step]}"
        raise SpecMismatch(message, step=step, path="is_terminal", rule="spec", **demo.where)
    flags = np.zeros(rows, np.bool_)
    if choice != "none":
        flags[1:] = dones[: rows - 1] != 0
    if choice == "last":
        flags[:-1] = False
    return flags
