"""Where the values of every feature lie in many records, and the values of all of them as columns.

The twin of :mod:`rlds2buf.codecs.tfrecord.example`, which reads one record, however it is made, and has the
words for what is wrong with it.  Here many are read by compiled code, as writers make them; those that are
made otherwise are `odd`, and for that module.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.tfrecord.example import KINDS, Feature, decode_varints
from rlds2buf.core.records import FOOTER_BYTES, HEADER_BYTES, Records
from rlds2buf.errors import SourceFormatError

__all__ = ["RecordTable", "Walker"]

_SECONDS_PER_RECORD, _SECONDS_PER_BYTE = 3e-5, 6e-10
"""What parsing in Python takes, about."""

_LOOSE_INT: Final = 1 << 3


class Walker:
    """Makes tables of records.

    Args:
        keys: of the features that are wanted.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        names = [key.encode() for key in self.keys]
        self._names = np.frombuffer(b"".join(names), np.uint8)
        self._edges = np.cumsum([0, *map(len, names)])

    @staticmethod
    def is_worth_it(records: Records) -> bool:
        """Whether so much has been read that compiled code pays; else the records should be parsed in Python."""
        from rlds2buf.kernels import examples

        seconds = len(records) * _SECONDS_PER_RECORD + len(records.whole) * _SECONDS_PER_BYTE
        return bool(examples.walk_examples.pays(seconds))

    def walk(self, records: Records, which: np.ndarray) -> RecordTable:
        """Find the features of the records of these numbers."""
        from rlds2buf.kernels import examples

        count = len(which)
        table = np.zeros((5, len(self.keys), count), np.int64)
        odd = np.zeros(count, np.uint8)
        data = np.frombuffer(records.frames, np.uint8)
        starts, stops = records.edges[which] + HEADER_BYTES, records.edges[which + 1] - FOOTER_BYTES
        examples.walk_examples(data, starts, stops, self._names, self._edges, table, odd)
        return RecordTable(bytes(records.frames), self.keys, table, odd.view(np.bool_))


