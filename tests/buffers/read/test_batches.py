"""Batches drawn in the background: the same ones whatever is under way, and threads that end."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import MissingDependency, NotEnoughItems, ReplayError
from rlds2buf.buffers.read.prefetch import Batches
from rlds2buf.core import nest
from tests.buffers.compare import assert_same_nest
from tests.buffers.numbered import SPEC, episode, transitions

KINDS = {
    "circular": rlds2buf.make_circular,
    "prioritized": rlds2buf.make_prioritized,
    "stratified": lambda spec, capacity, **kwargs: rlds2buf.make_prioritized(spec, capacity, stratified=True, **kwargs),
    "reservoir": rlds2buf.make_reservoir,
    "episodes": lambda spec, capacity, **kwargs: rlds2buf.make_circular(
        spec, capacity, storage_unit="episodes", **kwargs
    ),
}


def filled(kind: str = "circular", seed: int = 3) -> Any:
    buffer = KINDS[kind](SPEC, 300, seed=seed)
    for i in range(12):
        buffer.add(episode(100 * i, 4 + i), source_id=i % 2)
    if kind in ("prioritized", "stratified"):
        buffer.update_priorities(buffer.keys(), np.arange(len(buffer)) % 7)
    return buffer


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rlds2buf-batches"]


def wait_for_the_end(most: float = 5.0) -> None:
    start = time.monotonic()
    while threads():
        assert time.monotonic() - start < most, "a thread goes on"
        time.sleep(0.01)


def assert_same_samples(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert_same_nest(one.data._asdict(), other.data._asdict())
        assert_same_nest(one.info._replace(table_size=None)._asdict(), other.info._replace(table_size=None)._asdict())
        assert one.info.table_size == other.info.table_size


VIEWS: list[dict[str, Any]] = [{}, {"n_step": 3, "gamma": 0.9}, {"sequence_length": 3}, {"source_id": 1}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_the_same_whatever_is_under_way(kind: str, view: dict[str, Any]) -> None:
    expected = list(filled(kind).batches(5, steps=7, prefetch=0, **view))
    for prefetch, together in ((0, 3), (1, 1), (2, 1), (5, 4), (1, 16)):
        buffer = filled(kind)
        got = []
        for batch in buffer.batches(5, steps=7, prefetch=prefetch, together=together, **view):
            got.append(batch)
            buffer.sample(3)  # what else is sampled makes no difference
        assert_same_samples(got, expected)
    assert not threads()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("view", [*VIEWS, {"replace": False}], ids=str)
def test_many_are_those_one_by_one(kind: str, view: dict[str, Any]) -> None:
    buffer, other = filled(kind), filled(kind)
    many = buffer.sample_many(6, 4, **view)
    assert_same_samples(many, [other.sample(4, **view) for _ in range(6)])
    assert buffer.stats()["sampled"] == other.stats()["sampled"] == 24


def test_batches_of_many_are_apart() -> None:
    """They may lie in one block of memory, and never in the same part of it."""
    batches = filled().sample_many(3, 4, sequence_length=2)
    before = [nest.map_structure(lambda c: None if c is None else c.copy(), batch.data) for batch in batches[1:]]
    for _, column in nest.flatten(batches[0].data):
        if column is not None:
            column[...] = 0
    for batch, same in zip(batches[1:], before, strict=True):
        assert_same_nest(batch.data._asdict(), same._asdict())


def test_seeds() -> None:
    def keys(seed: int) -> list[list[int]]:
        return [batch.info.key.tolist() for batch in filled(seed=seed).batches(4, steps=3)]

    assert keys(1) == keys(1) != keys(2)
    buffer = filled()
    first, second = ([b.info.key.tolist() for b in buffer.batches(4, steps=3)] for _ in range(2))
    assert first != second


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_as_many_as_asked_for(prefetch: int, steps: int) -> None:
    batches = filled().batches(4, prefetch=prefetch, steps=steps)
    assert len(list(batches)) == steps
    assert list(batches) == []
    assert not threads()


# -- threads ----------------------------------------------------------------------------------------


def test_no_end() -> None:
    batches = filled().batches(4, prefetch=2)
    for _ in range(50):
        assert len(next(batches).info.key) == 4
    assert len(threads()) == 1 and threads()[0].daemon
    batches.close()
    assert not threads()
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)


def test_letting_go_ends_the_thread() -> None:
    for _ in filled().batches(4):
        break
    gc.collect()
    wait_for_the_end()
    with filled().batches(4) as batches:
        next(batches)
    assert not threads()
    with pytest.raises(KeyError), filled().batches(4) as batches:
        raise KeyError(next(batches).info.table_size)
    assert not threads()


def test_draws_ahead_and_no_further() -> None:
    buffer = filled()
    batches = buffer.batches(4, prefetch=3)
    next(batches)
    time.sleep(0.3)
    # One was taken, three are ready, and one more waits to be put with them.
    assert buffer.stats()["sampled"] == 4 * 5
    batches.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_reach_the_learner(prefetch: int) -> None:
    empty = rlds2buf.make_circular(SPEC, 10)
    batches = empty.batches(4, prefetch=prefetch)
    with pytest.raises(NotEnoughItems, match=r"\b0\b"):
        next(batches)
    assert list(batches) == [] and not threads()
    small = rlds2buf.make_circular(SPEC, 10)
    small.add(transitions(0, 3))
    with pytest.raises(NotEnoughItems, match="3"):
        next(small.batches(4, prefetch=prefetch, replace=False))
    assert not threads()


def test_what_was_drawn_before_an_error_comes_first() -> None:
    made = iter(range(3))

    def draw(count: int) -> list[Any]:
        return [next(made, None)]

    def convert(number: Any) -> Any:
        return 10 // (2 - number)

    batches = Batches(draw, convert, prefetch=5)
    assert [next(batches), next(batches)] == [5, 10]
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert not threads()


def test_waits_end() -> None:
    release = threading.Event()

    def draw(count: int) -> list[Any]:
        release.wait(10)
        return [1] * count

    start = time.monotonic()
    batches = Batches(draw, lambda batch: batch, timeout=0.2)
    with pytest.raises(ReplayError, match=r"0\.2 seconds"):
        next(batches)
    assert time.monotonic() - start < 3
    release.set()
    wait_for_the_end()


def test_closed_while_somebody_waits() -> None:
    release = threading.Event()
    batches = Batches(lambda count: [release.wait(10)], lambda batch: batch, timeout=20)
    threading.Timer(0.2, lambda: (release.set(), batches.close())).start()
    start = time.monotonic()
    list(batches)
    assert time.monotonic() - start < 5
    wait_for_the_end()


def test_while_the_buffer_is_written_to() -> None:
    buffer = filled()
    with buffer.batches(32, prefetch=4, together=3) as batches:
        for i in range(200):
            batch = next(batches)
            count = batch.data.observation["count"]
            assert (batch.data.observation["place"][:, 0] == count).all()
            assert (batch.data.action == count * 10).all()
            buffer.add(episode(1000 + 50 * i, 12))


# -- frameworks -------------------------------------------------------------------------------------


def test_where_batches_go() -> None:
    buffer = filled()
    for kwargs in ({"to": "pytorch"}, {"to": "numpy", "device": "cpu"}, {"to": "numpy", "pin_memory": True}):
        with pytest.raises(ValueError, match=r"torch"):
            buffer.batches(4, **kwargs)
    with pytest.raises(ValueError, match="batch_size"):
        buffer.batches(0)
    with pytest.raises(ValueError, match="prefetch"):
        buffer.batches(4, prefetch=-1)
    with pytest.raises(ValueError, match="together"):
        buffer.batches(4, together=0)
    with pytest.raises(ValueError, match="steps"):
        buffer.batches(4, steps=-1)
    with pytest.raises(ValueError, match="timeout"):
        buffer.batches(4, timeout=0)
    with pytest.raises(TypeError, match="sequence"):
        buffer.batches(4, sequence=3)
    assert not threads()


@pytest.mark.parametrize(("to", "package"), [("torch", "torch"), ("tf", "tensorflow"), ("jax", "jax")])
def test_a_framework_that_is_not_there(to: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingDependency, match=f"pip install {package}"):
        filled().batches(4, to=to)
    assert not threads()


def test_arrays_can_be_lent() -> None:
    """All columns of a batch start at cache lines, also in the batches of several at once."""
    for batch in (filled().sample(64), *filled().sample_many(3, 64), filled().sample(64, sequence_length=3)):
        data = batch.data
        for column in (*data.observation.values(), *data.next_observation.values(), data.action):
            assert column.flags.c_contiguous and column.ctypes.data % 64 == 0
