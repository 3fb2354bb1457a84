"""Facts of a dataset, nested as formats have them, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlds2buf.cli.output import number

__all__ = ["in_words", "limits", "tables"]

_MOST_ROWS: Final = 40
_MOST_WORDS: Final = 8


def tables(title: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Titles and rows: one table of what is simple, and one for each fact that is a dict; what is empty is left out.

    >>> list(tables("details", {"version": "1.0", "files": ["a", "b"], "splits": {"train": {"shards": 2}}}))
    [('details', [('version', '1.0'), ('files', 'a, b')]), ('splits', [('train', 'shards 2')])]
    """
    told = {name: value for name, value in facts.items() if not _is_empty(value)}
    yield title, [(name, in_words(value)) for name, value in told.items() if not isinstance(value, Mapping)]
    for name, value in told.items():
        if isinstance(value, Mapping):
            rows = [(path.replace("/sequence/", "/"), in_words(leaf)) for path, leaf in _flat(value)]
            more = [(f"and {len(rows) - _MOST_ROWS} more", "")] if len(rows) > _MOST_ROWS else []
            yield name.replace("_", " "), rows[:_MOST_ROWS] + more


def in_words(value: Any) -> str:
    """A value without Python's signs.

    >>> in_words(True), in_words(["a", "b"]), in_words(1234.5), in_words({"episodes": 25, "shards": 1})
    ('yes', 'a, b', '1234.5', 'episodes 25, shards 1')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {in_words(child)}" for name, child in value.items())
    if isinstance(value, list | tuple):
        more = f" and {len(value) - _MOST_WORDS} more" if len(value) > _MOST_WORDS else ""
        return ", ".join(map(in_words, value[:_MOST_WORDS])) + more
    return str(value)


def limits(field: Mapping[str, Any]) -> str:
    """What a field's values may be, of its JSON.

    >>> limits({"low": [-1.0, -1.0], "high": 4.800000190734863}), limits({"values": (0, 1)}), limits({})
    ('from -1 to 4.8', 'one of 0, 1', '')
    """
    if field.get("values") is not None:
        return f"one of {in_words(list(field['values']))}"
    low, high = field.get("low"), field.get("high")
    return "" if low is None and high is None else f"from {_bound(low)} to {_bound(high)}"


def _bound(value: Any) -> str:
    found = list(dict.fromkeys(_numbers(value)))
    if len(found) == 1:
        return found[0]
    return f"({in_words(_numbers(value))})"


def _numbers(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [text for child in value for text in _numbers(child)]
    return [number(value)]


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves with their paths; a dict of plain values, below another, is one."""
    for name, child in value.items():
        if _is_empty(child):
            continue
        if isinstance(child, Mapping) and not (_is_simple(child) and len(child) <= _MOST_WORDS // 2):
            yield from _flat(child, f"{before}{name}/")
        else:
            yield f"{before}{name}", child


def _is_simple(value: Mapping[str, Any]) -> bool:
    return not any(isinstance(child, Mapping | list | tuple | str) for child in value.values())


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, Mapping | list | tuple) and not value)
