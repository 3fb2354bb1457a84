"""What a drawn row is turned into."""

from __future__ import annotations

import dataclasses

__all__ = ["View"]


@dataclasses.dataclass(frozen=True)
class View:
    """Transitions over up to `n_step` steps, or sequences of `sequence_length` transitions.

    Raises:
        ValueError: an argument is out of range, or both kinds are asked for.
    """

    n_step: int = 1
    gamma: float = 1.0
    sequence_length: int | None = None

    def __post_init__(self) -> None:
        if self.n_step < 1:
            raise ValueError(f"n_step must be at least 1, got {self.n_step}")
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma}")
        if self.sequence_length is not None and self.sequence_length < 1:
            raise ValueError(f"sequence_length must be at least 1, got {self.sequence_length}")
        if self.sequence_length is not None and self.n_step > 1:
            raise ValueError("n_step and sequence_length can't be used together")

    def changed(self, n_step: int | None, gamma: float | None, sequence_length: int | None) -> View:
        """This view with what is given in place of its own; asking for one kind sets aside the other."""
        if n_step is None and gamma is None and sequence_length is None:
            return self
        if n_step is None:
            n_step = self.n_step if sequence_length is None else 1
        elif sequence_length is None and self.sequence_length is not None:
            return View(n_step, self.gamma if gamma is None else gamma)
        return View(
            n_step,
            self.gamma if gamma is None else gamma,
            self.sequence_length if sequence_length is None else sequence_length,
        )
