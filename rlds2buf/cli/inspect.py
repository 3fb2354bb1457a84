"""``rlds2buf inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rlds2buf.cli.arguments import json_flag, open_source, source_arguments
from rlds2buf.cli.command import Command
from rlds2buf.cli.details import limits, tables
from rlds2buf.cli.output import field_order, number, print_json, print_table, print_warnings, size

if TYPE_CHECKING:
    from rlds2buf.pipeline.summary import Summary

__all__ = ["command"]


@click.command(
    "inspect",
    cls=Command,
    short_help="Show what SRC holds.",
    examples={
        "rlds2buf inspect hopper.hdf5": "format, counts, fields, returns, how episodes end",
        "rlds2buf inspect bridge_dataset --split 'train[:10%]' --json": "of a part, as JSON",
    },
)
@source_arguments
@json_flag
def command(source: str, how: dict[str, Any], as_json: bool) -> None:
    """Show what a dataset holds: counts, fields, episode lengths, returns, ends."""
    from rlds2buf.pipeline.progress import Tracked
    from rlds2buf.pipeline.summary import summarize

    with open_source(source, how) as opened:
        found = summarize(Tracked(opened, "inspect"))
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


_SAID_BEFORE = ("warnings", "notes", "rows", "terminated", "truncated")
"""Details that are among the counts or the warnings."""


def _print(found: Summary) -> None:
    click.echo(found.source)
    print_warnings(found.warnings)
    counts = [("format", found.format), ("episodes", number(found.episodes))]
    counts.append(("transitions", number(found.transitions)))
    if isinstance(found.details.get("rows"), int):
        counts.append(("rows in the file", number(found.details["rows"])))
    counts += [
        ("steps", f"{number(found.steps)}, the final observation of each episode included"),
        ("bytes per step", f"{number(found.bytes_per_step)} ({size(found.bytes_per_step * found.steps)} in all)"),
        ("steps per episode", _spread(found.lengths)),
        ("returns", _spread(found.returns)),
        ("ends", ", ".join(f"{count:,} {end}" for end, count in found.ends.items())),
    ]
    if found.unreadable:
        counts.append(("unreadable", f"{number(found.unreadable)}, first: {found.first_error}"))
    if found.filtered:
        counts.append(("left out", ", ".join(f"{number(count)} by {rule}" for rule, count in found.filtered.items())))
    print_table("counts", counts)
    fields = sorted(found.fields.items(), key=lambda field: field_order(field[0]))
    print_table("fields", [(name, _type(field), limits(field)) for name, field in fields])
    details = {name: value for name, value in found.details.items() if name not in _SAID_BEFORE}
    for title, rows in tables("details", details):
        print_table(title, rows)


def _spread(values: dict[str, float] | None) -> str:
    return "-" if values is None else ", ".join(f"{name} {number(value)}" for name, value in values.items())


def _type(field: dict[str, Any]) -> str:
    return f"{field['dtype']}[{', '.join('?' if n is None else str(n) for n in field['shape'])}]"
