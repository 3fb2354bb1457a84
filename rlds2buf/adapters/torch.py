"""PyTorch datasets over a buffer, for a DataLoader with or without workers.

A batch is gathered by one call and goes from a worker to the learner as one piece of memory, so that a DataLoader
costs what its queues cost.  (Without one, ``buffer.batches(256, to="torch")`` costs less: a thread draws ahead.)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.adapters.parcels import Items, as_tensors, given, item_of
from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.disk.manifest import read_manifest
from rlds2buf.buffers.engine import Request
from rlds2buf.buffers.epochs import Plan
from rlds2buf.buffers.loading import load_buffer
from rlds2buf.core.arguments import choice, integer
from rlds2buf.core.sample import Sample
from rlds2buf.errors import MissingDependency, Rlds2bufError, SnapshotError

try:
    import torch
    from torch import distributed
    from torch.utils import data
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.torch needs PyTorch: pip install torch") from cause


__all__ = ["IterableDataset", "MapDataset"]


class MapDataset(data.Dataset):
    """The items of a buffer by number, whole batches at once where a DataLoader asks for them.

    ``DataLoader(MapDataset(buffer), batch_size=256, shuffle=True, num_workers=2)`` gives batches as ``buffer.get``
    gives them, of tensors: :class:`rlds2buf.Transition`, or what the options ask for.  Any sampler, and any number of
    workers, forked or spawned, will do; with a ``DistributedSampler`` several ranks.

    Args:
        buffer: a :class:`rlds2buf.Buffer`, whose items at this moment are the dataset's; or the path of a saved one.
            A buffer in files (better for spawned workers, who would copy one in memory) is opened by each of them.
        options: of ``buffer.get``: `n_step`, `gamma`, `sequence_length`, `offsets`, `stack` and others.
        functions: of ``load_buffer``, for a path.

    Raises:
        SourceNotFound, SnapshotError: there is no saved buffer at the path.
        TypeError, ValueError: an option is unknown or out of range.

    >>> from rlds2buf import Episode, make_circular, spec_of
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5))
    >>> buffer = make_circular(spec_of(ep), 100)
    >>> keys = buffer.add(ep)
    >>> dataset = MapDataset(buffer, n_step=2, gamma=0.5)
    >>> len(dataset), dataset[3].observation
    (4, tensor(3., dtype=torch.float64))
    >>> [batch.reward.tolist() for batch in data.DataLoader(dataset, batch_size=4)]
    [[1.5, 1.5, 1.5, 1.0]]
    """

    def __init__(
        self, buffer: Buffer | str | os.PathLike[str], *, functions: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        self._held = _Held(buffer, functions)
        self._options = options
        self._view = self._held.buffer.engine.request(**options).view
        self._keys = self._held.buffer.keys()

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: Any) -> Any:
        """The item of a number, without the axis of a batch; of several (a list, a slice, an array) their batch.

        Raises:
            IndexError: there is no such item.
            UnknownKey: it has left the buffer.
        """
        if isinstance(index, int | np.integer):
            return item_of(as_tensors(self._get([index])), 0)
        return given(self._get(index))

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """The items of these numbers, which PyTorch's ``default_collate`` makes their batch of."""
        batch = self._get(indices)
        return Items(batch, len(indices))

    def _get(self, index: Any) -> Any:
        keys = self._keys[index]
        return self._held.buffer.engine.get(keys, self._view)


