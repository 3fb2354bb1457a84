"""Checkpoints as a sink and as a source, against the shared suites; Reverb itself reads them in tests/full."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import convert, errors, open_source, write_checkpoint
from rlds2buf.formats.reverb.checkpoint_sink import ReverbCheckpointSink
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.formats.reverb.protocol.messages import message
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


PROVENANCE = {"source": "made", "format": "memory", "fingerprint": "1", "options": {}}


def written(folder: Path, batches: list[Any], **how: Any) -> tuple[list[str], list[Any], str]:
    """What became of each batch, going on behind one that is refused; what the checkpoint holds; and the note."""
    sink = ReverbCheckpointSink(folder, **how)
    sink.open(rlds2buf.spec_of(next(iter(batches[0]))), PROVENANCE)
    told = []
    for batch in batches:
        start = 0
        while start < len(batch):
            try:
                told.append(f"{sink.write_batch(batch.take(slice(start, None)))} items")
                break
            except errors.EpisodeError as error:
                count, items = error.written
                told += [f"{items} items", str(error)]
                start += count + 1
    note = sink.pattern.note
    sink.commit()
    (folder,) = folder.iterdir()
    return told, [zlib.decompress((folder / name).read_bytes()) for name in ("items.tfrecord",)], note


KINDS = st.lists(st.tuples(st.integers(1, 50), st.booleans(), st.sampled_from([0, 0, 0, 1])), min_size=2, max_size=9)


@settings(deadline=None, max_examples=40)
@given(
    kinds=KINDS,
    how=st.sampled_from(
        [
            dict(pattern="trajectory"),
            dict(pattern="trajectory", sequence_length=4, pad=True, stride=3),
            dict(pattern="trajectory", cross_episodes=True),
            dict(pattern="transition", n_step=2, gamma=0.5),
            dict(pattern="episode"),
        ]
    ),
    by=st.sampled_from(["field", "function", "number"]),
)
def test_a_batch_is_written_as_its_episodes_are(tmp_path_factory, kinds, how, by):
    """Also where some have priorities that are none: the others have their items, and the counts are the same."""
    rng = np.random.default_rng(len(kinds))
    given = []
    for number, (rows, terminal, broken) in enumerate(kinds):
        priority = rng.random(rows)
        if broken:
            priority[0] = -1
        given.append(
            rlds2buf.Episode(
                observation=rng.normal(size=(rows, 2)),
                action=np.zeros(rows),
                reward=priority,
                discount=np.ones(rows),
                is_terminal=(np.arange(rows) == rows - 1) & terminal,
                extras={"priority": priority},
                source="made",
                index=3 * number,
            )
        )

    def of_rewards(items: Any) -> np.ndarray:
        return items.reward.reshape(len(items.reward), -1).min(axis=1)

    priority: Any = {"field": "extras/priority", "function": of_rewards, "number": 2.5}[by]
    if by == "field" and how.get("cross_episodes"):
        priority = of_rewards
    folder = tmp_path_factory.mktemp("written")
    together = written(folder / "a", [rlds2buf.EpisodeBatch.of(given)], priority=priority, **how)
    apart = written(folder / "b", [rlds2buf.EpisodeBatch.of_one(one) for one in given], priority=priority, **how)
    assert [text for text in together[0] if "items" not in text] == [text for text in apart[0] if "items" not in text]
    items = [sum(int(text.split()[0]) for text in told if text.endswith(" items")) for told, _, _ in (together, apart)]
    assert items[0] == items[1] and together[2] == apart[2]
    assert [untimed(data) for data in together[1]] == [untimed(data) for data in apart[1]]


def untimed(data: bytes) -> list[Any]:
    """The items of a file, without the times at which they were written."""
    found = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        item = message("PrioritizedItem", data[at + 12 : at + 12 + size])
        item.ClearField("inserted_at")
        found.append(item.SerializeToString())
        at += 16 + size
    return found
