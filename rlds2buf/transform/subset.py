"""Which episodes are left out by lot: a sample, and one side of a train and validation split."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core.hashing import unit_intervals, unit_intervals_of

__all__ = ["Subset"]

PARTS = ("train", "val")


class Subset:
    """Chooses by an episode's index alone, so the choice is the same in every run and in any order.

    The two choices are independent of each other: a split of a sample is a sample of the split.
    Both are by :func:`~rlds2buf.core.hashing.unit_interval`, of purpose ``"sample"`` and ``"split"``.

    Args:
        sample: a fraction (float, above 0 and at most 1), each episode being kept with that
            probability; or a number of episodes (int), exactly so many.  A larger sample of the same
            seed holds the smaller one.
        val_fraction: which fraction, in expectation, is for validation.
        part: ``"train"`` or ``"val"``: the side that is kept.
        seed: another seed, another choice.
        num_episodes: how many there are to choose from, for a number of episodes.

    Raises:
        ValueError: an argument is out of range, or the number of episodes is needed and not known.

    >>> [index for index in range(10) if Subset(sample=3, num_episodes=10).fault(index) is None]
    [0, 4, 6]
    """

    def __init__(
        self,
        *,
        sample: float | int | None = None,
        val_fraction: float | None = None,
        part: str | None = None,
        seed: int = 0,
        num_episodes: int | None = None,
    ) -> None:
        if part is not None and part not in PARTS:
            raise ValueError(f"part must be 'train' or 'val', got {part!r}")
        if part is not None and val_fraction is None:
            raise ValueError(f"part={part!r} needs val_fraction: how much is for validation")
        if val_fraction is not None and not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must be between 0 and 1, got {val_fraction}")
        self._sample = sample.item() if isinstance(sample, np.generic) else sample
        self._val_fraction = val_fraction
        self._part = part or "train"
        self._seed = seed
        self._below = None if sample is None else self._limit(sample, num_episodes)

    def __bool__(self) -> bool:
        return self._sample is not None or self._val_fraction is not None

    def fault(self, index: int) -> tuple[str, str] | None:
        """The rule that leaves this episode out, and why in words; None if it is kept."""
        return self.faults(np.array([index]))[0]

    def faults(self, indices: np.ndarray) -> list[tuple[str, str] | None]:
        """:meth:`fault` of each of some episodes, by their indices ``[n]``."""
        part = "filter-part", f"it is in the other part than {self._part!r}"
        sample = "filter-sample", f"it is not in the sample of {self._sample}"
        sides = zip(*(side.tolist() for side in self._sides(indices)), strict=True)
        return [part if not in_part else None if in_sample else sample for in_part, in_sample in sides]

    def keeps(self, indices: np.ndarray) -> np.ndarray:
        """``[n] bool``: which of some episodes, by their indices ``[n]``, are kept.

        >>> Subset(sample=3, num_episodes=10).keeps(np.arange(10)).nonzero()[0].tolist()
        [0, 4, 6]
        """
        in_part, in_sample = self._sides(indices)
        return in_part & in_sample

    def _sides(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which are in the part, and which in the sample."""
        in_part = in_sample = np.ones(len(indices), np.bool_)
        if self._val_fraction is not None:
            in_part = (unit_intervals_of(self._seed, indices) < self._val_fraction) == (self._part == "val")
        if self._below is not None:
            in_sample = unit_intervals_of(self._seed, indices, "sample") < self._below
        return in_part, in_sample

    def describe(self) -> dict[str, Any]:
        """What was asked for, as plain JSON values."""
        if not self:
            return {}
        found: dict[str, Any] = {} if self._sample is None else {"sample": self._sample}
        if self._val_fraction is not None:
            found |= {"val_fraction": self._val_fraction, "part": self._part}
        return {**found, "seed": self._seed}

    def _limit(self, sample: float | int, num_episodes: int | None) -> float:
        """What an episode's number must be below."""
        if isinstance(sample, bool) or not isinstance(sample, int | float | np.integer | np.floating):
            raise ValueError(f"sample must be a fraction (float) or a number of episodes (int), got {sample!r}")
        if isinstance(sample, float | np.floating):
            if not 0 < sample <= 1:
                raise ValueError(f"a fraction to sample must be above 0 and at most 1, got {sample}")
            return float(sample)
        if sample < 1:
            raise ValueError(f"sample must be at least 1 episode, got {sample}")
        if num_episodes is None:
            raise ValueError(f"sample={sample}: how many episodes there are is not known; give a fraction (a float)")
        if sample > num_episodes:
            raise ValueError(f"sample={sample}: there are only {num_episodes} episodes")
        # The numbers have 53 bits; should two of so many be equal, one too many would be kept.
        drawn = np.sort(unit_intervals(self._seed, num_episodes, "sample"))
        return 2.0 if sample == num_episodes else float(drawn[sample])
