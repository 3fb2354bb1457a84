"""From a dataset to a table, a spec and a replay buffer, one call each."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlds2buf import Episode, open_source
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.formats.reverb.table_spec import TableSpec
from rlds2buf.reverb import tf_tables as reverb_tables
from tests.full.pushed import episodes, expected
from tests.full.quiet import reverb, tensor_spec, tf, tf_agents_rlds_to_reverb
from tests.full.rlds_data import NAMES, columns, dataset, mended, step_lists


@pytest.mark.parametrize("name", NAMES)
def test_the_spec_is_tf_agents_own(name):
    data = mended(name)
    theirs = tf_agents_rlds_to_reverb.create_trajectory_data_spec(data)
    ours = reverb_tables.trajectory_spec([list(one["steps"].as_numpy_iterator()) for one in data.take(1)])
    assert type(ours) is type(theirs)
    assert ours == theirs


def test_the_table_takes_what_tf_agents_compares():
    given = [columns(5)]
    table = reverb_tables.make_table(step_lists(given), "replay")
    assert table.info.signature == tensor_spec.add_outer_dim(
        tf_agents_rlds_to_reverb.create_trajectory_data_spec(dataset(given))
    )
    assert (table.info.max_size, table.info.max_times_sampled) == (1_000_000, 0)


def test_a_table_of_its_own_size_has_room():
    assert reverb_tables.make_table(episodes(9), max_size=5, sampler="fifo").info.max_size == 5
    assert [TableSpec("t").size_for(count) for count in (0, 400_000, 600_000)] == [1_000_000, 1_000_000, 1_200_000]
    with pytest.raises(ValueError, match="colour: no option"):
        reverb_tables.make_table(episodes(9), colour="red")


def test_the_table_has_the_settings_asked_for():
    spec = TableSpec("t", 7, "prioritized", "max_heap", 0.5, 3, 2, 4, 8)
    info = reverb_tables.make_table(episodes(9), spec).info
    assert (info.name, info.max_size, info.max_times_sampled) == ("t", 7, 3)
    assert info.sampler_options.prioritized.priority_exponent == 0.5 and not info.remover_options.heap.min_heap
    assert info.rate_limiter_info.samples_per_insert == 4 and info.rate_limiter_info.max_diff == 16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(sampler="random"), "sampler"),
        (dict(max_size=0), "max_size"),
        (dict(priority_exponent=-1), "priority_exponent"),
        (dict(samples_per_insert=0, error_buffer=9), "positive"),
        (dict(samples_per_insert=4), "error_buffer"),
        (dict(samples_per_insert=4, error_buffer=3), "error_buffer"),
        (dict(error_buffer=3), "goes with"),
    ],
)
def test_settings_that_reverb_does_not_take(changes, words):
    with pytest.raises(ValueError, match=words):
        TableSpec("t", **changes)


@pytest.mark.parametrize("kind", ["trajectory", "transition", "episode"])
def test_every_pattern_makes_a_table(kind):
    given = episodes(9, 4, nested=True)
    pattern = make_pattern(kind)
    server = reverb.Server([reverb_tables.make_table(given, "replay", pattern)])
    from rlds2buf import push

    report = push(given, f"localhost:{server.port}", "replay", pattern=kind)
    assert report.items == reverb_tables.count_items(open_source(given), pattern)
    client = reverb.Client(f"localhost:{server.port}")
    sample = next(iter(client.sample("replay", emit_timesteps=False, unpack_as_table_signature=True)))
    assert set(sample.data.observation) == {"z", "image", "more"}
    server.stop()


def test_items_are_counted_where_the_numbers_do_not_tell():
    pattern = make_pattern(sequence_length=3, stride=2)
    assert reverb_tables.count_items(open_source(episodes(9, 4, 2)), pattern) == 4 + 1


def test_a_replay_buffer_in_one_call():
    buffer = reverb_tables.replay_buffer(episodes(30, 20, terminal=True), sequence_length=3)
    assert buffer.num_frames() == 28 + 18
    data, _ = next(iter(buffer.as_dataset(sample_batch_size=8, num_steps=3)))
    assert data.observation.shape == (8, 3, 3)
    np.testing.assert_array_equal(data.action.numpy()[..., 0], data.observation.numpy()[..., 0])
    address = f"localhost:{buffer.local_server.port}"
    other = reverb_tables.replay_buffer(episodes(30, 20, terminal=True), sequence_length=3, server_address=address)
    assert other.num_frames() == 46
    for one, _ in itertools.islice(other.as_dataset(sample_batch_size=4, num_steps=3), 2):
        assert tf.nest.map_structure(lambda leaf: leaf.shape[:2], one).reward == (4, 3)
    buffer.local_server.stop()


@pytest.mark.parametrize(
    ("how", "items"),
    [
        (dict(sequence_length=8, pad=True, tile=True), 30 + 5),
        (dict(sequence_length=4, cross_episodes=True), 35 - 3),
        (dict(sequence_length=2, policy_info="weight"), 29 + 4),
        (dict(sequence_length=3, terminal_discount="boundary", stride=2), 14 + 2),
        (dict(pattern="episode"), 2),
    ],
    ids=str,
)
def test_a_replay_buffer_takes_every_option_of_its_items(how, items):
    given = episodes(30, 5, terminal=True)
    buffer = reverb_tables.replay_buffer(given, sampler="fifo", **how)
    assert buffer.num_frames() == items and buffer.capacity == 1_000_000
    assert buffer.get_table_info().sampler_options.fifo
    data, _ = next(iter(buffer.as_dataset(num_steps=None if how.get("pattern") else how["sequence_length"])))
    shape = make_pattern(**{"kind" if name == "pattern" else name: value for name, value in how.items()})
    first = next(iter(expected(shape, given)))
    for got, want in zip(tf.nest.flatten(data), first, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    buffer.local_server.stop()


def test_what_a_replay_buffer_does_not_take():
    with pytest.raises(ValueError, match="pattern='transition' gives items of another kind"):
        reverb_tables.replay_buffer(episodes(9), pattern="transition")
    with pytest.raises(ValueError, match="has its settings already"):
        reverb_tables.replay_buffer(episodes(9), sampler="fifo", server_address="localhost:1")


def test_what_can_not_be_pushed_stops_the_server():
    bad = Episode(observation=np.zeros(3), action=np.zeros(3), reward=np.full(3, np.nan))
    with pytest.raises(ValueError, match="reward is not finite"):
        reverb_tables.replay_buffer([bad])
