"""``rlds2buf push``, ``serve`` and ``convert --to reverb-checkpoint`` as they are typed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rlds2buf
from rlds2buf.cli import reverb_arguments
from rlds2buf.formats.reverb.patterns.make import PATTERN_OPTIONS, PATTERNS
from rlds2buf.formats.reverb.table_spec import SELECTORS
from tests.cli.run import first_line, run, start, wait_for
from tests.data import ROOT
from tests.full.quiet import reverb, reverb_utils, tf_agents_rlds_to_reverb
from tests.full.rlds_data import folder, mended
from tests.full.servers import ServerProcess
from tests.made import MADE

CARTPOLE = folder("made-cartpole")
HOPPER = MADE / "d4rl/hopper_medium-v2.hdf5"
BRIDGE = folder("made-bridge")


@pytest.fixture(scope="module")
def server():
    # Two of them: what a broken push has left in the server's queue goes into its table later.
    blocked = [{"name": name, "limiter": ["Queue", 3]} for name in ("blocked", "blocked too")]
    with ServerProcess([{"name": "replay"}, {"name": "small", "max_size": 5}, *blocked]) as process:
        yield process


@pytest.fixture(autouse=True)
def emptied(request):
    if "server" in request.fixturenames:
        client = reverb.Client(request.getfixturevalue("server").address)
        for table in client.server_info():
            client.reset(table)


def test_choices_are_those_of_the_library():
    options = {option.name: option for option in _options(reverb_arguments.pattern_options)}
    assert list(options["pattern"].type.choices) == list(PATTERNS)
    assert set(options) == {"pattern", "priority", "chunk_length", *PATTERN_OPTIONS}
    options = {option.name: option for option in _options(reverb_arguments.table_options)}
    assert list(options["sampler"].type.choices) == list(options["remover"].type.choices) == list(SELECTORS)


def _options(decorate):
    import click

    return click.command()(decorate(lambda **given: None)).params


def test_push_says_what_it_did(server, capsys):
    result = run(capsys, "push", HOPPER, "--server", server.address, "--table", "replay")
    assert result.code == 0
    items = reverb.Client(server.address).server_info()["replay"].current_size
    assert items > 800
    for words in (f"items         {items:,}", f"{server.address}  0  ->  {items:,}  items", "items will be pushed"):
        assert words in result.out
    again = run(capsys, "push", HOPPER, "--server", f"reverb://{server.address}", "--table", "replay", "--json").json
    assert again["already_there"] == again["items"] == items and again["agrees"] is True


def test_push_takes_every_kind_of_item(server, capsys, tmp_path):
    common = ["push", HOPPER, "--server", server.address, "--table", "replay", "--json"]
    rows = rlds2buf.open_source(HOPPER).num_steps
    for arguments, items in [
        (["--sequence-length", 3, "--stride", 2], None),
        (["--sequence-length", 2000, "--pad"], 2),
        (["--sequence-length", 2000, "--pad", "--tile"], rows),
        (["--cross-episodes"], rows - 1),
        (["--pattern", "transition", "--n-step", 3, "--gamma", 0.9], rows - 2),
        (["--pattern", "episode"], 2),
        (["--priority", "2.5", "--chunk-length", 4], rows - 2),
        (["--priority", "discount", "--resume", tmp_path / "journal"], rows - 2),
    ]:
        found = run(capsys, *common, *arguments).json
        assert found["agrees"] and (items is None or found["items"] == items), arguments
    assert run(capsys, *common, "--priority", "discount", "--resume", tmp_path / "journal").json["acknowledged"] == 0


def test_push_to_a_table_that_others_have_filled(server, capsys):
    client = reverb.Client(server.address)
    for number in range(5):
        client.insert([np.full(3, number)], {"small": 1.0})
    arguments = ["push", CARTPOLE, "--server", server.address, "--table", "small", "--pattern", "episode", "--json"]
    result = run(capsys, *arguments)
    assert result.code == 4 and "room for 0 more items" in result.json["error"], result.err
    assert "--allow-eviction" in result.err and client.server_info()["small"].current_size == 5
    assert run(capsys, *arguments, "--allow-eviction").json["servers"][0]["size_after"] == 5


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "words"),
    [
        (["--table", "other"], 4, "SinkError", "no table 'other'"),
        (["--table", "small"], 4, "SinkError", "holds at most 5 items"),
        (["--table", "blocked", "--timeout", "0.5"], 4, "WriteTimeout", "rate limiter"),
        (["--table", "replay", "--stride", "0"], 2, "ValueError", "stride"),
        (["--table", "replay", "--keep-existing"], 2, "ValueError", "needs the journal of the earlier push"),
        (["--table", "replay", "--priority", "nothing"], 1, "EpisodeError", "one number per step"),
        (["--table", "replay", "--server", "nowhere"], 2, "ValueError", "HOST:PORT"),
        (["--table", "replay", "--server", "localhost:1", "--timeout", "0.5"], 4, "ServerUnavailable", "localhost:1"),
        (["--table", "replay", "--split", "train"], 2, "ValueError", "no splits"),
    ],
)
def test_push_fails_with_one_sentence(server, capsys, arguments, code, kind, words):
    servers = [] if "--server" in arguments else ["--server", server.address]
    result = run(capsys, "push", HOPPER, *servers, *arguments, "--json")
    assert result.code == code, result.err
    assert result.json["class"] == kind and words in result.json["error"]
    assert result.err.startswith("rlds2buf: ")


def test_push_of_invalid_data(server, capsys):
    result = run(capsys, "push", BRIDGE, "--server", server.address, "--table", "replay")
    assert result.code == 1 and "episode 0" in result.err
    result = run(
        capsys, "push", BRIDGE, "--server", server.address, "--table", "replay", "--on-invalid", "repair", "--json"
    )
    assert result.json["items"] == 25 * 9 and result.json["agrees"]


# The other environment, where the test script has made it: no TensorFlow, the newest protobuf and numpy.
CORE = ROOT / ".venv" / "core"
PYTHONS = [Path(sys.executable), *(CORE / "bin" / "python" for _ in CORE.glob("lib/python3*/site-packages/cramjam"))]


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_push_needs_no_tensorflow(server, python):
    code = f"""
