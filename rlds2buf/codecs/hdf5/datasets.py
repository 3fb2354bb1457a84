"""What HDF5 can hold: which columns can be datasets, under which names, and which texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SpecMismatch

__all__ = ["clash", "extra_fault", "field_fault", "is_plain_name", "texts_misfit"]


def extra_fault(field: FieldSpec, path: nest.Path, place: nest.Path, taken: Iterable[str]) -> str | None:
    """Why an extra can't be a dataset; None if it can.

    Args:
        field: its spec.
        path: in the extras.
        place: of the dataset.
        taken: the datasets of other extras.
    """
    fault = field_fault(field)
    if fault is None and not all(is_plain_name(part) for part in path):
        fault = "its name can't be one in an HDF5 file"
    name = nest.path_name(place)
    if fault is None and any(clash(name, other) for other in taken):
        fault = f"another field is {name} in the file already"
    return fault


def field_fault(field: FieldSpec) -> str | None:
    """Why a column of such rows can't be a dataset; None if it can."""
    if None in field.shape:
        return "its length varies, and a dataset's rows have one shape"
    if not field.is_string and field.dtype.kind not in "biufc":
        return f"it is {field.dtype}, which HDF5 has no type for"
    return None


def is_plain_name(part: Any) -> bool:
    """Whether a key can be a name in an HDF5 file."""
    return isinstance(part, int) or not (part in ("", ".") or "/" in part or "\0" in part)


def clash(one: str, other: str) -> bool:
    """Whether two paths can't both be datasets of one file.

    >>> clash("infos/a", "infos"), clash("infos/a", "infos/ab")
    (True, False)
    """
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def texts_misfit(
    batch: EpisodeBatch, columns: Mapping[nest.Path, np.ndarray], utf8: Collection[nest.Path] = ()
) -> tuple[int, SpecMismatch] | None:
    """The first episode with a text that a dataset can't hold, by its place, and why; None if there is none.

    Args:
        batch: the episodes.
        columns: ``[M, ...]`` of it, by their paths; numbers pass.
        utf8: which of them can't hold other bytes than UTF-8.
    """
    found: tuple[int, SpecMismatch] | None = None
    for path, column in columns.items():
        bad = _bad_text(column.reshape(-1).tolist(), path in utf8) if column.dtype == object else None
        if bad is None:
            continue
        text, why = bad
        row = text // (column.size // len(column))
        place = int(np.searchsorted(batch.starts, row, "right")) - 1
        if found is None or place < found[0]:
            where: dict[str, Any] = {"source": batch.rows.source, "step": row - int(batch.starts[place])}
            where["episode"] = None if batch.index is None else int(batch.index[place])
            found = place, SpecMismatch(why, path=nest.path_name(path), rule="spec", **where)
    return found


def _bad_text(texts: list[bytes], utf8: bool) -> tuple[int, str] | None:
    """Which text a dataset can't hold, and why."""
    whole = b"\n".join(texts)
    if b"\0" not in whole and (not utf8 or _is_utf8(whole)):
        return None
    for i, text in enumerate(texts):
        if b"\0" in text:
            return i, "a text with zero bytes, which HDF5 can't hold"
        if utf8 and not _is_utf8(text):
            return i, "a text that is not UTF-8"
    return None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
