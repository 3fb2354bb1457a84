"""The patterns by name."""

from __future__ import annotations

from rlds2buf.formats.reverb.patterns.base import Pattern
from rlds2buf.formats.reverb.patterns.trajectories import EpisodePattern, TrajectoryPattern
from rlds2buf.formats.reverb.patterns.transitions import TransitionPattern

__all__ = ["PATTERNS", "PATTERN_OPTIONS", "make_pattern"]

PATTERNS = ("trajectory", "transition", "episode")
PATTERN_OPTIONS = (
    "sequence_length",
    "stride",
    "pad",
    "tile",
    "cross_episodes",
    "terminal_discount",
    "policy_info",
    "n_step",
    "gamma",
    "extras",
)
"""What :func:`make_pattern` takes beside the kind."""


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
    extras: tuple[str, ...] = (),
) -> Pattern:
    """The pattern of that kind: ``"trajectory"``, ``"transition"`` or ``"episode"``.

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
        return TransitionPattern(n_step=n_step, gamma=gamma, extras=extras)
    if kind == "episode":
        return EpisodePattern(terminal_discount=terminal_discount, policy_info=policy_info)
    raise ValueError(f"pattern must be 'trajectory', 'transition' or 'episode', got {kind!r}")
