"""An episode's metadata as values that HDF5 can hold.

A *fact* is None, a ``str``, a ``bytes``, or an array: of numbers, or ``object`` of ``bytes``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.dtypes import parse_dtype
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns

__all__ = ["SharedFacts", "fact", "facts_of", "from_json", "same_fact", "to_json"]

Fact = Any
Lose = Callable[[str, str], None]
"""Called with a path and the reason why it is not kept."""


def fact(value: Any) -> Fact:
    """A value as a fact.

    Raises:
        TypeError: it has no such form; the message says why, after "its value ...".

    >>> fact([1, 2]), fact(b"a"), fact(True)
    (array([1, 2]), b'a', array(True))
    """
    if value is None:
        return None
    if isinstance(value, str | bytes):
        value = str(value) if isinstance(value, str) else bytes(value)
        _check_text(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)
        return value
    array = _array(value)
    if array.dtype.kind in "biufc":
        return array
    items = array.reshape(-1).tolist()
    if array.dtype.kind not in "SUO" or not all(isinstance(item, str | bytes) for item in items):
        raise TypeError(f"is {_what(value)}, which HDF5 has no type for")
    out = np.empty(len(items), object)
    out[:] = [item.encode() if isinstance(item, str) else item for item in items]
    for item in out:
        _check_text(item)
    return out.reshape(array.shape)


def facts_of(metadata: Mapping[str, Any], lose: Lose) -> dict[str, Fact]:
    """The metadata's leaves as facts, by their path with slashes; `lose` hears of those that can't be.

    >>> facts_of({"a": {"b": 1}, "c": object()}, lambda path, why: print(path, why))
    metadata/c its value is a object, which HDF5 has no type for
    {'a/b': array(1)}
    """
    found: dict[str, Fact] = {}
    _walk(metadata, "", found, lose)
    return found


def _walk(metadata: Mapping[Any, Any], parent: str, found: dict[str, Fact], lose: Lose) -> None:
    for key, value in metadata.items():
        path = f"{parent}{key}"
        if not isinstance(key, str) or key in ("", ".") or "/" in key or "\0" in key:
            lose(f"metadata/{path}", "its name can't be one in an HDF5 file")
        elif isinstance(value, Mapping):
            if value:
                _walk(value, f"{path}/", found, lose)
            else:
                lose(f"metadata/{path}", "it has nothing in it")
        else:
            try:
                found[path] = fact(value)
            except TypeError as why:
                lose(f"metadata/{path}", f"its value {why}")


def same_fact(one: Fact, other: Fact) -> bool:
    """Whether two facts are of one type and equal."""
    if one is other:
        return True
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return type(one) is type(other) and bool(one == other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")


def to_json(value: Fact) -> Any:
    """A fact as plain JSON; :func:`from_json` reads it back."""
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {"texts": [item.decode("latin-1") for item in value.reshape(-1)], "shape": list(value.shape)}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape)}
    return None


def from_json(value: Any) -> Fact:
    """The inverse of :func:`to_json`."""
    if value is None:
        return None
    if "text" in value:
        return value["text"]
    if "bytes" in value:
        return value["bytes"].encode("latin-1")
    if "texts" in value:
        out = np.empty(len(value["texts"]), object)
        out[:] = [item.encode("latin-1") for item in value["texts"]]
        return out.reshape(value["shape"])
    return np.frombuffer(base64.b64decode(value["array"]), parse_dtype(value["dtype"])).reshape(value["shape"])


class SharedFacts:
    """The facts in which all episodes so far agree.

    Attributes:
        facts: path to fact; None before the first episode.

    >>> shared, lost = SharedFacts(), {}
    >>> shared.add({"policy": "expert", "id": 1}, lost.setdefault)
    >>> shared.add({"policy": "expert", "id": 2}, lost.setdefault)
    >>> shared.facts, lost
    ({'policy': 'expert'}, {'metadata/id': 'it differs between episodes, and the format has it once for all'})
    """

    def __init__(self) -> None:
        self.facts: dict[str, Fact] | None = None

    def add(self, metadata: Mapping[str, Any], lose: Lose) -> None:
        """Compare one more episode's metadata; `lose` hears of those that are not shared any more."""
        found = facts_of(metadata, lose)
        if self.facts is None:
            self.facts = found
            return
        for path in [*self.facts, *(path for path in found if path not in self.facts)]:
            if not (path in self.facts and path in found and same_fact(self.facts[path], found[path])):
                self.facts.pop(path, None)
                lose(f"metadata/{path}", "it differs between episodes, and the format has it once for all")

    def add_batch(self, batch: EpisodeBatch, lose: Lose) -> None:
        """:meth:`add` the metadata of several episodes: of each of them that may say what those before did not."""
        for episode in batch.take(_telling(batch)):
            self.add(episode.metadata, lose)

    def to_json(self) -> Any:
        """As plain JSON values."""
        return None if self.facts is None else {path: to_json(value) for path, value in self.facts.items()}

    @classmethod
    def from_json(cls, data: Any) -> SharedFacts:
        """The inverse of :meth:`to_json`."""
        shared = cls()
        if data is not None:
            shared.facts = {path: from_json(value) for path, value in data.items()}
        return shared


def _telling(batch: EpisodeBatch) -> list[int]:
    """The first episode, and each with something in its metadata that none has before it, for all that can be seen."""
    columns: list[Any] = [] if batch.placeholder is None else [batch.placeholder]
    if batch.metadata is not None:
        facts = FactColumns.of(batch.metadata)
        columns += [None] if facts is None else [column for _, column in nest.flatten(facts.columns)]
    telling = {0}
    for column in columns:
        if isinstance(column, np.ndarray) and column.dtype.kind in "biufc":
            other = column != column[0]
            if column.dtype.kind in "fc":
                other &= ~(np.isnan(column) & np.isnan(column[0]))
            telling.update(np.flatnonzero(other.reshape(len(batch), -1).any(1))[:1].tolist())
        elif _is_plain(column):
            telling.update(next(([i] for i, value in enumerate(column) if value != column[0]), []))
        else:
            return list(range(len(batch)))
    return sorted(telling)


def _is_plain(column: Any) -> bool:
    """Whether all values are of one type, and there is nothing to say against any of them."""
    kinds = set(map(type, column)) if isinstance(column, list) else set()
    if kinds <= {str} or kinds <= {bytes}:
        return bool(kinds) and ("\0" if kinds == {str} else b"\0") not in type(column[0])().join(column)
    return kinds == {bool} or (kinds == {int} and -(2**63) <= min(column) and max(column) < 2**63)


def _array(value: Any) -> np.ndarray:
    """As numpy takes it, but for lists of text: it would make one type of different ones, and cut off zero bytes."""
    try:
        array = np.asarray(value)
    except ValueError:  # unequal parts, or bytes that are no text beside text
        array = np.empty(0, object)
    if isinstance(value, list | tuple) and array.dtype.kind not in "biufc":
        try:
            array = np.array(value, object)
        except ValueError:
            raise TypeError("is a list of unequal parts") from None
    return array


def _check_text(text: bytes) -> None:
    if b"\0" in text:
        raise TypeError("has zero bytes, which text in HDF5 can't have")


def _what(value: Any) -> str:
    return str(value.dtype) if isinstance(value, np.ndarray | np.generic) else f"a {type(value).__name__}"
