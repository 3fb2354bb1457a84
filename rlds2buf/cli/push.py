"""``rlds2buf push``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rlds2buf.cli.arguments import json_flag, nonfinite_flag, open_source, source_arguments
from rlds2buf.cli.command import Command
from rlds2buf.cli.output import number, print_json, print_table
from rlds2buf.cli.reverb_arguments import invalid_option, pattern_options

if TYPE_CHECKING:
    from rlds2buf.reverb.push import PushReport

__all__ = ["command", "print_report"]


@click.command(
    "push",
    cls=Command,
    short_help="Validate SRC and push it to a Reverb table.",
    examples={
        "rlds2buf push hopper.hdf5 --server localhost:8123 --table replay": "two-step trajectories, as TF-Agents' own",
        "rlds2buf push hopper.hdf5 --server a:8123 --table replay --resume push.journal": "go on, or push what is new",
    },
)
@source_arguments
@click.option(
    "--server", "servers", multiple=True, required=True, metavar="HOST:PORT", help="Where Reverb runs; may be repeated."
)
@click.option("--table", required=True, metavar="NAME", help="The table's name.")
@pattern_options
@click.option(
    "--resume", metavar="JOURNAL", help="A file that records what is acknowledged; send only what is not in it."
)
@click.option(
    "--timeout", type=float, default=60.0, show_default=True, help="Seconds without progress before giving up."
)
@click.option(
    "--check-counts/--no-check-counts",
    default=True,
    show_default=True,
    help="Fail when the table's own counts say that items are missing; others may write to it meanwhile.",
)
@click.option("--allow-eviction", is_flag=True, help="Push more items than the table has room for.")
@click.option(
    "--keep-existing",
    is_flag=True,
    help="Leave priorities that a learner has changed; needs --resume, which tells what is there.",
)
@click.option(
    "--distinct-by",
    type=click.Choice(["content", "source", "number"]),
    default="content",
    show_default=True,
    help="Equal episodes pushed from several sources: the same items, or items of their own; number: as 0.1.0 had it.",
)
@invalid_option
@nonfinite_flag
@json_flag
def command(
    source: str,
    how: dict[str, Any],
    servers: tuple[str, ...],
    table: str,
    items: dict[str, Any],
    as_json: bool,
    **choices: Any,
) -> None:
    """Validate SRC and push it to a table of running Reverb servers. Pushing it again doubles nothing.

    Needs neither TensorFlow nor dm-reverb.
    """
    from rlds2buf.reverb.push import push

    with open_source(source, how) as opened:
        report = push(opened, servers, table, progress=True, **items, **choices)
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report)


def print_report(report: PushReport) -> None:
    """The report as text."""
    done = report.conversion
    click.echo(f"{done.source} -> {done.sink}")
    rate = 0 if not done.seconds else int(report.acknowledged / done.seconds)
    rows: list[tuple[Any, ...]] = [
        ("episodes", number(done.episodes), f"of {number(done.read)} read"),
        ("items", number(report.items)),
        ("acknowledged", number(report.acknowledged), f"in {done.seconds:.3g} s, {number(rate)} items/s"),
    ]
    if report.new is not None and report.new != report.acknowledged:
        rows.append(("new", number(report.new), "by the servers' own count, since the push or its journal began"))
    if report.resumed:
        rows.append(("passed over", number(report.resumed), "acknowledged in an earlier run"))
    if report.already_there:
        rows.append(("there already", number(report.already_there)))
    if report.reconnects or report.restarts:
        rows.append(("reconnections", number(report.reconnects), f"{report.restarts} server restarts"))
    print_table("pushed", rows)
    sizes = [(one.address, number(one.size_before), "->", number(one.size_after), "items") for one in report.servers]
    print_table(f"table {report.table}", sizes)
    print_table("left out (episodes, by rule)", [(rule, number(n)) for rule, n in done.rejected.most_common()])
    for note in report.notes:
        click.echo(f"  {note}")
