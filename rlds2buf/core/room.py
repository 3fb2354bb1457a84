"""Whether what is asked for fits into memory, told before it is tried."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from rlds2buf.errors import TooLarge

__all__ = ["ROOM_ENOUGH", "free_bytes", "require_room", "room_for"]

ROOM_ENOUGH = 1 << 28
"""Bytes that are not asked about: looking takes longer than having them."""
_LARGEST = 1 << 62
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""What a container may have: https://docs.kernel.org/admin-guide/cgroup-v2.html"""


def require_room(size: int, what: str) -> None:
    """Refuse to fill more memory than there is.

    Args:
        size: bytes that will be written.
        what: the arguments that ask for them, for the message.

    Raises:
        TooLarge: that many are not free.
    """
    if size <= ROOM_ENOUGH:
        return
    free = free_bytes()
    if size > (_LARGEST if free is None else free):
        raise TooLarge(f"{what} would take {size:,} bytes of memory, more than is free")


@contextlib.contextmanager
def room_for(what: str, size: int) -> Iterator[None]:
    """While memory is reserved that may be filled later, or never: what the system refuses is an error of ours.

    Args:
        what: the argument that asks for it, for the message.
        size: bytes, about.

    Raises:
        TooLarge: the system has not so much to give.
    """
    try:
        if size >= _LARGEST:
            raise MemoryError
        yield
    except (MemoryError, TooLarge) as cause:  # the latter, of one of several parts
        raise TooLarge(f"{what} would take {size:,} bytes of memory, more than the system gives") from cause


def free_bytes() -> int | None:
    """Memory that can be filled without harm; None where the system does not tell.

    What is available, or less where a container or this process may not have all of that.
    """
    found = [_available(), *map(_limit, _LIMITS)]
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    found.append(None if allowed == resource.RLIM_INFINITY else allowed)
    return min((size for size in found if size is not None), default=None)


def _available() -> int | None:
    with contextlib.suppress(OSError):
        if match := re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text()):
            return int(match[1]) * 1024
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _limit(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return None
