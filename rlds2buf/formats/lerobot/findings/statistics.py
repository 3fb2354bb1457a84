"""The statistics in the metadata against those of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.core.issue import Issue
from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SourceError
from rlds2buf.formats.lerobot.findings.dataset import Scope
from rlds2buf.formats.lerobot.findings.metadata import column_of_episodes
from rlds2buf.formats.lerobot.index import episode_files
from rlds2buf.formats.lerobot.info import read_json

__all__ = ["Statistics"]

_KEYS: Final = ("min", "max", "mean", "std", "count")
"""Those that are compared: quantiles are estimates in most datasets."""
_LOOSE: Final = 1e-3
"""Of the range: by how much mean and standard deviation may differ, which others sum up as float32."""
_CLOSE: Final = 1e-5
"""Of the largest value: by how much minimum and maximum may differ."""

_Moments = dict[str, np.ndarray]


class Statistics:
    """Sums up each episode's numbers as they go by, then compares.

    Args:
        dataset: what is looked at.

    Attributes:
        names: the features of numbers that are summed up.
    """

    def __init__(self, dataset: Scope) -> None:
        self._dataset = dataset
        numbers = [name for name, feature in dataset.info.features.items() if _is_of_numbers(feature)]
        self.names = [name for name in numbers if name in dataset.paths]
        self._episodes: list[np.ndarray] = []
        self._parts: dict[str, list[_Moments]] = {name: [] for name in self.names}

    def take(self, episodes: np.ndarray, columns: Mapping[str, np.ndarray], starts: np.ndarray) -> None:
        """The rows of some episodes, one behind the other."""
        self._episodes.append(episodes)
        for name in self.names:
            self._parts[name].append(_moments(columns[name], starts))

    def findings(self) -> Iterator[Issue]:
        """What differs, once for each feature."""
        episodes = np.concatenate(self._episodes) if self._episodes else np.zeros(0, np.int64)
        for name in self.names if len(episodes) else ():
            parts = self._parts[name]
            found = {key: np.concatenate([part[key] for part in parts]) for key in _KEYS}
            yield from self._of_episodes(name, episodes, found)
            if len(episodes) == len(self._dataset.index):
                yield from self._of_all(name, _together(found))

    def _of_episodes(self, name: str, episodes: np.ndarray, found: _Moments) -> Iterator[Issue]:
        told, file = self._told_of_episodes(name)
        wrong = []
        for place in np.flatnonzero(~_surely_alike(told, episodes, found)).tolist():
            episode = int(episodes[place])
            moments = {key: values[place] for key, values in found.items()}
            why = _difference({key: values[episode] for key, values in told.items()}, moments, self._width(name))
            if why:
                wrong.append((episode, why))
        if wrong:
            count = f"of {len(wrong):,} episodes" if len(wrong) > 1 else "of an episode"
            text = (
                f"statistics {count} are not those of the rows, the first one is episode {wrong[0][0]}: {wrong[0][1]}"
            )
            yield self._dataset.issue("wrong-stats", text, file=file, feature=name)

    def _of_all(self, name: str, moments: _Moments) -> Iterator[Issue]:
        path = self._dataset.info.root / "meta/stats.json"
        try:
            told = read_json(path).get(name)
        except SourceError:
            return
        why = _difference(told, moments, self._width(name)) if isinstance(told, dict) else ""
        if why:
            text = f"statistics of the dataset are not those of the rows: {why}"
            yield self._dataset.issue("wrong-stats", text, file=path, feature=name)

    def _width(self, name: str) -> int:
        """The last axis of a feature's rows."""
        return self._dataset.info.features[name].shape[-1]

    def _told_of_episodes(self, name: str) -> tuple[dict[str, list[Any]], Path | None]:
        """By key a value of each episode; of keys that are told of every one."""
        info = self._dataset.info
        if info.is_v3:
            columns = {key: column_of_episodes(self._dataset, f"stats/{name}/{key}") for key in _KEYS}
            files = episode_files(info)
            return {key: column for key, column in columns.items() if column is not None}, files[0] if files else None
        path = info.root / "meta/episodes_stats.jsonl"
        rows = _lines(path)
        known = {row["episode_index"]: row["stats"].get(name) for row in rows}
        known = {number: told for number, told in known.items() if isinstance(told, dict)}
        numbers = self._dataset.index.numbers.tolist()
        return {key: [known.get(number, {}).get(key) for number in numbers] for key in _KEYS}, path


