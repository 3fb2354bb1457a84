"""A step as a flat dict, field path to value, and an episode as a list of them: what transformations do, row by row."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf import Episode
from rlds2buf.core import nest

__all__ = ["columns_of", "map_row", "realign_rows", "rows_of", "shift_rewards"]

Row = dict[str, Any]


def rows_of(episode: Episode) -> list[Row]:
    """An episode's steps; a value of no dimensions is an array all the same."""
    return [
        {nest.path_name(path): np.asarray(column[t]) for path, column in episode.flatten()}
        for t in range(episode.num_steps)
    ]


def columns_of(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def map_row(row: Row, map: Mapping[str, str | list[str]], drop: Sequence[str]) -> Row:
    """One step with its fields mapped; ValueError where that is impossible."""
    left = {name: value for name, value in row.items() if not any(_names(pattern, name) for pattern in drop)}
    used: set[str] = set()
    made: Row = {}
    for target, source in map.items():
        if isinstance(source, str) and "*" not in source:
            below = {name: name[len(source) :] for name in left if _under(name, source)}
            if not below:
                raise ValueError(f"no field {source}")
            used |= below.keys()
            made |= {target + rest: left[name] for name, rest in below.items()}
            continue
        names: list[str] = []
        for wanted in [source] if isinstance(source, str) else source:
            pattern = wanted if any(_names(wanted, name) for name in left) else f"extras/{wanted}"
            found = sorted((name for name in left if _same_depth(name, pattern)), key=_natural)
            if not found or any(_deeper(name, pattern) for name in left):
                raise ValueError(f"no fields {pattern}")
            names += [name for name in found if name not in names]
        if len({left[name].dtype for name in names}) > 1:
            raise ValueError("types differ")
        used |= set(names)
        made[target] = np.concatenate([left[name].reshape(-1) for name in names])
    targets = list(map)
    if any(_under(one, other) for one in targets for other in targets if one is not other):
        raise ValueError("overlap")
    stay = {name: v for name, v in left.items() if name not in used and not any(_under(name, t) for t in targets)}
    if any(_under(target, name) for target in targets for name in stay):
        raise ValueError("inside a field")
    if not {**stay, **made}.keys() - {"is_first", "is_last", "is_terminal"}:
        raise ValueError("nothing left")
    return {**stay, **made}


def realign_rows(rows: Sequence[Row], alignment: str) -> list[Row]:
    """Steps logged as "ars" or "rsa", in RLDS's layout."""
    moving = {"sar": (), "ars": ("action", "reward", "discount"), "rsa": ("reward", "discount")}[alignment]
    out = []
    for t, row in enumerate(rows):
        new = dict(row)
        for name in row:
            if name.split("/")[0] not in moving:
                continue
            if t + 1 < len(rows):
                new[name] = rows[t + 1][name]
            elif not name.startswith("discount"):
                new[name] = np.zeros_like(row[name])
        out.append(new)
    return out


def shift_rewards(rows: Sequence[Row], by: int) -> list[Row]:
    out = []
    for t, row in enumerate(rows):
        late = rows[t + by]["reward"] if t + by < len(rows) else np.zeros_like(row["reward"])
        out.append({**row, "reward": late})
    return out


def _under(name: str, nest: str) -> bool:
    return name == nest or name.startswith(nest + "/")


def _names(pattern: str, name: str) -> bool:
    """Whether a pattern names this field or a nest that it is in."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) >= len(wanted) and _fit(parts[: len(wanted)], wanted)


def _same_depth(name: str, pattern: str) -> bool:
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and _fit(parts, wanted)


def _deeper(name: str, pattern: str) -> bool:
    return _names(pattern, name) and not _same_depth(name, pattern)


def _fit(parts: list[str], wanted: list[str]) -> bool:
    return all(fnmatch.fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(digits), "") if digits else (10**9, text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]
