"""The language of filters."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, spec_of
from rlds2buf.transform.facts import Facts
from rlds2buf.transform.tree import tree_of
from rlds2buf.transform.where import MAX_LENGTH, ExpressionError, Where

EPISODE = Episode(
    observation={"state": np.array([[0.0, 1.0], [2.0, -3.0], [4.0, 5.0]]), "note": np.array([b"a"] * 3, object)},
    action=np.array([1, 2, 99]),
    reward=np.array([1.0, 2.5, 99.0]),
    is_terminal=[False, False, True],
    extras={"cost": np.zeros(3), "plan/b": np.ones(3), "empty": np.zeros((3, 0))},
    metadata={
        "success": np.array(True),
        "score": np.float32(0.5),
        "task": {"name": b"push block", "id": 7, "words": (b"a", 3)},
        "episode id": "e1",
        "nan": float("nan"),
        "vector": np.arange(3),
        "colours": np.array([b"red", b"green"], object),
        "one": np.array([b"a"], object),
        "ones": np.ones((1, 1)),
        "x-1.a": 1,
    },
    index=12,
)


def holds(expression: str, episode: Episode = EPISODE) -> bool:
    return Where(expression)(Facts(EpisodeBatch.of_one(episode)))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("length == 3", True),
        ("length != 3", False),
        ("return == 3.5", True),
        ("return>3 and return<4", True),
        ("3 <= length < 4 < 5", True),
        ("3 <= length < 3", False),
        ("index >= 12", True),
        ("end == 'terminated'", True),
        ('end == "truncated" or end == "terminated"', True),
        ("end in ['truncated', 'open']", False),
        ("end not in ['truncated', 'open',]", True),
        ("index in [1, 12]", True),
        ("metadata/success", True),
        ("metadata/success == true", True),
        ("not metadata/success", False),
        ("not not metadata/success", True),
        ("metadata/score >= 0.5", True),
        ("metadata/task/name == 'push block'", True),
        ("'push' in metadata/task/name", True),
        ("metadata/task/id > 6.5", True),
        ("metadata/task/words/0 == 'a' and metadata/task/words/1 == 3", True),
        ("metadata/task/words/9 == none", True),
        ("'red' in metadata/colours and not 'blue' in metadata/colours", True),
        ("metadata/one == 'a' and metadata/ones == 1", True),
        ("2 in metadata/vector and 3 not in metadata/vector", True),
        ('metadata/"episode id" == "e1"', True),
        ("metadata/x-1.a == 1", True),
        ("metadata/nothing", False),
        ("not metadata/nothing/deeper", True),
        ("metadata/nothing == none", True),
        ("metadata/nothing < 1 or metadata/nothing >= 1", False),
        ("metadata/nan < 1 or metadata/nan >= 1", False),
        ("metadata/score == 'half'", False),
        ("any(observation/state < -2.5)", True),
        ("any(observation/state < -3)", False),
        ("all(observation/state >= -3)", True),
        ("min(observation/state) == -3 and max(observation/state) == 5", True),
        ("mean(observation/state) == 1.5 and sum(observation/state) == 9", True),
        ("max(action) == 2", True),
        ("sum(reward) == return", True),
        ("any(cost) or any(extras/cost)", False),
        ("all(is_terminal)", False),
        ("any(is_terminal)", True),
        ("sum(extras/empty) == 0 and max(extras/empty) == none", True),
        ("true and (false or TRUE)", True),
        ("False or None", False),
        ("true or true and false", True),
        ("(true or true) and false", False),
        ("not true or true", True),
        ("length == 3e0 and length > -.5 and length < 1E+2", True),
        ("  length\n==\t3 ", True),
    ],
)
def test_what_it_says(expression: str, expected: bool) -> None:
    assert holds(expression) is expected


def test_without_rewards_the_return_is_none() -> None:
    assert not holds("return >= 0 or return < 0", Episode(observation=np.zeros(2)))


@pytest.mark.parametrize(
    ("expression", "position", "says"),
    [
        ("", 0, "something is missing"),
        ("length >", 8, "something is missing"),
        ("length > and", 9, "'and' is not expected here"),
        ("length 5", 7, "'5' is not expected here"),
        ("(length > 5", 11, r"'\)' is expected"),
        ("length > 5)", 10, r"'\)' is not expected here"),
        ("lenght > 5", 0, "unknown name 'lenght'; is it 'length'"),
        ("success", 0, "unknown name 'success'; known are"),
        ("metadata", 0, "unknown name 'metadata'"),
        ("length > 1 and reward > 1", 15, "'reward' has a value for each step: ask for any"),
        ("observation/state", 0, "has a value for each step"),
        ("median(reward) > 1", 0, "unknown function 'median'; there are any, all"),
        ("any(5)", 4, "a field is missing"),
        ("any(reward > 'a')", 13, "a number is missing"),
        ("max(reward > 1)", 11, r"'\)' is expected, not '>'"),
        ("end in [length]", 8, "a number or a quoted text"),
        ("end in ['a' 'b']", 12, "',' is expected"),
        ("length = 5", 7, "'=' can't be read"),
        ("length > 5; import os", 10, "';' can't be read"),
        ("__import__('os')", 0, "unknown function '__import__'"),
        ("().__class__", 2, "'.' can't be read"),
        ("length > 5 and 'open", 15, "\"'\" can't be read"),
        ("(" * 60 + "true" + ")" * 60, 50, "nested more than 50 deep"),
        ("length > 0" + " " * MAX_LENGTH, MAX_LENGTH, "at most 10000 characters"),
        ("metadata/", 8, "'/' can't be read"),
    ],
)
def test_what_can_not_be_read(expression: str, position: int, says: str) -> None:
    with pytest.raises(ExpressionError, match=says) as caught:
        Where(expression)
    assert caught.value.position == position and caught.value.expression == expression


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("metadata/task/name > 3", "'push block' and 3 have no order"),
        ("metadata/vector", "an array of 3 values is neither true nor false"),
        ("metadata/vector == 1", "an array of 3 values"),
        ("metadata/task > 1", "can't be compared"),
        ("length in length", "'in' needs a list or a text"),
        ("any(observation/stat)", "no field 'observation/stat'; is it 'observation/state'"),
        ("any(observation/note)", "is no field of numbers"),
        ("any(observation)", "is no field of numbers"),
    ],
)
def test_what_can_not_be_answered(expression: str, says: str) -> None:
    with pytest.raises(ExpressionError, match=says) as caught:
        holds(expression)
    assert 0 <= caught.value.position < len(expression)


def test_fields_are_looked_for_before_any_data_are_read() -> None:
    tree, original = tree_of(spec_of(Episode(reward=np.ones(2)))), tree_of(spec_of(EPISODE))
    Where("any(observation/state) and sum(reward) > return").check(tree, original)
    for expression, says in (
        ("any(actoin)", "no field 'actoin'"),
        ("any(observation)", "is no field of numbers"),
        ("any(observation/note)", "is no field of numbers"),
    ):
        with pytest.raises(ExpressionError, match=says):
            Where(expression).check(tree, original)
    with pytest.raises(ExpressionError, match="no reward of one number"):
        Where("length > 1 and return > 1").check({}, original)


def test_a_dropped_field_is_found_in_the_original() -> None:
    facts = Facts(EpisodeBatch.of_one(Episode(reward=[1.0, 0.0])), EpisodeBatch.of_one(EPISODE))
    assert Where("max(observation/state) == 5 and return == 1")(facts)


_NUMBERS = st.integers(-5, 5)


@given(st.recursive(
    st.tuples(_NUMBERS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), _NUMBERS).map(
        lambda parts: " ".join(map(str, parts))
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        inner.map(lambda text: f"not ({text})"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=12,
))  # fmt: skip
def test_precedence_is_python_s(expression: str) -> None:
    assert holds(expression) is eval(expression, {"__builtins__": {}})


@given(st.text(alphabet=string.printable, max_size=40) | st.lists(st.sampled_from(
    ["length", "return", "and", "or", "not", "in", "(", ")", "[", "]", ",", "<", "==", "5", "'a'", "any", "reward",
     "metadata/task/name", "metadata/vector", "true", "none", " "]), max_size=12).map(" ".join))  # fmt: skip
def test_any_text_is_an_answer_or_an_expression_error(expression: str) -> None:
    try:
        assert holds(expression) in (True, False)
    except ExpressionError as error:
        assert 0 <= error.position <= len(expression)


def test_an_error_shows_long_expressions_shortened() -> None:
    with pytest.raises(ExpressionError) as caught:
        Where("length > 1 and " * 200 + "x")
    message: Any = str(caught.value)
    assert len(message) < 400 and "..." in message
