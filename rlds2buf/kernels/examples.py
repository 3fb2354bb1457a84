"""Many serialized ``tf.train.Example`` messages at once: where their values lie, and copies of them.

The messages are those of :mod:`rlds2buf.codecs.tfrecord.example`.  These loops know them as writers make
them, each entry a name, then one list, then nothing; whatever is made otherwise is left to that module.
"""

from __future__ import annotations

import numpy as np

from rlds2buf.kernels.compiled import compiled
from rlds2buf.kernels.memory import copy_bytes

__all__ = [
    "BEGIN",
    "COUNT",
    "FORM",
    "LOOSE_FLOATS",
    "LOOSE_INTS",
    "MISSING",
    "NUMBERS",
    "PACKED_FLOATS",
    "PACKED_INTS",
    "SAME_STRINGS",
    "START",
    "STOP",
    "STRINGS",
    "copy_spans",
    "find_strings",
    "walk_examples",
]

FORM, BEGIN, START, STOP, COUNT = 0, 1, 2, 3, 4
"""What is told of a feature: how its values are written, where its list begins, where its values begin and
end, and how many there are."""

MISSING, STRINGS, SAME_STRINGS, PACKED_FLOATS, LOOSE_FLOATS, PACKED_INTS, LOOSE_INTS = 0, 1, 2, 3, 4, 5, 6
"""How values are written; the same strings are all equal, and loose numbers have a tag before every one."""

NUMBERS = {"float": (PACKED_FLOATS, LOOSE_FLOATS), "int64": (PACKED_INTS, LOOSE_INTS)}

_FIRST, _SECOND, _THIRD = 0x0A, 0x12, 0x1A
_FLOAT_TAG, _INT_TAG = 0x0D, 0x08


@compiled
def _varint(data, at, stop):  # type: ignore[no-untyped-def]
    """The number at `at` and where it ends; -1, -1 if it has no end, or is beyond any length."""
    value = np.int64(0)
    for shift in range(0, 63, 7):
        if at >= stop:
            break
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return np.int64(-1), np.int64(-1)


@compiled
def _part(data, at, stop, tag):  # type: ignore[no-untyped-def]
    """Where the submessage of a tag begins and ends; -1, -1 if there is none within the message."""
    if at >= stop or data[at] != tag:
        return np.int64(-1), np.int64(-1)
    length, begin = _varint(data, at + 1, stop)
    if begin < 0 or length > stop - begin:
        return np.int64(-1), np.int64(-1)
    return begin, begin + length


@compiled
def walk_examples(data, starts, stops, names, edges, table, odd):  # type: ignore[no-untyped-def]
    """Find the features of every record.

    Args:
        data: ``uint8``, in which the records lie.
        starts, stops: ``[n] int64``, where each begins and ends.
        names: ``uint8``, the names of the features wanted, one behind the other.
        edges: ``[K + 1] int64``, where each name begins there.
        table: ``[5, K, n] int64`` of zeros, filled with what is told of a feature.
        odd: ``[n] uint8``, filled with 1 where a record is not as writers make it.
    """
    count = edges.shape[0] - 1
    followers = np.full(count + 1, count, np.int64)  # the feature that came behind each of them last time
    for r in range(starts.shape[0]):
        odd[r] = 1
        at, stop = _part(data, starts[r], stops[r], _FIRST)
        if at < 0 or stop != stops[r]:
            continue
        before = count
        is_known = True
        while at < stop and is_known:
            entry, end = _part(data, at, stop, _FIRST)
            name, name_end = _part(data, entry, end, _FIRST)
            if entry < 0 or name < 0:
                is_known = False
                break
            guess = followers[before]
            if guess == count or not _is_same(data, name, name_end, names, edges[guess], edges[guess + 1]):
                guess = _look_up(data, name, name_end, names, edges)
                followers[before] = guess
            before = guess
            is_known = _feature(data, name_end, end, guess, table, r) and (
                guess < count or _is_ascii(data, name, name_end)
            )
            at = end
        odd[r] = 0 if is_known else 1


@compiled
def _is_same(data, start, stop, names, begin, end):  # type: ignore[no-untyped-def]
    if stop - start != end - begin:
        return False
    for i in range(stop - start):
        if data[start + i] != names[begin + i]:
            return False
    return True


@compiled
def _is_ascii(data, start, stop):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        if data[i] >= 0x80:
            return False
    return True


