"""Checkpoints that we write, read by Reverb; checkpoints that Reverb writes, read by us."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest

import rlds2buf
from rlds2buf import (
    SinkError,
    SnapshotExists,
    SourceError,
    SourceFormatError,
    SourceNotFound,
    convert,
    open_source,
    push,
)
from rlds2buf.formats.reverb.checkpoint_sink import ReverbCheckpointSink
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.formats.reverb.protocol.checkpoint_files import latest_checkpoint
from rlds2buf.formats.reverb.table_spec import TableSpec
from tests.full.pushed import contents, episode, episodes, expected, items_in_order
from tests.full.quiet import reverb, reverb_utils, tf_agents_rlds_to_reverb
from tests.full.rlds_data import columns, dataset

EMPTY_TABLE = ("replay", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 1, reverb.rate_limiters.MinSize(1))


@pytest.fixture
def loaded():
    """Starts a stock server in this process from a checkpoint folder."""
    running = []

    def start(folder):
        checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(str(folder))
        running.append(reverb.Server([reverb.Table(*EMPTY_TABLE)], checkpointer=checkpointer))
        return reverb.Client(f"localhost:{running[-1].port}")

    yield start
    for server in running:
        server.stop()


def once(**changes):
    return TableSpec("replay", sampler="fifo", max_times_sampled=1, **changes)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"sequence_length": 5, "pad": True, "tile": True},
        {"kind": "transition", "n_step": 2},
        {"kind": "episode"},
    ],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_stock_server_loads_every_item(loaded, tmp_path, arguments, nested):
    given = episodes(9, 1, 40, nested=nested, terminal=True)
    want = expected(make_pattern(**arguments), given)
    sink = ReverbCheckpointSink(tmp_path / "seed", once(), make_pattern(**arguments), chunk_length=7, priority=3.0)
    assert convert(given, sink).items == len(want)
    client = loaded(tmp_path / "seed")
    info = client.server_info()["replay"]
    assert (info.current_size, info.max_size, info.num_episodes) == (len(want), 1_000_000, 3 - (len(want) == 47))
    got = items_in_order(client.server_address, "replay", len(want))
    assert [contents([item]) for item in got] == [contents([item]) for item in want]


def test_the_table_has_the_settings_asked_for(loaded, tmp_path):
    spec = TableSpec(
        "replay",
        max_size=50,
        sampler="prioritized",
        remover="min_heap",
        priority_exponent=0.5,
        max_times_sampled=7,
        min_size_to_sample=3,
        samples_per_insert=4,
        error_buffer=6,
    )
    convert(episodes(9), ReverbCheckpointSink(tmp_path / "seed", spec, priority="reward"))
    info = loaded(tmp_path / "seed").server_info()["replay"]
    assert (info.max_size, info.max_times_sampled, info.current_size) == (50, 7, 8)
    assert info.sampler_options.prioritized.priority_exponent == 0.5
    assert info.remover_options.heap.min_heap
    limiter = info.rate_limiter_info
    made = reverb.rate_limiters.SampleToInsertRatio(4, 3, 6)
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (4, 3)
    assert repr(made).endswith(f"min_diff_={limiter.min_diff:g}, max_diff={limiter.max_diff:g}, min_size_to_sample=3)")
    assert limiter.insert_stats.completed == 8


def test_pushing_the_same_data_on_top_changes_nothing(loaded, tmp_path):
    given = episodes(9, 30)
    convert(given, ReverbCheckpointSink(tmp_path / "seed"))
    client = loaded(tmp_path / "seed")
    report = push(given, client.server_address, "replay")
    assert report.already_there == report.items == client.server_info()["replay"].current_size == 37


def test_tf_agents_own_util_takes_the_table(loaded, tmp_path):
    given = [columns(5), columns(4, start=100.0)]
    convert(
        [rlds2buf.Episode(**one) for one in given], ReverbCheckpointSink(tmp_path / "seed", TableSpec("replay", 100))
    )
    client = loaded(tmp_path / "seed")
    observer = reverb_utils.ReverbAddTrajectoryObserver(client, "replay", sequence_length=2)
    assert tf_agents_rlds_to_reverb.push_rlds_to_reverb(dataset(given), observer) == 9
    observer.close()
    assert client.server_info()["replay"].current_size == 14


def test_a_checkpoint_of_the_loaded_items_keeps_their_order(loaded, tmp_path):
    given = episodes(60)
    convert(given, ReverbCheckpointSink(tmp_path / "seed", once(), chunk_length=1))
    loaded(tmp_path / "seed").checkpoint()
    again = loaded(tmp_path / "seed")
    got = items_in_order(again.server_address, "replay", 59)
    want = expected(make_pattern(), given)
    assert [contents([item]) for item in got] == [contents([item]) for item in want]


def test_what_is_there_is_not_replaced_unasked(tmp_path):
    target = tmp_path / "seed"
    target.mkdir()
    convert(episodes(5), ReverbCheckpointSink(target))
    before = latest_checkpoint(target)
    with pytest.raises(SnapshotExists):
        convert(episodes(6), ReverbCheckpointSink(target))
    assert latest_checkpoint(target) == before
    convert(episodes(6), ReverbCheckpointSink(target, overwrite=True))
    assert open_source(target).num_episodes == 5
    assert os.listdir(tmp_path) == ["seed"]


def test_nothing_half_written_is_left(tmp_path):
    bad = episode(1, 6).replace(reward=np.full(6, np.nan, np.float32))
    with pytest.raises(rlds2buf.EpisodeError):
        convert([episode(0, 5), bad], ReverbCheckpointSink(tmp_path / "seed"))
    assert os.listdir(tmp_path) == []
    with pytest.raises(SinkError, match="would hold at most 3 items"):
        convert(episodes(3, 9), ReverbCheckpointSink(tmp_path / "seed", TableSpec("replay", max_size=3)))
    assert os.listdir(tmp_path) == []
    with pytest.raises(SinkError, match="no action, reward"):
        convert([rlds2buf.Episode(observation=np.zeros(2))], ReverbCheckpointSink(tmp_path / "seed"))
    with pytest.raises(SinkError):
        (tmp_path / "file").touch()
        convert(episodes(3), ReverbCheckpointSink(tmp_path / "file" / "seed"))


@pytest.mark.parametrize("kind", ["trajectory", "transition"])
def test_our_own_checkpoints_are_a_source(tmp_path, kind):
    given = episodes(9, 5, nested=True, terminal=True)
    convert(given, ReverbCheckpointSink(tmp_path / "seed", "other", make_pattern(kind), priority=2.0))
    with open_source(tmp_path / "seed") as source:
        assert source.format == "reverb-checkpoint" and source.num_episodes == 12
        found = list(source)
        assert source.details()["items"] == 12 and source.details()["table"] == "other"
        assert [one.metadata["priority"] for one in found] == [2.0] * 12
        assert len({one.metadata["key"] for one in found}) == 12
        numbers = [int(one.observation["more"][0][0]) for one in found]
        assert numbers == [*range(8), *range(1000, 1004)]
        assert [one.num_steps for one in found] == [2] * 12
        assert found[7].is_terminal.tolist() == [False, True] and not found[6].is_terminal.any()
        np.testing.assert_array_equal(found[3].observation["image"], given[0].observation["image"][3:5])
        assert next(iter(source.read(8, 9))).observation["z"][0, 0] == 1000
        source.spec.check(found[0])


def test_reverbs_own_checkpoints_are_a_source(tmp_path):
    checkpointer = reverb.platform.checkpointers_lib.DefaultCheckpointer(str(tmp_path))
    tables = [
        reverb.Table("plain", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1)),
        reverb.Table("deltas", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1)),
    ]
    server = reverb.Server(tables, checkpointer=checkpointer)
    client = reverb.Client(f"localhost:{server.port}")
    rng = np.random.default_rng(0)
    rows = [
        (rng.integers(-99, 99, (3, 2)), rng.normal(size=2).astype(np.float32), rng.integers(0, 9)) for _ in range(12)
    ]
    with client.trajectory_writer(num_keep_alive_refs=5) as writer:
        for number, row in enumerate(rows):
            writer.append({"a": row[0], "b": row[1], "c": row[2]})
            if number >= 4:
                history = writer.history
                writer.create_item("plain", number / 2, {"first": history["a"][-5:], "last": history["b"][-1]})
    with client.writer(max_sequence_length=4, delta_encoded=True, chunk_length=3) as writer:
        for number, row in enumerate(rows):
            writer.append(row)
            if number >= 3:
                writer.create_item("deltas", 4, 1.0)
    client.checkpoint()
    server.stop()
    with open_source(tmp_path, table="plain") as source:
        found = list(source)
        assert [one.metadata["priority"] for one in found] == [number / 2 for number in range(4, 12)]
        for number, one in enumerate(found, 4):
            np.testing.assert_array_equal(one.extras["column_0"][0], [row[0] for row in rows[number - 4 : number + 1]])
            np.testing.assert_array_equal(one.extras["column_1"][0], rows[number][1])
    with open_source(tmp_path, table="deltas") as source:
        for number, one in enumerate(source, 3):
            for i in range(3):
                np.testing.assert_array_equal(
                    one.extras[f"column_{i}"][0], [row[i] for row in rows[number - 3 : number + 1]]
                )
    with pytest.raises(SourceNotFound, match=r"which table is meant.*'deltas', 'plain'"):
        open_source(tmp_path)
    with pytest.raises(SourceNotFound, match="no table 'x'"):
        open_source(tmp_path, table="x")


def test_every_truncation_and_damage_is_an_error(tmp_path):
    convert(episodes(9), ReverbCheckpointSink(tmp_path / "seed"))
    folder = latest_checkpoint(tmp_path / "seed")
    rng = np.random.default_rng(0)
    for name in ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord"):
        path = folder / name
        whole = path.read_bytes()
        cuts = [whole[:length] for length in sorted(rng.integers(0, len(whole), 30))]
        plain = zlib.decompress(whole)
        for position in rng.integers(0, len(plain), 30):
            changed = bytearray(plain)
            changed[position] ^= 0x55
            cuts.append(zlib.compress(bytes(changed)))
        for damaged in cuts:
            path.write_bytes(damaged)
            with pytest.raises(SourceError) as caught:
                list(open_source(tmp_path / "seed"))
            assert isinstance(caught.value, SourceFormatError | SourceNotFound), caught.value
        path.write_bytes(whole)
        # Old checkpoints are not compressed.
        path.write_bytes(plain)
        assert len(list(open_source(tmp_path / "seed"))) == 8
    (folder / "DONE").unlink()
    with pytest.raises(SourceNotFound, match="no finished Reverb checkpoint"):
        open_source(tmp_path / "seed", format="reverb-checkpoint")
