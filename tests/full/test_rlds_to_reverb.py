"""Frames against TF-Agents' own, the golden table and a naive twin."""

from __future__ import annotations

import itertools
import json
import logging
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, errors, open_source, rlds_to_reverb
from rlds2buf.rlds_to_reverb.api import convert_rlds_to_trajectories, create_trajectory_data_spec
from rlds2buf.rlds_to_reverb.flag_pairs import FAULTS, pair_tables
from tests.data import GOLDEN
from tests.full.quiet import tensor_spec, tf, tf_agents_rlds_to_reverb
from tests.full.rlds_data import NAMES, columns, dataset, folder, loaded, mended, step_lists
from tests.reference import frames as reference

CASES = json.loads((GOLDEN / "rlds_pairs.json").read_text())["cases"]
FLAGS = ("is_first", "is_last", "is_terminal")


def rows_of(trajectories: Any) -> list[Any]:
    return list(trajectories.as_numpy_iterator())


def in_batches(trajectories: Any, size: int = 1024) -> Any:
    """All rows as one Trajectory of columns, read in batches."""
    batches = list(trajectories.batch(size).as_numpy_iterator())
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)


def assert_same(one: Any, other: Any) -> None:
    tf.nest.assert_same_structure(one, other)
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def golden(case: dict[str, Any]) -> list[dict[str, Any]]:
    def column(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: column(key, child) for key, child in value.items()}
        return np.array(value, np.bool_ if name in FLAGS else np.float32)

    return [{name: column(name, value) for name, value in episode.items()} for episode in case["episodes"]]


class Stream:
    """One graph, whose data are whatever stands in `episodes` when it is iterated; building graphs takes time."""

    def __init__(self, like: dict[str, Any], **options: Any) -> None:
        self.episodes: list[dict[str, Any]] = []
        spec = tf.nest.map_structure(lambda c: tf.TensorSpec([None, *c.shape[1:]], c.dtype), like)
        data = tf.data.Dataset.from_generator(
            lambda: ({"steps": episode} for episode in self.episodes), output_signature={"steps": spec}
        )
        nested = data.map(lambda episode: {"steps": tf.data.Dataset.from_tensor_slices(episode["steps"])})
        self.frames = convert_rlds_to_trajectories(nested, **options)

    def read(self, episodes: list[dict[str, Any]]) -> tuple[list[Any], str]:
        """The frames, and the message of the error that ended them or ""."""
        self.episodes = episodes
        rows = []
        try:
            for row in self.frames.as_numpy_iterator():
                rows.append(row)
        except tf.errors.InvalidArgumentError as error:
            return rows, str(error)
        return rows, ""


@pytest.fixture(scope="module")
def streams() -> dict[str, Stream]:
    return {name: Stream(columns(1), terminal_discount=name) for name in ("boundary", "transition")}


@pytest.fixture(scope="module")
def golden_streams() -> dict[str, Stream]:
    flat = golden(CASES[0])[0]
    return {name: Stream(flat, terminal_discount=name) for name in ("boundary", "transition")}


# --- against the golden table ------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_table(case: dict[str, Any], golden_streams: dict[str, Stream]) -> None:
    episodes = golden(case)
    nested = isinstance(episodes[0]["observation"], dict)
    rows, error = (Stream(episodes[0]) if nested else golden_streams["boundary"]).read(episodes)
    wrong = case["recommended"].get("error", "")
    if wrong and "finite" not in wrong:
        # "episode 0 step 1: ...": where the fault is said to be must be named.
        episode, step = wrong.split(":")[0].split(" ")[1::2]
        assert re.search(rf"episode {episode}, step {step}\b", error)
        if isinstance(case["peer"], str):
            assert case["peer"].split(": ", 1)[1] in error
        return
    assert error == ""
    # Where theirs hands out pairs of rows, the table says what the observations should be.
    observations = case["recommended"].get("observations", [frame["observation"] for frame in case["peer"]])
    for row, frame, observation in zip(rows, case["peer"], observations, strict=True):
        assert (row.step_type, row.next_step_type) == (frame["step_type"], frame["next_step_type"])
        reward = np.nan if frame["reward"] is None else frame["reward"]
        np.testing.assert_array_equal([row.reward, row.discount], [reward, frame["discount"]])
        np.testing.assert_array_equal(row.action, frame["action"])
        expected = observation if isinstance(observation, dict) else {"": observation}
        got = row.observation if isinstance(observation, dict) else {"": row.observation}
        assert got.keys() == expected.keys()
        for key, leaf in expected.items():
            np.testing.assert_array_equal(got[key], leaf)


