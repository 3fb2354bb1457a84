"""Checkpoints as a sink and as a source, against the shared suites; Reverb itself reads them in tests/full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlds2buf
from rlds2buf import convert, errors, open_source, write_checkpoint
from rlds2buf.formats.reverb.checkpoint_sink import ReverbCheckpointSink
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.formats.reverb.table_spec import TableSpec
from rlds2buf.io.sink import Sink
from rlds2buf.pipeline.opening import open_sink
from tests.buffers.numbered import episode
from tests.contracts.sink import SinkContract
from tests.contracts.source import MakeSource, SourceContract

GIVEN = [episode(0, 6), episode(100, 40, end="truncated")]


class TestReverbCheckpointSink(SinkContract):
    def make(self, folder: Path) -> Sink:
        return ReverbCheckpointSink(folder / "seed", pattern=make_pattern("transition"), chunk_length=3)

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "seed").exists():
            return None
        return [int(item.observation["count"][0]) for item in open_source(folder / "seed")]


class CheckpointSource(SourceContract):
    kind = ""

    @pytest.fixture
    def make_source(self, tmp_path: Path) -> MakeSource:
        write_checkpoint(GIVEN, tmp_path / "seed", pattern=self.kind)
        return lambda: open_source(tmp_path / "seed")

    @pytest.fixture
    def change(self, tmp_path: Path) -> Callable[[], Any]:
        return lambda: write_checkpoint(GIVEN[:1], tmp_path / "seed", overwrite=True)


class TestCheckpointOfTrajectories(CheckpointSource):
    kind = "trajectory"


class TestCheckpointOfTransitions(CheckpointSource):
    kind = "transition"


class TestCheckpointOfEpisodes(CheckpointSource):
    kind = "episode"


def test_open_sink_makes_one(tmp_path):
    sink = open_sink(tmp_path / "seed", to="reverb-checkpoint")
    assert isinstance(sink, ReverbCheckpointSink)
    with pytest.raises(ValueError, match="resume"):
        open_sink(tmp_path / "seed", to="reverb-checkpoint", resume=True)
    assert convert(GIVEN, tmp_path / "seed", to="reverb-checkpoint").items == 44


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(colour="red"), "colour: no option"),
        (dict(chunk_length=0), "chunk_length"),
        (dict(priority=-1), "priority"),
        (dict(sampler="random"), "sampler"),
    ],
)
def test_options_that_are_none(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        write_checkpoint(GIVEN, tmp_path / "seed", **options)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_checkpoints_gives_the_latest(tmp_path):
    write_checkpoint(GIVEN, tmp_path / "a")
    write_checkpoint(GIVEN[:1], tmp_path / "b")
    (later,) = (tmp_path / "b").iterdir()
    later.rename(tmp_path / "a" / later.name)
    assert open_source(tmp_path / "a").num_episodes == 5
    (tmp_path / "a" / later.name / "DONE").unlink()
    assert open_source(tmp_path / "a").num_episodes == 44
    with pytest.raises(rlds2buf.SourceFormatError):
        open_source(tmp_path / "b")


def test_only_checkpoints_are_replaced(tmp_path):
    target = tmp_path / "seed"
    target.mkdir()  # empty: as good as none
    write_checkpoint(GIVEN[:1], target)
    (first,) = target.iterdir()
    with pytest.raises(errors.SnapshotExists, match="is there already"):
        write_checkpoint(GIVEN[:1], target)
    write_checkpoint(GIVEN[:1], target, overwrite=True)
    (second,) = target.iterdir()
    assert second.name > first.name
    (target / "holiday.jpg").write_bytes(b"a picture")
    for overwrite in (False, True):
        with pytest.raises(errors.SnapshotExists):
            write_checkpoint(GIVEN[:1], target, overwrite=overwrite)
    assert (target / "holiday.jpg").read_bytes() == b"a picture" and second.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["seed"]


def test_two_at_once(tmp_path):
    sink = ReverbCheckpointSink(tmp_path / "seed", TableSpec("replay"))
    with open_source(GIVEN[:1]) as source:
        sink.open(source.spec, {"source": "a", "fingerprint": "b", "options": {}})
    with pytest.raises(errors.SnapshotExists, match="another process"):
        write_checkpoint(GIVEN[:1], tmp_path / "seed")
    sink.abort()
    write_checkpoint(GIVEN[:1], tmp_path / "seed")
    assert [path.name for path in tmp_path.iterdir()] == ["seed"]
