"""Passes over everything a buffer holds, each item once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.buffers.engine import Engine, Request
from rlds2buf.buffers.read.prefetch import Batches
from rlds2buf.buffers.rows.blobs import is_blob
from rlds2buf.buffers.select.samplers import Draw, item_slots
from rlds2buf.buffers.select.shuffle import Shuffle
from rlds2buf.core.arguments import integer
from rlds2buf.core.sample import Sample
from rlds2buf.errors import NotEnoughItems, ReplayError, SnapshotError

__all__ = ["Epochs", "Plan"]

_AGREED = ("batch_size", "world_size", "drop_last")
"""What must be the same where a state is loaded as where it was saved."""
_AT_ONCE, _AT_ONCE_BYTES = 1 << 12, 1 << 20
"""Transitions that are read by one call, and their bytes at most, for several batches."""


class _Position(NamedTuple):
    """How far a learner has come: batches it has had of an epoch, and of which items that is.

    `items` is 0 where the epoch has not begun.
    """

    epoch: int = 0
    batch: int = 0
    items: int = 0
    last_key: int = 0


class Plan:
    """Which items each batch of an epoch has.

    The items are shuffled anew for every epoch, and rank r of W has those at the places r, r + W, ... of the order.
    All ranks have as many batches: where a rank's items fill one less, its last two share what the last of
    them would have had.

    Args:
        engine: of the buffer.
        batch_size: B, items of each batch, at least 1.
        request: what batches are to be.
        seed: non-negative integers, the same on all ranks.
        rank, world_size: of how many processes this is which; all have the same items.
        drop_last: leave out what fills no batch on every rank.

    Raises:
        TypeError, ValueError: an argument is out of range.
    """

    def __init__(
        self,
        engine: Engine,
        batch_size: int,
        request: Request,
        *,
        seed: Sequence[int],
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        self.engine, self.request = engine, request
        self.batch_size = integer("batch_size", batch_size, 1)
        self.seed = [int(word) for word in seed]
        self.world_size = integer("world_size", world_size, 1)
        self.rank = integer("rank", rank, 0)
        if self.rank >= self.world_size:
            raise ValueError(
                f"rank must be from 0 to {self.world_size - 1} in a world of {self.world_size}, got {rank}"
            )
        self.drop_last = bool(drop_last)
        # What a batch draws beside its items: goals in hindsight, steps of items of several of them, and horizons.
        self.is_drawn_within = (engine.hindsight is not None and engine.hindsight.while_sampling) or (
            engine.store.items is not None and not request.view.whole
        )
        self.is_drawn_within |= isinstance(request.view.n_step, tuple)
        self.together = self._together()

    def begin(self, epoch: int) -> Pass:
        """What is held now, in the order of this epoch; takes the buffer's lock.

        Raises:
            NotEnoughItems: a rank would have no batch.
        """
        return Pass(self, epoch)

    def _together(self) -> int:
        """How many batches are read at once: as many transitions as come quickly and take little memory."""
        spec, view = self.engine.spec, self.request.view
        several = view.whole or view.sequence_length is not None or view.windows is not None
        if several or self.is_drawn_within or any(map(is_blob, (field for _, field in spec.fields()))):
            return 1
        return max(1, min(_AT_ONCE // self.batch_size, _AT_ONCE_BYTES // (2 * spec.row_bytes * self.batch_size)))


class Pass:
    """One epoch of a plan.

    Attributes:
        items: how many there are, on all ranks together.
        last_key: the newest one's.
        batches: how many this rank has, as all others do.
    """

    def __init__(self, plan: Plan, epoch: int) -> None:
        self._plan, self._epoch = plan, epoch
        engine, request = plan.engine, plan.request
        engine.refresh()
        with engine.lock:
            engine.store.require_whole()
            contents = engine.contents
            self._evicted = contents.evicted
            self._keys: np.ndarray | None = None
            self.items = contents.sampler.count
            newest = contents.sampler.slots_at(np.array([max(self.items - 1, 0)])) if self.items else None
            if request.source_id is not None or newest is None:
                self._keys = _keys(engine, request.source_id)
                self.items = len(self._keys)
            whole = plan.world_size * (plan.batch_size if plan.drop_last else 1)
            if self.items < whole:
                raise NotEnoughItems(
                    f"an epoch of batches of {plan.batch_size} on {plan.world_size} rank(s) needs at least {whole} "
                    f"items, and there are {self.items}"
                )
            self.last_key = self._key(newest)
        self._order = Shuffle(self.items, [*plan.seed, epoch])
        share, rest = divmod(self.items, plan.world_size)
        if plan.drop_last:
            self.batches, self._mine = share // plan.batch_size, share // plan.batch_size * plan.batch_size
        else:
            self.batches, self._mine = -(-(share + (rest > 0)) // plan.batch_size), share + (plan.rank < rest)
        self._is_short = (
            self._mine <= (self.batches - 1) * plan.batch_size
        )  # this rank fills one batch less than others
        self._full = self.batches - 2 if self._is_short else self._mine // plan.batch_size
        if share < self.batches:
            raise ValueError(
                f"{self.items} items in batches of 1 are no even shares of {plan.world_size} ranks: give drop_last=True"
            )

    def samples(self, number: int) -> list[Sample]:
        """The batch of this number, from 0, and perhaps some of the next ones.

        Raises:
            ReplayError: an item has left the buffer since the epoch began.
        """
        plan = self._plan
        first, size = number * plan.batch_size, plan.batch_size
        count = min(plan.together, self._full - number)
        if number >= self._full:
            count = 1
            if self._is_short:  # what would fill the last batch but one is for two
                first, size = (first, size - 1) if number == self.batches - 2 else (self._mine - 1, 1)
            size = min(size, self._mine - first)
        places = self._order.at(plan.rank + plan.world_size * first, plan.world_size, count * size)
        request = plan.request._replace(source_id=None, chosen=lambda: self._drawn(places))
        seed = [*plan.seed, self._epoch, plan.rank, number]
        rng = np.random.default_rng(seed) if plan.is_drawn_within else plan.engine.rng
        return plan.engine.draw_together(rng, count, size, request)

    def _drawn(self, places: np.ndarray) -> tuple[Draw, int]:
        """Items in these places ``[B] int64``, whose slots are looked up with the buffer's lock held."""
        contents = self._plan.engine.contents
        sampler = contents.sampler
        whole = contents.evicted == self._evicted
        if self._keys is not None:
            slots = contents.slots_of(self._keys[places]) if whole else None
        else:
            slots = sampler.slots_at(places) if whole and sampler.count >= self.items else None
        if slots is None:
            raise ReplayError(
                "items of this epoch have left the buffer since it began, so that they can't be given: "
                "begin another epoch, or give the buffer a larger capacity"
            )
        ones = np.ones((2, len(slots)))
        priority = sampler.priority_of(slots) if sampler.has_priorities else ones[0]
        return Draw(slots, ones[0] / self.items, priority, ones[1]), self.items

    def _key(self, newest: np.ndarray | None) -> int:
        if self._keys is not None:
            return int(self._keys[-1])
        assert newest is not None, "there are items"
        return int(self._plan.engine.contents.keys_of(newest)[0])


