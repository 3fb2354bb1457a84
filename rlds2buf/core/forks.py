"""What must be put right in a process that is forked off: locks, and what is drawn.

A fork copies a lock as it is, held by a thread that the child does not have, and generators as they
are, so that all children draw the same.  So before a fork each registered object's lock is taken
(nothing is half done then), and in the child it is a new one; and each object learns the number of
the fork, from 1, counted by itself, to spawn new generators from.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
import weakref
from typing import Any

import numpy as np

__all__ = ["fork_seed", "register", "seed_of"]

_PATIENCE_S = 10.0
"""How long a fork waits for locks, all together; a child whose parent did not get one may find work half done."""

_FORK = 0xF04C
_living: dict[int, weakref.ref[Any]] = {}
_numbers = itertools.count()
_mine = threading.local()


def register(thing: Any, *, outer: bool = False) -> None:
    """Have ``thing._forked(number)`` called in every child; with an attribute ``_lock`` see above.

    Args:
        thing: kept alive by others.
        outer: its lock is taken before those of others.
    """
    number = next(_numbers) - (1 << 60) * outer
    _living[number] = weakref.ref(thing, lambda _: _living.pop(number, None))
    thing._fork_count = 0


def seed_of(seed: Any) -> np.random.SeedSequence:
    """What ``numpy.random.default_rng(seed)`` starts from; of a generator something that its state decides."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    if isinstance(seed, np.random.Generator | np.random.BitGenerator):
        state = seed.bit_generator.state if isinstance(seed, np.random.Generator) else seed.state
        return np.random.SeedSequence(int.from_bytes(hashlib.sha256(repr(state).encode()).digest()[:16], "little"))
    return np.random.SeedSequence(seed)


def fork_seed(seed: np.random.SeedSequence, number: int) -> np.random.SeedSequence:
    """The seed of what the `number`-th fork draws.

    >>> [int(fork_seed(np.random.SeedSequence(7), number).generate_state(1)[0]) % 1000 for number in (1, 2)]
    [486, 581]
    """
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, _FORK, number))


def _things() -> list[Any]:
    found = [reference() for _, reference in sorted(_living.copy().items())]
    return [thing for thing in found if thing is not None]


def _before() -> None:
    _mine.taken = taken = []
    until = time.monotonic() + _PATIENCE_S
    for thing in _things():
        lock = getattr(thing, "_lock", None)
        if lock is not None and lock.acquire(timeout=max(0.0, until - time.monotonic())):
            taken.append(lock)
        thing._fork_count += 1


def _release() -> None:
    for lock in reversed(_mine.__dict__.pop("taken", [])):
        lock.release()


def _in_child() -> None:
    _mine.__dict__.pop("taken", None)  # each object makes itself a new one
    for thing in _things():
        number, thing._fork_count = thing._fork_count, 0
        thing._forked(number)


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
