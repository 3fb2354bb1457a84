"""Arguments that several commands share."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import click

from rlds2buf.errors import Rlds2bufError

__all__ = ["json_flag", "nonfinite_flag", "open_source", "pairs", "source_arguments"]

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
nonfinite_flag = click.option("--allow-nonfinite", is_flag=True, help="Accept NaN and infinity.")


def open_source(source: str, how: dict[str, Any]) -> Any:
    """:func:`rlds2buf.open_source` of what :func:`source_arguments` gave; a wrong option is a usage error."""
    import rlds2buf

    try:
        return rlds2buf.open_source(source, **how)
    except TypeError as cause:
        raise click.UsageError(str(cause)) from cause


def source_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """SRC and how to open it; the command gets them as ``source`` and ``how`` (keyword arguments of open_source)."""

    @functools.wraps(command)
    def with_how(*, split: str | None, format_: str | None, option: dict[str, Any], **others: Any) -> Any:
        try:
            return command(how={"split": split, "format": format_, **option}, **others)
        except Rlds2bufError as error:
            if getattr(error, "source", None) is None:
                error.source = others["source"]  # type: ignore[attr-defined]  # for --json
            raise

    decorated: Callable[..., Any] = with_how
    for add in (
        click.option("-O", "--option", multiple=True, callback=pairs, metavar="NAME=VALUE", help=_OPTION_HELP),
        click.option("--format", "format_", metavar="NAME", help="The format, where looking doesn't tell."),
        click.option("--split", metavar="SPLIT", help="Which part, as in TFDS: train, train[:10%], train[5:20], a+b."),
        click.argument("source", metavar="SRC"),
    ):
        decorated = add(decorated)
    return decorated


_OPTION_HELP = "An option of the format's own reader; may be repeated."


def pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """``("a=1", "b=x")`` as ``{"a": 1, "b": "x"}``: values are JSON, or else text."""
    found: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not (equals and name.isidentifier()):
            raise click.BadParameter(f"expected NAME=VALUE, got {value!r}", ctx, parameter)
        if name in ("split", "format"):
            raise click.BadParameter(f"use --{name}", ctx, parameter)
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found
