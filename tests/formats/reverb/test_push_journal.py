from __future__ import annotations

import json
import os

import numpy as np
import pytest

from rlds2buf.errors import SinkError
from rlds2buf.formats.reverb.item_keys import CONTENT, EpisodeKeys
from rlds2buf.formats.reverb.push_journal import CollisionInJournal, Journal

HEADER = {"table": "replay", "fingerprint": "1", "servers": ("a:1", "b:2")}
SOURCE = {"source": "hopper.hdf5", "fingerprint": "1", "options": {}}


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def old(path, header=HEADER):
    """The journal of version 1 at a path, where there may be none yet."""
    if not path.exists():
        path.write_text(json.dumps({"rlds2buf_push": 1, **header}) + "\n")
    return Journal(path, {"table": "another"}, 2, old_header=header)


def new(path, header=HEADER):
    return Journal(path, header, 2, old_header={"table": "another"})


def names(*numbers, occurrence=0):
    """Records of episodes by their content; a negative number is one that collides."""
    return np.array([(abs(number), number + 99, occurrence) for number in numbers], CONTENT)


def keys(*numbers, occurrence=0):
    column = np.arange(len(numbers), dtype=np.uint64)
    return EpisodeKeys(column, column, column, column, names=names(*numbers, occurrence=occurrence))


def marks(version, *pairs):
    called = [number for number, _ in pairs] if version == 1 else keys(*(number for number, _ in pairs)).marks
    return [(name, items) for name, (_, items) in zip(called, pairs, strict=True)]


def held(journal, server):
    """Which of ten episodes a server has acknowledged."""
    if journal.version == 1:
        return journal.servers[server].episodes
    return set(np.flatnonzero(journal.servers[server].episodes.holds(names(*range(10)))).tolist())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


OPEN = {1: old, 2: new}


def written(path, version=1):
    journal = OPEN[version](path)
    journal.begin(0, "aa", size=3, inserted=5)
    journal.begin(1, "bb", size=0, inserted=0)
    journal.run(SOURCE)
    journal.acknowledge(0, marks(version, (0, 10), (1, 11), (2, 12), (7, 1)))
    journal.acknowledge(1, marks(version, (3, 20)))
    journal.checkpoint({"read": 4})
    journal.acknowledge(1, marks(version, (4, 21)))
    journal.look(0, 39)
    journal.close()
    journal.close()
    return path


@pytest.mark.parametrize("version", [1, 2])
def test_a_journal_comes_back(path, version):
    journal = OPEN[version](written(path, version))
    assert journal.version == version
    first, second = journal.servers
    assert (first.state, first.size, first.inserted, first.seen, first.items) == ("aa", 3, 5, 39, 34)
    assert held(journal, 0) == {0, 1, 2, 7}
    assert (held(journal, 1), second.items) == ({3, 4}, 41)
    assert journal.progress == {"read": 4}
    assert set(journal.run(SOURCE)["name"].tolist()) == (set() if version == 1 else {0, 1, 2, 7, 3})
    journal.close()
    assert second.seen == second.inserted == 0
    assert len(lines(path)) == (8 if version == 1 else 10)


@pytest.mark.parametrize("version", [1, 2])
def test_a_new_server_state_forgets_that_servers_episodes(path, version):
    journal = OPEN[version](written(path, version))
    journal.begin(1, "cc", size=1, inserted=1)
    assert len(journal.run(SOURCE)) == 0
    journal.acknowledge(1, marks(version, (9, 2)))
    journal.close()
    again = OPEN[version](path)
    assert held(again, 1) == {9} and again.servers[1].items == 2
    assert again.servers[0].items == 34
    assert again.progress is None
    again.close()


@pytest.mark.parametrize("version", [1, 2])
def test_every_cut_leaves_a_journal(path, tmp_path, version):
    whole = written(path, version).read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(len(whole)):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:length])
        if 0 < length < len('{"rlds2buf_push":'):  # too little to tell whose it is
            with pytest.raises(SinkError, match="not the journal of a push"):
                OPEN[version](cut)
            assert cut.read_bytes() == whole[:length]
            continue
        journal = OPEN[version](cut) if length else new(cut)
        assert journal.version == (version if length >= first else 2)
        assert journal.servers[0].items in (0, 34)
        journal.begin(0, "dd", size=0, inserted=0)
        journal.close()
        found = lines(cut)
        assert found[0]["table"] == ("another" if version == 1 and 0 < length < first else "replay")
        assert found[-1] == {"server": 0, "state": "dd", "size": 0, "inserted": 0}
        assert len(found) == (2 if length < first else 1 + whole[:length].count(b"\n"))


