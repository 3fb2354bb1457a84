"""What other libraries call the arguments of the factories."""

from __future__ import annotations

from typing import Final

from rlds2buf.core.arguments import named_well

__all__ = ["well_named"]

_VIEW: Final = "view={'%s': ...}, or %s= of sample()"

well_named = named_well(
    size="capacity",
    max_size="capacity",
    buffer_size="capacity",
    memory_size="capacity",
    max_length="capacity",
    maxlen="capacity",
    unit="capacity_unit",
    n_step=_VIEW % ("n_step", "n_step"),
    n_steps=_VIEW % ("n_step", "n_step"),
    gamma=_VIEW % ("gamma", "gamma"),
    sequence_length=_VIEW % ("sequence_length", "sequence_length"),
    offsets=_VIEW % ("offsets", "offsets"),
    delta_timestamps=_VIEW % ("offsets", "offsets"),
    stack=_VIEW % ("stack", "stack"),
    frame_stack=_VIEW % ("stack", "stack"),
    stack_num=_VIEW % ("stack", "stack"),
    context=_VIEW % ("context", "context"),
    context_size=_VIEW % ("context", "context"),
    batch_size="sample(batch_size)",
    rng="seed",
    random_seed="seed",
    path="directory",
    priority_exponent="alpha",
)
"""A decorator of the ``make_*`` functions; see :func:`rlds2buf.core.arguments.named_well`."""
