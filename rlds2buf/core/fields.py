"""The names of RLDS: which fields a step has, and what its flags mean.

Source: the RLDS format of Ramos et al. 2021, https://github.com/google-research/rlds
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "DATA_FIELDS",
    "FLAG_FIELDS",
    "STEP_FIELDS",
    "STEP_FIRST",
    "STEP_LAST",
    "STEP_MID",
    "TRANSITION_FIELDS",
]

DATA_FIELDS: Final = ("observation", "action", "reward", "discount")
FLAG_FIELDS: Final = ("is_first", "is_last", "is_terminal")
TRANSITION_FIELDS: Final = frozenset(("action", "reward", "discount"))
"""What belongs to the transition out of a step: padding in an episode's last row, where none starts."""
STEP_FIELDS: Final = DATA_FIELDS + FLAG_FIELDS
"""The seven fields of an RLDS step; anything else in a step is an extra."""

STEP_FIRST: Final = 0
STEP_MID: Final = 1
STEP_LAST: Final = 2
"""Step types, numbered as in dm_env and TF-Agents."""
