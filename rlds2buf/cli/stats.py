"""``rlds2buf stats``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlds2buf.cli.arguments import json_flag, nonfinite_flag, open_source, source_arguments
from rlds2buf.cli.command import Command
from rlds2buf.cli.output import field_order, number, plain, print_json, print_table, print_warnings
from rlds2buf.cli.source_options import byte_count

if TYPE_CHECKING:
    from rlds2buf.numbers.dataset_numbers import FieldStatistics, Statistics

__all__ = ["command"]

_FORMS = ("lerobot", "openpi", "octo", "openvla")
_SHOWN = ("count", "mean", "std", "min", "q01", "q10", "q50", "q90", "q99", "max")
_MOST_ROWS = 16


def _sample(ctx: click.Context, parameter: click.Parameter, value: str) -> int | str:
    if value == "all" or value.isdecimal():
        return value if value == "all" else int(value)
    raise click.BadParameter(f"expected a number of frames, or all, got {value!r}", ctx, parameter)


def _names(ctx: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    return [name for name in (value or "").split(",") if name]


@click.command(
    "stats",
    cls=Command,
    short_help="Mean, deviation, range and quantiles of every field.",
    examples={
        "rlds2buf stats hopper.hdf5": "ten exact numbers of each dimension, in one pass",
        "rlds2buf stats bridge_dataset --for openvla --mask action[:-1] --out dataset_statistics.json": "a file to "
        "train with",
    },
)
@source_arguments
@click.option("--for", "form", type=click.Choice(_FORMS), help="As the file that this program trains with.")
@click.option("--state", callback=_names, metavar="FIELDS", help="With --for: the robot's state, joined with commas.")
@click.option("--action", callback=_names, metavar="FIELDS", help="With --for: the action.  [default: all of it]")
@click.option("--mask", metavar="FIELD", help="With --for openvla: what is normalised: action[:-1].  [default: all]")
@click.option("--name", metavar="NAME", help="With --for openvla: the dataset's name there.")
@click.option(
    "--picture-sample",
    callback=_sample,
    default="1000",
    show_default=True,
    metavar="N|all",
    help="How many frames of each field of pictures are looked at; 0 for none.",
)
@click.option(
    "--final-transition",
    type=click.Choice(["drop", "keep"]),
    default="drop",
    show_default=True,
    help="Whether action and reward of last rows are padding, or real where nothing in the data says so.",
)
@nonfinite_flag
@click.option(
    "--on-invalid",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What to do with episodes that can't be read: stop, or leave them out.",
)
@click.option(
    "--memory",
    callback=byte_count,
    metavar="BYTES",
    help="Values that are held; more are kept in a temporary file.  [default: 1GiB]",
)
@click.option("--out", type=click.Path(dir_okay=False), metavar="FILE", help="Write the JSON there, at once.")
@click.option("--overwrite", is_flag=True, help="Replace FILE.")
@json_flag
def command(
    source: str,
    how: dict[str, Any],
    form: str | None,
    state: list[str],
    action: list[str],
    mask: str | None,
    name: str | None,
    out: str | None,
    overwrite: bool,
    as_json: bool,
    memory: int | None,
    **choices: Any,
) -> None:
    """Count, mean, deviation, range and quantiles of every dimension of every field of numbers.

    All are exact, and no picture is decoded for them; pictures are told by a sample. Of an episode's last row only
    the observation is counted, unless the action there is real. `convert --normalize` uses the same numbers.
    """
    from rlds2buf.summaries.files import write_file
    from rlds2buf.summaries.forms import as_form
    from rlds2buf.summaries.statistics_of import statistics

    if form is None and (state or action or mask or name):
        raise click.UsageError("--state, --action, --mask and --name are for --for")
    if memory is not None:
        choices["memory"] = memory
    with open_source(source, how) as opened:
        found = statistics(opened, progress=True, **choices)
    told = found.to_json() if form is None else as_form(found, form, state=state, action=action, mask=mask, name=name)
    if out is not None:
        write_file(Path(out), json.dumps(plain(told), allow_nan=False, indent=2) + "\n", overwrite=overwrite)
    if as_json or (form is not None and out is None):
        print_json(told)
    elif form is None:
        _print(found)
    if out is not None and not as_json:
        click.echo(f"{out}: written")


def _print(found: Statistics) -> None:
    click.echo(found.source)
    print_warnings(found.warnings)
    counts = [("episodes", number(found.episodes)), ("steps", number(found.steps))]
    print_table("counts", [*counts, ("transitions", number(found.transitions))])
    for title, pictures in (("numbers", False), ("pictures (from 0 to 1, by channel)", True)):
        fields = {name: field for name, field in found.fields.items() if field.is_picture == pictures}
        rows = [row for name in sorted(fields, key=field_order) for row in _rows(name, fields[name])]
        if rows:
            print_table(title, [("", *_SHOWN), *rows])
    print_table("left out", list(found.left_out.items()))


def _rows(name: str, field: FieldStatistics) -> list[tuple[str, ...]]:
    """A row for each dimension, of many the first ones."""
    shape = field.mean.shape
    columns = [getattr(field, key).reshape(-1).tolist() for key in _SHOWN]
    rows = [
        (_place(name, shape, i), *(number(value) for value in values))
        for i, values in enumerate(list(zip(*columns, strict=True))[:_MOST_ROWS])
    ]
    size = len(columns[0])
    return rows if size <= _MOST_ROWS else [*rows, (f"and {size - _MOST_ROWS:,} more of {name}: --json has them",)]


def _place(name: str, shape: tuple[int, ...], i: int) -> str:
    inside: list[str] = []
    for length in reversed(shape):
        i, at = divmod(i, length)
        inside.insert(0, str(at))
    return f"{name}[{', '.join(inside)}]" if inside else name
