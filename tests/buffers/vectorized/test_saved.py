"""On-policy and cost buffers as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import (
    Buffer,
    CostReplay,
    FieldSpec,
    OnPolicyBuffer,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotExists,
    StepSpec,
)
from rlds2buf.cli.main import main

SPEC = StepSpec(
    observation={"at": FieldSpec((2,), np.float32, low=-9, high=99), "word": FieldSpec((), np.dtype(object))},
    action=FieldSpec((), np.int64),
)


def steps(first: int, count: int) -> dict[str, Any]:
    """Of two environments, `count` steps from `first` on."""
    number = np.arange(first, first + count)[:, None] + np.array([0.0, 0.5])
    return {
        "observation": {"at": np.stack([number, -number], -1).astype(np.float32), "word": _words(number)},
        "action": number.astype(np.int64),
        "reward": number,
        "noise": number.astype(np.float64),
    }


def _words(number: np.ndarray) -> np.ndarray:
    return np.array([[f"at {value}".encode() for value in row] for row in number.tolist()], object)


def make_rollout(seed: int = 3) -> OnPolicyBuffer:
    spec = StepSpec(observation={"at": SPEC.observation["at"]}, action=SPEC.action)
    buffer = rlds2buf.make_on_policy(spec, 8, num_envs=2, gamma=0.9, estimator="plain", seed=seed)
    buffer.add_field("noise", (), np.float64)
    return buffer


def store_rollout(buffer: OnPolicyBuffer, first: int, count: int, **others: Any) -> None:
    fields = steps(first, count)
    fields["observation"] = {"at": fields["observation"]["at"]}
    buffer.store(**fields, value_r=0.25, logp=-1.0, **others)


def make_costs(seed: int = 3) -> CostReplay:
    buffer = rlds2buf.make_cost_replay(SPEC, 6, num_envs=2, penalty_coefficient=0.5, batch_size=4, seed=seed)
    buffer.add_field("noise", (), np.float64)
    return buffer


def store_costs(buffer: CostReplay, first: int, count: int) -> None:
    buffer.store(**steps(first, count), cost=1.0, next_observation=steps(first + 1, count)["observation"])


def same(one: Any, other: Any) -> None:
    for mine, theirs in zip(_leaves(one), _leaves(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for name in sorted(value) for leaf in _leaves(value[name])]
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def test_a_rollout_goes_on_from_its_folder(tmp_path: Path) -> None:
    buffer = make_rollout()
    store_rollout(buffer, 0, 3, terminated=np.array([[False, False], [True, False], [False, False]]))
    buffer.save(tmp_path / "rollout")
    loaded = rlds2buf.load_buffer(tmp_path / "rollout", expect=OnPolicyBuffer)
    assert loaded.spec == buffer.spec and loaded.settings == buffer.settings
    assert (len(loaded), loaded.size, loaded.num_envs, loaded.field_names) == (6, 8, 2, buffer.field_names)
    for one in (buffer, loaded):
        store_rollout(one, 3, 2)
        one.finish_path(last_value_r=0.5)
    batches = [list(one.minibatches(4, epochs=2)) for one in (buffer, loaded)]
    same(tuple(batches[0]), tuple(batches[1]))
    fresh = rlds2buf.load_buffer(tmp_path / "rollout", seed=5, expect=OnPolicyBuffer)
    fresh.finish_path(last_value_r=0.5)
    again = rlds2buf.load_buffer(tmp_path / "rollout", seed=5, expect=OnPolicyBuffer)
    again.finish_path(last_value_r=0.5)
    same(tuple(fresh.minibatches(4)), tuple(again.minibatches(4)))


@pytest.mark.parametrize("count", [0, 3, 9])
def test_a_cost_buffer_goes_on_from_its_folder(tmp_path: Path, count: int) -> None:
    buffer = make_costs()
    if count:
        store_costs(buffer, 0, count)
    buffer.save(tmp_path / "costs")
    loaded = rlds2buf.load_buffer(tmp_path / "costs", expect=CostReplay)
    assert len(loaded) == len(buffer) == 2 * min(count, 6)
    assert (loaded.size, loaded.num_envs, loaded.batch_size, loaded.penalty_coefficient) == (6, 2, 4, 0.5)
    for one in (buffer, loaded):
        store_costs(one, count, 2)
    same(buffer.all(), loaded.all())
    same(buffer.sample(), loaded.sample())


def test_a_folder_is_replaced_only_if_asked(tmp_path: Path) -> None:
    costs = make_costs()
    costs.save(tmp_path / "costs")
    store_costs(costs, 0, 2)
    with pytest.raises(SnapshotExists):
        costs.save(tmp_path / "costs")
    costs.save(tmp_path / "costs", overwrite=True)
    assert len(rlds2buf.load_buffer(tmp_path / "costs")) == 4


def test_what_is_saved_says_of_what_class_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = make_costs()
    store_costs(costs, 0, 2)
    costs.save(tmp_path / "costs")
    with pytest.raises(SnapshotError, match="holds a saved CostReplay, expected was a saved OnPolicyBuffer"):
        rlds2buf.load_buffer(tmp_path / "costs", expect=OnPolicyBuffer)
    with pytest.raises(SnapshotError, match="saved Buffer"):
        rlds2buf.load_buffer(tmp_path / "costs", expect=Buffer)
    with pytest.raises(SnapshotError, match="in place"):
        rlds2buf.load_buffer(tmp_path / "costs", writable=True)
    with pytest.raises(TypeError, match="reward_fn"):
        rlds2buf.load_buffer(tmp_path / "costs", reward_fn=max)
    with pytest.raises(rlds2buf.SourceFormatError, match="not of episodes"):
        rlds2buf.open_source(str(tmp_path / "costs"))
    assert main(["sample", str(tmp_path / "costs")]) != 0
    assert "holds a saved CostReplay" in capsys.readouterr().err


def test_damage_is_found(tmp_path: Path) -> None:
    buffer = make_rollout()
    store_rollout(buffer, 0, 3)
    buffer.save(tmp_path / "rollout")
    (file,) = (tmp_path / "rollout").glob("data-*/*reward*.npy")
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)
    with pytest.raises(SnapshotCorrupt, match="checksum"):
        rlds2buf.load_buffer(tmp_path / "rollout")
    file.write_bytes(content[:-16])
    with pytest.raises(SnapshotCorrupt):
        rlds2buf.load_buffer(tmp_path / "rollout", verify=False)
