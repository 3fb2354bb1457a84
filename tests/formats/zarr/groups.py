"""Groups laid out as Diffusion Policy's ReplayBuffer lays them out (diffusion_policy/common/replay_buffer.py)."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr

IS_NEW = int(zarr.__version__.split(".")[0]) >= 3
VERSIONS = (2, 3) if IS_NEW else (2,)
LENGTHS = (5, 1, 7, 3)
CHUNK = 4


def columns(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays as real ones have them: numbers, float pictures, whole numbers."""
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    return {
        "action": rng.normal(size=(count, 2)).astype(np.float32),
        "state": rng.normal(size=(count, 5)).astype(np.float32),
        "img": rng.integers(1, 256, (count, 6, 6, 3)).astype(np.float32),
        "n_contacts": rng.integers(1, 9, (count, 1)).astype(np.int64),
    }


def array(group: Any, name: str, data: np.ndarray, version: int, **how: Any) -> None:
    """One array, in chunks along the first axis."""
    chunks = (min(CHUNK, max(1, len(data))), *data.shape[1:])
    if not IS_NEW:
        group.create_dataset(name, data=data, chunks=chunks, compressor=numcodecs.Blosc("zstd"), **how)
    elif version == 2:
        made = group.create_array(
            name, shape=data.shape, dtype=data.dtype, chunks=chunks, compressors=numcodecs.Blosc("zstd"),
            config={"write_empty_chunks": True}, **how,
        )  # fmt: skip
        made[:] = data
    else:
        made = group.create_array(
            name, shape=data.shape, dtype=data.dtype, chunks=chunks, config={"write_empty_chunks": True}, **how
        )
        made[:] = data


def write(
    path: Path,
    arrays: Mapping[str, np.ndarray] | None = None,
    ends: Sequence[int] | np.ndarray | None = None,
    version: int = 2,
) -> Path:
    """A group; by default four episodes."""
    arrays = columns() if arrays is None else arrays
    ends = np.cumsum(LENGTHS) if ends is None else np.asarray(ends)
    root = zarr.open_group(str(path), mode="w", **({"zarr_format": version} if IS_NEW else {}))
    for name, data in arrays.items():
        array(root.require_group("data"), name, data, version)
    root.require_group("data")
    array(root.require_group("meta"), "episode_ends", ends, version)
    return path


def packed(folder: Path, archive: Path) -> Path:
    """The same as an archive."""
    with zipfile.ZipFile(archive, "w") as out:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                out.write(path, path.relative_to(folder))
    shutil.rmtree(folder)
    return archive
