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
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.row_flags import OPEN_TAIL, PLACEHOLDER_FINAL_ROW
from rlds2buf.formats.rlds.features import FeatureTree, Tensor
from rlds2buf.formats.rlds.leaf_writer import LeafWriter, Pieces

__all__ = ["MARKERS", "MetadataWriter"]

MARKERS: Final = (PLACEHOLDER_FINAL_ROW, OPEN_TAIL)
"""What is known of every episode, whether or not its metadata say so."""

_ONLY_AS_BYTES: Final = ("float64", "complex64", "complex128")
_BOOLEAN: Final = (bool, np.bool_, int, np.integer)
_NUMBERS: Final = (bool, int, float, complex)
_PLAIN: Final = "biufc"
_TEXT: Final = "OSU"
_MOST_LOST: Final = 1000


class _Kept(NamedTuple):
    """One feature: its writer, what the value was in Python, the shapes seen so far as one."""

    writer: LeafWriter
    python: str
    shape: tuple[int | None, ...]


class _Value(NamedTuple):
    """What an episode's metadata have at one path: what it was in Python, and as an array."""

    python: str
    array: np.ndarray


class _Column(NamedTuple):
    """Values of one kind at one path of all of E episodes: ``[E, ...]``, or ``[1, ...]`` where they are the same."""

    python: str
    array: np.ndarray

    @property
    def first(self) -> _Value:
        """The first episode's."""
        return _Value(self.python, self.array[:1].reshape(self.array.shape[1:]))


class MetadataWriter:
    """Writes the metadata of one block of episodes after another.

    Attributes:
        lost: how many episodes had something that is not stored, by path and reason.

    >>> from rlds2buf import Episode
    >>> writer = MetadataWriter()
    >>> _ = writer.write(EpisodeBatch.of([Episode(reward=[0.0], metadata={"seed": 3})]))
    >>> _ = writer.write(EpisodeBatch.of([Episode(reward=[0.0], metadata={"seed": 4, "note": "new"})]))
    >>> sorted(writer.features()), list(writer.lost)
    (['open_tail', 'placeholder_final_row', 'seed'], ['note'])
    """

    def __init__(self) -> None:
        self._kept: dict[nest.Path, _Kept] | None = None
        self.lost: dict[str, dict[str, int]] = {}

    def write(self, batch: EpisodeBatch) -> list[Pieces]:
        """The map entries for the metadata of a block's episodes."""
        columns = self._columns(batch)
        if columns is not None:
            return self._write_columns(columns, len(batch))
        return self._write_each([episode.metadata for episode in batch])

    def _write_columns(self, columns: Mapping[nest.Path, _Column], count: int) -> list[Pieces]:
        """The same in all episodes but for values of one dtype and shape."""
        firsts = {path: column.first for path, column in columns.items()}
        out: list[Pieces] = []
        for path, kept, value in self._values(firsts, count):
            same = path in firsts and value is firsts[path].array
            array = columns[path].array if same else value[None]
            pieces = kept.writer.write(array, np.arange(len(array) + 1))
            out += pieces if len(array) == count else [piece.repeated(count) for piece in pieces]
        return out

    def _write_each(self, metadata: list[Mapping[str, Any]]) -> list[Pieces]:
        """Of episodes that may have anything."""
        values: list[list[np.ndarray]] = []
        writers: list[LeafWriter] = []
        for facts in metadata:
            found = dict(self._leaves({**dict.fromkeys(MARKERS, False), **self._with_flags(facts)}))
            kept = list(self._values(found))
            values.append([value for _, _, value in kept])
            writers = [one.writer for _, one, _ in kept]
        out: list[Pieces] = []
        for writer, arrays in zip(writers, zip(*values, strict=True), strict=True):
            if len({array.shape for array in arrays}) == 1:
                out += writer.write(np.stack(arrays), np.arange(len(arrays) + 1))
            else:
                each = [writer.write(array[None], np.arange(2)) for array in arrays]
                out += [Pieces.joined(pieces) for pieces in zip(*each, strict=True)]
        return out

    def _values(
        self, found: Mapping[nest.Path, _Value], count: int = 1
    ) -> Iterator[tuple[nest.Path, _Kept, np.ndarray]]:
        """What to write of `count` episodes that have the same, as far as can be seen."""
        if self._kept is None:
            self._kept = dict(self._first(found))
        for path, kept in list(self._kept.items()):
            yield path, kept, self._value(path, kept, found.get(path), count)
        for path in found.keys() - self._kept.keys():
            self._lose(path, "the first episode does not have it", count)

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
        return {"kept": kept, "lost": {path: dict(reasons) for path, reasons in self.lost.items()}}

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
            if isinstance(value := metadata.get(name, False), _BOOLEAN):
                out[name] = bool(value)
            else:
                self._lose((name,), f"it should be a boolean, not {_kind_name(value)}")
                out[name] = False
        return out

    def _columns(self, batch: EpisodeBatch) -> dict[nest.Path, _Column] | None:
        """The metadata by path; None where they can't be had so, and each episode's have to be looked at."""
        facts = FactColumns.of(batch.metadata) if batch.metadata is not None else None
        if facts is None and batch.metadata is not None:
            return None
        own = {} if facts is None else facts.columns
        out: dict[nest.Path, _Column] = {}
        columns: dict[str, dict[nest.Path, _Column]] = {}
        try:
            for name in MARKERS:
                out[(name,)] = _Column("", _marks(name, own.get(name), batch))
            for name, column in own.items():
                columns[name] = {} if name in MARKERS else dict(_stored_columns({name: column}, ()))
        except TypeError:
            return None
        for name, value in {**batch.rows.metadata, **own}.items():
            if name in columns:
                out.update(columns[name])
            elif name not in MARKERS:
                shared = self._leaves({name: value}, count=len(batch))
                out.update((path, _Column(one.python, one.array[None])) for path, one in shared)
        return out

    def _first(self, found: Mapping[nest.Path, _Value]) -> Iterator[tuple[nest.Path, _Kept]]:
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

    def _value(self, path: nest.Path, kept: _Kept, found: _Value | None, count: int) -> np.ndarray:
        """What to write; notes a length that varies."""
        python, value = found or ("", None)
        shape = None if value is None else _joined(kept.shape, value.shape)
        if value is not None and shape is not None and _stored_name(value) == dtype_name(kept.writer.leaf.dtype):
            assert self._kept is not None
            if shape != kept.shape or (python != kept.python and kept.python):
                # What was a str here and bytes there is given back as bytes.
                self._kept[path] = kept._replace(shape=shape, python=kept.python if python == kept.python else "")
            return value
        if value is None:
            self._lose(path, "missing", count)
        else:
            self._lose(path, f"{_named(value)} where the first episode has {_named_like(kept)}", count)
        return _nothing(kept)

    def _leaves(
        self, metadata: Mapping[str, Any], path: nest.Path = (), count: int = 1
    ) -> Iterator[tuple[nest.Path, _Value]]:
        for name, value in metadata.items():
            if _is_name(name):
                yield from self._leaf((*path, name), value, count)
            else:
                self._lose((*path, repr(name)), "its name is no text", count)

    def _leaf(self, path: nest.Path, value: Any, count: int) -> Iterator[tuple[nest.Path, _Value]]:
        if isinstance(value, Mapping) and value:
            yield from self._leaves(value, path, count)
            return
        if isinstance(value, tuple) and value:
            for i, child in enumerate(value):
                yield from self._leaf((*path, i), child, count)
            return
        array = _array(value)
        if array is None:
            self._lose(path, f"TFDS can't hold {_kind_name(value)}", count)
        else:
            yield path, _Value(_python_kind(value), array)

    def _lose(self, path: nest.Path, reason: str, count: int = 1) -> None:
        if len(self.lost) < _MOST_LOST:
            reasons = self.lost.setdefault(nest.path_name(path), {})
            reasons[reason] = reasons.get(reason, 0) + count


