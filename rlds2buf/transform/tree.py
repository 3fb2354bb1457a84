"""The fields of a step as one nested dict, and the paths into it.

The top of the tree holds RLDS's step fields and, under ``extras``, everything else.  Leaves are
columns or :class:`~rlds2buf.core.spec.FieldSpec`: what moves one moves the other.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import DATA_FIELDS, FLAG_FIELDS, STEP_FIELDS
from rlds2buf.core.nest import Nest, Path
from rlds2buf.core.spec import StepSpec

__all__ = [
    "batch_of",
    "episode_of",
    "find",
    "is_pattern",
    "leaf_names",
    "matching",
    "natural_order",
    "near_miss",
    "place",
    "spec_of_tree",
    "tree_of",
]

TOP = (*STEP_FIELDS, "extras")
_MAX_LISTED = 30


def tree_of(data: Episode | StepSpec) -> dict[str, Nest]:
    """The fields that an episode or a spec has.

    >>> import numpy as np
    >>> list(tree_of(Episode(observation={"a": np.zeros(2)}, extras={"note": np.zeros(2)})))
    ['observation', 'is_first', 'is_last', 'is_terminal', 'extras']
    """
    found = {name: getattr(data, name) for name in STEP_FIELDS if getattr(data, name) is not None}
    return {**found, "extras": data.extras} if data.extras else found


def episode_of(tree: Mapping[str, Nest], origin: Episode) -> Episode:
    """The episode of a tree, with the metadata, source and index of the one that it was made from.

    A flag that `origin` derived and that is still the same column counts as derived again.
    """
    fields = dict(tree)
    for name in origin.derived:
        if fields.get(name) is getattr(origin, name):
            del fields[name]
    return Episode(**fields, metadata=origin.metadata, source=origin.source, index=origin.index)


def batch_of(tree: Mapping[str, Nest], origin: EpisodeBatch) -> EpisodeBatch:
    """:func:`episode_of` of every episode of a batch, whose rows became this tree.

    Raises:
        SpecMismatch: a flag is not one bool a step.
    """
    fields, rows = dict(tree), origin.rows
    derived = [name for name in FLAG_FIELDS if fields.get(name) is None]
    for name in derived:
        fields[name] = np.zeros(rows.num_steps, np.bool_)
    for name, where in (("is_first", origin.starts), ("is_last", origin.ends)):
        if name in derived:
            fields[name][where] = True
    derived += [name for name in origin.derived if fields[name] is getattr(rows, name)]
    made = Episode(**fields, metadata=rows.metadata, source=rows.source, index=rows.index)
    return origin.with_rows(made, derived)


def spec_of_tree(tree: Mapping[str, Nest]) -> StepSpec:
    """The spec of a tree of FieldSpec; flags that are gone are derived by every Episode, so they stay."""
    data: dict[str, Nest] = {name: tree.get(name) for name in DATA_FIELDS}
    flags: dict[str, Nest] = {name: tree[name] for name in FLAG_FIELDS if name in tree}
    return StepSpec(**data, **flags, extras=dict(tree.get("extras", {})))


def leaf_names(tree: Nest) -> list[str]:
    """The paths of all leaves, as text."""
    return [nest.path_name(path) for path, leaf in nest.flatten(tree) if leaf is not None]


def find(tree: Mapping[str, Nest], name: str) -> Path | None:
    """The path of a field or nest that is written ``"observation/state"``; None if there is none.

    What is no step field by its first part is looked for among the extras too.

    >>> find({"extras": {"note": 1}}, "note"), find({"action": (1, 2)}, "action/1")
    (('extras', 'note'), ('action', 1))
    """
    parts = name.split("/")
    found = _walk(tree, parts)
    return _walk(tree, ["extras", *parts]) if found is None and parts[0] not in TOP else found


def _walk(tree: Nest, parts: Iterable[str]) -> Path | None:
    path: list[str | int] = []
    for part in parts:
        key: str | int = part
        if isinstance(tree, tuple):
            if not part.isdecimal() or int(part) >= len(tree):
                return None
            key = int(part)
        elif not isinstance(tree, Mapping) or part not in tree:
            return None
        tree = tree[key]
        path.append(key)
    return tuple(path)


def place(tree: Mapping[str, Nest], name: str) -> Path:
    """The path that a new field goes to: an extra, where its first part is no step field.

    Raises:
        ValueError: it is empty, or the first part looks like a misspelt step field.

    >>> place({}, "observation/state"), place({}, "note")
    (('observation', 'state'), ('extras', 'note'))
    """
    parts = name.split("/")
    if not all(parts) or is_pattern(name) or parts == ["extras"]:
        raise ValueError(f"{name!r} is no name for a field")
    if parts[0] not in TOP:
        near = difflib.get_close_matches(parts[0], TOP, n=1, cutoff=0.75)
        if near:
            right = "/".join([near[0], *parts[1:]])
            raise ValueError(f"{name!r} is no step field; is it {right!r}? (an extra step field is 'extras/{name}')")
        parts = ["extras", *parts]
    path: list[str | int] = []
    here: Nest = tree
    for part in parts:
        is_position = isinstance(here, tuple) and part.isdecimal() and int(part) < len(here)
        path.append(int(part) if is_position else part)
        here = here[path[-1]] if is_position or (isinstance(here, Mapping) and part in here) else None
    return tuple(path)


def is_pattern(name: str) -> bool:
    """Whether a path has wildcards: ``*``, ``?`` or ``[...]``."""
    return any(sign in name for sign in "*?[")


def matching(tree: Mapping[str, Nest], pattern: str) -> list[Path]:
    """The fields and nests that a pattern names, in natural order; wildcards don't cross a slash.

    Where nothing fits from the top, it is looked for among the extras.

    >>> matching({"observation": {"q10": 1, "q9": 2, "arm": {"q1": 3}}}, "observation/q*")
    [('observation', 'q9'), ('observation', 'q10')]
    """
    parts = pattern.split("/")
    found = _matching(tree, parts, ())
    if not found:
        found = _matching(tree.get("extras", {}), parts, ("extras",))
    return sorted(found, key=natural_order)


def _matching(tree: Nest, parts: list[str], path: Path) -> list[Path]:
    if not parts:
        return [path]
    if not isinstance(tree, Mapping | tuple):
        return []
    children = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    return [
        match
        for key, child in children
        if fnmatch.fnmatchcase(str(key), parts[0]) and child is not None
        for match in _matching(child, parts[1:], (*path, key))
    ]


def natural_order(path: Path) -> list[tuple[int, int, str]]:
    """A sort key that puts ``joint_9`` before ``joint_10``."""
    pieces = re.split(r"(\d+)", nest.path_name(path))
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces]


def near_miss(tree: Mapping[str, Nest], name: str) -> str:
    """What to say of a path that is not there: the nearest one, and what there is.

    >>> near_miss({"observation": {"state": 1}}, "observation/stat")
    "; is it 'observation/state'? There are: observation/state"
    """
    names = leaf_names(tree)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not near:  # the right field in the wrong place
        near = [full for full in names if full.rsplit("/", 1)[-1] == name.rsplit("/", 1)[-1]][:1]
    listed = ", ".join(names[:_MAX_LISTED]) + (f" and {len(names) - _MAX_LISTED} more" * (len(names) > _MAX_LISTED))
    hint = f"; is it {near[0]!r}?" if near else "."
    return f"{hint} There are: {listed or 'none'}"
