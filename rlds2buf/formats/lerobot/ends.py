"""How a LeRobot dataset's episodes end: flags, the discount, and which last actions have no successor.

An episode of T rows has T observations and T actions; what is called ``next.`` on row t is about the step from there to
row t + 1, so that of the last row is about an observation that was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.formats.lerobot.names import DONE, TRUNCATED

__all__ = ["CHOICES", "discounts", "flags_of", "real_last_actions"]

CHOICES: Final = ("flags", "truncated", "terminal")


def flags_of(
    told: Mapping[str, np.ndarray], starts: np.ndarray, count: int, ends: str
) -> tuple[dict[str, np.ndarray], set[str]]:
    """RLDS's flags ``[M] bool``, and the names of those that nothing tells.

    Args:
        told: ``[M]`` each, of the features :data:`~rlds2buf.formats.lerobot.fields.ENDS` those that there are.
        starts: ``[E] int64``, each episode's first row.
        count: M.
        ends: ``"flags"``, by these; ``"truncated"`` or ``"terminal"``, every episode's last row is (not) terminal.

    ``is_terminal`` is taken as it is.  Else a step that is done, and not truncated, leads to a terminal row; that of
    the last row makes the last row terminal.

    >>> flags, _ = flags_of({"next.done": np.array([False, True, False, True])}, np.array([0, 2]), 4, "flags")
    >>> flags["is_terminal"].tolist(), flags["is_last"].tolist()
    ([False, True, False, True], [False, True, False, True])
    """
    last = np.append(starts[1:], count) - 1
    flags = {name: np.zeros(count, np.bool_) for name in FLAG_FIELDS}
    flags["is_first"][starts] = flags["is_last"][last] = True
    if ends != "flags":
        flags["is_terminal"][last] = ends == "terminal"
        return flags, set()
    given = {name: column != 0 for name, column in told.items()}
    done = given.pop(DONE, None)
    truncated = given.pop(TRUNCATED, None)
    flags |= given
    if "is_terminal" in given:
        return flags, set()
    if done is None:
        return flags, set() if truncated is not None else {"is_terminal"}
    ended = done if truncated is None else done & ~truncated
    flags["is_terminal"][1:] = ended[:-1]
    flags["is_terminal"][starts] = False
    flags["is_terminal"][last] |= ended[last]
    return flags, set()


def discounts(is_terminal: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """``[M] float32``: 1, and 0 on terminal rows and on the step into one.

    >>> discounts(np.array([False, False, True, False]), np.array([0, 3])).tolist()
    [1.0, 0.0, 0.0, 1.0]
    """
    discount = np.ones(len(is_terminal), np.float32)
    discount[is_terminal] = 0
    into = is_terminal.copy()
    into[starts] = False
    discount[:-1][into[1:]] = 0
    return discount


def real_last_actions(told: Mapping[str, np.ndarray], starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``[E] bool``: whose last row's action was taken, and is no padding behind an end that was reached before it.

    >>> done = np.array([False, True, False, True, True])
    >>> real_last_actions({"next.done": done}, np.array([0, 2]), np.array([2, 3])).tolist()
    [True, False]
    """
    real = np.ones(len(starts), np.bool_)
    ended: Sequence[np.ndarray] = [told[name] != 0 for name in (DONE, TRUNCATED) if name in told]
    some = lengths > 1
    for flag in ended:
        real[some] &= ~flag[starts[some] + lengths[some] - 2]
    return real
