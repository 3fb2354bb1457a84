"""Off-policy replay with costs beside rewards, one column per environment."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.buffers.disk.snapshot import save_state
from rlds2buf.buffers.read.reader import Reader
from rlds2buf.buffers.rows.columns import MemoryColumns, saved_columns, small_strings, write_columns
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.buffers.vectorized.step_field import StepField, done_code
from rlds2buf.core import forks, nest, shown
from rlds2buf.core.agreement import same_columns
from rlds2buf.core.arguments import integer
from rlds2buf.core.closed import Closed
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.frameworks import Device
from rlds2buf.core.ragged import as_bytes
from rlds2buf.core.room import room_for
from rlds2buf.core.row_flags import CONTINUE, OWN_NEXT, TERMINATED, TRUNCATED
from rlds2buf.core.sample import Sample, SampleInfo, Transition
from rlds2buf.core.spaces import number_field, step_spec
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.core.tensors import to_numpy
from rlds2buf.errors import NotEnoughItems, ReplayError, SnapshotError, SpecMismatch
from rlds2buf.views.transitions import transitions

__all__ = ["CostReplay", "make_cost_replay"]


def make_cost_replay(
    spec: StepSpec | tuple[Any, Any],
    size: int,
    *,
    num_envs: int = 1,
    penalty_coefficient: float = 0.0,
    batch_size: int | None = None,
    device: Any = None,
    seed: int | np.random.Generator | None = None,
) -> CostReplay:
    """A replay buffer for safe reinforcement learning: the newest `size` steps of every environment.

    Rewards and costs are stored as they come; the penalty is applied to what is sampled, so the
    coefficient may change while training goes on (``buffer.penalty_coefficient = ...``).

    Args:
        spec: a :class:`~rlds2buf.StepSpec`, or a pair (observation space, action space) of one
            environment.  Reward and cost are float32, or float64 if the spec's reward is.
        size: steps kept per environment, at least 1.
        num_envs: environments stored side by side.
        penalty_coefficient: sampled rewards are ``reward - penalty_coefficient * cost``; at least 0.
        batch_size: of :meth:`~CostReplay.sample`, if it is given none.
        device: None: batches are arrays; else a PyTorch device: ``batch.data`` holds tensors there.
            What is stored stays in host memory.
        seed: of the draws.

    Raises:
        ValueError, TypeError: an argument is wrong.
        SpecMismatch: a field has no fixed shape.
        MissingDependency: a device is named and PyTorch is not installed.

    ===============================  ==================================================
    OmniSafe                         here
    ===============================  ==================================================
    obs, act, next_obs               observation, action, next_observation
    reward (penalised when stored)   reward (penalised when sampled), original_reward
    cost                             extras["cost"]
    done                             is_done, discount
    sample_batch(n)                  sample(n): also n rows per environment
    max_size, size                   size, len(buffer) / num_envs
    ===============================  ==================================================

    >>> spec = StepSpec(observation=FieldSpec((), np.float32), action=FieldSpec((), np.int64))
    >>> buffer = make_cost_replay(spec, 3, num_envs=2, penalty_coefficient=0.5, seed=0)
    >>> for t in range(4):
    ...     keys = buffer.store(observation=[t, t + 10], action=[0, 1], reward=[t, t + 10], cost=[1, 0],
    ...                         next_observation=[t + 1, t + 11], terminated=[False, False])
    >>> batch = buffer.sample(3)
    >>> batch.data.action                                                  # environment 0, 1, 0, 1, ...
    array([0, 1, 0, 1, 0, 1])
    >>> (batch.data.extras["original_reward"] - batch.data.reward).tolist()
    [0.5, 0.0, 0.5, 0.0, 0.5, 0.0]
    """
    return CostReplay(
        step_spec(spec),
        size,
        num_envs=num_envs,
        penalty_coefficient=penalty_coefficient,
        batch_size=batch_size,
        device=Device(device),
        seed=seed,
    )


class CostReplay(Closed):
    """See :func:`make_cost_replay`, which makes it.  All methods may be called from several threads.

    Attributes:
        spec: of the rows stored, cost and added fields among the extras.
        size: steps kept per environment.
        num_envs: environments.
        penalty_coefficient: of sampled rewards; can be set.
        batch_size: of :meth:`sample`, or None.
    """

    spec: StepSpec
    size: int
    num_envs: int
    batch_size: int | None

    def __init__(
        self,
        spec: StepSpec,
        size: int,
        *,
        num_envs: int = 1,
        penalty_coefficient: float = 0.0,
        batch_size: int | None = None,
        device: Device | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.size, self.num_envs = integer("size", size, 1), integer("num_envs", num_envs, 1)
        self.batch_size = None if batch_size is None else integer("batch_size", batch_size, 1)
        self.penalty_coefficient = penalty_coefficient
        self._device = device or Device()
        self._rng = np.random.default_rng(seed)
        self._seed = forks.seed_of(self._rng)
        self._lock = threading.RLock()
        forks.register(self, CostReplay._forked, lock=lambda buffer: buffer._lock)
        number = number_field(spec)
        extras = {**spec.extras, "cost": number}
        if "original_reward" in extras:
            raise ValueError("the name original_reward is taken: sampled batches have the unpenalised reward there")
        rows = StepSpec(spec.observation, spec.action, number, discount=None, extras=extras)
        with room_for(f"size: {self.capacity:,} rows", self.capacity * rows.row_bytes):
            self._build(rows)

    @property
    def penalty_coefficient(self) -> float:
        """What a cost of 1 takes off a sampled reward; at least 0."""
        return self._penalty_coefficient

    @penalty_coefficient.setter
    def penalty_coefficient(self, value: float) -> None:
        if not 0.0 <= value < float("inf"):
            raise ValueError(f"penalty_coefficient must be at least 0 and finite, got {value}")
        self._penalty_coefficient = float(value)

    @property
    def capacity(self) -> int:
        """How many transitions fit, all environments together."""
        return self.size * self.num_envs

    @property
    def device(self) -> Any:
        """The PyTorch device of the batches, or None."""
        return self._device.device

    def __len__(self) -> int:
        """Transitions held, all environments together."""
        return self._store.num_rows

    def __repr__(self) -> str:
        environments = "1 environment" if self.num_envs == 1 else f"{self.num_envs} environments"
        title = f"<CostReplay: {len(self)} of {self.capacity} transitions, {environments}>"
        return shown.aligned(title, shown.spec_rows(self.spec))

    def add_field(self, name: str, shape: tuple[int, ...] = (), dtype: Any = np.float32) -> None:
        """A further field of every step; :meth:`store` requires it, batches have it in ``extras``.

        Args:
            name: of the field; ``buffer.spec.extras`` has it at once.
            shape: of one step's value.
            dtype: NumPy's, PyTorch's or TensorFlow's.

        Raises:
            ValueError: the name is taken.
            TypeError: NumPy has no such dtype.
            ReplayError: transitions are stored already, and they lack it.
        """
        with self._lock:
            if name in self.spec.extras or name in _RESERVED:
                raise ValueError(f"the name {name!r} is taken")
            if len(self):
                raise ReplayError(f"{len(self)} transitions are stored without {name!r}; add fields before storing")
            extras = {**self.spec.extras, name: FieldSpec(tuple(shape), dtype)}
            spec = self.spec
            self._build(StepSpec(spec.observation, spec.action, spec.reward, discount=None, extras=extras))

    def store(
        self,
        *,
        observation: nest.Nest,
        action: nest.Nest,
        reward: Any,
        cost: Any,
        next_observation: nest.Nest,
        terminated: Any = False,
        truncated: Any = False,
        check_limits: bool = False,
        **extras: nest.Nest,
    ) -> np.ndarray:
        """Store one step of every environment, or T of them; the oldest leave.

        The shape of `reward` says how many: ``[num_envs]`` or ``[T, num_envs]``; for a single
        environment also a number or ``[T]``.  Every other field has that shape in front of its own.
        Arrays, PyTorch tensors, lists; all are copied.

        Args:
            observation, action: nests, as in the spec.
            reward, cost: numbers, unpenalised; the cost may be a single number for all.
            next_observation: what followed; where an episode ended, its final observation, not the
                first one of the next.
            terminated: the environment ended the episode: the batch's discount is 0 there.
            truncated: a limit cut it: the discount stays 1.  If both are set, terminated wins.
            check_limits: refuse values outside the spec's limits and finite sets too.
            extras: the fields that were added, all of them.

        Returns:
            Keys ``uint64`` in the shape of `reward`.

        Raises:
            SpecMismatch: a field is missing, unknown, of another shape or dtype, or outside limits that are
                checked; nothing was stored.
        """
        lead = tuple(np.shape(reward))
        steps = self._steps(lead)
        given: dict[str, Any] = {"observation": observation, "action": action, "reward": reward}
        given["extras"] = {"cost": cost if np.ndim(cost) else np.full(lead, to_numpy(cost)), **extras}
        with self._lock:
            columns = [leaf for field in self._fields for leaf in field.accept(given[field.name], lead, check_limits)]
            following = self._next.accept(next_observation, lead, check_limits)
            codes = done_code(terminated, truncated, lead).reshape(-1)
            rows = [leaf.reshape(len(codes), *leaf.shape[len(lead) :]) for leaf in (*columns, *following)]
            paths = [*self._store.paths, *(path for path, _ in self._next.leaves)]
            rows = [as_bytes(row, path) if row.dtype == object else row for row, path in zip(rows, paths, strict=True)]
            first = self._append(rows[: len(columns)], rows[len(columns) :], codes, steps)
        return np.arange(first, first + len(codes), dtype=np.uint64).reshape(lead)

    def add(self, data: Episode | EpisodeBatch | Transition, *, check_limits: bool = False) -> np.ndarray:
        """Store the transitions of logged episodes, with ``extras["cost"]``; returns their keys.

        With `check_limits` values outside the spec's limits and finite sets are refused too.

        Raises:
            ReplayError: there are several environments; then only :meth:`store` says whose step is whose.
            SpecMismatch: the data don't fit, or have no cost.
            TypeError: they are neither; columns are for :meth:`store`.
        """
        if not isinstance(data, Episode | EpisodeBatch | Transition):
            raise TypeError(
                f"data must be an Episode, an EpisodeBatch or a Transition, got {type(data).__name__}; "
                "store() takes columns"
            )
        if self.num_envs != 1:
            raise ReplayError(f"an episode is of one environment, the buffer of {self.num_envs}; use store()")
        batch = data if isinstance(data, Transition) else _of_batch(data)
        if "cost" not in batch.extras:
            raise SpecMismatch("the data have no costs", path="extras/cost", rule="missing-field")
        return self.store(
            observation=batch.observation,
            action=batch.action,
            reward=batch.reward,
            next_observation=batch.next_observation,
            terminated=np.asarray(batch.terminated),
            truncated=np.asarray(batch.truncated),
            check_limits=check_limits,
            **batch.extras,
        )

    def sample(self, batch_size: int | None = None, *, gamma: float = 1.0, replace: bool = True) -> Sample:
        """`batch_size` transitions of every environment, each drawn on its own and uniformly.

        Rows are ordered environment 0, 1, ..., 0, 1, ...: ``B = batch_size * num_envs``.  ``data.reward``
        is penalised, ``data.extras`` has ``"cost"`` and ``"original_reward"``, ``data.bootstrap_discount``
        is gamma, or 0 where the episode terminated.

        Raises:
            NotEnoughItems: nothing is stored, or without replacement fewer steps than `batch_size`.
            ValueError: no batch size, or one below 1; or `gamma` is out of range.
        """
        count = self.batch_size if batch_size is None else batch_size
        if count is None:
            raise ValueError("batch_size must be given, here or when the buffer is made")
        count = integer("batch_size", count, 1)
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        with self._lock:
            held = len(self) // self.num_envs
            needed = 1 if replace else count
            if held < needed:
                raise NotEnoughItems(f"the buffer holds {held} steps per environment, and sampling needs {needed}")
            if replace:
                step = self._rng.integers(held, size=(count, self.num_envs))
            else:
                draws = [self._rng.choice(held, count, replace=False) for _ in range(self.num_envs)]
                step = np.stack(draws, axis=1)
            keys = self._store.oldest + (step * self.num_envs + np.arange(self.num_envs)).reshape(-1)
            data = self._read(keys, gamma)
        data = self._reader.unpack(data)
        ones = np.ones(len(keys))
        info = SampleInfo(keys.astype(np.uint64), ones / held, ones, ones.copy(), held * self.num_envs)
        return Sample(self._device.put(data), info)

    def all(self) -> Transition:
        """Every transition held, oldest first, environment after environment within a step."""
        with self._lock:
            data = self._read(np.arange(self._store.oldest, self._store.newest), 1.0)
        data = self._reader.unpack(data)
        put: Transition = self._device.put(data)
        return put

    def resize(self, size: int) -> None:
        """Keep `size` steps per environment from now on, the newest ones of those that are there."""
        size = integer("size", size, 1)
        with self._lock:
            self._store.require_room(size * self.num_envs)
            excess = len(self) - size * self.num_envs
            if excess > 0:
                self._store.evict(excess)
            self._store.relay(size * self.num_envs)
            self.size = int(size)

    def clear(self) -> None:
        """Drop everything; keys go on counting."""
        with self._lock:
            self._store.evict(len(self))

    def state_dict(self) -> dict[str, Any]:
        """A deep copy of everything stored and of the generator's state."""
        with self._lock:
            store = self._store
            columns = MemoryColumns()
            write_columns(store, columns.column)
            return {
                "version": 1,
                "kind": "cost_replay",
                "size": self.size,
                "num_envs": self.num_envs,
                "spec": self.spec.to_json(),
                "oldest": store.oldest,
                "newest": store.newest,
                "rng": copy.deepcopy(self._rng.bit_generator.state),
                "strings": small_strings(store),
                "arrays": columns.arrays(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            SnapshotError: it is of a buffer of another kind, spec, size or number of environments;
                nothing was changed.
        """
        mine = {"version": 1, "kind": "cost_replay", "size": self.size, "num_envs": self.num_envs}
        for name, value in mine.items():
            if state.get(name) != value:
                raise SnapshotError(f"the state is of a buffer with {name} {state.get(name)!r}, this one has {value!r}")
        if not same_columns(state.get("spec"), self.spec):
            raise SnapshotError("the state is of a buffer with another spec")
        with self._lock:
            store, oldest = self._store, int(state["oldest"])
            arrays = {name: np.array(array) for name, array in state["arrays"].items()}
            columns, vocabularies = saved_columns(store, state["strings"], arrays)
            store.adopt(columns, base=oldest, oldest=oldest, newest=int(state["newest"]))
            store.vocabularies = vocabularies
            store.relay(self.capacity)
            self._rng.bit_generator.state = copy.deepcopy(state["rng"])
            self._seed = forks.seed_of(self._rng)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the buffer to a folder that :func:`rlds2buf.load_buffer` opens.

        Raises:
            SnapshotExists: `path` is there already and `overwrite` is False.
            SinkError: the files can't be written.
        """
        save_state(self.state_dict(), self._made(), Path(path), overwrite=overwrite)

    @classmethod
    def of_saved(cls, made: Mapping[str, Any]) -> CostReplay:
        """An empty one of what :meth:`save` wrote of how it was made."""
        options = {**made, "spec": StepSpec.from_json(made["spec"]), "device": Device(made["device"])}
        return _empty(options)

    def _made(self) -> dict[str, Any]:
        return {
            "spec": self.spec.to_json(),
            "size": self.size,
            "num_envs": self.num_envs,
            "penalty_coefficient": self.penalty_coefficient,
            "batch_size": self.batch_size,
            "device": self._device.name,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """For ``pickle`` and ``copy``: everything."""
        made = {**self._made(), "spec": self.spec, "device": self._device}
        return _revived, (made, self.state_dict())

    def _forked(self, number: int) -> None:
        """This is a child now: see core/forks.py."""
        self._lock = threading.RLock()
        self._seed = forks.fork_seed(self._seed, number)
        self._rng = np.random.default_rng(self._seed)

    def _build(self, spec: StepSpec) -> None:
        self.spec = spec
        self._store = RowStore(spec, self.capacity)
        self._reader = Reader(self._store)
        # In the order of the store's columns.
        parts = {"observation": spec.observation, "action": spec.action, "reward": spec.reward, "extras": spec.extras}
        self._fields = [StepField(name, structure) for name, structure in parts.items()]
        self._next = StepField("next_observation", spec.observation)

    def _steps(self, lead: tuple[int, ...]) -> int:
        """How many steps per environment come with the leading axes `lead`."""
        if self.num_envs == 1 and len(lead) < 2:
            return lead[0] if lead else 1
        if not 1 <= len(lead) <= 2 or lead[-1] != self.num_envs:
            raise SpecMismatch(
                f"expected shape [{self.num_envs}] or [T, {self.num_envs}], got {list(lead)}",
                path="reward",
                rule="spec",
            )
        return lead[0] if len(lead) == 2 else 1

    def _append(self, columns: list[np.ndarray], following: list[np.ndarray], codes: np.ndarray, steps: int) -> int:
        """Store ``steps * num_envs`` rows and evict as many as needed; returns the first one's key."""
        store = self._store
        first = store.newest
        if steps > self.size:
            # Only the newest fit; the others have had their keys and are gone.
            skipped = (steps - self.size) * self.num_envs
            columns, following = [c[skipped:] for c in columns], [c[skipped:] for c in following]
            codes = codes[skipped:]
            self.clear()
            store.oldest = store.newest = first + skipped
        excess = len(self) + len(codes) - self.capacity
        if excess > 0:
            store.evict(excess)
        store.write(columns, codes | np.uint8(OWN_NEXT), own=following)
        return first

    def _read(self, keys: np.ndarray, gamma: float) -> Transition:
        data = self._reader.transitions(np.asarray(self._store.slot_of(keys)), gamma)
        reward, extras = data.reward, dict(data.extras)
        extras["original_reward"] = reward
        if self.penalty_coefficient:
            reward = (reward - self.penalty_coefficient * extras["cost"]).astype(reward.dtype, copy=False)
        return data._replace(reward=reward, extras=extras)


def _of_batch(batch: Episode | EpisodeBatch) -> Transition:
    """Every transition of one or several episodes."""
    if isinstance(batch, Episode):
        return transitions(batch)
    ends = batch.ends
    within = np.ones(batch.num_steps - 1, np.bool_)
    within[ends[:-1]] = False  # what leads from one episode into the next
    every: Transition = nest.map_structure(
        lambda column: None if column is None else column[within], transitions(batch.rows)
    )
    codes = np.zeros(batch.num_steps - 1, np.uint8)
    last = ends[ends > batch.starts] - 1
    terminal, flagged = batch.rows.is_terminal[last + 1], batch.rows.is_last[last + 1]
    codes[last] = np.where(terminal, TERMINATED, np.where(flagged, TRUNCATED, CONTINUE))
    return every._replace(is_done=codes[within])


_RESERVED = frozenset(("original_reward", "terminated", "truncated", "check_limits", *Transition._fields))


def _empty(made: Mapping[str, Any]) -> CostReplay:
    """One of these arguments; its spec has the cost that the class adds."""
    spec, size, options = made["spec"], made["size"], {name: made[name] for name in made.keys() - {"spec", "size"}}
    extras = {name: field for name, field in spec.extras.items() if name != "cost"}
    bare = StepSpec(spec.observation, spec.action, spec.reward, discount=None, extras=extras)
    return CostReplay(bare, size, **options)


def _revived(made: Mapping[str, Any], state: Mapping[str, Any]) -> CostReplay:
    buffer = _empty(made)
    buffer.load_state_dict(state)
    return buffer
