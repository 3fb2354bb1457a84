"""Replaying each policy on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.buffers.engine import Engine
from rlds2buf.buffers.multi_agent.new_items import Fresh, joined, old_for, shares
from rlds2buf.buffers.multi_agent.policies import Part
from rlds2buf.buffers.read.view import OPTIONS
from rlds2buf.core.sample import MultiAgentSample, Sample
from rlds2buf.errors import NotEnoughItems

__all__ = ["Generators", "Independent"]


class Generators(NamedTuple):
    """What a series of batches is drawn from, apart from all else: rounding (or time slots), and policy by policy."""

    own: np.random.Generator
    policies: Mapping[str, np.random.Generator]


class Independent:
    """Several buffers, and what is new in each.

    Args:
        engines: the buffers', by policy id.
        ratio: the share of replayed items in a batch, or None not to care what is new.
        rng: of random rounding.
    """

    def __init__(self, engines: Mapping[str, Engine], ratio: float | None, rng: np.random.Generator) -> None:
        self.engines = engines
        self.ratio = ratio
        self.rng = rng
        self.fresh = {name: Fresh() for name in engines}

    def add(
        self, parts: Sequence[Part], source_id: Any, priorities: Any, check_limits: bool = False
    ) -> dict[Any, np.ndarray]:
        """Store what was given for each policy or agent, all of it or none; returns the keys by their ids.

        Raises:
            SpecMismatch, EpisodeError, InvalidPriority, ValueError, TypeError: as ``Buffer.add`` says.
        """
        ready = []
        for part in parts:
            source = source_id.get(part.name, 0) if isinstance(source_id, Mapping) else source_id
            if part.agent is not None and isinstance(source, int) and source == 0:
                source = part.agent
            given = None if priorities is None else priorities.get(part.name)
            engine = self.engines[part.policy]
            ready.append((part, engine, engine.prepare(part.data, source, given, check_limits=check_limits)))
        keys = {}
        for part, engine, prepared in ready:
            with engine.lock:
                keys[part.name] = engine.add(prepared)
            self.fresh[part.policy].added(keys[part.name])
        return keys

    def check(self, parts: Sequence[Part], check_limits: bool) -> None:
        """Raise unless :meth:`add` would take it."""
        for part in parts:
            self.engines[part.policy].prepare(part.data, check_limits=check_limits)

    def sample(
        self,
        count: int,
        policy_id: str | None,
        replace: bool,
        options: dict[str, Any],
        generators: Generators | None = None,
    ) -> MultiAgentSample:
        """A batch of each policy that has something to give, drawn from the buffers' own generators or from these.

        Raises:
            NotEnoughItems: the message names the policy.
            ValueError: an argument is out of range.
        """
        batch = MultiAgentSample()
        names = list(self.engines) if policy_id is None else [policy_id]
        for name in names:
            engine = self.engines[name]
            if not engine.sampler.count:
                continue
            try:
                sample, new = self._of_policy(name, engine, count, {"replace": replace, **options}, generators)
            except NotEnoughItems as error:
                raise NotEnoughItems(f"policy {name!r}: {error}") from error
            if sample is not None:
                batch[name] = sample
                if self.ratio is not None:
                    batch.num_new[name] = new
        return batch

    def _of_policy(
        self, name: str, engine: Engine, count: int, options: dict[str, Any], generators: Generators | None
    ) -> tuple[Sample | None, int]:
        """A policy's items and how many of them are new; None if there are none to give."""
        ratio, fresh = self.ratio, self.fresh[name]
        rng, drawn = (self.rng, None) if generators is None else (generators.own, generators.policies[name])
        if ratio is None or ratio == 1.0:
            return _drawn(engine, drawn, count, options), 0
        if options.get("source_id") is not None:
            raise ValueError("source_id can't be used where new items are mixed in")
        # New items are taken only for a view that is one.
        view = engine.view.changed(**{key: value for key, value in options.items() if key in OPTIONS})
        if not fresh.waiting(engine):
            return None, 0
        wanted = shares(count, ratio, rng)
        keys = fresh.take(engine, wanted)
        old = old_for(len(keys), wanted, count, ratio, rng)
        samples = [fresh.sample(engine, keys, view, engine.rng if drawn is None else drawn)] if len(keys) else []
        if old:
            samples.append(_drawn(engine, drawn, old, options))
        return (joined(samples), len(keys)) if samples else (None, 0)


def _drawn(engine: Engine, rng: np.random.Generator | None, count: int, options: dict[str, Any]) -> Sample:
    return engine.draw(engine.rng if rng is None else rng, count, engine.request(**options))
