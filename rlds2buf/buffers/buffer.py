"""The replay buffer: storage, remover, sampler and view in one."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2buf.buffers import adding
from rlds2buf.buffers.contents import Contents
from rlds2buf.buffers.hindsight import Drawn, Hindsight
from rlds2buf.buffers.incoming import Intake
from rlds2buf.buffers.keys import as_keys
from rlds2buf.buffers.live import LiveFolder
from rlds2buf.buffers.priorities import PrioritizedSampler, checked_priorities
from rlds2buf.buffers.reader import Reader
from rlds2buf.buffers.removers import Fifo
from rlds2buf.buffers.samplers import Draw, Sampler, item_slots
from rlds2buf.buffers.storage import RowStore
from rlds2buf.buffers.view import View
from rlds2buf.core.sample import Sample, SampleInfo, Trajectory, Transition
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import NotEnoughItems, ReplayError, SnapshotExists, UnknownKey

__all__ = ["Buffer"]


class Buffer:
    """Rows of logged or fresh experience, sampled as transitions, n-step transitions or sequences.

    Made by the ``make_*`` functions.  A row is stored once; an episode of N rows gives N-1
    transitions; an explicit transition takes one row and keeps its own next observation beside it.
    The oldest rows leave first.  Nothing that is sampled crosses the end of an episode, a data
    source or the newest row.  All methods may be called from several threads.

    Attributes:
        spec: of the rows.
        capacity: how much it holds, in `capacity_unit`.
        capacity_unit: ``"rows"``, ``"transitions"`` or ``"episodes"``.
        kind: which factory made it, for example ``"circular"``.
        provenance: of a loaded buffer: its source, options and the rlds2buf version that wrote it.
    """

    def __init__(
        self,
        spec: StepSpec,
        store: RowStore,
        remover: Fifo,
        sampler: Sampler,
        *,
        kind: str,
        options: Mapping[str, Any] | None = None,
        seed: int | np.random.SeedSequence | None = None,
        home: LiveFolder | None = None,
        view: Mapping[str, Any] | None = None,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.spec = spec
        self._contents = Contents(store, remover, sampler)
        self._store = store
        self._remover = remover
        self._sampler = sampler
        self._reader = Reader(store)
        self._intake = Intake(spec)
        self._rng = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self.provenance: dict[str, Any] = {}
        self.kind = kind
        self._home = home
        self._options = dict(options or {}, **({"view": dict(view)} if view else {}))
        self._view = View(**(view or {}))
        self._hindsight = hindsight
        if hindsight is not None:
            hindsight.bind(store)
        self._sampled = 0

    @property
    def capacity(self) -> int:
        """How much fits, in `capacity_unit`."""
        return self._remover.limit

    @property
    def capacity_unit(self) -> str:
        """What `capacity` counts."""
        return self._remover.unit

    @property
    def num_rows(self) -> int:
        """Rows held, final rows of episodes included."""
        return self._contents.num_rows

    def __len__(self) -> int:
        return self._sampler.count

    def add(
        self,
        data: Any,
        *,
        source_id: int | Sequence[int] | np.ndarray = 0,
        priorities: npt.ArrayLike | None = None,
        consecutive: bool = True,
    ) -> np.ndarray:
        """Store an episode, explicit transitions, or a list of them.

        Args:
            data: an Episode (its N rows) or an EpisodeBatch; a Transition or mapping with observation, action, reward,
                next_observation and optionally discount, extras, is_done (0, 1, 2) or
                terminated/truncated, of B transitions or of one without the leading axis; a list of
                any of these.  Empty input (None, [], {}, "") does nothing.
            source_id: where the data come from, a non-negative integer, or one for each
                transition (for each element of a list).
            priorities: one for each transition added, for a prioritized buffer; the largest there
                has been unless given.
            consecutive: whether explicit transitions of one source follow one another, which n-step
                returns, sequences and hindsight go by; False where each stands alone, as
                :meth:`generate_hindsight`'s do.

        Returns:
            Keys ``[items] uint64`` of the transitions added, in order.  More explicit transitions
            than fit: only the newest stay.

        Raises:
            SpecMismatch: fields, shapes or dtypes differ from the spec; nothing was added.
            EpisodeError: an episode is longer than the capacity, or single transitions were given to a
                buffer that counts episodes; nothing was added.
        """
        with self._lock:
            return adding.store(self, adding.prepare(self, data, source_id, priorities, consecutive))

    def sample(
        self,
        batch_size: int,
        *,
        n_step: int | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
        beta: float | None = None,
        source_id: int | None = None,
        replace: bool = True,
    ) -> Sample:
        """Draw a batch.

        Args:
            batch_size: B, how many items.
            n_step: horizon of the transitions; a shorter one is used where an episode, a source or
                the stored data end, and ``steps`` and ``bootstrap_discount`` say so.
            gamma: discount per step.
            sequence_length: T, for a Trajectory ``[B, T, ...]`` of consecutive transitions instead,
                padded behind the end of the episode.
            burn_in: up to that many earlier steps before each sequence, at positions of their own
                (see :class:`~rlds2buf.core.sample.Trajectory`): never of another episode or source.
            initial_state: the recurrent state before each sequence's first step: ``"stored"`` with
                the data, or ``"zeros"``.
            state: the extras it is in, each step's being the state before it, for example
                ``("lstm/h", "lstm/c")``.
            beta: exponent of a prioritized buffer's importance weights, in place of its schedule's.
            source_id: only transitions of this data source.
            replace: whether one item may be drawn more than once.

        Returns:
            Sample: `data` a Transition or Trajectory, `info` with keys and probabilities.

        Raises:
            NotEnoughItems: the buffer is empty, or without replacement smaller than `batch_size`.
            ValueError: an argument is out of range.
        """
        view = self._view.changed(n_step, gamma, sequence_length, burn_in, initial_state, state)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        with self._lock:
            draw, size = self._draw(batch_size, source_id, replace, beta)
            self._sampled += batch_size
            hindsight = self._hindsight
            if hindsight is not None and hindsight.while_sampling:
                data: Any = hindsight.read(draw.slots, view, self._rng, self._contents.waiting)
            else:
                data = self._reader.read(draw.slots, view, self._contents.waiting.values())
            keys = self._contents.keys_of(draw.slots)
        if isinstance(data, Drawn) and hindsight is not None:
            data = hindsight.finish(data, view.gamma)  # the caller's functions run without the lock
        return Sample(data, SampleInfo(keys, draw.probability, draw.priority, draw.weight, size))

    def get(
        self,
        keys: npt.ArrayLike,
        *,
        n_step: int | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
    ) -> Transition | Trajectory:
        """The items of these keys, as :meth:`sample` would give them, and with the goals they had.

        Raises:
            UnknownKey: a key was never given out, or its item has left.
        """
        wanted = as_keys(keys)
        view = self._view.changed(n_step, gamma, sequence_length, burn_in, initial_state, state)
        with self._lock:
            held = self._contents.holds(wanted)
            if not held.all():
                some = ", ".join(str(key) for key in wanted[~held][:5])
                raise UnknownKey(f"{int((~held).sum())} of {len(wanted)} keys are not in the buffer: {some}")
            return self._reader.read(self._contents.slots_of(wanted), view, self._contents.waiting.values())

    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> np.ndarray:
        """Set the priorities of sampled transitions, as a rule to the size of their TD errors.

        Args:
            keys: ``[B]`` from ``info.key``; of repeated ones the last counts.
            priorities: ``[B]``, 0 or more; `eps` is added.

        Returns:
            Those of `keys` that are no longer held (or never were): they were passed over.

        Raises:
            InvalidPriority: one is negative, NaN or infinite; nothing was changed.
            ReplayError: the buffer samples uniformly.
        """
        wanted = as_keys(keys)
        values = checked_priorities(np.atleast_1d(np.asarray(priorities, np.float64)), len(wanted))
        with self._lock:
            sampler = self._sampler
            if not isinstance(sampler, PrioritizedSampler):
                raise ReplayError("this buffer samples uniformly and keeps no priorities")
            self._touch()
            held = self._contents.holds(wanted)
            slots = self._contents.items_of(self._contents.slots_of(wanted[held]))
            sampler.update(slots, values[held])
        return wanted[~held]

    def generate_hindsight(self, num_steps: int, *, source_id: int | None = None) -> Transition:
        """New transitions of the last steps of an episode, under goals that these steps reached.

        Call it when an episode has ended, and add what it gives:
        ``buffer.add(buffer.generate_hindsight(n), consecutive=False)``.  Nothing is stored here.
        A buffer to be used in this way is made with ``while_sampling=False``.

        Args:
            num_steps: N, the newest transitions of one episode.
            source_id: of this data source; None for the one that the newest transition came from.

        Returns:
            Transition ``[N]`` for the strategy ``"final"``, else ``[N * num_goals]``, in the order of
            the steps.  A transition into a placeholder row is left out.

        Raises:
            ReplayError: this is no hindsight buffer.
            NotEnoughItems: fewer transitions are held.
            ValueError: `num_steps` is below 1 or reaches back beyond the episode's start.
        """
        hindsight = self._hindsight
        if hindsight is None:
            raise ReplayError("this buffer knows no goals: make it with make_hindsight")
        gamma = self._view.gamma
        with self._lock:
            trajectory = hindsight.trajectory(num_steps, source_id, self._contents.waiting, gamma)
            picks = hindsight.draw_picks(len(trajectory.is_done), self._rng)
        return hindsight.generate(trajectory, picks, gamma)

    def all(self) -> Transition:
        """Every transition held, oldest first, copied."""
        with self._lock:
            return self._reader.transitions(item_slots(self._store))

    def keys(self) -> np.ndarray:
        """Keys ``uint64`` of every transition held, oldest first."""
        with self._lock:
            return self._contents.keys_of(item_slots(self._store))

    def check(self, data: Any) -> None:
        """Raise unless :meth:`add` would take `data`.

        Raises:
            SpecMismatch: the data don't fit the spec.
            EpisodeError: an episode is longer than the capacity.
        """
        for block in self._intake.blocks(data):
            self._remover.refuse(block)

    def resize(self, capacity: int) -> None:
        """Change the capacity, keeping the newest rows that fit."""
        with self._lock:
            self._touch()
            self._contents.resize(capacity)

    def clear(self) -> None:
        """Drop everything held; keys go on counting."""
        with self._lock:
            self._touch()
            self._contents.clear()

    def stats(self) -> dict[str, Any]:
        """Counts and sizes, as plain numbers.

        ``num_rows`` and ``num_items`` held; ``capacity`` and its unit; ``added``, ``evicted`` and
        ``sampled`` transitions so far; ``bytes`` of all columns and ``row_bytes`` of one row's data.
        """
        index = self._hindsight
        with self._lock:
            return {
                "kind": self.kind,
                "num_rows": self.num_rows,
                "num_items": len(self),
                "capacity": self.capacity,
                "capacity_unit": self.capacity_unit,
                "added": self._contents.added,
                "evicted": self._contents.evicted,
                "sampled": self._sampled,
                "bytes": self._store.nbytes + self._sampler.nbytes + (0 if index is None else index.episodes.nbytes),
                "row_bytes": self.spec.row_bytes,
            }

    def state_dict(self) -> dict[str, Any]:
        """A deep copy of everything; :meth:`load_state_dict` restores it, draws included."""
        from rlds2buf.buffers.state import get_state

        with self._lock:
            return get_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            SnapshotError: it is of a buffer of another kind, spec or capacity; nothing was changed.
        """
        from rlds2buf.buffers.state import set_state

        with self._lock:
            self._touch()
            set_state(self, state)

    def save(
        self, path: str | Path | None = None, *, overwrite: bool = False, provenance: Mapping[str, Any] | None = None
    ) -> None:
        """Write the buffer to a folder that :func:`rlds2buf.load_buffer` opens.

        An interrupted save leaves what was there before.

        Args:
            path: the folder; None for a directory-backed buffer's own, where only the manifest
                is left to write.
            overwrite: replace a saved buffer that is there.
            provenance: plain JSON values to keep with it.

        Raises:
            SnapshotExists: `path` is there already and `overwrite` is False.
            SinkError: the files can't be written.
            ValueError: no path, and the buffer is not directory-backed.
        """
        from rlds2buf.buffers.snapshot import save_buffer

        with self._lock:
            if provenance is not None:
                self.provenance = dict(provenance)
            if self._home is not None and (path is None or Path(path).resolve() == self._home.path):
                if path is not None and not overwrite:
                    raise SnapshotExists(f"{path}: is this buffer's own folder; save() without a path keeps it whole")
                self._home.save(self)
            elif path is not None:
                save_buffer(self, Path(path), overwrite=overwrite)
            else:
                raise ValueError("save needs a path: this buffer has no directory of its own")

    def check_valid(self) -> None:
        """Assert that all structures agree; for tests."""
        self._contents.check_valid()

    # -- inside -----------------------------------------------------------------------------------

    def _touch(self) -> None:
        """Call before anything that is saved changes."""
        if self._home is not None:
            self._home.touch()

    def _draw(self, size: int, source_id: int | None, replace: bool, beta: float | None) -> tuple[Draw, int]:
        if source_id is None:
            _enough(len(self), size, replace, "")
            return self._sampler.draw(self._rng, size, replace=replace, beta=beta), len(self)
        slots = item_slots(self._store)
        source = self._store.source
        held = np.zeros(len(slots), np.uint32) if source is None else source[slots]
        slots = slots[held == source_id]
        _enough(len(slots), size, replace, f" of source {source_id}")
        return self._sampler.among(self._rng, size, slots, replace=replace, beta=beta), len(slots)


def _enough(count: int, size: int, replace: bool, what: str) -> None:
    needed = 1 if replace else size
    if count < needed:
        raise NotEnoughItems(f"the buffer holds {count} transitions{what}, and sampling needs at least {needed}")
