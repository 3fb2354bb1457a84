"""Entries of JSON objects: the type that is asked for, or an error that names the entry."""

from __future__ import annotations

from typing import Any

import pytest

from rlds2buf.core.entries import Entries
from rlds2buf.core.json_text import MAX_DEPTH, integer_of, parse_json
from rlds2buf.core.spec import StepSpec

TOLD: dict[str, Any] = {
    "text": "a",
    "number": 3,
    "real": 0.5,
    "flag": True,
    "list": [1, 2],
    "none": None,
    "in": {"x": 1},
}


@pytest.mark.parametrize(
    ("method", "right"),
    [
        ("text", "text"),
        ("integer", "number"),
        ("flag", "flag"),
        ("lengths", "list"),
        ("items", "list"),
        ("inside", "in"),
    ],
)
def test_the_type_asked_for(method: str, right: str) -> None:
    told = Entries(TOLD, "here")
    found = getattr(told, method)(right)
    assert (found.values if method == "inside" else list(found) if right == "list" else found) == TOLD[right]
    for wrong in sorted({*TOLD} - {right}):
        with pytest.raises(ValueError, match=rf"here\.{wrong} should be .*, got"):
            getattr(told, method)(wrong)
    with pytest.raises(ValueError, match=r"here\.missing is missing"):
        getattr(told, method)("missing")


def test_defaults_and_null() -> None:
    told = Entries(TOLD)
    assert told.integer("none", None) is None and told.integer("missing", 7) == 7
    assert told.inside("none", None).values == {} and told.texts("missing", []) == []
    assert told.number("real") == 0.5
    with pytest.raises(ValueError, match="none should be an integer"):
        told.integer("none", 7)


@pytest.mark.parametrize("value", [-1, 1 << 63, 2.0, True, "3"])
def test_integers_are_whole_and_of_64_bits(value: Any) -> None:
    with pytest.raises(ValueError, match="n should be an integer of at least 0"):
        Entries({"n": value}).integer("n")


@pytest.mark.parametrize("value", [1.5, "1.5", "", "x", True, None, "9" * 19, float("inf"), [1]])
def test_integers_as_digits(value: Any) -> None:
    with pytest.raises(ValueError, match="no integer of 64 bits"):
        integer_of(value)


def test_depth() -> None:
    deep = '{"a":[' * (MAX_DEPTH // 2)
    close = "]}" * (MAX_DEPTH // 2)
    assert parse_json(f"{deep}1{close}")
    with pytest.raises(ValueError, match="nested more than"):
        parse_json(f"{deep}[[1]]{close}")
    assert len(parse_json("[" + ",".join(["[1]"] * 500) + "]")) == 500


def test_a_spec_names_the_entry_that_is_wrong() -> None:
    told = StepSpec().to_json()
    told["reward"]["field"]["shape"] = ["x"]
    with pytest.raises(ValueError, match=r"reward\.field\.shape should be a list of lengths"):
        StepSpec.from_json(told)
