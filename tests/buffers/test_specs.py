"""Observations, actions and extras of every shape: nested, tuples, images, strings, booleans, integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, FieldSpec, SpecMismatch, StepSpec
from rlds2buf.core import nest
from tests.buffers.compare import assert_same_nest, assert_sequences, assert_transitions
from tests.reference.replay import ListReplay


def words(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    out = np.empty(count, object)
    for i in range(count):
        out[i] = [b"", b"pick up the cup", "grün".encode(), b"\x00\xff", b"x" * 300][rng.integers(5)]
    return out


def leaf(kind: str, rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "string":
        return words(rows, seed)
    if kind == "strings":
        return words(rows * 2, seed).reshape(rows, 2)
    if kind == "image":
        return rng.integers(0, 256, (rows, 5, 3, 3), np.uint8)
    if kind == "bool":
        return rng.integers(0, 2, (rows, 3)).astype(bool)
    if kind == "empty":
        return np.zeros((rows, 0), np.float32)
    if kind.startswith(("float", "complex")):
        return rng.normal(size=(rows, 3)).astype(kind)
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, (rows, 2), dtype=kind, endpoint=True)


DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64".split()
NESTS: dict[str, Any] = {
    **{name: name for name in (*DTYPES, "string", "strings", "image", "empty")},
    "dict": {"b": "float32", "a": {"z": "int64", "c": "image"}},
    "tuple": ("float32", "int8"),
    "one tuple": ("bool",),
    "deep": {"camera": ("image", {"depth": "float16"}), "text": "string", "state": {"joint": ("float64", "uint16")}},
    "odd names": {"a/b": "float32", "flags": "int8", "next_observation": "int16", "source": "bool", "..": "uint8"},
    "colliding names": {"a/b": "float32", "a": {"b": "int8"}, "A": {"B": "int16"}},
}


def build(structure: Any, rows: int, seed: int) -> Any:
    count = iter(range(1000))
    return nest.map_structure(lambda kind: leaf(kind, rows, seed * 1000 + next(count)), structure)


def make(structure: Any, rows: int, seed: int, end: str = "terminated") -> Episode:
    rng = np.random.default_rng(seed)
    last = np.arange(rows) == rows - 1
    return Episode(
        observation=build(structure, rows, seed),
        action=build(structure, rows, seed + 1),
        reward=rng.normal(size=rows),
        discount=rng.random(rows),
        is_first=np.arange(rows) == 0,
        is_last=last & (end != "open"),
        is_terminal=last & (end == "terminated"),
        extras={"more": build(structure, rows, seed + 2), "flags": np.arange(rows)},
    )


def explicit(ep: Episode) -> rlds2buf.Transition:
    """The rows of an episode as transitions with next observations of their own."""
    rows = len(ep)
    return rlds2buf.Transition(
        observation=ep.observation,
        action=ep.action,
        reward=ep.reward,
        discount=ep.discount,
        next_observation=nest.map_structure(lambda column: column[::-1].copy(), ep.observation),
        extras=ep.extras,
        is_done=(np.arange(rows) % 3).astype(np.uint8),
    )


def steps_of(batch: rlds2buf.Transition) -> list[dict[str, Any]]:
    names = ("observation", "action", "reward", "discount", "next_observation", "extras", "is_done")
    return [
        {name: nest.map_structure(lambda column, i=i: column[i], getattr(batch, name)) for name in names}
        for i in range(len(batch.reward))
    ]


@pytest.mark.parametrize("name", NESTS)
def test_against_the_twin(name: str, tmp_path: Path) -> None:
    structure = NESTS[name]
    first, second = make(structure, 6, 1), make(structure, 4, 5, "truncated")
    spec = rlds2buf.spec_of(first)
    own = explicit(make(structure, 7, 9))
    buffers = {
        "memory": rlds2buf.make_circular(spec, 12, seed=0),
        "files": rlds2buf.make_circular(spec, 12, seed=0, directory=tmp_path / "columns"),
    }
    for where, buffer in buffers.items():
        twin = ListReplay(12)
        keys = np.concatenate([buffer.add(first), buffer.add(own), buffer.add(second)])
        serials = [*twin.add_episode(first), *twin.add_transitions(steps_of(own)), *twin.add_episode(second)]
        named = dict(zip(keys.tolist(), serials, strict=True))
        buffer.save(tmp_path / where)
        for held in (buffer, rlds2buf.load_buffer(tmp_path / where)):
            here = held.keys()
            assert [named[key] for key in here.tolist()] == twin.keys()
            everything = held.all()
            assert_transitions(everything, twin, twin.keys())
            assert_transitions(held.get(here, n_step=3, gamma=0.5), twin, twin.keys(), 3, 0.5)
            assert_sequences(held.get(here, sequence_length=4), twin, twin.keys(), 4)
            for part in ("observation", "action", "next_observation"):
                like = first.observation if part != "action" else first.action
                for (_, got), (_, want) in zip(
                    nest.flatten(getattr(everything, part)), nest.flatten(like), strict=True
                ):
                    assert got.dtype == want.dtype and got.shape[1:] == want.shape[1:]
                assert nest.same_structure(getattr(everything, part), like)


def test_tuples_and_key_order_survive() -> None:
    ep = Episode(observation={"z": np.zeros(3), "a": np.ones(3)}, action=(np.zeros(3), np.ones(3)), reward=np.zeros(3))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 5)
    buffer.add(ep)
    got = buffer.all()
    assert got.observation["z"].tolist() == [0, 0] and got.observation["a"].tolist() == [1, 1]
    assert isinstance(got.action, tuple) and got.action[1].tolist() == [1, 1]


def test_data_without_discount_have_ones() -> None:
    ep = Episode(observation=np.arange(4.0), action=np.zeros(4), reward=np.ones(4), is_terminal=np.arange(4) == 3)
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 8)
    buffer.add(ep)
    assert buffer.all().discount.tolist() == [1, 1, 0]
    assert buffer.get(buffer.keys(), n_step=2, gamma=0.5).bootstrap_discount.tolist() == [0.25, 0, 0]


def test_data_without_reward_still_give_sequences() -> None:
    ep = Episode(observation=np.arange(4.0), action=np.zeros(4))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 8)
    buffer.add(ep)
    batch = buffer.get(buffer.keys()[:1], sequence_length=4)
    assert batch.observation.tolist() == [[0, 1, 2, 0]] and batch.mask.tolist() == [[True, True, True, False]]
    assert batch.reward is None
    with pytest.raises(ValueError, match="reward"):
        buffer.sample(2, n_step=2)


def test_integer_rewards_sum_without_overflow() -> None:
    ep = Episode(
        observation=np.arange(4), action=np.zeros(4), reward=np.array([100, 100, 100, 0], np.int8), discount=np.ones(4)
    )
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 8)
    buffer.add(ep)
    assert buffer.all().reward.dtype == np.int8
    assert buffer.get(buffer.keys(), n_step=3, gamma=1.0).reward.tolist() == [300, 200, 100]


def test_nan_and_infinity_are_kept_and_do_not_spread() -> None:
    ep = Episode(
        observation=np.array([np.nan, np.inf, -np.inf, 0.0, 1.0]),
        action=np.zeros(5),
        reward=np.array([1.0, np.nan, 2.0, np.inf, 3.0]),
        discount=np.ones(5),
    )
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 8)
    keys = buffer.add(ep)
    np.testing.assert_array_equal(buffer.all().observation, ep.observation[:4])
    got = buffer.get(keys, n_step=2, gamma=0.5).reward
    np.testing.assert_array_equal(got, [np.nan, np.nan, np.inf, np.inf])
    buffer.clear()
    # A horizon cut short must not touch what stands behind it, not even times zero.
    first = Episode(
        observation=np.zeros(3), action=np.zeros(3), reward=np.array([1.0, 2.0, np.nan]), discount=np.ones(3)
    )
    keys = buffer.add(first)
    buffer.add(first.replace(reward=np.full(3, np.inf)))
    assert buffer.get(keys, n_step=4, gamma=1.0).reward.tolist() == [3.0, 2.0]


def test_rewards_of_several_parts() -> None:
    ep = Episode(
        observation=np.arange(4.0), action=np.zeros(4), reward=np.arange(8.0).reshape(4, 2), discount=np.ones(4)
    )
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 8)
    keys = buffer.add(ep)
    assert buffer.get(keys, n_step=2, gamma=0.5).reward.tolist() == [[1, 2.5], [4, 5.5], [4, 5]]


def test_strings_given_as_text_come_back_as_bytes() -> None:
    ep = Episode(observation=np.array(["ä", "b", ""], object), action=np.zeros(3), reward=np.zeros(3))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 5)
    buffer.add(ep)
    assert buffer.all().observation.tolist() == ["ä".encode(), b"b"]
    assert buffer.all().next_observation.tolist() == [b"b", b""]


@pytest.mark.parametrize(
    "column",
    [np.array(["left", "right", "up"]), np.array([b"left", b"right", b"up"]), np.zeros(3, [("x", "f4"), ("y", "i2")])],
    ids=lambda column: column.dtype.kind,
)
def test_a_dtype_that_files_cannot_name_is_refused(column: np.ndarray) -> None:
    ep = Episode(observation={"ok": np.zeros(3), "odd": column}, action=np.zeros(3), reward=np.zeros(3))
    with pytest.raises(SpecMismatch) as caught:
        rlds2buf.make_circular(rlds2buf.spec_of(ep), 10)
    assert caught.value.path == "observation/odd"


@pytest.mark.parametrize("dtype", [">f4", ">i8", "<f4", "M8[ns]"])
def test_byte_order_and_times(dtype: str, tmp_path: Path) -> None:
    ep = Episode(observation=np.arange(4).astype(dtype), action=np.zeros(4), reward=np.ones(4), discount=np.ones(4))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 10)
    buffer.add(ep)
    buffer.save(tmp_path / "saved")
    for held in (buffer, rlds2buf.load_buffer(tmp_path / "saved")):
        got = held.all()
        assert got.observation.tolist() == ep.observation[:3].tolist()
        assert got.next_observation.tolist() == ep.observation[1:].tolist()
        assert got.observation.dtype.isnative


def test_wider_numbers_are_taken_for_explicit_transitions_narrower_kinds_not() -> None:
    spec = StepSpec(observation=FieldSpec((2,), np.float32), action=FieldSpec((), np.int32))
    buffer = rlds2buf.make_circular(spec, 10)
    step = {"observation": [0.5, 1], "action": 3, "reward": 1, "next_observation": np.zeros(2)}
    buffer.add(step)
    assert buffer.all().observation.dtype == np.float32 and buffer.all().action.dtype == np.int32
    with pytest.raises(SpecMismatch):
        buffer.add({**step, "action": 0.5})


def test_an_episode_of_other_dtypes_is_refused() -> None:
    ep = make("float32", 5, 1)
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 10)
    with pytest.raises(SpecMismatch, match="float64"):
        buffer.add(ep.replace(observation=ep.observation.astype(np.float64)))
    assert len(buffer) == 0


def test_no_observation_or_no_action() -> None:
    ep = Episode(action=np.arange(4), reward=np.ones(4), discount=np.ones(4))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 5)
    buffer.add(ep)
    assert buffer.all().observation is None and buffer.all().action.tolist() == [0, 1, 2]
    ep = Episode(observation=np.arange(4), reward=np.ones(4), discount=np.ones(4))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 5)
    buffer.add(ep)
    assert buffer.all().action is None and buffer.all().next_observation.tolist() == [1, 2, 3]


def test_state_of_strings_is_a_copy() -> None:
    ep = make("string", 6, 1)
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 10, seed=0)
    buffer.add(ep)
    state = buffer.state_dict()
    before = buffer.all()._asdict()
    buffer.add(make("string", 6, 77))
    other = rlds2buf.make_circular(rlds2buf.spec_of(ep), 10)
    other.load_state_dict(state)
    assert_same_nest(other.all()._asdict(), before)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, np.int32])
def test_discounts_of_any_dtype(dtype: Any) -> None:
    discount = np.array([1, 1, 0, 1], dtype)
    ep = rlds2buf.Episode(
        observation=np.arange(4.0),
        action=np.zeros(4),
        reward=np.ones(4, np.float16),
        discount=discount,
        is_terminal=[False, False, False, True],
    )
    for make in (rlds2buf.make_circular, rlds2buf.make_prioritized):
        buffer = make(rlds2buf.spec_of(ep), 10, seed=0)
        keys = buffer.add(ep)
        batch = buffer.get(keys, gamma=0.5)
        assert batch.discount.tolist() == [1, 1, 0] and batch.bootstrap_discount.tolist() == [0.5, 0.5, 0]
        assert batch.discount.dtype == (dtype if np.dtype(dtype).kind == "f" else np.float32)
        assert buffer.get(keys, n_step=2).discount.tolist() == [1, 0, 0]
        assert buffer.get(keys, sequence_length=2).discount.tolist() == [[1, 1], [1, 0], [0, 0]]
        assert batch.is_done.tolist() == [0, 0, 1]