@pytest.mark.parametrize(
    "case", [case for case in CASES if "transitions" in case["recommended"]], ids=lambda c: c["name"]
)
def test_golden_table_transition_discounts(case: dict[str, Any], golden_streams: dict[str, Stream]) -> None:
    """With terminal_discount="transition" the frames inside episodes are the recommended transitions."""
    rows, _ = golden_streams["transition"].read(golden(case))
    inside = [row for row in rows if row.step_type != reference.LAST]
    assert [(*row.observation, row.reward, row.discount) for row in inside] == [
        (*transition["observation"], transition["reward"], transition["discount"])
        for transition in case["recommended"]["transitions"]
    ]


# --- against TF-Agents on real data ------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_real_data_as_tf_agents_converts_them(name: str) -> None:
    data = mended(name)
    theirs = tf_agents_rlds_to_reverb.convert_rlds_to_trajectories(data)
    ours = convert_rlds_to_trajectories(data)
    assert ours.element_spec == theirs.element_spec
    assert ours.batch(7).element_spec == theirs.batch(7).element_spec
    assert create_trajectory_data_spec(data) == tf_agents_rlds_to_reverb.create_trajectory_data_spec(data)
    assert_same(in_batches(ours), in_batches(theirs))


@pytest.mark.parametrize("prefix", ["", "made-"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "bridge",
            "First step should not be followed.*episode|Mid step.*episode 0, step 9, followed by episode 1, step 0",
        ),
        ("robomimic", r"Terminal step must be the last step of an episode\. \(episode 0, step \d+\)"),
    ],
)
def test_real_data_with_wrong_flags_say_where(prefix: str, name: str, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        rows_of(convert_rlds_to_trajectories(loaded(prefix + name)).batch(1024))


@pytest.mark.parametrize("name", ["cartpole", "made-cartpole"])
def test_nested_data_are_split_leaf_by_leaf(name: str) -> None:
    ours = in_batches(convert_rlds_to_trajectories(loaded(name)))
    steps = [step for episode in loaded(name) for step in episode["steps"].as_numpy_iterator()]
    assert sorted(ours.observation) == ["position", "velocity"]
    for key in ours.observation:
        np.testing.assert_array_equal(ours.observation[key], [step["observation"][key] for step in steps])


# --- against the naive twin ---------------------------------------------------------------------


def check(stream: Stream, terminal_discount: str, episodes: list[dict[str, Any]]) -> None:
    rows, error = stream.read(episodes)
    expected, broken = reference.frames(step_lists(episodes), terminal_discount=terminal_discount)
    assert [row._asdict().keys() for row in rows[:1]] == [
        {**frame, "policy_info": ()}.keys() for frame in expected[:1]
    ] or rows
    assert len(rows) == len(expected)
    for row, frame in zip(rows, expected, strict=True):
        for name, value in frame.items():
            np.testing.assert_array_equal(getattr(row, name), value)
    if broken is None:
        assert error == ""
    else:
        assert broken.sentence in error
        for episode, step in broken.places:
            assert ("the end of the data" if episode < 0 else f"episode {episode}, step {step}") in error


def flagged(start: int, patterns: list[int]) -> dict[str, Any]:
    flags = {name: np.array([bool(p & 1 << i) for p in patterns], np.bool_) for i, name in enumerate(FLAGS)}
    return columns(len(patterns), start, **flags)


def test_one_and_two_step_streams(streams: dict[str, Stream]) -> None:
    for one in range(8):
        check(streams["boundary"], "boundary", [flagged(0, [one])])
    for pair in range(2, 64, 7):
        check(streams["transition"], "transition", [flagged(0, [pair >> 3, pair & 7])])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(0, 5), max_size=6),
    patterns=st.lists(st.lists(st.sampled_from([0, 0, 1, 2, 6, 3, 4]), max_size=4), max_size=3),
    terminal_discount=st.sampled_from(["boundary", "transition"]),
)
def test_good_episodes_then_random_ones(
    streams: dict[str, Stream], lengths: list[int], patterns: list[list[int]], terminal_discount: str
) -> None:
    good = [[1, *[0] * (n - 2), 6] if n > 1 else [7] * n for n in lengths]
    episodes = [flagged(10 * i, pattern) for i, pattern in enumerate(good + patterns)]
    check(streams[terminal_discount], terminal_discount, episodes)


