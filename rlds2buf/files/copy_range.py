"""Bytes from one file to another without their passing through this process, where the system can."""

from __future__ import annotations

import errno
import os
from typing import Final

__all__ = ["copy_range"]

_BLOCK: Final = 1 << 24
_CANT: Final = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM)


def copy_range(source: int, target: int, start: int, length: int) -> None:
    """Append a range of one open file to another.

    Args:
        source, target: file descriptors; the target is written where it stands.
        start, length: in bytes.

    Raises:
        OSError: as reading and writing do; EOFError: the source is shorter.
    """
    end, at = start + length, start
    try:
        while at < end and hasattr(os, "copy_file_range"):
            copied = os.copy_file_range(source, target, min(end - at, _BLOCK), at)
            if not copied:
                break
            at += copied
    except OSError as cause:
        if cause.errno not in _CANT:
            raise
    while at < end:
        block = memoryview(os.pread(source, min(end - at, _BLOCK), at))
        if not block:
            raise EOFError(f"the file ends at byte {at}, {end} are needed")
        at += len(block)
        while block:
            block = block[os.write(target, block) :]
