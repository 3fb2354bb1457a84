"""Rows as preallocated columns in a ring: each row once, its successor's observation is its own next one.

Keys count rows from the first one ever written, so a key says its age, and its slot follows from it:
``slot = (key - base) % slots``.  Nothing per row is stored but the data and one flag byte, plus 4
bytes in the sampler; what only some buffers need (a row's own next observation, its source, links
across interleaved sources) is allocated when the first such row comes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlds2buf.buffers.rows.blob_segments import BlobHome, LiveBlobs
from rlds2buf.buffers.rows.blobs import OBJECT, held_bytes, is_blob, move_rows, pieces, refuse_field
from rlds2buf.buffers.rows.vocabulary import SavedTexts, Vocabulary
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.room import room_for
from rlds2buf.core.row_flags import (
    BREAK,
    CODE,
    CONTINUE,
    FINAL_ROW,
    LINKED,
    OWN_NEXT,
    column_name,
)
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import TooLarge
from rlds2buf.files.column_file import MappedFiles
from rlds2buf.kernels.ring import keys_of

__all__ = ["Allocator", "Home", "RowStore"]

_OPTIONAL = {"source": np.uint32, "links": np.int64, "items": np.int32, "keys": np.int64}
"""Columns of one number per row that only some buffers need."""


_AT_ONCE, _PIECE = 1 << 16, 1024


class Allocator(Protocol):
    """Makes a column: in memory, or as a file (see buffers/disk/snapshot.py)."""

    def __call__(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """A writable array, its contents of no meaning; `name` is unique among the buffer's columns."""
        ...


