"""Batches as PyTorch tensors, which borrow the arrays' memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rlds2buf
from rlds2buf.core import nest
from rlds2buf.core.frameworks import converter
from tests.buffers.numbered import SPEC, episode, transition


def filled() -> Any:
    buffer = rlds2buf.make_prioritized(SPEC, 300, seed=1)
    for i in range(12):
        buffer.add(episode(100 * i, 4 + i))
    return buffer


def named(seed: int) -> rlds2buf.Episode:
    text = np.array([f"{seed} {i}".encode() for i in range(6)], object)
    numbers = np.arange(6)
    return rlds2buf.Episode(
        observation={"text": text, "image": np.full((6, 2, 2), seed, np.uint8), "wide": numbers.astype(np.uint32)},
        action=numbers % 2 == 0,
        reward=numbers.astype(np.float16),
        discount=np.ones(6, np.float32),
    )


@pytest.mark.parametrize("view", [{}, {"n_step": 3}, {"sequence_length": 3}], ids=str)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_tensors_equal_arrays(view: dict[str, Any], prefetch: int) -> None:
    expected = list(filled().batches(8, steps=4, prefetch=0, **view))
    got = list(filled().batches(8, steps=4, prefetch=prefetch, to="torch", together=2, **view))
    for mine, theirs in zip(got, expected, strict=True):
        assert type(mine.data) is type(theirs.data) and mine.info.table_size == theirs.info.table_size
        for (path, tensor), (_, array) in zip(nest.flatten(mine.data), nest.flatten(theirs.data), strict=True):
            if array is None:
                assert tensor is None
                continue
            assert isinstance(tensor, torch.Tensor), path
            assert tensor.device.type == "cpu"
            np.testing.assert_array_equal(tensor.numpy(), array)
        assert mine.info.key.dtype == torch.int64 and mine.info.weight.dtype == torch.float64
        assert mine.info.key.tolist() == theirs.info.key.tolist()


def test_priorities_of_tensors() -> None:
    """What a learner does: keys and errors go back as they are."""
    buffer = filled()
    for batch in buffer.batches(16, to="torch", steps=5):
        unknown = buffer.update_priorities(batch.info.key, torch.rand(16))
        assert len(unknown) == 0


def test_memory_is_borrowed() -> None:
    convert = converter("torch")
    batch = {"a": np.zeros((4, 3), np.float32), "b": np.zeros(4, np.bool_), "c": (np.zeros(4, np.int64),)}
    tensors = convert(batch)
    batch["a"][0, 0], batch["b"][1], batch["c"][0][2] = 7, True, 9
    assert (tensors["a"][0, 0], tensors["b"][1], tensors["c"][0][2]) == (7, True, 9)


def test_every_dtype_and_strings() -> None:
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(named(0)), 100, seed=0)
    for i in range(5):
        buffer.add(named(i))
    (batch,) = buffer.batches(8, steps=1, to="torch")
    observation = batch.data.observation
    assert isinstance(observation["text"], np.ndarray) and observation["text"].dtype == object
    assert observation["image"].dtype == torch.uint8 and observation["image"].shape == (8, 2, 2)
    assert observation["wide"].dtype == torch.int64
    assert batch.data.action.dtype == torch.bool and batch.data.reward.dtype == torch.float16
    assert batch.data.is_done.dtype == torch.uint8


def test_pinning_without_cuda_changes_nothing() -> None:
    if torch.cuda.is_available():
        (batch,) = filled().batches(8, steps=1, to="torch", pin_memory=True)
        assert batch.data.reward.is_pinned()
        (batch,) = filled().batches(8, steps=1, to="torch", pin_memory=True, device="cuda")
        assert batch.data.reward.is_cuda
    else:
        (batch,) = filled().batches(8, steps=1, to="torch", pin_memory=True)
        assert not batch.data.reward.is_pinned()


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        filled().batches(8, to="torch", device="nonsense")


def test_batches_of_several_policies() -> None:
    given = {name: (SPEC, {"capacity": 30}) for name in "ab"}
    buffer = rlds2buf.make_multi_agent(given, mode="lockstep", seed=0)
    for t in range(5):
        buffer.add({"a": transition(t), "b": transition(10 + t)}, episode_id=0, t=t, agent_index=0)
    with buffer.batches(4, to="torch", steps=2) as batches:
        for batch in batches:
            assert isinstance(batch["a"].data.reward, torch.Tensor) and isinstance(batch.slot["a"], torch.Tensor)
            assert batch.num_slots == 4
            assert torch.equal(batch["a"].data.observation["count"] + 10, batch["b"].data.observation["count"])


@pytest.mark.parametrize("view", [{}, {"n_step": 3}, {"sequence_length": 3}], ids=str)
def test_samples_as_tensors(view: dict[str, Any]) -> None:
    expected = filled().sample(8, **view)
    asked = [filled().sample(8, to="torch", **view), filled().sample(8, device="cpu", **view)]
    asked.append(filled().sample_many(2, 8, to="torch", **view)[0])
    asked.append(filled().sample(8, **view).to("torch"))
    for got in asked:
        assert type(got) is type(expected) and type(got.data) is type(expected.data)
        assert torch.equal(got.info.key, torch.from_numpy(expected.info.key.astype(np.int64)))
        for (path, tensor), (_, array) in zip(nest.flatten(got.data), nest.flatten(expected.data), strict=True):
            assert (tensor is None) == (array is None), path
            if array is not None:
                assert isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu", path
                np.testing.assert_array_equal(tensor.numpy(), array)
    data, info = expected.data.to("torch"), expected.info.to("torch", device="cpu")
    assert isinstance(data.reward, torch.Tensor) and isinstance(info.weight, torch.Tensor)
    with pytest.raises(ValueError, match="nonsense"):
        expected.to("torch", device="nonsense")


def test_epochs_of_tensors() -> None:
    buffer = filled()
    expected = [batch.info.key.tolist() for batch in buffer.epoch(16)]
    for options in ({"to": "torch"}, {"device": "cpu", "prefetch": 2}):
        batches = list(buffer.epoch(16, **options))
        assert all(isinstance(batch.data.reward, torch.Tensor) for batch in batches)
        assert [batch.info.key.tolist() for batch in batches] == expected


def test_what_is_done_to_arrays_comes_before() -> None:
    """Transforms see NumPy's arrays, whatever the learner gets."""
    seen = []

    def double(data: Any) -> Any:
        seen.append(type(data.reward))
        return data._replace(reward=data.reward * 2)

    plain, batch = filled().sample(8), filled().sample(8, to="torch", transform=double)
    assert seen == [np.ndarray] and isinstance(batch.data.reward, torch.Tensor)
    np.testing.assert_array_equal(batch.data.reward.numpy(), plain.data.reward * 2)


def test_samples_of_several_policies() -> None:
    buffer = rlds2buf.make_multi_agent({"a": (SPEC, {"capacity": 30})}, seed=0)
    for t in range(5):
        buffer.add({"a": transition(t)})
    batch = buffer.sample(4).to("torch")
    assert isinstance(batch, rlds2buf.MultiAgentSample) and isinstance(batch["a"].data.reward, torch.Tensor)
