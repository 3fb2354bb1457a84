"""Minari's folders in its Arrow and Parquet layouts, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset

LAYOUTS = ("arrow", "parquet")
BOX = {"type": "Box", "dtype": "float32", "shape": [2, 2], "low": -1, "high": 1}
OBSERVATION = {"type": "Dict", "subspaces": {"x": BOX, "word": {"type": "Text", "max_length": 5}}}
ACTION = {"type": "Tuple", "subspaces": [{"type": "Discrete", "n": 2}, {"type": "MultiBinary", "n": 3}]}


def fixed(values: np.ndarray) -> pa.Array:
    """A column of lists of fixed size."""
    kind = pa.list_(pa.from_numpy_dtype(values.dtype), int(np.prod(values.shape[1:])))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind)


def columns(steps: int, number: int = 0) -> dict[str, Any]:
    """One episode's columns of ``steps + 1`` rows, the last of which is padding but for observations and infos."""
    rows = steps + 1
    x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 2, 2) + 100 * number
    bits = np.zeros((rows, 3), np.int8)
    bits[:steps, number % 3] = 1
    end = np.zeros(rows, bool)
    end[steps - 1 : steps] = True
    words = pa.array([f"w{t}" for t in range(rows)])
    return {
        "observations": pa.StructArray.from_arrays([fixed(x), words], names=["x", "word"]),
        "actions": pa.StructArray.from_arrays([pa.array(np.arange(rows) % 2), fixed(bits)], names=["0", "1"]),
        "rewards": np.append(np.full(steps, 0.5), 0),
        "terminations": end,
        "truncations": np.zeros(rows, bool),
        "infos": pa.StructArray.from_arrays([pa.array(np.arange(rows) * 1.5)], names=["speed"]),
    }


def write(folder: Path, episodes: list[dict[str, Any]], layout: str = "arrow", **metadata: Any) -> Path:
    """A dataset whose episodes have these columns; one that is None is left out."""
    folder.mkdir(parents=True)
    told = {
        "data_format": layout,
        "total_episodes": len(episodes),
        "observation_space": json.dumps(OBSERVATION),
        "action_space": json.dumps(ACTION),
        **metadata,
    }
    (folder / "metadata.json").write_text(json.dumps({key: value for key, value in told.items() if value is not None}))
    for number, held in enumerate(episodes):
        table = pa.table({name: column for name, column in held.items() if column is not None})
        pa.dataset.write_dataset(table, folder / str(number), format=layout)
        (folder / str(number) / "metadata.json").write_text(json.dumps({"id": number, "seed": number + 7}))
    return folder
