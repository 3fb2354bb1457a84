"""The patterns by name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from rlds2buf.core.options import check_types
from rlds2buf.formats.reverb.patterns.acme_steps import AcmeEpisodePattern, AcmeSequencePattern
from rlds2buf.formats.reverb.patterns.base import Pattern
from rlds2buf.formats.reverb.patterns.dopamine import DopaminePattern
from rlds2buf.formats.reverb.patterns.trajectories import EpisodePattern, TrajectoryPattern
from rlds2buf.formats.reverb.patterns.transitions import TransitionPattern

__all__ = ["PATTERNS", "PATTERN_OPTIONS", "make_pattern", "take_pattern"]

PATTERNS = ("trajectory", "transition", "episode", "acme-sequence", "acme-episode", "dopamine")


def make_pattern(
    kind: str = "trajectory",
    *,
    sequence_length: int = 2,
    stride: int = 1,
    pad: bool = False,
    tile: bool = False,
    cross_episodes: bool = False,
    terminal_discount: str = "transition",
    policy_info: str | None = None,
    n_step: int = 1,
    gamma: float = 1.0,
    extras: Sequence[str] = (),
    end_of_episode: str = "zero_pad",
    stack: int = 1,
) -> Pattern:
    """The pattern of that kind.

    Args:
        kind: ``"trajectory"``: TF-Agents' trajectories; ``"episode"``: one per episode; ``"transition"``: Acme's
            Transition; ``"acme-sequence"``, ``"acme-episode"``: Acme's Step, several of them or an episode's;
            ``"dopamine"``: Dopamine's ReplayElement.
        sequence_length: frames per trajectory or Acme's sequence.
        stride: frames from one trajectory or sequence to the next.
        pad: fill episodes shorter than a trajectory with border frames.
        tile: with `pad`: also begin trajectories at every later frame.
        cross_episodes: let trajectories run over episode borders.
        terminal_discount: which frame of a terminated episode has discount 0: ``"transition"``, the one into the end,
            or ``"boundary"``, the last, as TF-Agents' util has it.
        policy_info: the extra step field that becomes a trajectory's ``policy_info``.
        n_step: steps per transition, Dopamine's too.
        gamma: discount of n-step transitions.
        extras: the extra step fields that Acme's items carry.
        end_of_episode: what becomes of an Acme sequence that an episode's end cuts: ``"zero_pad"``, ``"truncate"`` or
            ``"write"``, see :class:`~rlds2buf.formats.reverb.patterns.acme_steps.AcmeSequencePattern`.
        stack: frames per state of Dopamine's.

    Raises:
        ValueError: another kind, or an argument out of range.

    >>> make_pattern("transition", n_step=3).text
    'transition n_step=3 gamma=1.0 extras='
    """
    if kind == "trajectory":
        return TrajectoryPattern(
            sequence_length,
            stride,
            pad=pad,
            tile=tile,
            cross=cross_episodes,
            terminal_discount=terminal_discount,
            policy_info=policy_info,
        )
    if kind == "transition":
        return TransitionPattern(n_step=n_step, gamma=gamma, extras=tuple(extras))
    if kind == "episode":
        return EpisodePattern(terminal_discount=terminal_discount, policy_info=policy_info)
    if kind == "acme-sequence":
        return AcmeSequencePattern(sequence_length, stride, end=end_of_episode, extras=tuple(extras))
    if kind == "acme-episode":
        return AcmeEpisodePattern(tuple(extras))
    if kind == "dopamine":
        return DopaminePattern(stack=stack, n_step=n_step, gamma=gamma)
    raise ValueError(f"pattern must be one of {', '.join(map(repr, PATTERNS))}, got {kind!r}")


PATTERN_OPTIONS = tuple(inspect.signature(make_pattern).parameters)[1:]
"""What :func:`make_pattern` takes beside the kind."""


def take_pattern(pattern: Pattern | str, options: dict[str, Any]) -> Pattern:
    """The pattern that was given as such, or as a kind and options; takes its own out of `options`.

    Raises:
        TypeError: an option is of the wrong type.
        ValueError: another kind, or an option out of range.

    >>> options = {"n_step": 3, "sampler": "fifo"}
    >>> take_pattern("transition", options).text, options
    ('transition n_step=3 gamma=1.0 extras=', {'sampler': 'fifo'})
    """
    if isinstance(pattern, Pattern):
        return pattern
    check_types(make_pattern, options)
    return make_pattern(pattern, **{name: options.pop(name) for name in PATTERN_OPTIONS if name in options})