def _is_of_numbers(feature: Any) -> bool:
    return not feature.is_picture and not feature.is_text and feature.is_known and 0 not in feature.shape


def _lines(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a file of JSON lines that are of the form expected."""
    try:
        found = [parse_json(line) for line in path.read_bytes().splitlines() if line.strip()]
    except (OSError, ValueError):
        return []
    return [
        row
        for row in found
        if isinstance(row, dict) and isinstance(row.get("stats"), dict) and isinstance(row.get("episode_index"), int)
    ]


def _moments(column: np.ndarray, starts: np.ndarray) -> _Moments:
    """Of each episode ``[E, n]``; the count ``[E, 1]``."""
    rows = column.reshape(len(column), -1).astype(np.float64)
    lengths = np.diff(starts, append=len(rows))[:, None]
    mean = np.add.reduceat(rows, starts) / lengths
    deviation = rows - np.repeat(mean, lengths[:, 0], axis=0)
    return {
        "min": np.minimum.reduceat(rows, starts),
        "max": np.maximum.reduceat(rows, starts),
        "mean": mean,
        "std": np.sqrt(np.add.reduceat(deviation**2, starts) / lengths),
        "count": lengths,
    }


def _together(found: _Moments) -> _Moments:
    """Of all episodes as one."""
    counts, means = found["count"], found["mean"]
    total = counts.sum(axis=0)
    mean = (counts * means).sum(axis=0) / total
    squares = counts * (found["std"] ** 2 + (means - mean) ** 2)
    return {
        "min": found["min"].min(axis=0),
        "max": found["max"].max(axis=0),
        "mean": mean,
        "std": np.sqrt(squares.sum(axis=0) / total),
        "count": total,
    }


def _surely_alike(told: Mapping[str, Sequence[Any]], episodes: np.ndarray, found: _Moments) -> np.ndarray:
    """``[E] bool``: where nothing differs; not everywhere where that is so: :func:`_difference` looks at the others."""
    alike = np.ones(len(episodes), np.bool_)
    for key, values in told.items():
        right = found[key]
        try:
            here = np.array(values, np.float64)[episodes]
        except (TypeError, ValueError, OverflowError):
            return np.zeros(len(episodes), np.bool_)
        if here.shape != right.shape:
            return np.zeros(len(episodes), np.bool_)
        alike &= _is_close(key, here, found).all(axis=-1)
    return alike


def _by_last_axis(found: _Moments, width: int) -> _Moments:
    """Of rows with several axes as lerobot has it: all but the last one are more rows."""
    parts = {key: values.reshape(-1, width) for key, values in found.items() if key != "count"}
    mean = parts["mean"].mean(axis=0)
    squares = (parts["std"] ** 2 + (parts["mean"] - mean) ** 2).mean(axis=0)
    least, most = parts["min"].min(axis=0), parts["max"].max(axis=0)
    return {"min": least, "max": most, "mean": mean, "std": np.sqrt(squares), "count": found["count"]}


def _difference(told: Mapping[str, Any], found: _Moments, width: int) -> str:
    """The first key that differs, as text; empty where none does."""
    try:
        values = {key: np.asarray(told[key], np.float64).reshape(-1) for key in _KEYS if told.get(key) is not None}
    except (TypeError, ValueError, OverflowError):
        return "they are no lists of numbers"
    if len(values.get("mean", ())) == width < len(found["mean"]):
        found = _by_last_axis(found, width)
        values.pop("count", None)
    for key, here in values.items():
        right = found[key]
        if here.shape != right.shape:
            return f"{key} has {len(here)} numbers, a row has {len(right)}"
        wrong = ~_is_close(key, here, found)
        if wrong.any():
            at = int(np.argmax(wrong))
            return f"{key}[{at}] is {here[at]:.6g}, the rows have {right[at]:.6g}"
    return ""


def _is_close(key: str, told: np.ndarray, found: _Moments) -> np.ndarray:
    """Where what is told is what was found, but for the rounding of those who told it; both ``[..., n]``."""
    right = found[key]
    if key == "count":
        return told == right
    allowed = _CLOSE * np.maximum(np.abs(found["max"]), np.abs(found["min"]))
    if key in ("mean", "std"):
        allowed = allowed + _LOOSE * (found["max"] - found["min"])
    return (np.abs(told - right) <= allowed) | (np.isnan(told) & np.isnan(right))
