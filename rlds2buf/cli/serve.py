"""``rlds2buf serve``."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import click

from rlds2buf.cli.arguments import json_flag, nonfinite_flag, open_source, source_arguments
from rlds2buf.cli.command import Command
from rlds2buf.cli.output import print_json, print_table
from rlds2buf.cli.push import print_report
from rlds2buf.cli.reverb_arguments import invalid_option, pattern_options, table_options

__all__ = ["command"]


@click.command(
    "serve",
    cls=Command,
    short_help="Start a Reverb server with a table filled from SRC.",
    examples={
        "rlds2buf serve hopper.hdf5 --table replay --port 8123": "fill a table, and serve until Ctrl-C",
        "rlds2buf serve hopper.hdf5 --sampler prioritized --sequence-length 16": "sequences, sampled by priority",
    },
)
@source_arguments
@table_options
@pattern_options
@click.option("--port", type=int, help="Port to listen on, on every network interface.  [default: any free port]")
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Load Reverb's latest checkpoint in DIR first, and write one.",
)
@invalid_option
@nonfinite_flag
@json_flag
def command(
    source: str,
    how: dict[str, Any],
    settings: dict[str, Any],
    items: dict[str, Any],
    as_json: bool,
    **choices: Any,
) -> None:
    """Start a Reverb server with a table shaped by SRC, fill it, and serve until interrupted.

    Needs dm-reverb: pip install 'rlds2buf[server]'.
    """
    from rlds2buf.reverb.serve import OPEN_TO_ALL, serve, table_of

    with open_source(source, how) as opened:
        serving = serve(opened, table_of(**settings), progress=True, **items, **choices)
    # Being interrupted is how serving ends, so it is no failure.
    with contextlib.suppress(KeyboardInterrupt, SystemExit), serving:
        if as_json:
            print_json(serving.to_json())
        else:
            print_report(serving.report)
            print_table("columns", list(serving.report.columns.items()))
            if serving.checkpoint:
                click.echo(f"checkpoint {serving.checkpoint}")
            click.echo(f"warning: {OPEN_TO_ALL}")
            click.echo(f"listening on {serving.listens}, that is on every network interface")
            click.echo(f"serving table {serving.table.name} at {serving.address}; Ctrl-C ends it")
        sys.stdout.flush()
        while True:
            time.sleep(3600)
