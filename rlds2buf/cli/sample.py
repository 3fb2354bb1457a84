"""``rlds2buf sample``."""

from __future__ import annotations

import os
from typing import Any

import click

from rlds2buf.cli.arguments import json_flag
from rlds2buf.cli.command import Command, path_argument
from rlds2buf.cli.output import describe_columns, field_order, number, print_json, print_table
from rlds2buf.errors import SnapshotCorrupt, SnapshotError, SourceError, SourceNotFound

__all__ = ["command"]


@click.command(
    "sample",
    cls=Command,
    short_help="Draw a batch from a saved buffer.",
    examples={
        "rlds2buf sample hopper-buffer -n 256 --n-step 3 --gamma 0.99": "three-step transitions",
        "rlds2buf sample hopper-buffer -n 16 --sequence-length 8 --seed 0": "sequences, the same ones each time",
    },
)
@path_argument("buffer", metavar="BUFFER")
@click.option("-n", "--batch-size", type=click.IntRange(min=1), default=256, show_default=True, help="How many items.")
@click.option("--n-step", type=click.IntRange(min=1), default=1, show_default=True, help="Steps per transition.")
@click.option("--gamma", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Discount per step.")
@click.option("--sequence-length", type=click.IntRange(min=1), help="Sequences of so many steps, not transitions.")
@click.option("--seed", type=click.IntRange(min=0), help="Random seed; the same seed gives the same batch.")
@json_flag
def command(buffer: str, batch_size: int, seed: int | None, as_json: bool, **view: Any) -> None:
    """Draw a batch from a saved buffer, and show what a learner would get.

    BUFFER may also be a Reverb table (reverb://HOST:PORT/TABLE) or a Reverb checkpoint: items are drawn, and their
    rows shown.
    """
    from rlds2buf.buffers.buffer import Buffer
    from rlds2buf.buffers.loading import load_buffer
    from rlds2buf.reverb.draw_items import is_reverb

    if is_reverb(buffer):
        _show_items(buffer, batch_size, seed, as_json, view)
        return
    try:
        loaded = load_buffer(buffer, seed=seed, expect=Buffer)
    except (SnapshotCorrupt, SourceNotFound) as error:
        if what := _instead(buffer):
            raise SnapshotError(f"{buffer}: {what}") from error
        raise
    batch = loaded.sample(batch_size, **view)
    fields = describe_columns(batch.data._asdict())
    if as_json:
        print_json(
            {
                "buffer": buffer,
                "kind": type(batch.data).__name__,
                "batch_size": batch_size,
                "table_size": batch.info.table_size,
                "fields": fields,
                "keys": batch.info.key,
            }
        )
        return
    click.echo(f"{buffer}: {type(batch.data).__name__} x {batch_size} of {number(batch.info.table_size)}")
    columns = ("field", "type", "min", "mean", "max")
    rows = [
        (name, f["type"], number(f["min"]), number(f["mean"]), number(f["max"]))
        for name, f in sorted(fields.items(), key=lambda field: field_order(field[0]))
    ]
    print_table("batch", [columns, *rows])


def _instead(path: str) -> str | None:
    """What a path is that is no saved buffer, for the message; None where nothing more is known of it."""
    from rlds2buf.pipeline.opening import open_source

    if not os.path.exists(path) or os.path.exists(os.path.join(path, "manifest.json")):
        return None
    try:
        with open_source(path) as source:
            return (
                f"a dataset ({source.format}), not a saved buffer; "
                f"`rlds2buf convert {path} BUFFER` makes one, and `rlds2buf inspect {path}` shows what it holds"
            )
    except SourceError:
        return "a file, not the folder of a saved buffer" if os.path.isfile(path) else None


def _show_items(uri: str, count: int, seed: int | None, as_json: bool, view: dict[str, Any]) -> None:
    from rlds2buf.reverb.draw_items import draw_items

    if view != {"n_step": 1, "gamma": 1.0, "sequence_length": None}:
        raise click.UsageError("the items of a Reverb table are as they are: steps and discounts are for saved buffers")
    drawn = draw_items(uri, count, seed=seed)
    fields = describe_columns(drawn.columns)
    if as_json:
        print_json(
            {
                "buffer": uri,
                "kind": "items",
                "batch_size": count,
                "table_size": drawn.table_size,
                "fields": fields,
                "keys": drawn.key,
            }
        )
        return
    click.echo(f"{uri}: {count} items of {number(drawn.table_size)}")
    columns = ("field", "type", "min", "mean", "max")
    rows = [
        (name, f["type"], number(f["min"]), number(f["mean"]), number(f["max"]))
        for name, f in sorted(fields.items(), key=lambda field: field_order(field[0]))
    ]
    print_table("rows", [columns, *rows])
