"""All of a multi-agent buffer as plain values and arrays, and as a folder, and back.

::

    ants/
      manifest.json              the policies, settings and counts; written last
      data-1f3a9c.../
        policy-000/  policy-001/ ...   a saved buffer each
        000-rows.npy ...               the time slots of lockstep replay
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.buffers.copies import require_names
from rlds2buf.buffers.disk.manifest import inside, read_manifest
from rlds2buf.buffers.disk.snapshot import _Folder, load_buffer, save_buffer
from rlds2buf.buffers.multi_agent.buffer import MultiAgentBuffer
from rlds2buf.buffers.multi_agent.new_items import Fresh
from rlds2buf.buffers.multi_agent.policies import Agents, checked_settings
from rlds2buf.core.forks import seed_of
from rlds2buf.errors import SnapshotCorrupt, SnapshotError
from rlds2buf.files.column_file import checksum, open_column
from rlds2buf.files.partial import plain_json

__all__ = ["get_state", "load", "save", "set_state"]

_VERSION = 1


def get_state(buffer: MultiAgentBuffer) -> dict[str, Any]:
    """A deep copy of everything."""
    return {
        **copy.deepcopy(_describe(buffer)),
        "version": _VERSION,
        "policies": {name: policy.state_dict() for name, policy in buffer.policies.items()},
        "arrays": _arrays(buffer),
    }


def set_state(buffer: MultiAgentBuffer, state: Mapping[str, Any]) -> None:
    """Put a buffer into a state that :func:`get_state` gave.

    Raises:
        SnapshotError: it is of other policies, settings or versions, or not whole; nothing was changed.
    """
    missing = {*_describe(buffer), "version", "policies", "arrays"} - set(state)
    if missing:
        raise SnapshotError(f"the state lacks {', '.join(sorted(missing))}")
    if state["version"] != _VERSION:
        raise SnapshotError(f"the state has version {state['version']!r}, expected {_VERSION}")
    for name, mine in (("kind", buffer.kind), ("settings", buffer._settings)):
        if state[name] != mine:
            raise SnapshotError(f"the state is of a buffer with {name} {state[name]!r}, this one has {mine!r}")
    if list(state["policies"]) != list(buffer.policies):
        raise SnapshotError(
            f"the state is of policies {', '.join(state['policies'])}, this buffer has {', '.join(buffer.policies)}"
        )
    before = get_state(buffer)
    try:
        _put(buffer, state)
    except SnapshotError:
        _put(buffer, before)
        raise


def save(buffer: MultiAgentBuffer, path: Path, *, overwrite: bool = False) -> None:
    """Write a whole buffer; ``MultiAgentBuffer.save`` calls it."""
    mapping = buffer._agents.mapping
    with _Folder(path, overwrite=overwrite) as folder:
        names = {name: f"policy-{i:03d}" for i, name in enumerate(buffer.policies)}
        for name, policy in buffer.policies.items():
            with policy._lock:
                save_buffer(policy, folder.data / names[name])
        for name, array in _arrays(buffer).items():
            folder.column(name, array.shape[1:], array.dtype).append(array)
        folder.finish(
            {
                **_describe(buffer),
                "policies": names,
                "policy_mapping": list(mapping.items()) if isinstance(mapping, dict) else mapping and "function",
                "provenance": plain_json(buffer.provenance),
            }
        )


def load(folder: Path, manifest: Mapping[str, Any], *, seed: int | None, verify: bool | None, **functions: Any) -> Any:
    """Open a saved multi-agent buffer; :func:`rlds2buf.load_buffer` calls it.

    Args:
        functions: `policy_mapping`, where it was a function, and those that the policies' buffers need.

    Raises:
        SnapshotCorrupt: it is incomplete or damaged.
        SnapshotError: a function is missing.
    """
    mapping = functions.pop("policy_mapping", None)
    try:
        data = manifest["data"]
        saved = manifest["policy_mapping"]
        if saved == "function" and mapping is None:
            raise SnapshotError(f"{folder}: functions are not saved: use load_buffer(path, policy_mapping=...)")
        mapping = dict((agent, policy) for agent, policy in saved) if isinstance(saved, list) else mapping
        own, *children = np.random.SeedSequence(seed).spawn(len(manifest["policies"]) + 1)
        buffers = {}
        for (name, place), child in zip(manifest["policies"].items(), children, strict=True):
            own_folder = inside(folder, data, place)
            kind = str(read_manifest(own_folder).get("kind"))
            if kind == "multi_agent":
                raise SnapshotCorrupt(f"{own_folder}: a policy's buffer, but its manifest is of several agents")
            needs = functions if kind.startswith("hindsight") else {}
            number: Any = child if seed is not None else None
            buffers[str(name)] = load_buffer(own_folder, seed=number, verify=verify, **needs)
        settings = dict(manifest["settings"])
        checked_settings(**settings)
        buffer = MultiAgentBuffer(buffers, settings, Agents(buffers, mapping), np.random.default_rng(own))
        arrays = {entry["name"]: _column(inside(folder, data, entry["file"]), entry) for entry in manifest["columns"]}
    except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as cause:
        raise SnapshotCorrupt(f"{folder}: the manifest does not fit together: {cause!r}") from cause
    if functions and not any(one.kind.startswith("hindsight") for one in buffers.values()):
        raise TypeError(f"none of these policies' buffers takes {' or '.join(sorted(functions))}: they know no goals")
    _restore(buffer, {**manifest, "rng": None} if seed is not None else manifest, arrays)
    buffer.provenance = dict(manifest.get("provenance", {}))
    return buffer


def parts_of(buffer: MultiAgentBuffer) -> tuple[Any, ...]:
    """What :func:`revived` takes."""
    mapping = buffer._agents.mapping
    if callable(mapping):
        require_names({"policy_mapping": mapping})
    return dict(buffer.policies), mapping, copy.deepcopy(_describe(buffer)), _arrays(buffer), dict(buffer.provenance)


def revived(
    policies: dict[str, Any],
    mapping: Any,
    state: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    provenance: dict[str, Any],
) -> MultiAgentBuffer:
    """A buffer of :func:`parts_of`."""
    buffer = MultiAgentBuffer(policies, state["settings"], Agents(policies, mapping), np.random.default_rng())
    _restore(buffer, state, arrays)
    buffer.provenance = provenance
    return buffer


def _describe(buffer: MultiAgentBuffer) -> dict[str, Any]:
    """What is neither in the policies' buffers nor in arrays, as plain JSON values."""
    return {
        "kind": buffer.kind,
        "settings": dict(buffer._settings),
        "env_steps": buffer.env_steps,
        "agents": [[agent, number] for agent, number in buffer._agents.numbers.items()],
        "fresh": {name: [fresh.next, fresh.end] for name, fresh in buffer._independent.fresh.items()},
        "next_slot": 0 if buffer._lockstep is None else buffer._lockstep.next_slot,
        "lockstep": None if buffer._lockstep is None else buffer._lockstep.state(),
        "rng": buffer._rng.bit_generator.state,
    }


