"""What a DataLoader's workers hand over: whole batches, each in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.frameworks import converter
from rlds2buf.core.sample import Sample, Trajectory, Transition, Windows
from rlds2buf.errors import MissingDependency, ReplayError

try:
    import torch
    from torch.utils import data
    from torch.utils.data._utils.collate import default_collate_fn_map
except ImportError as cause:
    raise MissingDependency("datasets for a DataLoader need PyTorch: pip install torch") from cause

__all__ = ["Frame", "Items", "as_tensors", "given", "item_of"]

_SHARED = 1 << 18
"""Batches of more bytes go through shared memory; what is smaller is faster through a pipe."""
_ALIGN = 64

as_tensors = converter("torch")


class Frame(dict[str, Any]):
    """One item by names, as LeRobot's datasets give it."""


class Items(Sequence[Any]):
    """The items of a batch, for whoever collates them; ``default_collate`` takes the batch as it was read.

    Args:
        batch: a nest of arrays or tensors ``[B, ...]`` (or lists of B texts) that `default_collate` knows by the
            type of its items: a Transition, Trajectory, Windows or Frame.
        count: B.
    """

    def __init__(self, batch: Any, count: int) -> None:
        self.batch = batch
        self._count = count
        self._tensors: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Any:
        if not -self._count <= i < self._count:
            raise IndexError(i)
        if self._tensors is None:
            self._tensors = as_tensors(self.batch)
        return item_of(self._tensors, i)


def item_of(batch: Any, i: int) -> Any:
    """One item of a batch, without the leading axis."""
    item = nest.map_structure(lambda leaf: leaf if leaf is None else leaf[i], batch)
    return Frame(item) if isinstance(batch, Frame) else item


def given(batch: Any) -> Any:
    """A batch as tensors; in a worker, what becomes tensors when it arrives."""
    return as_tensors(batch) if data.get_worker_info() is None else _Parcel(batch)


def _collated(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """What ``default_collate`` makes of items: the batch that they were read as, or one of single ones."""
    if isinstance(batch, Items):
        return given(batch.batch)

    def stacked(*leaves: Any) -> Any:
        if leaves[0] is None:
            return None
        return torch.stack(leaves) if isinstance(leaves[0], torch.Tensor) else list(leaves)

    return nest.map_structure(stacked, *batch)


def _refused(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    raise ReplayError("an IterableDataset of rlds2buf gives whole batches: use DataLoader(dataset, batch_size=None)")


# As its documentation says how to extend it.
default_collate_fn_map.update(dict.fromkeys((Transition, Trajectory, Windows, Frame), _collated))
default_collate_fn_map[Sample] = _refused


class _Parcel:
    """A batch on its way out of a worker, in one piece: every tensor by itself would take a file of its own."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __reduce__(self) -> tuple[Any, ...]:
        arrays: list[tuple[int, np.ndarray]] = []
        size = 0

        def noted(leaf: Any) -> _Leaf:
            nonlocal size
            if isinstance(leaf, torch.Tensor):
                leaf = leaf.numpy()
            if not isinstance(leaf, np.ndarray) or leaf.dtype == np.dtype(object):
                return _Leaf(leaf)
            if leaf.dtype.kind == "u" and leaf.dtype.itemsize > 1:
                leaf = leaf.astype(np.int64)  # as `converter` does
            place = size
            size += -(-leaf.nbytes // _ALIGN) * _ALIGN
            arrays.append((place, leaf))
            return _Leaf(None, place, leaf.shape, leaf.dtype.str)

        structure = nest.map_structure(noted, self._batch)
        is_large = size > _SHARED
        shared = torch.empty(size if is_large else 0, dtype=torch.uint8)
        memory = shared.share_memory_().numpy() if is_large else np.empty(size, np.uint8)
        for place, leaf in arrays:
            np.ndarray(leaf.shape, leaf.dtype, memory, place)[...] = leaf
        return _opened, (structure, shared if is_large else memory.tobytes())


class _Leaf:
    """Where a leaf of a batch lies in its block, or what is no array."""

    __slots__ = ("dtype", "place", "shape", "value")

    def __init__(self, value: Any, place: int = -1, shape: tuple[int, ...] = (), dtype: str = "") -> None:
        self.value, self.place, self.shape, self.dtype = value, place, shape, dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return _Leaf, (self.value, self.place, self.shape, self.dtype)


def _opened(structure: Any, block: Any) -> Any:
    memory = block.numpy() if isinstance(block, torch.Tensor) else np.frombuffer(bytearray(block), np.uint8)

    def tensor(leaf: _Leaf) -> Any:
        if leaf.place < 0:
            return leaf.value
        return torch.from_numpy(np.ndarray(leaf.shape, leaf.dtype, memory, leaf.place))

    return nest.map_structure(tensor, structure)
