"""A naive writer of serialized ``tf.train.Example``: one value at a time, as TFDS lays features out.

The twin of ``rlds2buf.formats.rlds.leaf_writer``; what lies where is told in ``rlds2buf.formats.rlds.leaf_reader``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.formats.rlds.features import Sequence, Tensor
from tests.formats.reverb.messages import example

Entries = dict[str, tuple[str, list[Any]]]


def naive_example(feature: Any, value: Any, key: str = "") -> bytes:
    """One record; `value` is nested as `feature` is, arrays in its leaves."""
    return example(entries(feature, value, key, []))


def entries(feature: Any, value: Any, key: str, sequences: list[None]) -> Entries:
    if isinstance(feature, dict):
        out: Entries = {}
        for name, child in feature.items():
            inner = value[name]
            out.update(entries(child, inner, f"{key}/{name}" if key else name, sequences))
        return out
    if isinstance(feature, Sequence):
        return entries(feature.feature, value, key, [*sequences, None])
    rows, lengths = [value], []
    for _ in sequences:
        lengths.append([len(row) for row in rows])
        rows = [cell for row in rows for cell in row]
    lengths = lengths[1:]
    suffix = "/ragged_flat_values" if lengths else ""
    out = {f"{key}/ragged_row_lengths_{i}": ("int64", counts) for i, counts in enumerate(lengths)}
    if isinstance(feature, Tensor) and feature.encoding == "bytes" and feature.shape.count(None) > 1:
        out[f"{key}/value{suffix}"] = ("bytes", [raw(row, feature) for row in rows])
        out[f"{key}/shape{suffix}"] = ("int64", [int(n) for row in rows for n in np.asarray(row).shape])
        return out
    out[f"{key}{suffix}"] = values(rows, feature)
    return out


def values(rows: list[Any], leaf: Tensor | StoredImage) -> tuple[str, list[Any]]:
    if isinstance(leaf, StoredImage):
        return "bytes", list(rows)
    if leaf.encoding == "bytes":
        return "bytes", [raw(row, leaf) for row in rows]
    flat = [cell for row in rows for cell in np.asarray(row, leaf.dtype).reshape(-1).tolist()]
    if leaf.dtype == object:
        return "bytes", [cell.encode() if isinstance(cell, str) else cell for cell in flat]
    return ("float", flat) if leaf.dtype.kind == "f" else ("int64", [int(cell) for cell in flat])


def raw(row: Any, leaf: Tensor) -> bytes:
    return np.asarray(row, leaf.dtype).astype(leaf.dtype.newbyteorder("<")).tobytes()
