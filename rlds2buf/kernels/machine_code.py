"""Machine code of kernels by numba, kept on disk for the next process where a folder can be written."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import tempfile
import types
from collections.abc import Callable, Mapping
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

__all__ = ["instruction", "machine_code"]


def machine_code(function: types.FunctionType, used: Mapping[str, Any], inline: str) -> Any:
    """What numba makes of a kernel: compiled without Python objects, running without the interpreter lock.

    The machine code is kept where numba keeps it: in ``NUMBA_CACHE_DIR``, beside the source, or in the
    user's own cache.  Where none of them can be written (containers, clusters) it is kept in a folder of
    the user's own in the temporary one, and where that can't be either, or is not safe, nowhere: each
    process then compiles anew.

    Args:
        function: of arrays and numbers.
        used: name to what the function means by it, in place of what its module has by that name.
        inline: ``"always"`` to have it compiled into its callers.
    """
    space = {**function.__globals__, **used}
    copy = types.FunctionType(function.__code__, space, function.__name__, function.__defaults__, function.__closure__)
    copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
    made = numba.njit(nogil=True, inline=inline)(copy)
    cache = _cache(copy)
    if cache is not None:
        made._cache = cache  # as njit(cache=True) does it, which takes numba's own class and no other folder
    return made


@functools.cache
def instruction(function: Callable[..., Any]) -> Any:
    """What numba makes of an instruction below the language."""
    return intrinsic(function)


class _Cache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """A cache on disk that saves time or does nothing: a full disk or a damaged file is no reason to fail.

    Of damaged files numba raises whatever there is, so every error counts as one.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with contextlib.suppress(Exception):
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(Exception):
            super().save_overload(sig, data)


def _cache(function: Callable[..., Any]) -> _Cache | None:
    with contextlib.suppress(RuntimeError):  # numba's word for "no folder that can be written"
        return _Cache(function)
    folder = _own_temporary_folder()
    if folder is None:
        return None
    given = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder
    try:
        return _Cache(function)
    except RuntimeError:
        return None
    finally:
        numba.config.CACHE_DIR = given


def _own_temporary_folder() -> str | None:
    """A folder that nobody else can write or replace: what is loaded from a cache is run; None if there is none."""
    try:
        parent = tempfile.gettempdir()
        folder = os.path.join(parent, f"rlds2buf-{os.geteuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        above, found = os.stat(parent), os.lstat(folder)
    except OSError:
        return None
    others_may_rename = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
    if others_may_rename or not stat.S_ISDIR(found.st_mode):
        return None
    return folder if found.st_uid == os.geteuid() and not found.st_mode & 0o077 else None
