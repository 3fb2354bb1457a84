"""A small language for choosing episodes; nothing in it can run code."""

from __future__ import annotations

import dataclasses
import difflib
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import numpy as np

from rlds2buf.core.nest import Nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.transform.facts import FACTS, FUNCTIONS, Facts
from rlds2buf.transform.tree import TOP, find, near_miss

__all__ = ["ExpressionError", "Where"]

MAX_LENGTH = 10_000
MAX_DEPTH = 50


class ExpressionError(ValueError):
    """An expression that can't be read, or asks for what is not there.

    Attributes:
        expression: the whole text.
        position: where in it, 0-based.
    """

    def __init__(self, message: str, expression: str, position: int) -> None:
        self.expression = expression
        self.position = position
        shown = expression if len(expression) <= 200 else expression[:200] + "..."
        super().__init__(f"{message} (at character {position + 1} of {shown!r})")


Evaluate = Callable[[Facts], Any]

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ORDER: Final = ("<", "<=", ">", ">=")
_CONSTANTS: Final = {"true": True, "false": False, "none": None}
_WORDS: Final = ("and", "or", "not", "in")

_COMPONENT = r"""(?:[\w.:-]+|"[^"]*"|'[^']*')"""
_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w/]))
      | (?P<text>"[^"]*"|'[^']*')
      | (?P<path>[A-Za-z_]\w*(?:/{_COMPONENT})*)
      | (?P<sign>==|!=|<=|>=|<|>|\(|\)|\[|\]|,)
    )""",
    re.VERBOSE,
)


@dataclasses.dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


class Where:
    """An expression over one episode; true for those that are kept.

    =====================================  =============================================================
    written                                meaning
    =====================================  =============================================================
    ``length``                             rows; transitions are one fewer
    ``return``                             the sum of the rewards of its transitions
    ``end``                                ``"terminated"``, ``"truncated"`` or ``"open"``
    ``index``                              its number in the source, 0-based
    ``metadata/task/name``                 a value of its metadata; ``none`` where it has none
    ``any(F)``, ``all(F)``                 whether any or every value of the field F, of all its steps,
                                           is not 0; ``any(F > 1)`` whether any is above 1
    ``min(F) max(F) mean(F) sum(F)``       of the field F; the last row's action, reward and discount,
                                           which are padding, don't count
    ``== != < <= > >=``, ``in [a, b]``     comparisons, which may be chained: ``5 <= length < 100``
    ``and or not ( )``                     as in Python
    ``1.5 "text" true false none``         constants
    =====================================  =============================================================

    ``in`` also finds a text in a text, and an element in metadata that are arrays or lists.  What is ``none``
    or not a number (NaN) is neither smaller nor larger than anything.  A key that is
    not a word is quoted: ``metadata/"episode id"``.

    Args:
        expression: the text.

    Attributes:
        columns: the step fields that it names, each with its position in the text.

    Raises:
        ExpressionError: it can't be read; the message and `position` say where.

    >>> where = Where("metadata/success and return > 10 and length >= 5")
    >>> from rlds2buf.core.episode import Episode
    >>> from rlds2buf.core.episode_batch import EpisodeBatch
    >>> where(Facts(EpisodeBatch.of_one(Episode(reward=[6.0] * 5, metadata={"success": True}))))
    True
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.columns: list[tuple[str, int]] = []
        self._depth = 0
        self._facts: list[tuple[str, int]] = []
        if len(expression) > MAX_LENGTH:
            raise ExpressionError(f"an expression has at most {MAX_LENGTH} characters", expression, MAX_LENGTH)
        self._tokens = self._split()
        self._next = 0
        self._evaluate = self._either()
        if self._here.kind != "end":
            self._fail(f"{self._here.text!r} is not expected here")

    def __call__(self, facts: Facts) -> bool:
        """Whether the episode that `facts` stand at is kept.

        Raises:
            ExpressionError: values that can't be compared, or a field that is not there.
        """
        return self._truth(self._evaluate(facts), 0)

    def check(self, tree: Mapping[str, Nest], original: Mapping[str, Nest]) -> None:
        """Raise unless the fields that it names are in either tree of FieldSpec.

        Raises:
            ExpressionError: one is not, or is no field of numbers; or there is no reward to sum.
        """
        for name, position in self.columns:
            field = next((found for found in (_field(tree, name), _field(original, name)) if found is not None), None)
            if field is None:
                raise ExpressionError(f"no field {name!r}{near_miss(tree, name)}", self.expression, position)
            if not isinstance(field, FieldSpec) or field.dtype.kind not in "biuf" or None in field.shape:
                raise ExpressionError(f"{name!r} is no field of numbers", self.expression, position)
        reward = tree.get("reward")
        for name, position in self._facts:
            if name == "return" and not (isinstance(reward, FieldSpec) and reward.shape == ()):
                raise ExpressionError("there is no reward of one number a step to sum", self.expression, position)

    # Reading: a method for each level of precedence, loosest first.

    def _either(self) -> Evaluate:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"parentheses are nested more than {MAX_DEPTH} deep")
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else lambda facts: any(self._truth(part(facts), 0) for part in parts)

    def _both(self) -> Evaluate:
        parts = [self._negation()]
        while self._take("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else lambda facts: all(self._truth(part(facts), 0) for part in parts)

    def _negation(self) -> Evaluate:
        negated, position = False, self._here.position
        while self._take("not"):
            negated = not negated
            position = self._here.position
        inner = self._comparison()
        return (lambda facts: not self._truth(inner(facts), position)) if negated else inner

    def _comparison(self) -> Evaluate:
        first = self._value()
        links: list[tuple[Callable[[Any, Any], Any], Evaluate]] = []
        while (compare := self._operator()) is not None:
            links.append((compare, self._value()))
        if not links:
            return first

        def evaluate(facts: Facts) -> bool:
            left = first(facts)
            for compare, value in links:
                right = value(facts)
                if not compare(left, right):
                    return False
                left = right
            return True

        return evaluate

    def _operator(self) -> Callable[[Any, Any], Any] | None:
        token = self._here
        if token.text in _OPERATORS and token.kind == "sign":
            self._next += 1
            return lambda left, right: self._compare(token, left, right)
        if self._take("in"):
            return lambda left, right: self._contains(token, left, right)
        if token.kind == "path" and token.text == "not" and self._tokens[self._next + 1].text == "in":
            self._next += 2
            return lambda left, right: not self._contains(token, left, right)
        return None

    def _value(self) -> Evaluate:
        token = self._here
        if token.kind == "end":
            self._fail("something is missing")
        self._next += 1
        if token.kind in ("number", "text"):
            constant = _constant(token)
            return lambda facts: constant
        if token.text == "(":
            inner = self._either()
            self._expect(")")
            return inner
        if token.text == "[":
            return self._list()
        if token.kind == "sign" or token.text in _WORDS:
            self._next -= 1
            self._fail(f"{token.text!r} is not expected here")
        return self._name(token)

    def _name(self, token: _Token) -> Evaluate:
        if self._here.text == "(":
            return self._function(token)
        if token.text.lower() in _CONSTANTS:
            constant = _CONSTANTS[token.text.lower()]
            return lambda facts: constant
        if token.text in FACTS:
            self._facts.append((token.text, token.position))
            return lambda facts: facts.fact(token.text)
        first, *rest = _parts(token.text)
        if first == "metadata" and rest:
            return lambda facts: facts.metadata(rest)
        if first in TOP:
            self._fail(
                f"{token.text!r} has a value for each step: ask for any(), all(), min(), max(), mean() or sum() of it",
                token,
            )
        near = difflib.get_close_matches(token.text, [*FACTS, "metadata"], n=1)
        hint = f"; is it {near[0]!r}?" if near else f"; known are {', '.join(FACTS)}, metadata/... and functions"
        self._fail(f"unknown name {token.text!r}{hint}", token)

    def _function(self, token: _Token) -> Evaluate:
        if token.text not in FUNCTIONS:
            self._fail(f"unknown function {token.text!r}; there are {', '.join(FUNCTIONS)}", token)
        self._expect("(")
        field = self._here
        if field.kind != "path":
            self._fail("a field is missing")
        self._next += 1
        name = "/".join(_parts(field.text))
        self.columns.append((name, field.position))
        test = self._threshold() if token.text in ("any", "all") else None
        self._expect(")")

        def evaluate(facts: Facts) -> Any:
            try:
                return facts.reduced(token.text, name, test)
            except ValueError as cause:
                raise ExpressionError(str(cause), self.expression, field.position) from cause

        return evaluate

    def _threshold(self) -> Callable[[np.ndarray], Any] | None:
        """The comparison inside ``any(F > 1)``."""
        sign = self._here
        if sign.kind != "sign" or sign.text not in _OPERATORS:
            return None
        self._next += 1
        limit = self._here
        if limit.kind != "number":
            self._fail("a number is missing")
        self._next += 1
        number = _constant(limit)
        return lambda column: _OPERATORS[sign.text](column, number)

    def _list(self) -> Evaluate:
        values = []
        while not self._take("]"):
            if self._here.kind not in ("number", "text"):
                self._fail("a number or a quoted text is missing")
            values.append(_constant(self._here))
            self._next += 1
            if self._here.text != "]":
                self._expect(",")
        return lambda facts: values

    # Evaluating.

    def _compare(self, token: _Token, left: Any, right: Any) -> bool:
        if token.text in _ORDER:
            if left is None or right is None:
                return False
            if isinstance(left, str) != isinstance(right, str):
                raise ExpressionError(f"{left!r} and {right!r} have no order", self.expression, token.position)
        try:
            return self._truth(_OPERATORS[token.text](left, right), token.position)
        except (TypeError, ValueError) as cause:
            if isinstance(cause, ExpressionError):
                raise
            raise ExpressionError(
                f"{left!r} and {right!r} can't be compared", self.expression, token.position
            ) from cause

    def _contains(self, token: _Token, item: Any, values: Any) -> bool:
        if isinstance(values, str) and isinstance(item, str):
            return item in values
        if isinstance(values, np.ndarray):
            values = values.ravel().tolist()
        if not isinstance(values, list | tuple):
            raise ExpressionError("'in' needs a list or a text on its right", self.expression, token.position)
        return any(self._truth(item == value, token.position) for value in values)

    def _truth(self, value: Any, position: int) -> bool:
        if isinstance(value, np.ndarray) and value.size != 1:
            message = f"an array of {value.size} values is neither true nor false"
            raise ExpressionError(message, self.expression, position)
        return bool(value)

    # Tokens.

    @property
    def _here(self) -> _Token:
        return self._tokens[self._next]

    def _split(self) -> list[_Token]:
        tokens, position = [], 0
        text = self.expression.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                position += len(text[position:]) - len(text[position:].lstrip())
                raise ExpressionError(f"{text[position]!r} can't be read", self.expression, position)
            tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            position = match.end()
        end = _Token("end", "", len(text))
        return [*tokens, end]

    def _take(self, text: str) -> bool:
        if self._here.text != text or self._here.kind == "text":
            return False
        self._next += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._take(text):
            found = f", not {self._here.text!r}" if self._here.text else ""
            self._fail(f"{text!r} is expected{found}")

    def _fail(self, message: str, token: _Token | None = None) -> NoReturn:
        raise ExpressionError(message, self.expression, (token or self._here).position)


def _constant(token: _Token) -> Any:
    if token.kind == "text":
        return token.text[1:-1]
    return int(token.text) if re.fullmatch(r"-?\d{1,4000}", token.text) else float(token.text)


def _parts(path: str) -> list[str]:
    found = re.findall(_COMPONENT, path)
    return [part[1:-1] if part[0] in "\"'" else part for part in found]


def _field(tree: Mapping[str, Nest], name: str) -> Any:
    path = find(tree, name)
    if path is None:
        return None
    here: Any = tree
    for part in path:
        here = here[part]
    return here
