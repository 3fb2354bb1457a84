"""Logs cut into episodes one row at a time, as slowly and plainly as can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]


def episodes(rows: list[Row], *, final_rows: bool, borders: Sequence[int] = (0,)) -> list[list[Row]]:
    """The episodes as lists of RLDS rows, each with ``observation``, ``action``, ``reward``, ``discount``, flags.

    Args:
        rows: the log's rows by field; ``next_observation``, ``episode`` and flags where the log has them.
        final_rows: the log's rows are RLDS rows.
        borders: rows before which the log is cut in any case.
    """
    groups: list[list[Row]] = []
    for t, row in enumerate(rows):
        if t == 0 or t in borders or _begins(rows[t - 1], row, final_rows):
            groups.append([])
        groups[-1].append(row)
    return [_as_it_is(group) if final_rows else _with_final_row(group) for group in groups]


def _begins(before: Row, row: Row, final_rows: bool) -> bool:
    if "episode" in row:
        return bool(row["episode"] != before["episode"])
    if final_rows:
        return bool(before.get("is_last") or row.get("is_first"))
    flags = [flag for flag in ("terminated", "is_terminal", "truncated", "done", "is_last") if flag in row]
    if flags:
        return any(before[flag] for flag in flags)
    return bool(row["is_first"])


def _terminated(row: Row) -> bool:
    if "terminated" in row or "is_terminal" in row:
        return bool(row.get("terminated", row.get("is_terminal")))
    return bool(row.get("done")) and not row.get("truncated")


def _with_final_row(group: list[Row]) -> list[Row]:
    out = []
    for i, row in enumerate(group):
        step = {name: row[name] for name in ("observation", "action", "reward")}
        step["is_first"] = bool(row["is_first"]) if "is_first" in row else i == 0
        step["is_last"] = False
        step["is_terminal"] = i > 0 and _terminated(group[i - 1])
        out.append(step)
    last = group[-1]
    if "next_observation" in last or _terminated(last):
        step = {name: np.zeros_like(last[name]) for name in ("observation", "action", "reward")}
        if "next_observation" in last:
            step["observation"] = last["next_observation"]
        out.append({**step, "is_first": False, "is_terminal": _terminated(last)})
    out[-1]["is_last"] = True
    return _with_discounts(out)


def _as_it_is(group: list[Row]) -> list[Row]:
    out = []
    for i, row in enumerate(group):
        step = {name: row[name] for name in ("observation", "action", "reward")}
        step["is_first"] = bool(row["is_first"]) if "is_first" in row else i == 0
        step["is_last"] = bool(row["is_last"]) if "is_last" in row else i == len(group) - 1
        step["is_terminal"] = bool(row.get("is_terminal", row.get("terminated", False)))
        out.append(step)
    return _with_discounts(out)


def _with_discounts(out: list[Row]) -> list[Row]:
    for i, step in enumerate(out):
        into_terminal = i + 1 < len(out) and out[i + 1]["is_terminal"]
        step["discount"] = 0.0 if step["is_terminal"] or into_terminal else 1.0
    return out
