"""``rlds2buf validate``."""

from __future__ import annotations

from typing import Any

import click

from rlds2buf.cli.arguments import jobs_option, json_flag, nonfinite_flag, open_source, source_arguments
from rlds2buf.cli.command import Command
from rlds2buf.cli.failures import INVALID
from rlds2buf.cli.output import print_json

__all__ = ["command"]


@click.command(
    "validate",
    cls=Command,
    short_help="Check every episode and report broken rules.",
    examples={
        "rlds2buf validate hopper.hdf5": "every broken rule, with file, episode, step and field",
        "rlds2buf validate logs.csv --map 'observation=obs_*' --json": "of a log with column names of its own",
    },
)
@source_arguments
@nonfinite_flag
@jobs_option
@json_flag
@click.pass_context
def command(
    ctx: click.Context, source: str, how: dict[str, Any], allow_nonfinite: bool, jobs: int, as_json: bool
) -> None:
    """Check every episode and report broken rules, each with file, episode, step and field.

    Exits with 1 if there are errors; warnings are allowed.
    """
    from rlds2buf.pipeline.progress import Tracked
    from rlds2buf.pipeline.reading import jobs_for
    from rlds2buf.pipeline.validation import validate

    with open_source(source, how) as opened:
        tracked = Tracked(opened, "validate", jobs=jobs_for(opened, jobs))
        report = validate(tracked, allow_nonfinite=allow_nonfinite)
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(str(report))
    ctx.exit(0 if report.ok else INVALID)
