"""From what a learner asks for to batches."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.buffers.contents.contents import Contents
from rlds2buf.buffers.read.hindsight import Drawn, Hindsight
from rlds2buf.buffers.read.reader import Reader
from rlds2buf.buffers.read.view import View
from rlds2buf.buffers.select.samplers import Draw, item_slots
from rlds2buf.core import nest
from rlds2buf.core.arguments import integer
from rlds2buf.core.sample import Sample, SampleInfo
from rlds2buf.errors import NotEnoughItems

__all__ = ["Drawing", "Request"]

_NONE = np.zeros((2, 0))


class Request(NamedTuple):
    """What a batch is to be; fields as the arguments of ``Buffer.sample``."""

    view: View
    beta: float | None = None
    source_id: int | None = None
    replace: bool = True
    concatenate: bool = False


class Drawing:
    """Sampler, reader and hindsight together, under the buffer's lock.

    Attributes:
        hindsight: what puts in goals, if anything; may be replaced at any time.
        sampled: items drawn so far.
        lock: the buffer's.
    """

    def __init__(
        self, contents: Contents, reader: Reader, hindsight: Hindsight | None, lock: threading.RLock | Any
    ) -> None:
        self._contents = contents
        self._reader = reader
        self.hindsight = hindsight
        self.lock = lock
        self.sampled = 0

    def one(self, rng: np.random.Generator, batch_size: int, request: Request) -> Sample:
        """A batch.

        Raises:
            NotEnoughItems: the buffer is empty, or without replacement smaller than `batch_size`.
            TooLarge: memory has no room for it.
            ValueError: an argument is out of range.
        """
        batch_size = integer("batch_size", batch_size, 1)
        self._reader.require_room(batch_size, request.view)
        with self.lock:
            self._contents.store.require_whole()
            draw, size = self._draw(rng, batch_size, request)
            if request.view.whole:
                data, info = self._whole(draw, size, request)
            else:
                data = self._read(draw.slots, request.view, self._chances(rng, batch_size))
                keys = self._contents.keys_of(draw.slots)
                info = SampleInfo(keys, draw.probability, draw.priority, draw.weight, size)
        return Sample(self._finished(data, request.view), info)

    def many(self, rng: np.random.Generator, count: int, batch_size: int, request: Request) -> list[Sample]:
        """`count` batches, read together: the same as one by one, in fewer calls."""
        count, batch_size = integer("count", count, 1), integer("batch_size", batch_size, 1)
        if count == 1 or request.view.whole:
            return [self.one(rng, batch_size, request) for _ in range(count)]
        self._reader.require_room(count * batch_size, request.view)
        with self.lock:
            self._contents.store.require_whole()
            drawn, chances = [], []
            for _ in range(count):
                drawn.append(self._draw(rng, batch_size, request))
                chances.append(self._chances(rng, batch_size))
            size = drawn[0][1]
            slots = np.concatenate([draw.slots for draw, _ in drawn])
            data = self._read(slots, request.view, np.concatenate(chances, axis=1))
            keys = self._contents.keys_of(slots)
        data = self._finished(data, request.view)
        parts = zip(_split(data, count), _split(keys, count), drawn, strict=True)
        return [
            Sample(part, SampleInfo(mine, draw.probability, draw.priority, draw.weight, size))
            for part, mine, (draw, _) in parts
        ]

    def _draw(self, rng: np.random.Generator, size: int, request: Request) -> tuple[Draw, int]:
        """B items, and of how many; where items have several steps and not all are wanted, one of their steps."""
        contents, replace = self._contents, request.replace
        if request.concatenate and not request.view.whole:
            raise ValueError("concatenate is for items of several transitions, sampled whole")
        if request.source_id is None:
            available = contents.sampler.count
            _enough(available, size, replace, "")
            draw = contents.sampler.draw(rng, size, replace=replace, beta=request.beta)
        else:
            slots = item_slots(contents.store)
            source = contents.store.source
            held = np.zeros(len(slots), np.uint32) if source is None else source[slots]
            slots = slots[held == request.source_id]
            available = len(slots)
            _enough(available, size, replace, f" of source {request.source_id}")
            draw = contents.sampler.among(rng, size, slots, replace=replace, beta=request.beta)
        self.sampled += size
        if contents.hits is not None:
            contents.hits.drawn(draw.slots)
        items = contents.store.items
        if items is not None and not request.view.whole:
            lengths = items[draw.slots]
            steps = (rng.random(size) * lengths).astype(np.int64)
            draw = draw._replace(
                slots=(draw.slots + steps) % contents.store.slots, probability=draw.probability / lengths
            )
        return draw, available

    def _chances(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """What picks of goals go by, ``[2, B]``; nothing where no goals are put in."""
        hindsight = self.hindsight
        return rng.random((2, size)) if hindsight is not None and hindsight.while_sampling else _NONE

    def _read(self, slots: np.ndarray, view: View, chances: np.ndarray) -> Any:
        waiting = self._contents.waiting
        if self.hindsight is not None and self.hindsight.while_sampling:
            return self.hindsight.read(slots, view, chances, waiting)
        return self._reader.read(slots, view, waiting.values())

    def _finished(self, data: Any, view: View) -> Any:
        """Pictures decoded and goals put in, without the lock: the caller's functions run here."""
        unpack = self._reader.unpack
        if isinstance(data, Drawn):
            data = data._replace(rows=unpack(data.rows, view.decode))
            return data.hindsight.finish(data, view.gamma)
        return unpack(data, view.decode)

    def _whole(self, draw: Draw, size: int, request: Request) -> tuple[Any, SampleInfo]:
        """Items with all their steps, padded or one behind the other."""
        keys = self._contents.keys_of(draw.slots)
        info = SampleInfo(keys, draw.probability, draw.priority, draw.weight, size)
        if not request.concatenate:
            return self._reader.whole(draw.slots), info
        path, steps = self._reader.members(draw.slots)
        flat = path[np.arange(path.shape[1]) < steps[:, None]]
        key, probability, priority, weight = (
            np.repeat(column, steps) for column in (keys, draw.probability, draw.priority, draw.weight)
        )
        info = SampleInfo(key, probability, priority, weight, size)
        return self._reader.transitions(flat, request.view.gamma), info


def _split(value: nest.Nest, count: int) -> list[Any]:
    """Several batches that were read as one; views of it."""
    if isinstance(value, np.ndarray):
        return list(value.reshape(count, len(value) // count, *value.shape[1:]))
    if isinstance(value, dict):
        parts = [_split(child, count) for child in value.values()]
        return [dict(zip(value, each, strict=True)) for each in (zip(*parts, strict=True) if parts else [()] * count)]
    if isinstance(value, tuple):
        parts = [_split(child, count) for child in value]
        make: Any = type(value)._make if hasattr(value, "_make") else tuple
        return [make(each) for each in (zip(*parts, strict=True) if parts else [()] * count)]
    return [value] * count


def _enough(count: int, size: int, replace: bool, what: str) -> None:
    needed = 1 if replace else size
    if count < needed:
        raise NotEnoughItems(f"the buffer holds {count} transitions{what}, and sampling needs at least {needed}")
