"""Renaming that replaces nothing, and two names exchanged in one step, where the system can (Linux's renameat2)."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from typing import Any, Final

__all__ = ["exchange", "rename_new"]

_HERE: Final = -100
_NOREPLACE, _EXCHANGE = 1, 2
_CAN_NOT: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM})
"""What a system or file system answers that does not know the call, or does not let it through."""


def exchange(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Let two names, of files or folders on one file system, change places at once; False where that can't be done.

    Raises:
        OSError: it failed.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in "ab":
    ...     _ = (folder / name).write_text(name)
    >>> done = exchange(folder / "a", folder / "b")
    >>> (folder / "a").read_text() == ("b" if done else "a")
    True
    """
    return _rename(one, other, _EXCHANGE)


def rename_new(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> None:
    """Rename to a name that nothing has.

    Raises:
        FileExistsError: something has it (where the system can't tell in one step, an empty folder or a file that
            came in this moment is replaced).
        OSError: it failed.
    """
    if _rename(one, other, _NOREPLACE):
        return
    if os.path.lexists(other):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(other))
    os.rename(one, other)


def _rename(one: str | os.PathLike[str], other: str | os.PathLike[str], how: int) -> bool:
    call = _renameat2()
    if call is None:
        return False
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), how) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CAN_NOT:
        return False
    raise OSError(number, os.strerror(number), os.fspath(other))


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    try:
        call: Any = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    call.restype = ctypes.c_int
    return call  # type: ignore[no-any-return]
