"""The replay buffer: storage, remover, sampler and view in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from rlds2buf.buffers.copies import parts_of, require_names, revived
from rlds2buf.buffers.disk.snapshot import save_buffer
from rlds2buf.buffers.engine import Engine, Request
from rlds2buf.buffers.epochs import Epochs, Plan
from rlds2buf.buffers.finishing import OPTIONS as FINISHING
from rlds2buf.buffers.finishing import finisher
from rlds2buf.buffers.first_add import EngineToBe, begun
from rlds2buf.buffers.keys import as_keys
from rlds2buf.buffers.read.hindsight import Hindsight
from rlds2buf.buffers.read.prefetch import Batches
from rlds2buf.buffers.select.prioritized import checked_priorities
from rlds2buf.buffers.select.samplers import item_slots, transition_slots
from rlds2buf.buffers.vector_steps import add_vector_step
from rlds2buf.core import nest, shown
from rlds2buf.core.arguments import choice, integer
from rlds2buf.core.closed import Closed
from rlds2buf.core.nest import Nest
from rlds2buf.core.sample import Sample, Trajectory, Transition, Windows
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import ReplayError, SnapshotExists
from rlds2buf.views.goals import GoalMap

__all__ = ["Buffer"]

_T = TypeVar("_T")


class _OfGoals(Generic[_T]):
    """An attribute that hindsight buffers have: what their factory was given by that name; it can be set.

    A value is checked as the factory's is, and what was drawn before is not changed.
    """

    def __init__(self, read: Callable[[Hindsight], _T], doc: str) -> None:
        self._read = read
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, buffer: None, owner: type) -> _OfGoals[_T]: ...
    @overload
    def __get__(self, buffer: Buffer, owner: type) -> _T: ...
    def __get__(self, buffer: Buffer | None, owner: type) -> _OfGoals[_T] | _T:
        return self if buffer is None else self._read(self._of(buffer))

    def __set__(self, buffer: Buffer, value: Any) -> None:
        with buffer.engine.lock:
            self._of(buffer)
            buffer.engine.change_goals(self._name, value)

    def _of(self, buffer: Buffer) -> Hindsight:
        if buffer.engine.hindsight is None:
            raise AttributeError(
                f"a {buffer.kind} buffer knows no goals and has no {self._name}; make_hindsight makes one"
            )
        return buffer.engine.hindsight


class Buffer(Closed):
    """Rows of logged or fresh experience, sampled as transitions, n-step transitions or sequences.

    Made by the ``make_*`` functions.  A row is stored once; an episode of N rows gives N-1
    transitions; an explicit transition takes one row and keeps its own next observation beside it.
    The oldest rows leave first, but for a reservoir.  Nothing that is sampled crosses the end of an
    episode, a data source or the newest row.  All methods may be called from several threads.

    An item, what is drawn, counted and has a priority, is a transition unless the buffer was made
    with another `storage_unit`.

    Attributes:
        engine: what is inside, for the modules of this package; no part of what versions keep.
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
    engine: Engine

    goals = _OfGoals[tuple[GoalMap, ...]](
        lambda goals: tuple(goals.maps), "Which elements of the observation are replaced, and by which."
    )
    reward_fn = _OfGoals[Callable[..., Any]](
        lambda goals: goals.given["reward_fn"],
        "Judges transitions with new goals: ``f(observation, action, next_observation)``, giving rewards ``[B]``.",
    )
    done_fn = _OfGoals[Callable[..., Any]](
        lambda goals: goals.given["done_fn"], "Likewise, whether each reached its goal, ``[B] bool``."
    )
    strategy = _OfGoals[str](lambda goals: goals.strategy, '``"final"``, ``"episode"`` or ``"future"``.')
    num_goals = _OfGoals[int](lambda goals: goals.num_goals, "New goals for each stored one.")
    include_current = _OfGoals[bool](
        lambda goals: goals.include_current, 'Whether ``"future"`` may pick the transition itself.'
    )
    vectorized = _OfGoals[bool](lambda goals: goals.vectorized, "Whether the functions take batches.")
    while_sampling = _OfGoals[bool](lambda goals: goals.while_sampling, "Whether sampled transitions get new goals.")

    def __init__(self, engine: Engine | EngineToBe) -> None:
        self.engine = cast(Engine, engine)  # as long as there is no spec, one that says so whatever it is asked

    @property
    def spec(self) -> StepSpec:
        """Of the rows."""
        return self.engine.spec

    @property
    def kind(self) -> str:
        """Which factory made it."""
        return self.engine.kind

    @property
    def provenance(self) -> dict[str, Any]:
        """What was saved with it, and will be."""
        return self.engine.provenance

    @provenance.setter
    def provenance(self, value: Mapping[str, Any]) -> None:
        self.engine.provenance = dict(value)

    def __repr__(self) -> str:
        items = "transitions" if self.storage_unit == "timesteps" else self.storage_unit
        held = f"{len(self):,} {items}, capacity {self.capacity:,} {self.capacity_unit}"
        if isinstance(self.engine, EngineToBe):
            return f"<Buffer: {self.kind}, {held}, without a spec until something is added>"
        return shown.aligned(f"<Buffer: {self.kind}, {held}>", shown.spec_rows(self.spec))

    @property
    def capacity(self) -> int:
        """How much fits, in `capacity_unit`."""
        return self.engine.capacity

    @property
    def capacity_unit(self) -> str:
        """What `capacity` counts."""
        return self.engine.capacity_unit

    @property
    def storage_unit(self) -> str:
        """What an item is."""
        return self.engine.storage_unit

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
        return self.engine.contents.num_rows

    def __len__(self) -> int:
        return self.engine.sampler.count

    def add(
        self,
        data: Any,
        *,
        source_id: int | Sequence[int] | np.ndarray = 0,
        priorities: npt.ArrayLike | None = None,
        consecutive: bool = True,
        check_limits: bool = False,
        autoreset: Any = None,
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
            data: an Episode (its N rows); an EpisodeBatch, which is the same as its episodes one after the other, and
                faster; a Transition or mapping with observation, action, reward,
                next_observation and optionally discount, extras, is_done (0, 1, 2) or
                terminated/truncated, `episode_id` and `agent_index` (integers or strings), `t` (integers
                from 0 up), of B transitions or of one without the leading axis; a list of
                any of these.  Empty input (None, [], {}, "") does nothing.
            source_id: where the data come from, a non-negative integer, or one for each
                transition (for each episode of a batch, for each element of a list).
            priorities: one for each item added, for a prioritized buffer; the largest there
                has been unless given.
            consecutive: whether explicit transitions of one source follow one another, which n-step
                returns, sequences and hindsight go by; False where each stands alone, as
                :meth:`generate_hindsight`'s do.
            check_limits: refuse values outside the spec's limits and finite sets too, as :meth:`check` does.
            autoreset: the data are what one step of a vector environment of Gymnasium's gave, a transition of each
                environment, and this is its ``AutoresetMode``, or one of ``"next_step"`` (its
                default), ``"same_step"`` and ``"disabled"``. Each environment is a source: the first one
                `source_id`, unless that has a number for each. In next-step mode, the step behind the end of an
                episode only resets, and its row is passed over, unless it starts from another observation
                than the episode ended with: then the environment was reset by hand. In same-step mode, the next
                observation of an episode's last transition is the next episode's first one; what was
                seen last is in the step's infos, given as ``data["info"]``, and is put in its place.

        Returns:
            Keys ``[items] uint64`` of the items added, in order; an item of several transitions has
            the first one's.  More explicit transitions than fit: only the newest stay.

        Raises:
            SpecMismatch: fields, shapes or dtypes differ from the spec, there is a leaf that the spec
                lacks, an id is of the wrong kind, or a value is outside its limits and these are checked;
                nothing was added.
            EpisodeError: an episode (or another item) is longer than the capacity, or single
                transitions or parts of episodes were given to a buffer of episodes; nothing was added. In all these
                cases, if one episode of an EpisodeBatch is wrong, its `episode` says which, and those before it
                were added.
        """
        engine = self.engine
        with engine.lock:
            if autoreset is not None:
                return add_vector_step(begun(engine, data), data, autoreset, source_id, priorities, check_limits)
            return engine.add(engine.prepare(data, source_id, priorities, consecutive, check_limits, partly=True))

    def sample(
        self,
        batch_size: int,
        *,
        n_step: int | Sequence[int] | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
        beta: float | None = None,
        source_id: int | None = None,
        replace: bool = True,
        concatenate: bool = False,
        decode: bool | None = None,
        to: str | None = None,
        device: Any = None,
        transform: Callable[[Any], Any] | Sequence[Callable[[Any], Any]] | None = None,
        normalize: Any = None,
        offsets: Mapping[str, Any] | None = None,
        fps: float | None = None,
        stack: int | None = None,
        context: int | None = None,
        pad: str | None = None,
    ) -> Sample:
        """Draw a batch.

        A buffer whose items are sequences, episodes or fragments gives whole ones, as a Trajectory
        as long as the longest of them, unless `n_step` or `sequence_length` is given: then what
        starts at a random step of each item, and ends with it at the latest.

        Args:
            batch_size: B, how many items.
            n_step: horizon of the transitions; a shorter one is used where an episode, a source or
                the stored data end, and ``steps`` and ``bootstrap_discount`` say so. Two numbers
                ``(least, most)``: each transition has one of its own, drawn uniformly, both included.
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
            concatenate: give whole items one behind the other, as a Transition of all their steps;
                `info` has one entry for each step.
            decode: whether pictures that are kept as files (fields with ``FieldSpec.image``) come as
                pixels, ``[B, height, width, channels]``, or as they are, ``[B] object`` of bytes; None
                does as the buffer's `view` says, and decodes unless told otherwise. Arrays of varying
                shape come as ``[B] object`` of arrays.
            to, device: give tensors, of ``"torch"``, ``"jax"`` or ``"tf"``, on this device, as
                :meth:`Sample.to <rlds2buf.Sample.to>` does; a device alone is one of PyTorch.
            transform: a function that is called with `data`, of arrays, and gives what stands in its place, before
                it becomes tensors; or several, in turn. :class:`~rlds2buf.Resize`,
                :class:`~rlds2buf.RandomCrop` and :class:`~rlds2buf.RandomShift` are such functions.
            normalize: statistics, by which numbers are brought to one scale before that, or a
                :class:`~rlds2buf.Normalizer`, which says of which fields and how.
            offsets: for :class:`~rlds2buf.core.sample.Windows`: which steps around each drawn one to show, of
                which field, for example ``{"observation": [-1, 0], "action": range(16)}``; of one field of a
                nest as ``"observation/image"``. Names are those of fields (`extras`, `next_observation` and
                `is_done` too), ``"return_to_go"`` and ``"time_step"``. Never of another episode or
                source: what is missing is padding, as `pad` says, and True in ``is_pad``. ``{}`` shows none.
            fps: steps per second: `offsets` are seconds then, multiples of ``1 / fps`` (to 0.1 ms).
            stack: so many frames: `offsets` of the `observation` and the `next_observation` from
                ``1 - stack`` to 0, the newest frame last. 0 for none.
            context: so many steps, what a decision transformer (Chen et al. 2021) takes: `offsets` of
                observation, action, reward, return_to_go and time_step from ``1 - context`` to 0. 0 for none.
            pad: what stands where an episode has no such step: ``"edge"``, the nearest one it has, or
                ``"zero"``, before `normalize` and `transform`.

        Returns:
            Sample: `data` a Transition, Trajectory or Windows, `info` with keys and probabilities.

        Raises:
            MissingDependency: the framework is not installed.
            NotEnoughItems: the buffer is empty, or without replacement smaller than `batch_size`; or all of its
                episodes are too short for some of the `offsets`.
            ReplayError: a picture is damaged.
            TooLarge: the batch does not fit into the memory that is free.
            ValueError: an argument is out of range, or does not fit the data, as `offsets` of what they don't have.
            TypeError: a transform can't be called.

        >>> import numpy as np
        >>> from rlds2buf import Episode, make_circular, spec_of
        >>> ep = Episode(observation=np.arange(6), action=np.arange(6) * 10, reward=np.ones(6), discount=np.ones(6))
        >>> buffer = make_circular(spec_of(ep), 100, seed=0)
        >>> keys = buffer.add(ep)
        >>> batch = buffer.sample(3, offsets={"observation": [-1, 0], "action": range(3)}).data
        >>> batch.observation.tolist()
        [[2, 3], [0, 1], [0, 0]]
        >>> batch.action.tolist()
        [[30, 40, 40], [10, 20, 30], [0, 10, 20]]
        >>> batch.is_pad["action"][0].tolist(), batch.is_pad["observation"][2].tolist()
        ([False, False, True], [True, False])
        """
        engine = self.engine
        view = engine.view.changed(
            n_step=n_step,
            gamma=gamma,
            sequence_length=sequence_length,
            burn_in=burn_in,
            initial_state=initial_state,
            state=state,
            decode=decode,
            offsets=offsets,
            fps=fps,
            stack=stack,
            context=context,
            pad=pad,
        )
        sample = engine.draw(engine.rng, batch_size, Request(view, beta, source_id, replace, concatenate))
        if to is None and device is None and transform is None and normalize is None:
            return sample
        finished: Sample = finisher(engine.spec, to=to, device=device, transform=transform, normalize=normalize)(sample)
        return finished

    def sample_many(self, count: int, batch_size: int, **options: Any) -> list[Sample]:
        """Draw several batches at once: the same ones as as many calls of :meth:`sample`, in less time.

        Args:
            count: how many.
            batch_size: B, items of each.
            options: as for :meth:`sample`.

        Returns:
            As many Samples; those of one call may share memory with one another, and with nothing else.

        Raises:
            NotEnoughItems, ValueError: as for :meth:`sample`.
        """
        engine = self.engine
        finish = finisher(engine.spec, **_taken(options, FINISHING))
        return [finish(sample) for sample in engine.draw_many(engine.rng, count, batch_size, engine.request(**options))]

    @overload
    def batches(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        to: Literal["numpy"] = "numpy",
        order: Literal["random"] = "random",
        steps: int | None = None,
        together: int = 1,
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> Batches[Sample]: ...
    @overload
    def batches(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        to: str,
        order: Literal["random"] = "random",
        steps: int | None = None,
        together: int = 1,
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> Batches[Any]: ...
    @overload
    def batches(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        to: str = "numpy",
        order: Literal["epochs"],
        steps: int | None = None,
        together: int = 1,
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> Epochs: ...
    def batches(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        to: str = "numpy",
        order: str = "random",
        steps: int | None = None,
        together: int = 1,
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> Batches[Any] | Epochs:
        """Iterate over batches that are drawn in the background.

        The draws come of a generator of their own that starts from the buffer's.  So they are
        the same, under a seed, for every `prefetch`, and of what else is sampled meanwhile; as long
        as nobody changes the buffer: what is drawn ahead knows nothing of later additions and
        priorities.

        Args:
            batch_size: B, items of each.
            prefetch: how many batches are kept ready; 0 draws when asked, without a thread.
            to: ``"numpy"``, or tensors of ``"torch"``, ``"tf"`` or ``"jax"``, which borrow the memory
                where the framework can; strings stay arrays.
            order: ``"random"``: each batch is drawn by itself. ``"epochs"``: passes over everything that is held,
                one after the other without end, as :meth:`epoch` has them, whose `seed` (None: of the buffer's
                generator), `rank`, `world_size` and `drop_last` can be given too; each begins with what is
                held then. The iterator has :meth:`epoch`'s ``state_dict`` and ``load_state_dict``.
            steps: how many batches; None for no end.
            together: how many are drawn by one call, see :meth:`sample_many`.
            pin_memory: for ``"torch"``: put tensors into page-locked memory, if there is CUDA.
            device: where tensors go, see :meth:`Sample.to <rlds2buf.Sample.to>`.
            timeout: seconds to wait for a batch before giving up.
            options: as for :meth:`sample`.

        Returns:
            An iterator of Samples; a context manager too, and ``close()`` ends it early.

        Raises:
            MissingDependency: the framework is not installed.
            NotEnoughItems: as for :meth:`sample`; raised by the iterator.
            ReplayError: no batch came within the time-out; raised by the iterator.
            ValueError: an argument is out of range.

        >>> import numpy as np
        >>> from rlds2buf import Episode, make_circular, spec_of
        >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5), discount=np.ones(5))
        >>> buffer = make_circular(spec_of(ep), 100, seed=0)
        >>> keys = buffer.add(ep)
        >>> [float(batch.data.reward.sum()) for batch in buffer.batches(8, steps=3, prefetch=2)]
        [8.0, 8.0, 8.0]
        """
        choice("order", order, ("random", "epochs"))
        engine = self.engine
        changes = _taken(options, ("transform", "normalize"))
        finish = finisher(engine.spec, to=to, device=device, pin_memory=pin_memory, **changes)
        if order == "epochs":
            integer("together", together, 1)
            plan = self._plan(batch_size, options)
            return Epochs(plan, epochs=None, finish=finish, steps=steps, prefetch=prefetch, timeout=timeout)
        request = engine.request(**options)
        batch_size = integer("batch_size", batch_size, 1)
        with engine.lock:
            rng = np.random.default_rng(engine.rng.integers(1 << 63, size=4))

        def draw(count: int) -> list[Sample]:
            return engine.draw_many(rng, count, batch_size, request)

        return Batches(draw, finish, steps=steps, prefetch=prefetch, together=together, timeout=timeout)

    def epoch(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        to: str | None = None,
        device: Any = None,
        prefetch: int = 0,
        timeout: float = 60.0,
        **options: Any,
    ) -> Epochs:
        """One pass over everything that is held now: every item once, in an order that the seed decides.

        Priorities play no part: probabilities are ``1 / items`` and weights 1.  What is added meanwhile is not of
        this epoch; an item that leaves before the end is an error.  The order takes no memory: above
        65,536 items it is a keyed permutation, whose places are computed as they come.  (A prioritized
        buffer, or a `source_id`, takes 8 bytes for each item.)

        Of several processes with the same items, each gets its share (an item more or less) and all get as
        many batches: if need be, the last two of a rank are smaller ones, and never an item twice.

        Args:
            batch_size: B, items of each batch; the last one may have fewer.
            seed: of the order, not negative; the same on all ranks. Another epoch takes another one.
            rank, world_size: which of how many processes this is.
            drop_last: leave out what is left over at the end, so that all batches have B items.
            to, device: as for :meth:`sample`.
            prefetch: how many batches a thread keeps ready, as for :meth:`batches`; 0 for no thread.
            timeout: seconds to wait for a batch of that thread.
            options: as for :meth:`sample`, but for `replace` and `beta`.

        Returns:
            An iterator of Samples, as long (``len``) as there are batches; ``state_dict()`` says after each of them, in
            plain JSON values, how far it has come, and ``load_state_dict`` of one made alike goes on there,
            on any rank.

        Raises:
            NotEnoughItems: a rank would have no batch.
            ReplayError: an item has left the buffer; raised by the iterator.
            MissingDependency: the framework is not installed.
            ValueError, TypeError: an argument is out of range, such as a rank outside of the world.

        >>> import numpy as np
        >>> from rlds2buf import Episode, make_circular, spec_of
        >>> ep = Episode(observation=np.arange(6.0), action=np.zeros(6), reward=np.ones(6), discount=np.ones(6))
        >>> buffer = make_circular(spec_of(ep), 100)
        >>> keys = buffer.add(ep)
        >>> epoch = buffer.epoch(2, seed=7)
        >>> seen = next(epoch).info.key.tolist()
        >>> again = buffer.epoch(2, seed=7)
        >>> again.load_state_dict(epoch.state_dict())
        >>> sorted(seen + [key for batch in again for key in batch.info.key.tolist()])
        [0, 1, 2, 3, 4]
        """
        finish = finisher(self.spec, to=to, device=device, **_taken(options, ("transform", "normalize")))
        options.update(seed=integer("seed", seed, 0), rank=rank, world_size=world_size, drop_last=drop_last)
        return Epochs(self._plan(batch_size, options), epochs=1, finish=finish, prefetch=prefetch, timeout=timeout)

    def _plan(self, batch_size: int, options: dict[str, Any]) -> Plan:
        """The epochs that these options ask for."""
        for name in ("replace", "beta"):
            if name in options:
                raise TypeError(f"{name} is for random batches: an epoch has every item once, whatever its priority")
        engine = self.engine
        seed = options.pop("seed", None)
        ranks = _taken(options, ("rank", "world_size", "drop_last"))
        request = engine.request(**options)
        if seed is None:
            with engine.lock:
                seed = engine.rng.integers(1 << 63, size=4)
        return Plan(engine, batch_size, request, seed=np.atleast_1d(seed).tolist(), **ranks)

    def get(
        self,
        keys: npt.ArrayLike,
        *,
        n_step: int | Sequence[int] | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
        decode: bool | None = None,
        offsets: Mapping[str, Any] | None = None,
        fps: float | None = None,
        stack: int | None = None,
        context: int | None = None,
        pad: str | None = None,
    ) -> Transition | Trajectory | Windows:
        """The items of these keys, as :meth:`sample` would give them, and with the goals they had.

        A key of a later step of an item gives the item from there on.

        Raises:
            UnknownKey: a key was never given out, or its item has left.
            NotEnoughItems, ValueError: as for :meth:`sample`; also for an `n_step` that is to be drawn.
        """
        view = self.engine.view.changed(
            n_step=n_step,
            gamma=gamma,
            sequence_length=sequence_length,
            burn_in=burn_in,
            initial_state=initial_state,
            state=state,
            decode=decode,
            offsets=offsets,
            fps=fps,
            stack=stack,
            context=context,
            pad=pad,
        )
        return self.engine.get(as_keys(keys), view)

    @overload
    def all(self, *, concatenate: Literal["batch"] = "batch", decode: bool | None = None) -> Transition: ...
    @overload
    def all(self, *, concatenate: Literal["sequence"], decode: bool | None = None) -> Trajectory: ...
    @overload
    def all(self, *, concatenate: None, decode: bool | None = None) -> list[Transition]: ...
    def all(
        self, *, concatenate: str | None = "batch", decode: bool | None = None
    ) -> Transition | Trajectory | list[Transition]:
        """Every transition held, oldest first, copied.

        Args:
            concatenate: ``"batch"``: one Transition ``[N, ...]``; ``"sequence"``: one Trajectory
                ``[1, N, ...]`` of them all, whose ends of episodes only `is_done` tells; None: a list
                of N Transitions without leading axes (slow, and meant for a look).
            decode: as for :meth:`sample`; False gives what :meth:`add` takes.
        """
        if concatenate not in ("batch", "sequence", None):
            raise ValueError(f"concatenate must be 'batch', 'sequence' or None, got {concatenate!r}")
        engine = self.engine

        def read(engine: Engine) -> Any:
            slots = transition_slots(engine.store)
            return engine.reader.along(slots[None]) if concatenate == "sequence" else engine.reader.transitions(slots)

        data = engine.at_once(read)
        rows: Any = engine.reader.unpack(data, engine.view.decode if decode is None else decode)
        if concatenate is not None:
            return rows  # type: ignore[no-any-return]  # as the overloads say
        return [
            nest.map_structure(lambda column, i=i: None if column is None else column[i], rows)
            for i in range(len(rows.is_done))
        ]

    def keys(self) -> np.ndarray:
        """Keys ``uint64`` of every item held, oldest first."""
        return self.engine.at_once(lambda engine: engine.contents.keys_of(item_slots(engine.store)))

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
        engine, contents = self.engine, self.engine.contents
        with engine.lock:
            engine.require_priorities()
            engine.touch()
            held = contents.holds(wanted)
            engine.sampler.update(contents.items_of(contents.slots_of(wanted[held])), values[held])
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
        if self.engine.hindsight is None:
            raise ReplayError("this buffer knows no goals: make it with make_hindsight")
        gamma = self.engine.view.gamma

        def read(engine: Engine) -> Any:
            hindsight = engine.hindsight
            assert hindsight is not None, "no goals"
            trajectory = hindsight.trajectory(num_steps, source_id, engine.contents.waiting, gamma)
            return hindsight, trajectory, hindsight.draw_picks(len(trajectory.is_done), engine.rng)

        hindsight, trajectory, picks = self.engine.at_once(read)
        made: Transition = hindsight.generate(trajectory, picks, gamma)
        return made

    def check(self, data: Any, *, check_limits: bool = True) -> None:
        """Raise unless :meth:`add` would take `data`; nothing is added.

        Args:
            data: as for :meth:`add`.
            check_limits: compare values with the spec's limits and finite sets too.

        Raises:
            SpecMismatch, EpisodeError, TypeError: as for :meth:`add`.
        """
        self.engine.prepare(data, check_limits=check_limits)

    def resize(self, capacity: int) -> None:
        """Change the capacity, keeping the newest that fits; a reservoir keeps a fair choice.

        Raises:
            ReplayError: a reservoir is to grow that has let items go already.
        """
        with self.engine.lock:
            self.engine.touch()
            self.engine.contents.resize(integer("capacity", capacity, 0))

    def clear(self) -> None:
        """Drop everything held; keys go on counting."""
        with self.engine.lock:
            self.engine.touch()
            self.engine.contents.clear()

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
        engine, contents, index = self.engine, self.engine.contents, self.engine.hindsight
        with engine.lock:
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
                "sampled": engine.sampled,
                "bytes": contents.nbytes + (0 if index is None else index.episodes.nbytes),
                "row_bytes": self.spec.row_bytes,
            }

    def state_dict(self) -> dict[str, Any]:
        """A deep copy of everything; :meth:`load_state_dict` restores it, draws included."""
        with self.engine.lock:
            return self.engine.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            SnapshotError: it is of a buffer of another kind, spec or capacity; nothing was changed.
        """
        with self.engine.lock:
            self.engine.set_state(state)

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
        engine, home = self.engine, self.engine.home
        with engine.lock:
            if provenance is not None:
                engine.provenance = dict(provenance)
            if home is not None and (path is None or Path(path).resolve() == home.path):
                if path is not None and not overwrite:
                    raise SnapshotExists(f"{path}: is this buffer's own folder; save() without a path keeps it whole")
                home.save(engine)
            elif path is not None:
                save_buffer(engine, Path(path), overwrite=overwrite)
            else:
                raise ValueError("save needs a path: this buffer has no directory of its own")

    def __reduce__(self) -> tuple[Any, ...]:
        """For ``pickle``: rows held, priorities, draws and all; of a buffer in a folder its path."""
        with self.engine.lock:
            parts = parts_of(self.engine)
        require_names(parts["functions"])
        return revived, (parts,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A buffer of its own that goes on alike; of one in a folder, all saved, one that reads there."""
        with self.engine.lock:
            return revived(parts_of(self.engine))

    def __copy__(self) -> Any:
        """As a deep copy: two buffers never share rows that one of them may change."""
        return self.__deepcopy__({})

    def check_valid(self) -> None:
        """Assert that all structures agree; for tests."""
        self.engine.contents.check_valid()


def _taken(options: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Those of the options that have these names, taken out of them."""
    return {name: options.pop(name) for name in names if name in options}
