"""Who is who in a multi-agent buffer: policies and their buffers, agents and their policies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.factories import MAKERS
from rlds2buf.buffers.storage_units import DEFAULT_CAPACITY
from rlds2buf.core.arguments import integer
from rlds2buf.core.episode import Episode
from rlds2buf.core.spaces import is_pair_of_spaces
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import ReplayError

__all__ = ["DEFAULT_POLICY", "Agents", "Part", "checked_settings", "make_policies"]

DEFAULT_POLICY = "default_policy"
"""Whose data are that come without a policy id."""


def checked_settings(
    mode: str, learning_starts: int, num_shards: int, replay_ratio: float | None, when_not_ready: str
) -> None:
    """Raise ValueError if one is out of range."""
    if mode not in ("independent", "lockstep"):
        raise ValueError(f"mode must be 'independent' or 'lockstep', got {mode!r}")
    integer("learning_starts", learning_starts, 0)
    integer("num_shards", num_shards, 1)
    if replay_ratio is not None and not 0.0 <= replay_ratio <= 1.0:
        raise ValueError(f"replay_ratio must be in [0, 1], got {replay_ratio}")
    if when_not_ready not in ("raise", "empty"):
        raise ValueError(f"when_not_ready must be 'raise' or 'empty', got {when_not_ready!r}")


def make_policies(
    policies: Mapping[str, Any], num_shards: int, seed: int | None
) -> tuple[dict[str, Buffer], np.random.SeedSequence]:
    """The buffers, their capacities divided, and a seed for what has none yet.

    Raises:
        ValueError, TypeError: as :func:`rlds2buf.make_multi_agent` says.
    """
    if not isinstance(policies, Mapping):
        raise TypeError(
            "policies is a mapping of policy id to buffer, such as {'agent_0': make_circular(spec, 1000)}, "
            f"got {type(policies).__name__}"
        )
    if not policies:
        raise ValueError("there are no policies")
    own, *children = np.random.SeedSequence(seed).spawn(len(policies) + 1)
    buffers: dict[str, Buffer] = {}
    for (name, given), child in zip(policies.items(), children, strict=True):
        if not isinstance(name, str):
            raise TypeError(f"policy ids are strings, got {name!r}")
        buffer = _made(name, given, num_shards, child)
        if any(buffer is other for other in buffers.values()):
            raise ValueError(f"policy {name!r} has the same buffer as another one; each needs its own")
        buffers[name] = buffer
    return buffers, own


class Part(NamedTuple):
    """What was given for one policy or agent: its id, the policy's, the data, and the agent's number or None."""

    name: Any
    policy: str
    data: Any
    agent: int | None


class Agents:
    """Which policy data belong to.

    Args:
        policies: their ids.
        mapping: agent id to policy id, or None where data come by policy id.

    Attributes:
        numbers: agent id to its number, in the order of their first data.

    Raises:
        ValueError: the mapping leads to an unknown policy.
    """

    def __init__(self, policies: Collection[str], mapping: Any = None) -> None:
        self._policies = policies
        self.mapping = dict(mapping) if isinstance(mapping, Mapping) else mapping
        self.numbers: dict[Any, int] = {}
        if isinstance(self.mapping, dict):
            unknown = sorted({str(policy) for policy in self.mapping.values() if policy not in policies})
            if unknown:
                raise ValueError(f"policy_mapping leads to {', '.join(unknown)}, which are no policies")
        elif mapping is not None and not callable(mapping):
            raise ValueError(f"policy_mapping must be a mapping or a function, got {mapping!r}")

    def known(self, policy: Any) -> str:
        """The policy id, if there is one.

        Raises:
            ReplayError: the message names those that are known.
        """
        if not isinstance(policy, str) or policy not in self._policies:
            raise ReplayError(f"unknown policy {policy!r}; known: {', '.join(self._policies)}")
        return policy

    def parts(self, data: Any) -> list[Part]:
        """Everything that was given; nothing changes yet.

        Raises:
            ReplayError: a policy or agent is unknown.
            TypeError: an agent's id is neither a string nor an integer.
        """
        if data is None or (isinstance(data, str | list | tuple | Mapping) and not len(data)):
            return []
        if not self._by_id(data):
            return [Part(DEFAULT_POLICY, self.known(DEFAULT_POLICY), data, None)]
        if self.mapping is None:
            return [Part(name, self.known(name), part, None) for name, part in data.items()]
        numbers = dict(self.numbers)
        return [
            Part(agent, self._policy_of(agent), part, numbers.setdefault(agent, len(numbers)))
            for agent, part in data.items()
        ]

    def remember(self, parts: Sequence[Part]) -> None:
        """What :meth:`parts` gave was stored: new agents keep their numbers."""
        self.numbers.update((part.name, part.agent) for part in parts if part.agent is not None)

    def _by_id(self, data: Any) -> bool:
        """Whether data are a mapping by id, and not those of one policy: a mapping of the columns of transitions."""
        if not isinstance(data, Mapping) or isinstance(data, Episode):
            return False
        return "observation" not in data or "observation" in self._policies

    def _policy_of(self, agent: Any) -> str:
        if not isinstance(agent, str | int):
            raise TypeError(f"agent ids are strings or integers, got {agent!r}")
        if isinstance(self.mapping, dict):
            if agent not in self.mapping:
                raise ReplayError(f"unknown agent {agent!r}; known: {', '.join(map(str, self.mapping))}")
            return str(self.mapping[agent])
        return self.known(self.mapping(agent))


def _made(name: str, given: Any, num_shards: int, seed: np.random.SeedSequence) -> Buffer:
    if is_pair_of_spaces(given):
        given = (given, {})
    if isinstance(given, tuple) and len(given) == 2 and (isinstance(given[0], StepSpec) or is_pair_of_spaces(given[0])):
        if not isinstance(given[1], Mapping):
            got = repr(given[1])
            raise TypeError(f"the options of policy {name!r} are a mapping, such as {{'capacity': 1000}}, got {got}")
        buffer = _from_options(name, given[0], dict(given[1]), num_shards, seed)
    else:
        buffer = given() if isinstance(given, Callable) else given  # type: ignore[arg-type]
        if isinstance(buffer, Buffer) and num_shards > 1:
            buffer.resize(_shard(name, buffer.capacity, num_shards))
    if not isinstance(buffer, Buffer):
        raise TypeError(
            f"policy {name!r} needs a buffer, a function that makes one, or (spec, options) such as "
            f"(spec, {{'capacity': 1000}}), got {type(buffer).__name__}"
        )
    return buffer


def _from_options(
    name: str, spec: Any, options: dict[str, Any], num_shards: int, seed: np.random.SeedSequence
) -> Buffer:
    kind = options.pop("kind", "circular")
    make = MAKERS.get("circular" if kind == "uniform" else kind)
    if make is None:
        raise ValueError(
            f"the options of policy {name!r} need a kind that has a make_ function with a capacity, not {kind!r}"
        )
    options["capacity"] = _shard(name, options.get("capacity", DEFAULT_CAPACITY), num_shards)
    return make(spec, **{"seed": seed, **options})


def _shard(name: str, capacity: int, num_shards: int) -> int:
    if num_shards > 1 and capacity // num_shards < 1:
        raise ValueError(f"a capacity of {capacity} can't be divided into {num_shards} shards (policy {name!r})")
    return capacity // num_shards
