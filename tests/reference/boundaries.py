"""The episode grammar as a machine that reads one row at a time."""

from __future__ import annotations

from collections.abc import Sequence


def faults(first: Sequence[bool], last: Sequence[bool], terminal: Sequence[bool]) -> dict[str, int]:
    """Rule id to first offending step, for the flags of one record; empty for a good episode."""
    found: dict[str, int] = {}
    begun: list[list] = []  # [row that opens a run of rows, whether a last row was met in it]
    end = len(first) - 1
    for row in range(end + 1):
        if row == 0 and not first[row]:
            found["first-missing"] = row
        if row > 0 and first[row] and "first-inside" not in found:
            found["first-inside"] = row
        if row == 0 or first[row]:
            begun.append([row, False])
        if last[row]:
            begun[-1][1] = True
            if row < end and "last-inside" not in found:
                found["last-inside"] = row
        if terminal[row] and not last[row] and "terminal-inside" not in found:
            found["terminal-inside"] = row
        if row == end and not last[row]:
            unclosed = [opened for opened, closed in begun if not closed]
            found["last-missing"] = unclosed[0] if len(begun) > 1 and unclosed else row
    return found


def accepts(first: Sequence[bool], last: Sequence[bool], terminal: Sequence[bool]) -> bool:
    """Whether the rows read "first, mid*, last" or "first-and-last", terminal on the last row only."""
    state = "start"
    for row in range(len(first)):
        if state == "start":
            if not first[row]:
                return False
        elif state == "inside":
            if first[row]:
                return False
        else:  # a row behind the last one
            return False
        if terminal[row] and not last[row]:
            return False
        state = "ended" if last[row] else "inside"
    return state == "ended"
