"""Episodes into buffers and into folders that become buffers, by block."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, EpisodeBatch, EpisodeError, SpecMismatch
from rlds2buf.core.episode_batch import FactColumns
from rlds2buf.formats.buffer.sink import BufferFolderSink, BufferSink
from tests.buffers.numbered import SPEC, episode
from tests.data import GOLDEN
from tests.formats.written_sets import RLDS, WrittenSet

WRITTEN: dict[str, str] = json.loads((GOLDEN / "written_buffers.json").read_text())
SETS = ["numbers", "kinds", "texts", "facts"]


def digest(folder: Path) -> str:
    """SHA-256 of every column's bytes and of the manifest, but for the version and the name that follows from it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    columns = sorted((folder / manifest.pop("data")).iterdir())
    del manifest["rlds2buf"]
    found = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
    for column in columns:
        found.update(column.name.encode() + column.read_bytes())
    return found.hexdigest()


def blocks(episodes: list[Episode], most: int) -> list[EpisodeBatch]:
    """Neighbours by up to so many, at random."""
    rng, out = np.random.default_rng(most), []
    while episodes:
        count = int(rng.integers(1, most, endpoint=True))
        out.append(EpisodeBatch.of(episodes[:count]))
        episodes = episodes[count:]
    return out


def opened(chosen: WrittenSet, target: Path, **options: Any) -> BufferFolderSink:
    sink = BufferFolderSink(target, **options)
    sink.open(chosen.spec, {"source": "made"})
    return sink


@pytest.mark.parametrize("most", [1, 7, 100])
@pytest.mark.parametrize("name", SETS)
def test_a_folder_as_before_blocks(name: str, most: int, tmp_path: Path) -> None:
    """Byte for byte what was written episode by episode."""
    chosen = RLDS[name]()
    sink = opened(chosen, tmp_path / "made")
    items = sum(sink.write_batch(batch) for batch in blocks(chosen.episodes, most))
    sink.commit()
    assert items == sum(one.num_transitions for one in chosen.episodes)
    assert digest(tmp_path / "made") == WRITTEN[name]
    names = {f"metadata/{fact}" for one in chosen.episodes for fact in one.metadata} - {
        "metadata/placeholder_final_row"
    }
    assert set(sink.lost()) == names


@pytest.mark.parametrize("name", ["numbers", "texts"])
def test_resumed_at_the_border_of_a_block(name: str, tmp_path: Path) -> None:
    """What was written behind the last checkpoint is gone, and is written again."""
    chosen = RLDS[name]()
    batches = blocks(chosen.episodes, 7)
    sink = opened(chosen, tmp_path / "made", resume=True)
    for i, batch in enumerate(batches[:-1]):
        sink.write_batch(batch)
        if i == len(batches) // 2:
            sink.checkpoint({"blocks": i + 1})
    sink.abort()
    other = opened(chosen, tmp_path / "made", resume=True)
    done = (other.resumed() or {})["blocks"]
    assert done == len(batches) // 2 + 1
    for batch in batches[done:]:
        other.write_batch(batch)
    other.commit()
    assert digest(tmp_path / "made") == WRITTEN[name]


def test_one_that_does_not_fit_is_left_out_of_its_block(tmp_path: Path) -> None:
    chosen = RLDS["texts"]()
    broken: Any = chosen.episodes[4].extras["text"].copy()
    broken[-1] = 3.5
    bad = chosen.episodes[4].replace(
        extras={**chosen.episodes[4].extras, "text": broken}, index=999, metadata={"never": "written"}
    )
    others = [*chosen.episodes[:4], bad, *chosen.episodes[4:]]
    sink, left = opened(chosen, tmp_path / "made"), EpisodeBatch.of(others)
    with pytest.raises(SpecMismatch, match="byte string") as caught:
        sink.write_batch(left)
    assert caught.value.episode == 999 and caught.value.step == bad.num_steps - 1
    sink.write_batch(left.take(slice(5, None)))
    sink.commit()
    assert digest(tmp_path / "made") == WRITTEN["texts"]
    assert sink.lost() == {}


class ListBuffer:
    """Somebody else's buffer, which knows nothing of batches."""

    def __init__(self) -> None:
        self.episodes: list[tuple[Episode, int]] = []

    def add(self, data: Episode, source_id: int = 0) -> list[int]:
        assert isinstance(data, Episode) and type(source_id) is int
        self.episodes.append((data, source_id))
        return list(range(data.num_transitions))

    def clear(self) -> None:
        self.episodes.clear()

    def __len__(self) -> int:
        return len(self.episodes)


def in_columns(batch: EpisodeBatch) -> EpisodeBatch:
    facts = {name: np.array([one.metadata[name] for one in batch]) for name in batch.fact_names}
    return EpisodeBatch(batch.rows, batch.starts, metadata=FactColumns(facts, len(batch)))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("ids", ["each", "one", "none"])
def test_source_ids_of_a_mixture(ids: str, columns: bool) -> None:
    """As a column, in a dict for each, or shared by the block; of any buffer."""
    episodes = [episode(10 * i, 2 + i % 4) for i in range(9)]
    number = {"each": lambda i: i % 3, "one": lambda i: 5, "none": lambda i: 0}[ids]
    for i, one in enumerate(episodes):
        one.metadata = {"task": b"push", **({} if ids == "none" else {"source_id": number(i)})}
    batch = EpisodeBatch.of(episodes)
    batch = in_columns(batch) if columns else batch
    if ids == "one" and not columns:
        batch = EpisodeBatch(batch.rows.replace(metadata={"source_id": 5, "task": b"push"}), batch.starts)
    buffer, other = rlds2buf.make_circular(SPEC, 100, seed=0), ListBuffer()
    for target in (buffer, other):
        sink = BufferSink(target)
        sink.expect(9, source_ids=() if ids == "none" else ("a", "b", "c"))
        sink.open(SPEC, {})
        assert sink.write_batch(batch) == batch.num_transitions
        assert set(sink.lost()) == {"metadata/task"}
    assert [number for _, number in other.episodes] == [number(i) for i in range(9)]
    for i, one in enumerate(episodes):
        found = buffer.sample(60, source_id=number(i)).data.observation["count"]
        assert np.isin(found[found // 10 == i], one.observation["count"]).all()


def test_an_episode_longer_than_the_buffer() -> None:
    """Those before it are there, and only their metadata are named."""
    episodes = [episode(100 * i, rows) for i, rows in enumerate((3, 4, 60, 5))]
    for i, one in enumerate(episodes):
        one.index, one.metadata = 20 + i, {f"fact{i}": 1}
    buffer = rlds2buf.make_circular(SPEC, 30)
    sink = BufferSink(buffer)
    sink.open(SPEC, {})
    batch = EpisodeBatch.of(episodes)
    with pytest.raises(EpisodeError, match="more than the capacity of 30") as caught:
        sink.write_batch(batch)
    assert caught.value.episode == 22
    assert len(buffer) == 5 and set(sink.lost()) == {"metadata/fact0", "metadata/fact1"}
    sink.write_batch(batch.take(slice(3, None)))
    assert len(buffer) == 9 and set(sink.lost()) == {"metadata/fact0", "metadata/fact1", "metadata/fact3"}
