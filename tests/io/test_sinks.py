"""The sinks that are there, against the shared suite, and what is particular to each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, EpisodeBatch, NotEnoughItems, SnapshotError, SnapshotExists, StepSpec, make_circular
from rlds2buf.formats.buffer.sink import BufferFolderSink, BufferSink
from rlds2buf.formats.memory.sink import MemorySink
from rlds2buf.io.sink import Sink
from rlds2buf.pipeline.opening import open_sink
from tests.buffers.numbered import SPEC, episode
from tests.contracts.sink import PROVENANCE, SinkContract, numbers


class TestMemorySink(SinkContract):
    def make(self, folder: Path) -> Sink:
        return MemorySink()

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        return numbers(sink.episodes)

    def items_of(self, ep: Episode) -> int:
        return 1

    def test_keeps_what_the_list_held(self) -> None:
        before = episode(900, 3)
        kept = [before]
        sink = MemorySink(kept)
        sink.open(SPEC, PROVENANCE)
        sink.write(self.episodes[0])
        sink.abort()
        assert kept == [before]


class _ByBatch(Sink):
    """A MemorySink that takes several episodes at once."""

    def __init__(self) -> None:
        self.inner = MemorySink()
        self.name = self.inner.name

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        self.inner.open(spec, provenance)

    def write_batch(self, batch: EpisodeBatch) -> int:
        return sum(self.inner.write(episode) for episode in batch)

    def commit(self) -> None:
        self.inner.commit()

    def abort(self) -> None:
        self.inner.abort()


class TestASinkThatTakesBatches(SinkContract):
    def make(self, folder: Path) -> Sink:
        return _ByBatch()

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        return numbers(sink.inner.episodes)

    def items_of(self, ep: Episode) -> int:
        return 1


def test_a_batch_is_written_episode_by_episode_where_a_sink_takes_no_more() -> None:
    sink = MemorySink()
    batch = EpisodeBatch.of([episode(0, 3), episode(3, 2)])
    sink.open(SPEC, PROVENANCE)
    assert sink.write_batch(batch) == 2
    assert numbers(sink.episodes) == numbers(list(batch))


def test_a_sink_writes_episodes_or_batches() -> None:
    class Neither(Sink):
        open = commit = abort = MemorySink.commit  # type: ignore[assignment]

    with pytest.raises(TypeError, match="Neither has neither `write` nor `write_batch`"):
        Neither()


class TestBufferSink(SinkContract):
    def make(self, folder: Path) -> Sink:
        return BufferSink(make_circular(SPEC, 100))

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        return [int(n) for n in sink.buffer.all().observation["count"]]

    def test_keeps_the_ids_of_sources_that_it_was_told_of(self) -> None:
        for source_ids, expected in ((("a", "b"), 1), ((), 0)):
            buffer = make_circular(SPEC, 100)
            sink = BufferSink(buffer)
            sink.expect(1, source_ids=source_ids)
            sink.open(SPEC, PROVENANCE)
            sink.write(self.episodes[0].replace(metadata={"source_id": 1}))
            assert buffer.sample(20, source_id=expected).data.reward.shape == (20,)
            with pytest.raises(NotEnoughItems):
                buffer.sample(20, source_id=1 - expected)
            assert dict(sink.lost()).keys() == (set() if source_ids else {"metadata/source_id"})

    def test_abort_keeps_a_buffer_that_was_not_empty(self) -> None:
        buffer = make_circular(SPEC, 100)
        buffer.add(self.episodes[0])
        sink = BufferSink(buffer)
        sink.open(SPEC, PROVENANCE)
        sink.write(self.episodes[1])
        sink.abort()
        assert len(buffer) == 5 + 3

    def test_says_that_metadata_are_not_kept(self) -> None:
        buffer = make_circular(SPEC, 100)
        told = self.episodes[0].replace(metadata={"id": 1, "placeholder_final_row": True})
        assert rlds2buf.convert([told], buffer).lost.keys() == {"metadata/id"}


class TestBufferFolderSink(SinkContract):
    def make(self, folder: Path) -> Sink:
        return BufferFolderSink(folder / "buffer")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        try:
            loaded = rlds2buf.load_buffer(folder / "buffer")
        except (rlds2buf.SourceNotFound, rlds2buf.SnapshotCorrupt):
            return None
        return [int(n) for n in loaded.all().observation["count"]]

    def test_nothing_is_there_before_commit(self, tmp_path: Path) -> None:
        sink = self.opened(tmp_path)
        sink.write(self.episodes[0])
        assert self.held(sink, tmp_path) is None
        assert not (tmp_path / "buffer").exists()
        sink.abort()
        assert list(tmp_path.iterdir()) == []

    def test_keeps_its_provenance(self, tmp_path: Path) -> None:
        sink = self.opened(tmp_path)
        sink.write(self.episodes[0])
        sink.commit()
        assert rlds2buf.load_buffer(tmp_path / "buffer").provenance == PROVENANCE

    def test_refuses_a_target_that_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "buffer").mkdir()
        (tmp_path / "buffer" / "mine.txt").write_text("keep")
        for overwrite in (False, True):
            sink = BufferFolderSink(tmp_path / "buffer", overwrite=overwrite)
            with pytest.raises(SnapshotExists, match="buffer"):
                sink.open(SPEC, PROVENANCE)
            sink.abort()
        assert (tmp_path / "buffer" / "mine.txt").read_text() == "keep"

    def test_an_abort_leaves_the_buffer_that_was_to_be_replaced(self, tmp_path: Path) -> None:
        first = self.opened(tmp_path)
        first.write(self.episodes[0])
        first.commit()
        second = BufferFolderSink(tmp_path / "buffer", overwrite=True)
        second.open(SPEC, PROVENANCE)
        second.write(self.episodes[1])
        second.abort()
        assert self.held(second, tmp_path) == numbers(self.episodes[:1])
        third = BufferFolderSink(tmp_path / "buffer", overwrite=True)
        third.open(SPEC, PROVENANCE)
        third.write(self.episodes[1])
        third.commit()
        assert self.held(third, tmp_path) == numbers(self.episodes[1:2])

    def test_goes_on_from_a_checkpoint(self, tmp_path: Path) -> None:
        first = self.resumable(tmp_path)
        first.write(self.episodes[0])
        first.write(self.episodes[1])
        first.checkpoint({"read": 2})
        first.write(self.episodes[3])  # behind the checkpoint: not there when going on
        first.abort()
        second = self.resumable(tmp_path)
        assert second.resumed() == {"read": 2}
        second.write(self.episodes[3])
        second.commit()
        assert self.held(second, tmp_path) == numbers([self.episodes[i] for i in (0, 1, 3)])
        assert [path.name for path in tmp_path.iterdir()] == ["buffer"]

    def test_starts_over_without_resume(self, tmp_path: Path) -> None:
        first = self.resumable(tmp_path)
        first.write(self.episodes[0])
        first.checkpoint({"read": 1})
        first.abort()
        second = self.opened(tmp_path)
        assert second.resumed() is None
        second.write(self.episodes[1])
        second.commit()
        assert self.held(second, tmp_path) == numbers(self.episodes[1:2])

    @pytest.mark.parametrize("name", ["fingerprint", "options"])
    def test_does_not_go_on_from_something_else(self, tmp_path: Path, name: str) -> None:
        first = self.resumable(tmp_path)
        first.write(self.episodes[0])
        first.checkpoint({"read": 1})
        first.abort()
        other = BufferFolderSink(tmp_path / "buffer", resume=True)
        with pytest.raises(SnapshotError, match="another source or other options"):
            other.open(SPEC, {**PROVENANCE, name: "changed"})
        other.abort()
        again = self.resumable(tmp_path)
        assert again.resumed() == {"read": 1}, "a refusal must not destroy what could be gone on from"
        again.abort()

    def resumable(self, folder: Path) -> BufferFolderSink:
        sink = BufferFolderSink(folder / "buffer", resume=True)
        sink.open(SPEC, PROVENANCE)
        return sink


class TestOpenSink:
    def test_by_what_the_target_is(self, tmp_path: Path) -> None:
        sink = MemorySink()
        assert open_sink(sink) is sink
        assert isinstance(open_sink([]), MemorySink)
        assert isinstance(open_sink(make_circular(SPEC, 3)), BufferSink)
        assert isinstance(open_sink(tmp_path / "new"), BufferFolderSink)
        assert isinstance(open_sink(str(tmp_path / "new")), BufferFolderSink)

    def test_refuses_what_it_does_not_know(self) -> None:
        with pytest.raises(TypeError, match="got dict"):
            open_sink({})
        with pytest.raises(ValueError, match="to must be one of buffer"):
            open_sink("x", to="csv")

    @pytest.mark.parametrize("option", ["overwrite", "resume"])
    def test_file_options_are_for_paths(self, option: str) -> None:
        with pytest.raises(ValueError, match=option):
            open_sink([], **{option: True})


def test_a_buffer_too_small_for_an_episode_says_so() -> None:
    sink = BufferSink(make_circular(SPEC, 5))
    sink.open(SPEC, PROVENANCE)
    with pytest.raises(rlds2buf.EpisodeError):
        sink.write(episode(0, 6))
    assert np.asarray(sink.buffer.keys()).size == 0
