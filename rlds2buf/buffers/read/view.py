"""What a drawn row is turned into."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.buffers.read.offsets import Offsets, offsets_of, plain_offsets
from rlds2buf.core.arguments import fraction, guess, integer

__all__ = ["OPTIONS", "View", "plain_view"]


@dataclasses.dataclass(frozen=True)
class WindowOptions:
    """Which windows a view has: `offsets`, in steps or (with `fps`) seconds, `stack` and `context` say of what.

    `pad` is what stands where there is no such step.

    Attributes:
        windows: what that comes to; None for none.

    Raises:
        TypeError, ValueError: an option is of the wrong type, or makes no sense.
    """

    offsets: Any = None
    fps: float | None = None
    stack: int = 0
    context: int = 0
    pad: str = "edge"
    windows: Offsets | None = dataclasses.field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("stack", "context"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 0))
        object.__setattr__(self, "offsets", plain_offsets(self.offsets))
        windows = offsets_of(self.offsets, self.fps, self.stack, self.context, self.pad)
        object.__setattr__(self, "windows", windows)


_WINDOWS = ("offsets", "fps", "stack", "context", "pad")
_NO_WINDOWS = WindowOptions()


@dataclasses.dataclass(frozen=True)
class View:
    """Transitions over up to `n_step` steps, or sequences of `sequence_length` transitions.

    Sequences may have up to `burn_in` earlier steps before them, and the recurrent state to start
    from: of the extras named in `state`, ``"stored"`` or ``"zeros"``.  `whole` stands for items of
    several transitions as they were stored.  `decode` says whether pictures that are kept as files
    become pixels.  Of transitions some fields may be windows, as `around` says.  An `n_step` of two
    numbers is drawn for each of them anew, from the first to the second.

    Raises:
        ValueError: an argument is out of range, or both kinds are asked for.
    """

    n_step: int | tuple[int, int] = 1
    gamma: float = 1.0
    sequence_length: int | None = None
    burn_in: int = 0
    initial_state: str | None = None
    state: tuple[str, ...] = ()
    whole: bool = False
    decode: bool = True
    around: WindowOptions = _NO_WINDOWS

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_step", _horizon(self.n_step))
        object.__setattr__(self, "decode", bool(self.decode))
        object.__setattr__(self, "burn_in", integer("burn_in", self.burn_in, 0))
        if self.sequence_length is not None:
            object.__setattr__(self, "sequence_length", integer("sequence_length", self.sequence_length, 1))
        fraction("gamma", self.gamma)
        if self.sequence_length is not None and self.n_step != 1:
            raise ValueError("n_step and sequence_length can't be used together")
        names = (self.state,) if isinstance(self.state, str) else tuple(self.state)
        object.__setattr__(self, "state", names)
        if self.initial_state not in (None, "stored", "zeros"):
            raise ValueError(f"initial_state must be 'stored' or 'zeros', got {self.initial_state!r}")
        if (self.initial_state is None) != (not self.state):
            raise ValueError("initial_state and state, the extras that it is in, need each other")
        if self.sequence_length is None and (self.burn_in or self.state):
            raise ValueError("burn_in, initial_state and state are for sequences: give sequence_length too")
        if self.windows is not None and self.sequence_length is not None:
            raise ValueError("sequence_length can't be used together with offsets, stack or context")

    @property
    def windows(self) -> Offsets | None:
        """The windows asked for, if any."""
        return self.around.windows

    @functools.cached_property
    def longest(self) -> int:
        """The most steps that a transition may have."""
        return self.n_step if isinstance(self.n_step, int) else self.n_step[1]

    def horizons(self, uniforms: np.ndarray) -> np.ndarray:
        """An `n_step` ``[B] int64`` for each of ``uniforms [B] float64`` in [0, 1), where it is drawn."""
        first, last = (self.n_step, self.n_step) if isinstance(self.n_step, int) else self.n_step
        return first + np.minimum((uniforms * (last - first + 1)).astype(np.int64), last - first)

    @classmethod
    def of(cls, given: Mapping[str, Any] | None, *, whole: bool) -> View:
        """The view that a factory was given; where items have several steps (`whole`), of all unless it says else.

        Raises:
            TypeError: it is no mapping, or has an unknown name in it.
            ValueError: a value is out of range.
        """
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"view is a mapping of options of sample(), such as {{'n_step': 3}}, got {given!r}")
        options = dict(given or {})
        for name in options:
            if name not in OPTIONS:
                raise TypeError(f"view has no option {name!r}; {guess(str(name), OPTIONS)}")
        windows = {name: options.pop(name) for name in _WINDOWS if name in options}
        whole = whole and not _PARTS & {*options, *windows}
        return cls(**options, whole=whole, around=WindowOptions(**windows) if windows else _NO_WINDOWS)

    def changed(
        self,
        *,
        n_step: int | Sequence[int] | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
        decode: bool | None = None,
        offsets: Any = None,
        fps: float | None = None,
        stack: int | None = None,
        context: int | None = None,
        pad: str | None = None,
    ) -> View:
        """This view with what is given in place of its own; asking for one kind sets aside the other."""
        view = self
        if offsets is not None or stack is not None or context is not None or fps is not None or pad is not None:
            given = {"offsets": offsets, "fps": fps, "stack": stack, "context": context, "pad": pad}
            view = self._with_windows({name: value for name, value in given.items() if value is not None})
            if sequence_length is not None and view.windows is not None:
                raise ValueError("sequence_length can't be used together with offsets, stack or context")
        if n_step is not None or gamma is not None or sequence_length is not None:
            view = view._paced(n_step, gamma, sequence_length)
        if burn_in is None and initial_state is None and state is None and (decode is None or decode is view.decode):
            return view
        given = {"burn_in": burn_in, "initial_state": initial_state, "state": state, "decode": decode}
        return dataclasses.replace(view, **{name: value for name, value in given.items() if value is not None})

    def _with_windows(self, given: dict[str, Any]) -> View:
        """With other windows, at least one option of which is given; without any, in place of those that it has."""
        if not given.get("offsets", True):
            given["fps"] = None
        around = dataclasses.replace(self.around, **given)
        if around.windows is None:
            return dataclasses.replace(self, around=around)
        return View(self.n_step, self.gamma, decode=self.decode, around=around)

    def _paced(self, n_step: int | Sequence[int] | None, gamma: float | None, sequence_length: int | None) -> View:
        """With another horizon, discount or length, at least one of them given."""
        gamma = self.gamma if gamma is None else gamma
        if n_step is not None and sequence_length is None and self.sequence_length is not None:
            return View(_horizon(n_step), gamma, decode=self.decode)
        whole = self.whole and n_step is None and sequence_length is None
        steps = self.n_step if sequence_length is None else 1
        if n_step is not None:
            steps = _horizon(n_step)
        if sequence_length is None:
            return dataclasses.replace(self, whole=whole, n_step=steps, gamma=gamma)
        others: dict[str, Any] = {"whole": whole, "around": _NO_WINDOWS}
        return dataclasses.replace(self, n_step=steps, gamma=gamma, sequence_length=sequence_length, **others)


def plain_view(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a view as plain JSON values.

    >>> plain_view({"offsets": {"action": range(3)}, "n_step": (1, 5)})
    {'offsets': {'action': [0, 1, 2]}, 'n_step': [1, 5]}
    """
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(child) for key, child in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(child) for child in value] if isinstance(value, Iterable) and not isinstance(value, str) else value


def _horizon(n_step: Any) -> int | tuple[int, int]:
    """An `n_step` as it was given: a number, or the least and the most."""
    if not isinstance(n_step, tuple | list) or len(n_step) != 2:
        return integer("n_step", n_step, 1)
    least, most = (integer("n_step", number, 1) for number in n_step)
    if least > most:
        raise ValueError(f"n_step is from the least to the most, got {n_step!r}")
    return least if least == most else (least, most)


_PARTS = {"n_step", "sequence_length", "offsets", "stack", "context"}
"""Options that ask for a part of items of several transitions."""
_OWN = tuple(field.name for field in dataclasses.fields(View) if field.name not in ("whole", "around"))
OPTIONS = (*_OWN, *_WINDOWS)
"""What ``sample`` and ``get`` take by these names, and a factory's `view`."""
