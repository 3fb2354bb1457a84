"""``tf.train.Example`` messages into numpy, without protobuf.

The messages, as far as they matter (https://protobuf.dev/programming-guides/encoding/)::

    Example  { Features features = 1; }
    Features { map<string, Feature> feature = 1; }
    Feature  { BytesList bytes_list = 1 | FloatList float_list = 2 | Int64List int64_list = 3; }
    *List    { repeated ... value = 1; }

Floats and integers are written packed (one length, then all values) or unpacked (a tag before
every value); both are read, with the work per value done by numpy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from rlds2buf.errors import SourceFormatError

__all__ = ["KINDS", "ExampleParser", "Feature", "decode_varints", "parse_example"]

KINDS: Final = ("no", "bytes", "float", "int64")
"""Names of :attr:`Feature.kind`, by number."""

_NONE, _BYTES, _FLOAT, _INT64 = range(4)

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_VALUE_DELIMITED: Final = 1 << 3 | _DELIMITED
_VALUE_VARINT: Final = 1 << 3 | _VARINT
_VALUE_FIXED32: Final = 1 << 3 | _FIXED32
_LIST_TAGS: Final = frozenset(kind << 3 | _DELIMITED for kind in (_BYTES, _FLOAT, _INT64))
_MAX_VARINT = 10


class Feature:
    """The values of one feature, still encoded.

    Args:
        kind: 0 no list at all, 1 bytes, 2 float, 3 int64.
        data, start, stop: the list message lies at ``data[start:stop]``.
    """

    __slots__ = ("data", "kind", "start", "stop")

    def __init__(self, kind: int, data: bytes, start: int, stop: int) -> None:
        self.kind = kind
        self.data = data
        self.start = start
        self.stop = stop

    def floats(self) -> np.ndarray:
        """The values ``[M] float32``; a read-only, perhaps unaligned, view of the message where they are packed.

        Raises:
            SourceFormatError: it holds another kind, or the encoding is broken.
        """
        self._expect(_FLOAT)
        data, start, stop = self.data, self.start, self.stop
        packed = _single_packed(data, start, stop)
        if packed is not None:
            return _float_view(data, packed, stop)
        if (stop - start) % 5 == 0:
            rows = np.frombuffer(data, np.uint8, stop - start, start).reshape(-1, 5)
            if (rows[:, 0] == _VALUE_FIXED32).all():
                return np.ascontiguousarray(rows[:, 1:]).view("<f4")[:, 0]
        return _join([_float_view(data, a, b) for _, a, b in _values(data, start, stop, _FIXED32)], "<f4")

    def ints(self, dtype: np.dtype | type = np.int64) -> np.ndarray:
        """The values ``[M]``, cast from int64 to `dtype` as C casts (bool: not 0).

        Raises:
            SourceFormatError: it holds another kind, or the encoding is broken.
        """
        self._expect(_INT64)
        data, start, stop = self.data, self.start, self.stop
        packed = _single_packed(data, start, stop)
        if packed is not None:
            values = data[packed:stop]
            if values.isascii():  # no byte above 127: a byte is a number
                return np.frombuffer(values, np.uint8).astype(dtype)
            return decode_varints(np.frombuffer(values, np.uint8), dtype)
        if start < stop and data[start] == _VALUE_VARINT:
            # All values unpacked: every other varint of the message is the tag.
            both = decode_varints(np.frombuffer(data, np.uint8, stop - start, start), np.int64)
            if len(both) % 2 == 0 and (both[::2] == _VALUE_VARINT).all():
                return both[1::2].astype(dtype)
        parts = _values(data, start, stop, _VARINT)
        return _join([decode_varints(np.frombuffer(data, np.uint8, b - a, a), dtype) for _, a, b in parts], dtype)

    def strings(self) -> list[bytes]:
        """The values, one ``bytes`` each; the same object for all where they are all equal.

        Raises:
            SourceFormatError: it holds another kind, or the encoding is broken.
        """
        self._expect(_BYTES)
        data, start, stop = self.data, self.start, self.stop
        values = _values(data, start, stop, _DELIMITED)
        found = next(values, None)
        if found is None:
            return []
        # An instruction that is the same at every step is the common case, and told without a loop.
        _, first, end = found
        count, rest = divmod(stop - start, end - start)
        one = data[start:end]
        if rest == 0 and data.startswith(one, end) and one * count == data[start:stop]:
            return [data[first:end]] * count
        return _strings(data, start, stop) or [data[first:end], *(data[a:b] for _, a, b in values)]

    def count_ints(self) -> int:
        """How many values :meth:`ints` has at most, told without making them: each ends with a byte below 128."""
        return int(np.count_nonzero(np.frombuffer(self.data, np.uint8, self.stop - self.start, self.start) < 0x80))

    def count_strings(self, most: int) -> int:
        """How many values :meth:`strings` has, counted no further than `most`."""
        return sum(1 for _ in itertools.islice(_values(self.data, self.start, self.stop, _DELIMITED), most))

    def _expect(self, kind: int) -> None:
        # A feature that holds no list stands for no values of any kind.
        if self.kind != kind and self.kind != _NONE:
            raise SourceFormatError(f"it holds {KINDS[self.kind]} values, not {KINDS[kind]} values")

    def __repr__(self) -> str:
        return f"<Feature of {KINDS[self.kind]} values, {self.stop - self.start} bytes>"


def parse_example(record: bytes) -> dict[str, Feature]:
    """Find the features of one serialized ``tf.train.Example``; values are decoded later, when asked for.

    Raises:
        SourceFormatError: the bytes are no such message; says at which byte.

    >>> features = parse_example(bytes.fromhex("0a0d 0a0b 0a016e 1206 1a04 0a029601"))
    >>> features["n"].ints()
    array([150])
    """
    features: dict[str, Feature] = {}
    for number, start, stop in _submessages(record, 0, len(record)):
        if number == 1:
            for entry, a, b in _submessages(record, start, stop):
                if entry == 1:
                    key, feature = _entry(record, a, b)
                    features[key] = feature
    return features


class ExampleParser:
    """:func:`parse_example` for many records, quicker where they are alike.

    Episodes of one length and without strings differ in their values only: every tag, length and
    name lies at the same byte.  So if a record is as long as the one before, the bytes between its
    values are compared with that one's; where they agree, so does everything that parsing finds.

    >>> parser = ExampleParser()
    >>> record = bytes.fromhex("0a0d 0a0b 0a016e 1206 1a04 0a029601")
    >>> [parser.parse(record)["n"].ints().tolist() for _ in range(3)]
    [[150], [150], [150]]
    """

    __slots__ = ("_between", "_length", "_values")

    def __init__(self) -> None:
        self._length = -1
        # What lies between the values of the last layout, and where; the values' name, kind, place.
        self._between: list[tuple[int, int, bytes]] | None = None
        self._values: list[tuple[str, int, int, int]] = []

    def parse(self, record: bytes) -> dict[str, Feature]:
        """See :func:`parse_example`.

        Raises:
            SourceFormatError: as that.
        """
        if len(record) != self._length:
            self._length, self._between = len(record), None
            return parse_example(record)
        if self._between is not None and all(record[a:b] == bytes_ for a, b, bytes_ in self._between):
            return {key: Feature(kind, record, start, stop) for key, kind, start, stop in self._values}
        features = parse_example(record)
        self._remember(record, features)
        return features

    def _remember(self, record: bytes, features: Mapping[str, Feature]) -> None:
        self._between = None
        if any(feature.data is not record for feature in features.values()):
            return  # lists that were put together from several places
        self._values = [(key, f.kind, f.start, f.stop) for key, f in features.items()]
        between, at = [], 0
        for start, stop in sorted((f.start, f.stop) for f in features.values()):
            between.append((at, start, record[at:start]))
            at = stop
        between.append((at, len(record), record[at:]))
        self._between = between


def decode_varints(data: np.ndarray, dtype: np.dtype | type = np.int64) -> np.ndarray:
    """Decode a row of base-128 varints ``[n] uint8`` into ``[M]`` of `dtype`, cast from int64.

    Raises:
        SourceFormatError: the last one has no end, or one is longer than ten bytes.

    >>> decode_varints(np.array([1, 0x96, 0x01], np.uint8))
    array([  1, 150])
    """
    if data.size == 0 or data.max() < 0x80:
        return data.astype(dtype)
    ends = np.flatnonzero(data < 0x80)
    if ends.size == 0 or ends[-1] != data.size - 1:
        raise SourceFormatError("an integer (varint) has no end")
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _MAX_VARINT:
        raise SourceFormatError(f"an integer (varint) has {longest} bytes, the most is {_MAX_VARINT}")
    # Low seven bits first.  Bits beyond the 64th fall off, as in every protobuf parser.
    values = (data[starts] & 0x7F).astype(np.uint64)
    for i in range(1, longest):
        longer = np.flatnonzero(lengths > i)
        values[longer] |= (data[starts[longer] + i] & 0x7F).astype(np.uint64) << np.uint64(7 * i)
    return values.view(np.int64).astype(dtype, copy=False)


def _entry(record: bytes, start: int, stop: int) -> tuple[str, Feature]:
    # What every writer writes, key then value then nothing, is read without a loop.
    if stop - start > 4 and record[start] == _VALUE_DELIMITED:
        length, key_start = _varint(record, start + 1, stop)
        key_stop = key_start + length
        if key_stop < stop and record[key_stop] == 2 << 3 | _DELIMITED:
            length, at = _varint(record, key_stop + 1, stop)
            if length and at + length == stop and record[at] in _LIST_TAGS:
                length, begin = _varint(record, at + 1, stop)
                if begin + length == stop:
                    return _key(record, key_start, key_stop), Feature(record[at] >> 3, record, begin, stop)
    return _any_entry(record, start, stop)


def _any_entry(record: bytes, start: int, stop: int) -> tuple[str, Feature]:
    key = ""
    feature = Feature(_NONE, record, start, start)
    for number, a, b in _submessages(record, start, stop):
        if number == 1:
            key = _key(record, a, b)
        elif number == 2:
            for kind, c, d in _submessages(record, a, b):
                if kind in (_BYTES, _FLOAT, _INT64):
                    feature = _merge(feature, kind, record, c, d)
    return key, feature


def _key(record: bytes, start: int, stop: int) -> str:
    try:
        return record[start:stop].decode()
    except UnicodeDecodeError as cause:
        raise SourceFormatError(f"the feature name at byte {start} is not UTF-8") from cause


def _merge(before: Feature, kind: int, record: bytes, start: int, stop: int) -> Feature:
    # Of two lists of one kind protobuf makes one, behind each other; of two kinds the last stays.
    if before.kind == kind:
        data = before.data[before.start : before.stop] + record[start:stop]
        return Feature(kind, data, 0, len(data))
    return Feature(kind, record, start, stop)


def _submessages(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(field number, start, stop)`` of the length-delimited fields; other wire types are stepped over."""
    while at < stop:
        begin = at
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, begin, stop)
        wire_type = tag & 7
        if tag < 8:
            raise SourceFormatError(f"bad tag {tag} at byte {begin}")
        if wire_type == _DELIMITED:
            length, at = _varint(data, at, stop)
            if length > stop - at:
                raise SourceFormatError(f"the length {length} at byte {begin} points past the end of its message")
            yield tag >> 3, at, at + length
            at += length
        else:
            at = _skip_scalar(data, at, stop, wire_type, begin)


