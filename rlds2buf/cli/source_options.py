"""The options of every command that reads a dataset: what is done to SRC on its way."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import click

from rlds2buf.cli.command import SectionOption

__all__ = ["OPTIONS", "byte_count", "collect"]

_FIELDS = "Fields of SRC"
_EPISODES = "Episodes of SRC"
_LIMITS = "Limits of SRC"
_MIX = "More than one SRC"

_LENGTH = click.IntRange(min=0)


def _pairs(what: str) -> Callable[..., dict[str, str]]:
    def read(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for value in values:
            name, equals, text = value.partition("=")
            if not (name and equals and text):
                raise click.BadParameter(f"expected {what}, got {value!r}", ctx, parameter)
            if name in found:
                raise click.BadParameter(f"{name!r} is given twice; fields are joined with commas", ctx, parameter)
            found[name] = text
        return found

    return read


def _map(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str | list[str]]:
    pairs = _pairs("FIELD=SOURCE")(ctx, parameter, values)
    return {name: text.split(",") if "," in text else text for name, text in pairs.items()}


def _list(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    return [name for value in values for name in value.split(",") if name]


def _sample(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | int | None:
    """A fraction where it is written as one."""
    if value is None:
        return None
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError as cause:
        raise click.BadParameter(
            f"expected a fraction or a number of episodes, got {value!r}", ctx, parameter
        ) from cause


def byte_count(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A number of bytes, with a unit or without."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,15})\s*(?:([KMGT])i?B?|B)?", value, re.IGNORECASE)
    if match is None or not int(match[1]):
        raise click.BadParameter(f"expected a number of bytes such as 4GiB, got {value!r}", ctx, parameter)
    return int(match[1]) << 10 * " KMGT".index((match[2] or " ").upper())


def _resize(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | tuple[int, int] | None:
    if value is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[xX]([1-9]\d{0,4}))?", value)
    if match is None:
        raise click.BadParameter(f"expected N or HEIGHTxWIDTH, of 1 to 65536 each, got {value!r}", ctx, parameter)
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


def _with(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, float | None]]:
    found: list[tuple[str, float | None]] = []
    for value in values:
        path, equals, text = value.rpartition("=")
        try:
            weight = float(text) if equals and not os.path.exists(value) else None
        except ValueError:
            weight = None
        found.append((value, None) if weight is None else (path, weight))
    return found


OPTIONS = (
    SectionOption(
        ["--map"],
        section=_FIELDS,
        several=True,
        multiple=True,
        callback=_map,
        metavar="FIELD=SOURCE...",
        help="Make a field of others: reward=extras/r, observation=obs_*, observation=proprio,object (joined).",
    ),
    SectionOption(
        ["--drop"],
        section=_FIELDS,
        multiple=True,
        callback=_list,
        metavar="FIELD",
        help="Leave out a field, a nest or what a pattern matches; may be repeated.",
    ),
    SectionOption(["--float32"], section=_FIELDS, is_flag=True, help="Store float64 and float16 fields as float32."),
    SectionOption(
        ["--cast"],
        section=_FIELDS,
        several=True,
        multiple=True,
        callback=_pairs("FIELD=TYPE"),
        metavar="FIELD=TYPE...",
        help="Change a field's type: action=int64. A value that does not fit is an error.",
    ),
    SectionOption(
        ["--alignment"],
        section=_FIELDS,
        type=click.Choice(["sar", "ars", "rsa"]),
        help="What a row of SRC holds: state, action, its reward (sar, RLDS's own); action, its reward, the state "
        "it led to (ars); reward with that state, next action (rsa).",
    ),
    SectionOption(
        ["--reward-shift"],
        section=_FIELDS,
        type=click.IntRange(min=0),
        metavar="ROWS",
        help="Take each reward from so many rows further on.",
    ),
    SectionOption(
        ["--images"],
        section=_FIELDS,
        type=click.Choice(["decoded", "encoded"]),
        help="Pictures as pixels, or as the JPEG and PNG files they are.",
    ),
    SectionOption(
        ["--resize"], section=_FIELDS, callback=_resize, metavar="N|HxW", help="Scale pictures to this size."
    ),
    SectionOption(
        ["--max-bytes"],
        section=_LIMITS,
        callback=byte_count,
        metavar="BYTES",
        help="What one episode, or one thing in it, may take in memory beyond its bytes in the file: 4GiB.  "
        "[default: 1GiB]",
    ),
    SectionOption(
        ["--max-objects"],
        section=_LIMITS,
        type=click.IntRange(min=1),
        metavar="N",
        help="How many things (groups, strings) one episode may be made of.  [default: 1000000]",
    ),
    SectionOption(["--min-return"], section=_EPISODES, type=float, help="Keep episodes of at least this return."),
    SectionOption(["--max-return"], section=_EPISODES, type=float, help="Keep episodes of at most this return."),
    SectionOption(
        ["--min-length"], section=_EPISODES, type=click.IntRange(min=0), help="Keep episodes of at least so many rows."
    ),
    SectionOption(
        ["--max-length"], section=_EPISODES, type=click.IntRange(min=0), help="Keep episodes of at most so many rows."
    ),
    SectionOption(
        ["--where"],
        section=_EPISODES,
        metavar="EXPR",
        help="Keep episodes for which this holds: 'metadata/success and return > 10 and any(extras/cost > 0)'.",
    ),
    SectionOption(
        ["--sample"],
        section=_EPISODES,
        callback=_sample,
        metavar="FRACTION|N",
        help="Keep a fraction of the episodes (0.1), or so many (100).",
    ),
    SectionOption(
        ["--val-fraction"], section=_EPISODES, type=float, help="Split off this fraction for validation; see --part."
    ),
    SectionOption(
        ["--part"],
        section=_EPISODES,
        type=click.Choice(["train", "val"]),
        help="The side of that split to keep.  [default: train]",
    ),
    SectionOption(
        ["--seed"],
        section=_EPISODES,
        type=int,
        help="Random seed of --sample, --val-fraction and the order of a mixture.  [default: 0]",
    ),
    SectionOption(
        ["--with", "with_"],
        section=_MIX,
        multiple=True,
        callback=_with,
        metavar="SRC[=WEIGHT]",
        help="A further dataset, behind SRC or, with weights, mixed with it; may be repeated. Weights order and "
        "share what is written: every episode is written once, so sampling the result does not follow them; "
        "MixedBuffers in Python samples buffers by weight. The options above hold for each.",
    ),
    SectionOption(
        ["--weight"], section=_MIX, type=float, help="SRC's own weight beside those of --with: of the order."
    ),
)
"""What every command that reads a dataset takes."""


def collect(given: dict[str, Any]) -> dict[str, Any]:
    """Take the values of `OPTIONS` out of a command's arguments: those that were given, as open_source's."""
    found = {}
    for option in OPTIONS:
        value = given.pop(str(option.name))
        if value is not None and value != () and value != [] and value != {} and value is not False:
            found[str(option.name)] = value
    return found