def test_the_tables_are_the_naive_rule_for_every_pair_of_patterns() -> None:
    tables = pair_tables()
    for now, then in itertools.product(range(8), range(8)):
        index = 9 * now + then
        row, following = (step_lists([flagged(0, [kind])])[0][0] for kind in (now, then))
        broken = reference.broken(1, (0, 1), row, (0, 2), following)
        if broken:
            assert FAULTS[tables.fault[index]].startswith(broken.sentence)
            continue
        assert tables.fault[index] == 0
        for name, zeros in (("boundary", tables.zero_boundary), ("transition", tables.zero_transition)):
            frame = reference.frame(row, following, name)
            assert (tables.step_type[index], tables.next_step_type[index]) == (
                frame["step_type"],
                frame["next_step_type"],
            )
            assert zeros[index] == (frame["discount"] == 0)


# --- sizes, order, structure --------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 1023, 1024, 1025, 2500])
def test_rows_keep_their_order_across_batches(rows: int) -> None:
    episodes = [columns(rows), columns(3, 7000), columns(1, 8000), columns(1024, 9000)]
    ours = in_batches(convert_rlds_to_trajectories(dataset(episodes), terminal_discount="transition"), 1000)
    np.testing.assert_array_equal(ours.observation, np.concatenate([e["observation"] for e in episodes]))
    expected, broken = reference.frames(step_lists(episodes), terminal_discount="transition")
    assert broken is None
    for name in ("step_type", "next_step_type", "reward", "discount"):
        np.testing.assert_array_equal(getattr(ours, name), [frame[name] for frame in expected])


def test_batch_is_that_of_any_dataset() -> None:
    frames = convert_rlds_to_trajectories(dataset([columns(10), columns(13, 50)]), terminal_discount="transition")
    plain = frames.map(lambda frame: frame)
    for options in ({}, {"drop_remainder": True}, {"num_parallel_calls": 2, "deterministic": False}):
        assert frames.batch(5, **options).element_spec == plain.batch(5, **options).element_spec
        for ours, theirs in zip(frames.batch(5, **options), plain.batch(5, **options), strict=True):
            assert_same(ours, theirs)
    assert len(list(frames.repeat(2).shuffle(5).batch(4).take(3))) == 3
    assert isinstance(frames, tf.data.Dataset)
    counted = tf.function(lambda: frames.batch(4).reduce(0, lambda n, frame: n + tf.size(frame.reward)))
    assert counted() == 23


def test_no_episodes_give_no_frames() -> None:
    data = dataset([columns(3)])
    assert rows_of(convert_rlds_to_trajectories(data.take(0))) == []
    assert rows_of(convert_rlds_to_trajectories(data.take(0)).batch(8)) == []
    assert rows_of(convert_rlds_to_trajectories(dataset([columns(0)]))) == []


def test_tuple_observations_and_nested_actions() -> None:
    nested = {
        "observation": (np.arange(8.0).reshape(4, 2), {"image": np.arange(12, dtype=np.uint8).reshape(4, 3)}),
        "action": {"arm": np.arange(4), "grip": (np.ones(4, np.float32),)},
    }
    data = dataset([columns(4, **nested)])
    ours = in_batches(convert_rlds_to_trajectories(data))
    assert_same({"observation": ours.observation, "action": ours.action}, nested)
    spec = create_trajectory_data_spec(data)
    assert spec.observation == (tf.TensorSpec([2], tf.float64), {"image": tf.TensorSpec([3], tf.uint8)})


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64])
def test_discounts_are_cast(dtype: Any) -> None:
    data = dataset([columns(3, discount=np.array([1, 1, 1], dtype))])
    frames = convert_rlds_to_trajectories(data)
    assert frames.element_spec.discount == tf.TensorSpec([], tf.float32)
    np.testing.assert_array_equal(in_batches(frames).discount, np.float32([1, 1, 0]))


def test_strings_and_large_rows_pass_through() -> None:
    image = np.random.default_rng(0).integers(0, 255, (40, 300, 300, 3), np.uint8)
    text = np.array([b"step %d" % i for i in range(40)], object)
    ours = in_batches(convert_rlds_to_trajectories(dataset([columns(40, observation={"image": image, "text": text})])))
    np.testing.assert_array_equal(ours.observation["image"], image)
    np.testing.assert_array_equal(ours.observation["text"], text)


