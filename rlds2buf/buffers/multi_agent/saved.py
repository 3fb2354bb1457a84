"""All of a multi-agent buffer as plain values and arrays, and as a folder, and back.

::

    ants/
      manifest.json              the policies, settings and counts; written last
      data-1f3a9c.../
        policy-000/  policy-001/ ...   a saved buffer each
        000-rows.npy ...               the time slots of lockstep replay
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.buffers.disk.manifest import inside, read_manifest
from rlds2buf.buffers.disk.opening import open_saved
from rlds2buf.buffers.disk.snapshot import SnapshotFolder, save_buffer
from rlds2buf.buffers.factories import MAKERS
from rlds2buf.buffers.multi_agent.engine import MultiAgentEngine
from rlds2buf.errors import SnapshotCorrupt, SnapshotError
from rlds2buf.files.column_file import checksum, open_column
from rlds2buf.files.partial import plain_json

__all__ = ["load", "save"]


def save(engine: MultiAgentEngine, path: Path, *, overwrite: bool = False) -> None:
    """Write a whole buffer; ``MultiAgentBuffer.save`` calls it."""
    mapping = engine.agents.mapping
    with SnapshotFolder(path, overwrite=overwrite) as folder:
        names = {name: f"policy-{i:03d}" for i, name in enumerate(engine.engines)}
        for name, policy in engine.engines.items():
            with policy.lock:
                save_buffer(policy, folder.data / names[name])
        for name, array in engine.arrays().items():
            folder.column(name, array.shape[1:], array.dtype).append(array)
        folder.finish(
            {
                **engine.describe(),
                "policies": names,
                "policy_mapping": list(mapping.items()) if isinstance(mapping, dict) else mapping and "function",
                "provenance": plain_json(engine.provenance),
            }
        )


def load(
    folder: Path, manifest: Mapping[str, Any], *, seed: int | None, verify: bool | None, **functions: Any
) -> MultiAgentEngine:
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
            own_manifest = read_manifest(own_folder)
            kind = str(own_manifest.get("kind"))
            if kind == "multi_agent":
                raise SnapshotCorrupt(f"{own_folder}: a policy's buffer, but its manifest is of several agents")
            needs = functions if kind.startswith("hindsight") else {}
            number: Any = child if seed is not None else None
            buffers[str(name)] = open_saved(
                own_folder, own_manifest, MAKERS, seed=number, verify=verify, functions=needs
            )
        engine = MultiAgentEngine(buffers, manifest["settings"], mapping, np.random.default_rng(own))
        arrays = {entry["name"]: _column(inside(folder, data, entry["file"]), entry) for entry in manifest["columns"]}
    except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as cause:
        raise SnapshotCorrupt(f"{folder}: the manifest does not fit together: {cause!r}") from cause
    if functions and not any(one.kind.startswith("hindsight") for one in buffers.values()):
        raise TypeError(f"none of these policies' buffers takes {' or '.join(sorted(functions))}: they know no goals")
    engine.restore({**manifest, "rng": None} if seed is not None else manifest, arrays)
    engine.provenance = dict(manifest.get("provenance", {}))
    return engine


def _column(file: Path, entry: Mapping[str, Any]) -> np.ndarray:
    array = open_column(file, tuple(entry["shape"]), entry["dtype"])
    if checksum(array) != entry["crc32c"]:
        raise SnapshotCorrupt(f"{file}: its checksum does not match, it was changed or damaged")
    return np.array(array)