def _marks(name: str, values: Any, batch: EpisodeBatch) -> np.ndarray:
    """A marker of each episode, ``[E] bool``, or ``[1]`` where it is the same for all.

    Raises:
        TypeError: it is no boolean.
    """
    values = [batch.rows.metadata.get(name, False)] if values is None else values
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(listed, list) or not all(isinstance(value, _BOOLEAN) for value in listed):
        raise TypeError
    marks = np.array([bool(value) for value in listed])
    return marks | batch.placeholder if name == PLACEHOLDER_FINAL_ROW and batch.placeholder is not None else marks


def _stored_columns(values: Any, path: nest.Path) -> Iterator[tuple[nest.Path, _Column]]:
    """The columns in a nest of what is known of each episode.

    Raises:
        TypeError: one has values of several kinds, or such as can't be stored.
    """
    if isinstance(values, Mapping) and values and all(map(_is_name, values)):
        for name, child in values.items():
            yield from _stored_columns(child, (*path, name))
    elif isinstance(values, tuple) and values:
        for i, child in enumerate(values):
            yield from _stored_columns(child, (*path, i))
    elif isinstance(values, np.ndarray) and values.dtype.kind in _PLAIN and _is_stored(values):
        yield path, _Column("", values)
    else:
        yield path, _listed_column(values.tolist() if isinstance(values, np.ndarray) else values)


def _listed_column(values: Any) -> _Column:
    """Values of one type: numbers that an array has no other form of, arrays of one shape, or texts."""
    kinds = set(map(type, values)) if isinstance(values, list) else set()
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is np.ndarray:
        dtypes, shapes = {value.dtype for value in values}, {value.shape for value in values}
        array = np.stack(values) if len(dtypes) == len(shapes) == 1 and values[0].dtype.kind in _PLAIN else None
    elif kind is not None and issubclass(kind, str | bytes):
        return _Column("str" if issubclass(kind, str) else "", _required(_text(np.array(values, object))))
    elif kind in _NUMBERS or (kind is not None and issubclass(kind, np.generic)):
        array = np.array(values)
        usual = (
            np.int64 if kind is int else np.asarray(values[0]).dtype
        )  # of some Python's integers numpy makes another
        array = array if array.dtype == usual and array.dtype.kind in _PLAIN else None
    else:
        array = None
    return _Column("", _required(array if array is not None and _is_stored(array) else None))


def _required(array: np.ndarray | None) -> np.ndarray:
    if array is None:
        raise TypeError
    return array


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name) and "\0" not in name


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
    return _Kept(LeafWriter(nest.path_name(path), leaf, 0), python, shape)


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
