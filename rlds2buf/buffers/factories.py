"""The factories: one for each combination that has a name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.contents.contents import Contents
from rlds2buf.buffers.contents.fifo import FifoContents
from rlds2buf.buffers.contents.reservoir import ReservoirContents, ReservoirSampler, log_slots
from rlds2buf.buffers.disk.live_folder import LiveFolder, check_durability
from rlds2buf.buffers.engine import Engine
from rlds2buf.buffers.first_add import EngineToBe
from rlds2buf.buffers.other_names import well_named
from rlds2buf.buffers.read.hindsight import Hindsight
from rlds2buf.buffers.read.offsets import Layout
from rlds2buf.buffers.read.view import View, plain_view
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.buffers.select.prioritized import PrioritizedSampler
from rlds2buf.buffers.select.removers import Fifo, Reservoir, WholeFifo
from rlds2buf.buffers.select.samplers import Sampler, UniformSampler
from rlds2buf.buffers.storage_units import DEFAULT_CAPACITY, Units
from rlds2buf.core.arguments import integer
from rlds2buf.core.room import room_for
from rlds2buf.core.spaces import step_spec
from rlds2buf.core.spec import StepSpec
from rlds2buf.views.goals import GoalMap

__all__ = [
    "MAKERS",
    "make_circular",
    "make_hindsight",
    "make_hindsight_prioritized",
    "make_prioritized",
    "make_reservoir",
]

_FIRST_SLOTS = 1024


@well_named
def make_circular(
    spec: StepSpec | tuple[Any, Any] | None = None,
    capacity: int = DEFAULT_CAPACITY,
    *,
    capacity_unit: str = "rows",
    storage_unit: str = "timesteps",
    item_length: int | None = None,
    count_hits: bool = False,
    seed: int | None = None,
    directory: str | Path | None = None,
    durability: str = "save",
    view: Mapping[str, Any] | None = None,
) -> Buffer:
    """A buffer that keeps the newest and samples uniformly.

    Args:
        spec: of the rows, from ``source.spec`` or ``spec_of(episode)``; or a pair
            ``(observation space, action space)`` of Gymnasium's, of one environment: rewards are float32 then,
            and limits and finite sets are kept in ``buffer.spec``. Byte strings with ``FieldSpec.image`` are
            pictures kept as files, and decoded when sampled; arrays whose shape varies (None) are kept as they are.
            None: that of what is added first, and until then there is nothing to sample or save.
        capacity: how much it holds, at least 1 (MATLAB takes a MaxLength of 0 for buffers that hold nothing).
        capacity_unit: what `capacity` counts: ``"rows"`` (an episode of N rows takes N, an explicit
            transition one), ``"transitions"`` or ``"episodes"`` (these two grow their storage as
            needed; ``"episodes"`` takes whole episodes only), or ``"items"``.
        storage_unit: what an item is, in RLlib's words. ``"timesteps"``: a transition. Or several
            of them, which are drawn and leave as one, whole: ``"sequences"`` of at most `item_length`
            of an episode, ``"episodes"``, or ``"fragments"``, all that one Episode or one batch of
            explicit transitions holds.
        item_length: transitions of a sequence.
        count_hits: count how often each transition is sampled, for ``stats(debug=True)``; 4 bytes per
            row. Draws of items of several transitions are always counted.
        seed: of the draws.
        directory: keep the columns in files there (created, must be empty), for buffers larger
            than memory. ``buffer.save()`` makes them a saved buffer, and
            ``load_buffer(directory, writable=True)`` goes on with it. One process writes it at a time; a
            fork of that one doesn't.
        durability: of a buffer with a `directory`. ``"save"``: what the last ``save()`` left survives a
            SIGKILL at any moment: whoever opens the folder then gets it. ``"none"``: after a kill
            between a change and the next save nothing can be loaded; large full buffers are filled
            up to twice as fast.
        view: what ``sample`` gives unless told otherwise: any of its `n_step`, `gamma`, `sequence_length`,
            `burn_in`, `initial_state`, `state`, `decode`, `offsets`, `fps`, `stack`, `context` and `pad`.

    Returns:
        An empty Buffer.

    Raises:
        SpecMismatch: a field is of a kind that can't be stored.
        SnapshotExists: `directory` holds something already.
        TooLarge: a `capacity` that memory has no room for.
        ValueError: an argument is out of range.
        TypeError: an argument is of the wrong type, or a space has no fixed shape.

    >>> import numpy as np
    >>> from rlds2buf import Episode, spec_of
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5), discount=np.ones(5))
    >>> buffer = make_circular(spec_of(ep), 100, seed=0)
    >>> buffer.add(ep)
    array([0, 1, 2, 3], dtype=uint64)
    >>> batch = buffer.sample(2)
    >>> (batch.data.next_observation - batch.data.observation).tolist()
    [1.0, 1.0]
    >>> make_circular(capacity=100_000)
    <Buffer: circular, 0 transitions, capacity 100,000 rows, without a spec until something is added>
    """
    return _fifo(
        "circular",
        spec,
        capacity,
        capacity_unit,
        UniformSampler,
        units=Units(storage_unit, item_length, count_hits),
        seed=seed,
        directory=directory,
        durability=durability,
        view=view,
    )


@well_named
def make_prioritized(
    spec: StepSpec | tuple[Any, Any] | None = None,
    capacity: int = DEFAULT_CAPACITY,
    *,
    alpha: float = 0.6,
    beta: float = 0.4,
    beta_final: float = 1.0,
    beta_steps: int | None = None,
    eps: float = 1e-6,
    normalise: str = "batch",
    stratified: bool = False,
    capacity_unit: str = "rows",
    storage_unit: str = "timesteps",
    item_length: int | None = None,
    count_hits: bool = False,
    seed: int | None = None,
    directory: str | Path | None = None,
    durability: str = "save",
    view: Mapping[str, Any] | None = None,
) -> Buffer:
    """A buffer that keeps the newest and samples by priority (Schaul et al. 2015).

    New transitions come in at the largest priority there has been (at first 1); a learner sets
    them with ``update_priorities(batch.info.key, abs(td_error))``.

    Args:
        spec, capacity, capacity_unit, storage_unit, item_length, count_hits, seed, directory, durability, view:
            as for :func:`make_circular`. An item has one priority, however many transitions it has.
        alpha: exponent of the priorities, in [0, 1]; 0 samples uniformly.
        beta: exponent of the importance weights at first, in [0, 1].
        beta_final: where it ends.
        beta_steps: after how many ``update_priorities`` calls; None stays at `beta`.
        eps: added to every updated priority, so that none is 0.
        normalise: divide weights by the largest of the ``"batch"`` (the paper's) or of the whole
            ``"buffer"``.
        stratified: draw one item from each of B equal parts of the priorities' total, as the
            paper's implementation does, instead of independently.

    Returns:
        An empty Buffer.

    Raises:
        SpecMismatch, SnapshotExists, ValueError: as for :func:`make_circular`.

    >>> import numpy as np
    >>> from rlds2buf import Episode, spec_of
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5), discount=np.ones(5))
    >>> buffer = make_prioritized(spec_of(ep), 100, alpha=1.0, eps=0.0, seed=0)
    >>> keys = buffer.add(ep)
    >>> buffer.update_priorities(keys, [0.0, 0.0, 0.0, 2.0])
    array([], dtype=uint64)
    >>> batch = buffer.sample(3)
    >>> batch.data.observation.tolist(), batch.info.weight.tolist()
    ([3.0, 3.0, 3.0], [1.0, 1.0, 1.0])
    """
    options: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta,
        "beta_final": beta_final,
        "beta_steps": beta_steps,
        "eps": eps,
        "normalise": normalise,
        "stratified": stratified,
    }

    return _fifo(
        "prioritized",
        spec,
        capacity,
        capacity_unit,
        functools.partial(PrioritizedSampler, **options),
        units=Units(storage_unit, item_length, count_hits),
        options=options,
        seed=seed,
        directory=directory,
        durability=durability,
        view=view,
    )


@well_named
def make_hindsight(
    spec: StepSpec | tuple[Any, Any] | None = None,
    capacity: int = DEFAULT_CAPACITY,
    *,
    goals: Sequence[GoalMap],
    reward_fn: Callable[..., Any],
    done_fn: Callable[..., Any],
    strategy: str = "final",
    num_goals: int = 4,
    include_current: bool = True,
    vectorized: bool = True,
    while_sampling: bool = True,
    capacity_unit: str = "rows",
    seed: int | None = None,
    directory: str | Path | None = None,
    durability: str = "save",
    view: Mapping[str, Any] | None = None,
) -> Buffer:
    """A buffer whose transitions are also sampled as if what was reached later had been the goal.

    Hindsight experience replay (Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495).  Of
    the transitions that ``sample`` draws, each gets a new goal with probability
    ``num_goals / (num_goals + 1)``: the desired elements of its observation and its next observation
    become what the achieved elements of the next observation of step k of its episode were, k as
    the strategy says.  Reward and end are judged anew: where the new goal is met, `is_done` is 1 and
    the discount 0; where it isn't, a step that terminated goes on, and one that was cut stays cut.
    The others come as stored, and so does all that ``get`` and ``all`` give; the rows never change.

    The other way of use is to add new transitions: make the buffer with ``while_sampling=False``, and
    after each episode of n steps ``buffer.add(buffer.generate_hindsight(n), consecutive=False)``.

    A final row that the data did not record (``metadata["placeholder_final_row"]``) is never taken
    for something that was reached, and the transition into it keeps its goal.  With `n_step`, all
    steps of a path get the same goal and the path ends where that is met.

    Args:
        spec, capacity, capacity_unit, seed, directory, durability, view: as for :func:`make_circular`.
        goals: conditions (:class:`GoalMap`), all replaced from the same step.
        reward_fn: ``f(observation, action, next_observation)`` of nests ``[B, ...]``, giving rewards
            ``[B]``. It must not change its arguments, and sees the whole batch: what it says of
            transitions that keep their goal is passed over.
        done_fn: likewise, whether each transition reached its goal, ``[B] bool``.
        strategy: ``"final"``: k is the episode's last step (so far); ``"episode"``: any step;
            ``"future"``: any step from the transition itself on.
        num_goals: new goals for each stored one; with ``"final"``, ``generate_hindsight`` has one.
        include_current: whether ``"future"`` may pick the transition itself, an immediate success.
        vectorized: False if the functions take single transitions and give a number; slower.
        while_sampling: whether sampled transitions get new goals.

    Returns:
        An empty Buffer.

    Raises:
        SpecMismatch, SnapshotExists, ValueError: as for :func:`make_circular`; also where goals don't
            fit the observation.

    >>> import numpy as np
    >>> from rlds2buf import Episode, GoalMap, spec_of
    >>> seen = {"achieved_goal": np.arange(4.0)[:, None], "desired_goal": np.full((4, 1), 9.0)}
    >>> ep = Episode(observation=seen, action=np.zeros(4), reward=np.zeros(4), discount=np.ones(4))
    >>> def met(observation, action, after):
    ...     return (after["achieved_goal"] == after["desired_goal"])[:, 0]
    >>> buffer = make_hindsight(spec_of(ep), 100, goals=[GoalMap("achieved_goal", "desired_goal")],
    ...                         reward_fn=met, done_fn=met, seed=0)
    >>> keys = buffer.add(ep)
    >>> buffer.generate_hindsight(3).reward.tolist()
    [0.0, 0.0, 1.0]
    >>> sorted(set(buffer.sample(50).data.observation["desired_goal"][:, 0].tolist()))
    [3.0, 9.0]
    """
    hindsight = functools.partial(
        Hindsight,
        goals=goals,
        reward_fn=reward_fn,
        done_fn=done_fn,
        strategy=strategy,
        num_goals=num_goals,
        include_current=include_current,
        vectorized=vectorized,
        while_sampling=while_sampling,
    )
    return _fifo(
        "hindsight",
        spec,
        capacity,
        capacity_unit,
        UniformSampler,
        seed=seed,
        directory=directory,
        durability=durability,
        view=view,
        hindsight=hindsight,
    )


@well_named
def make_hindsight_prioritized(
    spec: StepSpec | tuple[Any, Any] | None = None,
    capacity: int = DEFAULT_CAPACITY,
    *,
    goals: Sequence[GoalMap],
    reward_fn: Callable[..., Any],
    done_fn: Callable[..., Any],
    strategy: str = "final",
    num_goals: int = 4,
    include_current: bool = True,
    vectorized: bool = True,
    while_sampling: bool = True,
    alpha: float = 0.6,
    beta: float = 0.4,
    beta_final: float = 1.0,
    beta_steps: int | None = None,
    eps: float = 1e-6,
    normalise: str = "batch",
    stratified: bool = False,
    capacity_unit: str = "rows",
    seed: int | None = None,
    directory: str | Path | None = None,
    durability: str = "save",
    view: Mapping[str, Any] | None = None,
) -> Buffer:
    """A buffer that samples by priority, and gives what it draws goals in hindsight.

    A transition has one priority, whatever goal it is seen with.

    Args:
        goals, reward_fn, done_fn, strategy, num_goals, include_current, vectorized, while_sampling:
            as for :func:`make_hindsight`.
        alpha, beta, beta_final, beta_steps, eps, normalise, stratified: as for :func:`make_prioritized`.
        spec, capacity, capacity_unit, seed, directory, durability, view: as for :func:`make_circular`.

    Returns:
        An empty Buffer.

    Raises:
        SpecMismatch, SnapshotExists, ValueError: as for :func:`make_hindsight`.

    >>> import numpy as np
    >>> from rlds2buf import Episode, GoalMap, spec_of
    >>> ep = Episode(observation=np.zeros((4, 3)), action=np.zeros(4), reward=np.zeros(4), discount=np.ones(4))
    >>> def met(observation, action, after):
    ...     return after[:, 1] == after[:, 2]
    >>> buffer = make_hindsight_prioritized(spec_of(ep), 100, goals=[GoalMap(((), [1]), ((), [2]))],
    ...                                     reward_fn=met, done_fn=met, strategy="future", alpha=1.0,
    ...                                     seed=0)
    >>> keys = buffer.add(ep, priorities=[1.0, 2.0, 1.0])
    >>> float(buffer.sample(8).info.probability.max())
    0.5
    """
    hindsight = functools.partial(
        Hindsight,
        goals=goals,
        reward_fn=reward_fn,
        done_fn=done_fn,
        strategy=strategy,
        num_goals=num_goals,
        include_current=include_current,
        vectorized=vectorized,
        while_sampling=while_sampling,
    )
    priorities: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta,
        "beta_final": beta_final,
        "beta_steps": beta_steps,
        "eps": eps,
        "normalise": normalise,
        "stratified": stratified,
    }
    return _fifo(
        "hindsight_prioritized",
        spec,
        capacity,
        capacity_unit,
        functools.partial(PrioritizedSampler, **priorities),
        options=priorities,
        seed=seed,
        directory=directory,
        durability=durability,
        view=view,
        hindsight=hindsight,
    )


@well_named
def make_reservoir(
    spec: StepSpec | tuple[Any, Any] | None = None,
    capacity: int = DEFAULT_CAPACITY,
    *,
    capacity_unit: str = "items",
    storage_unit: str = "timesteps",
    item_length: int | None = None,
    count_hits: bool = False,
    seed: int | None = None,
    directory: str | Path | None = None,
    durability: str = "save",
    view: Mapping[str, Any] | None = None,
) -> Buffer:
    """A buffer that holds a uniform sample of everything ever added, and samples that uniformly.

    Algorithm R (Vitter 1985, https://doi.org/10.1145/3147.3165): after n items each of them is held
    with probability ``min(1, capacity / n)``, the first as well as the last, and so is every set of
    `capacity` of them.  ``add`` gives keys for all items, also those that are not held (any more).

    A transition is held by itself, with its own next observation.  Its n-step returns and sequences
    end where the transition that followed it is not held.

    The capacity counts items.  A bound on the rows of items of several transitions could only be
    kept by preferring short ones; they take as many rows as they have, and memory grows to that.

    Args:
        spec, storage_unit, item_length, count_hits, seed, directory, durability, view: as for
            :func:`make_circular`. (A log of the rows has a quarter more of them than is held.)
        capacity: how many items it holds, at least 1.
        capacity_unit: ``"items"``; for ``"timesteps"`` also ``"rows"`` or ``"transitions"``, and for
            ``"episodes"`` also ``"episodes"``, which mean the same.

    Returns:
        An empty Buffer.

    Raises:
        SpecMismatch, SnapshotExists, ValueError: as for :func:`make_circular`.

    >>> import numpy as np
    >>> from rlds2buf import Episode, spec_of
    >>> ep = Episode(observation=np.arange(101.0), action=np.zeros(101), reward=np.ones(101), discount=np.ones(101))
    >>> buffer = make_reservoir(spec_of(ep), 10, seed=0)
    >>> len(buffer.add(ep)), len(buffer)
    (100, 10)
    """
    units = Units(storage_unit, item_length, count_hits)
    units.check_capacity_unit(capacity_unit)
    if units.whole and capacity_unit in ("rows", "transitions"):
        raise ValueError(f"a reservoir of {storage_unit} has room for so many items, not {capacity_unit}")
    if not units.whole and capacity_unit == "episodes":
        raise ValueError("a reservoir of timesteps can't count episodes; use storage_unit='episodes'")
    capacity = integer("capacity", capacity, 1)
    return _make(
        "reservoir",
        spec,
        log_slots(capacity),
        Reservoir(capacity, capacity_unit, seed=seed),
        ReservoirSampler,
        contents=ReservoirContents,
        units=units,
        apart=True,
        seed=seed,
        directory=directory,
        durability=durability,
        view=view,
    )


def _fifo(
    kind: str,
    spec: StepSpec | tuple[Any, Any] | None,
    capacity: int,
    capacity_unit: str,
    sampler: Callable[[int], Sampler],
    *,
    units: Units | None = None,
    **others: Any,
) -> Buffer:
    """A buffer that keeps the newest; `others` are as for :func:`_make`."""
    units = units or Units()
    units.check_capacity_unit(capacity_unit)
    capacity = integer("capacity", capacity, 1)
    remover = WholeFifo(capacity, capacity_unit) if units.whole else Fifo(capacity, capacity_unit)
    slots = capacity if capacity_unit == "rows" else min(capacity, _FIRST_SLOTS)
    return _make(kind, spec, slots, remover, sampler, units=units, **others)


def _make(
    kind: str,
    spec: StepSpec | tuple[Any, Any] | None,
    slots: int,
    remover: Any,
    sampler: Callable[[int], Sampler],
    *,
    contents: Callable[[RowStore, Any, Any], Contents] = FifoContents,
    units: Units,
    apart: bool = False,
    options: Mapping[str, Any] | None = None,
    seed: int | None,
    directory: str | Path | None,
    durability: str,
    view: Mapping[str, Any] | None,
    hindsight: Callable[[StepSpec], Hindsight] | None = None,
) -> Buffer:
    """A buffer of these parts; whatever is wrong with an argument is found before a folder is made.

    Args:
        kind: what it is called.
        spec: of its rows, or None: it waits for what is added first.
        slots: rows of the store at first.
        remover: which rows leave.
        sampler: makes one for so many slots.
        contents: puts store, remover and sampler together.
        apart: whether each item is stored by itself, for it leaves by itself.
        options: of the sampler, as the factory was given them.
        hindsight: makes what puts in goals.
        units, seed, directory, durability, view: as the factories have them.
    """
    check_durability(durability)
    seen = View.of(view, whole=units.whole)
    home: LiveFolder | None = None

    def engine_of(spec: StepSpec) -> Engine:
        nonlocal home
        if seen.windows is not None:
            Layout(seen.windows, spec)  # the data have what it names
        goals = None if hindsight is None else hindsight(spec)
        with room_for(f"capacity: {slots:,} rows", slots * spec.row_bytes):
            drawn = sampler(slots)
            if directory is not None and home is None:
                home = LiveFolder(Path(directory), durability=durability)
            held = contents(RowStore(spec, slots, home=home), remover, drawn)
            units.prepare(held)
        given = {**({} if goals is None else goals.options()), **(options or {}), **units.options()}
        return Engine(
            spec,
            held,
            kind=kind,
            make=MAKERS[kind],
            intake=units.intake(spec, apart=apart),
            options={**given, **({"view": plain_view(view)} if view else {})},
            view=seen,
            seed=seed,
            home=home,
            hindsight=goals,
        )

    if spec is not None:
        return Buffer(engine_of(step_spec(spec)))
    sampler(1)  # which says what is wrong with its options
    if directory is not None:
        home = LiveFolder(Path(directory), durability=durability)

    def become(engine: Engine) -> None:
        buffer.engine = engine

    waiting = EngineToBe(
        engine_of,
        become,
        kind=kind,
        capacity=remover.limit,
        capacity_unit=remover.unit,
        storage_unit=units.storage_unit,
    )
    buffer = Buffer(waiting)
    return buffer


MAKERS: Final[dict[str, Callable[..., Buffer]]] = {
    "circular": make_circular,
    "hindsight": make_hindsight,
    "hindsight_prioritized": make_hindsight_prioritized,
    "prioritized": make_prioritized,
    "reservoir": make_reservoir,
}
"""The factories of single buffers, by the kind that a buffer says it is."""
