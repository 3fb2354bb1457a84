"""Columns from the features of raw ``tf.train.Example`` records, as a spec says they are stored."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.images.claims import check_pixels, claim_numbers, claimed_strings
from rlds2buf.codecs.images.decode import DamagedImage, decode_frames
from rlds2buf.codecs.images.resize import resize_frames, stack_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.tfrecord.example import KINDS, Feature, decode_varints
from rlds2buf.core.budget import BUDGET, Tally
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.tf_example.feature_map import METADATA, ExampleSpec, FieldFeature

__all__ = ["describe_record", "read_rows", "read_steps", "read_whole", "resolve"]

_STRING = np.dtype(object)
_STORED: Mapping[str, np.dtype] = {"float": np.dtype(np.float32), "int64": np.dtype(np.int64), "bytes": _STRING}


def resolve(spec: ExampleSpec, record: Mapping[str, Feature], kind: str) -> ExampleSpec:
    """The spec with each dtype and shape that it leaves open as the first record has it.

    Args:
        spec: what is known.
        record: the features of the first record.
        kind: ``"episode"``, the record holds whole columns, or ``"step"``, one row.

    Raises:
        SourceFormatError: the record does not hold a feature, or not as the spec says.
        ValueError: nothing tells how many steps the record has.
    """
    spec = spec.expand(record)
    fields = [dataclasses.replace(field, dtype=field.dtype or _stored(field, record)) for field in spec.fields]
    steps = [field for field in fields if field.path[0] != METADATA]
    if not steps:
        raise ValueError("features: there is no field of a step")
    rows = 1 if kind == "step" else _count_rows(steps, record)
    done = [
        field if field.path[0] == METADATA or field.shape is not None else _with_shape(field, record[field.key], rows)
        for field in fields
    ]
    return dataclasses.replace(spec, fields=tuple(done))


def read_rows(
    field: FieldFeature, record: Mapping[str, Feature], *, encoded: bool = False, tally: Tally | None = None
) -> np.ndarray:
    """All of a feature's values as rows ``[N, ...]``; byte strings and pictures kept as files are objects.

    Raises:
        SourceFormatError: the record lacks it, or holds something else; names the field.
        LimitExceeded: it takes more than is left in the `tally` (one of its own, if there is none).
        DamagedImage: a picture can't be decoded.
    """
    feature = _feature(field, record)
    try:
        return _rows(field, feature, encoded, tally or Tally(BUDGET))
    except DamagedImage:
        raise
    except SourceFormatError as cause:
        raise cause.at(field.name) from cause


def read_steps(
    field: FieldFeature,
    records: Sequence[Mapping[str, Feature]],
    *,
    encoded: bool = False,
    tally: Tally | None = None,
) -> np.ndarray:
    """One row from each record, ``[N, ...]``.

    Raises:
        SourceFormatError: as :func:`read_rows`, or a record holds more or less than one row.
    """
    features = [_feature(field, record) for record in records]
    try:
        fast = _at_once(field, features)
        if fast is not None:
            return fast
        rows = []
        tally = tally or Tally(BUDGET)
        for feature in features:
            rows.append(_rows(field, feature, encoded, tally))
    except DamagedImage as cause:
        raise DamagedImage(str(cause), len(rows)) from cause
    except SourceFormatError as cause:
        raise cause.at(field.name) from cause
    wrong = next((len(row) for row in rows if len(row) != 1), None)
    if wrong is not None:
        raise SourceFormatError(f"{field.name}: a record of one step holds {wrong} values of its shape")
    return np.concatenate(rows)


def read_whole(field: FieldFeature, record: Mapping[str, Feature]) -> Any:
    """A feature as one value: a number or byte string, or an array where there are several.

    Raises:
        SourceFormatError: as :func:`read_rows`.
    """
    found = read_rows(dataclasses.replace(field, shape=field.shape or ()), record)
    return found[0] if len(found) == 1 else found


def describe_record(record: Mapping[str, Feature]) -> str:
    """What a record holds, for messages."""
    held = ", ".join(f"{key} ({KINDS[feature.kind]})" for key, feature in sorted(record.items())[:20])
    return held or "nothing"


def _feature(field: FieldFeature, record: Mapping[str, Feature]) -> Feature:
    feature = record.get(field.key)
    if feature is None:
        raise SourceFormatError(f"{field.name}: the record has no {field.key!r}; it holds {describe_record(record)}")
    return feature


def _stored(field: FieldFeature, record: Mapping[str, Feature]) -> np.dtype:
    kind = KINDS[_feature(field, record).kind]
    if kind not in _STORED:
        raise SourceFormatError(f"{field.name}: the first record's {field.key!r} is empty, so give its dtype")
    return _STORED[kind]


def _count_rows(fields: Sequence[FieldFeature], record: Mapping[str, Feature]) -> int:
    known = [field for field in fields if field.shape is not None]
    if not known:
        # A row of byte strings is a text a step far more often than several.
        known = [dataclasses.replace(field, shape=()) for field in fields if field.dtype == _STRING]
    if not known:
        raise ValueError(
            "features: nothing tells how many steps a record has: give a field of one number a step "
            "(reward, is_last) or a shape"
        )
    return len(read_rows(known[0], record, encoded=True))


def _with_shape(field: FieldFeature, feature: Feature, rows: int) -> FieldFeature:
    """With the shape that so many rows make of the values."""
    flat = dataclasses.replace(field, shape=())
    total = len(read_rows(flat, {field.key: feature}))
    size, rest = divmod(total, rows) if rows else (1, 0)
    if rest or not size:
        raise SourceFormatError(f"{field.name}: {total} values in {rows} steps; give its shape")
    return dataclasses.replace(field, shape=() if size == 1 else (size,))


def _rows(field: FieldFeature, feature: Feature, encoded: bool, tally: Tally) -> np.ndarray:
    assert field.dtype is not None and field.shape is not None
    if field.encoding == "image":
        return _frames(field, claimed_strings(feature, tally), encoded, tally)
    if field.encoding == "bytes":
        values = _raw(claimed_strings(feature, tally), field.dtype)
    elif field.dtype == _STRING:
        strings = claimed_strings(feature, tally)
        values = np.empty(len(strings), object)
        values[:] = strings
    else:
        claim_numbers(feature, field.dtype, tally)
        is_float = KINDS[feature.kind] == "float"
        values = feature.floats().astype(field.dtype) if is_float else feature.ints(field.dtype)
    shape = tuple(n for n in field.shape if n is not None)
    size = math.prod(shape)
    if not size or len(values) % size:
        raise SourceFormatError(f"{len(values)} values are no whole number of rows of shape {list(shape)}")
    return values.reshape(-1, *shape)


def _raw(strings: list[bytes], dtype: np.dtype) -> np.ndarray:
    lengths = {len(string) for string in strings}
    if len(lengths) > 1 or any(length % dtype.itemsize for length in lengths):
        raise SourceFormatError(f"byte strings of {sorted(lengths)[:3]} bytes are no rows of {dtype}")
    return np.frombuffer(b"".join(strings), dtype.newbyteorder("<")).astype(dtype)


def _frames(field: FieldFeature, files: list[bytes], encoded: bool, tally: Tally) -> np.ndarray:
    assert field.dtype is not None and field.shape is not None
    if encoded:
        out = np.empty(len(files), object)
        out[:] = files
        return out
    if not files:
        return np.zeros((0, *(n or 0 for n in field.spec(encoded=False).shape)), field.dtype)
    check_pixels(files, StoredImage((None, None, field.shape[2]), field.dtype, size=field.size), tally)
    frames = decode_frames(files, StoredImage((None, None, field.shape[2]), field.dtype))
    for number, frame in enumerate(frames):
        if any(want not in (None, got) for want, got in zip(field.shape, frame.shape, strict=True)):
            raise DamagedImage(f"a picture of {list(frame.shape)}, but its shape should be {list(field.shape)}", number)
    return stack_frames(frames if field.size is None else [resize_frames(frame, field.size) for frame in frames])


def _at_once(field: FieldFeature, features: Sequence[Feature]) -> np.ndarray | None:
    """Numbers as writers pack them, of all records in one go; None where some are stored otherwise."""
    if field.encoding != "none" or field.dtype == _STRING or any(f.kind != features[0].kind for f in features):
        return None
    assert field.dtype is not None and field.shape is not None
    runs = [f.data[f.start + 2 : f.stop] for f in features if _is_short_run(f)]
    if len(runs) < len(features):
        return None
    shape = tuple(n for n in field.shape if n is not None)
    size = math.prod(shape)
    data = np.frombuffer(b"".join(runs), np.uint8)
    lengths = np.array([len(run) for run in runs])
    if KINDS[features[0].kind] == "float":
        if (lengths != 4 * size).any():
            return None
        return data.view("<f4").astype(field.dtype).reshape(len(runs), *shape)
    if (np.add.reduceat(data < 0x80, np.cumsum(lengths) - lengths, dtype=np.int64) != size).any() or data[-1] >= 0x80:
        return None
    return decode_varints(data, field.dtype).reshape(len(runs), *shape)


def _is_short_run(feature: Feature) -> bool:
    """Whether it is one packed run of 1 to 127 bytes: its tag, its length, its values, nothing else."""
    length = feature.stop - feature.start - 2
    head = feature.start
    return 0 < length < 0x80 and feature.data[head] == 0x0A and feature.data[head + 1] == length
