"""Where two episodes differ, field by field and fact by fact, found without the package's own comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds2buf import Episode
from rlds2buf.core import nest

__all__ = ["assert_only_lost", "differences", "facts"]

MOVED = "it is read back as "


def same(one: np.ndarray, other: np.ndarray | None) -> bool:
    """Equal in dtype, shape and every value; NaN equals NaN."""
    if other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == object:
        pairs = zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=True)
        return all(same(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


def facts(metadata: Mapping[str, Any], parent: str = "metadata") -> dict[str, Any]:
    """Metadata by path, as plain lists and numbers; text as bytes, for formats tell text from bytes or don't."""
    found: dict[str, Any] = {}
    for key, value in metadata.items():
        if isinstance(value, Mapping) and value:
            found.update(facts(value, f"{parent}/{key}"))
        else:
            found[f"{parent}/{key}"] = plain(value)
    return found


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str):
        return value.encode()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def differences(one: Episode, other: Episode) -> tuple[set[str], set[str]]:
    """Paths of `one` that are not so in `other`, and paths of `other` that `one` has not."""
    columns, others = ({nest.path_name(path): column for path, column in ep.flatten()} for ep in (one, other))
    changed = {name for name, column in columns.items() if not same(column, others.get(name))}
    told, retold = facts(one.metadata), facts(other.metadata)
    changed |= {name for name, value in told.items() if not (name in retold and retold[name] == value)}
    return changed, (others.keys() - columns.keys()) | (retold.keys() - told.keys())


def assert_only_lost(
    before: Iterable[Episode], after: Iterable[Episode], lost: Mapping[str, str], *, added: Iterable[str] = ()
) -> None:
    """What differs is named in `lost`, or something it is part of, and nothing is named that came through.

    Args:
        before, after: what was written and what was read back, both in order.
        lost: as the report has it.
        added: paths that the format has of its own.
    """
    left = list(before)
    if "episodes" in lost:
        left = [episode for episode in left if episode.num_steps > 1]
        assert len(left) < len(list(before))
    changed: set[str] = set()
    extra: set[str] = set()
    moves = {path: why.removeprefix(MOVED).partition("; ") for path, why in lost.items() if why.startswith(MOVED)}
    for one, other in zip(left, after, strict=True):
        assert one.num_steps == other.num_steps
        assert one.end == other.end or {"is_last", "is_terminal"} & lost.keys()
        here, more = differences(one, other)
        changed |= here
        extra |= more
        columns, others = ({nest.path_name(path): column for path, column in ep.flatten()} for ep in (one, other))
        for path, (place, cut, _) in moves.items():
            rows = one.num_steps - bool(cut)  # where there is a second reason, it is the last row's
            assert same(columns[path][:rows], others[place][:rows]), f"{path} is not at {place}"
    named = lost.keys() - {"episodes"}
    unnamed = {path for path in changed if not any(f"{path}/".startswith(f"{name}/") for name in named)}
    in_vain = {name for name in named if not any(f"{path}/".startswith(f"{name}/") for path in changed | extra)}
    assert not unnamed and not in_vain, f"differ: {sorted(unnamed)}; named in vain: {sorted(in_vain)}"
    assert extra <= {*(place for place, _, _ in moves.values()), *named, *added}, extra
