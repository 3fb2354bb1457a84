"""A finding: what is wrong with an episode, or with the files and metadata of a dataset."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from rlds2buf.errors import EpisodeError

__all__ = ["ERROR", "FILTER", "WARNING", "Issue"]

ERROR: Final = "error"
WARNING: Final = "warning"
FILTER: Final = "filter"


@dataclasses.dataclass(frozen=True)
class Issue:
    """One finding; the rules are described in :mod:`rlds2buf.check.rules`.

    Attributes:
        rule: the rule's id, a key of :data:`rlds2buf.check.rules.RULES`.
        severity: ``"error"``, ``"warning"`` or ``"filter"``.
        episode: the episode's number in its source, 0-based, or None where the dataset as a whole is meant.
        step: the first offending row, 0-based, or None where the whole episode is meant.
        path: the field, for example ``"observation/state"``, or None.
        message: what is wrong.
        source: the file or address, or None.
        kind: the class of its error; no part of what is found.

    >>> print(Issue("nonfinite", "error", 3, 7, "reward", "reward is not finite (NaN or infinity)", "a.hdf5"))
    error nonfinite: a.hdf5, episode 3, step 7, reward: reward is not finite (NaN or infinity)
    """

    rule: str
    severity: str
    episode: int | None
    step: int | None
    path: str | None
    message: str
    source: str | None = None
    kind: type[EpisodeError] = dataclasses.field(default=EpisodeError, compare=False, repr=False)

    def error(self) -> EpisodeError:
        """The exception of this finding, of its kind: a BoundaryError, SpecMismatch or plain EpisodeError."""
        return self.kind(
            self.message, source=self.source, episode=self.episode, step=self.step, path=self.path, rule=self.rule
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {name: value for name, value in vars(self).items() if name != "kind"}

    def __str__(self) -> str:
        return f"{self.severity} {self.rule}: {self.error()}"
