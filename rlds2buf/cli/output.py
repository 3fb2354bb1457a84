"""What commands print: one JSON object, or aligned text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from rlds2buf.cli.wording import as_options

__all__ = [
    "by_reason",
    "describe_columns",
    "field_order",
    "number",
    "plain",
    "print_json",
    "print_table",
    "print_warnings",
    "size",
]


def print_json(value: Mapping[str, Any]) -> None:
    """Print one strict JSON object on standard output; numbers that are not finite become null.

    >>> print_json({"mean": float("nan"), "name": b"hopper"})
    {"mean": null, "name": "hopper"}
    """
    click.echo(json.dumps(plain(value), allow_nan=False))


def print_table(title: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Print rows under a title, their columns aligned; nothing where there are no rows.

    >>> print_table("fields", [("action", "float32[3]"), ("reward", "float32[]")])
    fields
      action  float32[3]
      reward  float32[]
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return
    widths = [max(len(row[i]) if i < len(row) else 0 for row in cells) for i in range(max(map(len, cells)))]
    click.echo(title)
    for row in cells:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        click.echo(f"  {padded.rstrip()}")


def print_warnings(warnings: Iterable[str]) -> None:
    """Print what should be known of a dataset before it is used, each line once.

    >>> print_warnings(["no end flags", "no end flags"])
    warnings
      no end flags
    """
    print_table("warnings", [(as_options(text),) for text in dict.fromkeys(warnings)])


def by_reason(lost: Mapping[str, str]) -> list[tuple[str, str]]:
    """Fields that are lost, those that are for the same reason together: the fields, the reason.

    >>> by_reason({"metadata/a": "no place", "reward": "no axis", "metadata/b": "no place"})
    [('metadata/a, metadata/b', 'no place'), ('reward', 'no axis')]
    """
    names: dict[str, list[str]] = {}
    for name, why in lost.items():
        names.setdefault(why, []).append(name)
    return [(_some(found), why) for why, found in names.items()]


def field_order(name: str) -> tuple[Any, ...]:
    """A sort key for names of fields: the observation first, numbers in names in numeric order.

    >>> sorted(["reward", "observation/image_10", "observation/image_9", "action", "steps"], key=field_order)
    ['observation/image_9', 'observation/image_10', 'action', 'reward', 'steps']
    """
    order = ("observation", "action", "reward", "discount", "next_observation")
    top = name.partition("/")[0]
    parts = re.split(r"(\d{1,18})", name)
    return (
        order.index(top) if top in order else len(order),
        top == "extras",
        tuple((int(part), part) if i % 2 else (0, part) for i, part in enumerate(parts)),
    )


def _some(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def number(value: Any) -> str:
    """A number short enough to read; "-" for none.

    >>> number(1234567), number(0.123456789), number(None)
    ('1,234,567', '0.123457', '-')
    """
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def describe_columns(nest: Any, path: str = "") -> dict[str, dict[str, Any]]:
    """Type, minimum, mean and maximum of every column of a nest of arrays, by field name.

    >>> import numpy as np
    >>> describe_columns({"reward": np.array([1.0, 3.0])})["reward"]
    {'type': 'float64[2]', 'min': 1.0, 'mean': 2.0, 'max': 3.0}
    """
    if nest is None:
        return {}
    if isinstance(nest, Mapping | tuple):
        children = nest.items() if isinstance(nest, Mapping) else enumerate(nest)
        prefix = f"{path}/" if path else ""
        return {k: v for name, child in children for k, v in describe_columns(child, f"{prefix}{name}").items()}
    known: dict[str, Any] = {"type": f"{nest.dtype}[{', '.join(map(str, nest.shape))}]"}
    if nest.dtype.kind not in "biuf" or nest.size == 0:
        return {path: {**known, "min": None, "mean": None, "max": None}}
    return {path: {**known, **{how: float(getattr(nest, how)()) for how in ("min", "mean", "max")}}}


def size(count: float) -> str:
    """A number of bytes with its unit.

    >>> size(139), size(1536), size(3 * 1024**3)
    ('139 B', '1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def plain(value: Any) -> Any:
    """Numpy scalars and arrays, bytes and tuples as what JSON knows; numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(child) for key, child in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(child) for child in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