def test_extra_fields_of_varying_shape_are_left_alone() -> None:
    def steps() -> Any:
        for t in range(3):
            yield {**{name: column[t] for name, column in columns(3).items()}, "words": np.zeros(t, np.int32)}

    spec = {name: tf.TensorSpec(c.shape[1:], c.dtype) for name, c in columns(1).items()} | {
        "words": tf.TensorSpec([None], tf.int32)
    }
    data = tf.data.Dataset.range(2).map(
        lambda _: {"steps": tf.data.Dataset.from_generator(steps, output_signature=spec)}
    )
    assert len(rows_of(convert_rlds_to_trajectories(data))) == 6


# --- policy_info --------------------------------------------------------------------------------


def test_policy_info_fn_sees_this_step_and_the_next() -> None:
    def policy_info_fn(current: dict[str, Any], following: dict[str, Any]) -> Any:
        if current["is_first"]:  # Python's if on a tensor, as TF-Agents' map allows
            kind = tf.constant(1)
        else:
            kind = tf.constant(2)
        return {"kind": kind, "then": (following["observation"]["x"], following["extra"]), "z": current["action"] * 2}

    episodes = [
        columns(n, start, observation={"x": np.arange(n) + start}, extra=np.arange(n) * 10)
        for n, start in ((3, 0), (1, 50), (1200, 100))
    ]
    frames = convert_rlds_to_trajectories(dataset(episodes), policy_info_fn, terminal_discount="transition")
    ours = in_batches(frames)
    x = np.concatenate([episode["observation"]["x"] for episode in episodes])
    extra = np.concatenate([episode["extra"] for episode in episodes])
    np.testing.assert_array_equal(ours.policy_info["then"][0], [*x[1:], 0])
    np.testing.assert_array_equal(ours.policy_info["then"][1], [*extra[1:], 0])
    np.testing.assert_array_equal(ours.policy_info["z"], ours.action * 2)
    np.testing.assert_array_equal(ours.policy_info["kind"] == 1, np.concatenate([e["is_first"] for e in episodes]))
    np.testing.assert_array_equal(ours.observation["x"], x)


def of_nest(current: dict[str, Any], following: dict[str, Any]) -> Any:
    if following["is_first"]:
        scale = 2.0
    else:
        scale = 3.0
    moved = following["observation"] - current["observation"]
    return {"moved": moved, "list": [current["reward"], scale], "pair": (following["is_first"], ()), "scale": scale}


def of_nothing(current: dict[str, Any], following: dict[str, Any]) -> Any:
    return {}


def of_tensor(current: dict[str, Any], following: dict[str, Any]) -> Any:
    return tf.tensordot(current["observation"], following["observation"], 1)


def of_numpy(current: dict[str, Any], following: dict[str, Any]) -> Any:
    return tf.numpy_function(lambda reward: np.float32(2 * reward), [current["reward"]], tf.float32)


def of_python(current: dict[str, Any], following: dict[str, Any]) -> Any:
    moved = tf.py_function(
        lambda now, then: tf.stack([now, then]), [current["action"], following["action"]], tf.float32
    )
    name = tf.numpy_function(lambda x: b"step", [current["reward"]], tf.string)
    return {"moved": moved, "name": name, "reward": current["reward"], "shaped": tf.reshape(following["action"], [-1])}


@pytest.mark.parametrize("policy_info_fn", [of_nest, of_nothing, of_tensor, of_numpy, of_python])
def test_policy_info_as_tf_agents_makes_it(policy_info_fn: Any) -> None:
    data = dataset([columns(5), columns(1, 20), columns(4, 30)])
    ours = convert_rlds_to_trajectories(data, policy_info_fn)
    theirs = tf_agents_rlds_to_reverb.convert_rlds_to_trajectories(data, policy_info_fn)
    assert ours.element_spec == theirs.element_spec
    assert_same(in_batches(ours), in_batches(theirs))
    assert_same(rows_of(ours.batch(3)), rows_of(theirs.batch(3)))


def test_frames_before_a_fault_have_the_policy_info_of_python() -> None:
    bad = columns(4, 20, is_first=np.array([True, False, True, False]))
    for episodes, frames in (([columns(3), bad], 4), ([bad], 1)):
        found = []
        with pytest.raises(tf.errors.InvalidArgumentError, match="followed by"):
            for frame in convert_rlds_to_trajectories(dataset(episodes), of_numpy):
                found.append(float(frame.policy_info))
        rewards = np.concatenate([episode["reward"] for episode in episodes])
        assert found == (2 * rewards[:frames]).tolist()


# --- warnings, options, errors ------------------------------------------------------------------


