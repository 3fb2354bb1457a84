"""Pushing through TF-Agents' observers to a real Reverb server, beside TF-Agents' own util."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rlds2buf import SignatureMismatch
from rlds2buf.rlds_to_reverb.api import create_trajectory_data_spec, push_rlds_to_reverb
from tests.full.quiet import (
    reverb,
    reverb_replay_buffer,
    reverb_utils,
    tensor_spec,
    tf,
    tf_agents_rlds_to_reverb,
    trajectory,
)
from tests.full.rlds_data import NAMES, columns, dataset, is_there, mended

SMALL = [columns(3), columns(1, 20), columns(4, 30, is_terminal=np.zeros(4, np.bool_)), columns(6, 40)]

OBSERVERS: dict[str, Callable[[Any, str], Any]] = {
    "pairs": lambda client, table: reverb_utils.ReverbAddTrajectoryObserver(client, table, 2),
    "stride": lambda client, table: reverb_utils.ReverbAddTrajectoryObserver(client, table, 2, stride_length=2),
    "padded": lambda client, table: reverb_utils.ReverbAddTrajectoryObserver(
        client, table, 4, pad_end_of_episodes=True
    ),
    "tiled": lambda client, table: reverb_utils.ReverbAddTrajectoryObserver(
        client, table, 4, pad_end_of_episodes=True, tile_end_of_episodes=True
    ),
    "across": lambda client, table: reverb_utils.ReverbTrajectorySequenceObserver(client, table, 2),
    "episodes": lambda client, table: reverb_utils.ReverbAddEpisodeObserver(client, table, 100),
    "bypassed": lambda client, table: reverb_utils.ReverbAddEpisodeObserver(
        client, table, 3, bypass_partial_episodes=True
    ),
}


def policy_info_fn(current: dict[str, Any], following: dict[str, Any]) -> Any:
    return {"log_prob": current["reward"] * 2, "then": following["action"]}


def python_policy_info_fn(current: dict[str, Any], following: dict[str, Any]) -> Any:
    """The same by way of Python, which does not tell the shapes."""
    double = tf.numpy_function(lambda reward: np.float32(2 * reward), [current["reward"]], tf.float32)
    return {"log_prob": double, "then": tf.py_function(lambda action: action, [following["action"]], tf.float32)}


POLICY_SPEC = {
    "log_prob": tensor_spec.BoundedTensorSpec([], tf.float32, -10.0, 10.0, name="log_prob"),
    "then": tf.TensorSpec([1], tf.float32),
}


def nested_episode(rows: int) -> dict[str, Any]:
    ramp = np.arange(rows)
    text = np.array([b"step %d" % t for t in range(rows)], object)
    return columns(rows, observation=({"a": ramp[:, None], "text": text}, ramp.astype(np.uint8)), action={"x": ramp})


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """One server with every table that the tests below fill; items leave it in order, once each."""
    small = create_trajectory_data_spec(dataset(SMALL))
    specs = {f"{side}-{name}": small for name in (*OBSERVERS, "other", "broken") for side in ("theirs", "ours")}
    for name in filter(is_there, NAMES):
        spec = create_trajectory_data_spec(mended(name))
        specs |= {f"{side}-{name}": spec for side in ("theirs", "ours")}
    specs["nested"] = create_trajectory_data_spec(dataset([nested_episode(2)]))
    specs["double"] = small
    # An agent's collect_data_spec has bounds and names that data don't have.
    specs["agent"] = small._replace(action=tensor_spec.BoundedTensorSpec([1], tf.float32, -1.0, 1.0, name="action"))
    specs["policy"] = small._replace(policy_info=POLICY_SPEC)
    specs["narrow"] = small._replace(observation=tf.TensorSpec([2], tf.float32))
    tables = [
        reverb.Table(
            name,
            sampler=reverb.selectors.Fifo(),
            remover=reverb.selectors.Fifo(),
            max_size=10_000,
            max_times_sampled=1,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=tensor_spec.add_outer_dim(spec),
        )
        for name, spec in specs.items()
    ]
    tables.append(reverb.Table.queue("unsigned", 100))
    server = reverb.Server(tables)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server: Any) -> Any:
    return server.localhost_client()


def items(client: Any, table: str) -> list[list[np.ndarray]]:
    """All items in order of insertion, as the flat columns ``[T, ...]`` that the server keeps; it is emptied."""
    count = client.server_info()[table].current_size
    return [sample.data for sample in client.sample(table, count, emit_timesteps=False)] if count else []


def assert_same_items(ours: list[list[np.ndarray]], theirs: list[list[np.ndarray]]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert [c.dtype for c in one] == [c.dtype for c in other]
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_real_data_make_the_items_of_tf_agents(client: Any, name: str) -> None:
    data = mended(name)
    observers = {side: OBSERVERS["pairs"](client, f"{side}-{name}") for side in ("theirs", "ours")}
    assert push_rlds_to_reverb(data, observers["ours"]) == tf_agents_rlds_to_reverb.push_rlds_to_reverb(
        data, observers["theirs"]
    )
    for observer in observers.values():
        observer.flush()
    ours = items(client, f"ours-{name}")
    assert len(ours) > 50
    assert_same_items(ours, items(client, f"theirs-{name}"))


@pytest.mark.parametrize("name", OBSERVERS)
def test_every_observer_makes_the_items_of_tf_agents(client: Any, name: str) -> None:
    counts = {}
    for side, push in (("theirs", tf_agents_rlds_to_reverb.push_rlds_to_reverb), ("ours", push_rlds_to_reverb)):
        observer = OBSERVERS[name](client, f"{side}-{name}")
        counts[side] = push(dataset(SMALL), observer)
        observer.flush()
        observer.close()
    assert counts["ours"] == counts["theirs"] == 14
    ours = items(client, f"ours-{name}")
    assert ours
    assert_same_items(ours, items(client, f"theirs-{name}"))


def test_an_observer_of_ones_own_gets_tensors(client: Any) -> None:
    class Doubling(reverb_utils.ReverbAddTrajectoryObserver):  # type: ignore[misc,name-defined]
        def __call__(self, frame: Any) -> None:
            assert all(tf.is_tensor(leaf) for leaf in tf.nest.flatten(frame))
            super().__call__(frame._replace(reward=frame.reward * 2))

    observer = Doubling(client, "ours-other", 2)
    assert push_rlds_to_reverb(dataset([columns(4)]), observer) == 4
    observer.flush()
    assert [list(item[-2]) for item in items(client, "ours-other")] == [[0, 4], [4, 8], [8, 12]]


def test_nested_and_tuple_observations_are_stored_leaf_by_leaf(client: Any) -> None:
    episode = nested_episode(5)
    observer = OBSERVERS["pairs"](client, "nested")
    assert push_rlds_to_reverb(dataset([episode]), observer) == 5
    observer.flush()
    for t, data in enumerate(items(client, "nested")):
        item = tf.nest.pack_sequence_as(create_trajectory_data_spec(dataset([episode])), data)
        for got, column in zip(
            tf.nest.flatten((item.observation, item.action)),
            tf.nest.flatten((episode["observation"], episode["action"])),
            strict=True,
        ):
            np.testing.assert_array_equal(got, column[t : t + 2])
    assert t == 3


@pytest.mark.parametrize("fn", [policy_info_fn, python_policy_info_fn])
def test_a_table_with_policy_info_is_accepted_and_read_by_tf_agents(client: Any, server: Any, fn: Any) -> None:
    observer = OBSERVERS["pairs"](client, "policy")
    assert push_rlds_to_reverb(dataset(SMALL), observer, fn) == 14
    observer.flush()
    spec = create_trajectory_data_spec(dataset(SMALL))._replace(policy_info=POLICY_SPEC)
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        spec, sequence_length=2, table_name="policy", local_server=server, rate_limiter_timeout_ms=1000
    )
    frames = [frame for frame, _ in buffer.as_dataset(num_steps=2, single_deterministic_pass=True)]
    assert len(frames) == 10
    assert isinstance(frames[0], trajectory.Trajectory)
    for frame in frames:
        np.testing.assert_array_equal(frame.policy_info["log_prob"], frame.reward * 2)
        np.testing.assert_array_equal(frame.policy_info["then"][0], frame.action[1])


def test_a_table_without_policy_info_takes_it_as_with_tf_agents(client: Any) -> None:
    observer = OBSERVERS["pairs"](client, "theirs-other")
    assert push_rlds_to_reverb(dataset(SMALL), observer, policy_info_fn) == 14


@pytest.mark.parametrize(
    ("table", "fn", "difference"),
    [
        ("narrow", None, "observation: the table has float32[None, 2], the data float32[None, 3]"),
        ("policy", None, "policy_info/log_prob: the table has float32[None], the data nothing"),
        ("policy", lambda now, then: now["reward"], "policy_info: the table has nothing, the data float32[None]"),
        (
            "policy",
            lambda now, then: {**policy_info_fn(now, then), "log_prob": now["observation"]},
            "policy_info/log_prob: the table has float32[None], the data float32[None, 3]",
        ),
        (
            "policy",
            lambda now, then: tf.nest.map_structure(lambda x: tf.cast(x, tf.float64), python_policy_info_fn(now, then)),
            "policy_info/log_prob: the table has float32[None], the data float64[...]",
        ),
        ("unsigned", None, "the table's signature is None, not a Trajectory"),
    ],
)
def test_another_signature_is_refused_with_the_difference(
    client: Any, table: str, fn: Any, difference: str, caplog: pytest.LogCaptureFixture
) -> None:
    observer = OBSERVERS["pairs"](client, table)
    with caplog.at_level(logging.ERROR, "rlds2buf"), pytest.raises(SignatureMismatch) as caught:
        push_rlds_to_reverb(dataset(SMALL), observer, fn)
    assert str(caught.value) == "Replay buffer table signature spec should match RLDS data spec."
    assert difference in caplog.messages
    assert client.server_info()[table].current_size == 0


def test_a_table_of_an_agent_s_spec_is_accepted(client: Any) -> None:
    observer = OBSERVERS["pairs"](client, "agent")
    data = dataset([columns(3, action=np.zeros((3, 1), np.float32))])
    assert push_rlds_to_reverb(data, observer) == 3
    observer.flush()
    assert len(items(client, "agent")) == 2


def test_float64_discounts_fit_the_spec(client: Any) -> None:
    observer = OBSERVERS["pairs"](client, "double")
    data = dataset([columns(3, discount=np.ones(3))])
    assert push_rlds_to_reverb(data, observer, terminal_discount="transition") == 3
    observer.flush()
    assert [(item[-1].dtype, list(item[-1])) for item in items(client, "double")] == [
        (np.float32, [1, 0]),
        (np.float32, [0, 1]),
    ]


def test_items_before_a_broken_step_are_written_as_with_tf_agents(client: Any) -> None:
    data = dataset([columns(3), columns(4, 30, is_last=np.zeros(4, np.bool_), is_terminal=np.zeros(4, np.bool_))])
    for side, push in (("theirs", tf_agents_rlds_to_reverb.push_rlds_to_reverb), ("ours", push_rlds_to_reverb)):
        observer = OBSERVERS["pairs"](client, f"{side}-broken")
        with pytest.raises(tf.errors.InvalidArgumentError, match="Mid step should not be followed by a first step"):
            push(data, observer)
        observer.flush()
    ours = items(client, "ours-broken")
    assert len(ours) == 4
    assert_same_items(ours, items(client, "theirs-broken"))


def test_no_episodes_and_one_step_episodes(client: Any) -> None:
    observer = OBSERVERS["pairs"](client, "theirs-other")
    before = client.server_info()["theirs-other"].current_size
    assert push_rlds_to_reverb(dataset(SMALL).take(0), observer) == 0
    assert push_rlds_to_reverb(dataset([columns(1), columns(1, 5)]), observer) == 2
    observer.flush()
    # One step makes no item of two.
    assert client.server_info()["theirs-other"].current_size == before


def test_what_the_observer_raises_comes_through(client: Any) -> None:
    observer = reverb_utils.ReverbAddEpisodeObserver(client, "ours-other", 3)
    with pytest.raises(ValueError, match="exceeds `max_sequence_length`"):
        push_rlds_to_reverb(dataset([columns(5)]), observer)
