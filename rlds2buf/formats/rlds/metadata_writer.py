"""Facts about whole episodes, beside their steps in the record: which feature each becomes, and its values.

The first episode says which there are and their dtypes; lengths of an axis may vary from episode to
episode.  TFDS wants every feature in every record: where an episode lacks one, or has something else
there, zeros (NaN, an empty string) are written, and counted in `lost`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.dtypes import dtype_name
from rlds2buf.core.row_flags import OPEN_TAIL, PLACEHOLDER_FINAL_ROW
from rlds2buf.formats.rlds.features import FeatureTree, Tensor
from rlds2buf.formats.rlds.leaf_writer import Buffer, LeafWriter

__all__ = ["MARKERS", "MetadataWriter"]

MARKERS: Final = (PLACEHOLDER_FINAL_ROW, OPEN_TAIL)
"""What is known of every episode, whether or not its metadata say so."""

_ONLY_AS_BYTES: Final = ("float64", "complex64", "complex128")
_PLAIN: Final = "biufc"
_TEXT: Final = "OSU"
_MOST_LOST: Final = 1000
_MOST_WRITTEN: Final = 256


class _Kept(NamedTuple):
    """One feature: its writer, what the value was in Python, the shapes seen so far as one, what was written lately."""

    writer: LeafWriter
    python: str
    shape: tuple[int | None, ...]
    written: dict[Any, list[Buffer]]


class MetadataWriter:
    """Writes the metadata of one episode after another.

    Attributes:
        lost: how many episodes had something that is not stored, by path and reason.

    >>> writer = MetadataWriter()
    >>> _ = writer.write({"seed": 3})
    >>> _ = writer.write({"seed": 4, "note": "new"})
    >>> sorted(writer.features()), list(writer.lost)
    (['open_tail', 'placeholder_final_row', 'seed'], ['note'])
    """

    def __init__(self) -> None:
        self._kept: dict[nest.Path, _Kept] | None = None
        self.lost: dict[str, dict[str, int]] = {}

    def write(self, metadata: Mapping[str, Any]) -> list[Buffer]:
        """The map entries for one episode's metadata."""
        found = dict(self._leaves({**dict.fromkeys(MARKERS, False), **self._with_flags(metadata)}))
        if self._kept is None:
            self._kept = dict(self._first(found))
        out: list[Buffer] = []
        for path, kept in self._kept.items():
            out += self._entries(path, kept, found)
        for path in found.keys() - self._kept.keys():
            self._lose(path, "the first episode does not have it")
        return out

    def _entries(self, path: nest.Path, kept: _Kept, found: Mapping[nest.Path, tuple[str, np.ndarray]]) -> list[Buffer]:
        value = self._value(path, kept, found)
        if value.shape or value.dtype.kind in "fc":
            return kept.writer.write(value)
        # Flags, numbers and names that were there before: most episodes say nothing new.
        known = kept.written.get(cell := value.item())
        if known is None:
            if len(kept.written) >= _MOST_WRITTEN:
                kept.written.clear()
            known = kept.written[cell] = kept.writer.write(value)
        return known

    def features(self) -> dict[str, FeatureTree]:
        """The features, once all episodes are written."""
        tree: dict[str, Any] = {}
        for path, kept in (self._kept or {}).items():
            here = tree
            for name in path[:-1]:
                here = here.setdefault(str(name), {})
            leaf = kept.writer.leaf
            assert isinstance(leaf, Tensor)
            here[str(path[-1])] = Tensor(kept.shape, leaf.dtype, leaf.encoding, leaf.stored)
        return tree

    def python_kinds(self) -> dict[str, list[nest.Path]]:
        """Paths of what was a str, a list or a list of str; they are byte strings and arrays in the record."""
        kinds: dict[str, list[nest.Path]] = {}
        for path, kept in (self._kept or {}).items():
            if kept.python:
                kinds.setdefault(kept.python, []).append(path)
        return kinds

    def paths(self) -> list[nest.Path]:
        """Of everything stored; a number in one is a place in a tuple."""
        return list(self._kept or {})

    def state(self) -> dict[str, Any]:
        """As plain JSON values; :meth:`go_on_from` reads it back."""
        kept = None
        if self._kept is not None:
            kept = [
                [list(path), one.python, dtype_name(one.writer.leaf.dtype), list(one.shape)]
                for path, one in self._kept.items()
            ]
        return {"kept": kept, "lost": self.lost}

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Take over where another writer was."""
        self.lost = {path: dict(reasons) for path, reasons in state["lost"].items()}
        self._kept = None
        if state["kept"] is not None:
            self._kept = {
                tuple(path): _keep(tuple(path), python, dtype, tuple(shape))
                for path, python, dtype, shape in state["kept"]
            }

    def _with_flags(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata, markers as booleans."""
        out = dict(metadata)
        for name in MARKERS:
            if isinstance(value := metadata.get(name, False), bool | np.bool_ | int | np.integer):
                out[name] = bool(value)
            else:
                self._lose((name,), f"it should be a boolean, not {_kind_name(value)}")
                out[name] = False
        return out

    def _first(self, found: Mapping[nest.Path, tuple[str, np.ndarray]]) -> Iterator[tuple[nest.Path, _Kept]]:
        taken: set[str] = set()
        for path, (python, value) in found.items():
            key = nest.path_name(path)
            shape = tuple(n or None for n in value.shape)  # an empty array: its length is taken to vary
            if shape.count(None) > 1:
                self._lose(path, "an array without values")
            elif key in taken or path[0] == "steps":
                self._lose(path, "something else has this name in the record")
            else:
                taken.add(key)
                yield path, _keep(path, python, _stored_name(value), shape)

    def _value(self, path: nest.Path, kept: _Kept, found: Mapping[nest.Path, tuple[str, np.ndarray]]) -> np.ndarray:
        """What to write; notes a length that varies."""
        python, value = found.get(path, ("", None))
        shape = None if value is None else _joined(kept.shape, value.shape)
        if value is not None and shape is not None and _stored_name(value) == dtype_name(kept.writer.leaf.dtype):
            assert self._kept is not None
            if shape != kept.shape or (python != kept.python and kept.python):
                # What was a str here and bytes there is given back as bytes.
                self._kept[path] = kept._replace(shape=shape, python=kept.python if python == kept.python else "")
            return value
        if value is None:
            self._lose(path, "missing")
        else:
            self._lose(path, f"{_named(value)} where the first episode has {_named_like(kept)}")
        return _nothing(kept)

    def _leaves(self, metadata: Mapping[str, Any], path: nest.Path = ()) -> Iterator[tuple[nest.Path, Any]]:
        for name, value in metadata.items():
            if not isinstance(name, str) or not name or "\0" in name:
                self._lose((*path, repr(name)), "its name is no text")
            else:
                yield from self._leaf((*path, name), value)

    def _leaf(self, path: nest.Path, value: Any) -> Iterator[tuple[nest.Path, Any]]:
        if isinstance(value, Mapping) and value:
            yield from self._leaves(value, path)
            return
        if isinstance(value, tuple) and value:
            for i, child in enumerate(value):
                yield from self._leaf((*path, i), child)
            return
        array = _array(value)
        if array is None:
            self._lose(path, f"TFDS can't hold {_kind_name(value)}")
        else:
            yield path, (_python_kind(value), array)

    def _lose(self, path: nest.Path, reason: str) -> None:
        if len(self.lost) < _MOST_LOST:
            reasons = self.lost.setdefault(nest.path_name(path), {})
            reasons[reason] = reasons.get(reason, 0) + 1


