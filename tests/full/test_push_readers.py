"""What others read from a table that we filled, and what TF-Agents puts into one itself."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rlds2buf import Episode, EpisodeError, push
from rlds2buf.formats.reverb.patterns.make import make_pattern
from tests.full.pushed import contents, episodes, expected, items_in_order
from tests.full.quiet import reverb, reverb_replay_buffer, reverb_utils, tensor_spec, tf, tf_agents_rlds_to_reverb
from tests.full.rlds_data import NAMES, columns, folder, loaded, mended, step_lists
from tests.full.rlds_data import dataset as flat_dataset
from tests.full.servers import ServerProcess

ONCE = {"sampler": "fifo", "max_times_sampled": 1}


@pytest.fixture(scope="module")
def server():
    fresh = [{"name": f"fresh{number}", **ONCE} for number in range(10)]
    with ServerProcess([{"name": "once", **ONCE}, {"name": "theirs", **ONCE}, {"name": "plain"}, *fresh]) as process:
        yield process


_NUMBERS = itertools.count()


@pytest.fixture
def fresh():
    """A table that no other test's dataset goes on reading in the background."""
    return f"fresh{next(_NUMBERS)}"


@pytest.fixture(autouse=True)
def emptied(server):
    client = reverb.Client(server.address)
    for table in client.server_info():
        client.reset(table)


def spec_of_trajectory(nested: bool) -> Any:
    from tf_agents.trajectories import time_step as ts
    from tf_agents.trajectories import trajectory
    from tf_agents.trajectories.policy_step import PolicyStep

    observation: Any = tf.TensorSpec([3], tf.float32)
    if nested:
        observation = {
            "z": observation,
            "image": tf.TensorSpec([8, 8, 3], tf.uint8),
            "more": (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)),
        }
    steps = ts.time_step_spec(observation)
    return trajectory.from_transition(steps, PolicyStep(tf.TensorSpec([2], tf.float32)), steps)


def flat(data: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in tf.nest.flatten(data)]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("length", [2, 5])
def test_tf_agents_replay_buffer_reads_the_rows_in_order(server, fresh, nested, length):
    given = episodes(9, 6, nested=nested, terminal=True)
    want = expected(make_pattern(sequence_length=length), given)
    push(given, server.address, fresh, sequence_length=length)
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        spec_of_trajectory(nested),
        table_name=fresh,
        sequence_length=length,
        server_address=server.address,
        rate_limiter_timeout_ms=1000,
    )
    assert buffer.num_frames() == len(want)
    rows = buffer.as_dataset(single_deterministic_pass=True, num_steps=length)
    got = [flat(data) for data, _ in itertools.islice(rows, len(want))]
    assert [contents([item]) for item in got] == [contents([item]) for item in want]


def test_tf_agents_replay_buffer_reads_batches(server):
    given = episodes(30, 20)
    want = expected(make_pattern(), given)
    push(given, server.address, "plain")
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        spec_of_trajectory(False), table_name="plain", sequence_length=2, server_address=server.address
    )
    allowed = set(contents(want))
    rows = buffer.as_dataset(sample_batch_size=16, num_steps=2)
    for data, info in itertools.islice(rows, 5):
        leaves = flat(data)
        assert leaves[1].shape == (16, 2, 3) and np.asarray(info.table_size).max() == len(want)
        for i in range(16):
            assert contents([[leaf[i] for leaf in leaves]])[0] in allowed


@pytest.mark.parametrize("pattern", [{}, {"pattern": "transition"}, {"pattern": "episode"}], ids=str)
def test_trajectory_datasets_read_every_item(server, fresh, pattern):
    given = episodes(9, 6, 17)
    kind = {**pattern}
    want = expected(make_pattern(kind.pop("pattern", "trajectory"), **kind), given)
    push(given, server.address, fresh, chunk_length=4, **pattern)
    first = want[0]
    dataset = reverb.TrajectoryDataset(
        server.address,
        table=fresh,
        dtypes=tuple(tf.as_dtype(column.dtype) for column in first),
        shapes=tuple(
            tf.TensorShape([None, *column.shape[1:]] if pattern != {"pattern": "transition"} else column.shape)
            for column in first
        ),
        max_in_flight_samples_per_worker=1,
        rate_limiter_timeout_ms=1000,
    )
    got = [flat(sample.data) for sample in itertools.islice(dataset, len(want))]
    assert contents(got) == contents(want)


def theirs(server: Any, dataset: Any, **observer: Any) -> list[list[np.ndarray]]:
    """What TF-Agents' util puts into a table."""
    client = reverb.Client(server.address)
    observer.setdefault("sequence_length", 2)
    kind = observer.pop("kind", reverb_utils.ReverbAddTrajectoryObserver)
    writer = kind(client, "theirs", **observer)
    # Their util compares the table's signature first; what it writes is the same without one.
    for frame in tf_agents_rlds_to_reverb.convert_rlds_to_trajectories(dataset):
        writer(frame)
    writer.close()
    count = client.server_info()["theirs"].current_size
    return items_in_order(server.address, "theirs", count)


def ours(server: Any, given: Any, **arguments: Any) -> list[list[np.ndarray]]:
    report = push(given, server.address, "once", **arguments)
    return items_in_order(server.address, "once", report.items)


def as_steps(dataset: Any) -> list[list[dict[str, Any]]]:
    return [list(episode["steps"].as_numpy_iterator()) for episode in dataset]


