"""Tensors in and out of the buffers for live rollouts."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from rlds2buf import FieldSpec, StepSpec, make_cost_replay, make_on_policy, returns
from rlds2buf.core import nest

SPEC = StepSpec(
    observation={"camera": FieldSpec((4, 4), np.uint8), "arm": FieldSpec((3,), np.float32)},
    action=FieldSpec((), np.int64),
)


def observation(num_envs: int, fill: int) -> dict[str, torch.Tensor]:
    return {
        "camera": torch.full((num_envs, 4, 4), fill, dtype=torch.uint8),
        "arm": torch.full((num_envs, 3), float(fill), requires_grad=True),
    }


def leaves(batch: Any) -> list[Any]:
    return [leaf for _, leaf in nest.flatten(batch)]


def test_on_policy_tensors_equal_arrays() -> None:
    rollouts = []
    for device in (None, "cpu", torch.device("cpu")):
        rng = np.random.default_rng(0)
        buffer = make_on_policy(SPEC, 5, num_envs=2, device=device)
        buffer.add_field("mu", (2,))
        for t in range(5):
            reward, value, logp = (torch.from_numpy(rng.normal(size=2).astype(np.float32)) for _ in range(3))
            buffer.store(
                observation=observation(2, t),
                action=torch.tensor([t, 0]),
                reward=reward,
                cost=reward,
                value_r=value.requires_grad_(),
                logp=logp,
                terminated=torch.tensor([t == 2, False]),
                mu=torch.zeros(2, 2, dtype=torch.float64),
            )
        assert buffer.finish_path(torch.tensor([0.5, 0.25]), torch.tensor(0.1)) == 7
        assert buffer.device == (None if device is None else torch.device("cpu"))
        rollouts.append(buffer.get())
    for tensors in rollouts[1:]:
        for array, tensor in zip(leaves(rollouts[0]), leaves(tensors), strict=True):
            assert isinstance(tensor, torch.Tensor) and not tensor.requires_grad
            np.testing.assert_array_equal(array, tensor.numpy())
            assert tensor.numpy().dtype == array.dtype
    batches = list(rollouts[1].minibatches(4, seed=0))
    assert [len(batch.adv_r) for batch in batches] == [4, 4, 2]
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves(batches[0]))
    assert torch.equal(rollouts[1].terminated, torch.from_numpy(rollouts[0].terminated))


def test_omnisafes_values_of_shape_1() -> None:
    buffer = make_on_policy(SPEC, 2, num_envs=2, device="cpu")
    for t in range(2):
        buffer.store(observation=observation(2, t), action=torch.tensor([0, 1]), reward=torch.ones(2))
    for idx in range(2):
        assert buffer.finish_path(torch.zeros(1), torch.zeros(1), idx) == 2
    assert buffer.get().discounted_ret.tolist() == pytest.approx([1.99, 1.0, 1.99, 1.0])


def test_cost_replay_tensors() -> None:
    buffer = make_cost_replay(SPEC, 4, num_envs=2, penalty_coefficient=0.5, device="cpu", seed=0)
    for t in range(6):
        buffer.store(
            observation=observation(2, t),
            action=torch.tensor([t, 0]),
            reward=torch.tensor([1.0, 2.0]),
            cost=torch.ones(2),
            next_observation=observation(2, t + 1),
            terminated=torch.tensor([False, t == 5]),
        )
    batch = buffer.sample(3).data
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves(batch._asdict()))
    assert batch.reward.tolist() == [0.5, 1.5] * 3
    assert torch.equal(batch.next_observation["arm"], batch.observation["arm"] + 1)
    assert batch.observation["camera"].dtype == torch.uint8 and batch.action.dtype == torch.int64
    held = buffer.all()
    assert held.discount.tolist() == [1.0] * 7 + [0.0]
    held.reward.zero_()
    assert buffer.all().reward.tolist() == [0.5, 1.5] * 4


def test_batches_may_be_written_to() -> None:
    buffer = make_on_policy(SPEC, 2, device="cpu")
    buffer.store(observation=nest.map_structure(lambda x: x[0], observation(1, 1)), action=0, reward=1.0)
    rollout = buffer.get(0.0)
    rollout.adv_r.add_(1.0)
    assert rollout.adv_r.tolist() == [1.0]


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="no PyTorch device 'abacus'"):
        make_on_policy(SPEC, 2, device="abacus")


SERIES = {"rewards": [1.0, 2.0, 3.0], "values": [0.5, 0.6, 0.7]}


@pytest.mark.parametrize("name", ["gae", "gae_rtg", "plain", "vtrace"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_estimators_of_tensors_give_tensors(name: str, dtype: torch.dtype) -> None:
    estimate = getattr(returns, name)
    tensors = {name: torch.tensor(values, dtype=dtype, requires_grad=True) for name, values in SERIES.items()}
    expected = estimate(**{name: tensor.detach().numpy() for name, tensor in tensors.items()}, last_value=0.75)
    found = estimate(**tensors, last_value=torch.tensor(0.75))
    assert type(found) is type(expected)
    for tensor, array in zip(found, expected, strict=True):
        assert isinstance(tensor, torch.Tensor) and not tensor.requires_grad
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


def test_one_tensor_is_enough_and_other_axes_too() -> None:
    rewards = np.ones((2, 3), np.float32)
    found = returns.discounted_return(rewards, gamma=0.5, terminated=torch.zeros(2, 3, dtype=torch.bool), time_axis=1)
    assert isinstance(found, torch.Tensor) and found.tolist() == [[1.75, 1.5, 1.0]] * 2
    logp = torch.log(torch.tensor([0.5, 0.5, 0.5]))
    result = returns.vtrace(torch.ones(3), torch.zeros(3), policy_logp=logp, behavior_logp=logp * 2, last_value=0.0)
    assert isinstance(result.rho, torch.Tensor) and result.rho.tolist() == [1.0] * 3
    following = returns.successor_values(torch.arange(3.0), last_value=9.0)
    assert isinstance(following, torch.Tensor) and following.tolist() == [1.0, 2.0, 9.0]
    assert isinstance(returns.gae([1.0], [0.0]).advantage, np.ndarray)


def test_torch_dtypes_name_fields() -> None:
    importlib.import_module("ml_dtypes")  # as JAX does: NumPy then knows the name bfloat16
    dtypes = {torch.float32: "float32", torch.half: "float16", torch.long: "int64", torch.bool: "bool"}
    for dtype, name in dtypes.items():
        assert FieldSpec((2,), dtype).dtype == np.dtype(name)  # type: ignore[arg-type]
    for buffer in (make_on_policy(SPEC, 4), make_cost_replay(SPEC, 4)):
        buffer.add_field("mu", (2, 3), torch.float64)
        assert buffer.spec.extras["mu"] == FieldSpec((2, 3), np.float64)  # at once
        assert "mu" in repr(buffer)
        with pytest.raises(TypeError, match="bfloat16 has no counterpart in NumPy"):
            buffer.add_field("nu", (), torch.bfloat16)


def test_batches_of_tensors_are_printed() -> None:
    buffer = make_on_policy(SPEC, 2, device="cpu")
    buffer.store(observation=nest.map_structure(lambda x: x[0], observation(1, 1)), action=0, reward=1.0)
    assert repr(buffer.get(0.0)).splitlines()[1] == "  observation/arm     Tensor float32[1, 3]"