def test_a_journal_serves_any_source_and_goes_on_only_in_the_same(path):
    journal = new(written(path, 2))
    assert journal.known(keys(0, 3, 4, 5), np.array([0, 0, 1, 1])).tolist() == [True, False, True, False]
    assert len(journal.run({**SOURCE, "fingerprint": "2"})) == 0 and journal.progress is None
    assert [source["fingerprint"] for source in journal.sources] == ["1", "2"]
    journal.pass_over(keys(0, 1))
    journal.acknowledge(1, marks(2, (5, 3)))
    journal.checkpoint({"read": 3})
    journal.pass_over(keys(2))
    journal.close()
    again = new(path)
    assert held(again, 1) == {3, 4, 5}
    assert again.run({**SOURCE, "fingerprint": "2"})["name"].tolist() == [5, 0, 1]
    assert again.progress == {"read": 3}
    again.checkpoint({"read": 4})
    again.close()
    for from_start in (False, True):
        last = new(path)
        came = last.run({**SOURCE, "fingerprint": "2"}, from_start=from_start)
        assert came["name"].tolist() == ([] if from_start else [5, 0, 1])
        assert last.progress == (None if from_start else {"read": 4})
        last.close()


def test_episodes_that_equal_one_another_are_told_apart(path):
    journal = new(path)
    journal.acknowledge(0, [(mark, 1) for mark in keys(7, occurrence=0).marks])
    journal.acknowledge(0, [(mark, 1) for mark in keys(7, occurrence=2).marks])
    journal.close()
    again = new(path)
    for occurrence in range(4):
        found = again.known(keys(7, 8, occurrence=occurrence), np.zeros(2, int))
        assert found.tolist() == [occurrence in (0, 2), False]
    again.close()


def test_another_episode_of_the_same_name_is_found(path):
    journal = new(written(path, 2))
    with pytest.raises(CollisionInJournal) as caught:
        journal.known(keys(0, 9, -7), np.array([0, 1, 0]))
    assert caught.value.position == 2
    assert not journal.known(keys(-7), np.array([1])).any(), "another server's"
    journal.close()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": "other"}, 'table: "replay" there, "other" now'),
        ({"more": 1}, "more: null there, 1 now"),
        ({"servers": ["b:2", "a:1"]}, "servers"),
    ],
)
def test_another_pushs_journal_is_refused(path, change, words, version):
    before = written(path, version).read_bytes()
    with pytest.raises(SinkError, match="journal is of another push") as caught:
        OPEN[version](path, {**HEADER, **change})
    assert words in str(caught.value)
    assert path.read_bytes() == before


def test_a_journal_of_a_version_to_come_is_refused(path):
    path.write_text(json.dumps({"rlds2buf_push": 3, **HEADER}) + "\n")
    with pytest.raises(SinkError, match="rlds2buf_push: 3 there, 2 now"):
        new(path)


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n",
        b"[]\n",
        b'{"a": 1}\n',
        b"\xff\xfe\n",
        b"null\n",
        b"one line of a thesis",
        b"{",
        b"a chapter\nand half of another",
        b'{"rlds2buf_push": 1, "table": "ot',
        b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 100,
        b"[" * 200_000 + b"\n",
        b"x" * (2 << 20) + b"\nand more",
    ],
)
def test_other_files_are_refused_and_not_a_byte_of_them_is_changed(path, content):
    path.write_bytes(content)
    with pytest.raises(SinkError, match="not the journal of a push"):
        Journal(path, HEADER, 2)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{}",
        b'{"server": 5, "state": ""}',
        b'{"server": 0, "episodes": 3, "items": 1}',
        b'{"server": 0, "episodes": "AAAA", "items": 1}',
        b'{"passed": "?"}',
        b'{"source": {}}',
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_damaged_lines_are_refused(path, line, version):
    written(path, version)
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(SinkError, match="not the journal of a push"):
        OPEN[version](path)


def test_a_damaged_journal_with_a_torn_line_is_left_as_it_is(path):
    damaged = written(path, 2).read_bytes() + b"[]\n" + b'{"server": 0, "ep'
    path.write_bytes(damaged)
    with pytest.raises(SinkError, match="not the journal of a push"):
        Journal(path, HEADER, 2)
    assert path.read_bytes() == damaged


def test_a_pipe_is_no_journal(path):
    os.mkfifo(path)
    with pytest.raises(SinkError, match="not a regular file"):
        Journal(path, HEADER, 1)


def test_a_folder_is_no_journal(tmp_path):
    with pytest.raises(SinkError, match="can't be used"):
        Journal(tmp_path, HEADER, 1)


def test_without_a_path_it_only_remembers():
    journal = Journal(None, HEADER, 1)
    journal.begin(0, "aa", size=0, inserted=0)
    journal.acknowledge(0, [])
    journal.acknowledge(0, marks(2, (1, 2)))
    assert journal.servers[0].items == 2
    journal.close()


def test_a_kill_before_anything_was_sent_leaves_the_choices(path):
    Journal(path, HEADER, 2).close()  # as push opens it, before the first item goes out
    with pytest.raises(SinkError, match='table: "replay" there, "other" now'):
        Journal(path, {**HEADER, "table": "other"}, 2)
    with pytest.raises(SinkError, match="options: null there"):
        Journal(path, {**HEADER, "options": {"on_invalid": "skip"}}, 2)
    assert lines(path) == [{"rlds2buf_push": 2, **HEADER, "servers": ["a:1", "b:2"]}]