def _values(data: bytes, at: int, stop: int, scalar: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(wire type, start, stop)`` of the values of a list, packed runs as one, other fields left out."""
    while at < stop:
        begin = at
        tag, at = _varint(data, at, stop)
        wire_type = tag & 7
        if tag < 8:
            raise SourceFormatError(f"bad tag {tag} at byte {begin}")
        if wire_type == _DELIMITED:
            length, start = _varint(data, at, stop)
            if length > stop - start:
                raise SourceFormatError(f"the length {length} at byte {begin} points past the end of its list")
            at = start + length
        else:
            start, at = at, _skip_scalar(data, at, stop, wire_type, begin)
        if tag >> 3 == 1:
            if wire_type not in (_DELIMITED, scalar):
                raise SourceFormatError(f"bad tag {tag} at byte {begin}")
            yield wire_type, start, at


def _strings(data: bytes, at: int, stop: int) -> list[bytes]:
    """The values of a list of strings as every writer makes it; none of them if it is made otherwise."""
    out = []
    while at < stop - 1:
        if data[at] != _VALUE_DELIMITED:
            return []
        length = data[at + 1]
        at += 2
        if length >= 0x80:
            if at < stop and data[at] < 0x80:  # 128 bytes to 16 KiB, as small pictures are
                length += (data[at] << 7) - 0x80
                at += 1
            else:
                length, at = _varint(data, at - 1, stop)
        end = at + length
        if end > stop:
            return []
        out.append(data[at:end])
        at = end
    return out if at == stop else []


def _skip_scalar(data: bytes, at: int, stop: int, wire_type: int, begin: int) -> int:
    if wire_type == _VARINT:
        return _varint(data, at, stop)[1]
    width = {_FIXED64: 8, _FIXED32: 4}.get(wire_type)
    if width is None:
        raise SourceFormatError(f"bad tag at byte {begin}: there is no wire type {wire_type}")
    if at + width > stop:
        raise SourceFormatError(f"the value at byte {begin} ends past its message")
    return at + width


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """The unsigned number at `at` and where it ends."""
    if at < stop and data[at] < 0x80:  # most are short
        return data[at], at + 1
    value = shift = 0
    begin, limit = at, min(stop, at + _MAX_VARINT)
    while at < limit:
        byte = data[at]
        at += 1
        if byte < 0x80:
            return (value | byte << shift) & 0xFFFFFFFFFFFFFFFF, at
        value |= (byte & 0x7F) << shift
        shift += 7
    raise SourceFormatError(f"the integer (varint) at byte {begin} has no end")


def _single_packed(data: bytes, start: int, stop: int) -> int | None:
    """Where the values start, if the list is one packed run, as every writer makes it, or empty."""
    if start == stop:
        return start
    if data[start] == _VALUE_DELIMITED:
        length, at = _varint(data, start + 1, stop)
        if at + length == stop:
            return at
    return None


def _float_view(data: bytes, start: int, stop: int) -> np.ndarray:
    count, rest = divmod(stop - start, 4)
    if rest:
        raise SourceFormatError(f"{stop - start} bytes of packed floats are no whole number of floats")
    return np.frombuffer(data, "<f4", count, start)


def _join(parts: list[np.ndarray], dtype: np.dtype | type | str) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)
