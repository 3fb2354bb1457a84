"""TensorDicts in torchrl's layout, and a dataset that its registry knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data.datasets import load_dataset
from torchrl.data.replay_buffers import SliceSampler
from torchrl.objectives.value import TD0Estimator

from rlds2buf import Sample, SpecMismatch, make_prioritized, spec_of
from rlds2buf.adapters.torchrl import ExperienceReplay, to_tensordict
from rlds2buf.core import nest
from tests.adapters.logged import EPISODES, circular, episode


def addresses(parts: Any) -> set[int]:
    return {leaf.ctypes.data for _, leaf in nest.flatten(parts) if isinstance(leaf, np.ndarray)}


@pytest.mark.parametrize("kind", ["array", "tuple", "dict"])
@pytest.mark.parametrize("view", [{}, {"n_step": 3, "gamma": 0.9}, {"sequence_length": 3}], ids=str)
def test_a_batch_s_memory_is_borrowed(kind: str, view: dict[str, Any]) -> None:
    sample: Sample = circular(kind=kind).sample(8, **view)
    found = to_tensordict(sample)
    data = sample.data
    assert found.batch_size == torch.Size(data.is_done.shape)
    held = addresses(data._asdict())
    for name in ("observation", "action", "discount", ("next", "observation"), ("next", "reward")):
        part = found[name]
        for leaf in part.values(True, True) if isinstance(part, TensorDict) else [part]:
            assert leaf.data_ptr() in held, name
    np.testing.assert_array_equal(found["next", "reward"][..., 0].numpy(), data.reward)
    np.testing.assert_array_equal(found["next", "terminated"][..., 0].numpy(), data.is_done == 1)
    np.testing.assert_array_equal(found["next", "truncated"][..., 0].numpy(), data.is_done == 2)
    np.testing.assert_array_equal(found["next", "done"][..., 0].numpy(), data.is_done != 0)
    assert found["done"].shape == found["next", "done"].shape and not found["done"].any()
    keys = found["key"] if found["key"].ndim == 1 else found["key"][:, 0]
    assert keys.tolist() == sample.info.key.tolist()


def test_all_that_is_held() -> None:
    buffer = circular()
    found = to_tensordict(buffer)
    assert found.batch_size == torch.Size([len(buffer)])
    assert found["episode"].tolist() == [0] * 5 + [1] * 3 + [2] + [3] * 8
    assert found["observation"][:, 0].tolist() == [*range(5), *range(100, 103), 200, *range(300, 308)]
    assert torch.equal(found["next", "observation"][:, 0], found["observation"][:, 0] + 1)
    assert found["next", "done"][:, 0].nonzero()[:, 0].tolist() == [4, 7, 8, 16]
    assert found["next", "terminated"][:, 0].nonzero()[:, 0].tolist() == [4, 8]


def test_load_dataset_knows_a_folder_of_ours(tmp_path: Path) -> None:
    circular().save(tmp_path / "saved")
    replay = load_dataset(f"rlds2buf:{tmp_path / 'saved'}", batch_size=32)
    assert isinstance(replay, ExperienceReplay) and len(replay) == 17 and replay.data_path == tmp_path / "saved"
    batch = replay.sample()
    assert torch.equal(batch["next", "observation"][:, 0], batch["observation"][:, 0] + 1)


def test_slices_stay_inside_episodes() -> None:
    sampler = SliceSampler(slice_len=3, traj_key="episode", strict_length=True)
    batch = ExperienceReplay(circular(), sampler=sampler, batch_size=30).sample()
    episodes = batch["episode"].reshape(10, 3)
    assert (episodes == episodes[:, :1]).all()
    assert (batch["observation"][:, 0].reshape(10, 3).diff(dim=1) == 1).all()


def test_n_step_targets_of_theirs_are_ours() -> None:
    """torchrl bootstraps by the steps that were taken, and not at all into terminal states."""
    data = circular().sample(64, n_step=3, gamma=0.9).data
    batch = to_tensordict(data)
    value = torch.rand(64, 1, dtype=torch.float64).float()
    batch["next", "state_value"] = value
    batch["state_value"] = torch.zeros(64, 1)
    estimator = TD0Estimator(gamma=0.9, value_network=None)
    target = estimator.value_estimate(batch, next_value=value)
    wanted = data.reward + data.bootstrap_discount * value[:, 0].numpy()
    np.testing.assert_allclose(target[:, 0].numpy(), wanted, rtol=1e-5)


def test_weights_and_keys_go_back() -> None:
    episodes = [episode(*one) for one in EPISODES]
    buffer = make_prioritized(spec_of(episodes[0]), 100, seed=0)
    buffer.add(episodes)
    batch = to_tensordict(buffer.sample(16))
    assert batch["_weight"].dtype == torch.float32
    assert len(buffer.update_priorities(batch["key"], torch.rand(16))) == 0


def test_what_has_no_place_is_refused() -> None:
    text = np.array([b"left"] * 3, object)
    with pytest.raises(SpecMismatch, match="text"):
        to_tensordict([episode(0, 3, "terminated").replace(extras={"note": text})])
    with pytest.raises(SpecMismatch, match="another entry"):
        to_tensordict([episode(0, 3, "terminated").replace(extras={"done": np.zeros(3)})])