def _python_kind(value: Any) -> str:
    """``"str"``, ``"list"``, ``"texts"`` (a list of str); ``""`` for anything else."""
    if isinstance(value, str):
        return "str"
    if not isinstance(value, list):
        return ""
    return "texts" if value and all(isinstance(cell, str) for cell in value) else "list"


def _array(value: Any) -> np.ndarray | None:
    """The value as an array of a dtype that TFDS has, byte strings as objects; None if it can't be had."""
    if isinstance(value, str | bytes):
        return _text(np.array(value, object))
    if value is None or isinstance(value, Mapping | tuple | set | frozenset):
        return None
    try:
        array = np.asarray(value)
        if array.dtype.kind in "SU" and isinstance(value, list):
            if len(set(map(type, value))) > 1:  # of which numpy would make text
                return None
            array = np.array(value, object)
    except (TypeError, ValueError, OverflowError):  # lists of lists of several lengths
        return None
    if array.dtype.kind in _TEXT:
        return _text(array)
    return array if array.dtype.kind in _PLAIN and _is_stored(array) else None


def _is_stored(array: np.ndarray) -> bool:
    return array.dtype.itemsize <= (16 if array.dtype.kind == "c" else 8)  # no long doubles


def _text(array: np.ndarray) -> np.ndarray | None:
    cells = array.reshape(-1).tolist()
    if not all(isinstance(cell, str | bytes) for cell in cells):
        return None
    out = np.empty(array.size, object)
    for i, cell in enumerate(cells):
        try:
            out[i] = cell.encode() if isinstance(cell, str) else bytes(cell)
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
    return out.reshape(array.shape)


def _keep(path: nest.Path, python: str, name: str, shape: tuple[int | None, ...]) -> _Kept:
    dtype = np.dtype(object) if name == "string" else np.dtype(name)
    leaf = Tensor(shape, dtype, "bytes" if name in _ONLY_AS_BYTES else "none", name)
    return _Kept(LeafWriter(nest.path_name(path), leaf, 0), python, shape, {})


def _stored_name(value: np.ndarray) -> str:
    return dtype_name(value.dtype)


def _joined(seen: tuple[int | None, ...], shape: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """Both shapes as one, if no more than one axis varies; the record looks the same then."""
    if len(seen) != len(shape):
        return None
    joined = tuple(want if want == have else None for want, have in zip(seen, shape, strict=True))
    return joined if joined.count(None) < 2 else None


def _nothing(kept: _Kept) -> np.ndarray:
    shape = [n or 0 for n in kept.shape]
    dtype = kept.writer.leaf.dtype
    if dtype.kind == "O":
        return np.full(shape, b"", object)
    return np.full(shape, np.nan if dtype.kind in "fc" else 0, dtype)


def _named(value: np.ndarray) -> str:
    return f"{dtype_name(value.dtype)}{list(value.shape)}"


def _named_like(kept: _Kept) -> str:
    return f"{dtype_name(kept.writer.leaf.dtype)}[{', '.join('?' if n is None else str(n) for n in kept.shape)}]"


def _kind_name(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    empty = isinstance(value, Mapping | tuple) and not value
    return f"an empty {type(value).__name__}" if empty else f"a {type(value).__name__}"
