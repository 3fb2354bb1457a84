"""Every transition has the same chance, in every way of drawing; the same seed gives the same draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from tests.buffers.frequencies import p_value
from tests.buffers.numbered import SPEC, episode, transitions

DRAWS = 50_000


def counts(buffer: Any, keys: np.ndarray) -> np.ndarray:
    order = {key: i for i, key in enumerate(buffer.keys().tolist())}
    return np.bincount([order[key] for key in keys.tolist()], minlength=len(order))


def partly_evicted(capacity: int, seed: int) -> Any:
    """Wrapped several times, an episode cut by the write head, episodes and loose transitions."""
    buffer = rlds2buf.make_circular(SPEC, capacity, seed=seed)
    for i in range(9):
        buffer.add(episode(100 * i, 2 + (3 * i) % 7))
        buffer.add(transitions(100 * i + 50, 1 + i % 3), source_id=1)
    assert buffer.stats()["num_rows"] == capacity
    return buffer


@pytest.mark.parametrize("capacity", [15, 16, 17, 32])
def test_with_replacement(capacity: int) -> None:
    buffer = partly_evicted(capacity, seed=capacity)
    drawn = np.concatenate([buffer.sample(500).info.key for _ in range(DRAWS // 500)])
    observed = counts(buffer, drawn)
    assert len(observed) == len(buffer) < capacity
    assert 1e-3 < p_value(observed, np.full(len(observed), 1 / len(observed)))


@pytest.mark.parametrize("kwargs", [{"n_step": 4}, {"sequence_length": 3}], ids=str)
def test_starts_of_long_items(kwargs: dict[str, Any]) -> None:
    """Short horizons near an end are as likely as long ones: no start is rejected."""
    buffer = partly_evicted(17, seed=2)
    drawn = np.concatenate([buffer.sample(500, **kwargs).info.key for _ in range(DRAWS // 500)])
    observed = counts(buffer, drawn)
    assert 1e-3 < p_value(observed, np.full(len(observed), 1 / len(observed)))


def test_one_draw_at_a_time() -> None:
    buffer = partly_evicted(16, seed=5)
    drawn = np.concatenate([buffer.sample(1).info.key for _ in range(6000)])
    observed = counts(buffer, drawn)
    assert 1e-3 < p_value(observed, np.full(len(observed), 1 / len(observed)))


def test_without_replacement() -> None:
    """Each item is in a draw of 4 of n with chance 4 / n, and in each place of it equally often."""
    buffer = partly_evicted(16, seed=3)
    n = len(buffer)
    places = np.zeros((4, n), int)
    for _ in range(6000):
        keys = buffer.sample(4, replace=False).info.key
        assert len(set(keys.tolist())) == 4
        for place in range(4):
            places[place] += counts(buffer, keys[place : place + 1])
    for place in range(4):
        assert 1e-3 < p_value(places[place], np.full(n, 1 / n))


def test_of_one_source() -> None:
    buffer = partly_evicted(32, seed=4)
    drawn = np.concatenate([buffer.sample(500, source_id=1).info.key for _ in range(40)])
    observed = counts(buffer, drawn)
    held = observed[observed > 0]
    assert 3 < len(held) < len(buffer)
    assert 1e-3 < p_value(held, np.full(len(held), 1 / len(held)))


def test_pairs_of_draws_are_independent() -> None:
    buffer = rlds2buf.make_circular(SPEC, 5, seed=6)
    buffer.add(transitions(0, 5))
    first = np.concatenate([buffer.sample(2).data.observation["count"] for _ in range(20_000)])
    pairs = np.bincount(first[::2] * 5 + first[1::2], minlength=25)
    assert 1e-3 < p_value(pairs, np.full(25, 1 / 25))


def test_of_long_rings() -> None:
    """Deciles of a hundred thousand rows; positions beyond a draw's resolution would show here."""
    rows = 100_000
    ep = rlds2buf.Episode(
        observation=np.arange(rows), action=np.zeros(rows), reward=np.zeros(rows), discount=np.ones(rows)
    )
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), rows, seed=8)
    buffer.add(ep)
    deciles = np.bincount(buffer.sample(DRAWS).data.observation * 10 // (rows - 1), minlength=10)
    assert 1e-3 < p_value(deciles, np.full(10, 0.1))


def test_seed_sequence_over_adds() -> None:
    """Same seed, same operations: the same batches, column for column."""

    def run(seed: int) -> list[list[float]]:
        buffer = rlds2buf.make_circular(SPEC, 20, seed=seed)
        out = []
        for i in range(12):
            buffer.add(episode(30 * i, 3 + i))
            out.append(buffer.sample(6).data.observation["place"].ravel().tolist())
            out.append(buffer.sample(6, n_step=3, gamma=0.9).data.reward.tolist())
            out.append(buffer.sample(6, sequence_length=4).data.mask.ravel().tolist())
        return out

    assert run(11) == run(11)
    assert run(11) != run(12)


def test_unseeded_buffers_differ() -> None:
    keys = []
    for _ in range(2):
        buffer = rlds2buf.make_circular(SPEC, 100)
        buffer.add(transitions(0, 100))
        keys.append(buffer.sample(50).info.key.tolist())
    assert keys[0] != keys[1]
