"""Arguments of the commands that fill a Reverb table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

__all__ = ["invalid_option", "pattern_options", "table_options"]

_SELECTORS = ["uniform", "prioritized", "fifo", "lifo", "max_heap", "min_heap"]

invalid_option = click.option(
    "--on-invalid",
    type=click.Choice(["raise", "skip", "repair"]),
    default="raise",
    show_default=True,
    help="What to do with invalid episodes: stop, leave them out, or mend their flags.",
)

_PATTERN = (
    click.option(
        "--pattern",
        type=click.Choice(["trajectory", "transition", "episode", "acme-sequence", "acme-episode", "dopamine"]),
        default="trajectory",
        show_default=True,
        help="What the items are: TF-Agents trajectories, Acme transitions, whole episodes as trajectories, Acme "
        "sequences or episodes of steps, or Dopamine's replay elements.",
    ),
    click.option("--sequence-length", type=int, default=2, show_default=True, help="Frames per trajectory."),
    click.option("--stride", type=int, default=1, show_default=True, help="Frames from one trajectory to the next."),
    click.option("--pad", is_flag=True, help="Fill episodes shorter than a trajectory with border frames."),
    click.option("--tile", is_flag=True, help="With --pad: also begin trajectories at every later frame."),
    click.option("--cross-episodes", is_flag=True, help="Let trajectories run over episode borders."),
    click.option(
        "--terminal-discount",
        type=click.Choice(["transition", "boundary"]),
        default="transition",
        show_default=True,
        help="Which frame of a terminated episode has discount 0: the one into the end, or the last (TF-Agents).",
    ),
    click.option("--policy-info", metavar="FIELD", help="The extra step field that becomes policy_info."),
    click.option("--n-step", type=int, default=1, show_default=True, help="Steps per transition (Acme's, Dopamine's)."),
    click.option("--gamma", type=float, default=1.0, show_default=True, help="Discount of n-step transitions."),
    click.option("--extra", "extras", multiple=True, metavar="FIELD", help="An extra step field for Acme's items."),
    click.option(
        "--end-of-episode",
        type=click.Choice(["zero_pad", "truncate", "write"]),
        default="zero_pad",
        show_default=True,
        help="Acme sequences that an episode's end cuts: fill with zeros, shorten, or take the last steps.",
    ),
    click.option("--stack", type=int, default=1, show_default=True, help="Frames per state of Dopamine's elements."),
    click.option(
        "--priority",
        default="1",
        show_default=True,
        help="Item priority: a number, or the name of a step field, such as extras/td_error.",
    ),
    click.option("--chunk-length", type=int, help="Steps per chunk.  [default: 16, fewer where steps are large]"),
)

_TABLE = (
    click.option("--table", default="replay", show_default=True, metavar="NAME", help="The table's name."),
    click.option("--max-size", type=int, help="Items it holds at most.  [default: twice the data's, at least 1000000]"),
    click.option(
        "--sampler",
        type=click.Choice(_SELECTORS),
        default="uniform",
        show_default=True,
        help="Which items are sampled.",
    ),
    click.option(
        "--remover",
        type=click.Choice(_SELECTORS),
        default="fifo",
        show_default=True,
        help="Which item is evicted first when the table is full.",
    ),
    click.option(
        "--priority-exponent", type=float, default=1.0, show_default=True, help="Exponent of prioritized selection."
    ),
    click.option(
        "--max-times-sampled", type=int, default=0, show_default=True, help="Samples per item; 0: any number."
    ),
    click.option(
        "--min-size-to-sample", type=int, default=1, show_default=True, help="Items before anything is sampled."
    ),
    click.option("--samples-per-insert", type=float, help="Samples per item that the rate limiter aims at."),
    click.option("--error-buffer", type=float, help="How far samples may be ahead or behind that."),
)


def pattern_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What the items are; the command gets them as ``items``, keyword arguments of :func:`rlds2buf.push`."""
    names = (
        "pattern sequence_length stride pad tile cross_episodes terminal_discount policy_info n_step gamma extras "
        "end_of_episode stack priority chunk_length"
    ).split()

    @functools.wraps(command)
    def collected(**given: Any) -> Any:
        items = {name: given.pop(name) for name in names}
        items["priority"] = _number(items["priority"])
        return command(items=items, **given)

    return _with(_PATTERN, collected)


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How the table samples and removes; the command gets it as ``settings``, for TableSpec."""
    names = (
        "table max_size sampler remover priority_exponent max_times_sampled min_size_to_sample samples_per_insert "
        "error_buffer"
    ).split()

    @functools.wraps(command)
    def collected(**given: Any) -> Any:
        settings = {name: given.pop(name) for name in names}
        settings["name"] = settings.pop("table")
        return command(settings=settings, **given)

    return _with(_TABLE, collected)


def _with(options: tuple[Any, ...], command: Callable[..., Any]) -> Callable[..., Any]:
    for add in reversed(options):
        command = add(command)
    return command


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