import sys
from rlds2buf.cli.main import main
code = main(["push", {str(CARTPOLE)!r}, "--server", "{server.address}", "--table", "replay"])
print(code, sorted({{"tensorflow", "reverb", "tf_agents", "tensorflow_datasets", "h5py"}} & set(sys.modules)))
"""
    done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "0 []", done.stdout + done.stderr


def test_push_to_a_server_that_stops_ends(server):
    process = start("push", HOPPER, "--server", server.address, "--table", "blocked", "--timeout", "2")
    client = reverb.Client(server.address)
    wait_for(lambda: client.server_info()["blocked"].current_size >= 3, process)
    server.stop()
    begun = time.monotonic()
    try:
        _, err = process.communicate(timeout=60)
    finally:
        server.go_on()
    assert process.returncode == 4 and time.monotonic() - begun < 15
    assert "no answer within 2 s" in err and "Traceback" not in err


def test_push_that_is_interrupted_ends(server):
    process = start("push", HOPPER, "--server", server.address, "--table", "blocked too")
    client = reverb.Client(server.address)
    wait_for(lambda: client.server_info()["blocked too"].current_size >= 3, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in err


def test_sample_shows_items(server, capsys, tmp_path):
    run(capsys, "push", HOPPER, "--server", server.address, "--table", "replay")
    run(capsys, "convert", HOPPER, tmp_path / "seed", "--to", "reverb-checkpoint")
    table = f"reverb://{server.address}/replay"
    for place in (table, tmp_path / "seed"):
        found = run(capsys, "sample", place, "-n", 50, "--seed", 1, "--json").json
        assert len(found["keys"]) == 50 and found["table_size"] > 800
    assert found["fields"]["observation"]["type"] == "float32[100, 11]"
    assert run(capsys, "sample", tmp_path / "seed", "-n", 50, "--seed", 1, "--json").json == found
    assert "50 items of" in run(capsys, "sample", table, "-n", 50).out
    assert run(capsys, "sample", table, "--n-step", 3).code == 2
    assert run(capsys, "sample", f"reverb://{server.address}/nothing").code == 3
    assert run(capsys, "sample", f"reverb://{server.address}/small").code == 3


def test_convert_to_a_checkpoint(capsys, tmp_path):
    target = tmp_path / "seed"
    common = ["convert", HOPPER, target, "--to", "reverb-checkpoint", "--json"]
    found = run(capsys, *common, "-T", "table=hopper", "-T", "sampler=prioritized", "-T", "sequence_length=3").json
    assert found["items"] == found["steps"] - 4
    looked = run(capsys, "inspect", target, "--json").json
    assert looked["format"] == "reverb-checkpoint" and looked["episodes"] == found["items"]
    assert looked["details"]["table"] == "hopper"
    for arguments, code in [
        ([], 5),
        (["--overwrite", "-T", "colour=red"], 2),
        (["--overwrite", "-T", "sampler=random"], 2),
        (["--overwrite", "--resume"], 2),
        (["--overwrite", "-T", "max_size=3"], 4),
    ]:
        assert run(capsys, *common, *arguments).code == code, arguments
    assert run(capsys, "convert", HOPPER, tmp_path / "b", "-T", "table=x").code == 2
    assert run(capsys, *common, "--overwrite").json["items"] == found["steps"] - 2
    assert os.listdir(tmp_path) == ["seed"]
    assert run(capsys, *common, "--overwrite").code == 0


class TestServe:
    def begin(self, *arguments):
        process = start("serve", *arguments)
        return process, first_line(process)

    def end(self, process, number=signal.SIGINT):
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def test_the_table_is_there_until_it_is_interrupted(self, tmp_path):
        folder = tmp_path / "checkpoints"
        arguments = [CARTPOLE, "--table", "cart", "--sampler", "fifo", "--checkpoint", folder, "--json"]
        process, line = self.begin(*arguments)
        found = json.loads(line)
        client = reverb.Client(found["address"])
        info = client.server_info()["cart"]
        items = found["push"]["items"]
        assert (info.current_size, info.max_size) == (items, 1_000_000) and info.sampler_options.fifo
        assert found["push"]["columns"]["action"].startswith("float32[2")
        sample = next(iter(client.sample("cart", emit_timesteps=False)))
        assert sample.data[0].tolist() == [0, 1]
        assert os.path.isdir(found["checkpoint"])
        code, out, err = self.end(process)
        assert (code, out) == (0, "") and "Traceback" not in err
        # The next one starts from the checkpoint, and has nothing to add.
        process, line = self.begin(*arguments)
        found = json.loads(line)
        assert found["push"]["already_there"] == items
        self.check_what_it_listens_on(found)
        assert self.end(process, signal.SIGTERM)[0] == 0

    def check_what_it_listens_on(self, found):
        port = int(found["address"].rpartition(":")[2])
        tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
        bound = [row.split()[1] for table in tables for row in table.splitlines()[1:]]
        (address,) = {one.partition(":")[0] for one in bound if one.endswith(f":{port:04X}")} & {"0" * 8, "0" * 32}
        assert set(address) == {"0"}  # every interface, as it says
        assert found["listens"] == f"[::]:{port}" and "neither authentication nor encryption" in found["warning"]

    def test_tf_agents_own_util_takes_the_table(self, tmp_path):
        # What TF-Agents compares is the signature; the data are flattened so that its util can read them.
        dataset = mended("made-hopper-v2")
        process, line = self.begin(folder("made-hopper-v2"), "--max-size", "5000", "--json")
        found = json.loads(line)
        client = reverb.Client(found["address"])
        before = client.server_info()["replay"].current_size
        observer = reverb_utils.ReverbAddTrajectoryObserver(client, "replay", sequence_length=2)
        count = tf_agents_rlds_to_reverb.push_rlds_to_reverb(dataset, observer)
        observer.close()
        assert client.server_info()["replay"].current_size == before + count - 2
        assert self.end(process)[0] == 0

    def test_as_text(self):
        process, line = self.begin(HOPPER, "--max-size", "100", "--sequence-length", "5")
        assert line.startswith(f"{HOPPER} -> reverb://localhost:")
        line = next(line for line in process.stdout if line.startswith("serving table replay at localhost:"))
        address = line.split()[4].rstrip(";")
        assert reverb.Client(address).server_info()["replay"].current_size == 100
        assert self.end(process)[0] == 0

    def test_what_can_not_be_served(self, capsys):
        assert run(capsys, "serve", "nothing-there").code == 3
        assert run(capsys, "serve", HOPPER, "--samples-per-insert", "3").code == 2
        assert run(capsys, "serve", BRIDGE).code == 1
        with socket.create_server(("", 0)) as taken:
            result = run(capsys, "serve", HOPPER, "--port", taken.getsockname()[1])
            assert result.code == 4 and "another program listens there" in result.err

    def test_a_checkpoint_of_another_table(self, capsys, tmp_path):
        run(capsys, "convert", HOPPER, tmp_path / "seed", "--to", "reverb-checkpoint", "-T", "table=other")
        result = run(capsys, "serve", HOPPER, "--checkpoint", tmp_path / "seed")
        assert result.code == 4 and "table 'other'" in result.err
