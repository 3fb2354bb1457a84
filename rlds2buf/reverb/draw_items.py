"""A few items of a Reverb table or checkpoint, to look at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.room import require_room
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.reverb.checkpoint_source import ReverbCheckpointSource
from rlds2buf.formats.reverb.protocol.checkpoint_files import latest_checkpoint
from rlds2buf.pipeline.opening import open_source

__all__ = ["Drawn", "draw_items", "is_reverb"]


class Drawn(NamedTuple):
    """B items, their rows one after the other.

    Attributes:
        columns: field name to array ``[rows, ...]``.
        key: ``[B] uint64``.
        priority: ``[B] float64``.
        table_size: items in the table.
    """

    columns: dict[str, np.ndarray]
    key: np.ndarray
    priority: np.ndarray
    table_size: int


def is_reverb(uri: str) -> bool:
    """Whether it is the address of a Reverb table, or the folder of a checkpoint.

    >>> is_reverb("reverb://localhost:8000/replay"), is_reverb("no-such-folder")
    (True, False)
    """
    if uri.startswith("reverb://"):
        return True
    try:
        return os.path.isdir(uri) and bool(latest_checkpoint(Path(uri)))
    except OSError:  # SourceNotFound is one
        return False


def draw_items(uri: str, count: int, *, seed: int | None = None, **options: Any) -> Drawn:
    """Draw `count` items with replacement: of a table as its sampler picks them, of a checkpoint evenly.

    Args:
        uri: ``reverb://host:port/table``, or a checkpoint.
        count: how many.
        seed: of the draws from a checkpoint.
        options: of the format's source: ``table``, ``consume``, ``timeout``.

    Items whose columns differ in length (of dm-reverb's TrajectoryWriter, say) give each column the rows that it has.

    Raises:
        SourceError: it can't be read, or is empty, or the items' columns differ in more than their length.
        ValueError: no such address.
    """
    require_room(count * 8, f"batch_size: {count:,} items")
    options["join"] = False
    if uri.startswith("reverb://"):
        options["num_items"] = count
    with open_source(uri, **options) as source:
        size = int(source.details()["items"])
        if not size:
            _ = source.spec  # says that the table is empty
        if isinstance(source, ReverbCheckpointSource):
            times = np.bincount(np.random.default_rng(seed).integers(0, size, count), minlength=size)
        else:
            times = np.ones(count, np.int64)
        items: list[Episode] = []
        for number, item in enumerate(source):
            items += [item] * int(times[number])
    parts: dict[str, list[np.ndarray]] = {}
    for item in items:
        for path, column in item.flatten():
            parts.setdefault(nest.path_name(path), []).append(column)
    return Drawn(
        {name: _one_after_another(name, rows, uri) for name, rows in parts.items()},
        np.array([item.metadata["key"] for item in items], np.uint64),
        np.array([item.metadata["priority"] for item in items]),
        size,
    )


def _one_after_another(name: str, items: list[np.ndarray], uri: str) -> np.ndarray:
    """The rows of a column, of all items; of items that are one row of several steps, the steps, where these vary."""
    if len({rows.shape[1:] for rows in items}) > 1 and all(rows.ndim > 1 and len(rows) == 1 for rows in items):
        items = [rows[0] for rows in items]
    if len({rows.shape[1:] for rows in items}) > 1:
        shapes = ", ".join(sorted({str(list(rows.shape[1:])) for rows in items}))
        raise SourceFormatError(f"{uri}: the items' rows of {name} have different shapes: {shapes}")
    return np.concatenate(items)
