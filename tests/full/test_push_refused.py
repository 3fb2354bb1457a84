"""What a push refuses, on a real server: nothing has been sent then, and it is said what differs and what to do."""

from __future__ import annotations

import json

import pytest

from rlds2buf import convert, push
from rlds2buf.cli.main import main
from tests.full.pushed import episodes, trajectory_signature
from tests.full.quiet import reverb
from tests.full.servers import ServerProcess

GIVEN = episodes(12, 5)


@pytest.fixture(scope="module")
def servers():
    signature = json.loads(json.dumps(trajectory_signature([[None, 4], "float64"])))
    signature["named"][1].append(["weight", [[None], "float32"]])
    tables = [{"name": "other", "signature": signature}, {"name": "plain"}, {"name": "second"}]
    with ServerProcess(tables, [{"name": "plain"}]) as process:
        yield process


@pytest.fixture
def data(tmp_path):
    convert(GIVEN, tmp_path / "data", to="buffer")
    return str(tmp_path / "data")


def size(address, table):
    return reverb.Client(address).server_info()[table].current_size


def refusal(capsys, *arguments):
    """The error of a push by the command line, which exits with 4."""
    assert main(["push", *arguments, "--json"]) == 4
    return json.loads(capsys.readouterr().out)


def test_a_table_with_another_signature(servers, data, tmp_path, capsys):
    where = ("--server", servers.address, "--table", "other", "--resume", str(tmp_path / "journal"))
    said = refusal(capsys, data, *where)
    assert said["class"] == "SignatureMismatch"
    for part in ("observation: the data are float32[2, 3], the table takes float64[?, 4]", "weight: only in the table"):
        assert part in said["error"]
    assert size(servers.address, "other") == 0 and not (tmp_path / "journal").exists()


@pytest.mark.parametrize("what", ["table", "server", "pattern"])
def test_a_journal_of_another_target(servers, data, tmp_path, capsys, what):
    journal = str(tmp_path / "journal")
    push(data, servers.address, "plain", resume=journal)
    before = (tmp_path / "journal").read_bytes()
    address = servers.addresses[1] if what == "server" else servers.address
    table = "second" if what == "table" else "plain"
    more = ("--sequence-length", "3") if what == "pattern" else ()
    said = refusal(capsys, data, "--server", address, "--table", table, "--resume", journal, *more)
    expected = {
        "table": 'table: "plain" there, "second" now',
        "server": f'servers: ["{servers.address}"] there, ["{servers.addresses[1]}"] now',
        "pattern": "length=2 stride=1",
    }
    assert "the journal is of another push" in said["error"] and expected[what] in said["error"]
    assert "name another file" in said["error"]
    assert size(servers.address, "second") == 0 == size(servers.addresses[1], "plain")
    assert (tmp_path / "journal").read_bytes() == before