class RecordTable:
    """What :meth:`Walker.walk` found.

    Args:
        frames: the bytes that the records lie in.
        keys: K names of features.
        table: ``[5, K, n] int64``, see :func:`rlds2buf.kernels.examples.walk_examples`.
        odd: ``[n] bool``, which records are made in another way, or have features of another kind than most.

    Every method takes the number of a feature.  Its values are those of all records, one behind the other;
    an odd record's are not to be had.
    """

    def __init__(self, frames: bytes, keys: Sequence[str], table: np.ndarray, odd: np.ndarray) -> None:
        from rlds2buf.kernels import examples

        self._kernels: Any = examples
        self._frames = frames
        self._data = np.frombuffer(frames, np.uint8)
        self._keys = keys
        self._table = table
        self.odd = odd

    def __len__(self) -> int:
        return len(self.odd)

    def take(self, start: int, stop: int) -> RecordTable:
        """That of some records."""
        return RecordTable(self._frames, self._keys, self._table[:, :, start:stop], self.odd[start:stop])

    def pick(self, which: np.ndarray) -> RecordTable:
        """That of the records of these numbers."""
        return RecordTable(self._frames, self._keys, np.take(self._table, which, axis=2), self.odd[which])

    def differs_from_before(self, k: int) -> np.ndarray:
        """``[n - 1] bool``: whether a record's list is, byte for byte, another than that of the record before it.

        Raises:
            SourceFormatError: a record has no such feature.
        """
        if (self._forms(k) == self._kernels.MISSING).any():
            raise SourceFormatError(f"a record has no {self._keys[k]!r}")
        spans = zip(*self._table[[self._kernels.BEGIN, self._kernels.STOP], k].tolist(), strict=True)
        lists = [self._frames[begin:stop] for begin, stop in spans]
        return np.array([one != other for one, other in itertools.pairwise(lists)], np.bool_)

    def counts(self, k: int) -> np.ndarray:
        """``[n] int64``, how many values each record has."""
        return self._table[self._kernels.COUNT, k]

    def sizes(self, k: int) -> np.ndarray:
        """``[n] int64``, how many bytes they take where they lie."""
        return self._table[self._kernels.STOP, k] - self._table[self._kernels.START, k]

    def holds(self, k: int, kind: str) -> np.ndarray:
        """``[n] bool``: which records have a list of ``"bytes"``, ``"float"`` or ``"int64"``, written alike.

        Of numbers, most lists are packed; where the first record's is not, those are meant that are like it.
        """
        forms = self._table[self._kernels.FORM, k]
        if kind == "bytes":
            return (forms == self._kernels.STRINGS) | (forms == self._kernels.SAME_STRINGS)
        packed, loose = self._kernels.NUMBERS[kind]
        return forms == (loose if len(forms) and forms[0] == loose else packed)

    def floats(self, k: int) -> np.ndarray:
        """``[M] float32``."""
        data = self._gathered(k)
        if self._is(k, self._kernels.LOOSE_FLOATS):
            data = np.ascontiguousarray(data.reshape(-1, 5)[:, 1:]).reshape(-1)
        return data.view("<f4")

    def ints(self, k: int, dtype: np.dtype | type = np.int64) -> np.ndarray:
        """``[M]`` of `dtype`, cast as C casts from int64.

        Raises:
            SourceFormatError: one of them is damaged.
        """
        data = self._gathered(k)
        if not self._is(k, self._kernels.LOOSE_INTS):
            return decode_varints(data, dtype)
        both = decode_varints(data, np.int64)
        if len(both) % 2 or (both[::2] != _LOOSE_INT).any():
            raise SourceFormatError("other values among integers")
        return both[1::2].astype(dtype)

    def strings(self, k: int) -> np.ndarray:
        """``[M] object`` of bytes; the same object for all of one record, where they are all equal."""
        counts = self.counts(k)
        same = self._forms(k) == self._kernels.SAME_STRINGS
        if len(same) and same.all() and counts.all():
            return np.repeat(self._strings(k, np.ones(len(counts), np.int64)), counts)
        return self._strings(k, counts)

    def raw(self, k: int, size: int | None = None) -> np.ndarray:
        """``uint8``, the bytes of all strings.

        Raises:
            SourceFormatError: one of them has not `size` bytes, if that is given.
        """
        starts, stops = self._spans(k, self.counts(k))
        if size is not None and (stops - starts != size).any():
            raise SourceFormatError(f"a byte string of other than {size} bytes")
        return self._copied(starts, stops)

    def string_bytes(self, k: int) -> np.ndarray:
        """``[n] int64``, how many bytes the strings of each record have; -1 where they differ in length."""
        counts = np.where(self.holds(k, "bytes"), self.counts(k), 0)
        starts, stops = self._spans(k, counts)
        sizes, of = stops - starts, np.repeat(np.arange(len(counts)), counts)
        firsts = (np.cumsum(counts) - counts)[of]
        total = np.bincount(of, sizes, len(counts)).astype(np.int64)
        total[of[sizes != sizes[firsts]]] = -1
        return total

    def feature(self, k: int, record: int) -> Feature:
        """One record's, as :func:`~rlds2buf.codecs.tfrecord.example.parse_example` gives it."""
        form, begin, _, stop, _ = self._table[:, k, record].tolist()
        kind = KINDS.index("bytes" if form <= self._kernels.SAME_STRINGS else _KIND_OF[form - 3])
        return Feature(kind, self._frames, begin, stop)

    def record(self, number: int, which: Sequence[int]) -> dict[str, Feature]:
        """Those features of one record that it has."""
        missing = self._kernels.MISSING
        return {self._keys[k]: self.feature(k, number) for k in which if self._forms(k)[number] != missing}

    def _forms(self, k: int) -> np.ndarray:
        return self._table[self._kernels.FORM, k]

    def _is(self, k: int, form: int) -> bool:
        forms = self._forms(k)
        return len(forms) > 0 and bool(forms[0] == form)

    def _strings(self, k: int, counts: np.ndarray) -> np.ndarray:
        frames = self._frames
        starts, stops = self._spans(k, counts).tolist()
        out = np.empty(len(starts), object)
        out[:] = [frames[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return out

    def _spans(self, k: int, counts: np.ndarray) -> np.ndarray:
        """``[2, M]``: where the first ones of each record's strings, so many of them, begin and end."""
        starts, stops = self._table[self._kernels.START, k], self._table[self._kernels.STOP, k]
        spans = np.empty((2, int(counts.sum())), np.int64)
        self._kernels.find_strings(self._data, starts, stops, counts, spans)
        return spans

    def _gathered(self, k: int) -> np.ndarray:
        return self._copied(self._table[self._kernels.START, k], self._table[self._kernels.STOP, k])

    def _copied(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        out = np.empty(int((stops - starts).sum()), np.uint8)
        self._kernels.copy_spans(self._data, starts, stops, out)
        return out


_KIND_OF: Final = ("float", "float", "int64", "int64")
