"""Batches from several buffers at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2buf import (
    Episode,
    InvalidPriority,
    MixedBuffers,
    NotEnoughItems,
    ReplayError,
    SpecMismatch,
    make_circular,
    make_prioritized,
    spec_of,
)


def episode(number: int, rows: int) -> Episode:
    """An episode whose observation tells buffer and row."""
    return Episode(
        observation={"who": np.full(rows, number), "row": np.arange(rows)},
        action=np.zeros((rows, 2), np.float32),
        reward=np.arange(rows) + 100.0 * number,
        discount=np.ones(rows),
        is_terminal=np.arange(rows) == rows - 1,
    )


def filled(number: int, rows: int, make: Any = make_circular) -> Any:
    buffer = make(spec_of(episode(0, 2)), 1000, seed=number)
    if rows:
        buffer.add(episode(number, rows))
    return buffer


def test_every_row_is_of_the_buffer_that_it_says() -> None:
    mixed = MixedBuffers([filled(0, 11), filled(1, 101), filled(2, 6)], weights=[1, 2, 3], seed=4)
    batch = mixed.sample(500)
    assert batch.data.observation["who"].tolist() == batch.info.source_id.tolist()  # type: ignore[attr-defined]
    assert batch.info.source_id.dtype == np.int32  # type: ignore[attr-defined]
    assert np.array_equal(batch.data.reward, batch.data.observation["row"] + 100.0 * batch.data.observation["who"])
    assert np.array_equal(batch.data.next_observation["row"], batch.data.observation["row"] + 1)
    assert batch.info.table_size == len(mixed) == 10 + 100 + 5
    shares = np.array([1, 2, 3]) / 6 / np.array([10, 100, 5])
    assert np.allclose(batch.info.probability, shares[batch.data.observation["who"]])


@pytest.mark.parametrize(("weights", "shares"), [([1, 3], [0.25, 0.75]), (None, [10 / 110, 100 / 110])])
def test_the_weights_hold(weights: list[float] | None, shares: list[float]) -> None:
    mixed = MixedBuffers([filled(0, 11), filled(1, 101)], weights=weights, seed=1)
    drawn = np.concatenate([mixed.sample(1000).info.source_id for _ in range(20)])  # type: ignore[attr-defined]
    found = np.bincount(drawn) / len(drawn)
    assert np.allclose(found, shares, atol=4 * np.sqrt(shares[0] * shares[1] / len(drawn)))


def test_in_proportion_to_their_sizes_is_uniform_over_all_items() -> None:
    mixed = MixedBuffers([filled(0, 4), filled(1, 8)], seed=1)
    batch = mixed.sample(50_000)
    assert np.allclose(batch.info.probability, 1 / 10)
    cells = batch.data.observation["who"] * 7 + batch.data.observation["row"]
    counts = np.unique(cells, return_counts=True)[1]
    assert len(counts) == 10 and ((counts - 5000) ** 2 / 5000).sum() < 34  # chi squared, 9 degrees: 0.01%


def test_a_seed_and_a_state_are_a_sequence_of_batches() -> None:
    def make() -> MixedBuffers:
        return MixedBuffers([filled(0, 11), filled(1, 21)], weights=[1, 1], seed=3)

    one, other = make(), make()
    first = one.sample(32)
    assert np.array_equal(first.data.reward, other.sample(32).data.reward)
    state = one.state_dict()
    after = one.sample(32)
    other.load_state_dict(state)
    assert np.array_equal(after.data.reward, other.sample(32).data.reward)
    assert not np.array_equal(first.data.reward, after.data.reward)


def test_sequences_and_n_step() -> None:
    mixed = MixedBuffers([filled(0, 11), filled(1, 21)], weights=[1, 1], seed=3)
    sequences = mixed.sample(64, sequence_length=5)
    assert sequences.data.observation["who"].shape == (64, 5) and sequences.data.burn_in is None
    assert (sequences.data.observation["who"][:, 0] == sequences.info.source_id).all()  # type: ignore[attr-defined]
    assert mixed.sample(64, n_step=3, gamma=0.5).data.steps.max() == 3


def test_priorities_go_to_their_own_buffers() -> None:
    buffers = [filled(number, 9, make_prioritized) for number in range(2)]
    mixed = MixedBuffers(buffers, weights=[1, 1], seed=2)
    batch = mixed.sample(64)
    numbers = batch.info.source_id  # type: ignore[attr-defined]
    gone = mixed.update_priorities(batch.info.key, numbers + 1.0, numbers)
    assert gone.shape == (64,) and not gone.any()
    for number, buffer in enumerate(buffers):
        again = buffer.sample(200)
        held = np.isin(again.info.key, batch.info.key[numbers == number])
        assert held.any() and np.allclose(again.info.priority[held], number + 1.0, atol=1e-3)
    buffers[1].clear()
    gone = mixed.update_priorities(batch.info.key, numbers + 1.0, numbers)
    assert np.array_equal(gone, numbers == 1)
    with pytest.raises(InvalidPriority):
        mixed.update_priorities(batch.info.key, numbers - 1.0, numbers)


def test_what_is_written_meanwhile_is_drawn() -> None:
    online = filled(1, 3)
    mixed = MixedBuffers([filled(0, 11), online], weights=[1, 1], seed=3)
    online.add(episode(1, 50))
    assert mixed.sample(500).data.observation["row"][:].max() > 40


def test_refused() -> None:
    one, empty = filled(0, 5), filled(1, 0)
    with pytest.raises(NotEnoughItems, match="4 items, 0 items"):
        MixedBuffers([one, empty], weights=[1, 1]).sample(3)
    assert set(MixedBuffers([one, empty]).sample(9).info.source_id) == {0}  # type: ignore[attr-defined]
    with pytest.raises(NotEnoughItems):
        MixedBuffers([empty]).sample(3)
    other = make_circular(spec_of(Episode(observation=np.zeros(3), reward=np.zeros(3))), 10)
    with pytest.raises(SpecMismatch, match=r"action: buffer 0 has float32.*, but buffer 1 has none"):
        MixedBuffers([one, other])
    for how in ({"weights": [1]}, {"weights": [1, 0]}, {"weights": [1, float("nan")]}):
        with pytest.raises(ValueError, match="weight"):
            MixedBuffers([one, one], **how)  # type: ignore[arg-type]
    mixed = MixedBuffers([one, one])
    with pytest.raises(ValueError, match="batch_size"):
        mixed.sample(0)
    with pytest.raises(ValueError, match="at least one buffer"):
        MixedBuffers([])
    with pytest.raises(ReplayError, match="uniformly"):
        mixed.update_priorities([0], [1.0], [0])
    with pytest.raises(ValueError, match="differ"):
        mixed.update_priorities([0, 1], [1.0], [0])
    with pytest.raises(ValueError, match="from 0 to 1"):
        mixed.update_priorities([0], [1.0], [2])


def test_shares_that_change() -> None:
    def mixed(seed: int = 1) -> MixedBuffers:
        weights: dict[str, Any] = {"weights": [4, 0, 4], "final_weights": [0, 1, 1], "anneal_steps": 100}
        return MixedBuffers([filled(0, 11), filled(1, 101), filled(2, 6)], seed=seed, **weights)

    whole = mixed()
    drawn = np.zeros((200, 3))
    for number in range(200):
        part = min(1.0, number / 100)
        assert np.allclose(whole.shares, [(1 - part) / 2, part / 2, 0.5])
        batch = whole.sample(64)
        drawn[number] = np.bincount(batch.info.source_id, minlength=3)  # type: ignore[attr-defined]
        items = np.array([10, 100, 5])[batch.info.source_id]  # type: ignore[attr-defined]
        shares = np.array([(1 - part) / 2, part / 2, 0.5])[batch.info.source_id]  # type: ignore[attr-defined]
        assert np.allclose(batch.info.probability, shares / items)
    assert drawn[0, 1] == 0 and not drawn[100:, 0].any()
    assert abs(drawn[100:, 1].mean() - 32) < 4 * 4 / np.sqrt(100)
    first, other = mixed(), mixed(9)
    for _ in range(30):
        first.sample(8)
    other.load_state_dict(first.state_dict())
    assert np.allclose(other.shares, first.shares) and other.shares[1] == 0.15
    for _ in range(3):
        ours, theirs = (one.sample(8).info.source_id for one in (first, other))  # type: ignore[attr-defined]
        assert ours.tolist() == theirs.tolist()


def test_an_empty_buffer_without_a_share_may_be_empty() -> None:
    late = filled(1, 0)
    mixed = MixedBuffers([filled(0, 11), late], weights=[1, 0], final_weights=[1, 1], anneal_steps=2, seed=0)
    assert set(mixed.sample(20).info.source_id.tolist()) == {0}  # type: ignore[attr-defined]
    with pytest.raises(NotEnoughItems, match="10 items, 0 items"):
        mixed.sample(20)
    late.add(episode(1, 5))
    mixed.sample(20)


def test_wrong_changes_of_shares() -> None:
    buffers = [filled(0, 11), filled(1, 101)]
    whole: dict[str, Any] = {"weights": [1, 0], "final_weights": [1, 1], "anneal_steps": 5}
    for name in whole:
        with pytest.raises(TypeError, match="all of weights, final_weights and anneal_steps"):
            MixedBuffers(buffers, **{key: value for key, value in whole.items() if key != name})
    for change, words in (
        ({"weights": [0, 0]}, "not all weights"),
        ({"final_weights": [1, -1]}, "positive number, got -1"),
        ({"final_weights": [1]}, "2 buffers, but 1 weights"),
        ({"anneal_steps": 0}, "anneal_steps"),
    ):
        with pytest.raises(ValueError, match=words):
            MixedBuffers(buffers, **{**whole, **change})


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_of_several_buffers(prefetch: int) -> None:
    def mixed() -> MixedBuffers:
        return MixedBuffers([filled(0, 11), filled(1, 101)], weights=[1, 1], seed=3)

    def shifted(data: Any) -> Any:
        return data._replace(reward=data.reward + 1)

    expected = [mixed().sample(8)] if prefetch == 0 else []
    with mixed().batches(8, steps=4, prefetch=prefetch, transform=shifted) as batches:
        found = list(batches)
    assert len(found) == 4
    for batch, plain in zip(found, expected, strict=False):
        assert np.array_equal(batch.data.reward, plain.data.reward + 1)
        assert batch.info.source_id.tolist() == plain.info.source_id.tolist()  # type: ignore[attr-defined]
