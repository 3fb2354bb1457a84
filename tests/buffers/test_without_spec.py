"""Buffers that were made without a spec, which take it from what is added first."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import EpisodeBatch, GoalMap, NotEnoughItems, SnapshotExists, SpecMismatch, Transition
from rlds2buf.core.spec import FieldSpec
from tests.buffers.compare import assert_same_nest
from tests.buffers.numbered import SPEC, episode, transition, transitions


def met(observation: Any, action: Any, after: Any) -> Any:
    return after["place"][:, 0] == after["place"][:, 1]


GOALS: dict[str, Any] = {"goals": [GoalMap(("place", [0]), ("place", [1]))], "reward_fn": met, "done_fn": met}
MAKERS: dict[str, Any] = {
    "circular": rlds2buf.make_circular,
    "prioritized": rlds2buf.make_prioritized,
    "reservoir": rlds2buf.make_reservoir,
    "hindsight": lambda *args, **kwargs: rlds2buf.make_hindsight(*args, **GOALS, **kwargs),
    "hindsight_prioritized": lambda *args, **kwargs: rlds2buf.make_hindsight_prioritized(*args, **GOALS, **kwargs),
}

DATA: dict[str, Any] = {
    "an episode": lambda: episode(3, 6),
    "a batch": lambda: EpisodeBatch.of([episode(3, 6), episode(50, 4)]),
    "a transition": lambda: transition(7),
    "transitions": lambda: transitions(7, 5),
    "a list": lambda: [[], episode(3, 6), episode(30, 2)],
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("data", DATA)
def test_as_with_a_spec(kind: str, data: str) -> None:
    mine, theirs = MAKERS[kind](capacity=40, seed=1), MAKERS[kind](SPEC, 40, seed=1)
    assert len(mine) == mine.num_rows == 0 and (mine.capacity, mine.kind) == (40, kind)
    assert mine.capacity_unit == theirs.capacity_unit and mine.storage_unit == theirs.storage_unit
    assert "without a spec" in repr(mine)
    assert mine.add(DATA[data]()).tolist() == theirs.add(DATA[data]()).tolist()
    assert mine.spec == theirs.spec == SPEC and repr(mine) == repr(theirs)
    for _ in range(2):
        assert mine.add(episode(60, 5)).tolist() == theirs.add(episode(60, 5)).tolist()
    ours, expected = mine.sample(8), theirs.sample(8)
    assert_same_nest(ours.data._asdict(), expected.data._asdict())
    assert mine.engine.options == theirs.engine.options
    mine.check_valid()


def test_until_then_it_says_what_is_missing(tmp_path: Path) -> None:
    buffer = rlds2buf.make_prioritized(capacity=100)
    for ask in (
        lambda: buffer.sample(4),
        lambda: buffer.epoch(4),
        lambda: buffer.batches(4),
        lambda: buffer.spec,
        lambda: buffer.save(tmp_path / "saved"),
        lambda: buffer.stats(),
        lambda: buffer.update_priorities([0], [1.0]),
        lambda: buffer.resize(50),
        lambda: buffer.keys(),
        lambda: buffer.all(),
        lambda: copy.deepcopy(buffer),
    ):
        with pytest.raises(NotEnoughItems, match=r"no spec yet.*make_prioritized\(spec"):
            ask()
    assert not (tmp_path / "saved").exists()
    for nothing in (None, [], {}, "", [[], {}]):
        assert len(buffer.add(nothing)) == 0
    buffer.clear()
    assert "without a spec" in repr(buffer)


def test_what_it_does_not_take_leaves_it_as_it_was() -> None:
    buffer = rlds2buf.make_circular(capacity=5)
    with pytest.raises(TypeError, match="a buffer takes episodes"):
        buffer.add(3)
    with pytest.raises(rlds2buf.EpisodeError):
        buffer.add(episode(0, 9))  # more than fits
    with pytest.raises(SpecMismatch, match="next_observation"):
        buffer.add({"observation": 1.0, "action": 1, "reward": 1.0})
    with pytest.raises(SpecMismatch, match="one transition or several"):
        buffer.add({"observation": np.zeros(4), "action": np.zeros(4), "next_observation": np.zeros(4)})
    buffer.check(transition(3))
    assert "without a spec" in repr(buffer)
    other = {"observation": 0.5, "action": 1, "reward": 2.0, "next_observation": 1.5}
    assert buffer.add(other).tolist() == [0]
    with pytest.raises(SpecMismatch, match="observation"):
        buffer.add(transition(3))


def test_of_what_kind_the_fields_are() -> None:
    cases: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"reward": 0.5, "action": 1, "observation": [0.0, 1.0]}, {"reward": "float32", "action": "int64"}),
        ({"reward": np.float64(0.5), "action": True}, {"reward": "float64", "action": "bool"}),
        ({"reward": np.zeros(3), "action": np.zeros((3, 2), np.float16), "observation": np.zeros((3, 4))}, {}),
        ({"reward": 1.0, "action": 0, "extras": {"text": "words"}}, {"extras/text": "object"}),
        ({"reward": 1.0, "action": 0, "discount": 0.5, "truncated": True}, {"discount": "float32"}),
    ]
    for given, kinds in cases:
        data = {"observation": np.zeros(2, np.float32), **given}
        data["next_observation"] = data["observation"]
        buffer = rlds2buf.make_circular(capacity=10)
        buffer.add(data)
        fields = {"/".join(map(str, path)): field for path, field in buffer.spec.fields()}
        for name, kind in kinds.items():
            assert fields[name].dtype == np.dtype(kind), name
        assert ("discount" in fields) == ("discount" in given)
        for field in ("observation", "action"):
            assert getattr(buffer.sample(2).data, field).shape[1:] == fields[field].shape
    nested = {"observation": {"a": (np.zeros((3, 2), np.uint8),)}, "action": np.zeros(3), "reward": np.zeros(3)}
    buffer = rlds2buf.make_circular(capacity=10)
    buffer.add({**nested, "next_observation": nested["observation"]})
    assert buffer.spec.observation == {"a": (FieldSpec((2,), np.dtype(np.uint8)),)} and len(buffer) == 3


def test_arguments_are_checked_at_once(tmp_path: Path) -> None:
    for kind, wrong in (
        ("circular", {"capacity": 0}),
        ("circular", {"view": {"nothing": 1}}),
        ("circular", {"storage_unit": "sequences"}),
        ("circular", {"durability": "never"}),
        ("prioritized", {"alpha": 2.0}),
        ("reservoir", {"capacity_unit": "episodes"}),
    ):
        with pytest.raises((ValueError, TypeError)):
            MAKERS[kind](**wrong)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(SnapshotExists):
        rlds2buf.make_circular(capacity=10, directory=tmp_path / "taken")
    with pytest.raises(TypeError, match="capacity="):
        rlds2buf.make_circular(100)  # type: ignore[arg-type]


def test_in_a_folder(tmp_path: Path) -> None:
    buffer = rlds2buf.make_circular(capacity=50, directory=tmp_path / "live")
    buffer.provenance = {"from": "here"}
    buffer.add(episode(0, 9))
    buffer.save()
    opened = rlds2buf.load_buffer(tmp_path / "live")
    assert len(opened) == 8 and opened.spec == SPEC and opened.provenance == {"from": "here"}


def test_a_state_has_a_spec() -> None:
    full = rlds2buf.make_circular(SPEC, 30, seed=4)
    full.add(episode(0, 9))
    buffer = rlds2buf.make_circular(capacity=30)
    with pytest.raises(rlds2buf.SnapshotError, match="capacity"):
        rlds2buf.make_circular(capacity=31).load_state_dict(full.state_dict())
    buffer.load_state_dict(full.state_dict())
    assert_same_nest(buffer.sample(5).data._asdict(), full.sample(5).data._asdict())


def test_a_dataset_gives_its_own() -> None:
    spec = rlds2buf.StepSpec(observation=SPEC.observation, action=FieldSpec((), np.dtype(np.int32), 0, 10_000))
    source = [rlds2buf.Episode(observation=e.observation, action=e.action) for e in (episode(0, 9), episode(20, 5))]
    buffer = rlds2buf.make_circular(capacity=50)
    assert rlds2buf.convert(source, buffer).items == len(buffer) == 12
    assert buffer.spec.observation == spec.observation


def test_several_threads_begin_it() -> None:
    for _ in range(20):
        buffer = rlds2buf.make_circular(capacity=1000)
        start = threading.Barrier(4)

        def run(number: int, buffer: Any = buffer, start: Any = start) -> None:
            start.wait(10)
            for i in range(5):
                buffer.add(transition(100 * number + i), source_id=number)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(buffer) == 20
        assert sorted(buffer.all().observation["count"].tolist()) == [100 * n + i for n in range(4) for i in range(5)]
        buffer.check_valid()


def test_transitions_of_another_buffer() -> None:
    first = rlds2buf.make_circular(capacity=30)
    first.add(episode(0, 9))
    second = rlds2buf.make_circular(capacity=30)
    data = first.all()
    assert isinstance(data, Transition)
    second.add(data)
    assert_same_nest(second.all()._asdict(), data._asdict())
