"""A buffer of each kind, and what is done to it."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlds2buf
from tests.buffers.numbered import SPEC, episode, transitions

MAKERS = {
    "circular": lambda seed: rlds2buf.make_circular(SPEC, 11, seed=seed),
    "prioritized": lambda seed: rlds2buf.make_prioritized(SPEC, 11, seed=seed),
    "stratified": lambda seed: rlds2buf.make_prioritized(SPEC, 11, seed=seed, stratified=True, normalise="buffer"),
    "reservoir": lambda seed: rlds2buf.make_reservoir(SPEC, 11, seed=seed),
    "sequences": lambda seed: rlds2buf.make_prioritized(
        SPEC, 11, seed=seed, storage_unit="sequences", item_length=2, normalise="buffer"
    ),
    "fragments": lambda seed: rlds2buf.make_circular(SPEC, 11, seed=seed, storage_unit="fragments"),
}


def change(buffer: Any, kind: str, rng: np.random.Generator, number: int) -> None:
    """One random operation."""
    choice = rng.integers(4)
    if choice == 0:
        buffer.add(episode(number, int(rng.integers(2, 10))))
    elif choice == 1:
        most = 9 if kind in ("fragments", "sequences") else 16  # more than fits, for single steps
        buffer.add(transitions(number, int(rng.integers(1, most))))
    elif choice == 2:
        buffer.add(transitions(number, 1))
    elif kind in ("prioritized", "stratified", "sequences") and len(buffer):
        buffer.update_priorities(buffer.sample(4).info.key, rng.random(4))