@compiled
def _look_up(data, start, stop, names, edges):  # type: ignore[no-untyped-def]
    """The number of a name; that behind the last one if it is not wanted."""
    for k in range(edges.shape[0] - 1):
        if _is_same(data, start, stop, names, edges[k], edges[k + 1]):
            return k
    return edges.shape[0] - 1


@compiled
def _feature(data, at, stop, k, table, r):  # type: ignore[no-untyped-def]
    """Note one feature, if it is wanted; whether it is as writers make it."""
    at, end = _part(data, at, stop, _SECOND)
    if at < 0 or end != stop or at == end:
        return False
    tag = data[at]
    if tag != _FIRST and tag != _SECOND and tag != _THIRD:
        return False
    begin, end = _part(data, at, stop, tag)
    if begin < 0 or end != stop:
        return False
    if k == table.shape[1]:
        return True
    if tag == _FIRST:
        form, start, count = _strings(data, begin, end)
    elif tag == _SECOND:
        form, start, count = _floats(data, begin, end)
    else:
        form, start, count = _ints(data, begin, end)
    table[FORM, k, r] = form
    table[BEGIN, k, r] = begin
    table[START, k, r] = start
    table[STOP, k, r] = end
    table[COUNT, k, r] = count
    return form != MISSING


@compiled
def _strings(data, begin, end):  # type: ignore[no-untyped-def]
    """How many there are, and whether all are equal."""
    at, count, form = begin, 0, SAME_STRINGS
    first, first_end = begin, begin
    while at < end:
        start, stop = _part(data, at, end, _FIRST)
        if start < 0:
            return MISSING, begin, 0
        if count == 0:
            first, first_end = start, stop
        elif form == SAME_STRINGS and not _is_same(data, start, stop, data, first, first_end):
            form = STRINGS
        count += 1
        at = stop
    return form, begin, count


@compiled
def _floats(data, begin, end):  # type: ignore[no-untyped-def]
    if begin == end:
        return PACKED_FLOATS, begin, 0
    start, stop = _part(data, begin, end, _FIRST)
    if stop == end:
        return (PACKED_FLOATS if (stop - start) % 4 == 0 else MISSING), start, (stop - start) // 4
    if (end - begin) % 5:
        return MISSING, begin, 0
    for at in range(begin, end, 5):
        if data[at] != _FLOAT_TAG:
            return MISSING, begin, 0
    return LOOSE_FLOATS, begin, (end - begin) // 5


@compiled
def _ints(data, begin, end):  # type: ignore[no-untyped-def]
    if begin == end:
        return PACKED_INTS, begin, 0
    if data[end - 1] >= 0x80:
        return MISSING, begin, 0
    start, stop = _part(data, begin, end, _FIRST)
    if stop == end:
        return PACKED_INTS, start, _count_below(data, start, end)
    if data[begin] != _INT_TAG:
        return MISSING, begin, 0
    both = _count_below(data, begin, end)
    return (LOOSE_INTS if both % 2 == 0 else MISSING), begin, both // 2


@compiled
def _count_below(data, start, stop):  # type: ignore[no-untyped-def]
    """How many varints end there."""
    count = 0
    for i in range(start, stop):
        count += data[i] < 0x80
    return count


@compiled
def find_strings(data, starts, stops, counts, spans):  # type: ignore[no-untyped-def]
    """Where the strings of several lists lie.

    Args:
        data: ``uint8``, in which the lists lie.
        starts, stops: ``[n] int64``, of the lists, which have been walked.
        counts: ``[n] int64``, how many strings of each are looked for, from its first one on.
        spans: ``[2, sum of counts] int64``, filled with where each string begins and ends.
    """
    i = 0
    for r in range(starts.shape[0]):
        at = starts[r]
        for _ in range(counts[r]):
            start, stop = _part(data, at, stops[r], _FIRST)
            spans[0, i] = start
            spans[1, i] = stop
            at = stop
            i += 1


@compiled
def copy_spans(data, starts, stops, out):  # type: ignore[no-untyped-def]
    """Copy several spans of `data` one behind the other.

    Args:
        data: ``uint8``.
        starts, stops: ``[n] int64``.
        out: ``uint8``, as long as all of them.
    """
    to, of = out.ctypes.data, data.ctypes.data
    for r in range(starts.shape[0]):
        length = stops[r] - starts[r]
        copy_bytes(to, of + starts[r], length)
        to += length
