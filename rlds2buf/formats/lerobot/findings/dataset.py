"""What the rules look at, and how a finding is made of what they find."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.issue import ERROR, WARNING, Issue
from rlds2buf.formats.lerobot.index import Footage, Index
from rlds2buf.formats.lerobot.info import Info
from rlds2buf.formats.lerobot.tasks import Tasks

__all__ = ["TOLERANCE", "Scope"]

TOLERANCE: Final = 1e-4
"""Seconds by which lerobot lets a frame's time differ from its row's."""

_ERRORS: Final = frozenset({"video-frames", "video-overlap", "video-timestamps"})
"""Rules whose breaking puts pictures to the wrong rows."""


@dataclasses.dataclass(frozen=True)
class Scope:
    """A LeRobot dataset, or what of it is read.

    Attributes:
        name: for messages.
        info, index, tasks: its metadata; tasks are None where there is no file of them.
        paths: of each feature that is read, its field's name in a step.
        chosen: ``[C] int64``, places in the index of the episodes that are looked at, ascending.
        budget: what one row may take.
    """

    name: str
    info: Info
    index: Index
    tasks: Tasks | None
    paths: Mapping[str, str]
    chosen: np.ndarray
    budget: Budget = BUDGET

    @property
    def footage(self) -> dict[str, Footage]:
        """Of the cameras that are read."""
        return {name: footage for name, footage in self.index.footage.items() if name in self.paths}

    @property
    def is_whole(self) -> bool:
        """Whether all episodes are looked at."""
        return len(self.chosen) == len(self.index)

    def issue(
        self,
        rule: str,
        message: str,
        *,
        file: Path | None = None,
        feature: str | None = None,
        episode: Any = None,
        step: Any = None,
    ) -> Issue:
        """A finding.

        Args:
            rule: of :data:`rlds2buf.check.rules.RULES`.
            message: what is wrong.
            file: where; None: the dataset.
            feature: the field is that which it is read as.
            episode: its place in the index.
            step: the first row.
        """
        return Issue(
            rule,
            ERROR if rule in _ERRORS else WARNING,
            None if episode is None else int(episode),
            None if step is None else int(step),
            None if feature is None else self.paths.get(feature, feature),
            message,
            self.name if file is None else str(file),
        )
