"""``rlds2buf formats``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from rlds2buf.cli.arguments import json_flag
from rlds2buf.cli.command import Command, FormatName
from rlds2buf.cli.output import print_json, print_table

if TYPE_CHECKING:
    from rlds2buf.core.options import Option

__all__ = ["command"]


@click.command(
    "formats",
    cls=Command,
    short_help="List the formats, or the options of one.",
    examples={
        "rlds2buf formats": "what can be read and written, and what must be installed for it",
        "rlds2buf formats d4rl": "the options of its reader (-O) and of its writer (-T)",
    },
)
@click.argument("name", required=False, metavar="[NAME]", type=FormatName("names"))
@json_flag
def command(name: str | None, as_json: bool) -> None:
    """List what can be read and written; of one format the options of its reader (-O) and of its writer (-T).

    Formats of installed plug-ins are among them.
    """
    from rlds2buf.formats import registry

    if name is None:
        failed: list[str] = []
        found = {"formats": [registry.summary(entry) for entry in registry.every(failed)], "failed": failed}
        print_json(found) if as_json else _print_all(found)
        return
    entry = registry.by_name(name)
    assert entry is not None  # the type of the argument knows the names
    told = registry.summary(entry)
    options = {
        "read": registry.source_options(entry) if entry.source else [],
        "write": registry.sink_options(entry) if entry.sink else [],
    }
    if as_json:
        print_json({**told, "options": {side: _plain(known) for side, known in options.items()}})
    else:
        _print_one(told, options)


def _print_all(found: dict[str, Any]) -> None:
    rows = [
        (one["name"], one["what"], ", ".join(how for how in ("read", "written") if one[how]), _needs(one))
        for one in found["formats"]
    ]
    print_table("formats", rows)
    print_table("plug-ins that failed", [(text,) for text in found["failed"]])


def _needs(told: dict[str, Any]) -> str:
    return ", ".join(f"rlds2buf[{extra}]{f' for {what}' if what else ''}" for extra, what in told["extras"].items())


def _print_one(told: dict[str, Any], options: dict[str, list[Option] | None]) -> None:
    click.echo(f"{told['name']}: {told['what']}, from {told['plugin']}" if told["plugin"] else _headline(told))
    for is_there, heading, known in (
        (told["read"], "Options of its reader, -O NAME=VALUE", options["read"]),
        (told["written"], "Options of its writer, -T NAME=VALUE", options["write"]),
    ):
        if is_there:
            formatter = click.HelpFormatter(max_width=100)
            with formatter.section(heading):
                rows = [(_typed(option), option.help or " ") for option in known or []]
                formatter.write_dl(rows or [("none" if known is not None else "any", " ")])
            click.echo(formatter.getvalue().rstrip())


def _headline(told: dict[str, Any]) -> str:
    more = [f"needs {_needs(told)}"] * bool(told["extras"]) + ["has splits (--split)"] * told["has_splits"]
    return "; ".join([f"{told['name']}: {told['what']}", *more])


def _typed(option: Option) -> str:
    return f"{option.name}: {option.type} = {json.dumps(option.default, default=str)}"


def _plain(known: list[Option] | None) -> list[dict[str, Any]] | None:
    return None if known is None else [vars(option) for option in known]
