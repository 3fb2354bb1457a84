"""What learners ask of buffers: batches of at least so many steps, and priorities from their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.fresh import joined
from rlds2buf.buffers.multi_agent import MultiAgentBuffer
from rlds2buf.buffers.priorities import PrioritizedSampler
from rlds2buf.core.arguments import integer
from rlds2buf.core.sample import MultiAgentSample, Sample, Trajectory

__all__ = ["sample_min_n_steps", "update_priorities_from_learner"]


def sample_min_n_steps(buffer: Buffer | MultiAgentBuffer, num_steps: int, **options: Any) -> Any:
    """Draw items until they have at least that many steps together.

    A transition is one step, whatever its horizon; a sequence, or an item that comes whole, has as many as
    its mask: neither padding nor burn-in count.  No item too many is drawn: without the last one there
    are fewer steps.

    Args:
        buffer: of one policy, or of several.
        num_steps: at least 1.
        options: for ``buffer.sample``.

    Returns:
        Sample; of a multi-agent buffer a MultiAgentSample in which every policy that has data (or
        the one in ``policy_id``) has at least so many steps.

    Raises:
        NotEnoughItems, ValueError: as ``buffer.sample`` says; also ValueError for ``replace=False`` and
            in lockstep, whose rows come by time slot.

    >>> from rlds2buf import Episode, make_circular, spec_of
    >>> ep = Episode(observation=np.arange(3.0), action=np.zeros(3), reward=np.ones(3), discount=np.ones(3))
    >>> buffer = make_circular(spec_of(ep), 10, seed=0)
    >>> keys = buffer.add(ep)
    >>> int(sample_min_n_steps(buffer, 7, sequence_length=5).data.mask.sum()) in (7, 8)
    True
    """
    num_steps = integer("num_steps", num_steps, 1)
    if options.get("replace") is False:
        raise ValueError("replace=False is for one draw, and this may take several")
    if isinstance(buffer, Buffer):
        return _enough(buffer, buffer, num_steps, options)
    if buffer.mode == "lockstep":
        raise ValueError("in lockstep a batch is so many time slots: use sample")
    policy_id = options.pop("policy_id", None)
    first = buffer.sample(1, policy_id, **options) if buffer._ratio is not None or not buffer.ready else None
    if first is not None:
        # Mixing has an account of what is new for whole batches; what it gives is not drawn again.
        return first if not first else _mixed(buffer, first, num_steps, policy_id, options)
    wanted = list(buffer.policies) if policy_id is None else [buffer._agents.known(policy_id)]
    names = [name for name in wanted if len(buffer.policies[name])]
    batch = MultiAgentSample(
        {name: _enough(_OfPolicy(buffer, name), buffer.policies[name], num_steps, options) for name in names}
    )
    return batch if batch else buffer.sample(1, policy_id, **options)


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
        if not isinstance(buffer._sampler, PrioritizedSampler):
            return {}
        keys, errors = _errors("", results, eta)
        return {"": buffer.update_priorities(keys, np.abs(errors))}
    updates = {}
    for name, result in results.items():
        policy = buffer.policies[buffer._agents.known(name)]
        if isinstance(policy._sampler, PrioritizedSampler):
            updates[name] = _errors(f"policy {name!r}: ", result, eta)
    return buffer.update_priorities(updates)


class _OfPolicy:
    """One policy of a multi-agent buffer, sampled like a buffer of its own."""

    def __init__(self, buffer: MultiAgentBuffer, policy: str) -> None:
        self._buffer, self._policy = buffer, policy

    def sample(self, count: int, **options: Any) -> Sample:
        return self._buffer.sample(count, self._policy, **options)[self._policy]


def _enough(source: Buffer | _OfPolicy, buffer: Buffer, num_steps: int, options: dict[str, Any]) -> Sample:
    """Batches of one policy, joined, as far as they are needed."""
    view = buffer._view.changed(options.get("n_step"), options.get("gamma"), options.get("sequence_length"))
    samples: list[Sample] = []
    steps = 0
    while steps < num_steps:
        with buffer._lock:
            longest = buffer._contents.longest if view.whole else view.sequence_length or 1
        # However long they are, so many are not enough, or just enough.
        samples.append(source.sample(-(-(num_steps - steps) // longest), **options))
        steps += int(_steps(samples[-1]).sum())
    sampler = buffer._sampler
    whole = joined(samples)
    if len(samples) > 1 and isinstance(sampler, PrioritizedSampler) and sampler.normalise == "batch":
        # Each draw's weights were relative to its own largest one.
        beta = sampler.beta if options.get("beta") is None else options["beta"]
        chance = whole.info.probability
        whole = whole._replace(info=whole.info._replace(weight=(chance.min() / chance) ** beta))
    return whole


def _mixed(
    buffer: MultiAgentBuffer, first: MultiAgentSample, num_steps: int, policy_id: str | None, options: dict[str, Any]
) -> MultiAgentSample:
    """As :func:`sample_min_n_steps`, one item of each policy at a time."""
    samples = {name: [sample] for name, sample in first.items()}
    out = MultiAgentSample()
    out.num_new = dict(first.num_new)
    for name, mine in samples.items():
        steps = int(_steps(mine[0]).sum())
        while steps < num_steps:
            more = buffer.sample(1, name, **options)
            if name not in more:
                break
            mine.append(more[name])
            out.num_new[name] += more.num_new.get(name, 0)
            steps += int(_steps(mine[-1]).sum())
        out[name] = joined(mine)
    return out


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
