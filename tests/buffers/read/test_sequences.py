"""Sampled sequences: worked tables of what is real and what is padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, FieldSpec, StepSpec
from tests.reference.replay import ListReplay

SPEC = StepSpec(
    observation=FieldSpec((), np.float64),
    action=FieldSpec((), np.int64),
    reward=FieldSpec((), np.float64),
    discount=FieldSpec((), np.float64),
)
REWARD = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
IS_DONE = [0, 0, 1, 0, 2, 0, 0]


def stream(reward: list[float], is_done: list[int]) -> dict[str, np.ndarray]:
    count = np.arange(len(reward), dtype=np.float64)
    return {
        "observation": count,
        "action": count.astype(np.int64) + 1,
        "reward": np.array(reward),
        "discount": np.ones(len(reward)),
        "next_observation": count + 0.5,
        "is_done": np.array(is_done, np.uint8),
    }


def rewards_of(buffer: Any, keys: Any, length: int) -> list[list[float]]:
    """Real rewards of each sequence; everything behind them is checked to be zero."""
    batch = buffer.get(keys, sequence_length=length)
    assert batch.mask.shape == (len(keys), length)
    for name in ("observation", "action", "reward", "discount", "next_observation", "is_done"):
        assert (getattr(batch, name)[~batch.mask] == 0).all(), name
    for flag in (batch.is_first, batch.is_last, batch.is_terminal):
        assert not flag[~batch.mask].any()
    assert (np.diff(batch.mask.astype(int), axis=1) <= 0).all()  # real steps come first
    return [row[real].tolist() for row, real in zip(batch.reward, batch.mask, strict=True)]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1, [[1], [2], [3], [4], [5], [6], [7]]),
        (2, [[1, 2], [2, 3], [3], [4, 5], [5], [6, 7], [7]]),
        (3, [[1, 2, 3], [2, 3], [3], [4, 5], [5], [6, 7], [7]]),
        (9, [[1, 2, 3], [2, 3], [3], [4, 5], [5], [6, 7], [7]]),
    ],
)
@pytest.mark.parametrize("capacity", [7, 8, 50])
def test_stream(length: int, expected: list[list[float]], capacity: int) -> None:
    """Rewards 1 to 7 with ends [0, 0, 1, 0, 2, 0, 0]: the end's own step is the last real one."""
    buffer = rlds2buf.make_circular(SPEC, capacity)
    keys = buffer.add(stream(REWARD, IS_DONE))
    assert rewards_of(buffer, keys, length) == expected


def test_what_stands_in_a_padded_sequence() -> None:
    buffer = rlds2buf.make_circular(SPEC, 10)
    keys = buffer.add(stream(REWARD, IS_DONE))
    batch = buffer.get(keys[1:2], sequence_length=4)
    assert batch.mask.tolist() == [[True, True, False, False]]
    assert batch.observation.tolist() == [[1, 2, 0, 0]]
    assert batch.action.tolist() == [[2, 3, 0, 0]]
    assert batch.reward.tolist() == [[2, 3, 0, 0]]
    assert batch.next_observation.tolist() == [[1.5, 2.5, 0, 0]]
    assert batch.is_done.tolist() == [[0, 1, 0, 0]]
    assert batch.discount.tolist() == [[1, 0, 0, 0]]
    batch = buffer.get(keys[3:4], sequence_length=3)
    assert batch.is_done.tolist() == [[0, 2, 0]] and batch.discount.tolist() == [[1, 1, 0]]


def test_interleaved_sources() -> None:
    """Rewards 1, 10, 2, 20, 3, 30 of sources 0, 1, 0, 1, 0, 1; the fourth and the fifth end."""
    expected = [[1, 2, 3], [10, 20], [2, 3], [20], [3], [30]]
    reward, is_done, source = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0], [0, 0, 0, 1, 1, 0], [0, 1, 0, 1, 0, 1]
    buffer = rlds2buf.make_circular(SPEC, 6)
    keys = buffer.add(stream(reward, is_done), source_id=source)
    assert rewards_of(buffer, keys, 4) == expected
    assert rewards_of(buffer, keys, 2) == [row[:2] for row in expected]
    one_by_one = rlds2buf.make_circular(SPEC, 6)
    keys = np.concatenate(
        [one_by_one.add(stream([r], [d]), source_id=s) for r, d, s in zip(reward, is_done, source, strict=True)]
    )
    assert rewards_of(one_by_one, keys, 4) == expected


def test_wrapped_ring() -> None:
    """Capacity 4 and six steps: the slots hold 16, 32, 4, 8, and the newest is not followed by the oldest."""
    buffer = rlds2buf.make_circular(SPEC, 4)
    keys = buffer.add(stream([1, 2], [0, 0]))
    for reward in (4.0, 8.0, 16.0, 32.0):
        keys = np.concatenate([keys, buffer.add(stream([reward], [0]))])
    assert rewards_of(buffer, keys[2:], 3) == [[4, 8, 16], [8, 16, 32], [16, 32], [32]]
    assert rewards_of(buffer, keys[2:], 10) == [[4, 8, 16, 32], [8, 16, 32], [16, 32], [32]]


@pytest.mark.parametrize(("end", "codes"), [("terminated", [0, 0, 1]), ("truncated", [0, 0, 2]), ("open", [0, 0, 0])])
def test_episode(end: str, codes: list[int]) -> None:
    """Four rows are three steps; the last row is only the last one's next observation."""
    last = np.arange(4) == 3
    ep = Episode(
        observation=np.arange(4.0),
        action=np.arange(4) + 1,
        reward=np.array([1.0, 2.0, 4.0, 99.0]),
        discount=np.ones(4),
        is_first=np.arange(4) == 0,
        is_last=last & (end != "open"),
        is_terminal=last & (end == "terminated"),
    )
    buffer = rlds2buf.make_circular(SPEC, 20)
    keys = buffer.add(ep)
    buffer.add(ep)
    assert rewards_of(buffer, keys, 5) == [[1, 2, 4], [2, 4], [4]]
    batch = buffer.get(keys, sequence_length=3)
    assert batch.is_done[0].tolist() == codes
    assert batch.next_observation[0].tolist() == [1, 2, 3]
    assert batch.is_first.tolist() == [[True, False, False], [False] * 3, [False] * 3]
    assert not batch.is_last.any() and not batch.is_terminal.any()  # flags of the rows that steps start from


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 8, 9, 16, 17])
def test_brute_force(capacity: int) -> None:
    """Random ends, sources and wrap positions against the naive model."""
    rng = np.random.default_rng(capacity)
    buffer, twin = rlds2buf.make_circular(SPEC, capacity), ListReplay(capacity)
    named: dict[int, int] = {}
    for _ in range(60):
        count = int(rng.integers(1, 2 * capacity + 2))
        reward, is_done = rng.integers(0, 100, count).astype(float), rng.choice([0, 0, 0, 1, 2], count)
        source = rng.integers(0, 3, count)
        data = stream(reward.tolist(), is_done.tolist())
        items = [{name: column[i] for name, column in data.items()} for i in range(count)]
        keys = buffer.add(data, source_id=source)
        named.update(zip(keys.tolist(), twin.add_transitions(items, source.tolist()), strict=True))
        held = buffer.keys()
        for length in (1, 2, 5):
            expected = [[float(step["reward"]) for step in twin.sequence(named[key], length)] for key in held.tolist()]
            assert rewards_of(buffer, held, length) == expected
