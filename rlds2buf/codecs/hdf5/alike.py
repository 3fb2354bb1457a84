"""Groups of one make in an HDF5 file, parsed side by side without the HDF5 library.

A file with a group an episode repeats a few structures thousands of times, and the library takes some ten
microseconds for each dataset of each.  Here one field after the other is read of all groups at once, as a column;
the first group's values decide what comes next, and whoever differs in anything but addresses, numbers of rows and
values falls out.  So a group that is left is made just like the first, which the library should be asked about.

What is followed is what the library writes unless told otherwise: groups as symbol tables, object headers of
version 1, attributes in them.  Anything else, damage included, is :class:`Unfit` or falls out, and no byte outside
of the :class:`Window` is ever looked at.

Source: HDF5 File Format Specification Version 3.0, https://support.hdfgroup.org/documentation/hdf5/latest/_s_p_e_c.html
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["Alike", "Leaf", "Pieces", "Unfit", "Window", "walk"]

_NIL, _SPACE, _TYPE, _OLD_FILL, _FILL, _LAYOUT = 0, 1, 3, 4, 5, 8
_FILTERS, _ATTRIBUTE, _OLD_TIME, _MORE, _TABLE, _TIME = 0xB, 0xC, 0xE, 0x10, 0x11, 0x12
_UNTOLD = (_NIL, _OLD_TIME, _TIME)
"""Messages that say nothing of the data."""

_SHARED = 2
_COMPACT, _CONTIGUOUS, _CHUNKED = range(3)
_VARIABLE = 9
"""Datatypes whose values lie elsewhere in the file."""

_MAX_DEPTH = 8
_MAX_MESSAGES = 1000
_MAX_HEAP = 1 << 16
_MAX_PIECES = 64
"""As many as fit into a B-tree of one level."""


class Unfit(Exception):
    """The first group is not made of what can be parsed here."""


class Window:
    """A run of a file's bytes.

    Args:
        raw: them, ``uint8``.
        base: where in the file they begin.
    """

    def __init__(self, raw: np.ndarray, base: int) -> None:
        self.raw = raw
        self.base = base

    def at(self, places: np.ndarray, size: int) -> np.ndarray:
        """``[N] V<size>``: so many bytes from each place in the file on, all of which are inside."""
        count = max(0, len(self.raw) - size + 1)
        return np.ndarray((count,), f"V{size}", self.raw, strides=(1,))[places - self.base]

    def holds(self, places: np.ndarray, sizes: Any) -> np.ndarray:
        """``[N] bool``: whether bytes of the file are inside."""
        return (places >= self.base) & (sizes >= 0) & (places - self.base <= len(self.raw) - sizes)


@dataclasses.dataclass
class Pieces:
    """Chunks, whose rows begin at multiples of a number.

    Attributes:
        rows: ``[E] int64``, of a chunk.
        shape: of one row of it, the same in all.
        places: ``[E, n] int64``, where in the file each lies, in C order; those who have fewer have anything there.
    """

    rows: np.ndarray
    shape: tuple[int, ...]
    places: np.ndarray


@dataclasses.dataclass
class Leaf:
    """A dataset that every group has.

    Attributes:
        shape: of one row, or of the one value.
        rows: ``[E] int64``, how many there are; None for a single value, which has no axis at all.
        places: ``[E] int64``, where in the file the rows lie, one behind the other, as they are in memory (where
            there are rows at all); or the pieces in which they do; None if they are compressed, in too many
            pieces, or values of any length.
    """

    shape: tuple[int, ...]
    rows: np.ndarray | None
    places: np.ndarray | Pieces | None


@dataclasses.dataclass
class Alike:
    """What was found of E groups, as of the first.

    Attributes:
        fit: ``[E] bool``, who is made like the first.
        outside: ``[E] bool``, who is not because something is not inside of the window.
        tree: the datasets by name, in dicts as the groups nest.
        attributes: name to ``[E] V``, the bytes of its value in each group; None if they are not in its header.
    """

    fit: np.ndarray
    outside: np.ndarray
    tree: dict[bytes, Any]
    attributes: dict[bytes, np.ndarray | None]


def walk(window: Window, size: int, places: np.ndarray, wanted: Sequence[bytes]) -> Alike:
    """Parse the groups whose headers are at `places`, an ``[E] int64`` of which the first leads.

    Args:
        window: what there is to parse; those of which something is not inside, other than values, fall out.
        size: of the file, in which the values are.
        places: where in the file.
        wanted: what to look into; other members may be there, by the same names in each.

    Raises:
        Unfit: the first one is of another make.
    """
    parser = _Parser(window, size, len(places))
    tree, attributes = parser.group(places, wanted)
    return Alike(parser.fit, parser.outside, tree, attributes)


class _Parser:
    """Reads columns of fields; `fit` says whose were as the first one's."""

    def __init__(self, window: Window, size: int, count: int) -> None:
        self.window = window
        self.size = size
        self.fit = np.ones(count, np.bool_)
        self.outside = np.zeros(count, np.bool_)

    # -- fields -------------------------------------------------------------------------------

    def fields(self, places: np.ndarray, size: int) -> np.ndarray:
        """``[E, size] uint8``."""
        self.require_inside(places, size)
        if not self.fit.all():  # those that fell out read what the first one reads
            places = np.where(self.fit, places, places[0])
        return self.window.at(places, size).view(np.uint8).reshape(len(places), size)

    def require(self, holds: np.ndarray) -> None:
        """Let those fall out for whom it doesn't hold.

        Raises:
            Unfit: the first is one of them.
        """
        self.fit &= holds
        if not self.fit[0]:
            raise Unfit

    def require_inside(self, places: np.ndarray, sizes: Any) -> None:
        """Let those fall out for whom some bytes are not in the window."""
        inside = self.window.holds(places, sizes)
        self.outside |= self.fit & ~inside
        self.require(inside)

    def same(self, found: np.ndarray) -> None:
        """Let those fall out who have something else than the first."""
        self.fit &= (found == found[0]).reshape(len(found), -1).all(1)

    def leading(self, found: np.ndarray) -> int:
        """The first one's value of a field, which the others have to have too."""
        self.same(found)
        return int(found[0])

    # -- objects ------------------------------------------------------------------------------

    def messages(self, places: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield kind, place and size of each message in the headers of objects; there is one link to each of these."""
        head = self.fields(places, 16)
        count = self.leading(_number(head, 2, 2))
        if head[0, 0] != 1 or count > _MAX_MESSAGES or _number(head, 4, 4)[0] != 1:
            raise Unfit
        self.same(head[:, :8])
        at = places + 16
        end = at + _number(head, 8, 4)
        more: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(count):
            if at[0] == end[0] and more:
                self.require(at == end)
                at, end = more.pop(0)
            head = self.fields(at, 8)
            kind, size = self.leading(_number(head, 0, 2)), _number(head, 2, 2)
            self.same(head[:, 4:])
            if head[0, 4] & _SHARED:
                raise Unfit
            body, at = at + 8, at + 8 + size
            self.require(at <= end)
            if kind == _MORE:
                where = self.fields(body, 16)
                more.append((_number(where, 0, 8), _number(where, 0, 8) + _number(where, 8, 8)))
            elif kind not in _UNTOLD:
                yield kind, body, size
        self.require((at == end) & (not more))

    def group(self, places: np.ndarray, wanted: Sequence[bytes] | None, depth: int = 0) -> tuple[Any, Any]:
        """The members of groups, and the attributes; of a dataset the Leaf, and nothing."""
        if depth > _MAX_DEPTH:
            raise Unfit
        attributes: dict[bytes, np.ndarray | None] = {}
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for kind, body, size in self.messages(places):
            if kind == _ATTRIBUTE:
                if not depth:
                    self._attribute(body, self.leading(size), attributes)
                continue
            if kind in found:
                raise Unfit
            found[kind] = body, size
        if _TABLE not in found:
            return self._dataset(found), {}
        if len(found) > 1:
            raise Unfit
        members = self._members(self.fields(found[_TABLE][0], 16))
        return {
            name: self.group(place, None, depth + 1)[0] for name, place in members if wanted is None or name in wanted
        }, attributes

    def _members(self, table: np.ndarray) -> Iterator[tuple[bytes, np.ndarray]]:
        """Yield names and places, by a group's B-tree of one level and its heap."""
        tree, heap = _number(table, 0, 8), _number(table, 8, 8)
        head = self.fields(heap, 32)
        self.same(head[:, :24])
        node = self.fields(tree, 24)
        self.same(node)
        if head[0, :8].tobytes() != b"HEAP\0\0\0\0" or node[0, :6].tobytes() != b"TREE\0\0":
            raise Unfit
        size = int(_number(head, 8, 8)[0])
        if not 0 < size < _MAX_HEAP:
            raise Unfit
        names = self.fields(_number(head, 24, 8), size)
        self.same(names)
        children = self.fields(tree + 24, 16 * int(_number(node, 6, 2)[0]) + 8)
        for i in range(8, children.shape[1], 16):
            self.same(children[:, i - 8 : i])
            self.same(children[:, i + 8 : i + 16])
            yield from self._symbols(_number(children, i, 8), names[0].tobytes())

    def _symbols(self, places: np.ndarray, names: bytes) -> Iterator[tuple[bytes, np.ndarray]]:
        head = self.fields(places, 8)
        self.same(head)
        if head[0, :6].tobytes() != b"SNOD\1\0":
            raise Unfit
        for i in range(int(_number(head, 6, 2)[0])):
            entry = self.fields(places + 8 + 40 * i, 40)
            self.same(entry[:, :8])
            self.same(entry[:, 16:24])
            offset, kind = int(_number(entry, 0, 8)[0]), int(_number(entry, 16, 4)[0])
            end = names.find(b"\0", offset) if 0 <= offset < len(names) else -1
            if kind > 1 or end < 0:  # a link, or no name
                raise Unfit
            place = _number(entry, 8, 8)
            if kind:  # what the object says of itself, once more
                self.require((self.fields(place + 24, 16) == entry[:, 24:]).all(1))
            yield names[offset:end], place

    def _attribute(self, body: np.ndarray, size: int, out: dict[bytes, np.ndarray | None]) -> None:
        head = self.fields(body, 8)
        version, step = int(head[0, 0]), 8 if head[0, 0] == 1 else 1
        sizes = [int(_number(head, i, 2)[0]) for i in (2, 4, 6)]
        first = 9 if version == 3 else 8
        name, kind, space = (-(-n // step) * step for n in sizes)
        told = first + name + kind + space
        if version not in (1, 2, 3) or (version > 1 and head[0, 1]) or told > size:
            raise Unfit
        text = self.fields(body, told)
        self.same(text)
        key = text[0, first : first + sizes[0]].tobytes().rstrip(b"\0")
        shape, _ = self._space(text[:1, first + name + kind :])
        one = text[0, first + name : first + name + kind]
        if len(one) < 8 or key in out:
            raise Unfit
        held = int(_number(one[np.newaxis], 4, 4)[0]) * int(np.prod(shape, dtype=object))
        if one[0] & 15 == _VARIABLE:
            out[key] = None
        elif told + held > size or not held:
            raise Unfit
        else:
            out[key] = self.fields(body + told, held).view(f"V{held}")[:, 0]

    def _dataset(self, found: dict[int, tuple[np.ndarray, np.ndarray]]) -> Leaf:
        if not {_SPACE, _TYPE, _LAYOUT} <= set(found) <= {_SPACE, _TYPE, _OLD_FILL, _FILL, _LAYOUT, _FILTERS}:
            raise Unfit
        text = {}
        for kind in set(found) - {_LAYOUT}:
            body, size = found[kind]
            text[kind] = self.fields(body, self.leading(size))
            if kind != _SPACE:
                self.same(text[kind])
        shape, rows = self._space(text[_SPACE])
        if len(text[_TYPE][0]) < 8:
            raise Unfit
        leaf = Leaf(shape if rows is None else shape[1:], rows, None)
        if _FILTERS in found or text[_TYPE][0, 0] & 15 == _VARIABLE:
            return leaf
        item = int(_number(text[_TYPE], 4, 4)[0])
        self._layout(*found[_LAYOUT], leaf, len(shape), item)
        return leaf

    def _space(self, text: np.ndarray) -> tuple[tuple[int, ...], np.ndarray | None]:
        """The shape, and the length of the first axis ``[E]``, which may vary; None where there is no axis."""
        if text.shape[1] < 4:
            raise Unfit
        version, rank, flags, kind = text[0, :4].tolist()
        first = {1: 8, 2: 4}.get(version, 0)
        if not first or flags & ~1 or (version == 2 and kind != min(rank, 1)) or (version == 1 and kind):
            raise Unfit
        if text.shape[1] < first + 8 * rank * (1 + flags):
            raise Unfit
        if not rank:
            self.same(text)
            return (), None
        axes = text[:, first : first + 8 * rank * (1 + flags)].view("<i8")
        self.same(text[:, :first])
        self.same(np.delete(axes, [0, rank][: 1 + flags], 1))
        rows = axes[:, 0].astype(np.int64)
        if flags:
            self.require((axes[:, rank] == rows) | (axes[:, rank] == -1))
        self.require((rows >= 0) & (rows <= self.size))
        return tuple(axes[0, :rank].tolist()), rows

    def _layout(self, body: np.ndarray, size: np.ndarray, leaf: Leaf, rank: int, item: int) -> None:
        """Where the values lie."""
        head = self.fields(body, 4)
        self.same(head[:, :2])
        version, kind = head[0, :2].tolist()
        if version != 3 or kind > _CHUNKED:
            raise Unfit
        row = item * int(np.prod(leaf.shape, dtype=object))
        if not 0 <= row <= self.size:
            raise Unfit
        held = np.full(len(body), row) if leaf.rows is None else leaf.rows * row
        if kind == _COMPACT:
            places = body + 4
            self.require((_number(head, 2, 2) == held) & (held + 4 <= size))
        elif kind == _CONTIGUOUS:
            self.same(size)
            told = self.fields(body, 18)
            places = _number(told, 2, 8)
            self.require((_number(told, 10, 8) == held) | (held == 0))
        else:
            found = self._chunk(body, self.leading(size), leaf, rank, item, held)
            if found is None:
                return
            places = found
        self.require((held == 0) | ((places >= 0) & (places <= self.size - held)))
        leaf.places = np.where(self.fit & (held > 0), places, 0)

    def _chunk(
        self, body: np.ndarray, size: int, leaf: Leaf, rank: int, item: int, held: np.ndarray
    ) -> np.ndarray | None:
        """The place of the only chunk; None if there are several, which are left in `leaf`."""
        if size < 11 + 4 * (rank + 1) or not rank or leaf.rows is None:
            raise Unfit
        told = self.fields(body, 11 + 4 * (rank + 1))
        tree, axes = _number(told, 3, 8), told[:, 11:].copy().view("<u4").astype(np.int64)
        self.same(told[:, :3])
        if told[0, 2] != rank + 1 or axes[0, -1] != item:
            raise Unfit
        whole = (axes[:, 0] >= leaf.rows) & (axes[:, 1:-1] == leaf.shape).all(1) & (axes[:, -1] == item)
        if not whole[0]:
            leaf.places = self._pieces(tree, axes, leaf.rows, leaf.shape)
            return None
        self.require(whole)
        empty = held == 0
        if empty[0]:
            self.require(empty)
            return tree
        key = 8 + 8 * (rank + 1)
        node = self.fields(tree, 24 + key + 8 + key)
        head = node[0, :8].tobytes()
        self.same(node[:, :24])
        if head[:5] != b"TREE\1":
            raise Unfit
        if head != b"TREE\1\0\1\0":
            return None
        self.require((_number(node, 24, 4) == np.prod(axes, axis=1)) & ~node[:, 28 : 24 + key].any(1))
        behind = np.ascontiguousarray(node[:, -key + 8 :]).view("<i8")
        self.require((behind == axes).all(1) & ~node[:, -key : -key + 8].any(1))
        return _number(node, 24 + key, 8)

    def _pieces(self, tree: np.ndarray, axes: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]) -> Pieces | None:
        """The chunks in a B-tree of one level, which have to be all that there can be; None if it has more levels."""
        self.same(axes[:, 1:])
        self.require(np.all(axes > 0, axis=1))
        steps = axes[0, 1:-1]
        found = list(itertools.product(*map(range, itertools.repeat(0), shape, steps.tolist())))
        corners = np.array(found, np.int64).reshape(len(found), len(steps))
        counts = -(-rows // np.where(self.fit, axes[:, 0], 1)) * len(corners)
        count = int(counts[self.fit].max())
        node = self.fields(tree, 24)
        self.same(np.delete(node, [6, 7], 1))
        if node[0, :6].tobytes() != b"TREE\1\0" or not 0 < count <= _MAX_PIECES:
            return None
        self.require(_number(node, 6, 2) == counts)
        key = 8 * (len(steps) + 3)
        entries = np.pad(self.fields(tree + 24, count * (key + 8) + key), ((0, 0), (0, 8)))
        entries = entries.view("<i8").reshape(len(entries), count + 1, -1)
        number = np.arange(count)
        wanted = np.zeros((len(entries), count, len(steps) + 3), np.int64)
        wanted[:, :, 0] = np.prod(axes, axis=1)[:, np.newaxis]  # its upper half, of filters that are left out, is 0
        wanted[:, :, 1] = number // len(corners) * axes[:, :1]
        wanted[:, :, 2:-1] = corners[number % len(corners)]
        places = entries[:, :-1, -1]
        right = (entries[:, :-1, :-1] == wanted).all(2) & (places >= 0) & (places <= self.size - wanted[:, :, 0])
        self.require((right | (number >= counts[:, np.newaxis])).all(1))
        whose, last = np.arange(len(entries)), np.clip(counts, 1, count)
        beyond = entries[whose, last, :-1] - wanted[whose, last - 1]
        beyond[:, 0] = 0
        self.require((entries[whose, last, 0] == 0) & (beyond[whose, (beyond != 0).argmax(1)] > 0))
        return Pieces(axes[:, 0], tuple(steps.tolist()), places)


def _number(fields: np.ndarray, first: int, size: int) -> np.ndarray:
    """``[E] int64``: an integer of so many bytes at a place in ``[E, n] uint8``."""
    column = np.ascontiguousarray(fields[:, first : first + size])
    return column.view(f"<{'i' if size == 8 else 'u'}{size}")[:, 0].astype(np.int64)
