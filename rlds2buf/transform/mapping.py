"""Which field goes where: select, rename, join and drop the fields of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlds2buf.core import nest
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.nest import Nest, Path
from rlds2buf.transform.casting import Casting
from rlds2buf.transform.leaves import Leaves
from rlds2buf.transform.tree import find, is_pattern, matching, natural_order, near_miss, place

__all__ = ["Mapper", "map_entries"]

ONE_NUMBER = ("reward", "discount", *FLAG_FIELDS)
"""Step fields that are one value a step: mapped onto one, ``[N, 1]`` is taken as ``[N]``."""


@dataclasses.dataclass(frozen=True)
class _Move:
    """What becomes the field or nest at `target`; several sources, or `joined` alone, are flattened and joined."""

    target: Path
    sources: tuple[Path, ...]
    joined: bool


class Mapper:
    """Moves fields about, as ``open_source(map=..., drop=...)`` says.

    `map` is target to source.  Each is a path from the step's top, with slashes:
    ``observation/state``, ``action/0`` (of a tuple), ``extras/note``.  A path that starts with no step
    field means an extra: ``note`` is ``extras/note``.

    =====================================================  ===================================================
    entry                                                  the result
    =====================================================  ===================================================
    ``"observation": "observation/state"``                 that field (or nest) is the whole observation;
                                                           what else was in it is gone
    ``"observation/robot": "extras/proprio"``              it moves there; missing nests are made on the way,
                                                           and the rest of the observation stays
    ``"observation": ["extras/q", "extras/v"]``            both, each flattened to ``[N, k]``, side by side in
                                                           this order: ``[N, k1 + k2]``
    ``"observation": "observation/joint_*"``               all that match, joined in natural order (9 before
                                                           10); ``*`` does not cross a slash
    ``"observation": ["observation/state"]``               a list of one: flattened to ``[N, k]``
    ``"reward": "extras/r"``                               ``[N, 1]`` is taken as ``[N]`` for reward, discount
                                                           and flags; flags may be numbers 0 and 1
    =====================================================  ===================================================

    - `drop` names the source's fields and nests, patterns included; they are gone before `map` looks.
    - What `map` takes is gone from its old place; it may be used for several targets.
    - What neither names stays where it is, except below a target, which is replaced as a whole.
    - A nest that loses all its fields is gone; a tuple that loses some closes up.
    - A flag that is gone is derived from the record's own borders, as in every Episode that lacks it.
    - Joined fields must be of one type, be cast to one (`casting`), and be neither text nor pictures.

    Args:
        tree: the source's fields (:func:`~rlds2buf.transform.tree.tree_of` its spec).
        map: target to source, or sources.
        drop: fields that are left out.
        casting: the types that fields are to have.

    Raises:
        ValueError: a path is not there (the message names the nearest one), or entries contradict each other.

    >>> import numpy as np
    >>> from rlds2buf.core.spec import FieldSpec
    >>> from rlds2buf.transform.leaves import SpecLeaves
    >>> one = FieldSpec((), np.float32)
    >>> mapper = Mapper({"observation": {"q": one, "v": one}, "extras": {"note": one}},
    ...                 {"observation": "observation/*", "reward": "note"})
    >>> mapper.apply({"observation": {"q": one, "v": one}, "extras": {"note": one}}, SpecLeaves())
    {'observation': FieldSpec(float32[2]), 'reward': FieldSpec(float32[])}
    """

    def __init__(
        self,
        tree: Mapping[str, Nest],
        map: Mapping[str, str | Sequence[str]],
        drop: Sequence[str] = (),
        casting: Casting | None = None,
    ) -> None:
        self._casting = casting or Casting()
        self._dropped = [path for name in drop for path in _dropped(tree, name)]
        left = _without(tree, self._dropped)
        self._moves = [_move(left, tree, target, sources, joined) for target, sources, joined in map_entries(map)]
        self._removed = [*self._dropped, *(path for move in self._moves for path in move.sources)]
        self._leaves = [path for path, leaf in nest.flatten(tree) if leaf is not None]
        self._check_targets(left)

    def apply(self, tree: Mapping[str, Nest], leaves: Leaves) -> dict[str, Nest]:
        """The tree with its fields moved; leaves that only move are shared.

        Raises:
            KeyError: a field that is moved is not there.
        """
        if not self._removed and not self._moves:
            return dict(tree)
        values = [self._value(tree, move, leaves) for move in self._moves]
        out = _without(tree, [*self._removed, *(move.target for move in self._moves)])
        for move, value in sorted(
            zip(self._moves, values, strict=True), key=lambda pair: natural_order(pair[0].target)
        ):
            out = _with(out, move.target, value)
        return out

    @property
    def unused(self) -> list[Path]:
        """The fields that are neither moved nor stay."""
        gone = [*self._dropped, *(move.target for move in self._moves)]
        used = [path for move in self._moves for path in move.sources]
        return [leaf for leaf in self._leaves if _below(leaf, gone) and not _below(leaf, used)]

    def _value(self, tree: Mapping[str, Nest], move: _Move, leaves: Leaves) -> Nest:
        found = [nest.get(tree, source) for source in move.sources]
        name = nest.path_name(move.target)
        if not move.joined:
            return leaves.squeeze(found[0]) if name in ONE_NUMBER and not _is_nest(found[0]) else found[0]
        pieces = []
        for source, piece in zip(move.sources, found, strict=True):
            wanted = self._casting.wanted(name, leaves.dtype(piece))
            pieces.append(piece if wanted is None else leaves.cast(piece, wanted, nest.path_name(source)))
        joined = leaves.join(pieces, name)
        return leaves.squeeze(joined) if name in ONE_NUMBER else joined

    def _check_targets(self, left: Mapping[str, Nest]) -> None:
        targets = [move.target for move in self._moves]
        for i, target in enumerate(targets):
            for other in targets[i + 1 :]:
                if target[: len(other)] == other or other[: len(target)] == target:
                    names = nest.path_name(target), nest.path_name(other)
                    raise ValueError(f"map: {names[0]!r} and {names[1]!r} overlap; name each field once")
        stays: Any = _without(left, [*self._removed, *targets])
        for target in targets:
            here = stays
            for depth, part in enumerate(target[:-1]):
                here = here.get(part) if isinstance(here, Mapping) else _position(here, part)
                if here is not None and not _is_nest(here):
                    name, inner = nest.path_name(target), nest.path_name(target[: depth + 1])
                    raise ValueError(f"map: {name!r} can't be inside {inner!r}, which is a field and stays where it is")


def map_entries(map: Mapping[str, str | Sequence[str]]) -> Iterator[tuple[str, list[str], bool]]:
    """Target, sources and whether they are joined, of each entry.

    Raises:
        TypeError: it is no mapping, or a source is neither text nor a list of texts.
        ValueError: a list is empty.
    """
    if not isinstance(map, Mapping):
        raise TypeError(f"map: expected a dict of field to source, for example {{'reward': 'extras/r'}}, got {map!r}")
    for target, given in map.items():
        names = [given] if isinstance(given, str) else list(given)
        if not all(isinstance(name, str) for name in (target, *names)):
            raise TypeError(f"map: expected field names for {target!r}, got {given!r}")
        if not names:
            raise ValueError(f"map: no field is named for {target!r}")
        yield target, names, not isinstance(given, str) or is_pattern(given)


def _move(left: Mapping[str, Nest], tree: Mapping[str, Nest], target: str, names: list[str], joined: bool) -> _Move:
    sources: list[Path] = []
    for name in names:
        found = _found(left, tree, name)
        if joined:
            for path in found:
                if _is_nest(nest.get(left, path)):
                    inner = nest.path_name(path)
                    raise ValueError(f"map: {inner!r} is a nest; its fields are joined as {inner + '/*'!r}")
        sources += found
    return _Move(place(tree, target), tuple(dict.fromkeys(sources)), joined)


def _found(left: Mapping[str, Nest], tree: Mapping[str, Nest], name: str) -> list[Path]:
    """The paths that a source's name or pattern means, at least one."""
    path = find(left, name)
    found = [path] if path is not None else matching(left, name) if is_pattern(name) else []
    if not found:
        dropped = " but what is dropped" if find(tree, name) or matching(tree, name) else ""
        raise ValueError(f"map: no field {name!r}{dropped}{near_miss(left, name)}")
    return found


