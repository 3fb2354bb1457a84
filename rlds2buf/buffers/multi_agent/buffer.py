"""A buffer per policy, replayed independently or in lockstep."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.copies import require_names
from rlds2buf.buffers.keys import as_keys
from rlds2buf.buffers.multi_agent.engine import MultiAgentEngine
from rlds2buf.buffers.multi_agent.independent import Generators
from rlds2buf.buffers.multi_agent.policies import checked_settings, make_policies
from rlds2buf.buffers.multi_agent.saved import save
from rlds2buf.buffers.read.prefetch import Batches
from rlds2buf.buffers.rows.step_ids import IDS
from rlds2buf.buffers.select.prioritized import checked_priorities
from rlds2buf.core import shown
from rlds2buf.core.arguments import integer
from rlds2buf.core.closed import Closed
from rlds2buf.core.frameworks import converter
from rlds2buf.core.sample import MultiAgentSample, Trajectory, Transition, Windows

__all__ = ["MultiAgentBuffer", "make_multi_agent"]


def make_multi_agent(
    policies: Mapping[str, Buffer | tuple[Any, Any] | Callable[[], Buffer]],
    *,
    mode: str = "independent",
    learning_starts: int = 0,
    num_shards: int = 1,
    policy_mapping: Mapping[Any, str] | Callable[[Any], str] | None = None,
    replay_ratio: float | None = None,
    when_not_ready: str = "raise",
    seed: int | None = None,
) -> MultiAgentBuffer:
    """A buffer per policy.

    Args:
        policies: policy id to its buffer: one that a ``make_*`` function made, a function that
            makes it, or ``(spec, options)`` with ``options["kind"]`` the part of such a function's
            name behind ``make_`` (``"circular"`` if there is none) and the rest its arguments; the
            spec may be a pair of spaces, and such a pair alone stands for one without options.
        mode: ``"independent"``: each policy's items are drawn on their own. ``"lockstep"``: time
            steps are drawn, and all policies' rows of each come together; for circular buffers of
            timesteps that count rows.
        learning_starts: nothing is sampled before that many environment steps were added.
        num_shards: how many such buffers share the work: capacities and `learning_starts` are
            divided by it (rounding down).
        policy_mapping: agent id to policy id, a mapping or a function. Data come by agent id then,
            and the steps of two agents of one policy don't follow one another.
        replay_ratio: every batch holds new items, each in one batch only, and replayed ones, which are
            this share of it on average: 0 only new ones, 1 only replayed ones. None does not care
            what is new.
        when_not_ready: what ``sample`` does before `learning_starts`, or while there is nothing to
            give: ``"raise"``, or give an ``"empty"`` batch.
        seed: of the draws of time steps, of random rounding, and of buffers made from ``(spec, options)``.

    Returns:
        MultiAgentBuffer, empty unless the given buffers are not.

    Raises:
        ValueError: an argument is out of range or of no use here.
        TypeError: a policy has no buffer.

    >>> from rlds2buf import Episode, spec_of
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5), discount=np.ones(5))
    >>> spec = spec_of(ep)
    >>> buffer = make_multi_agent({"ant": (spec, {"capacity": 100}), "bee": (spec, {"capacity": 100})}, seed=0)
    >>> buffer.add({"ant": ep})
    {'ant': array([0, 1, 2, 3], dtype=uint64)}
    >>> batch = buffer.sample(3)
    >>> {policy: len(sample.info.key) for policy, sample in batch.items()}
    {'ant': 3}
    """
    settings: dict[str, Any] = {
        "mode": mode,
        "learning_starts": learning_starts,
        "num_shards": num_shards,
        "replay_ratio": replay_ratio,
        "when_not_ready": when_not_ready,
    }
    checked_settings(**settings)
    buffers, children = make_policies(policies, num_shards, seed)
    return MultiAgentBuffer(MultiAgentEngine(buffers, settings, policy_mapping, np.random.default_rng(children)))


class MultiAgentBuffer(Closed):
    """Several buffers by policy id; made by :func:`make_multi_agent`.

    Attributes:
        engine: what is inside, for the modules of this package; no part of what versions keep.
        policies: policy id to :class:`~rlds2buf.buffers.buffer.Buffer`.
        mode: ``"independent"`` or ``"lockstep"``.
        env_steps: environment steps added so far.
        provenance: of a loaded buffer: what was saved with it.
    """

    kind = "multi_agent"
    engine: MultiAgentEngine

    def __init__(self, engine: MultiAgentEngine) -> None:
        self.engine = engine

    @property
    def policies(self) -> dict[str, Buffer]:
        """Policy id to its buffer."""
        return self.engine.policies

    @property
    def mode(self) -> str:
        """``"independent"`` or ``"lockstep"``."""
        return str(self.engine.settings["mode"])

    @property
    def env_steps(self) -> int:
        """Environment steps added so far."""
        return self.engine.env_steps

    @env_steps.setter
    def env_steps(self, value: int) -> None:
        self.engine.env_steps = value

    @property
    def provenance(self) -> dict[str, Any]:
        """What was saved with it, and will be."""
        return self.engine.provenance

    @provenance.setter
    def provenance(self, value: Mapping[str, Any]) -> None:
        self.engine.provenance = dict(value)

    def __repr__(self) -> str:
        held = ", ".join(f"{name}: {len(buffer):,}" for name, buffer in self.policies.items())
        what = "items" if self.engine.lockstep is None else f"{len(self):,} time steps, items"
        rows = [row for name, buffer in self.policies.items() for row in ((f"  {name}", ""), *_inside(buffer))]
        return shown.aligned(f"<MultiAgentBuffer: {self.mode}, {what} by policy: {held}>", rows)

    def __len__(self) -> int:
        """Items of all policies; in lockstep time slots."""
        return len(self.engine)

    @property
    def ready(self) -> bool:
        """Whether `learning_starts` is reached."""
        return self.env_steps >= self.engine.starts

    def add(
        self,
        data: Any,
        *,
        source_id: Any = 0,
        priorities: Mapping[Any, npt.ArrayLike] | None = None,
        env_steps: int | None = None,
        episode_id: Any = None,
        t: Any = None,
        agent_index: Any = None,
        check_limits: bool = False,
    ) -> dict[Any, np.ndarray]:
        """Store data of several policies, all of it or none.

        Args:
            data: policy id (with a `policy_mapping`: agent id) to what ``Buffer.add`` takes. Absent
                agents are left out, or None. Data that are no such mapping are ``"default_policy"``'s.
            source_id: as for ``Buffer.add``, or by policy (agent) id.
            priorities: by policy (agent) id, for prioritized buffers: one for each transition.
            env_steps: how many environment steps these are. Unless given: in lockstep the new time
                slots, else the most transitions that one policy (agent) adds.
            episode_id, t, agent_index: in lockstep: which rows belong together, integers, for all rows or
                ``[items]``, or by policy (agent) id. Each may be a column or an extra of the data
                instead; with a `policy_mapping`, the agent's index is its number unless given, and
                an Episode's steps count from 0.
            check_limits: refuse values outside the specs' limits and finite sets too.

        Returns:
            Keys ``[items] uint64`` by the ids given.

        Raises:
            ReplayError: a policy or agent is unknown; nothing was added.
            SpecMismatch, EpisodeError, InvalidPriority, ValueError, TypeError: as ``Buffer.add`` says, or
                in lockstep a column is missing, or a row is there already; nothing was added.
        """
        engine = self.engine
        with engine.lock:
            parts = engine.agents.parts(data)
            if engine.lockstep is None:
                _refuse_ids({"episode_id": episode_id, "t": t, "agent_index": agent_index})
                keys = engine.independent.add(parts, source_id, priorities, check_limits)
                new = max((len(mine) for mine in keys.values()), default=0)
            else:
                if priorities is not None or (isinstance(source_id, Mapping) or np.any(np.asarray(source_id) != 0)):
                    raise ValueError("priorities and source_id are for independent replay, not for lockstep")
                made = engine.lockstep.slots.made
                ids = {"episode_id": episode_id, "t": t, "agent_index": agent_index}
                keys = engine.lockstep.add(parts, ids, check_limits)
                new = engine.lockstep.slots.made - made
            engine.agents.remember(parts)
            engine.env_steps += new if env_steps is None else int(env_steps)
        return keys

    def sample(
        self, batch_size: int, policy_id: str | None = None, *, replace: bool = True, **options: Any
    ) -> MultiAgentSample:
        """Draw a batch.

        Args:
            batch_size: how many items of each policy that has any; in lockstep how many time slots.
            policy_id: only of this policy.
            replace: whether one item (slot) may be drawn more than once.
            options: for ``Buffer.sample``, for example `beta`, `n_step` or `sequence_length`; in
                lockstep those of ``Buffer.get``.

        Returns:
            MultiAgentSample: policy id to Sample.

        Raises:
            NotEnoughItems: `learning_starts` is not reached or there is nothing to draw, unless such a
                batch is to be empty; or without replacement there are fewer items.
            ReplayError: the policy is unknown.
            ValueError: an argument is out of range, or of no use in lockstep.
        """
        batch_size = integer("batch_size", batch_size, 1)
        return self.engine.draw(batch_size, policy_id, replace, options)

    @overload
    def batches(
        self,
        batch_size: int,
        policy_id: str | None = None,
        *,
        prefetch: int = 2,
        to: Literal["numpy"] = "numpy",
        steps: int | None = None,
        together: int = 1,
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 60.0,
        replace: bool = True,
        **options: Any,
    ) -> Batches[MultiAgentSample]: ...
    @overload
    def batches(
        self,
        batch_size: int,
        policy_id: str | None = None,
        *,
        prefetch: int = 2,
        to: str,
        steps: int | None = None,
        together: int = 1,
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 60.0,
        replace: bool = True,
        **options: Any,
    ) -> Batches[Any]: ...
    def batches(
        self,
        batch_size: int,
        policy_id: str | None = None,
        *,
        prefetch: int = 2,
        to: str = "numpy",
        steps: int | None = None,
        together: int = 1,
        pin_memory: bool = False,
        device: Any = None,
        timeout: float = 60.0,
        replace: bool = True,
        **options: Any,
    ) -> Batches[Any]:
        """Iterate over batches that are drawn in the background.

        As those of ``Buffer.batches``, the draws come of generators of their own. Where new items are
        mixed in, each is in one batch only, also in one that was drawn ahead.

        Args:
            batch_size, policy_id, replace, options: as for :meth:`sample`.
            prefetch, to, steps, together, pin_memory, device, timeout: as for ``Buffer.batches``.

        Returns:
            An iterator of MultiAgentSamples; a context manager too, and ``close()`` ends it early.

        Raises:
            ReplayError: the policy is unknown; or, raised by the iterator, no batch came in time.
            NotEnoughItems: as for :meth:`sample`; raised by the iterator.
            MissingDependency, ValueError, TypeError: as for ``Buffer.batches``.
        """
        convert = converter(to, device=device, pin_memory=pin_memory)
        batch_size = integer("batch_size", batch_size, 1)
        engine = self.engine
        with engine.lock:
            engine.refuse_request(policy_id, replace, options)
            own, *others = (
                np.random.default_rng(rng.integers(1 << 63, size=4))
                for rng in (engine.rng, *(one.rng for one in engine.engines.values()))
            )
        generators = Generators(own, dict(zip(self.policies, others, strict=True)))

        def draw(count: int) -> list[MultiAgentSample]:
            return [engine.draw(batch_size, policy_id, replace, options, generators) for _ in range(count)]

        return Batches(
            draw, methodcaller("converted", convert), steps=steps, prefetch=prefetch, together=together, timeout=timeout
        )

    def update_priorities(self, updates: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> dict[str, np.ndarray]:
        """Set priorities from TD errors.

        Args:
            updates: policy id to ``(keys [B], td_errors [B])``; the errors' sizes count, not their signs.

        Returns:
            Policy id to those keys that are not held any more.

        Raises:
            ReplayError: a policy is unknown or keeps no priorities; nothing was changed.
            InvalidPriority: an error is NaN or infinite; nothing was changed.
        """
        with self.engine.lock:
            ready = []
            for name, (keys, errors) in updates.items():
                buffer = self.policies[self.engine.agents.known(name)]
                buffer.engine.require_priorities(f"the buffer of policy {name!r}")
                wanted = as_keys(keys)
                sizes = np.abs(np.atleast_1d(np.asarray(errors, np.float64)))
                ready.append((name, buffer, wanted, checked_priorities(sizes, len(wanted))))
            return {name: buffer.update_priorities(keys, sizes) for name, buffer, keys, sizes in ready}

    def check(
        self, data: Any, *, episode_id: Any = None, t: Any = None, agent_index: Any = None, check_limits: bool = True
    ) -> None:
        """Raise unless :meth:`add` would take `data`; nothing is added.

        Args:
            data, episode_id, t, agent_index: as for :meth:`add`.
            check_limits: compare values with the specs' limits and finite sets too.

        Raises:
            ReplayError, SpecMismatch, EpisodeError, ValueError, TypeError: as for :meth:`add`.
        """
        engine = self.engine
        with engine.lock:
            parts = engine.agents.parts(data)
            ids = {"episode_id": episode_id, "t": t, "agent_index": agent_index}
            if engine.lockstep is not None:
                engine.lockstep.check(parts, ids, check_limits)
                return
            _refuse_ids(ids)
            engine.independent.check(parts, check_limits)

    def get(self, keys: Mapping[str, npt.ArrayLike], **options: Any) -> dict[str, Transition | Trajectory | Windows]:
        """The items of these keys, policy by policy, as ``Buffer.get`` gives them.

        Args:
            keys: policy id to keys ``[B]``.
            options: as for ``Buffer.get``.

        Raises:
            ReplayError: a policy is unknown.
            UnknownKey: a key was never given out, or its item has left.
        """
        with self.engine.lock:
            return {
                name: self.policies[self.engine.agents.known(name)].get(mine, **options) for name, mine in keys.items()
            }

    def all(self, **options: Any) -> dict[str, Any]:
        """Policy id to every transition held, oldest first, as ``Buffer.all`` gives them; `options` are its."""
        with self.engine.lock:
            return {name: buffer.all(**options) for name, buffer in self.policies.items()}

    def resize(self, capacity: int | Mapping[str, int]) -> None:
        """Change the capacities, keeping the newest that fits; reservoirs keep a fair choice.

        Args:
            capacity: of every policy's buffer, or policy id to that of its own. It is not divided by
                `num_shards`.

        Raises:
            ReplayError: a policy is unknown, or a reservoir is to grow that has let items go already; nothing
                was changed.
        """
        with self.engine.lock:
            wanted = capacity if isinstance(capacity, Mapping) else dict.fromkeys(self.policies, capacity)
            sizes = {self.engine.agents.known(name): integer("capacity", size, 0) for name, size in wanted.items()}
            for name, size in sizes.items():
                self.policies[name].engine.contents.refuse_resize(size)
            for name, size in sizes.items():
                self.policies[name].resize(size)
            if self.engine.lockstep is not None:
                self.engine.lockstep.follow()

    def keys(self) -> dict[str, np.ndarray]:
        """Policy id to the keys ``uint64`` of its transitions held, oldest first."""
        with self.engine.lock:
            return {name: buffer.keys() for name, buffer in self.policies.items()}

    def clear(self) -> None:
        """Drop everything held, and count environment steps from 0."""
        with self.engine.lock:
            for buffer in self.policies.values():
                buffer.clear()
            self.env_steps = 0
            if self.engine.lockstep is not None:
                self.engine.lockstep.clear()

    def stats(self, debug: bool = False) -> dict[str, Any]:
        """Counts and sizes as plain numbers, and each policy's own under ``policies``.

        Args:
            debug: what ``Buffer.stats`` has with it too, for each policy.
        """
        with self.engine.lock:
            policies = {name: buffer.stats(debug) for name, buffer in self.policies.items()}
            slots = 0 if self.engine.lockstep is None else self.engine.lockstep.slots.nbytes
            return {
                "kind": self.kind,
                **self.engine.settings,
                "num_items": len(self),
                "env_steps": self.env_steps,
                "bytes": slots + sum(stats["bytes"] for stats in policies.values()),
                "policies": policies,
            }

    def state_dict(self) -> dict[str, Any]:
        """A deep copy of everything; :meth:`load_state_dict` restores it, draws included."""
        with self.engine.lock:
            return self.engine.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave.

        Raises:
            SnapshotError: it is of other policies or settings, or not whole; nothing was changed.
        """
        with self.engine.lock:
            self.engine.set_state(state)

    def save(self, path: str | Path, *, overwrite: bool = False, provenance: Mapping[str, Any] | None = None) -> None:
        """Write a folder that :func:`rlds2buf.load_buffer` opens; each policy's is a saved buffer inside it.

        Raises:
            SnapshotExists: `path` is there already and `overwrite` is False.
            SinkError: the files can't be written.
        """
        with self.engine.lock:
            if provenance is not None:
                self.provenance = dict(provenance)
            save(self.engine, Path(path), overwrite=overwrite)

    def __reduce__(self) -> tuple[Any, ...]:
        """For ``pickle`` and ``copy``: everything, each policy's buffer as it goes by itself."""
        engine = self.engine
        with engine.lock:
            mapping = engine.agents.mapping
            if callable(mapping):
                require_names({"policy_mapping": mapping})
            state = copy.deepcopy(engine.describe())
            return _revived, (dict(engine.policies), mapping, state, engine.arrays(), dict(engine.provenance))


def _refuse_ids(ids: Mapping[str, Any]) -> None:
    if any(value is not None for value in ids.values()):
        raise ValueError(
            f"as arguments {', '.join(IDS)} are for lockstep replay, and this buffer's is independent: there they are "
            "columns of the transitions"
        )


def _inside(buffer: Buffer) -> list[tuple[str, str]]:
    return [(f"  {name}", text) for name, text in shown.spec_rows(buffer.spec)]


def _revived(
    policies: dict[str, Buffer],
    mapping: Any,
    state: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    provenance: dict[str, Any],
) -> MultiAgentBuffer:
    """A copy of all this."""
    engine = MultiAgentEngine(policies, state["settings"], mapping, np.random.default_rng())
    engine.restore(state, arrays)
    engine.provenance = provenance
    return MultiAgentBuffer(engine)
