"""What must be put right in a process that is forked off: locks, and what is drawn.

A fork copies a lock as it is, held by a thread that the child does not have, and generators as they
are, so that all children draw the same.  So before a fork each registered object's lock is taken
(nothing is half done then), and in the child it is a new one; and each object learns the number of
the fork, from 1, counted by itself, to spawn new generators from.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

__all__ = ["fork_seed", "generation", "register", "seed_of"]

_PATIENCE_S = 10.0
"""How long a fork waits for locks, all together; a child whose parent did not get one may find work half done."""

_FORK = 0xF04C
_T = TypeVar("_T")
_numbers = itertools.count()
_mine = threading.local()
_generation = 0


@dataclasses.dataclass
class _Entry:
    """A registered object, what to call in a child, how to find its lock, and forks since it is there."""

    thing: weakref.ref[Any]
    forked: Callable[[Any, int], None]
    lock: Callable[[Any], Any] | None
    forks: int = 0


_living: dict[int, _Entry] = {}


def register(
    thing: _T, forked: Callable[[_T, int], None], *, lock: Callable[[_T], Any] | None = None, outer: bool = False
) -> None:
    """Have ``forked(thing, number)`` called in every child.

    Args:
        thing: kept alive by others.
        forked: a function that does not hold `thing`, such as one of its class.
        lock: gives the object's lock, see above.
        outer: its lock is taken before those of others.
    """
    number = next(_numbers) - (1 << 60) * outer
    _living[number] = _Entry(weakref.ref(thing, lambda _: _living.pop(number, None)), forked, lock)


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


def _things() -> list[tuple[Any, _Entry]]:
    found = [(entry.thing(), entry) for _, entry in sorted(_living.copy().items())]
    return [(thing, entry) for thing, entry in found if thing is not None]


def _before() -> None:
    _mine.taken = taken = []
    until = time.monotonic() + _PATIENCE_S
    for thing, entry in _things():
        lock = None if entry.lock is None else entry.lock(thing)
        if lock is not None and lock.acquire(timeout=max(0.0, until - time.monotonic())):
            taken.append(lock)
        entry.forks += 1


def _release() -> None:
    for lock in reversed(_mine.__dict__.pop("taken", [])):
        lock.release()


def generation() -> int:
    """How many forks there were from this package's loading to this process: another number in each child of one."""
    return _generation


def _in_child() -> None:
    global _generation
    _generation += 1
    _mine.__dict__.pop("taken", None)  # each object makes itself a new one
    for thing, entry in _things():
        number, entry.forks = entry.forks, 0
        entry.forked(thing, number)


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