class Home(BlobHome, Protocol):
    """The folder that columns are files of: told before they change, so that there is room for it on the disk."""

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """A new column; an :class:`Allocator`."""

    def changing(self, store: RowStore, slots: slice | np.ndarray) -> None:
        """Rows in these slots are about to change."""

    def make_room(self, column: Any, rows: int) -> None:
        """Take room for the first rows of a column."""

    def drop(self, column: Any) -> None:
        """Remove a column that was just made, and not used after all."""


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The default :class:`Allocator`; pages that are never written cost nothing.

    Not ``np.zeros``: numpy asks for huge pages only here, and random reads of large columns are
    several times slower without them.
    """
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as cause:
        size = math.prod(shape) * dtype.itemsize
        raise TooLarge(f"capacity: {shape[0]:,} rows of {name} alone would take {size:,} bytes of memory") from cause


class RowStore:
    """Columns for `slots` rows.

    Args:
        spec: of the rows.
        slots: how many rows fit.
        allocate: where the columns live.
        home: the folder that they are files of, if they are; in place of `allocate`.

    Attributes:
        paths: the data columns' paths, in :meth:`StepSpec.fields` order, flags left out.
        names: of the columns, from the paths; unique.
        columns: one array ``[slots, ...]`` per path; strings as int32 codes of `vocabularies`, and
            values of any length (see buffers/rows/blobs.py) as object columns of bytes.
        flags: ``[slots] uint8``.
        own: next observations of rows with OWN_NEXT, one array per observation leaf, or None.
        source: ``[slots] uint32`` source ids, or None while all are 0.
        links: ``[slots] int64`` successor slots of rows with LINKED, or None.
        items: ``[slots] int32``, where items of several transitions are stored: how many the one
            that starts in a row has, below 0 how far back its start lies, 0 in no item; else None.
        keys: ``[slots] int64``, ascending, where rows don't count up (see buffers/contents/reservoir.py); else None.
        base, oldest, newest: keys: of slot 0, of the oldest row, of the row to come.
        num_own: rows with OWN_NEXT.
        mapped: files that must not have become shorter when rows are read, or None.
        layout: changes whenever arrays are replaced, for those who keep their addresses.
        blobs: numbers of the columns that are object columns: those of :func:`is_blob`, and strings
            since there were too many different ones for a vocabulary.

    Raises:
        SpecMismatch: a field has a dtype that files can't name, or pictures that can't be kept encoded.
    """

    def __init__(
        self, spec: StepSpec, slots: int, *, allocate: Allocator = in_memory, home: Home | None = None
    ) -> None:
        if not isinstance(spec, StepSpec):
            raise TypeError(
                f"spec must be a StepSpec, such as source.spec or spec_of(episode), got {type(spec).__name__}"
            )
        self.spec = spec
        self.slots = slots
        self.home = home
        self.allocate = allocate if home is None else home.allocate
        fields = [(path, field) for path, field in spec.fields() if path[0] not in FLAG_FIELDS]
        for path, field in fields:
            refuse_field(path, field)
        self.paths = [path for path, _ in fields]
        self.fields = [field for _, field in fields]
        self.observation = [i for i, path in enumerate(self.paths) if path[0] == "observation"]
        self.blobs = {i for i, field in enumerate(self.fields) if is_blob(field)}
        self.vocabularies: dict[int, Vocabulary | SavedTexts] = {
            i: Vocabulary() for i, field in enumerate(self.fields) if field.is_string and i not in self.blobs
        }
        self.names = [column_name(path) for path in self.paths]
        self.columns = [self._new(name, i) for i, name in enumerate(self.names)]
        self.flags = self.allocate("flags", (slots,), np.dtype(np.uint8))
        self.own: list[np.ndarray] | None = None
        self.source: np.ndarray | None = None
        self.links: np.ndarray | None = None
        self.items: np.ndarray | None = None
        self.keys: np.ndarray | None = None
        self.base = self.oldest = self.newest = 0
        self.num_own = 0
        self.layout = 0
        self.mapped: MappedFiles | None = None

    @property
    def num_rows(self) -> int:
        """Rows held."""
        return self.newest - self.oldest

    @property
    def nbytes(self) -> int:
        """Bytes of all columns, allocated ones that hold no rows included."""
        texts = sum(vocabulary.nbytes for vocabulary in self.vocabularies.values())
        return texts + held_bytes(self.arrays().values())

    def slot_of(self, keys: Any) -> Any:
        """The slots of keys (int or int64 array) that are held."""
        return (keys - self.base) % (self.slots or 1)

    def key_of(self, slots: np.ndarray) -> np.ndarray:
        """The keys ``uint64`` of slots ``int64`` that hold rows."""
        keys = np.empty(len(slots), np.uint64)
        keys_of(slots, self.slots, self.slot_of(self.oldest), self.oldest, keys)
        return keys

    def spans(self, first_key: int, count: int) -> Iterator[tuple[slice, slice]]:
        """Where `count` rows from `first_key` lie: at most two ``(slots, positions in the run)``."""
        start = self.slot_of(first_key)
        head = min(count, self.slots - start)
        yield slice(start, start + head), slice(0, head)
        if head < count:
            yield slice(0, count - head), slice(head, count)

    def slots_from(self, first_key: int, count: int) -> np.ndarray:
        """The slots ``[count] int64`` of that many rows from `first_key` on."""
        start = int(self.slot_of(first_key))
        if start + count <= self.slots:
            return np.arange(start, start + count)
        return np.concatenate([np.arange(span.start, span.stop) for span, _ in self.spans(first_key, count)])

    def slots_at(self, first_key: int, places: np.ndarray) -> np.ndarray:
        """The slots ``[n] int64`` of rows at these places ``[n] int64``, ascending, counted from `first_key`."""
        slots = places + int(self.slot_of(first_key))
        if len(slots) and slots[-1] >= self.slots:
            slots[slots >= self.slots] -= self.slots
        return slots

    def write(
        self,
        columns: Sequence[np.ndarray],
        flags: np.ndarray,
        *,
        own: Sequence[np.ndarray] | None = None,
        source: np.ndarray | int = 0,
    ) -> int:
        """Store n rows behind the newest; there must be room.  Returns the first one's key.

        Args:
            columns: one array ``[n, ...]`` per path, castable to the columns' dtypes; of strings and
                other values of any length object arrays of bytes.
            flags: ``[n] uint8``.
            own: next observations ``[n, ...]`` per observation leaf, for rows with OWN_NEXT.
            source: id of all rows, or ``[n]`` ids.
        """
        count = len(flags)
        first = self.newest
        for i in [i for i, vocabulary in self.vocabularies.items() if vocabulary.is_large]:
            self.promote(i)
        coded = self._encode(columns, range(len(self.columns)))
        if own is not None:
            own = self._encode(own, self.observation)
            if self.own is None:
                self.own = [self._new(f"next_{self.names[i]}", i) for i in self.observation]
        if self.source is None and (source if isinstance(source, int) else source.any()):
            self.add_column("source")  # what is held already is of source 0
        targets, values = [*self.columns, self.flags], [*coded, flags]
        if own is not None and self.own is not None:
            targets += self.own
            values += own
        for slots, run in self.spans(first, count):
            self.changing(slots)
            whole = run.stop - run.start == count
            for column, rows in zip(targets, values, strict=True):
                column[slots] = rows if whole else rows[run]
            if self.source is not None:
                self.source[slots] = source if isinstance(source, int) else source[run]
        self.newest += count
        if own is not None:
            self.num_own += count
        return first

    def changing(self, slots: slice | np.ndarray) -> None:
        """Call before rows in these slots change, if only in a flag.

        Raises:
            SinkError: they are files, and the disk is full; nothing was changed.
        """
        if self.home is not None:
            self.home.changing(self, slots)

    def require_whole(self) -> None:
        """Call before rows are read.

        Raises:
            SnapshotCorrupt: somebody has cut short a file that they are in.
        """
        if self.mapped is not None:
            self.mapped.require_whole()

    def expect(self, rows: int) -> None:
        """So many rows are about to be written: what may go wrong with the disk goes wrong before others leave.

        Raises:
            SinkError: as :meth:`changing` does.
        """
        if self.home is not None and rows <= self.slots:
            for slots, _ in self.spans(self.newest, rows):
                self.home.changing(self, slots)

    def add_column(self, name: str) -> None:
        """Have one of the optional columns, zeros at first."""
        column = self._made(name, (self.slots,), np.dtype(_OPTIONAL[name]), self.slots)
        column[:] = 0
        setattr(self, name, column)

    def put(self, name: str, first_key: int, values: np.ndarray) -> None:
        """Fill an optional column ``[n]`` from a row on."""
        column: np.ndarray = getattr(self, name)
        for slots, run in self.spans(first_key, len(values)):
            self.changing(slots)
            column[slots] = values[run]

    def link(self, keys: np.ndarray, successors: np.ndarray) -> None:
        """Say which rows follow which: clears BREAK; a successor in another slot than the next is linked."""
        slots, following = self.slot_of(keys), self.slot_of(successors)
        self.changing(slots)
        apart = successors != keys + 1
        flags = self.flags[slots] & ~np.uint8(BREAK | LINKED)
        self.flags[slots] = flags | np.where(apart, np.uint8(LINKED), np.uint8(0))
        if apart.any():
            if self.links is None:
                self.add_column("links")
                assert self.links is not None
            self.links[slots[apart]] = following[apart]

    def evict(self, count: int) -> np.ndarray:
        """Drop the `count` oldest rows; returns the slots ``int64`` of those that started an item."""
        if count == 1:  # as for each step that an actor adds to a full buffer
            slot = self.slot_of(self.oldest)
            flag = int(self.flags[slot])
            self.oldest += 1
            if self.blobs:
                self.release(slice(slot, slot + 1))
            if self.num_own and flag & OWN_NEXT:
                self.num_own -= 1
            starts = flag & CODE != FINAL_ROW if self.items is None else self.items[slot] > 0
            return np.array([slot] if starts else [], np.int64)
        parts = []
        for slots, _ in self.spans(self.oldest, count):
            flags = self.flags[slots]
            starts = (flags & CODE) != FINAL_ROW if self.items is None else self.items[slots] > 0
            parts.append(np.flatnonzero(starts) + slots.start)
            if self.num_own:
                self.num_own -= int(np.count_nonzero(flags & OWN_NEXT))
            self.release(slots)
        self.oldest += count
        return np.concatenate(parts)

    def release(self, slots: slice | np.ndarray) -> None:
        """Let go of the values of any length of rows that left."""
        places = self.blob_places() if self.flags.flags.writeable else []
        if places:
            self.changing(slots)
        for _, columns, k in places:
            columns[k][slots] = None

    def promote(self, i: int) -> None:
        """Keep the strings of column `i` row by row from now on: there are too many different ones for a vocabulary."""
        shape = self.slots, *self.row_shape(i)
        vocabulary = self.vocabularies[i]
        moves = [(self.columns[i], self._made(self.names[i], shape, OBJECT, self.slots), 0)]
        k = self.observation.index(i) if self.own is not None and i in self.observation else -1
        if self.own is not None and k >= 0:
            moves.append((self.own[k], self._made(f"next_{self.names[i]}", shape, OBJECT, self.slots), OWN_NEXT))
        for codes, column, flag in moves:
            for slots, _ in self.spans(self.oldest, self.num_rows):
                # What rows without a next observation of their own have there is of no meaning.
                rows = np.flatnonzero(self.flags[slots] & flag == flag) + slots.start
                for start in range(0, len(rows), _PIECE):
                    piece = rows[start : start + _PIECE]
                    column[piece] = vocabulary.decode(codes[piece])
        del self.vocabularies[i]
        self.blobs.add(i)
        self.layout += 1
        self.columns[i] = moves[0][1]
        if self.own is not None and k >= 0:
            self.own[k] = moves[1][1]

    def require_room(self, slots: int) -> None:
        """Refuse before anything is changed what :meth:`relay` would have no memory for.

        Raises:
            TooLarge: the system has none for so many rows.
        """
        widest = max((field.row_bytes for field in self.fields), default=0) if self.allocate is in_memory else 0
        with room_for(f"capacity: {slots:,} rows", slots * self.spec.row_bytes):
            np.empty(slots * max(widest, 8), np.uint8)  # a column, of numbers of rows if no other; given back at once

    def relay(self, slots: int, *, allocate: Allocator | None = None) -> None:
        """Move all rows into `slots` new slots (at least as many as rows), the oldest to slot 0.

        Raises:
            SinkError: they are files, and the disk is full; nothing was changed.
        """
        rows, names = self.num_rows, self.names
        old = {**self.arrays()}
        if self.links is not None:
            # Links are slots: turn them into places in the new order while the old order is known.
            old["links"] = (self.links - self.slot_of(self.oldest)) % max(self.slots, 1)
        new: dict[str, np.ndarray] = {}
        try:
            for name, column in old.items():
                new[name] = self._made(name, (slots, *column.shape[1:]), column.dtype, rows, allocate)
                move_rows(new[name], column, self.spans(self.oldest, rows))
        except BaseException:
            for column in new.values():
                self._drop(column)
            raise
        before = [columns[k] for _, columns, k in self.blob_places()]
        self.columns = [new[name] for name in names]
        if self.own is not None:
            self.own = [new[f"next_{names[i]}"] for i in self.observation]
        for name in _OPTIONAL:
            if name in new:
                setattr(self, name, new[name])
        self.flags = new["flags"]
        self.allocate = allocate or self.allocate
        self.slots = slots
        self.base = self.oldest
        self.layout += 1
        self.mapped = None
        for blobs in [column for column in before if isinstance(column, LiveBlobs)]:
            blobs.discard()

    def keep(self, slots: np.ndarray) -> None:
        """Drop all rows but those in ``slots [n] int64``, ascending, which move to the front.

        Only where the oldest row is in slot 0.  A row that was followed by a dropped one is marked with BREAK.
        """
        assert self.oldest == self.base == 0
        self.changing(slice(0, self.newest))
        place = np.full(self.slots + 1, -1, np.int64)
        place[slots] = np.arange(len(slots))
        flags, following = self.flags[slots], slots + 1
        if self.links is not None:
            following = np.where(flags & np.uint8(LINKED), self.links[slots], following)
            self.links[slots] = place[following]
        goes_on = (flags & np.uint8(CODE | BREAK)) == CONTINUE
        left = slots[goes_on & (place[following] < 0)]
        self.flags[left] = self.flags[left] & ~np.uint8(LINKED) | np.uint8(BREAK)
        for array in self.arrays().values():
            if isinstance(array, LiveBlobs):
                array.keep(slots)
                continue
            # Rows only move towards the front, so what a later piece reads is still there.
            for start in range(0, len(slots), _AT_ONCE):
                piece = slots[start : start + _AT_ONCE]
                array[start : start + len(piece)] = array[piece]
        self.release(slice(len(slots), self.newest))
        self.newest = len(slots)
        self.num_own = int(np.count_nonzero(self.flags[: len(slots)] & OWN_NEXT))

    def arrays(self) -> dict[str, np.ndarray]:
        """Every allocated column by its name."""
        named = dict(zip(self.names, self.columns, strict=True))
        named["flags"] = self.flags
        if self.own is not None:
            named.update(
                (f"next_{self.names[i]}", column) for i, column in zip(self.observation, self.own, strict=True)
            )
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        named.update((name, array) for name, array in optional.items() if array is not None)
        return named

    def in_order(self) -> dict[str, list[np.ndarray]]:
        """The rows held, oldest first, as one or two views of each allocated column but those of any length."""
        spans = [slots for slots, _ in self.spans(self.oldest, self.num_rows)]
        plain = {name: array for name, array in self.arrays().items() if array.dtype != OBJECT}
        ordered = {name: [array[slots] for slots in spans] for name, array in plain.items()}
        if self.links is not None:
            first = self.slot_of(self.oldest)
            ordered["links"] = [(self.links[slots] - first) % max(self.slots, 1) for slots in spans]
        return ordered

    def blobs_in_order(self) -> dict[str, tuple[int, Iterator[np.ndarray]]]:
        """Object columns: the number of the column, and its rows, oldest first, in pieces."""
        spans = [slots for slots, _ in self.spans(self.oldest, self.num_rows)]
        return {
            name: (k if columns is self.columns else self.observation[k], pieces(columns[k], spans))
            for name, columns, k in self.blob_places()
        }

    def adopt(self, arrays: Mapping[str, np.ndarray], *, base: int, oldest: int, newest: int) -> None:
        """Take these columns (as :meth:`arrays` names them) as they are, slot 0 being that of key `base`.

        Strings are codes; the caller says of which vocabularies.

        Raises:
            KeyError, ValueError: a column is missing or of another shape or dtype, or there are more
                rows than slots; nothing was changed.
        """
        names = self.names
        columns = [arrays[name] for name in names]
        own_names = [f"next_{names[i]}" for i in self.observation]
        own = [arrays[name] for name in own_names] if any(name in arrays for name in own_names) else None
        slots = len(arrays["flags"])
        # Rows are gathered by address: a column of another size must never get that far.
        strings = {i for i, field in enumerate(self.fields) if field.is_string and arrays[names[i]].dtype == OBJECT}
        blobs = {i for i, field in enumerate(self.fields) if is_blob(field)} | strings
        likes = [*range(len(names)), *(self.observation if own else [])]
        for name, column, like in zip([*names, *own_names], [*columns, *(own or [])], likes, strict=False):
            _require(name, column, (slots, *self.row_shape(like)), self._dtype(like, blobs))
        for name, dtype in {"flags": np.uint8, **_OPTIONAL}.items():
            if name in arrays:
                _require(name, arrays[name], (slots,), np.dtype(dtype))
        if not (0 <= base <= oldest <= newest <= oldest + slots):
            raise ValueError(f"rows {oldest} to {newest} from {base} do not fit into {slots} slots")
        self.columns, self.own, self.blobs = columns, own, blobs
        self.flags = arrays["flags"]
        for name in _OPTIONAL:
            setattr(self, name, arrays.get(name))
        self.slots = slots
        self.base, self.oldest, self.newest = base, oldest, newest
        self.layout += 1
        self.num_own = 0
        if self.own is not None:
            held = (self.flags[slots] for slots, _ in self.spans(oldest, newest - oldest))
            self.num_own = sum(int(np.count_nonzero(flags & OWN_NEXT)) for flags in held)

    def blob_places(self) -> list[tuple[str, list[Any], int]]:
        """Of each object column its name, the list that it is in, and its place there."""
        places = [(self.names[i], self.columns, i) for i in sorted(self.blobs)]
        if self.own is not None:
            own = [(k, i) for k, i in enumerate(self.observation) if i in self.blobs]
            places += [(f"next_{self.names[i]}", self.own, k) for k, i in own]
        return places

    def row_shape(self, i: int) -> tuple[int, ...]:
        """Of one row of a column; an array of varying shape is one byte string."""
        shape = self.fields[i].shape
        return () if None in shape else tuple(int(n or 0) for n in shape)

    def _dtype(self, i: int, blobs: set[int]) -> np.dtype:
        if i in blobs:
            return OBJECT
        return np.dtype(np.int32) if self.fields[i].is_string else self.fields[i].dtype.newbyteorder("=")

    def _made(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype, rows: int, allocate: Allocator | None = None
    ) -> np.ndarray:
        """A new column, with room on the disk for its first rows."""
        column = (allocate or self.allocate)(name, shape, dtype)
        if self.home is not None:
            try:
                self.home.make_room(column, rows)
            except BaseException:
                self._drop(column)
                raise
        return column

    def _drop(self, column: Any) -> None:
        if self.home is not None:
            self.home.drop(column)

    def _new(self, name: str, i: int) -> np.ndarray:
        return self.allocate(name, (self.slots, *self.row_shape(i)), self._dtype(i, self.blobs))

    def _encode(self, columns: Sequence[np.ndarray], ids: Sequence[int]) -> list[np.ndarray]:
        if not self.vocabularies:
            return list(columns)
        return [
            self.vocabularies[i].encode(column) if i in self.vocabularies else column
            for i, column in zip(ids, columns, strict=True)
        ]


def _require(name: str, column: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if column.shape != shape or column.dtype != dtype:
        raise ValueError(f"{name} is {column.dtype}{list(column.shape)}, expected {dtype}{list(shape)}")
