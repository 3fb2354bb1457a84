"""Tables that other programs fill, read as items and as episodes; also while they are being filled."""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, SourceError, convert, load_buffer, open_source, push, validate
from rlds2buf.cli.main import main
from rlds2buf.core.row_flags import REAL_FINAL_ACTION
from rlds2buf.reverb.draw_items import draw_items
from tests.full.pushed import FLAT, episode, episodes, trajectory_signature
from tests.full.quiet import reverb, reverb_utils, trajectory
from tests.full.servers import ServerProcess

STEP = {"dict": {**FLAT, "discount": [[None], "float32"]}}
ACME = {
    "named": [
        "Step",
        [
            ["observation", [[None, 3], "float32"]],
            ["action", [[None], "int32"]],
            ["reward", [[None], "float32"]],
            ["discount", [[None], "float32"]],
            ["start_of_episode", [[None], "bool"]],
            ["extras", {"tuple": []}],
        ],
    ]
}
ONE_STEP = {"dict": {"action": [[2], "float32"], "observation": [[3], "float32"], "reward": [[], "float32"]}}
SARS = {
    "dict": {
        "action": [[2], "float32"],
        "discount": [[], "float32"],
        "next_observation": [[3], "float32"],
        "observation": [[3], "float32"],
        "reward": [[], "float32"],
    }
}
TABLES = [
    {"name": "plain"},
    {"name": "plain2"},
    {"name": "steps", "signature": STEP},
    {"name": "legacy", "signature": ONE_STEP},
    {"name": "sars", "signature": SARS},
    {"name": "acme", "signature": ACME},
    {"name": "typed", "signature": trajectory_signature()},
    {"name": "queue", "sampler": "fifo", "max_times_sampled": 1},
    {"name": "fifo", "sampler": "fifo"},
    {"name": "small", "signature": STEP, "max_size": 50},
    {"name": "narrow", "limiter": ["SampleToInsertRatio", 0.5, 1, 30.0]},
]
GIVEN = episodes(12, 5, 30, terminal=True)


@pytest.fixture(scope="module")
def running():
    with ServerProcess(TABLES) as process:
        yield process


@pytest.fixture
def server(running):
    client = reverb.Client(running.address)
    for table in TABLES:
        client.reset(table["name"])
    return running


def rows_of(one: Episode) -> list[dict[str, Any]]:
    """What an actor appends at each step."""
    names = ("observation", "action", "reward", "discount")
    return [{name: getattr(one, name)[t] for name in names} for t in range(one.num_steps)]


def write_windows(address: str, table: str, given: list[Episode], length: int, **writer: Any) -> None:
    """Items of the last `length` steps, by dm-reverb's TrajectoryWriter."""
    with reverb.Client(address).trajectory_writer(num_keep_alive_refs=length, **writer) as writing:
        for one in given:
            for t, row in enumerate(rows_of(one)):
                writing.append(row)
                if t + 1 >= length:
                    item = {name: column[-length:] for name, column in writing.history.items()}
                    writing.create_item(table, 1.0, item)
            writing.end_episode()


def read(address: str, table: str, **options: Any) -> list[Episode]:
    """The episodes of a table, by their first observation."""
    found: list[Episode] = []
    convert(f"reverb://{address}/{table}", found, **options)
    return sorted(found, key=lambda one: float(np.ravel(one.observation)[0]))


def assert_same(found: list[Episode], given: list[Episode], *names: str) -> None:
    assert [one.num_steps for one in found] == [one.num_steps for one in given]
    for one, other in zip(found, given, strict=True):
        for name in names or ("observation", "action", "reward", "discount"):
            rows = slice(None) if name == "observation" else slice(-1)
            np.testing.assert_array_equal(getattr(one, name)[rows], getattr(other, name)[rows], name)


