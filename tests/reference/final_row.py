"""The row behind a terminal one, and returns, of one episode, written down plainly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2buf import Episode
from rlds2buf.core import nest
from rlds2buf.returns import discounted_return

__all__ = ["annotated", "with_final_row"]

RETURNS = {"return_to_go": ("reward", 1.0), "discounted_return": ("reward", None), "cost_to_go": ("cost", 1.0)}


def with_final_row(episode: Episode) -> tuple[Episode, str | None]:
    """What keep_final_transition makes of an episode, and what it counts."""
    if episode.metadata.get("placeholder_final_row"):
        return episode, None
    if not episode.is_terminal[-1]:
        return episode, "final-transition-lost"

    def longer(column: np.ndarray | None) -> np.ndarray | None:
        if column is None:
            return None
        row = np.array([b""], object) if column.dtype == object else np.zeros((1, *column.shape[1:]), column.dtype)
        return np.concatenate([column, row])

    names = ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal", "extras")
    fields: dict[str, Any] = {name: nest.map_structure(longer, getattr(episode, name)) for name in names}
    fields["is_last"][-2:] = fields["is_terminal"][-2:] = [False, True]
    if fields["discount"] is not None:
        fields["discount"][-2] = 0
    metadata = {**episode.metadata, "placeholder_final_row": True}
    return Episode(**fields, metadata=metadata, source=episode.source, index=episode.index), "final-transition-kept"


def annotated(episode: Episode, add: Sequence[str], gamma: float) -> Episode:
    """What annotate makes of an episode."""
    extras = dict(episode.extras)
    for name in add:
        of, factor = RETURNS[name]
        column = episode.reward if of == "reward" else episode.extras["cost"]
        later = discounted_return(column[:-1], gamma=gamma if factor is None else factor)
        extras[name] = np.concatenate([later, np.zeros_like(later, shape=(1, *later.shape[1:]))])
    return episode.replace(extras=extras)
