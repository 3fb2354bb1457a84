"""``rlds2buf convert``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rlds2buf.cli.arguments import jobs_option, json_flag, nonfinite_flag, open_source, pairs, source_arguments
from rlds2buf.cli.command import Command, FormatName, path_argument
from rlds2buf.cli.output import by_reason, number, print_json, print_table, print_warnings
from rlds2buf.cli.wording import as_options, as_target_option
from rlds2buf.errors import tell

if TYPE_CHECKING:
    from rlds2buf.pipeline.conversion import ConvertReport

__all__ = ["command"]


def _ways(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``("action=q01_q99,reward=mean_std",)`` as a dict."""
    found: dict[str, str] = {}
    for pair in ",".join(values).split(",") if values else ():
        name, equals, way = pair.partition("=")
        if not (name and equals and way) or name in found:
            raise click.BadParameter(f"expected FIELD=WAY, each field once, got {pair!r}", ctx, parameter)
        found[name] = way
    return found


@click.command(
    "convert",
    cls=Command,
    short_help="Validate SRC and convert it to DST.",
    examples={
        "rlds2buf convert hopper.hdf5 hopper-buffer": "a dataset becomes a replay buffer on disk",
        "rlds2buf convert hopper.hdf5 hopper-rlds --to rlds --min-return 1000": "or another dataset, filtered",
    },
)
@source_arguments
@path_argument("target", metavar="DST")
@click.option(
    "--to",
    type=FormatName("target_names"),
    default=None,
    help="What DST becomes; without it a D4RL file where DST is named like one, and else a buffer.",
)
@click.option(
    "-T",
    "--to-option",
    "to_option",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="An option of the format's own writer, as `rlds2buf formats NAME` lists them; may be repeated.",
)
@click.option(
    "--on-invalid",
    type=click.Choice(["raise", "skip", "repair"]),
    default="raise",
    show_default=True,
    help="What to do with invalid episodes: stop, leave them out, or mend their flags (and damaged LeRobot sets).",
)
@click.option(
    "--final-transition",
    type=click.Choice(["drop", "keep"]),
    default="drop",
    show_default=True,
    help="Whether the last row's action and reward are padding, or real.",
)
@nonfinite_flag
@click.option(
    "--add",
    metavar="NAMES",
    default="",
    callback=lambda _context, _parameter, names: [name.strip() for name in names.split(",")] if names else [],
    help="Returns to add as extra columns, with commas: return_to_go, discounted_return, cost_to_go, discounted_cost.",
)
@click.option("--gamma", type=float, default=0.99, show_default=True, help="Discount per step of --add.")
@click.option(
    "--normalize",
    multiple=True,
    callback=_ways,
    metavar="FIELD=WAY",
    help="Write a field on one scale, q01_q99, mean_std or min_max: action[:-1]=q01_q99; with commas or repeated.",
)
@click.option(
    "--normalize-stats",
    metavar="FILE",
    help="By the statistics in FILE (`stats --json --out FILE`), not by those of what is written.",
)
@click.option("--overwrite", is_flag=True, help="Replace DST, once the new one is whole.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on where a killed conversion of the same data stopped; keep what there is if this one is interrupted.",
)
@jobs_option
@json_flag
def command(
    source: str,
    how: dict[str, Any],
    target: str,
    to: str | None,
    to_option: dict[str, Any],
    as_json: bool,
    **choices: Any,
) -> None:
    """Validate SRC and convert it to DST.

    DST becomes a folder that `rlds2buf sample` and load_buffer() open, or what --to says: an RLDS folder, a Minari
    dataset, a D4RL file, or a folder from which a Reverb server starts.
    """
    from rlds2buf.formats.registry import is_resumable
    from rlds2buf.pipeline.conversion import convert
    from rlds2buf.pipeline.opening import format_of_target, open_sink

    if not target:
        raise click.UsageError("DST is empty")
    overwrite, resume = choices.pop("overwrite"), choices.pop("resume")
    try:
        to = to or format_of_target(target).name
        sink = open_sink(target, to=to, overwrite=overwrite, resume=resume, **to_option)
    except (TypeError, ValueError) as cause:
        raise click.UsageError(as_target_option(str(cause), to_option)) from cause
    how = {**how, "repair": choices["on_invalid"] == "repair"}
    with open_source(source, how) as opened, _told_how_to_go_on(is_resumable(to), resume):
        report = convert(opened, sink, progress=True, **choices)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)


@contextlib.contextmanager
def _told_how_to_go_on(resumable: bool, resume: bool) -> Iterator[None]:
    """Say to whoever interrupts a conversion what is left of it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        if resume:
            tell(stopped, advice="the same command goes on from here")
        elif resumable:
            tell(stopped, advice="nothing is kept (with resume=True from the start, a later run goes on)")
        raise


def _print(report: ConvertReport) -> None:
    click.echo(f"{report.source} -> {report.sink}")
    print_warnings(report.warnings)
    rows: list[tuple[Any, ...]] = [
        ("episodes", number(report.episodes), f"of {number(report.read)} read"),
        ("steps", number(report.steps)),
        ("items", number(report.items)),
        ("seconds", f"{report.seconds:.3g}", f"{number(int(report.steps_per_second))} steps/s"),
    ]
    if report.resumed:
        rows[-1] = ("seconds", f"{report.seconds:.3g}")
        rows.append(("resumed", f"behind {number(report.resumed)} episodes", "that an earlier run had read"))
    print_table("written", rows)
    print_table("left out (episodes, by rule)", [(rule, number(n)) for rule, n in report.rejected.most_common()])
    print_table("changed (by rule)", [(rule, number(n)) for rule, n in report.repaired.most_common()])
    print_table("notes", [(note,) for note in report.notes])
    print_table("not held by the output's format", by_reason(report.lost))
    for issue in report.issues:
        click.echo(f"  {as_options(str(issue))}")
