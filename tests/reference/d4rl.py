"""D4RL's files read one step at a time, as slowly and plainly as can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

Row = dict[str, Any]


def read_file(path: Path) -> dict[str, np.ndarray]:
    """Every dataset of the file by its path."""
    columns: dict[str, np.ndarray] = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: columns.__setitem__(name, item[()]) if isinstance(item, h5py.Dataset) else None
        )
    return columns


def episodes(
    columns: dict[str, np.ndarray], max_episode_steps: int | None = None, reward_shift: int = 0
) -> list[list[Row]]:
    """The episodes as lists of RLDS rows; extras under ``infos/...``, discounts as plain floats."""
    count = len(columns["rewards"])
    timeouts = columns.get("timeouts", np.zeros(count))
    found: list[list[Row]] = []
    begin = 0
    for t in range(count):
        terminal, timeout = bool(columns["terminals"].reshape(-1)[t]), bool(timeouts.reshape(-1)[t])
        limit = max_episode_steps is not None and t - begin + 1 == max_episode_steps
        if terminal or timeout or limit or t == count - 1:
            found.append(_episode(columns, begin, t, terminal, reward_shift))
            begin = t + 1
    return found


def _episode(columns: dict[str, np.ndarray], begin: int, end: int, terminal: bool, shift: int) -> list[Row]:
    infos = [name for name in columns if name.startswith("infos/")]
    rewards = columns["rewards"].reshape(-1)
    rows = []
    for t in range(begin, end + 1):
        row = {name: columns[name][t] for name in infos}
        row["observation"] = columns["observations"][t]
        row["action"] = columns["actions"][t]
        row["reward"] = rewards[t + shift] if t + shift <= end else 0.0
        row["discount"] = 1.0
        row["is_first"], row["is_last"], row["is_terminal"] = t == begin, False, False
        rows.append(row)
    if terminal or "next_observations" in columns:
        last = {name: np.zeros_like(columns[name][end]) for name in infos}
        last["observation"] = np.zeros_like(rows[0]["observation"])
        if "next_observations" in columns:
            last["observation"] = columns["next_observations"][end]
        last["action"] = np.zeros_like(rows[0]["action"])
        last["reward"], last["discount"] = 0.0, 1.0
        last["is_first"], last["is_terminal"] = False, terminal
        rows.append(last)
    if terminal:
        rows[-1]["discount"] = rows[-2]["discount"] = 0.0
    rows[-1]["is_last"] = True
    return rows


def qlearning_transitions(
    columns: dict[str, np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray, float, np.ndarray, bool]]:
    """What d4rl 1.1's ``qlearning_dataset`` makes of a file with time-outs.

    ``(observation, action, reward, next_observation, terminal)`` of each row but the file's last,
    rows with a time-out left out; the successor is always the file's next row.
    """
    out = []
    for t in range(len(columns["rewards"]) - 1):
        if columns["timeouts"][t]:
            continue
        successor = columns["observations"][t + 1]
        reward = float(columns["rewards"].reshape(-1)[t])
        out.append(
            (columns["observations"][t], columns["actions"][t], reward, successor, bool(columns["terminals"][t]))
        )
    return out
