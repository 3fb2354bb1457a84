"""The replay buffer: storage, remover, sampler and view in one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2buf.buffers import adding
from rlds2buf.buffers.add.allowed import Allowed
from rlds2buf.buffers.add.intake import Intake
from rlds2buf.buffers.contents.contents import Contents
from rlds2buf.buffers.disk.live_folder import LiveFolder
from rlds2buf.buffers.engine import Drawing
from rlds2buf.buffers.keys import as_keys
from rlds2buf.buffers.read.goal_settings import GoalSettings
from rlds2buf.buffers.read.hindsight import Hindsight
from rlds2buf.buffers.read.reader import Reader
from rlds2buf.buffers.read.view import View
from rlds2buf.buffers.sampling import Sampling
from rlds2buf.buffers.saved import Saved
from rlds2buf.buffers.select.prioritized import PrioritizedSampler, checked_priorities
from rlds2buf.core import forks, shown
from rlds2buf.core.arguments import integer
from rlds2buf.core.closed import Closed
from rlds2buf.core.nest import Nest
from rlds2buf.core.sample import Transition
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import ReplayError

__all__ = ["Buffer"]


class Buffer(Sampling, Saved, GoalSettings, Closed):
    """Rows of logged or fresh experience, sampled as transitions, n-step transitions or sequences.

    Made by the ``make_*`` functions.  A row is stored once; an episode of N rows gives N-1
    transitions; an explicit transition takes one row and keeps its own next observation beside it.
    The oldest rows leave first, but for a reservoir.  Nothing that is sampled crosses the end of an
    episode, a data source or the newest row.  All methods may be called from several threads.

    An item, what is drawn, counted and has a priority, is a transition unless the buffer was made
    with another `storage_unit`.

    Attributes:
        spec: of the rows.
        capacity: how much it holds, in `capacity_unit`.
        capacity_unit: ``"rows"``, ``"transitions"``, ``"episodes"`` or ``"items"``.
        storage_unit: what an item is: ``"timesteps"``, ``"sequences"``, ``"episodes"`` or ``"fragments"``.
        kind: which factory made it, for example ``"circular"``.
        provenance: of a loaded buffer: its source, options and the rlds2buf version that wrote it.
        goals, reward_fn, done_fn, strategy, num_goals, include_current, vectorized, while_sampling: of a
            hindsight buffer, as its factory has them; they can be set. No other buffer has them.
    """

    _other_names = {  # noqa: RUF012 - constant
        "Strategy": "strategy",
        "NumGoalSamples": "num_goals",
        "n_sampled_goal": "num_goals",
        "GoalConditionInfo": "goals",
        "RewardFcn": "reward_fn",
        "IsDoneFcn": "done_fn",
        "goal_selection_strategy": "strategy",
        "MaxLength": "resize(n)",
        "Length": "len(buffer)",
        "size": "resize(n)",
    }
    spec: StepSpec
    provenance: dict[str, Any]
    kind: str

    def __init__(
        self,
        spec: StepSpec,
        contents: Contents,
        *,
        kind: str,
        intake: Intake | None = None,
        options: Mapping[str, Any] | None = None,
        seed: int | np.random.SeedSequence | None = None,
        home: LiveFolder | None = None,
        view: Mapping[str, Any] | None = None,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.spec = spec
        self._contents = contents
        self._store = contents.store
        self._remover = contents.remover
        self._sampler = contents.sampler
        self._reader = Reader(contents.store)
        self._intake = intake or Intake(spec)
        self._rng = np.random.default_rng(seed)
        self._seed = forks.seed_of(self._rng)
        self._lock = threading.RLock()
        self.provenance = {}
        self.kind = kind
        self._home = home
        self._origin = None
        self._view = View.of(view, whole=contents.store.items is not None)
        self._options = dict(options or {}, **({"view": dict(view)} if view else {}))
        self._hindsight = hindsight
        if hindsight is not None:
            hindsight.bind(contents.store)
        self._drawing = Drawing(contents, self._reader, hindsight, self._lock)
        forks.register(self)

    @functools.cached_property
    def _allowed(self) -> Allowed:
        return Allowed(self.spec)

    def __repr__(self) -> str:
        items = "transitions" if self.storage_unit == "timesteps" else self.storage_unit
        held = f"{len(self):,} {items}, capacity {self.capacity:,} {self.capacity_unit}"
        return shown.aligned(f"<Buffer: {self.kind}, {held}>", shown.spec_rows(self.spec))

    @property
    def capacity(self) -> int:
        """How much fits, in `capacity_unit`."""
        return self._remover.limit

    @property
    def capacity_unit(self) -> str:
        """What `capacity` counts."""
        return self._remover.unit

    @property
    def storage_unit(self) -> str:
        """What an item is."""
        return str(self._options.get("storage_unit", "timesteps"))

    @property
    def observation_spec(self) -> Nest:
        """A nest of :class:`FieldSpec`, with limits and finite sets where the data's source had them."""
        return self.spec.observation

    @property
    def action_spec(self) -> Nest:
        """A nest of :class:`FieldSpec`, likewise."""
        return self.spec.action

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
        check_limits: bool = False,
    ) -> np.ndarray:
        """Store an episode, explicit transitions, or a list of them.

        Explicit transitions of one source follow one another in the order in which they come, up to
        one that ends its episode (`is_done`).  They may also say which episode they are of: a
        transition with another `episode_id` or `agent_index` than the one before it, or with a `t` that
        is 0 or not the one before plus 1, begins an episode.  The earlier one is cut there, as a
        recording that stopped: its last transition keeps `is_done` 0 and goes on to nothing.  What only
        one of the two says decides nothing.  A buffer of whole episodes refuses one that is cut, or
        whose first `t` is above 0; elsewhere what there is of an episode is as good as all of it.

        Args:
            data: an Episode (its N rows) or an EpisodeBatch; a Transition or mapping with observation, action, reward,
                next_observation and optionally discount, extras, is_done (0, 1, 2) or
                terminated/truncated, `episode_id` and `agent_index` (integers or strings), `t` (integers
                from 0 up), of B transitions or of one without the leading axis; a list of
                any of these.  Empty input (None, [], {}, "") does nothing.
            source_id: where the data come from, a non-negative integer, or one for each
                transition (for each element of a list).
            priorities: one for each item added, for a prioritized buffer; the largest there
                has been unless given.
            consecutive: whether explicit transitions of one source follow one another, which n-step
                returns, sequences and hindsight go by; False where each stands alone, as
                :meth:`generate_hindsight`'s do.
            check_limits: refuse values outside the spec's limits and finite sets too, as :meth:`check` does.

        Returns:
            Keys ``[items] uint64`` of the items added, in order; an item of several transitions has
            the first one's.  More explicit transitions than fit: only the newest stay.

        Raises:
            SpecMismatch: fields, shapes or dtypes differ from the spec, there is a leaf that the spec
                lacks, an id is of the wrong kind, or a value is outside its limits and these are checked;
                nothing was added.
            EpisodeError: an episode (or another item) is longer than the capacity, or single
                transitions or parts of episodes were given to a buffer of episodes; nothing was added.
        """
        with self._lock:
            return adding.store(self, adding.prepare(self, data, source_id, priorities, consecutive, check_limits))

    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> np.ndarray:
        """Set the priorities of sampled items, as a rule to the size of their TD errors.

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

    def check(self, data: Any, *, check_limits: bool = True) -> None:
        """Raise unless :meth:`add` would take `data`; nothing is added.

        Args:
            data: as for :meth:`add`.
            check_limits: compare values with the spec's limits and finite sets too.

        Raises:
            SpecMismatch, EpisodeError, TypeError: as for :meth:`add`.
        """
        adding.prepare(self, data, check_limits=check_limits)

    def resize(self, capacity: int) -> None:
        """Change the capacity, keeping the newest that fits; a reservoir keeps a fair choice.

        Raises:
            ReplayError: a reservoir is to grow that has let items go already.
        """
        with self._lock:
            self._touch()
            self._contents.resize(integer("capacity", capacity, 0))

    def clear(self) -> None:
        """Drop everything held; keys go on counting."""
        with self._lock:
            self._touch()
            self._contents.clear()

    def stats(self, debug: bool = False) -> dict[str, Any]:
        """Counts and sizes, as plain numbers.

        ``num_rows``, ``num_items`` and ``num_transitions`` held; ``capacity`` and its unit; ``added``,
        ``evicted`` and ``sampled`` items so far; ``bytes`` of all columns and ``row_bytes`` of one
        row's data.

        Args:
            debug: with ``evicted_hits``, how often the last 1000 items that left had been sampled
                (``count``, ``mean``, ``std``, ``quantiles``), where the buffer counts that: with items
                of several transitions, or if made with ``count_hits=True``; else None.
        """
        index, contents = self._hindsight, self._contents
        with self._lock:
            hits = {} if contents.hits is None else contents.hits.summary()
            return {
                **({"evicted_hits": hits or None} if debug else {}),
                "kind": self.kind,
                "num_rows": self.num_rows,
                "num_items": len(self),
                "num_transitions": contents.num_transitions,
                "capacity": self.capacity,
                "capacity_unit": self.capacity_unit,
                "added": contents.added,
                "evicted": contents.evicted,
                "sampled": self._drawing.sampled,
                "bytes": contents.nbytes + (0 if index is None else index.episodes.nbytes),
                "row_bytes": self.spec.row_bytes,
            }

    def _forked(self, number: int) -> None:
        """This is a child now: see core/forks.py."""
        self._lock = threading.RLock()
        self._drawing.lock = self._lock
        self._seed = forks.fork_seed(self._seed, number)
        self._rng = np.random.default_rng(self._seed)
        self._contents.reseed(self._seed)

    def check_valid(self) -> None:
        """Assert that all structures agree; for tests."""
        self._contents.check_valid()