def test_a_warning_where_a_learner_would_bootstrap_through_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    quiet = columns(4, discount=np.float32([1, 1, 0, 0]))
    data = dataset([quiet, columns(3), columns(3)])
    with caplog.at_level(logging.WARNING, "rlds2buf"):
        frames = convert_rlds_to_trajectories(data)
        assert caplog.records == []
        for _ in range(2):
            assert len(rows_of(frames)) == 10
    assert len(caplog.records) == 1
    assert "episode 1, step 1: the discount is 1" in caplog.text and 'terminal_discount="transition"' in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "rlds2buf"):
        rows_of(convert_rlds_to_trajectories(dataset([quiet, columns(3, is_terminal=np.zeros(3, np.bool_))])))
        rows_of(convert_rlds_to_trajectories(data, terminal_discount="transition"))
    assert caplog.records == []


def test_check_finite_names_episode_step_and_field() -> None:
    def episode(rows: int) -> dict[str, Any]:
        return columns(rows, observation={"a": np.arange(rows), "b": np.zeros((rows, 2))})

    strict = Stream(episode(1), check_finite=True, terminal_discount="transition")
    lax = Stream(episode(1), terminal_discount="transition")
    for field in ("observation/b", "action", "reward", "discount"):
        bad = episode(40)
        column = bad["observation"]["b"] if field == "observation/b" else bad[field]
        column[30] = np.nan
        # Of a last row only the observation means anything.
        for name in ("action", "reward", "discount"):
            bad[name][-1] = np.inf
        rows, error = strict.read([episode(3), bad])
        assert f"{field} is not finite. (episode 1, step 30)" in error
        assert len(rows) == 3 + 30
        assert len(lax.read([episode(3), bad])[0]) == 3 + 40


def test_bad_arguments() -> None:
    data = dataset([columns(3)])
    with pytest.raises(ValueError, match="terminal_discount must be 'boundary' or 'transition', got 'both'"):
        convert_rlds_to_trajectories(data, terminal_discount="both")
    for wrong in (tf.data.Dataset.range(3), tf.data.Dataset.from_tensors({"steps": 3})):
        with pytest.raises(ValueError, match=r"^No dataset representing RLDS steps exist in the data\.$"):
            convert_rlds_to_trajectories(wrong)
    with pytest.raises(ValueError, match="but found"):
        create_trajectory_data_spec(tf.data.Dataset.from_tensors({"steps": tf.data.Dataset.range(3)}))


# --- our own sources ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hopper-v2", "made-hopper-v2"])
def test_paths_and_sources_give_what_tfds_gives(name: str) -> None:
    expected = in_batches(convert_rlds_to_trajectories(loaded(name)))
    path = folder(name)
    assert_same(in_batches(convert_rlds_to_trajectories(path)), expected)
    with open_source(path) as source:
        assert_same(in_batches(convert_rlds_to_trajectories(source)), expected)
        assert create_trajectory_data_spec(source) == create_trajectory_data_spec(loaded(name))


def test_episodes_and_columns_give_the_same_frames() -> None:
    parts = [
        columns(1500, observation={"x": np.arange(1500.0)}, note=np.array([b"a"] * 1500, object)),
        columns(2, observation={"x": np.arange(2.0)}, note=np.array([b"b"] * 2, object)),
    ]
    expected = in_batches(convert_rlds_to_trajectories(dataset(parts)))
    episodes = [
        Episode(**{k: v for k, v in part.items() if k != "note"}, extras={"note": part["note"]}) for part in parts
    ]
    assert_same(in_batches(convert_rlds_to_trajectories(episodes)), expected)
    seen = in_batches(convert_rlds_to_trajectories(episodes, lambda current, following: current["note"])).policy_info
    np.testing.assert_array_equal(seen, [b"a"] * 1500 + [b"b"] * 2)
    with pytest.raises(ValueError, match=r"Features expected are .*discount.* but found"):
        convert_rlds_to_trajectories([episodes[0].replace(discount=None)])


def test_tensorflow_is_needed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tf_agents.trajectories", None)
    with pytest.raises(errors.MissingDependency, match=r"pip install 'rlds2buf\[tf-agents\]'"):
        create_trajectory_data_spec(dataset([columns(2)]))


def test_the_module_is_a_public_name() -> None:
    import rlds2buf

    assert rlds2buf.rlds_to_reverb is rlds_to_reverb
    assert rlds_to_reverb.get_rlds_step_features() == tf_agents_rlds_to_reverb.get_rlds_step_features()
    assert tensor_spec.add_outer_dim(create_trajectory_data_spec(dataset([columns(2)]))).reward.shape == [None]
