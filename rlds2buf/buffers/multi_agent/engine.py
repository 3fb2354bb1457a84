"""What is inside a multi-agent buffer: its policies' buffers, and how they are replayed together."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.multi_agent.independent import Generators, Independent
from rlds2buf.buffers.multi_agent.lockstep import Lockstep
from rlds2buf.buffers.multi_agent.new_items import Fresh
from rlds2buf.buffers.multi_agent.policies import Agents, checked_settings
from rlds2buf.core import forks
from rlds2buf.core.sample import MultiAgentSample
from rlds2buf.errors import NotEnoughItems, SnapshotCorrupt, SnapshotError

__all__ = ["MultiAgentEngine"]

_VERSION = 1


class MultiAgentEngine:
    """All of a multi-agent buffer but its public methods; only what is said to take the lock does.

    Args:
        policies: the buffers, by policy id.
        settings: of :func:`rlds2buf.make_multi_agent`: mode, learning_starts, num_shards, replay_ratio
            and when_not_ready.
        mapping: agent id to policy id, a mapping or a function, or None where data come by policy id.
        rng: of the draws of time steps and of random rounding.

    Attributes:
        engines: the buffers' own.
        agents: which policy data belong to.
        ratio: the share of replayed items in a batch, or None.
        starts: environment steps before anything is sampled.
        seed: what `rng` started from.
        lock: over everything here; taken before those of the policies.
        independent, lockstep: the two ways of replay; the second one None unless it is used.
        env_steps: environment steps added so far.
        provenance: what is saved with it.

    Raises:
        ValueError: a setting is out of range, or the mapping leads to an unknown policy.
    """

    def __init__(
        self, policies: dict[str, Buffer], settings: Mapping[str, Any], mapping: Any, rng: np.random.Generator
    ) -> None:
        checked_settings(**settings)
        self.policies = policies
        self.engines = {name: buffer.engine for name, buffer in policies.items()}
        self.settings = dict(settings)
        self.agents = Agents(policies, mapping)
        self.ratio: float | None = settings["replay_ratio"]
        self.starts: int = settings["learning_starts"] // settings["num_shards"]
        self.rng = rng
        self.seed = forks.seed_of(rng)
        self.lock: Any = threading.RLock()
        self.env_steps = 0
        self.provenance: dict[str, Any] = {}
        self.independent = Independent(self.engines, self.ratio, rng)
        self.lockstep = Lockstep(self.engines, self.ratio, rng) if settings["mode"] == "lockstep" else None
        forks.register(self, MultiAgentEngine.forked, lock=lambda engine: engine.lock, outer=True)

    def __len__(self) -> int:
        """Items of all policies; in lockstep time slots."""
        return sum(map(len, self.policies.values())) if self.lockstep is None else len(self.lockstep.slots)

    def draw(
        self,
        batch_size: int,
        policy_id: str | None,
        replace: bool,
        options: dict[str, Any],
        generators: Generators | None = None,
    ) -> MultiAgentSample:
        """A batch, from the buffers' own generators or from these; takes the lock."""
        with self.lock:
            if policy_id is not None:
                self.agents.known(policy_id)
            if self.env_steps < self.starts:
                return self._nothing(f"{self.env_steps} environment steps were added, learning starts at {self.starts}")
            if self.lockstep is not None:
                if policy_id is not None:
                    raise ValueError("policy_id is for independent replay: in lockstep all policies come together")
                batch = self.lockstep.sample(batch_size, replace, options, generators and generators.own)
            else:
                batch = self.independent.sample(batch_size, policy_id, replace, options, generators)
            if batch:
                return batch
            new = self.ratio is not None and self.ratio < 1.0 and len(self)
            return self._nothing(
                "there are no new items to mix in" if new else "the buffer holds 0 items, at least 1 is needed"
            )

    def refuse_request(self, policy_id: str | None, replace: bool, options: Mapping[str, Any]) -> None:
        """Raise if nothing can ever be sampled so."""
        if self.lockstep is not None:
            if policy_id is not None:
                raise ValueError("policy_id is for independent replay: in lockstep all policies come together")
            self.lockstep.refuse_options(options)
        for name in self.engines if policy_id is None else [self.agents.known(policy_id)]:
            self.engines[name].request(replace=replace, **options)

    def forked(self, number: int) -> None:
        """This is a child now: see core/forks.py."""
        self.lock = threading.RLock()
        self.seed = forks.fork_seed(self.seed, number)
        self.rng = self.independent.rng = np.random.default_rng(self.seed)
        if self.lockstep is not None:
            self.lockstep.rng = self.rng

    # -- everything, as plain values and arrays, and back -----------------------------------------

    def describe(self) -> dict[str, Any]:
        """What is neither in the policies' buffers nor in arrays, as plain JSON values."""
        return {
            "kind": "multi_agent",
            "settings": dict(self.settings),
            "env_steps": self.env_steps,
            "agents": [[agent, number] for agent, number in self.agents.numbers.items()],
            "fresh": {name: [fresh.next, fresh.end] for name, fresh in self.independent.fresh.items()},
            "next_slot": 0 if self.lockstep is None else self.lockstep.next_slot,
            "lockstep": None if self.lockstep is None else self.lockstep.state(),
            "rng": self.rng.bit_generator.state,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The time slots of lockstep replay."""
        if self.lockstep is None:
            return {}
        self.lockstep.follow()
        return self.lockstep.slots.state()

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Fill in all but the policies' buffers.

        Raises:
            SnapshotCorrupt: something is missing or does not fit together.
        """
        rng = np.random.default_rng()
        try:
            json.dumps(state["agents"])  # plain values only
            numbers = {agent: int(number) for agent, number in state["agents"]}
            env_steps, next_slot = int(state["env_steps"]), int(state["next_slot"])
            fresh = {name: Fresh() for name in self.policies}
            for name, one in fresh.items():
                one.next, one.end = (int(value) for value in state["fresh"][name])
            if state["rng"] is not None:
                rng.bit_generator.state = state["rng"]
            if self.lockstep is not None:
                self.lockstep.restore(state["lockstep"], arrays)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as cause:
            raise SnapshotCorrupt(f"the saved state does not fit together: {cause!r}") from cause
        if state["rng"] is not None:
            self.rng.bit_generator.state = state["rng"]
            self.seed = forks.seed_of(self.rng)
        self.agents.numbers = numbers
        self.env_steps, self.independent.fresh = env_steps, fresh
        if self.lockstep is not None:
            self.lockstep.next_slot = next_slot

    def state(self) -> dict[str, Any]:
        """A deep copy of everything."""
        return {
            **copy.deepcopy(self.describe()),
            "version": _VERSION,
            "policies": {name: policy.state_dict() for name, policy in self.policies.items()},
            "arrays": self.arrays(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Become what :meth:`state` gave.

        Raises:
            SnapshotError: it is of other policies, settings or versions, or not whole; nothing was changed.
        """
        missing = {*self.describe(), "version", "policies", "arrays"} - set(state)
        if missing:
            raise SnapshotError(f"the state lacks {', '.join(sorted(missing))}")
        if state["version"] != _VERSION:
            raise SnapshotError(f"the state has version {state['version']!r}, expected {_VERSION}")
        for name, mine in (("kind", "multi_agent"), ("settings", self.settings)):
            if state[name] != mine:
                raise SnapshotError(f"the state is of a buffer with {name} {state[name]!r}, this one has {mine!r}")
        if list(state["policies"]) != list(self.policies):
            raise SnapshotError(
                f"the state is of policies {', '.join(state['policies'])}, this buffer has {', '.join(self.policies)}"
            )
        before = self.state()
        try:
            self._put(state)
        except SnapshotError:
            self._put(before)
            raise

    def _put(self, state: Mapping[str, Any]) -> None:
        for name, policy in self.policies.items():
            policy.load_state_dict(state["policies"][name])
        self.restore(state, state["arrays"])

    def _nothing(self, why: str) -> MultiAgentSample:
        if self.settings["when_not_ready"] == "raise":
            raise NotEnoughItems(f"nothing to sample: {why}")
        return MultiAgentSample()
