"""Arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from rlds2buf.cli.command import SectionOption, path_argument
from rlds2buf.cli.source_options import OPTIONS, collect
from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import Rlds2bufError

__all__ = ["jobs_option", "json_flag", "nonfinite_flag", "open_source", "pairs", "source_arguments"]

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
nonfinite_flag = click.option("--allow-nonfinite", is_flag=True, help="Accept NaN and infinity.")
jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many processes read. One is mostly the fastest; more may pay with many cores and much to decompress.",
)


def open_source(source: str, how: dict[str, Any]) -> Any:
    """:func:`rlds2buf.open_source` of what :func:`source_arguments` gave; a wrong option is a usage error.

    With ``--with`` it is :func:`rlds2buf.open_mixture`.
    """
    from rlds2buf.pipeline import opening

    options = dict(how)
    others = options.pop("with_", [])
    weights = _weights(options.pop("weight", None), [weight for _, weight in others])
    try:
        if not others:
            return opening.open_source(source, **options)
        paths = [source, *(path for path, _ in others)]
        return opening.open_mixture(paths, weights=weights, **options)
    except TypeError as cause:
        raise click.UsageError(str(cause)) from cause


def _weights(own: float | None, others: list[float | None]) -> list[float] | None:
    """A weight for each dataset, or None where there are none at all."""
    every = [own, *others]
    given = [weight for weight in every if weight is not None]
    if not others and given:
        raise click.UsageError("--weight is for a mixture: name the other datasets by --with SRC=WEIGHT")
    if given and len(given) < len(every):
        raise click.UsageError("either every dataset has a weight (--weight, --with SRC=WEIGHT) or none")
    return given or None


def source_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """SRC and how to open it; the command gets them as ``source`` and ``how``, which is for :func:`open_source`.

    The command's class is :class:`~rlds2buf.cli.command.Command`.
    """

    @functools.wraps(command)
    def with_how(*, split: str | None, format_: str | None, option: dict[str, Any], **others: Any) -> Any:
        changes = collect(others)
        twice = sorted(changes.keys() & option.keys())
        if twice:
            raise click.UsageError(f"{twice[0]} is given twice, by -O and by --{twice[0].replace('_', '-')}")
        try:
            return command(how={"split": split, "format": format_, **option, **changes}, **others)
        except Rlds2bufError as error:
            if error.source is None:
                error.source = others["source"]  # for --json
            raise

    decorated: Callable[..., Any] = with_how
    for option in (*reversed(OPTIONS), *reversed(_reading())):
        decorated = _added(option, decorated)
    return path_argument("source", metavar="SRC")(decorated)


def _added(option: click.Option, command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with this option, as click's own decorators note it."""
    noted = command.__dict__.setdefault("__click_params__", [])
    noted.append(option)
    return command


def _reading() -> tuple[click.Option, ...]:
    return (
        SectionOption(
            ["--split"],
            section=_READING,
            metavar="SPLIT",
            help="Which part, as in TFDS: train, train[:10%], train[5:20], a+b.",
        ),
        SectionOption(["--format", "format_"], section=_READING, metavar="NAME", help="Override format detection."),
        SectionOption(
            ["-O", "--option"],
            section=_READING,
            multiple=True,
            callback=pairs,
            metavar="NAME=VALUE",
            help="An option of the format's own reader; may be repeated.",
        ),
    )


_READING = "Reading SRC"


def pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """``("a=1", "b=x")`` as ``{"a": 1, "b": "x"}``: values are JSON, or else text."""
    found: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not (equals and name.isidentifier()):
            raise click.BadParameter(f"expected NAME=VALUE, got {value!r}", ctx, parameter)
        if name in ("split", "format") and parameter.name == "option":  # a writer may have options called so
            raise click.BadParameter(f"use --{name}", ctx, parameter)
        try:
            found[name] = parse_json(text)
        except ValueError:
            found[name] = text
    return found
