"""Returns, advantages and value targets, as pure functions on arrays.

========================  ===========================  =====================================
function                  advantage                    target of the value function
========================  ===========================  =====================================
:func:`discounted_return` -                            (the return itself)
:func:`gae`               GAE(gamma, lam)              advantage + value
:func:`gae_rtg`           GAE(gamma, lam)              discounted return
:func:`vtrace`            V-trace policy gradient      V-trace
:func:`plain`             one-step TD error            discounted return
========================  ===========================  =====================================

Each serves rewards and costs alike.  :func:`successor_values` builds what the time-outs need, and
:func:`annotate` adds returns to a logged episode.
"""

from __future__ import annotations

from rlds2buf.returns.annotate import annotate, annotated_spec
from rlds2buf.returns.estimators import (
    Advantages,
    VTrace,
    discounted_return,
    gae,
    gae_rtg,
    plain,
    successor_values,
    vtrace,
)

__all__ = [
    "Advantages",
    "VTrace",
    "annotate",
    "annotated_spec",
    "discounted_return",
    "gae",
    "gae_rtg",
    "plain",
    "successor_values",
    "vtrace",
]