@pytest.mark.parametrize("name", NAMES)
def test_real_data_give_the_items_that_tf_agents_makes(server, name):
    dataset = mended(name)
    want = theirs(server, dataset)
    got = ours(server, as_steps(dataset), terminal_discount="boundary", on_invalid="skip")
    assert len(want) > 20
    assert contents(got) == contents(want)


@pytest.mark.parametrize("name", [name for name in NAMES if "hopper" in name or "cartpole" in name])
def test_where_the_data_hold_the_discount_no_option_is_needed(server, name):
    dataset = mended(name)
    assert contents(ours(server, as_steps(dataset))) == contents(theirs(server, dataset))


@pytest.mark.parametrize("name", [name for name in NAMES if "hopper" in name])
def test_folders_as_they_are(server, name):
    """What TF-Agents makes of a dataset as TFDS reads it, and we of its folder."""
    got = ours(server, folder(name))
    assert contents(got) == contents(theirs(server, loaded(name)))


@pytest.mark.parametrize("name", [name for name in NAMES if "bridge" in name or "robomimic" in name])
def test_folders_that_neither_takes(server, name):
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError)):
        theirs(server, loaded(name))
    with pytest.raises(EpisodeError):
        ours(server, folder(name))


def test_datasets_that_only_differ_in_their_values_are_two(server):
    """A tf.data pipeline can't be told by its content without reading it."""
    for shift in (0.0, 100.0):
        data = flat_dataset([columns(5, start=shift), columns(4, start=shift)])
        for known in (0, 7):
            assert push(data, server.address, "plain").already_there == known
    assert reverb.Client(server.address).server_info()["plain"].current_size == 14


OBSERVERS = [
    ({"sequence_length": 3, "stride_length": 2}, {"sequence_length": 3, "stride": 2}),
    ({"sequence_length": 4, "pad_end_of_episodes": True}, {"sequence_length": 4, "pad": True}),
    (
        {"sequence_length": 4, "pad_end_of_episodes": True, "tile_end_of_episodes": True},
        {"sequence_length": 4, "pad": True, "tile": True},
    ),
    (
        {"sequence_length": 3, "stride_length": 2, "kind": reverb_utils.ReverbTrajectorySequenceObserver},
        {"sequence_length": 3, "stride": 2, "cross_episodes": True},
    ),
]


@pytest.mark.parametrize(("observer", "arguments"), OBSERVERS, ids=lambda value: "-".join(map(str, value)))
def test_every_observer(server, observer, arguments):
    rows = [
        {
            name: getattr(ep, name)
            for name in ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal")
        }
        for ep in episodes(3, 1, 4, 9, terminal=True)
    ]
    dataset = tf.data.Dataset.from_tensor_slices({"steps": [tf.data.Dataset.from_tensor_slices(one) for one in rows]})
    got = ours(server, step_lists(rows), terminal_discount="boundary", **arguments)
    want = theirs(server, dataset, **observer)
    assert contents(got) == contents(want) and got


def test_the_episode_observer(server):
    rows = [
        {
            name: getattr(ep, name)
            for name in ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal")
        }
        for ep in episodes(3, 1, 4, terminal=True)
    ]
    dataset = tf.data.Dataset.from_tensor_slices({"steps": [tf.data.Dataset.from_tensor_slices(one) for one in rows]})
    client = reverb.Client(server.address)
    writer = reverb_utils.ReverbAddEpisodeObserver(client, "theirs", max_sequence_length=10)
    for frame in tf_agents_rlds_to_reverb.convert_rlds_to_trajectories(dataset):
        writer(frame)
    writer.close()
    want = items_in_order(server.address, "theirs", 3)
    got = ours(server, step_lists(rows), terminal_discount="boundary", pattern="episode")
    assert contents(got) == contents(want)


def test_a_behaviour_cloning_agent_learns_from_the_table(server):
    from tf_agents.agents.behavioral_cloning import behavioral_cloning_agent
    from tf_agents.networks import q_network
    from tf_agents.trajectories import time_step as ts

    rng = np.random.default_rng(0)
    given = []
    for number in range(20):
        rows = 30
        observation = rng.normal(size=(rows, 4)).astype(np.float32)
        ends = np.arange(rows) == rows - 1
        given.append(
            Episode(
                observation=observation,
                action=(observation[:, 0] > 0).astype(np.int64),
                reward=np.ones(rows, np.float32),
                discount=np.ones(rows, np.float32),
                is_first=np.arange(rows) == 0,
                is_last=ends,
                is_terminal=ends,
                index=number,
            )
        )
    push(given, server.address, "plain")
    observation_spec = tensor_spec.TensorSpec([4], tf.float32)
    action_spec = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)
    network = q_network.QNetwork(observation_spec, action_spec, fc_layer_params=(16,))
    agent = behavioral_cloning_agent.BehavioralCloningAgent(
        ts.time_step_spec(observation_spec),
        action_spec,
        cloning_network=network,
        optimizer=tf.keras.optimizers.legacy.Adam(0.02),
        num_outer_dims=2,
    )
    agent.initialize()
    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        agent.collect_data_spec, table_name="plain", sequence_length=2, server_address=server.address
    )
    losses = [
        float(agent.train(data).loss)
        for data, _ in itertools.islice(buffer.as_dataset(sample_batch_size=64, num_steps=2), 60)
    ]
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
