"""Rollouts of the current policy: stored step by step, handed out once with advantages and targets."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.buffers.disk.snapshot import save_state
from rlds2buf.buffers.vectorized.advantages import AdvantageSettings
from rlds2buf.buffers.vectorized.rollout import Rollout
from rlds2buf.buffers.vectorized.rollout_paths import Paths
from rlds2buf.buffers.vectorized.step_field import StepField, done_code
from rlds2buf.core import forks, nest, shown
from rlds2buf.core.arguments import integer
from rlds2buf.core.closed import Closed
from rlds2buf.core.frameworks import Device
from rlds2buf.core.room import room_for
from rlds2buf.core.row_flags import TRUNCATED
from rlds2buf.core.spaces import number_field, step_spec
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.core.tensors import to_numpy
from rlds2buf.errors import NotEnoughItems, ReplayError, SnapshotError

__all__ = ["OnPolicyBuffer", "make_on_policy"]

_NUMBERS = ("reward", "cost", "value_r", "value_c", "logp")


def make_on_policy(
    spec: StepSpec | tuple[Any, Any],
    size: int,
    *,
    gamma: float = 0.99,
    lam: float = 0.95,
    lam_c: float = 0.95,
    estimator: str = "gae",
    penalty_coefficient: float = 0.0,
    standardize_reward: bool = True,
    standardize_cost: bool = True,
    num_envs: int = 1,
    bootstrap: str = "reward",
    device: Any = None,
    seed: int | np.random.Generator | None = None,
) -> OnPolicyBuffer:
    """A buffer for one rollout at a time, with rewards and costs, of one environment or of many.

    Store steps, finish the paths that no flag ended, and :meth:`~OnPolicyBuffer.get` everything::

        buffer = make_on_policy((env.single_observation_space, env.single_action_space), 2048, num_envs=64)
        buffer.store(observation=obs, action=action, reward=reward, value_r=value, logp=logp, terminated=terminated)
        buffer.finish_path(last_value_r=critic(obs))            # the rollout ends in mid-episode
        for batch in buffer.get().minibatches(256, epochs=10):  # and the buffer is empty again
            ...

    With r' = reward - penalty_coefficient * cost, the reward's advantages and targets are

    =========  ==========================================  =====================================
    estimator  adv_r                                       target_value_r
    =========  ==========================================  =====================================
    gae        GAE(gamma, lam) of r'                       advantage + value
    gae-rtg    GAE(gamma, lam) of r'                       discounted return of r'
    vtrace     V-trace of r' for equal policies            V-trace: the discounted return of r'
    plain      one-step error of r'                        discounted return of r'
    =========  ==========================================  =====================================

    and the cost's are the same with costs, `lam_c` and no penalty.  `discounted_ret` is the discounted
    return of the rewards themselves.  For V-trace with a policy that has moved on, call
    :func:`rlds2buf.returns.vtrace` with both log probabilities.

    Args:
        spec: a :class:`~rlds2buf.StepSpec`, or a pair (observation space, action space) of one
            environment.  Numbers are float32, or float64 if the spec's reward is; sums are float64.
        size: steps per environment, at least 1.
        gamma, lam, lam_c: discount, and GAE's lambda for rewards and for costs; in [0, 1].
        estimator: one of the above.
        penalty_coefficient: at least 0.
        standardize_reward: shift and scale adv_r over the steps handed out to mean 0 and standard
            deviation 1.  The default is True, OmniSafe's False.
        standardize_cost: shift adv_c to mean 0; its scale stays, for it is compared with a limit.
            The default is True, OmniSafe's False.
        num_envs: how many environments are stored side by side.
        bootstrap: what stands for the rest of a path that was cut, where the target is a discounted
            return of r': ``"reward"``, the last value of rewards, as everywhere else; or
            ``"omnisafe"``, last_value_r - penalty_coefficient * last_value_c as OmniSafe has it, which
            charges for the cost twice if the critic has learnt r'.  They differ only for
            "gae-rtg" and "plain" with a penalty.
        device: None: batches are arrays; else a PyTorch device: they are tensors there.  The
            rollout itself is kept in host memory.
        seed: of :meth:`~OnPolicyBuffer.minibatches`.

    Raises:
        ValueError, TypeError: an argument is wrong.
        SpecMismatch: a field has no fixed shape.
        MissingDependency: a device is named and PyTorch is not installed.

    ===================================  ==============================================================
    OmniSafe                             here
    ===================================  ==============================================================
    obs, act                             observation, action
    reward, cost, value_r, value_c       the same
    done                                 is_done (terminated, truncated)
    logp, adv_r, adv_c                   the same
    target_value_r, target_value_c       the same
    discounted_ret                       the same
    advantage_estimator                  estimator
    standardized_adv_r, _c               standardize_reward, standardize_cost: True unless told
                                         otherwise, there False
    finish_path(last_r, last_c, idx=0)   finish_path(last_r, last_c, env=None): None is all of them
    num_buffers, max_size                num_envs, size
    ===================================  ==============================================================

    >>> spec = StepSpec(observation=FieldSpec((2,), np.float32), action=FieldSpec((), np.int64))
    >>> buffer = make_on_policy(spec, 8, gamma=0.9, lam=0.8, standardize_reward=False)
    >>> for reward, value in zip([1.0, 2.0, 3.0], [0.5, 0.6, 0.7]):
    ...     buffer.store(observation=[0.0, 0.0], action=1, reward=reward, value_r=value, logp=-0.7)
    >>> buffer.finish_path(last_value_r=0.8)
    3
    >>> rollout = buffer.get()
    >>> rollout.adv_r
    array([4.067168, 4.2044  , 3.02    ], dtype=float32)
    >>> len(buffer)
    0
    """
    settings = AdvantageSettings(
        gamma=gamma,
        lam=lam,
        lam_c=lam_c,
        estimator=estimator,
        penalty_coefficient=penalty_coefficient,
        bootstrap=bootstrap,
        standardize_reward=standardize_reward,
        standardize_cost=standardize_cost,
    )
    return OnPolicyBuffer(step_spec(spec), size, settings, num_envs=num_envs, device=Device(device), seed=seed)


class OnPolicyBuffer(Closed):
    """See :func:`make_on_policy`, which makes it.

    A path is a run of steps of one environment.  It ends at a step stored as terminated, at one
    stored as truncated (with the value of what follows), or where :meth:`finish_path` says so.
    Nothing is computed until :meth:`get`, which runs over all paths at once.

    Attributes:
        spec: of a step, added fields among the extras.
        size: steps per environment.
        num_envs: environments.
        settings: how advantages are estimated.
        field_names: what :meth:`store` takes, flags and bootstrap values left out.
    """

    spec: StepSpec
    size: int
    num_envs: int
    settings: AdvantageSettings

    def __init__(
        self,
        spec: StepSpec,
        size: int,
        settings: AdvantageSettings,
        *,
        num_envs: int = 1,
        device: Device | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.spec, self.size, self.num_envs = spec, integer("size", size, 1), integer("num_envs", num_envs, 1)
        self.settings = settings
        self._device = device or Device()
        self._rng = np.random.default_rng(seed)
        self._seed = forks.seed_of(self._rng)
        forks.register(self, OnPolicyBuffer._forked)
        self._fields: dict[str, StepField] = {}
        self._columns: dict[str, list[np.ndarray]] = {}
        self._extras: dict[str, nest.Nest] = {}
        with room_for(f"size: {self.capacity:,} rows", self.capacity * spec.row_bytes):
            self._new_field("observation", spec.observation)
            self._new_field("action", spec.action)
            number = number_field(spec)
            for name in _NUMBERS:
                self._new_field(name, number)
            for name, structure in spec.extras.items():
                if name not in self._fields:
                    self._new_field(name, structure, extra=True)
            self._paths = Paths(self.num_envs, self.size, number.dtype)

    @property
    def capacity(self) -> int:
        """How many steps fit, all environments together."""
        return self.size * self.num_envs

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields of a step, added ones last."""
        return tuple(self._fields)

    @property
    def device(self) -> Any:
        """The PyTorch device of the batches, or None."""
        return self._device.device

    def __len__(self) -> int:
        """Steps stored, all environments together."""
        return int(self._paths.stored.sum())

    def __repr__(self) -> str:
        environments = "1 environment" if self.num_envs == 1 else f"{self.num_envs} environments"
        title = f"<OnPolicyBuffer: {len(self)} of {self.capacity} steps, {environments}, {self.settings.estimator}>"
        return shown.aligned(title, shown.spec_rows(self.spec))

    def add_field(self, name: str, shape: tuple[int, ...] = (), dtype: Any = np.float32) -> None:
        """A further field of every step; :meth:`store` requires it, :meth:`get` has it in ``extras``.

        Args:
            name: of the field; `field_names` and ``spec.extras`` have it at once.
            shape: of one step's value.
            dtype: NumPy's, PyTorch's or TensorFlow's.

        Raises:
            ValueError: a field of that name is there already.
            TypeError: NumPy has no such dtype.
            ReplayError: steps are stored already, and they lack it.
        """
        if name in self._fields or name in _RESERVED:
            raise ValueError(f"the buffer has a field {name!r} already")
        if len(self):
            raise ReplayError(f"{len(self)} steps are stored without {name!r}; add fields while the buffer is empty")
        field = FieldSpec(tuple(shape), dtype)
        self._new_field(name, field, extra=True)
        self.spec = dataclasses.replace(self.spec, extras={**self.spec.extras, name: field})

    def store(
        self,
        *,
        observation: nest.Nest,
        action: nest.Nest,
        reward: Any,
        cost: Any = 0.0,
        value_r: Any = 0.0,
        value_c: Any = 0.0,
        logp: Any = 0.0,
        terminated: Any = False,
        truncated: Any = False,
        final_value_r: Any = None,
        final_value_c: Any = None,
        env: int | None = None,
        check_limits: bool = False,
        **extras: nest.Nest,
    ) -> None:
        """Store steps.  The shape of `reward` says how many, and of which environments:

        ===================  =============  ======================================================
        reward               env            stored
        ===================  =============  ======================================================
        a number             e (or None     one step of environment e (of the only one)
                             if num_envs
                             is 1)
        ``[num_envs]``       None           one step of every environment
        ``[T]``              e (as above)   T steps of environment e
        ``[T, num_envs]``    None           T steps of every environment
        ===================  =============  ======================================================

        Every other field has that shape in front of its own, or is a single number for all steps.
        Arrays, PyTorch tensors, lists; all are copied.

        Args:
            observation, action: nests, as in the spec.
            reward, cost, value_r, value_c, logp: numbers.
            terminated: the environment ended the episode with this step; the path is finished.
            truncated: a limit cut it with this step (if both are set, terminated wins).  What
                follows is worth `final_value_r` and `final_value_c`; without them the next
                call for this environment must be :meth:`finish_path`.
            final_value_r, final_value_c: values of the final observations, read where truncated.
            env: which environment, 0-based.
            check_limits: refuse values outside the spec's limits and finite sets too.
            extras: the fields that were added, all of them.

        Raises:
            ReplayError: there is no room; or the environment's last step was truncated and nothing
                says what followed.  Nothing was stored.
            SpecMismatch: a field is missing, unknown, of another shape or dtype, or outside limits that are checked.
        """
        values = {
            "observation": observation,
            "action": action,
            "reward": reward,
            "cost": cost,
            "value_r": value_r,
            "value_c": value_c,
            "logp": logp,
            **extras,
        }
        if values.keys() != self._fields.keys():
            self._complain(set(values))
        lead = np.shape(reward)
        place = self._paths.place(lead, env)
        # Everything is looked at before anything is written.
        accepted = []
        for name, field in self._fields.items():
            value = values[name]
            if lead and name in _NUMBERS and np.ndim(value) == 0:
                value = np.full(lead, to_numpy(value))
            accepted.append((self._columns[name], field.accept(value, lead, check_limits)))
        codes = None if terminated is False and truncated is False else done_code(terminated, truncated, lead)
        self._paths.advance(place, codes, to_numpy(final_value_r), to_numpy(final_value_c))
        for columns, arrays in accepted:
            for column, array in zip(columns, arrays, strict=True):
                column[place.cells] = place.env_first(array)

    def finish_path(self, last_value_r: Any = None, last_value_c: Any = None, env: int | None = None) -> int:
        """End the open paths of one environment, or of all, at their newest steps.

        Args:
            last_value_r, last_value_c: values of the observations that follow, of rewards and of
                costs: a number, or ``[num_envs]`` if `env` is None.  None: the environment
                terminated; nothing follows.  With `last_value_r` alone, the cost's is 0.
            env: which environment; None: all of them.

        Returns:
            How many steps the finished paths hold; 0 if nothing is open: paths that a stored
            ``terminated`` ended keep the end they have.

        Raises:
            ReplayError: a path was stored as truncated, and there is no `last_value_r`.
            ValueError: values of another shape, or no such environment.
        """
        return self._paths.finish(to_numpy(last_value_r), to_numpy(last_value_c), env)

    def get(self, last_value_r: Any = None, last_value_c: Any = None, *, clear: bool = True) -> Rollout:
        """All steps stored, with advantages, targets and returns; copies.

        Args:
            last_value_r, last_value_c: as in :meth:`finish_path`, for the paths that are open.
            clear: empty the buffer.

        Raises:
            NotEnoughItems: nothing is stored.
            ReplayError: a path is open and there are no values; or a reward, cost, value or
                bootstrap value is not finite (the message says where).
        """
        if not len(self):
            raise NotEnoughItems("the buffer holds no steps; store some before get()")
        if last_value_r is not None:
            self.finish_path(last_value_r, last_value_c)
        self._paths.require_finished()
        columns = {name: self._flat(name) for name in self._fields}
        ends = self._paths.ends()
        self._check_finite({**columns, "last_value_r": ends.value_r, "last_value_c": ends.value_c}, ends.is_done)
        rollout = Rollout(
            **{name: column for name, column in columns.items() if name not in self._extras},
            is_done=ends.is_done,
            **self.settings.estimate(columns, ends),
            extras={name: columns[name] for name in self._extras},
        )
        if clear:
            self.clear()
        put: Rollout = self._device.put(rollout)
        return put

    def minibatches(
        self, batch_size: int, *, epochs: int = 1, shuffle: bool = True, drop_last: bool = False
    ) -> Iterator[Rollout]:
        """:meth:`get`, then :meth:`Rollout.minibatches <rlds2buf.buffers.vectorized.rollout.Rollout.minibatches>`."""
        return self.get().minibatches(batch_size, epochs=epochs, shuffle=shuffle, drop_last=drop_last, seed=self._rng)

    def clear(self) -> None:
        """Forget all steps; added fields stay."""
        self._paths.clear()

    def state_dict(self) -> dict[str, Any]:
        """A deep copy of the steps stored, their paths and the generator's state."""
        columns = {f"{name}/{i}": c for name, columns in self._columns.items() for i, c in enumerate(columns)}
        columns.update((f"paths/{name}", column) for name, column in self._paths.arrays().items())
        return {
            "version": 1,
            "kind": "on_policy",
            "size": self.size,
            "num_envs": self.num_envs,
            "fields": list(self._fields),
            "rng": copy.deepcopy(self._rng.bit_generator.state),
            "arrays": {name: np.array(column) for name, column in columns.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            SnapshotError: it is of a buffer of another kind, size, number of environments or with other
                fields; nothing was changed.
        """
        mine = self.state_dict()
        for name in ("version", "kind", "size", "num_envs", "fields"):
            if state.get(name) != mine[name]:
                raise SnapshotError(
                    f"the state is of a buffer with {name} {state.get(name)!r}, this one has {mine[name]!r}"
                )
        arrays = {name: np.asarray(array) for name, array in state["arrays"].items()}
        kinds = [{name: (a.shape, a.dtype) for name, a in found.items()} for found in (arrays, mine["arrays"])]
        if kinds[0] != kinds[1]:
            raise SnapshotError("the state is of a buffer with other shapes or dtypes")
        self._rng.bit_generator.state = copy.deepcopy(state["rng"])
        self._seed = forks.seed_of(self._rng)
        for name, columns in self._columns.items():
            for i, column in enumerate(columns):
                column[...] = arrays[f"{name}/{i}"]
        for name, column in self._paths.arrays().items():
            column[...] = arrays[f"paths/{name}"]

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the buffer and the steps stored to a folder that :func:`rlds2buf.load_buffer` opens.

        Raises:
            SnapshotExists: `path` is there already and `overwrite` is False.
            SinkError: the files can't be written.
        """
        save_state(self.state_dict(), self._made(), Path(path), overwrite=overwrite)

    @classmethod
    def of_saved(cls, made: Mapping[str, Any]) -> OnPolicyBuffer:
        """An empty one of what :meth:`save` wrote of how it was made."""
        spec, settings = StepSpec.from_json(made["spec"]), AdvantageSettings(**made["settings"])
        device = Device(made["device"])
        return cls(spec, made["size"], settings, num_envs=made["num_envs"], device=device, seed=made["seed"])

    def _made(self) -> dict[str, Any]:
        return {
            "spec": self.spec.to_json(),
            "size": self.size,
            "settings": dataclasses.asdict(self.settings),
            "num_envs": self.num_envs,
            "device": self._device.name,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        forks.register(self, OnPolicyBuffer._forked)

    def _forked(self, number: int) -> None:
        """This is a child now: see core/forks.py."""
        self._seed = forks.fork_seed(self._seed, number)
        self._rng = np.random.default_rng(self._seed)

    def _new_field(self, name: str, structure: nest.Nest, *, extra: bool = False) -> None:
        field = StepField(name, structure)
        self._columns[name] = [
            np.zeros((self.num_envs, self.size, *(int(n or 0) for n in leaf.shape)), leaf.dtype)
            for _, leaf in field.leaves
        ]
        self._fields[name] = field
        if extra:
            self._extras[name] = structure

    def _complain(self, given: set[str]) -> None:
        missing = sorted(self._fields.keys() - given)
        if missing:
            raise ReplayError(f"store() lacks the fields {', '.join(missing)}")
        unknown = sorted(given - self._fields.keys())
        raise ReplayError(f"the buffer has no fields {', '.join(unknown)}; add_field() makes some")

    def _flat(self, name: str) -> nest.Nest:
        field = self._fields[name]
        return nest.unflatten(field.structure, iter([self._paths.flat(column) for column in self._columns[name]]))

    def _check_finite(self, numbers: dict[str, np.ndarray], is_done: np.ndarray) -> None:
        for name in ("reward", "cost", "value_r", "value_c", "last_value_r", "last_value_c"):
            bad = ~np.isfinite(numbers[name])
            if name.startswith("last"):
                bad &= is_done == TRUNCATED
            if bad.any():
                env, step = self._paths.where(int(bad.argmax()))
                raise ReplayError(f"environment {env}, step {step}: {name} is {numbers[name][bad.argmax()]}")


_RESERVED = frozenset(
    ("is_done", "terminated", "truncated", "final_value_r", "final_value_c", "env", "check_limits", *Rollout._fields)
)
