"""JSON out of files and arguments that nobody vouches for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

__all__ = ["MAX_DEPTH", "integer_of", "parse_json"]

MAX_DEPTH = 100
"""Values nested deeper than this are refused: whoever walks through them would run out of stack."""
_INTEGER = re.compile(r"-?[0-9]{1,19}")


def parse_json(text: str | bytes, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """The value of a JSON text, as ``json.loads`` gives it; ``NaN`` and ``Infinity`` too.

    Args:
        text: UTF-8 where it is bytes.
        parse_constant: what to make of ``NaN``, ``Infinity`` and ``-Infinity``.

    Raises:
        ValueError: it is no JSON, or nested more than MAX_DEPTH deep.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: nested more than 100 deep
    """
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError as cause:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from cause
    openings = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    if openings > MAX_DEPTH and _is_deep(value):
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return value


def integer_of(value: Any) -> int:
    """A whole number or its digits, as JSON of protocol buffers has those of 64 bits.

    Raises:
        ValueError: it is neither, or beyond 64 bits.

    >>> integer_of("-12"), integer_of(3)
    (-12, 3)
    """
    digits = value if isinstance(value, str) else str(value) if type(value) is int else ""
    if not _INTEGER.fullmatch(digits) or not -1 << 63 <= int(digits) < 1 << 63:
        raise ValueError(f"{repr(value)[:60]} is no integer of 64 bits")
    return int(digits)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [child for one in level if isinstance(one, list | dict) for child in _children(one)]
        if not level:
            return False
    return True


def _children(value: list[Any] | dict[str, Any]) -> list[Any]:
    members = value.values() if isinstance(value, dict) else value
    return [child for child in members if isinstance(child, list | dict)]
