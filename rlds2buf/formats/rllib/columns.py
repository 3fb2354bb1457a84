"""RLlib's columns as numpy columns; what RLlib has packed is recognised, and never unpacked.

A packed value is base64 text of an LZ4 frame around a pickle.

Source: https://github.com/ray-project/ray/blob/master/rllib/utils/compression.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.errors import SourceFormatError

__all__ = [
    "HOW_TO_UNPACK",
    "NAMES",
    "choose_policy",
    "column_of",
    "columns_of",
    "of_policy",
    "refuse_packed",
    "rows_in",
]

NAMES: Final = ("eps_id", "agent_id", "module_id", "agent_index", "unroll_id")
"""Columns that name what a row belongs to; their values may be numbers or texts."""

HOW_TO_UNPACK: Final = (
    "have RLlib write plain columns: config.offline_data(output_compress_columns=[], output_write_episodes=False), "
    'or "output_compress_columns": [] in an older config'
)

_LZ4_AS_BASE64: Final = ("BCJNG", "b'BCJNG")
_DEPTH: Final = 32


def refuse_packed(value: Any, name: str) -> None:
    """Raise if a value, or the first of a list of them, is one that RLlib has packed.

    Raises:
        SourceFormatError: it is; the message says how to have it unpacked.
    """
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, bytes):
        first = first[:16].decode("ascii", "replace")
    if isinstance(first, str) and first.startswith(_LZ4_AS_BASE64):
        raise SourceFormatError(
            f"the column {name!r} is packed (base64 text of LZ4 of a pickle), and pickles are never loaded; "
            + HOW_TO_UNPACK
        )


def columns_of(batch: Mapping[str, Any], *, infos: bool) -> dict[str, nest.Nest]:
    """The columns ``[n, ...]`` of one batch of RLlib's, JSON values each.

    Args:
        batch: column name to a list of values; or to a dict of such.
        infos: whether to keep the infos, as JSON text.

    Raises:
        SourceFormatError: a column is packed, ragged, or differs from the others in length.
    """
    columns: dict[str, nest.Nest] = {}
    for name, values in batch.items():
        refuse_packed(values, name)
        if name == "infos":
            if infos and isinstance(values, list):
                columns[name] = _texts([json.dumps(value, sort_keys=True) for value in values])
        elif isinstance(values, list | dict):
            columns[name] = column_of(values, name)
    lengths = {nest.path_name(path): len(column) for path, column in nest.flatten(columns)}
    if len(set(lengths.values())) > 1:
        short = min(lengths, key=lambda name: lengths[name])
        longest = max(lengths, key=lambda name: lengths[name])
        raise SourceFormatError(f"{short!r} has {lengths[short]} rows, but {longest!r} {lengths[longest]}")
    return columns


def column_of(values: Any, name: str, depth: int = 0) -> nest.Nest:
    """One column from JSON: numbers and nested lists of equal length as an array, texts as bytes, objects as a dict.

    Raises:
        SourceFormatError: the values make no column.

    >>> column_of([[1, 2], [3, 4]], "obs").shape
    (2, 2)
    >>> column_of([{"x": 1.0}, {"x": 2.0}], "obs")
    {'x': array([1., 2.])}
    """
    if depth > _DEPTH:
        raise SourceFormatError(f"{name}: nested deeper than {_DEPTH} levels")
    if isinstance(values, Mapping):
        return {str(key): column_of(child, f"{name}/{key}", depth + 1) for key, child in values.items()}
    refuse_packed(values, name)
    if values is None or isinstance(values, bool | int | float | str):
        raise SourceFormatError(f"{name}: one value, where a list with a value for each row belongs")
    if values and all(isinstance(value, Mapping) for value in values):
        keys = values[0].keys()
        if any(value.keys() != keys for value in values):
            raise SourceFormatError(f"{name}: its objects have different keys")
        return {key: column_of([value[key] for value in values], f"{name}/{key}", depth + 1) for key in keys}
    if values and all(isinstance(value, str) for value in values):
        return _texts(values)
    try:
        column = np.asarray(values)
    except (ValueError, OverflowError) as cause:
        raise SourceFormatError(f"{name}: rows of different lengths ({cause})") from cause
    if column.dtype.kind not in "biuf" or column.ndim == 0:
        raise SourceFormatError(f"{name}: its values are neither all numbers nor all texts")
    return column


def choose_policy(held: list[str], policy: str | None, where: str) -> str:
    """The policy that is read.

    Raises:
        SourceFormatError: there are several, and `policy` is None; or it is not among them.
    """
    if policy is None and len(held) == 1:
        return held[0]
    if policy in held:
        return str(policy)
    names = ", ".join(map(repr, sorted(held))) or "none"
    asked = (
        f"{policy!r} is not one of its policies" if policy is not None else "several policies; name one with policy="
    )
    raise SourceFormatError(f"{where}: {asked}: {names}")


def of_policy(columns: dict[str, nest.Nest], policy: str | None, where: str) -> dict[str, nest.Nest]:
    """The rows of one policy, which single steps name in ``module_id``; nothing where it has none here.

    Raises:
        SourceFormatError: as :func:`choose_policy`.
    """
    modules = columns.get("module_id")
    if not isinstance(modules, np.ndarray) or modules.dtype != object or not len(modules):
        choose_policy(["default_policy"], policy, where)
        return columns
    held = sorted({value.decode("utf-8", "replace") for value in set(modules.tolist())})
    if policy is not None and policy not in held:
        return {}
    chosen = modules == choose_policy(held, policy, where).encode()
    return columns if chosen.all() else dict(nest.map_structure(lambda column: column[chosen], columns))


def rows_in(columns: Mapping[str, nest.Nest]) -> int:
    """How many rows the columns have."""
    return next((len(column) for _, column in nest.flatten(dict(columns))), 0)


def _texts(values: Sequence[str]) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = [value.encode("utf-8", "surrogatepass") for value in values]
    return out
