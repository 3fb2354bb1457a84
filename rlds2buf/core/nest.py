"""Nests: dicts (string keys) and tuples of leaves, as observations and actions come.

Everything else is a leaf, ``list`` included (a list is data, not structure).  Leaves are visited
in one fixed order, dict keys sorted, so that two nests of the same structure always line up; that
is also the order TensorFlow and Reverb use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["Nest", "Path", "flatten", "get", "map_structure", "path_name", "replaced", "same_structure", "unflatten"]

Nest = Any
"""A leaf, or a dict or tuple of nests."""

Path = tuple[str | int, ...]
"""How to reach a leaf: dict keys and tuple positions, outermost first."""


_MAPPING, _TUPLE, _LEAF = range(3)
_KINDS: dict[type, int] = {}


def _kind(nest: Nest) -> int:
    """What a nest is by its type; remembered, for asking Mapping takes longer than the visit."""
    kind = _KINDS.get(type(nest))
    if kind is None:
        kind = _MAPPING if isinstance(nest, Mapping) else _TUPLE if isinstance(nest, tuple) else _LEAF
        _KINDS[type(nest)] = kind
    return kind


def path_name(path: Path) -> str:
    """``("observation", "arm", 0)`` as ``"observation/arm/0"``."""
    return "/".join(str(part) for part in path)


def flatten(nest: Nest, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield ``(path, leaf)`` for every leaf, dict keys sorted.

    >>> [(path_name(p), leaf) for p, leaf in flatten({"b": 1, "a": (2, 3)})]
    [('a/0', 2), ('a/1', 3), ('b', 1)]
    """
    kind = _kind(nest)
    if kind == _MAPPING:
        for key in sorted(nest):
            yield from flatten(nest[key], (*path, key))
    elif kind == _TUPLE:
        for i, child in enumerate(nest):
            yield from flatten(child, (*path, i))
    else:
        yield path, nest


def map_structure(fn: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """Apply `fn` leaf by leaf to nests of one structure; the result has the first one's structure.

    Raises:
        KeyError, IndexError, TypeError: the structures differ.
    """
    kind = _kind(nest)
    if kind == _LEAF:
        return fn(nest, *others)
    if kind == _MAPPING:
        return {key: map_structure(fn, nest[key], *[other[key] for other in others]) for key in nest}
    children = (map_structure(fn, child, *[other[i] for other in others]) for i, child in enumerate(nest))
    return type(nest)(*children) if hasattr(nest, "_fields") else tuple(children)


def replaced(nest: Nest, path: Path, value: Any) -> Nest:
    """A nest with another leaf at `path`; nothing that it shares with the old one is changed.

    >>> replaced({"a": (1, 2), "b": 3}, ("a", 1), 9)
    {'a': (1, 9), 'b': 3}
    """
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(nest, tuple):
        children = [replaced(child, rest, value) if i == first else child for i, child in enumerate(nest)]
        return type(nest)(*children) if hasattr(nest, "_fields") else tuple(children)
    return {key: replaced(child, rest, value) if key == first else child for key, child in nest.items()}


def unflatten(structure: Nest, leaves: Iterator[Any]) -> Nest:
    """Rebuild a nest of `structure` from leaves in :func:`flatten`'s order."""
    if isinstance(structure, Mapping):
        rebuilt = {key: unflatten(structure[key], leaves) for key in sorted(structure)}
        return {key: rebuilt[key] for key in structure}
    if isinstance(structure, tuple):
        children = [unflatten(child, leaves) for child in structure]
        return type(structure)(*children) if hasattr(structure, "_fields") else tuple(children)
    return next(leaves)


def get(nest: Nest, path: Path) -> Any:
    """The sub-nest or leaf at `path`.

    Raises:
        KeyError: there is none.
    """
    here = nest
    for part in path:
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError) as cause:
            raise KeyError(path_name(path)) from cause
    return here


def same_structure(one: Nest, other: Nest) -> bool:
    """Whether both have the same dict keys and tuple lengths all the way down."""
    return [path for path, _ in flatten(one)] == [path for path, _ in flatten(other)]