def _dropped(tree: Mapping[str, Nest], name: str) -> list[Path]:
    path = find(tree, name)
    found = [path] if path is not None else matching(tree, name) if is_pattern(name) else []
    if not found:
        raise ValueError(f"drop: no field {name!r}{near_miss(tree, name)}")
    return found


def _below(path: Path, nests: Sequence[Path]) -> bool:
    return any(path[: len(inner)] == inner for inner in nests)


def _is_nest(value: Nest) -> bool:
    return isinstance(value, Mapping | tuple)


def _position(here: Nest, part: str | int) -> Nest:
    return here[part] if isinstance(here, tuple) and isinstance(part, int) else None


_GONE: Any = object()


def _without(tree: Mapping[str, Nest], paths: Sequence[Path]) -> dict[str, Nest]:
    """The tree without what is at these paths; nests that lose everything by it are gone too."""
    pruned = _prune(tree, set(paths), ())
    return {} if pruned is _GONE else pruned  # type: ignore[no-any-return]


def _prune(tree: Nest, paths: set[Path], here: Path) -> Any:
    if here in paths:
        return _GONE
    if not _is_nest(tree) or not any(path[: len(here)] == here for path in paths):
        return tree
    if isinstance(tree, Mapping):
        children = {key: _prune(child, paths, (*here, key)) for key, child in tree.items()}
        kept = {key: child for key, child in children.items() if child is not _GONE}
        return kept if kept or not children else _GONE
    parts = [_prune(child, paths, (*here, i)) for i, child in enumerate(tree)]
    left = tuple(part for part in parts if part is not _GONE)
    if len(left) == len(parts) and hasattr(tree, "_fields"):
        return type(tree)(*left)
    return left if left or not parts else _GONE


def _with(tree: Nest, path: Path, value: Nest) -> Any:
    """The tree with `value` at `path`; nests on the way are made where there are none."""
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(tree, tuple) or (tree is None and isinstance(first, int)):
        tree = tree or ()
        position = min(first, len(tree)) if isinstance(first, int) else len(tree)
        inside = _with(None, rest, value)
        return (*tree[:position], inside, *tree[position:])
    known = tree if isinstance(tree, Mapping) else {}
    return {**known, str(first): _with(known.get(str(first)), rest, value)}