def _keys(engine: Engine, source_id: int | None) -> np.ndarray:
    """Keys ``[items] uint64`` of the items of a source, or of all, oldest first."""
    store = engine.store
    slots = item_slots(store)
    if source_id is not None:
        source = np.zeros(len(slots), np.uint32) if store.source is None else store.source[slots]
        slots = slots[source == source_id]
    return engine.contents.keys_of(slots)


class Epochs(Iterator[Any]):
    """An iterator over passes; ``buffer.epoch(...)`` and ``buffer.batches(order="epochs")`` make it.

    Its state, as plain JSON values, says how many batches the learner has had; an iterator made alike, of the same
    items, goes on with the next one.  It fits every rank, since all have as many batches.

    Args:
        plan: which items are in which batch.
        epochs: how many; None for no end.
        finish: turns a batch into what the learner gets.
        steps, prefetch, timeout: as for :class:`~rlds2buf.buffers.read.prefetch.Batches`.

    Raises:
        ReplayError: while iterating: an item of the epoch has left the buffer.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        epochs: int | None,
        finish: Callable[[Sample], Any],
        steps: int | None = None,
        prefetch: int = 0,
        timeout: float = 60.0,
    ) -> None:
        self._plan, self._epochs, self._finish = plan, epochs, finish
        self._steps = None if steps is None else integer("steps", steps, 0)
        self._ahead, self._timeout = integer("prefetch", prefetch, 0), timeout
        self._position = _Position()
        self._batches: Batches[Any] | None = None
        self._pass = None if epochs is None else plan.begin(0)
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")

    def __len__(self) -> int:
        """Batches of one whole epoch, on this rank: of what is held now, where the end is open."""
        return (self._pass or self._plan.begin(self._position.epoch)).batches

    @property
    def epoch(self) -> int:
        """The number, from 0, of the epoch that the next batch is of."""
        return self._position.epoch

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches = self._begun()
        batch, self._position = next(self._batches)
        return batch

    def close(self) -> None:
        """Draw no more, and wait for the thread to end.  Idempotent."""
        if self._batches is None:
            self._batches = Batches(lambda count: [], lambda drawn: drawn, steps=0, prefetch=0)
        self._batches.close()

    def __enter__(self) -> Epochs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Which batch comes next, as plain JSON values.

        ``epoch`` and ``batch`` count from 0; ``items`` and ``last_key`` say of what, in the middle of an epoch.
        """
        plan = self._plan
        agreed = {name: getattr(plan, name) for name in _AGREED}
        return {"version": 1, "seed": list(plan.seed), **agreed, **self._position._asdict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind the batch that was the last one when :meth:`state_dict` gave this.

        Raises:
            SnapshotError: it is of batches of another size, of another world or of other items, or is no
                such state; nothing was changed.
        """
        plan = self._plan
        try:
            version, seed = state["version"], [integer("seed", word, 0) for word in state["seed"]]
            position = _Position(*(integer(name, state[name], 0) for name in _Position._fields))
            theirs = {name: state[name] for name in _AGREED}
        except (KeyError, TypeError, ValueError) as cause:
            raise SnapshotError(f"this is no state of epochs: {cause!r}") from cause
        if version != 1:
            raise SnapshotError(f"the state has version {version!r}, expected 1")
        for name, value in theirs.items():
            if value != getattr(plan, name):
                raise SnapshotError(f"the state is of epochs with {name} {value!r}, these have {getattr(plan, name)!r}")
        self._require_items(position)
        self.close()
        plan.seed = seed
        self._position, self._batches = position, None
        self._pass = None if self._epochs is None else plan.begin(0)

    def _require_items(self, position: _Position) -> None:
        if not position.items:
            return
        held = self._plan.begin(position.epoch)
        if (held.items, held.last_key) != (position.items, position.last_key):
            raise SnapshotError(
                f"the state is of an epoch over {position.items} items up to key {position.last_key}, and the buffer "
                f"holds {held.items} up to {held.last_key}"
            )

    def _begun(self) -> Batches[Any]:
        """From the learner's position on."""
        finish, position = self._finish, self._position
        made = _made(self._plan, position, self._epochs, self._pass)
        steps = self._steps
        if self._epochs is not None:
            left = len(self) - position.batch if position.epoch < self._epochs else 0
            steps = left if steps is None else min(left, steps)
        return Batches(
            lambda count: list(itertools.islice(made, count)),
            lambda drawn: (finish(drawn[0]), drawn[1]),
            steps=steps,
            prefetch=self._ahead,
            timeout=self._timeout,
        )


def _made(
    plan: Plan, position: _Position, epochs: int | None, begun: Pass | None
) -> Iterator[tuple[Sample, _Position]]:
    """Batches from a position on, and where each leaves the learner; knows nothing of the iterator."""
    epoch, batch = position.epoch, position.batch
    while epochs is None or epoch < epochs:
        one = begun or plan.begin(epoch)
        while batch < one.batches:
            for sample in one.samples(batch):
                batch += 1
                is_last = batch == one.batches
                yield sample, _Position(epoch + 1) if is_last else _Position(epoch, batch, one.items, one.last_key)
        epoch, batch, begun = epoch + 1, 0, None
