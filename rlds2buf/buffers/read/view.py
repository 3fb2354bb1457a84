"""What a drawn row is turned into."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rlds2buf.core.arguments import fraction, guess, integer

__all__ = ["OPTIONS", "View"]


@dataclasses.dataclass(frozen=True)
class View:
    """Transitions over up to `n_step` steps, or sequences of `sequence_length` transitions.

    Sequences may have up to `burn_in` earlier steps before them, and the recurrent state to start
    from: of the extras named in `state`, ``"stored"`` or ``"zeros"``.  `whole` stands for items of
    several transitions as they were stored.  `decode` says whether pictures that are kept as files
    become pixels.

    Raises:
        ValueError: an argument is out of range, or both kinds are asked for.
    """

    n_step: int = 1
    gamma: float = 1.0
    sequence_length: int | None = None
    burn_in: int = 0
    initial_state: str | None = None
    state: tuple[str, ...] = ()
    whole: bool = False
    decode: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_step", integer("n_step", self.n_step, 1))
        object.__setattr__(self, "decode", bool(self.decode))
        object.__setattr__(self, "burn_in", integer("burn_in", self.burn_in, 0))
        if self.sequence_length is not None:
            object.__setattr__(self, "sequence_length", integer("sequence_length", self.sequence_length, 1))
        fraction("gamma", self.gamma)
        if self.sequence_length is not None and self.n_step > 1:
            raise ValueError("n_step and sequence_length can't be used together")
        names = (self.state,) if isinstance(self.state, str) else tuple(self.state)
        object.__setattr__(self, "state", names)
        if self.initial_state not in (None, "stored", "zeros"):
            raise ValueError(f"initial_state must be 'stored' or 'zeros', got {self.initial_state!r}")
        if (self.initial_state is None) != (not self.state):
            raise ValueError("initial_state and state, the extras that it is in, need each other")
        if self.sequence_length is None and (self.burn_in or self.state):
            raise ValueError("burn_in, initial_state and state are for sequences: give sequence_length too")

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
        return cls(**options, whole=whole and not {"n_step", "sequence_length"} & set(options))

    def changed(
        self,
        *,
        n_step: int | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
        decode: bool | None = None,
    ) -> View:
        """This view with what is given in place of its own; asking for one kind sets aside the other."""
        view = self
        if n_step is not None or gamma is not None or sequence_length is not None:
            view = self._paced(n_step, gamma, sequence_length)
        if burn_in is None and initial_state is None and state is None and (decode is None or decode is view.decode):
            return view
        given: dict[str, Any] = {"burn_in": burn_in, "initial_state": initial_state, "state": state, "decode": decode}
        return dataclasses.replace(view, **{name: value for name, value in given.items() if value is not None})

    def _paced(self, n_step: int | None, gamma: float | None, sequence_length: int | None) -> View:
        """With another horizon, discount or length, at least one of them given."""
        gamma = self.gamma if gamma is None else gamma
        if n_step is not None and sequence_length is None and self.sequence_length is not None:
            return View(n_step, gamma, decode=self.decode)
        whole = self.whole and n_step is None and sequence_length is None
        if n_step is None:
            n_step = self.n_step if sequence_length is None else 1
        length = self.sequence_length if sequence_length is None else sequence_length
        return dataclasses.replace(self, whole=whole, n_step=n_step, gamma=gamma, sequence_length=length)


OPTIONS = tuple(field.name for field in dataclasses.fields(View) if field.name != "whole")
"""What ``sample`` and ``get`` take by these names, and a factory's `view`."""
