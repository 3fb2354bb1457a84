"""``rlds2buf demo``."""

from __future__ import annotations

import os

import click

from rlds2buf.cli.arguments import json_flag
from rlds2buf.cli.command import Command, path_argument
from rlds2buf.cli.output import number, print_json
from rlds2buf.errors import SnapshotExists

__all__ = ["command"]

_NAME = "cartpole.hdf5"


@click.command(
    "demo",
    cls=Command,
    short_help="Write a small dataset to try everything with.",
    examples={
        "rlds2buf demo": "write cartpole.hdf5 here",
        "rlds2buf demo /tmp/try && rlds2buf inspect /tmp/try/cartpole.hdf5": "write it there, and look at it",
    },
)
@path_argument("folder", metavar="[DIR]", default=".", required=False)
@json_flag
def command(folder: str, as_json: bool) -> None:
    """Write DIR/cartpole.hdf5, 100 short episodes in D4RL's layout. DIR is the current folder by default.

    Nothing that exists is overwritten.
    """
    from rlds2buf.pipeline.cartpole import cartpole_episodes
    from rlds2buf.pipeline.conversion import convert

    path = os.path.join(folder, _NAME)
    if os.path.lexists(path):
        raise SnapshotExists(
            f"{path} already exists, and nothing is overwritten: name another folder, or use it as it is"
        )
    report = convert(cartpole_episodes(), path, to="d4rl")
    if as_json:
        print_json({"path": path, "episodes": report.episodes, "steps": report.steps})
        return
    click.echo(f"{path}: {number(report.episodes)} episodes of CartPole, {number(report.items)} transitions")
    click.echo(f"next: rlds2buf inspect {path}")
