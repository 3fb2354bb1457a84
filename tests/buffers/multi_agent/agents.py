"""Buffers for two agents."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlds2buf
from rlds2buf import (
    MultiAgentSample,
)
from rlds2buf.core import nest
from tests.buffers.numbered import SPEC


def two(capacity: int = 50, **options: Any) -> Any:
    """A uniform policy ``a`` and a prioritized one ``b``."""
    given = {
        "a": (SPEC, {"capacity": capacity}),
        "b": (SPEC, {"kind": "prioritized", "capacity": capacity, "alpha": 1.0, "eps": 0.0}),
    }
    return rlds2buf.make_multi_agent(given, **{"seed": 3, **options})


def assert_same_batch(one: MultiAgentSample, other: MultiAgentSample) -> None:
    assert list(one) == list(other) and one.num_new == other.num_new
    for name in one:
        for (_, mine), (_, theirs) in zip(nest.flatten(one[name]), nest.flatten(other[name]), strict=True):
            np.testing.assert_array_equal(mine, theirs)