def test_trajectory_writer_with_a_signature(server, tmp_path, capsys):
    write_windows(server.address, "steps", GIVEN, 3)
    uri = f"reverb://{server.address}/steps"
    assert_same(read(server.address, "steps"), GIVEN)
    assert main(["convert", uri, str(tmp_path / "buffer"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["episodes"], report["steps"], report["items"], report["warnings"]) == (3, 47, 44, [])
    assert load_buffer(tmp_path / "buffer").sample(8).data.observation.shape == (8, 3)
    assert main(["convert", uri, str(tmp_path / "steps"), "--to", "rlds"]) == 0
    with open_source(tmp_path / "steps") as source:
        assert sorted(one.num_steps for one in source) == [5, 12, 30]
    capsys.readouterr()
    assert main(["inspect", uri, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["details"]["items"] == 10 + 3 + 28 and found["episodes"] == 41
    drawn = draw_items(uri, 7)
    assert len(drawn.key) == 7 and {len(column) for column in drawn.columns.values()} == {7}
    assert validate(uri).ok


def test_without_a_signature_the_columns_are_numbered(server):
    # In one chunk each, then in several, with every integer as the difference to the one before.
    write_windows(server.address, "plain", GIVEN, 4)
    found: list[Episode] = []
    fields = {"action": "extras/column_0", "observation": "extras/column_2"}  # sorted by their names
    convert(f"reverb://{server.address}/plain", found, map=fields)
    found.sort(key=lambda one: one.observation[0, 0])
    assert_same(found, GIVEN, "observation", "action")
    assert all(set(one.extras) == {"column_1", "column_3"} for one in found)


def test_squeezed_and_of_different_lengths(server):
    with reverb.Client(server.address).trajectory_writer(num_keep_alive_refs=4) as writing:
        for t, row in enumerate(rows_of(GIVEN[0])):
            writing.append(row)
            history = writing.history
            if t >= 2:
                item = {"o": history["observation"][-3:], "a": history["action"][-2:], "r": history["reward"][-1]}
                writing.create_item("plain", 1.0, item)
            if t >= 2:
                writing.create_item("plain2", 1.0, {"o": history["observation"][-(t % 2) - 2 :]})
    found: list[Episode] = []
    report = convert(f"reverb://{server.address}/plain", found)
    assert report.episodes == 10 and {one.num_steps for one in found} == {1}
    shapes = {name: column.shape for name, column in found[0].extras.items()}
    assert shapes == {"column_0": (1, 2, 2), "column_1": (1, 3, 3), "column_2": (1,)}
    drawn = draw_items(f"reverb://{server.address}/plain2", 40)
    assert drawn.columns["extras/column_0"].shape[1:] == (3,) and 80 < len(drawn.columns["extras/column_0"]) < 120
    (whole,) = read_extras(server.address, "plain2")
    np.testing.assert_array_equal(whole.extras["column_0"], GIVEN[0].observation[1:])


def read_extras(address: str, table: str) -> list[Episode]:
    found: list[Episode] = []
    convert(f"reverb://{address}/{table}", found)
    return found


def test_structured_writer(server):
    writing = reverb.structured_writer
    first = rows_of(GIVEN[0])[0]
    pattern = writing.pattern_from_transform(first, lambda step: {name: column[-2:] for name, column in step.items()})
    every = writing.create_config(pattern, table="steps", conditions=[])
    spaced = writing.pattern_from_transform(first, lambda step: {"o": step["observation"][-5::2]})
    sparse = writing.create_config(spaced, table="plain", conditions=[writing.Condition.step_index() >= 4])
    writer = reverb.Client(server.address).structured_writer([every, sparse])
    for one in GIVEN:
        for row in rows_of(one):
            writer.append(row)
        writer.end_episode()
    writer.flush()
    assert_same(read(server.address, "steps"), GIVEN)
    # Every other step: as Reverb's own client has the items, and each by itself unless its rows follow one another.
    # (Where a chunk holds several of them, StructuredWriter itself takes neighbours.)
    with open_source(f"reverb://{server.address}/plain", num_items=600) as source:
        ours = {tuple(one.extras["column_0"][0, :, 0].tolist()) for one in source}
    samples = reverb.Client(server.address).sample("plain", 600, emit_timesteps=False)
    assert ours == {tuple(sample.data[0][:, 0].tolist()) for sample in samples} and len(ours) == 8 + 1 + 26
    found = read_extras(server.address, "plain")
    rows = {number for one in found for number in one.extras["column_0"][:, 0].tolist()}
    assert rows == {number for item in ours for number in item}


@pytest.mark.parametrize("delta_encoded", [False, True])
def test_legacy_writer_and_a_signature_of_single_steps(server, delta_encoded):
    with reverb.Client(server.address).writer(3, delta_encoded=delta_encoded, chunk_length=2) as writer:
        for t, row in enumerate(rows_of(GIVEN[0])):
            row.pop("discount")
            writer.append(row)
            if t >= 2:
                writer.create_item("legacy", 3, 1.0)
    assert_same(read(server.address, "legacy"), GIVEN[:1], "observation", "action", "reward")


@pytest.mark.parametrize("crossing", [False, True])
def test_transitions_that_hold_their_next_observation(server, crossing):
    """As one step each, in one episode of the writer's or in several."""
    with reverb.Client(server.address).trajectory_writer(num_keep_alive_refs=1) as writing:
        for one in GIVEN:
            rows = rows_of(one)
            for t, (row, after) in enumerate(itertools.pairwise(rows)):
                discount = np.float32(t + 2 < len(rows))
                writing.append({**row, "discount": discount, "next_observation": after["observation"]})
                item = {name: column[-1] for name, column in writing.history.items()}
                writing.create_item("sars", 1.0, item)
            if not crossing:
                writing.end_episode()
        writing.flush()
    found = read(server.address, "sars")
    assert_same(found, GIVEN, "observation", "action", "reward")
    assert [one.end for one in found] == ["terminated"] * 3


def test_acmes_sequences(server):
    """As its SequenceAdder writes them: a padded last step, and steps of zeros up to the length."""
    with reverb.Client(server.address).trajectory_writer(num_keep_alive_refs=5) as writing:
        for one, is_terminal in zip(GIVEN, (True, False, True), strict=True):
            last = one.num_steps - 1
            for t in range(one.num_steps):
                start = {"observation": one.observation[t], "start_of_episode": np.bool_(t == 0)}
                writing.append(start, partial_step=True)
                discount = np.float32(t < last and not (is_terminal and t == last - 1))
                numbers = {"reward": one.reward[t], "discount": discount}
                writing.append({"action": np.int32(t + 7), **numbers} if t < last else zeros())
                if t + 1 >= 5:
                    create_sequence(writing)
            writing.append({"observation": np.zeros(3, np.float32), "start_of_episode": np.bool_(False), **zeros()})
            create_sequence(writing)
            writing.end_episode()
    found = read(server.address, "acme")
    assert_same(found, GIVEN, "observation", "reward")
    assert [one.end for one in found] == ["terminated", "truncated", "terminated"]
    assert not any(REAL_FINAL_ACTION in one.metadata for one in found)


def zeros() -> dict[str, Any]:
    return {"action": np.int32(0), "reward": np.float32(0), "discount": np.float32(0)}


def create_sequence(writing: Any) -> None:
    names = ("observation", "action", "reward", "discount", "start_of_episode")
    history = writing.history
    writing.create_item("acme", 1.0, tuple(history[name][-5:] for name in names))


@pytest.mark.parametrize("kind", ["trajectory", "episode", "sequence"])
def test_tf_agents_observers(server, kind):
    client = reverb.Client(server.address)
    if kind == "episode":
        observer = reverb_utils.ReverbAddEpisodeObserver(client, "typed", max_sequence_length=40)
    elif kind == "sequence":
        observer = reverb_utils.ReverbTrajectorySequenceObserver(client, "typed", sequence_length=4)
    else:
        observer = reverb_utils.ReverbAddTrajectoryObserver(
            client, "typed", sequence_length=8, pad_end_of_episodes=True
        )
    for one in GIVEN:
        pairs = rlds2buf.step_pairs(one)
        for t in range(one.num_steps):
            frame = {name: column[t] for name, column in pairs._asdict().items() if name != "policy_info"}
            observer(trajectory.Trajectory(**frame, policy_info=()))
    observer.close()
    found = read(server.address, "typed")
    assert_same(found, GIVEN, "observation", "action", "reward")
    assert [one.end for one in found] == ["terminated"] * 3


@pytest.mark.parametrize("how", [{}, {"pattern": "episode"}, {"sequence_length": 6, "pad": True, "tile": True}])
def test_what_was_pushed_comes_back_and_goes_to_another_table(server, how):
    push(GIVEN, server.address, "typed", **how)
    assert_same(read(server.address, "typed"), GIVEN, "observation", "action", "reward")
    report = push(f"reverb://{server.address}/typed", server.address, "plain")
    assert report.items == 44 and report.agrees


def test_a_queue_is_emptied_and_nothing_of_it_lost(server):
    push(GIVEN, server.address, "queue")
    uri = f"reverb://{server.address}/queue"
    with pytest.raises(SourceError, match="removes an item after 1 samples"):
        convert(uri, [])
    found: list[Episode] = []
    report = convert(uri, found, consume=True, map={"observation": "extras/column_1"})
    assert report.steps == 47 and any("44 were taken" in text for text in report.warnings)
    assert reverb.Client(server.address).server_info()["queue"].current_size == 0


def test_a_sampler_with_an_order_gives_one_item(server):
    push(GIVEN, server.address, "fifo")
    found: list[Episode] = []
    report = convert(f"reverb://{server.address}/fifo", found)
    assert report.episodes == 1 and any("1 of the table's 44 items" in text for text in report.warnings)


def test_a_limiter_that_stops_sampling(server):
    push(GIVEN, server.address, "narrow")
    found: list[Episode] = []
    report = convert(f"reverb://{server.address}/narrow", found, timeout=0.5)
    assert any("no item came within 0.5 s" in text for text in report.warnings)
    assert 0 < report.steps


def test_a_checkpoint_that_the_server_writes_has_every_item_once(tmp_path):
    tables = [{"name": "fifo", "sampler": "fifo"}, {"name": "queue", "sampler": "fifo", "max_times_sampled": 1}]
    tables = [{**table, "signature": trajectory_signature()} for table in tables]
    with ServerProcess(tables, checkpoint=str(tmp_path)) as server:
        for table in ("fifo", "queue"):
            push(GIVEN, server.address, table)
            uri = f"reverb://{server.address}/{table}"
            found: list[Episode] = []
            report = convert(uri, found, checkpoint=True, join=True)
            assert_same(found, GIVEN, "observation", "action", "reward")
            assert report.warnings == []
            state = reverb.Client(server.address).server_info()[table]
            assert state.current_size == 44 and state.rate_limiter_info.sample_stats.completed == 0


class Actor(threading.Thread):
    """Inserts without a pause until it is stopped; its table forgets the oldest."""

    def __init__(self, address: str, table: str) -> None:
        super().__init__(daemon=True)
        self._address, self._table = address, table
        self.done = threading.Event()
        self.written = 0
        self.start()

    def run(self) -> None:
        with reverb.Client(self._address).trajectory_writer(num_keep_alive_refs=4) as writing:
            while not self.done.is_set():
                for t, row in enumerate(rows_of(numbered(self.written))):
                    writing.append(row)
                    if t >= 3:
                        item = {name: column[-4:] for name, column in writing.history.items()}
                        writing.create_item(self._table, 1.0, item)
                writing.end_episode()
                self.written += 1

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join(60)


def numbered(number: int) -> Episode:
    return episode(number, 15, terminal=True)


def test_while_an_actor_writes(server):
    uri = f"reverb://{server.address}/small"
    with Actor(server.address, "small") as actor:
        end = time.monotonic() + 60
        while reverb.Client(server.address).server_info()["small"].current_size < 50:
            assert actor.is_alive() and time.monotonic() < end
        for _ in range(5):
            found = read(server.address, "small")
            assert found and sum(one.num_steps for one in found) >= 50
            for one in found:
                number, row = divmod(float(one.observation[0, 0]), 1000)
                stop = int(row) + one.num_steps
                whole = numbered(int(number))
                np.testing.assert_array_equal(one.observation, whole.observation[int(row) : stop])
                np.testing.assert_array_equal(one.action[:-1], whole.action[int(row) : stop - 1])
                assert one.metadata["first_step"] == row
            assert len(draw_items(uri, 20).key) == 20
            with open_source(uri) as source:
                assert len(list(source)) == source.num_episodes
    assert actor.written > 0
