"""Episodes to push, and what a table then has to hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf import Episode
from rlds2buf.core import nest
from tests.full.quiet import reverb

__all__ = ["FLAT", "contents", "episode", "episodes", "expected", "items_in_order", "trajectory_signature"]

FLAT = {"observation": [[None, 3], "float32"], "action": [[None, 2], "float32"], "reward": [[None], "float32"]}


def episode(number: int, rows: int, *, nested: bool = False, terminal: bool = False) -> Episode:
    """Row t of episode e holds numbers that name it."""
    base = 1000 * number + np.arange(rows)
    observation: Any = (base[:, None] + np.arange(3) / 10).astype(np.float32)
    if nested:
        rng = np.random.default_rng(number)
        observation = {
            "z": observation,
            "image": rng.integers(0, 255, (rows, 8, 8, 3)).astype(np.uint8),
            "more": (base.astype(np.int64), np.array([f"row {t}".encode() for t in base], object)),
        }
    ends = np.zeros(rows, bool)
    ends[-1] = True
    return Episode(
        observation=observation,
        action=np.stack([base, -base], 1).astype(np.float32),
        reward=base.astype(np.float32) / 2,
        discount=np.full(rows, 0.5, np.float32),
        is_first=np.arange(rows) == 0,
        is_last=ends,
        is_terminal=ends & terminal,
        extras={"weight": base / 7.0},
        source="numbers",
        index=number,
    )


def episodes(*lengths: int, **kind: Any) -> list[Episode]:
    return [episode(number, rows, **kind) for number, rows in enumerate(lengths)]


def expected(pattern: Any, given: list[Episode]) -> list[list[np.ndarray]]:
    """The flat columns of every item, in order."""
    pattern.reset()
    out = []
    for one in given:
        leaves = [leaf for _, leaf in nest.flatten(tuple(pattern.lay(one).items()))]
        out += [[leaf[i] for leaf in leaves] for i in range(len(leaves[0]))]
    return out


def items_in_order(address: str, table: str, count: int) -> list[list[np.ndarray]]:
    """The columns of `count` items of a table without a signature, as reverb.Client samples them."""
    samples = reverb.Client(address).sample(table, num_samples=count, emit_timesteps=False)
    return [[np.asarray(column) for column in sample.data] for sample in samples]


def contents(items: list[list[np.ndarray]]) -> list[tuple[str, ...]]:
    """Items as something that can be sorted and compared exactly."""
    return sorted(tuple(map(_exactly, item)) for item in items)


def _exactly(column: Any) -> str:
    column = np.asarray(column)
    dtype = "string" if column.dtype.kind in "OS" else column.dtype.name
    return f"{dtype} {column.shape} {column.tolist()!r}"


def trajectory_signature(observation: Any = None) -> dict[str, Any]:
    """A TF-Agents Trajectory of `episode`'s columns, for `tests.full.server_main`."""
    return {
        "named": [
            "Trajectory",
            [
                ["step_type", [[None], "int32"]],
                ["observation", observation or FLAT["observation"]],
                ["action", FLAT["action"]],
                ["policy_info", {"tuple": []}],
                ["next_step_type", [[None], "int32"]],
                ["reward", FLAT["reward"]],
                ["discount", [[None], "float32"]],
            ],
        ]
    }
