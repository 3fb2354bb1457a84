"""Kernels: loops that numba compiles as soon as that pays, and that numpy does until then.

Loading numba takes half a second, compiling a kernel about as long, and both are done on its first call
at the earliest.  A kernel with a twin in numpy, which gives the same to the last bit, waits for neither: the twins
do the work until they have taken so long together that it would have paid.  Machine code is kept on disk (see
kernels/machine_code.py); where it lies there already, the change comes after a few hundred batches.
"""

from __future__ import annotations

import glob
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Instruction", "Kernel", "compiled"]

_PATIENCE, _PATIENCE_KEPT = 1.0, 0.02
"""Seconds that twins may take before kernels are compiled, and before machine code that is kept is loaded.

Much less than loading takes where it is kept: whoever calls so often will go on, and each call is faster then."""


class Kernel:
    """A loop over arrays; called like a function.

    Attributes:
        function: of arrays and numbers, as numba compiles it.
        inline: ``"always"`` to have it compiled into its callers.
        twin: what does the same with numpy, or None.
        seconds: of the arguments: about how long the twin will take, or what it leaves to others; None where that is
            soon seen.
        machine: what numba made of it, once it did.
    """

    # Calls go straight to what is in the slot: a method of this class would be felt in every batch.
    __slots__ = ("__call__", "_patience", "function", "inline", "machine", "seconds", "twin")

    spent = 0.0
    """Seconds that the twins of all kernels took in this process."""
    told = False
    """Whether it was said that something is compiled."""

    def __init__(
        self,
        function: Any,
        *,
        inline: str = "never",
        twin: Callable[..., Any] | None = None,
        seconds: Callable[..., float] | None = None,
    ) -> None:
        self.function, self.inline, self.twin, self.seconds = function, inline, twin, seconds
        self.machine: Any = None
        self._patience: float | None = None
        self.__call__: Callable[..., Any] = self._early

    def compile(self) -> Any:
        """Use machine code from now on, which is returned."""
        self.__call__ = self._machine_code()
        return self.machine

    def _machine_code(self) -> Any:
        if self.machine is None:
            from rlds2buf.kernels.machine_code import instruction, machine_code

            used = {}
            for name in self.function.__code__.co_names:
                value = self.function.__globals__.get(name)
                if isinstance(value, Kernel):
                    used[name] = value._machine_code()
                elif isinstance(value, Instruction):
                    used[name] = instruction(value.function)
            self.machine = machine_code(self.function, used, self.inline)
        return self.machine

    def pays(self, seconds: float) -> bool:
        """Whether machine code should do what takes so long in another way; where not, the time is noted.

        For what has no twin, but another way altogether.
        """
        if self.machine is not None or self._is_worth(seconds):
            return True
        Kernel.spent += seconds
        return False

    def _is_worth(self, seconds: float) -> bool:
        if self._patience is None:
            self._patience = _PATIENCE_KEPT if _is_kept(self.function) else _PATIENCE
        return Kernel.spent + seconds >= self._patience

    def _early(self, *arguments: Any) -> Any:
        """A call before there is machine code."""
        expected = 0.0 if self.seconds is None else self.seconds(*arguments)
        if not self._is_worth(expected) and self.twin is not None:
            start = time.perf_counter()
            try:
                return self.twin(*arguments)
            finally:
                Kernel.spent += expected or time.perf_counter() - start
        if self._patience == _PATIENCE and not Kernel.told:
            Kernel.told = True
            if sys.stderr is not None and sys.stderr.isatty():
                print("rlds2buf: compiling, once; this takes a few seconds", file=sys.stderr, flush=True)
        return self.compile()(*arguments)


class Instruction:
    """What a kernel does below the language: made with ``numba.extending.intrinsic`` when a kernel is compiled.

    Args:
        function: as that takes it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError("an instruction is for compiled code, and can't be called otherwise")


def compiled(
    function: Callable[..., Any] | None = None,
    *,
    inline: str = "never",
    twin: Callable[..., Any] | None = None,
    seconds: Callable[..., float] | None = None,
) -> Any:
    """The decorator of every kernel; the arguments are :class:`Kernel`'s.

    Kernels may call one another.  One without a twin is compiled when it is first called.

    >>> import numpy as np
    >>> def total_numpy(values):
    ...     return float(np.cumsum(values)[-1])
    >>> @compiled(twin=total_numpy)
    ... def total(values):
    ...     sum = 0.0
    ...     for i in range(values.shape[0]):
    ...         sum += values[i]
    ...     return sum
    >>> total(np.ones(3))
    3.0
    """
    if function is None:
        return lambda kernel: compiled(kernel, inline=inline, twin=twin, seconds=seconds)
    return Kernel(function, inline=inline, twin=twin, seconds=seconds)


def _is_kept(function: Any) -> bool:
    """Whether there is machine code of a kernel on the disk, for all that can be seen without numba."""
    source = function.__code__.co_filename
    name = f"{os.path.splitext(os.path.basename(source))[0]}.{function.__qualname__}-*.nbi"
    given = os.environ.get("NUMBA_CACHE_DIR")
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    mine = os.path.join(tempfile.gettempdir(), f"rlds2buf-{os.geteuid()}") if hasattr(os, "geteuid") else ""
    folders = [os.path.join(folder, "*") for folder in (os.path.join(user, "numba"), mine)]
    folders.insert(0, os.path.join(os.path.dirname(source), "__pycache__"))
    if given:
        folders = [os.path.join(given, "*")]
    return any(glob.glob(os.path.join(folder, name)) for folder in folders)
