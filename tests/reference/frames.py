"""TF-Agents' frames made one row after the other: the naive twin of ``rlds2buf.rlds_to_reverb.graph``."""

from __future__ import annotations

from typing import Any

import numpy as np

FIRST, MID, LAST = 0, 1, 2


class Broken(Exception):
    """The grammar is broken; `sentence` says how, `places` are (episode, step) of the rows that say so."""

    def __init__(self, sentence: str, *places: tuple[int, int]) -> None:
        super().__init__(sentence, *places)
        self.sentence = sentence
        self.places = places


def frames(
    episodes: list[list[dict[str, Any]]], *, terminal_discount: str = "boundary"
) -> tuple[list[dict[str, Any]], Broken | None]:
    """The frames up to the first fault, and that fault; `episodes` are lists of step dicts."""
    rows = [((e, s), step) for e, steps in enumerate(episodes) for s, step in enumerate(steps)]
    out: list[dict[str, Any]] = []
    for i, (place, row) in enumerate(rows):
        is_end = i + 1 == len(rows)
        then_place, then = ((-1, -1), {"is_first": True, "is_last": False}) if is_end else rows[i + 1]
        fault = broken(i, place, row, then_place, then)
        if fault:
            return out, fault
        out.append(frame(row, then, terminal_discount))
    return out, None


def broken(
    number: int, place: tuple[int, int], row: dict[str, Any], then_place: tuple[int, int], then: dict[str, Any]
) -> Broken | None:
    """What is wrong with row `number` of the stream, or with it and the next one; None if nothing is."""
    if number == 0 and not row["is_first"]:
        return Broken("The first step of the data must be the first step of an episode.", place)
    if row["is_terminal"] and not row["is_last"]:
        return Broken("Terminal step must be the last step of an episode.", place)
    if row["is_last"] and not then["is_first"]:
        return Broken("Last step of an episode must be followed by a first step.", place, then_place)
    if not row["is_last"] and then["is_first"]:
        if row["is_first"]:
            return Broken("First step should not be followed by a first step", place, then_place)
        return Broken("Mid step should not be followed by a first step.", place, then_place)
    return None


def frame(row: dict[str, Any], then: dict[str, Any], terminal_discount: str) -> dict[str, Any]:
    """The frame of `row`, whose successor is `then`."""
    step_type, next_step_type = _type(row), _type(then)
    if step_type == FIRST and next_step_type == FIRST:
        step_type = next_step_type = LAST
    discount = np.float32(row["discount"])
    if terminal_discount == "boundary":
        if row["is_last"] and row["is_terminal"]:
            discount = np.float32(0)
    elif not row["is_last"] and then["is_terminal"]:
        discount = np.float32(0)
    return {
        "step_type": step_type,
        "observation": row["observation"],
        "action": row["action"],
        "next_step_type": next_step_type,
        "reward": row["reward"],
        "discount": discount,
    }


def _type(row: dict[str, Any]) -> int:
    if row["is_first"]:
        return FIRST
    return LAST if row["is_last"] else MID
