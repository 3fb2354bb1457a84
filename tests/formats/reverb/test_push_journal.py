from __future__ import annotations

import json
import os

import pytest

from rlds2buf.errors import SinkError
from rlds2buf.formats.reverb.push_journal import Journal

HEADER = {"table": "replay", "fingerprint": "1", "servers": ("a:1", "b:2")}


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def written(path):
    journal = Journal(path, HEADER, 2)
    journal.begin(0, "aa", size=3, inserted=5)
    journal.begin(1, "bb", size=0, inserted=0)
    journal.acknowledge(0, [(0, 10), (1, 11), (2, 12), (7, 1)])
    journal.acknowledge(1, [(3, 20)])
    journal.checkpoint({"read": 4})
    journal.acknowledge(1, [(4, 21)])
    journal.look(0, 39)
    journal.close()
    journal.close()
    return path


def test_a_journal_comes_back(path):
    journal = Journal(written(path), HEADER, 2)
    first, second = journal.servers
    assert (first.state, first.size, first.inserted, first.seen, first.items) == ("aa", 3, 5, 39, 34)
    assert first.episodes == {0, 1, 2, 7}
    assert (second.episodes, second.items) == ({3, 4}, 41)
    assert journal.progress == {"read": 4}
    journal.close()
    assert second.seen == second.inserted == 0
    assert len(lines(path)) == 8


def test_a_new_server_state_forgets_that_servers_episodes(path):
    journal = Journal(written(path), HEADER, 2)
    journal.begin(1, "cc", size=1, inserted=1)
    journal.acknowledge(1, [(9, 2)])
    journal.close()
    again = Journal(path, HEADER, 2)
    assert again.servers[1].episodes == {9} and again.servers[1].items == 2
    assert again.servers[0].items == 34
    assert again.progress is None
    again.close()


def test_every_cut_leaves_a_journal(path, tmp_path):
    whole = written(path).read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(len(whole)):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:length])
        if 0 < length < len('{"rlds2buf_push":'):  # too little to tell whose it is
            with pytest.raises(SinkError, match="not the journal of a push"):
                Journal(cut, HEADER, 2)
            assert cut.read_bytes() == whole[:length]
            continue
        journal = Journal(cut, HEADER, 2)
        assert journal.servers[0].items in (0, 34)
        journal.begin(0, "dd", size=0, inserted=0)
        journal.close()
        found = lines(cut)
        assert found[0]["table"] == "replay"
        assert found[-1] == {"server": 0, "state": "dd", "size": 0, "inserted": 0}
        assert len(found) == (2 if length < first else 1 + whole[:length].count(b"\n"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": "other"}, 'table: "replay" there, "other" now'),
        ({"more": 1}, "more: null there, 1 now"),
        ({"servers": ["b:2", "a:1"]}, "servers"),
    ],
)
def test_another_pushs_journal_is_refused(path, change, words):
    before = written(path).read_bytes()
    with pytest.raises(SinkError, match="journal is of another push") as caught:
        Journal(path, {**HEADER, **change}, 2)
    assert words in str(caught.value)
    assert path.read_bytes() == before


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
    "line", [b"[]", b"{}", b'{"server": 5, "state": ""}', b'{"server": 0, "episodes": 3, "items": 1}']
)
def test_damaged_lines_are_refused(path, line):
    written(path)
    with path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(SinkError, match="not the journal of a push"):
        Journal(path, HEADER, 2)


def test_a_damaged_journal_with_a_torn_line_is_left_as_it_is(path):
    damaged = written(path).read_bytes() + b"[]\n" + b'{"server": 0, "ep'
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
    journal.acknowledge(0, [(1, 2)])
    assert journal.servers[0].items == 2
    journal.close()


def test_a_kill_before_anything_was_sent_leaves_the_choices(path):
    Journal(path, HEADER, 2).close()  # as push opens it, before the first item goes out
    with pytest.raises(SinkError, match='table: "replay" there, "other" now'):
        Journal(path, {**HEADER, "table": "other"}, 2)
    with pytest.raises(SinkError, match="options: null there"):
        Journal(path, {**HEADER, "options": {"on_invalid": "skip"}}, 2)
    assert lines(path) == [{"rlds2buf_push": 1, **HEADER, "servers": ["a:1", "b:2"]}]