class IterableDataset(data.IterableDataset):
    """Batches of a buffer, in passes over all of it or drawn at random.

    ``DataLoader(IterableDataset(buffer, 256), batch_size=None, num_workers=2)`` gives Samples as ``buffer.epoch``
    does, of tensors: the same batches in the same order with any number of workers.

    Every pass is an epoch, in an order of its own; the next one comes once a pass has ended, or by :meth:`set_epoch`.

    Args:
        buffer, functions: as of :class:`MapDataset`.
        batch_size: B, items of each batch.
        order: ``"epochs"``: each item once in a pass. ``"random"``: `steps` batches in a pass, drawn as
            ``buffer.sample`` draws them, with the priorities that there are when a worker starts.
        seed: of the order; the same on all ranks.
        rank, world_size: which of how many processes this is; of ``torch.distributed`` unless given.
        drop_last: leave out what fills no batch.
        steps: of ``"random"``: batches in a pass; None for no end.
        options: of ``buffer.epoch``: `n_step`, `sequence_length`, `offsets`, `source_id` and others.

    Raises:
        NotEnoughItems: a rank would have no batch.
        SourceNotFound, SnapshotError: there is no saved buffer at the path.
        TypeError, ValueError: an option is unknown or out of range, a rank outside the world, say.

    >>> from rlds2buf import Episode, make_circular, spec_of
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5))
    >>> buffer = make_circular(spec_of(ep), 100)
    >>> keys = buffer.add(ep)
    >>> dataset = IterableDataset(buffer, 2)
    >>> for batch in data.DataLoader(dataset, batch_size=None):
    ...     state = dataset.state_dict()
    ...     break
    >>> dataset.load_state_dict(state)
    >>> rest = [sample.info.key.tolist() for sample in data.DataLoader(dataset, batch_size=None)]
    >>> sorted(batch.info.key.tolist() + rest[0])
    [0, 1, 2, 3]
    """

    def __init__(
        self,
        buffer: Buffer | str | os.PathLike[str],
        batch_size: int,
        *,
        order: str = "epochs",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        steps: int | None = None,
        functions: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        choice("order", order, ("epochs", "random"))
        self._order = order
        if steps is not None and order == "epochs":
            raise ValueError("steps is for order='random': a pass over everything is as long as it is")
        self._steps = None if steps is None else integer("steps", steps, 1)
        ranks = _of_ranks(rank, world_size)
        self._made: dict[str, Any] = {
            "batch_size": integer("batch_size", batch_size, 1),
            "drop_last": bool(drop_last),
            **ranks,
        }
        self._seed = integer("seed", seed, 0)
        self._options = options
        self._held = _Held(buffer, functions)
        self._passes = 0
        self._clock = _Clock()
        self._here: tuple[int, int] | None = None
        """Where this worker is to begin, if not where all do."""
        self._at = (0, 0)
        self._batches()  # what is wrong is told here, and not by a worker

    def __len__(self) -> int:
        """Batches of a pass, on this rank."""
        count = self._steps if self._order == "random" else self._plan().begin(0).batches
        if count is None:
            raise TypeError("random batches without `steps` have no end")
        return count

    def set_epoch(self, epoch: int) -> None:
        """The next pass is this epoch, from 0, from its beginning; workers that are there already hear of it too."""
        self._clock.set(integer("epoch", epoch, 0), 0)
        self._at = (epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """The next batch, in plain values: its `epoch` and which `batch` of it, on every rank, from 0.

        It is the state of the process that the batches are made in: of this one without workers; of a worker
        where ``torchdata.stateful_dataloader`` asks it. The loop around a plain DataLoader with workers counts the
        batches itself: ``{"epoch": epoch, "batch": batches_so_far}`` is a state as well, with any number of workers.
        """
        epoch, batch = self._at
        return {"version": 1, "epoch": epoch, "batch": batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass with the batch that a state names.

        Raises:
            SnapshotError: it is no such state.
        """
        try:
            epoch, batch = integer("epoch", state["epoch"], 0), integer("batch", state["batch"], 0)
        except (KeyError, TypeError, ValueError) as cause:
            raise SnapshotError(
                f"this is no state of a dataset, whose epoch and batch are numbers: {cause!r}"
            ) from cause
        self._at = (epoch, batch)
        if data.get_worker_info() is None:
            self._clock.set(epoch, batch)
        else:
            self._here = (epoch, batch)

    def __iter__(self) -> Iterator[Any]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch, first = self._begin(None if info is None else info.seed - info.id)
        batches, count = self._batches(epoch)
        number = first + worker
        while count is None or number < count:
            made = batches(number)
            number += workers
            self._at = (epoch, number - worker)
            yield given(made)
        self._at = (epoch + 1, 0)
        self._clock.set(epoch + 1, 0)

    def _begin(self, loader: int | None) -> tuple[int, int]:
        """Which epoch this pass is, and its first batch; `loader` tells the passes of DataLoaders apart."""
        self._passes += 1
        here, self._here = self._here, None
        if here is not None:
            return here
        return self._clock.next() if loader is None else self._clock.of_pass(loader, self._passes)

    def _plan(self) -> Plan:
        engine = self._held.buffer.engine
        plan = Plan(engine, request=engine.request(**self._options), seed=[self._seed], **self._made)
        plan.together = 1  # the next batch is another worker's
        return plan

    def _batches(self, epoch: int = 0) -> tuple[Callable[[int], Sample], int | None]:
        """What gives the batches of an epoch by their numbers, and how many there are."""
        if self._order == "epochs":
            one = self._plan().begin(epoch)
            return lambda number: one.samples(number)[0], one.batches
        engine = self._held.buffer.engine
        request: Request = engine.request(**self._options)
        seed, rank, size = self._seed, self._made["rank"], self._made["batch_size"]

        def drawn(number: int) -> Sample:
            return engine.draw(np.random.default_rng([seed, rank, epoch, number]), size, request)

        return drawn, self._steps


class _Clock:
    """Which pass over the data comes next, in memory that all workers of a DataLoader share.

    Workers come and go with every pass, or stay; the first of a pass to begin says which epoch it is, and the ones that
    begin late, when others have ended it already, still take that one.
    """

    def __init__(self) -> None:
        self._next = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._pass = torch.zeros(4, dtype=torch.int64).share_memory_()

    def set(self, epoch: int, batch: int) -> None:
        self._next[:] = torch.tensor([epoch, batch])

    def next(self) -> tuple[int, int]:
        epoch, batch = self._next.tolist()
        return epoch, batch

    def of_pass(self, loader: int, number: int) -> tuple[int, int]:
        # In this order: an epoch is over only after its pass was noted, so that one of both is seen.
        epoch, batch = self.next()
        noted = self._pass.tolist()
        if noted[:2] == [loader, number]:
            return noted[2], noted[3]
        self._pass[2:] = torch.tensor([epoch, batch])
        self._pass[:2] = torch.tensor([loader, number])
        return epoch, batch


class _Held:
    """A buffer that goes to other processes: one in files as their path, which is opened there when it is used."""

    def __init__(self, buffer: Any, functions: Mapping[str, Any] | None) -> None:
        if isinstance(buffer, str | os.PathLike):
            buffer = load_buffer(buffer, expect=Buffer, **(functions or {}))
        elif functions:
            raise TypeError("functions are for a path: a buffer that is open has its own")
        if not isinstance(buffer, Buffer):
            raise TypeError(f"expected a Buffer or the path of a saved one, got {type(buffer).__name__}")
        self._buffer: Buffer | None = buffer
        origin, hindsight = buffer.engine.origin, buffer.engine.hindsight
        given = {} if hindsight is None else dict(hindsight.given)
        self._files = None if origin is None else (origin, _digest(origin), given)

    @property
    def buffer(self) -> Buffer:
        """The buffer.

        Raises:
            SnapshotError: its files are others than those that the dataset was made of.
        """
        if self._buffer is None:
            assert self._files is not None, "only what is in files goes without its rows"
            path, told, given = self._files
            functions: dict[str, Any] = dict(given)
            if _digest(path) != told:
                raise SnapshotError(
                    f"{path}: the buffer there was replaced since the dataset was made: make the dataset anew"
                )
            self._buffer = load_buffer(path, verify=False, expect=Buffer, **functions)
        return self._buffer

    def __getstate__(self) -> dict[str, Any]:
        changed = self._buffer is not None and self._buffer.engine.origin is None
        if self._files is None or changed:
            return {"_buffer": self._buffer, "_files": None}  # which knows how it is copied
        return {"_buffer": None, "_files": self._files}


def _digest(path: Path) -> str:
    """What tells one saved buffer from another."""
    try:
        return hashlib.sha256(json.dumps(read_manifest(path), sort_keys=True).encode()).hexdigest()
    except Rlds2bufError as cause:
        raise SnapshotError(
            f"{path}: the buffer that the dataset was made of can't be opened there: {cause}"
        ) from cause


def _of_ranks(rank: int | None, world_size: int | None) -> dict[str, int]:
    is_world = distributed.is_available() and distributed.is_initialized()
    if (rank is None) != (world_size is None):
        raise ValueError("rank and world_size need each other")
    if rank is None or world_size is None:
        rank, world_size = (distributed.get_rank(), distributed.get_world_size()) if is_world else (0, 1)
    if not 0 <= integer("rank", rank) < integer("world_size", world_size, 1):
        raise ValueError(f"rank must be from 0 to {world_size - 1} in a world of {world_size}, got {rank}")
    return {"rank": rank, "world_size": world_size}
