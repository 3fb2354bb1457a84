"""Keys follow from content: the same data never double, in whatever file, format, order or company they come."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, SinkError, convert, open_source, push
from rlds2buf.formats.reverb import item_keys
from rlds2buf.reverb.counting import count_occurrences
from tests.full.pushed import episode, episodes
from tests.full.quiet import reverb
from tests.full.servers import ServerProcess
from tests.made import MADE

HOPPER = MADE / "d4rl/hopper_medium-v2.hdf5"
TABLES = [{"name": "plain"}, {"name": "by_priority", "sampler": "max_heap"}]


@pytest.fixture(scope="module")
def servers():
    with ServerProcess(TABLES, TABLES) as process:
        yield process


@pytest.fixture
def server(servers):
    for address in servers.addresses:
        for table in TABLES:
            reverb.Client(address).reset(table["name"])
    return servers


def size(server: Any) -> int:
    return int(reverb.Client(server.address).server_info()["plain"].current_size)


def walk(number: int, rows: int, *, terminal: bool) -> Episode:
    """An episode that every format can hold: float32 throughout, and what the last row is where there is none."""
    rng = np.random.default_rng(number)
    ends = np.arange(rows) == rows - 1
    action = rng.normal(size=(rows, 2)).astype(np.float32)
    reward = rng.normal(size=rows).astype(np.float32)
    action[-1] = reward[-1] = 0
    return Episode(
        observation=rng.normal(size=(rows, 3)).astype(np.float32),
        action=action,
        reward=reward,
        discount=1 - (ends & terminal).astype(np.float32),
        is_first=np.arange(rows) == 0,
        is_last=ends,
        is_terminal=ends & terminal,
    )


WALKS = [walk(number, rows, terminal=number % 2 == 0) for number, rows in enumerate((9, 4, 30, 4, 17))]


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"pattern": "transition", "n_step": 3, "gamma": 0.9},
        {"pattern": "episode"},
        {"sequence_length": 5, "pad": True, "tile": True},
        {"cross_episodes": True},
    ],
    ids=str,
)
def test_a_log_that_grows(server, tmp_path, kind):
    given = episodes(9, 1, 40, 17, 6)
    journal = tmp_path / "journal"
    first = push(given[:4], server.address, "plain", resume=journal, **kind)
    assert first.new == first.items == size(server)
    grown = push(given, server.address, "plain", resume=journal, **kind)
    assert (grown.resumed, grown.acknowledged) == (first.items, grown.items - first.items) and grown.agrees
    assert size(server) == grown.items > first.items
    blind = push(given, server.address, "plain", **kind)
    assert (blind.acknowledged, blind.already_there, blind.new) == (grown.items, grown.items, 0) and blind.agrees
    assert size(server) == grown.items


def test_order_splits_and_filters_do_not_count(server, tmp_path):
    given = episodes(9, 12, 40, 17, 6)
    items = push(given, server.address, "plain").items
    for some in (given[::-1], given[1:3], [given[3], given[0]]):
        again = push(some, server.address, "plain", resume=tmp_path / "journal")
        assert again.new == 0 and again.agrees and size(server) == items
    kept = push(given, server.address, "plain", min_length=1)
    assert kept.new == 0 and size(server) == items
    # The journal has all of them by now, from three sources.
    last = push(given, server.address, "plain", resume=tmp_path / "journal")
    assert last.resumed == items and last.acknowledged == 0
    assert any("maybe from another source" in note for note in last.notes)


def written(kind: str, folder: Path) -> Any:
    """The walks in a format, as something to push."""
    if kind == "tf.data":
        import tensorflow as tf

        convert(WALKS, folder / "rlds", to="rlds")
        import tensorflow_datasets as tfds

        (version,) = (path.parent for path in (folder / "rlds").rglob("features.json"))
        data = tfds.builder_from_directory(str(version)).as_dataset(split="train", shuffle_files=False)
        assert isinstance(data, tf.data.Dataset)
        return data
    target = folder / {"d4rl": "walks.hdf5", "minari": "walks-v0"}.get(kind, kind)
    convert(WALKS, target, to=kind)
    return str(target)


@pytest.mark.parametrize("pattern", ["trajectory", "transition", "episode"])
@pytest.mark.parametrize("kind", ["rlds", "d4rl", "minari", "robomimic", "buffer", "tf.data"])
def test_a_copy_in_another_format_has_the_same_keys(server, tmp_path, kind, pattern):
    items = push(WALKS, server.address, "plain", pattern=pattern).items
    copy = push(written(kind, tmp_path), server.address, "plain", pattern=pattern)
    assert (copy.items, copy.already_there, copy.new) == (items, items, 0)
    assert copy.agrees and size(server) == items


def test_copies_of_a_real_file_have_its_keys(server, tmp_path):
    items = push(str(HOPPER), server.address, "plain").items
    for kind, name in (("rlds", "rlds"), ("minari", "hopper-v0"), ("buffer", "buffer"), ("d4rl", "copy.hdf5")):
        convert(str(HOPPER), tmp_path / name, to=kind)
        copy = push(str(tmp_path / name), server.address, "plain")
        assert (copy.items, copy.new) == (items, 0), kind


def test_equal_episodes_of_one_source_are_items_of_their_own(server, tmp_path):
    one, other = episodes(9, 12)
    given = [one, other, one, one, other]
    journal = tmp_path / "journal"
    assert push(given[:3], server.address, "plain", resume=journal).new == 8 + 11 + 8
    assert push(given, server.address, "plain", resume=journal).acknowledged == 8 + 11
    assert push(given[::-1], server.address, "plain").new == 0
    assert size(server) == 3 * 8 + 2 * 11
    # In parts, which know what is in the whole.
    before = count_occurrences(given)
    assert before == {2: 1, 3: 2, 4: 1}
    reverb.Client(server.address).reset("plain")
    for start, stop in ((3, 5), (0, 3)):
        part = {number - start: times for number, times in before.items()}
        report = push(given[start:stop], server.address, "plain", occurrences=part)
        assert report.already_there == 0 and report.agrees
    assert size(server) == 3 * 8 + 2 * 11
    assert push(given, server.address, "plain").new == 0


def test_sources_can_be_kept_apart(server, tmp_path):
    for name in ("a.hdf5", "b.hdf5"):
        convert(WALKS, tmp_path / name, to="d4rl")
    items = push(str(tmp_path / "a.hdf5"), server.address, "plain", distinct_by="source", resume=tmp_path / "j").new
    assert push(str(tmp_path / "b.hdf5"), server.address, "plain", distinct_by="source").new == items
    assert push(str(tmp_path / "a.hdf5"), server.address, "plain", distinct_by="source").new == 0
    assert size(server) == 2 * items
    with pytest.raises(SinkError, match=r"journal is of another push .*source"):
        push(str(tmp_path / "b.hdf5"), server.address, "plain", distinct_by="source", resume=tmp_path / "j")
    with pytest.raises(SinkError, match=r'distinct_by: "source" there, "content" now'):
        push(str(tmp_path / "a.hdf5"), server.address, "plain", resume=tmp_path / "j")
    with pytest.raises(ValueError, match="distinct_by must be"):
        push(WALKS, server.address, "plain", distinct_by="name")


def test_servers_in_another_order_continue_the_journal(server, tmp_path):
    given = episodes(*[5] * 40)
    first = push(given[:30], server.addresses, "plain", resume=tmp_path / "journal")
    again = push(given, server.addresses[::-1], "plain", resume=tmp_path / "journal")
    assert (first.items, again.resumed, again.acknowledged) == (120, 120, 40) and again.agrees
    held = [int(reverb.Client(address).server_info()["plain"].current_size) for address in server.addresses]
    assert [one.items for one in again.servers] == held[::-1] and min(held) > 20


def test_hashes_that_collide_are_told_before_items_are_lost(server, tmp_path, monkeypatch):
    monkeypatch.setattr(item_keys, "_NAME_MASK", np.uint64(7))
    given = episodes(*[5] * 20)
    with pytest.raises(SinkError, match=r"episode \d+ and episode \d+ differ, but have the same hash.*distinct_by"):
        push(given, server.address, "plain")
    journal = tmp_path / "journal"
    pushed: list[Episode] = []
    for one in given:
        try:
            push([one], server.address, "plain", resume=journal)
        except SinkError as error:
            assert "one of an earlier push and episode 0 differ" in str(error)
            break
        pushed.append(one)
    assert 0 < len(pushed) < 9
    assert size(server) == 4 * len(pushed)


def test_the_report_says_what_is_new(server):
    data = push(WALKS, server.address, "plain").to_json()
    assert data["new"] == data["items"] == json.loads(json.dumps(data))["new"]


def test_a_checkpoint_has_the_keys_of_a_push(server, tmp_path):
    items = push(WALKS, server.address, "plain").items
    rlds2buf.write_checkpoint([*WALKS, WALKS[0]], tmp_path / "seed", "plain")
    with open_source(tmp_path / "seed") as source:
        assert source.num_episodes == items + WALKS[0].num_steps - 1


def test_the_command_line_keeps_sources_apart(server, tmp_path):
    convert(WALKS, tmp_path / "a.hdf5", to="d4rl")
    convert(WALKS, tmp_path / "b.hdf5", to="d4rl")
    found = []
    for name in ("a", "b", "b"):
        command = ["push", str(tmp_path / f"{name}.hdf5"), "--server", server.address, "--table", "plain", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "rlds2buf", *command, "--distinct-by", "source"],
            stdout=subprocess.PIPE,
            check=True,
            timeout=120,
        )
        found.append(json.loads(done.stdout)["new"])
    assert found[0] == found[1] > 0 == found[2]


def test_an_episode_that_fails_does_not_count(server):
    """The one behind it is the first of its kind."""
    bad = episode(0, 5).replace(extras={"weight": np.array([1, -1, 1, 1, 1.0])})
    given = [bad, episode(0, 5), episode(1, 5)]
    report = push(given, server.address, "plain", priority="extras/weight", on_invalid="skip")
    assert report.items == 8
    assert push(given[1:], server.address, "plain").new == 0


def test_priorities_that_a_learner_has_changed_stay(server, tmp_path):
    client, journal = reverb.Client(server.address), tmp_path / "journal"
    given = episodes(5, 6)
    push(given[:1], server.address, "by_priority", priority=2.0, resume=journal)

    def highest():
        (sample,) = next(iter(client.sample("by_priority")))[:1]
        return int(sample.info.key), sample.info.priority

    key, _ = highest()
    client.mutate_priorities("by_priority", {key: 9.0})
    with pytest.raises(SinkError, match=r"another push .*priority: 2.0 there, 3.0 now"):
        push(given, server.address, "by_priority", priority=3.0, resume=journal)
    grown = push(given, server.address, "by_priority", priority=3.0, resume=journal, keep_existing=True)
    assert (grown.resumed, grown.acknowledged) == (4, 5) and grown.agrees
    assert highest() == (key, 9.0)
    assert not any("under way" in note for note in grown.notes)
    client.mutate_priorities("by_priority", {key: 0.0})
    assert highest()[1] == 3.0
    push(given, server.address, "by_priority", priority=3.0)
    assert highest()[1] == 3.0 and client.server_info()["by_priority"].current_size == 9


def test_priorities_can_only_stay_where_the_journal_tells_what_is_there(server, tmp_path):
    with pytest.raises(ValueError, match=r"keep_existing \(--keep-existing\) needs the journal"):
        push(WALKS, server.address, "plain", keep_existing=True)
    journal = tmp_path / "journal"
    push(WALKS[:2], server.address, "plain", keep_existing=True, resume=journal)
    reverb.Client(server.address).reset("plain")
    before = journal.read_bytes()
    with pytest.raises(SinkError, match=r"since it acknowledged 11 items, and which of them"):
        push(WALKS, server.address, "plain", keep_existing=True, resume=journal)
    assert journal.read_bytes() == before and size(server) == 0
    assert push(WALKS, server.address, "plain", resume=journal).agrees


def test_items_that_were_under_way_are_told(server, tmp_path):
    """As a kill leaves it: in the table, and not in the journal."""
    journal = tmp_path / "journal"
    push(WALKS[:1], server.address, "plain", resume=journal)
    push(WALKS[1:2], server.address, "plain")
    report = push(WALKS, server.address, "plain", resume=journal, keep_existing=True)
    assert any("up to 3 items arrived that the journal does not have" in note for note in report.notes)
    assert size(server) == report.items
