"""What datasets of robomimic's layout have of their own: LIBERO's and RoboCasa's instructions, LIBERO's pictures.

Sources: https://github.com/Lifelong-Robot-Learning/LIBERO, ``scripts/create_dataset.py``, ``utils/dataset_utils.py``;
https://robocasa.ai/docs/datasets/using_datasets.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.json_text import parse_json

__all__ = ["flipped", "instruction", "libero_warnings"]

_PROBLEM, _CONVENTION, _META = "problem_info", "macros_image_convention", "ep_meta"


def instruction(attributes: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """What a demonstration was told to do; None where nothing tells.

    Args:
        attributes: of the file's ``data``.
        own: of the demonstration.

    >>> instruction({"problem_info": '{"language_instruction": ["put", "it", "down"]}'}, {})
    'put it down'
    >>> instruction({}, {"ep_meta": '{"lang": "open the drawer"}'})
    'open the drawer'
    """
    told = _entry(own.get(_META), "lang") or _entry(attributes.get(_PROBLEM), "language_instruction")
    if isinstance(told, list) and all(isinstance(part, str) for part in told):
        told = ("" if all(len(part) == 1 for part in told) else " ").join(told)
    return (told.strip().strip('"').strip() or None) if isinstance(told, str) else None


def flipped(batch: EpisodeBatch) -> EpisodeBatch:
    """The same episodes, their pictures the other way up."""
    observation = nest.map_structure(_turned, batch.rows.observation)
    return batch.with_rows(batch.rows.replace(observation=observation))


def libero_warnings(attributes: Mapping[str, Any], *, flip: bool) -> list[str]:
    """What should be known of LIBERO's files; nothing of others."""
    if _PROBLEM not in attributes:
        return []
    warnings = ["LIBERO stores beside each action the observation that it led to; alignment='ars' moves the actions"]
    if attributes.get(_CONVENTION, "opengl") != "opencv" and not flip:
        warnings.append("pictures are upside down, as OpenGL has them; flip_images=True turns them")
    return warnings


def _turned(column: Any) -> Any:
    is_picture = isinstance(column, np.ndarray) and column.ndim == 4 and column.shape[3] in (1, 3, 4)
    return np.ascontiguousarray(column[:, ::-1]) if is_picture else column


def _entry(text: Any, name: str) -> Any:
    try:
        value = parse_json(text)
    except (TypeError, ValueError, AttributeError):
        return None
    return value.get(name) if isinstance(value, dict) else None