def _arrays(buffer: MultiAgentBuffer) -> dict[str, np.ndarray]:
    if buffer._lockstep is None:
        return {}
    buffer._lockstep.follow()
    return buffer._lockstep.slots.state()


def _put(buffer: MultiAgentBuffer, state: Mapping[str, Any]) -> None:
    for name, policy in buffer.policies.items():
        policy.load_state_dict(state["policies"][name])
    _restore(buffer, state, state["arrays"])


def _restore(buffer: MultiAgentBuffer, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Fill in all but the policies' buffers.

    Raises:
        SnapshotCorrupt: something is missing or does not fit together.
    """
    rng = np.random.default_rng()
    try:
        json.dumps(state["agents"])  # plain values only
        numbers = {agent: int(number) for agent, number in state["agents"]}
        env_steps, next_slot = int(state["env_steps"]), int(state["next_slot"])
        fresh = {name: Fresh() for name in buffer.policies}
        for name, one in fresh.items():
            one.next, one.end = (int(value) for value in state["fresh"][name])
        if state["rng"] is not None:
            rng.bit_generator.state = state["rng"]
        if buffer._lockstep is not None:
            buffer._lockstep.restore(state["lockstep"], arrays)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as cause:
        raise SnapshotCorrupt(f"the saved state does not fit together: {cause!r}") from cause
    if state["rng"] is not None:
        buffer._rng.bit_generator.state = state["rng"]
        buffer._seed = seed_of(buffer._rng)
    buffer._agents.numbers = numbers
    buffer.env_steps, buffer._independent.fresh = env_steps, fresh
    if buffer._lockstep is not None:
        buffer._lockstep.next_slot = next_slot


def _column(file: Path, entry: Mapping[str, Any]) -> np.ndarray:
    array = open_column(file, tuple(entry["shape"]), entry["dtype"])
    if checksum(array) != entry["crc32c"]:
        raise SnapshotCorrupt(f"{file}: its checksum does not match, it was changed or damaged")
    return np.array(array)
