"""Work done ahead comes in order, and errors behind what precedes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rlds2buf.formats.step_log.ahead import ahead


@pytest.fixture(params=[1, 3])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(os, "cpu_count", lambda: request.param)
    return int(request.param)


def one(_: int) -> int:
    return 1


def taken(items: Iterator[tuple[int, int]]) -> tuple[list[tuple[int, int]], str]:
    found: list[tuple[int, int]] = []
    try:
        found.extend(items)
    except ValueError as error:
        return found, str(error)
    return found, ""


def test_in_order(cores: int) -> None:
    assert taken(ahead(lambda n: n * n, iter(range(50)), one)) == ([(n, n * n) for n in range(50)], "")
    assert list(ahead(len, iter([]), len)) == []


@pytest.mark.parametrize("at", [0, 1, 7, 19])
def test_an_error_of_the_work_comes_behind_what_precedes_it(cores: int, at: int) -> None:
    def work(n: int) -> int:
        if n >= at:
            raise ValueError(f"work {n}")
        return n

    assert taken(ahead(work, iter(range(20)), one)) == ([(n, n) for n in range(at)], f"work {at}")


@pytest.mark.parametrize("at", [0, 1, 7, 19])
def test_an_error_of_the_items_comes_behind_what_precedes_it(cores: int, at: int) -> None:
    def items() -> Iterator[int]:
        yield from range(at)
        raise ValueError("items")

    assert taken(ahead(lambda n: n, items(), one)) == ([(n, n) for n in range(at)], "items")


def test_no_thread_is_left_behind(cores: int) -> None:
    before = threading.active_count()
    work: Any = ahead(lambda n: n, iter(range(1000)), one)
    assert next(work) == (0, 0)
    work.close()
    assert threading.active_count() == before


def test_large_items_are_not_taken_ahead(cores: int) -> None:
    given: list[int] = []

    def items() -> Iterator[int]:
        for n in range(10):
            given.append(n)
            yield n

    work: Any = ahead(lambda n: n, items(), lambda n: 1 << 25)
    for n in range(10):
        assert next(work) == (n, n) and len(given) == n + 1
    work.close()
