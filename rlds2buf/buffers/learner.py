"""What learners ask of buffers: batches of at least so many steps, and priorities from their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.finishing import OPTIONS as FINISHING
from rlds2buf.buffers.finishing import finisher
from rlds2buf.buffers.multi_agent.buffer import MultiAgentBuffer
from rlds2buf.buffers.multi_agent.lockstep import Lockstep
from rlds2buf.buffers.multi_agent.new_items import joined
from rlds2buf.core import nest
from rlds2buf.core.arguments import integer
from rlds2buf.core.sample import MultiAgentSample, Sample, SampleInfo, Trajectory
from rlds2buf.errors import NotEnoughItems

__all__ = ["sample_min_n_steps", "update_priorities_from_learner"]


def sample_min_n_steps(
    buffer: Buffer | MultiAgentBuffer, num_steps: int, *, count_by: str = "env", **options: Any
) -> Any:
    """Draw items until they have at least that many steps together.

    A transition is one step, whatever its horizon; a sequence, or an item that comes whole, has as many as
    its mask: neither padding nor burn-in count.  No item too many is drawn: without the last one there
    are fewer steps.

    ========  ==================================================  =========================================
    count_by  independent replay                                  lockstep
    ========  ==================================================  =========================================
    "env"     steps of the environment, in each of which every    time slots: a slot has as many steps as
              policy takes one: those of each policy by itself    the longest of its items
    "agent"   steps of all policies together, which take turns    steps of all items of all policies together
              with one item each
    ========  ==================================================  =========================================

    Of a buffer of one policy both are the same.

    Args:
        buffer: of one policy, or of several.
        num_steps: at least 1.
        count_by: ``"env"`` or ``"agent"``.
        options: for ``buffer.sample``.

    Returns:
        Sample; of a multi-agent buffer a MultiAgentSample of the policies that have data (or of the one in
        ``policy_id``).  Where new items are mixed in there may be fewer steps, if no new ones are left.

    Raises:
        NotEnoughItems, ValueError: as ``buffer.sample`` says; also ValueError for ``replace=False``.

    >>> from rlds2buf import Episode, make_circular, spec_of
    >>> ep = Episode(observation=np.arange(3.0), action=np.zeros(3), reward=np.ones(3), discount=np.ones(3))
    >>> buffer = make_circular(spec_of(ep), 10, seed=0)
    >>> keys = buffer.add(ep)
    >>> int(sample_min_n_steps(buffer, 7, sequence_length=5).data.mask.sum()) in (7, 8)
    True
    """
    num_steps = integer("num_steps", num_steps, 1)
    if count_by not in ("env", "agent"):
        raise ValueError(f"count_by must be 'env' or 'agent', got {count_by!r}")
    if options.get("replace") is False:
        raise ValueError("replace=False is for one draw, and this may take several")
    if isinstance(buffer, Buffer):
        finish = finisher(buffer.spec, **{name: options.pop(name) for name in FINISHING if name in options})
        return finish(_enough({"": (buffer, buffer)}, num_steps, options)[""])
    if buffer.engine.lockstep is not None:
        return _slots(buffer, buffer.engine.lockstep, num_steps, count_by, options)
    policy_id = options.pop("policy_id", None)
    first = buffer.sample(1, policy_id, **options) if buffer.engine.ratio is not None or not buffer.ready else None
    if first is not None:
        # Mixing has an account of what is new for whole batches; what it gives is not drawn again.
        return _mixed(buffer, first, num_steps, count_by, options)
    wanted = list(buffer.policies) if policy_id is None else [buffer.engine.agents.known(policy_id)]
    names = [name for name in wanted if len(buffer.policies[name])]
    if not names:
        return buffer.sample(1, policy_id, **options)
    batch = MultiAgentSample()
    for group in _groups(names, count_by):
        batch.update(
            _enough({name: (_OfPolicy(buffer, name), buffer.policies[name]) for name in group}, num_steps, options)
        )
    return batch


def update_priorities_from_learner(
    buffer: Buffer | MultiAgentBuffer, results: Mapping[str, Any], *, eta: float = 0.0
) -> dict[str, np.ndarray]:
    """Set priorities from what a learner found.

    Args:
        buffer: of one policy, or of several.
        results: for a buffer of one policy ``{"td_error": [B], "keys": [B]}``; for one of several
            policy id to such a mapping. The keys are those of the batch's ``info.key``, and may be called
            ``"batch_indexes"``. For sequences the errors may be ``[B, T]``, with the batch's
            ``"mask"``; without one all count.
        eta: a sequence's priority is ``eta * max + (1 - eta) * mean`` of its errors' sizes, as in
            Kapturowski et al. 2019 (https://openreview.net/forum?id=r1lyTjAqYX), who take 0.9.

    Returns:
        Policy id (for a buffer of one policy: ``""``) to keys that are not held any more.  Policies
        whose buffers sample uniformly are passed over.

    Raises:
        ReplayError: a policy is unknown; nothing was changed.
        InvalidPriority: an error is NaN or infinite; nothing was changed.
        ValueError: errors or keys are missing or don't fit; the message names the policy. Nothing was changed.

    >>> from rlds2buf import Episode, make_prioritized, spec_of
    >>> ep = Episode(observation=np.arange(3.0), action=np.zeros(3), reward=np.ones(3), discount=np.ones(3))
    >>> buffer = make_prioritized(spec_of(ep), 10, seed=0)
    >>> keys = buffer.add(ep)
    >>> update_priorities_from_learner(buffer, {"td_error": [-3.0, 1.0], "keys": keys})
    {'': array([], dtype=uint64)}
    """
    if not 0.0 <= eta <= 1.0:
        raise ValueError(f"eta must be in [0, 1], got {eta}")
    if isinstance(buffer, Buffer):
        if not buffer.engine.sampler.has_priorities:
            return {}
        keys, errors = _errors("", results, eta)
        return {"": buffer.update_priorities(keys, np.abs(errors))}
    updates = {}
    for name, result in results.items():
        policy = buffer.policies[buffer.engine.agents.known(name)]
        if policy.engine.sampler.has_priorities:
            updates[name] = _errors(f"policy {name!r}: ", result, eta)
    return buffer.update_priorities(updates)


class _OfPolicy:
    """One policy of a multi-agent buffer, sampled like a buffer of its own."""

    def __init__(self, buffer: MultiAgentBuffer, policy: str) -> None:
        self._buffer, self._policy = buffer, policy

    def sample(self, count: int, **options: Any) -> Sample:
        return self._buffer.sample(count, self._policy, **options)[self._policy]


def _groups(names: Iterable[str], count_by: str) -> list[list[str]]:
    """The policies whose steps are counted together."""
    return [list(names)] if count_by == "agent" else [[name] for name in names]


def _enough(
    sources: Mapping[str, tuple[Buffer | _OfPolicy, Buffer]], num_steps: int, options: dict[str, Any]
) -> dict[str, Sample]:
    """Batches of policies whose steps are counted together, joined, as far as they are needed.

    Args:
        sources: policy id to what is sampled, and the policy's buffer.
        num_steps: of all of them.
        options: for ``sample``.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in sources}
    steps = 0
    while steps < num_steps:
        # However long the items are, so many of each policy are not enough, or just enough.
        longest = sum(_longest(buffer, options) for _, buffer in sources.values())
        count = -(-(num_steps - steps) // longest)
        for name, (source, _) in sources.items():
            samples[name].append(source.sample(count, **options))
            steps += int(_steps(samples[name][-1]).sum())
    return {name: _joined(samples[name], buffer, options) for name, (_, buffer) in sources.items()}


def _longest(buffer: Buffer, options: Mapping[str, Any]) -> int:
    """How many steps an item can have."""
    engine = buffer.engine
    names = ("n_step", "gamma", "sequence_length", "offsets", "fps", "stack", "context")
    view = engine.view.changed(**{name: options.get(name) for name in names})
    with engine.lock:
        return int(engine.contents.longest if view.whole else view.sequence_length or 1)


def _joined(samples: list[Sample], buffer: Buffer, options: Mapping[str, Any]) -> Sample:
    """Draws of one buffer as one."""
    whole = joined(samples)
    if len(samples) == 1:
        return whole
    # Each draw's weights may have been relative to its own largest one.
    weight = buffer.engine.sampler.weights(whole.info.probability, options.get("beta"))
    return whole if weight is None else whole._replace(info=whole.info._replace(weight=weight))


def _mixed(
    buffer: MultiAgentBuffer, first: MultiAgentSample, num_steps: int, count_by: str, options: dict[str, Any]
) -> MultiAgentSample:
    """As :func:`sample_min_n_steps`, one item of each policy at a time; `first` is one of each."""
    drawn = {name: [MultiAgentSample({name: sample})] for name, sample in first.items()}
    for name, (batch,) in drawn.items():
        batch.num_new = {name: first.num_new.get(name, 0)}
    for group in _groups(first, count_by):
        steps = sum(int(_steps(first[name]).sum()) for name in group)
        while steps < num_steps:
            more = {name: batch for name in group if (batch := _more(buffer, 1, name, options))}
            if not more:
                break
            for name, batch in more.items():
                drawn[name].append(batch)
                steps += int(_steps(batch[name]).sum())
    out = MultiAgentSample()
    for name, batches in drawn.items():
        batches.sort(key=lambda batch: -batch.num_new.get(name, 0))  # the new ones come first
        out[name] = joined([batch[name] for batch in batches])
        out.num_new[name] = sum(batch.num_new.get(name, 0) for batch in batches)
    return out


def _more(buffer: MultiAgentBuffer, count: int, policy: str | None, options: dict[str, Any]) -> MultiAgentSample:
    """Another batch; empty if there is nothing more to give, for what was drawn before is not to be lost."""
    try:
        return buffer.sample(count, policy, **options)
    except NotEnoughItems:
        return MultiAgentSample()


def _slots(
    buffer: MultiAgentBuffer, lockstep: Lockstep, num_steps: int, count_by: str, options: dict[str, Any]
) -> MultiAgentSample:
    """As :func:`sample_min_n_steps`, of time slots."""
    batches: list[MultiAgentSample] = []
    steps = 0
    while steps < num_steps:
        with buffer.engine.lock:
            rows = lockstep.slots.most_rows() if count_by == "agent" else 1
        length = max(_longest(policy, options) for policy in buffer.policies.values())
        count = -(-(num_steps - steps) // max(1, rows * length))
        batch = _more(buffer, count, None, options) if batches else buffer.sample(count, **options)
        if not batch:
            break
        batches.append(batch)
        steps += _steps_of_slots(batch, count_by)
    return batches[0] if len(batches) == 1 else _joined_slots(batches)


def _joined_slots(batches: list[MultiAgentSample]) -> MultiAgentSample:
    """Batches of time slots as one; the new ones come first."""
    out = MultiAgentSample()
    firsts = np.cumsum([0, *(batch.num_slots or 0 for batch in batches)])
    out.num_slots = int(firsts[-1])
    for name in dict.fromkeys(name for batch in batches for name in batch):
        mine = [(batch, first) for batch, first in zip(batches, firsts.tolist(), strict=False) if name in batch]
        old = [np.arange(len(batch.slot[name])) >= batch.num_new.get(name, 0) for batch, _ in mine]
        order = np.argsort(np.concatenate(old), kind="stable")
        whole = joined([batch[name] for batch, _ in mine])
        data = nest.map_structure(lambda column, order=order: None if column is None else column[order], whole.data)
        key, chance, priority, weight = (np.asarray(column)[order] for column in whole.info[:4])
        info = SampleInfo(key, chance, priority, weight, whole.info.table_size)
        out[name] = Sample(data, info)
        out.slot[name] = np.concatenate([batch.slot[name] + first for batch, first in mine])[order]
        out.agent_index[name] = np.concatenate([batch.agent_index[name] for batch, _ in mine])[order]
        if any(batch.num_new for batch, _ in mine):
            out.num_new[name] = sum(batch.num_new.get(name, 0) for batch, _ in mine)
    return out


def _steps_of_slots(batch: MultiAgentSample, count_by: str) -> int:
    if count_by == "agent":
        return sum(int(_steps(sample).sum()) for sample in batch.values())
    longest = np.zeros(batch.num_slots or 0, np.int64)
    for name, sample in batch.items():
        np.maximum.at(longest, batch.slot[name], _steps(sample))
    return int(longest.sum())


def _steps(sample: Sample) -> np.ndarray:
    """``[B]``: how many steps each item has."""
    if isinstance(sample.data, Trajectory):
        return np.asarray(sample.data.mask.sum(1))
    return np.ones(len(sample.info.key), np.int64)


def _errors(where: str, result: Mapping[str, Any], eta: float) -> tuple[np.ndarray, np.ndarray]:
    """Keys ``[B]`` and one error for each."""
    keys = result.get("keys", result.get("batch_indexes"))
    errors = result.get("td_error")
    if keys is None or errors is None:
        raise ValueError(f"{where}the learner's results lack {'td_error' if errors is None else 'keys'}")
    sizes = np.abs(np.asarray(errors, np.float64))
    if sizes.ndim == 2:
        mask = np.asarray(result.get("mask", np.ones(sizes.shape)), np.bool_)
        if mask.shape != sizes.shape or not mask.any(1).all():
            raise ValueError(f"{where}a mask {list(sizes.shape)} with a real step in each row is needed")
        mean = np.where(mask, sizes, 0.0).sum(1) / mask.sum(1)
        sizes = eta * np.where(mask, sizes, 0.0).max(1) + (1.0 - eta) * mean
    if sizes.shape != np.shape(keys):
        raise ValueError(f"{where}{list(sizes.shape)} errors for {list(np.shape(keys))} keys")
    return np.asarray(keys), sizes
