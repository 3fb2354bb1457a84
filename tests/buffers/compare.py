"""Batches of a buffer against what the naive twin gives for the same items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2buf import Trajectory, Transition
from rlds2buf.core import nest
from tests.reference.replay import ListReplay

__all__ = ["assert_same_nest", "assert_sequences", "assert_transitions"]


def assert_same_nest(got: Any, expected: Any, what: str = "") -> None:
    """Equal structure, dtypes, shapes and values (NaN equals NaN)."""
    assert nest.same_structure(got, expected), what
    for (path, mine), (_, theirs) in zip(nest.flatten(got), nest.flatten(expected), strict=True):
        name = f"{what} {nest.path_name(path)}"
        if mine is None or theirs is None:
            assert mine is theirs, name
            continue
        assert mine.dtype == theirs.dtype, name
        if mine.dtype == object and any(isinstance(value, np.ndarray) for value in mine.flat):
            assert mine.shape == theirs.shape, name
            _assert_leaf(mine.reshape(-1), list(theirs.flat), name)
            continue
        np.testing.assert_array_equal(mine, theirs, err_msg=name)


def _assert_leaf(got: np.ndarray, expected: list[Any], what: str) -> None:
    """Row by row, exactly."""
    assert len(got) == len(expected), what
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=what)


def _assert_nests(got: Any, expected: list[Any], what: str) -> None:
    for path, column in nest.flatten(got):
        _assert_leaf(column, [nest.get(item, path) for item in expected], f"{what} {nest.path_name(path)}")
    for item in expected:
        assert nest.same_structure(got, item), what


def assert_transitions(
    got: Transition, twin: ListReplay, serials: Sequence[int], n_step: int = 1, gamma: float = 1.0
) -> None:
    """A batch is the twin's transitions of these serials."""
    expected = [twin.transition(serial, n_step, gamma) for serial in serials]
    for name in ("observation", "action", "next_observation", "extras"):
        _assert_nests(getattr(got, name), [item[name] for item in expected], name)
    for name in ("is_done", "steps"):
        assert getattr(got, name).tolist() == [item[name] for item in expected], name
    assert got.is_done.dtype == np.uint8 and got.steps.dtype == np.int32
    for name in ("reward", "discount", "bootstrap_discount"):
        column = getattr(got, name)
        assert column.dtype.kind == "f" and len(column) == len(expected)
        np.testing.assert_allclose(
            column.astype(np.float64), [item[name] for item in expected], rtol=2e-6, atol=1e-9, err_msg=name
        )


def assert_sequences(got: Trajectory, twin: ListReplay, serials: Sequence[int], length: int) -> None:
    """A batch is the twin's sequences of these serials, zeros and False behind their ends."""
    assert got.mask.shape == (len(serials), length) and got.mask.dtype == np.bool_
    for i, serial in enumerate(serials):
        expected = twin.sequence(serial, length)
        real = len(expected)
        assert got.mask[i].tolist() == [True] * real + [False] * (length - real)
        for name in ("observation", "action", "next_observation", "extras"):
            mine = nest.map_structure(lambda column, i=i, real=real: column[i, :real], getattr(got, name))
            _assert_nests(mine, [step[name] for step in expected], name)
        assert got.reward[i, :real].tolist() == [float(step["reward"]) for step in expected]
        np.testing.assert_allclose(got.discount[i, :real], [step["discount"] for step in expected], rtol=1e-6)
        assert got.is_done[i, :real].tolist() == [step["is_done"] for step in expected]
        for position, name in enumerate(("is_first", "is_last", "is_terminal")):
            for t, step in enumerate(expected):
                if step["from_episode"]:
                    assert getattr(got, name)[i, t] == step["flags"][position], name
        _assert_padding(got, i, real)


def _assert_padding(got: Trajectory, i: int, real: int) -> None:
    for name, value in got._asdict().items():
        for path, column in nest.flatten({} if value is None else value):
            behind, where = column[i, real:], f"{name} {nest.path_name(path)}"
            if column.dtype == object:
                assert all(
                    value.size == 0 if isinstance(value, np.ndarray) else value == b"" for value in behind.flat
                ), where
            else:
                assert (behind == 0).all(), where
