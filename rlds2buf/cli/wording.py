"""Messages speak of arguments, as Python has them; on the command line these are options."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from rlds2buf.cli.source_options import OPTIONS

__all__ = ["OWN", "READER_OPTIONS", "SPELT", "as_options", "as_target_option"]

READER_OPTIONS: Final = tuple("max_episode_steps infos features record episode_id policy consume external".split())
"""Arguments of sources that messages name; on the command line they are given by ``-O``."""

_OTHERS: Final = (
    "split format to on_invalid final_transition allow_nonfinite overwrite resume add allow_eviction "
    "terminal_discount error_buffer samples_per_insert normalize normalize_stats"
).split()

OWN: Final[dict[str, tuple[str, ...]]] = {
    "sample": ("batch_size", "n_step", "gamma", "sequence_length"),
    "push": ("n_step", "gamma", "sequence_length", "stride", "chunk_length", "pattern", "policy_info", "timeout"),
    "stats": ("picture_sample", "state", "action", "mask", "memory"),
    "serve": tuple(
        "n_step gamma sequence_length stride chunk_length pattern policy_info max_size max_times_sampled "
        "min_size_to_sample priority_exponent port".split()
    ),
}
"""Arguments that are options of some commands; for others they may be those of what is written (``-T``)."""

SPELT: Final[dict[str, str]] = {
    **{option.name: option.opts[0] for option in OPTIONS if option.name is not None},
    "columns": "--map",
    **{name: f"--{name.replace('_', '-')}" for name in _OTHERS},
}
"""Arguments that are options of their own: name to option."""

_VALUE: Final = r"""'[^']*'|"[^"]*"|\[[^\[\]]*\]|\{[^{}]*\}|True|False|\d[\w.]*|N\b|"""
_ARGUMENT: Final = re.compile(rf"\b(?P<name>{'|'.join([*SPELT, *READER_OPTIONS])})=(?P<value>{_VALUE})")
_SUBJECT: Final = re.compile(r"^(?P<name>[a-z]+(?:_[a-z]+)*)(?=: | must )")


def as_options(text: str, command: str = "") -> str:
    """A sentence about arguments of functions, in the words of the command line, or of one command.

    >>> as_options("name the columns, for example columns={'observation': 'obs_*', 'reward': 'r'}, or drop=['action']")
    'name the columns, for example --map observation=obs_* reward=r, or --drop action'
    >>> as_options("on_invalid='repair' mends it; infos=False leaves these out; resume=True goes on")
    '--on-invalid repair mends it; -O infos=false leaves these out; --resume goes on'
    >>> as_options("n_step must be at least 1", "sample")
    '--n-step must be at least 1'
    >>> as_options("infos must be true or false, got 'maybe'")
    "-O infos must be true or false, got 'maybe'"
    """
    own = OWN.get(command, ())
    text = _SUBJECT.sub(lambda match: _subject(match["name"], own), text)
    return _ARGUMENT.sub(_as_option, text)


def as_target_option(text: str, given: Collection[str]) -> str:
    """A sentence about one of the options that were given with ``-T``.

    >>> as_target_option("num_shards must be at least 1, got 0", ["num_shards"])
    '-T num_shards must be at least 1, got 0'
    """
    return f"-T {text}" if text.partition(" ")[0].rstrip(":") in given else text


def _subject(name: str, own: Sequence[str]) -> str:
    if name in own:
        return f"--{name.replace('_', '-')}"
    return f"-O {name}" if name in READER_OPTIONS else SPELT.get(name, name)


def _as_option(match: re.Match[str]) -> str:
    name, value = match["name"], _value(match["value"])
    if name not in SPELT:
        return f"-O {name}={value if isinstance(value, str) else json.dumps(value)}"
    option = SPELT[name]
    if value is True or value == "":
        return option
    if isinstance(value, dict):
        return " ".join([option, *(f"{key}={_joined(one)}" for key, one in value.items())])
    return f"{option} {_joined(value)}"


def _joined(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
