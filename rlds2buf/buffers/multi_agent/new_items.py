"""Mixing new items with replayed ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2buf.buffers.engine import Engine
from rlds2buf.buffers.read.view import View
from rlds2buf.core import nest
from rlds2buf.core.sample import Sample, SampleInfo, Trajectory

__all__ = ["Fresh", "joined", "old_for", "shares"]


class Fresh:
    """Which items of a buffer no batch has had yet: those with a key from `next` on, as far as they are held."""

    def __init__(self) -> None:
        self.next = self.end = 0

    def added(self, keys: np.ndarray) -> None:
        """These keys ``[n] uint64``, ascending, were given out."""
        if len(keys):
            self.end = int(keys[-1]) + 1

    def take(self, engine: Engine, count: int) -> np.ndarray:
        """The oldest `count` of them, as keys ``uint64``; they are not new any more."""
        contents = engine.contents
        found: list[np.ndarray] = []
        missing, step = count, 4 * count
        start = self.next
        if contents.store.keys is None:
            start = max(start, contents.store.oldest)
        while missing and start < self.end:
            keys = np.arange(start, min(start + step, self.end), dtype=np.uint64)
            held = keys[contents.holds(keys)]
            slots = contents.slots_of(held)
            held = held[contents.items_of(slots) == slots][:missing]
            found.append(held)
            missing -= len(held)
            start, step = int(held[-1] if len(held) and not missing else keys[-1]) + 1, 2 * step
        if count:
            self.next = start
        return np.concatenate([np.zeros(0, np.uint64), *found])

    def waiting(self, engine: Engine) -> bool:
        """Whether there are any."""
        before = self.next
        some = bool(len(self.take(engine, 1)))
        self.next = before
        return some

    def sample(self, engine: Engine, keys: np.ndarray, view: View, rng: np.random.Generator) -> Sample:
        """New items as a Sample: each is certain to be there once, with a weight of 1.  Open horizons are drawn."""
        data = engine.get(keys, view, rng)
        ones = np.ones(len(keys))
        priority = engine.sampler.priority_of(engine.contents.slots_of(keys))
        return Sample(data, SampleInfo(keys, ones, priority, ones.copy(), engine.sampler.count))


def shares(count: int, ratio: float, rng: np.random.Generator) -> int:
    """How many of `count` items may be new, if a share of `ratio` is replayed: rounded at random to keep the mean."""
    return _round(count * (1.0 - ratio), rng)


def old_for(new: int, wanted: int, count: int, ratio: float, rng: np.random.Generator) -> int:
    """How many items are replayed beside `new` of `wanted` new ones, in a batch of at most `count`.

    With fewer new items than wanted, as many fewer are replayed: the ratio stays.
    """
    if new == wanted or ratio == 1.0:
        return count - wanted
    return min(count - wanted, _round(new * ratio / (1.0 - ratio), rng))


def joined(samples: Sequence[Sample]) -> Sample:
    """Samples of one buffer and view, one behind the other; whole items padded to the longest of all."""
    if len(samples) == 1:
        return samples[0]
    parts = [sample.data for sample in samples]
    if isinstance(parts[0], Trajectory):
        length = max(part.mask.shape[1] for part in parts)
        parts = [_padded(part, length) for part in parts]

    def join(*columns: np.ndarray | None) -> np.ndarray | None:
        given = [column for column in columns if column is not None]
        axes = min((column.ndim for column in given if column.dtype == object), default=None)
        if axes is not None:  # pictures of one size in one sample, of several in another
            given = [_loose(column, axes) for column in given]
        return np.concatenate(given) if given else None

    data = nest.map_structure(join, *parts)
    infos = [sample.info for sample in samples]
    keys, chance, priority, weight = (np.concatenate([np.asarray(info[i]) for info in infos]) for i in range(4))
    return Sample(data, SampleInfo(keys, chance, priority, weight, infos[-1].table_size))


def _padded(data: Trajectory, length: int) -> Trajectory:
    """With that many positions; those behind its own are masked."""
    missing = length - data.mask.shape[1]
    if not missing:
        return data

    def longer(column: np.ndarray | None) -> np.ndarray | None:
        if column is None:
            return None
        behind = np.zeros((len(column), missing, *column.shape[2:]), column.dtype)
        if column.dtype == object:
            some = column.reshape(-1)[0]
            for place in np.ndindex(behind.shape):
                behind[place] = some[:0]  # no bytes, or an array of nothing
        return np.concatenate([column, behind], axis=1)

    fields = data._asdict()
    state = fields.pop("initial_state")
    padded = {name: nest.map_structure(longer, value) for name, value in fields.items()}
    return Trajectory(**padded, initial_state=state)


def _loose(column: np.ndarray, axes: int) -> np.ndarray:
    """An object array of as many axes, of arrays if there were more."""
    if column.ndim == axes:
        return column.astype(object)
    out = np.empty(column.shape[:axes], object)
    for index in np.ndindex(out.shape):
        out[index] = column[index]
    return out


def _round(value: float, rng: np.random.Generator) -> int:
    whole = int(np.floor(value + 1e-9))
    return whole + int(rng.random() < value - whole - 1e-9)
