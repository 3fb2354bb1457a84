"""The journal of a push by version 0.1.0 is continued, and the items have the keys that it gave them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import rlds2buf
from tests.data import ROOT
from tests.full.quiet import reverb
from tests.full.servers import ServerProcess

LEFT = ROOT / "tests" / "from_0_1_0"


def test_its_checkpoint_is_served_under_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(LEFT / "source.hdf5", tmp_path)
    (found,) = (LEFT / "checkpoint").iterdir()
    shutil.copytree(found, tmp_path / "checkpoint" / "2026-11-21T12:00:00.000000000+00:00")
    monkeypatch.chdir(tmp_path)
    keys = json.loads((LEFT / "push_keys.json").read_text())
    for _ in range(2):  # the second time from what the first one leaves
        with rlds2buf.serve("source.hdf5", "replay", checkpoint="checkpoint") as serving:
            client = reverb.Client(serving.address)
            assert serving.report.already_there == len(keys) == client.server_info()["replay"].current_size
            assert {int(s[0].info.key) for s in client.sample("replay", num_samples=40 * len(keys))} == set(keys)
    with rlds2buf.serve("source.hdf5", "replay", checkpoint="checkpoint") as serving:
        report = rlds2buf.push("source.hdf5", serving.address, "replay", distinct_by="number", resume="journal")
        assert report.already_there == report.items == len(keys)
        assert rlds2buf.push("source.hdf5", serving.address, "replay", distinct_by="number", resume="journal").resumed
        with pytest.raises(rlds2buf.SinkError, match="room for 0 more items"):
            rlds2buf.push("source.hdf5", serving.address, "replay")
    with pytest.raises(ValueError, match="distinct_by must be one of content, source, number"):
        rlds2buf.push("source.hdf5", "localhost:1", "replay", distinct_by="colour")


def test_it_is_continued_under_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(LEFT / "source.hdf5", tmp_path)
    monkeypatch.chdir(tmp_path)
    keys = json.loads((LEFT / "push_keys.json").read_text())
    lines = [json.loads(line) for line in (LEFT / "push.journal").read_text().splitlines()]
    with rlds2buf.open_source("source.hdf5") as source, ServerProcess([{"name": "replay"}]) as serving:
        client = reverb.Client(serving.address)
        # As if the earlier push had been into this very server, ...
        Path("first.journal").write_text(f"{json.dumps({**lines[0], 'servers': [serving.address]})}\n")
        first = rlds2buf.push(source, serving.address, "replay", resume="first.journal")
        assert first.acknowledged == first.new == len(keys)
        assert {int(s[0].info.key) for s in client.sample("replay", num_samples=40 * len(keys))} == set(keys)
        # ... and had been cut off after six episodes.
        state = next(
            found for found in map(json.loads, Path("first.journal").read_text().splitlines()) if "state" in found
        )
        items = sum(episode.num_transitions for episode in list(source)[:6])
        cut = [
            {**lines[0], "servers": [serving.address]},
            {**lines[1], **{name: state[name] for name in ("state", "size", "inserted")}},
            {"server": 0, "episodes": [[0, 6]], "items": items},
        ]
        Path("push.journal").write_text("".join(f"{json.dumps(line)}\n" for line in cut))
        report = rlds2buf.push(source, serving.address, "replay", resume="push.journal")
        assert report.resumed == items and report.acknowledged == len(keys) - items
        assert client.server_info()["replay"].current_size == len(keys)
        assert Path("push.journal").read_text().startswith('{"rlds2buf_push": 1,')
