"""Pictures kept encoded: decoded when sampled, in every kind of buffer, and the same ones after saving."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, GoalMap, ReplayError, SnapshotCorrupt, SpecMismatch
from rlds2buf.buffers.multi_agent.new_items import joined
from rlds2buf.buffers.vectorized.cost_replay import make_cost_replay
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from tests.buffers.compare import assert_same_nest
from tests.buffers.pictures import SPEC, column, episode, file, pixels
from tests.data import ROOT
from tests.made import MADE


def assert_pixels(data: Any) -> None:
    """Every picture of a batch of transitions is that of its row."""
    for name, shift in (("observation", 0), ("next_observation", 1)):
        observation = getattr(data, name)
        assert observation["image"].dtype == np.uint8
        assert observation["image"].shape == (*data.action.shape, 8, 6, 3)
        for number, got in zip(
            data.action.reshape(-1).tolist(), observation["image"].reshape(-1, 8, 6, 3), strict=True
        ):
            np.testing.assert_array_equal(got, pixels(file(number + shift)))


MAKERS: dict[str, Callable[[], Any]] = {
    "circular": lambda: rlds2buf.make_circular(SPEC, 40, seed=0),
    "prioritized": lambda: rlds2buf.make_prioritized(SPEC, 40, seed=0),
    "reservoir": lambda: rlds2buf.make_reservoir(SPEC, 20, seed=0),
    "reservoir of sequences": lambda: rlds2buf.make_reservoir(
        SPEC, 8, storage_unit="sequences", item_length=3, seed=0, view={"n_step": 1}
    ),
    "transitions": lambda: rlds2buf.make_circular(SPEC, 20, capacity_unit="transitions", seed=0),
    "episodes": lambda: rlds2buf.make_circular(SPEC, 3, capacity_unit="episodes", seed=0),
    "hindsight": lambda: rlds2buf.make_hindsight(
        SPEC, 40, goals=[GoalMap(("state", [0]), ("state", [1]))], reward_fn=_met, done_fn=_met, seed=0
    ),
}


def _met(observation: Any, action: Any, after: Any) -> np.ndarray:
    assert after["image"].shape in ((len(action), 8, 6, 3), (len(action),))  # as the learner asked for them
    return np.asarray(after["state"][:, 0] == after["state"][:, 1])


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_decodes_what_it_samples(kind: str, tmp_path: Path) -> None:
    buffer = MAKERS[kind]()
    for start in range(0, 90, 9):
        buffer.add(episode(start, 9))
    functions = {"reward_fn": _met, "done_fn": _met} if kind == "hindsight" else {}
    buffer.check_valid()
    buffer.save(tmp_path / "saved")
    for held in (buffer, rlds2buf.load_buffer(tmp_path / "saved", **functions)):
        assert_pixels(held.sample(16).data)
        assert_pixels(held.all())
        assert_pixels(held.get(held.keys()[:5], n_step=1))
        with held.batches(4, steps=3, prefetch=2, together=3) as batches:
            for batch in batches:
                assert_pixels(batch.data)
        some = held.sample(8, decode=False).data
        assert {type(value) for value in some.observation["image"]} == {bytes}
        numbers = some.action.tolist()
        assert some.next_observation["image"].tolist() == [file(number + 1) for number in numbers]
    loaded = rlds2buf.load_buffer(tmp_path / "saved", **functions)
    loaded.add(episode(900, 5))  # the first addition copies the rows
    assert_pixels(loaded.all())
    assert 903 in loaded.all(decode=False).action.tolist() or kind.startswith("reservoir")


def test_sequences_n_steps_and_views() -> None:
    buffer = rlds2buf.make_circular(SPEC, 40, seed=0, view={"decode": False})
    buffer.add([episode(0, 7), episode(7, 5)])
    assert buffer.sample(3).data.observation["image"].dtype == object
    sequences = buffer.get(buffer.keys(), sequence_length=4, decode=True)
    assert sequences.observation["image"].shape == (10, 4, 8, 6, 3)
    real = sequences.mask
    for name, shift in (("observation", 0), ("next_observation", 1)):
        got = getattr(sequences, name)["image"]
        assert not got[~real].any()
        for number, picture in zip(sequences.action[real].tolist(), got[real], strict=True):
            np.testing.assert_array_equal(picture, pixels(file(number + shift)))
    steps = buffer.get(buffer.keys(), n_step=3, decode=True)
    for first, count, after in zip(
        steps.action.tolist(), steps.steps.tolist(), steps.next_observation["image"], strict=True
    ):
        np.testing.assert_array_equal(after, pixels(file(first + count)))
    whole = buffer.all(concatenate="sequence", decode=True)
    assert whole.observation["image"].shape == (1, 10, 8, 6, 3)
    one = buffer.all(concatenate=None, decode=True)[3]
    np.testing.assert_array_equal(one.observation["image"], pixels(file(3)))


def test_whole_items_and_burn_in() -> None:
    buffer = rlds2buf.make_circular(SPEC, 40, storage_unit="episodes", capacity_unit="rows", seed=0)
    buffer.add([episode(0, 4), episode(4, 6)])
    batch = buffer.sample(4)
    assert batch.data.observation["image"].shape == (4, batch.data.mask.shape[1], 8, 6, 3)
    flat = buffer.sample(4, concatenate=True)
    assert_pixels(flat.data)
    burnt = buffer.sample(4, sequence_length=2, burn_in=2).data
    seen = burnt.mask | burnt.burn_in
    for number, picture in zip(burnt.action[seen].tolist(), burnt.observation["image"][seen], strict=True):
        np.testing.assert_array_equal(picture, pixels(file(number)))


def test_batches_of_episodes_and_explicit_transitions() -> None:
    buffer = rlds2buf.make_circular(SPEC, 40, seed=0)
    buffer.add(EpisodeBatch.of([episode(0, 4), episode(4, 6)]))
    again = rlds2buf.make_circular(SPEC, 40, seed=0)
    keys = again.add(buffer.all(decode=False))
    assert len(keys) == 8
    assert_pixels(again.all())
    single = {
        "observation": {"image": file(50), "state": np.zeros(2, np.float32)},
        "action": 50,
        "reward": 1.0,
        "next_observation": {"image": file(51), "state": np.zeros(2, np.float32)},
    }
    again.add(single)
    assert_pixels(again.all())


def test_a_picture_is_held_once() -> None:
    """However many rows refer to it, and as the next observation of the row before."""
    buffer = rlds2buf.make_circular(SPEC, 10, seed=0)
    ep = episode(0, 10)
    buffer.add(ep)
    files = ep.observation["image"].tolist()
    data = buffer.all(decode=False)
    assert all(a is b for a, b in zip(data.observation["image"], files[:-1], strict=True))
    assert all(a is b for a, b in zip(data.next_observation["image"], files[1:], strict=True))
    spare = sum(map(len, files))
    plain = rlds2buf.make_circular(dataclasses.replace(SPEC, observation={"state": FieldSpec((2,), np.float32)}), 10)
    overhead = buffer.stats()["bytes"] - plain.stats()["bytes"] - spare
    assert 0 <= overhead <= 10 * 64
    buffer.clear()
    assert buffer.stats()["bytes"] <= plain.stats()["bytes"] + 10 * 8


def test_pictures_of_several_sizes_come_as_an_array_of_arrays() -> None:
    image = FieldSpec((), np.dtype(object), image=FieldSpec((None, None, 3), np.uint8))
    spec = dataclasses.replace(SPEC, observation=image)
    files = [file(i, size=(4 + i % 2, 5)) for i in range(4)]
    ep = Episode(
        observation=column(files),
        action=np.arange(4),
        reward=np.zeros(4, np.float32),
        discount=np.ones(4, np.float32),
    )
    buffer = rlds2buf.make_circular(spec, 10, seed=0)
    buffer.add(ep)
    data = buffer.all()
    assert data.observation.dtype == object and data.observation.shape == (3,)
    for got, data_file in zip(data.observation, files, strict=False):
        np.testing.assert_array_equal(got, pixels(data_file))
    sequence = buffer.get(buffer.keys()[1:2], sequence_length=3).observation
    assert [picture.shape for picture in sequence[0]] == [(5, 5, 3), (4, 5, 3), (0, 0, 3)]
    same = rlds2buf.make_circular(spec, 10, seed=0)
    same.add(ep.replace(observation=column([files[0]] * 4)))
    assert same.all().observation.shape == (3, 4, 5, 3)
    both = joined([same.sample(2), buffer.sample(3)]).data.observation
    assert both.shape == (5,) and {picture.shape[1:] for picture in both} == {(5, 3)}


def test_pictures_anywhere_in_a_step() -> None:
    image = SPEC.observation["image"]
    spec = StepSpec(
        observation=(FieldSpec((), np.int64), {"two": dataclasses.replace(image, shape=(2,))}),
        action={"shown": image, "move": FieldSpec((), np.int64)},
        extras={"seen": {"from above": image}},
    )
    two = np.empty((3, 2), object)
    two[...] = [[file(i), file(i + 10, kind="PNG")] for i in range(3)]
    ep = Episode(
        observation=(np.arange(3), {"two": two}),
        action={"shown": column([file(i + 20) for i in range(3)]), "move": np.arange(3)},
        reward=np.zeros(3, np.float32),
        discount=np.ones(3, np.float32),
        extras={"seen": {"from above": column([file(i + 30) for i in range(3)])}},
    )
    buffer = rlds2buf.make_circular(spec, 10, seed=0)
    buffer.add(ep)
    data = buffer.all()
    for i in range(2):
        np.testing.assert_array_equal(data.observation[1]["two"][i, 0], pixels(file(i)))
        np.testing.assert_array_equal(data.next_observation[1]["two"][i, 1], pixels(file(i + 11, kind="PNG")))
        np.testing.assert_array_equal(data.action["shown"][i], pixels(file(i + 20)))
        np.testing.assert_array_equal(data.extras["seen"]["from above"][i], pixels(file(i + 30)))


def test_cost_replay() -> None:
    buffer = make_cost_replay(SPEC, 6, seed=0)
    for i in range(9):
        buffer.store(
            observation={"image": file(i), "state": [0, 0]},
            action=i,
            reward=0.0,
            cost=1.0,
            next_observation={"image": file(i + 1), "state": [0, 0]},
        )
    assert_pixels(buffer.all())
    assert_pixels(buffer.sample(5).data)
    again = make_cost_replay(SPEC, 6, seed=1)
    again.load_state_dict(buffer.state_dict())
    assert_pixels(again.all())
    again.resize(3)
    assert again.all().action.tolist() == [6, 7, 8]
    with pytest.raises(SpecMismatch, match="byte string"):
        buffer.store(
            observation={"image": 5, "state": [0, 0]},
            action=0,
            reward=0.0,
            cost=1.0,
            next_observation={"image": file(1), "state": [0, 0]},
        )


def test_several_agents(tmp_path: Path) -> None:
    buffer = rlds2buf.make_multi_agent({"a": rlds2buf.make_circular(SPEC, 20), "b": rlds2buf.make_circular(SPEC, 20)})
    buffer.add({"a": episode(0, 5), "b": episode(10, 5)})
    buffer.save(tmp_path / "saved")
    for held in (buffer, rlds2buf.load_buffer(tmp_path / "saved")):
        batch: Any = held.sample(4)
        assert_pixels(batch["a"].data)
        assert_pixels(batch["b"].data)
        assert held.sample(4, decode=False)["a"].data.observation["image"].dtype == object


def test_several_agents_in_lockstep() -> None:
    buffer = rlds2buf.make_multi_agent(
        {"a": rlds2buf.make_circular(SPEC, 20), "b": rlds2buf.make_circular(SPEC, 20)}, mode="lockstep"
    )
    buffer.add({"a": episode(0, 5), "b": episode(10, 5)}, episode_id=0, agent_index={"a": 0, "b": 1})
    assert_pixels(buffer.sample(4)["a"].data)
    assert buffer.sample(4, decode=False)["b"].data.observation["image"].dtype == object


def test_hindsight_gives_files_to_be_added_again() -> None:
    def met(observation: Any, action: Any, after: Any) -> np.ndarray:
        return np.asarray(after["state"][:, 0] == after["state"][:, 1])

    buffer = rlds2buf.make_hindsight(
        SPEC, 40, goals=[GoalMap(("state", [0]), ("state", [1]))], reward_fn=met, done_fn=met, while_sampling=False
    )
    buffer.add(episode(0, 5))
    buffer.add(buffer.generate_hindsight(4), consecutive=False)
    assert_pixels(buffer.all())
    with pytest.raises(ValueError, match="image"):
        rlds2buf.make_hindsight(SPEC, 40, goals=[GoalMap("image", "state")], reward_fn=met, done_fn=met)


@pytest.mark.parametrize(
    ("value", "says"),
    [(np.zeros((8, 6, 3), np.uint8), "got ndarray"), (7, "got int"), (None, "got NoneType")],
    ids=["pixels", "number", "nothing"],
)
def test_what_is_no_file_is_refused(value: Any, says: str) -> None:
    ep = episode(0, 4)
    ep.observation["image"][2] = value
    buffer = rlds2buf.make_circular(SPEC, 10)
    with pytest.raises(SpecMismatch, match=says) as caught:
        buffer.add(ep)
    assert (caught.value.path, caught.value.step, len(buffer)) == ("observation/image", 2, 0)
    with pytest.raises(SpecMismatch):
        buffer.check(ep)


def test_a_damaged_picture_is_told_when_it_is_sampled() -> None:
    ep = episode(0, 4)
    ep.observation["image"][1] = ep.observation["image"][1][:30]
    buffer = rlds2buf.make_circular(SPEC, 10, seed=0)
    buffer.add(ep)
    with pytest.raises(ReplayError, match="observation/image: a picture"):
        buffer.all()
    assert len(buffer.all(decode=False).action) == 3
    with buffer.batches(30, steps=2) as batches, pytest.raises(ReplayError, match="a picture"):
        next(batches)


@pytest.mark.parametrize(
    "field",
    [
        FieldSpec((None,), np.dtype(object), image=FieldSpec((8, 6, 3), np.uint8)),
        FieldSpec((), np.dtype(object), image=FieldSpec((8, 6), np.uint8)),
        FieldSpec((8, 6, 3), np.uint8, image=FieldSpec((8, 6, 3), np.uint8)),
    ],
    ids=["varying-number", "no-channels", "pixels"],
)
def test_fields_that_cannot_be_kept_encoded(field: FieldSpec) -> None:
    with pytest.raises(SpecMismatch, match="picture") as caught:
        rlds2buf.make_circular(dataclasses.replace(SPEC, observation=field), 10)
    assert caught.value.path == "observation"


def test_state_dicts_hold_plain_arrays() -> None:
    buffer = rlds2buf.make_circular(SPEC, 12, seed=0)
    for start in range(0, 30, 6):
        buffer.add(episode(start, 6))
    state = buffer.state_dict()
    assert all(array.dtype != object for array in state["arrays"].values())
    again = rlds2buf.make_circular(SPEC, 12, seed=5)
    again.load_state_dict(state)
    assert_pixels(again.all())
    assert again.sample(5).info.key.tolist() == buffer.sample(5).info.key.tolist()
    for name in ("observation/image/bytes", "observation/image/ends"):
        broken = {**state, "arrays": {k: v for k, v in state["arrays"].items() if k != name}}
        with pytest.raises(SnapshotCorrupt):
            again.load_state_dict(broken)
    ends = state["arrays"]["observation/image/ends"].copy()
    ends[3] = ends[5]
    ends[4] = 0
    with pytest.raises(SnapshotCorrupt):
        again.load_state_dict({**state, "arrays": {**state["arrays"], "observation/image/ends": ends}})
    assert_pixels(again.all())


BRIDGE = MADE / "rlds/bridge_dataset/1.0.0"


def test_a_dataset_with_its_pictures_as_files(tmp_path: Path) -> None:
    """Equal pixels, batch for batch, to those of a buffer that was filled with pixels; and less of it."""
    for images in ("encoded", "decoded"):
        source = rlds2buf.open_source(BRIDGE, images=images)
        rlds2buf.convert(source, tmp_path / images, on_invalid="repair")
    files, plain = (rlds2buf.load_buffer(tmp_path / name, seed=1) for name in ("encoded", "decoded"))
    assert_same_nest(files.all()._asdict(), plain.all()._asdict())
    for options in ({}, {"n_step": 3}, {"sequence_length": 4}):
        assert_same_nest(files.sample(16, **options).data._asdict(), plain.sample(16, **options).data._asdict())
    assert files.stats()["bytes"] < 0.4 * plain.stats()["bytes"]
    with rlds2buf.open_source(tmp_path / "encoded") as source:
        found = next(iter(source)).observation["image_0"]
    np.testing.assert_array_equal(found[:-1], files.all().observation["image_0"][: len(found) - 1])


def test_killed_and_gone_on_with_it_writes_the_same_bytes(tmp_path: Path) -> None:
    def run(name: str, kill_at: int) -> int:
        arguments = [str(BRIDGE), str(tmp_path / name), str(kill_at)]
        command = [sys.executable, "-m", "tests.buffers.killed_pictures", *arguments]
        return subprocess.run(command, cwd=ROOT, timeout=120, check=False, capture_output=True).returncode

    def tree(name: str) -> dict[str, bytes]:
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in files}

    assert run("whole", 0) == 0
    for kill_at in (150, 101, 7):
        assert run("parts", kill_at) == -signal.SIGKILL
    assert run("parts", 0) == 0
    assert tree("parts") == tree("whole")


def test_batches_that_are_held_keep_their_pixels() -> None:
    """Later batches, large enough for memory to be used again, do not write into those that somebody still has."""
    large = FieldSpec((), np.dtype(object), image=FieldSpec((96, 80, 3), np.uint8))
    files = [file(i, size=(96, 80)) for i in range(12)]
    ep = Episode(
        observation={"a": column(files), "b": column(files[::-1])},
        action=np.arange(12),
        reward=np.zeros(12, np.float32),
        discount=np.ones(12, np.float32),
    )
    buffer = rlds2buf.make_circular(dataclasses.replace(SPEC, observation={"a": large, "b": large}), 20, seed=0)
    buffer.add(ep)
    batches = [buffer.sample(6).data for _ in range(10)]
    for batch in batches:
        for shift, observation in ((0, batch.observation), (1, batch.next_observation)):
            for i, number in enumerate(batch.action.tolist()):
                np.testing.assert_array_equal(observation["a"][i], pixels(files[number + shift]))
                np.testing.assert_array_equal(observation["b"][i], pixels(files[11 - number - shift]))
