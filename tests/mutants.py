"""JSON values changed at random, one place at a time: what metadata may hold when somebody else wrote them."""

from __future__ import annotations

import copy
import random
from typing import Any

__all__ = ["ODD", "mutant"]

ODD: list[Any] = [
    None, True, False, -1, 0, 1, 3, 1 << 31, 1 << 63, 10**30, 0.5, 1e308, float("nan"), float("-inf"),
    "", "x", "é\0", "f4,(", "<U4294967295", "float32", "string", "../../x", "/etc/passwd", "9" * 40, "[" * 200,
    [], [1], ["x"], [None], [-1, "x"], [[[1]]], {}, {"a": 1}, {"field": 3}, {"dict": {"a": None}}, {"tuple": "ab"},
]  # fmt: skip
"""Values to put in the place of others."""


def mutant(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A copy of a JSON value with one entry replaced, removed, doubled or added, and what was done."""
    changed = copy.deepcopy(value)
    places = list(_places(changed, ""))
    container, key, path = rng.choice(places)
    what = rng.choice(["replace"] * 6 + ["remove", "double", "add"])
    odd = copy.deepcopy(rng.choice(ODD))
    if what == "remove":
        del container[key]
    elif what == "double" and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif what == "add" and isinstance(container, dict):
        other = rng.choice([other for _, other, _ in places if isinstance(other, str)])
        container[other] = odd
        path, what = f"{path} beside {other}", f"add {odd!r}"
    else:
        container[key] = odd
        what = f"replace by {odd!r}"
    return changed, f"{path}: {what}"


def _places(value: Any, path: str) -> Any:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in members:
        yield value, key, f"{path}/{key}"
        yield from _places(child, f"{path}/{key}")
