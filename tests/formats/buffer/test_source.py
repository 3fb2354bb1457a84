"""Saved buffers as a source of episodes."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import (
    Episode,
    EpisodeBatch,
    SourceFormatError,
    SourceNotFound,
    convert,
    make_circular,
    open_source,
    spec_of,
)
from rlds2buf.buffers.disk.manifest import write_manifest
from rlds2buf.core import nest
from rlds2buf.core.row_flags import column_name
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.buffer.source import BufferDirSource
from rlds2buf.formats.memory.source import MemorySource
from rlds2buf.io.source import Source
from tests.buffers.numbered import SPEC, episode, transitions
from tests.contracts.source import MakeSource, SourceContract, assert_same_episode
from tests.differences import assert_only_lost, differences
from tests.made import MADE
from tests.reference.sources import saved


def texts(*items: bytes) -> np.ndarray:
    column = np.empty(len(items), object)
    column[:] = items
    return column


def rich(number: int, count: int, end: str = "terminated") -> Episode:
    """An episode with nested fields, text, odd names, large integers and values in its final row."""
    plain = episode(number, count, end)
    note = texts(*[b"go %d" % (t % 3) for t in range(count)])
    return plain.replace(
        observation={"a/b": plain.observation["place"], "c": (note, np.full(count, 2**64 - 1, np.uint64))},
        extras={"infos": {"x": np.arange(count, dtype=np.float16)}, "flag": np.arange(count) % 2 == 0},
    )


EPISODES = [rich(0, 6), rich(100, 4, "truncated"), rich(200, 1), rich(300, 9)]


class TestContract(SourceContract):
    @pytest.fixture
    def make_source(self, tmp_path: Path) -> MakeSource:
        convert(EPISODES, tmp_path / "buffer")
        return lambda: open_source(tmp_path / "buffer")

    @pytest.fixture
    def change(self, tmp_path: Path) -> Callable[[], Any]:
        return lambda: convert(EPISODES[1:], tmp_path / "buffer", overwrite=True)

    def test_gives_back_what_was_added(self, source: Source) -> None:
        assert type(source) is BufferDirSource
        assert_only_lost(EPISODES, source, {})
        assert source.spec == spec_of(EPISODES[0])


def test_what_is_not_kept_is_listed(tmp_path: Path) -> None:
    told = [EPISODES[0].replace(metadata={"id": 4, "a": {"b": 1}, "placeholder_final_row": True}), EPISODES[1]]
    report = convert(told, tmp_path / "buffer")
    assert set(report.lost) == {"metadata/id", "metadata/a"}
    back = list(open_source(tmp_path / "buffer"))
    assert [ep.metadata for ep in back] == [{"placeholder_final_row": True}, {}]
    assert differences(told[0], back[0])[0] == {"metadata/id", "metadata/a/b"}


def test_nothing_in_it(tmp_path: Path) -> None:
    make_circular(SPEC, 10).save(tmp_path / "buffer")
    source = open_source(tmp_path / "buffer")
    assert (source.num_episodes, source.num_steps, list(source)) == (0, 0, [])


@pytest.mark.parametrize("directory", [False, True])
def test_a_full_buffer_has_dropped_rows(tmp_path: Path, directory: bool) -> None:
    """Rows go round in the files of a directory-backed one."""
    plain = [episode(100 * i, 7, "truncated" if i % 2 else "terminated") for i in range(6)]
    buffer = make_circular(SPEC, 24, directory=tmp_path / "buffer" if directory else None)
    for ep in plain:
        buffer.add(ep)
    buffer.save() if directory else buffer.save(tmp_path / "buffer")
    back = list(open_source(tmp_path / "buffer"))
    counts = [ep.observation["count"].tolist() for ep in back]
    whole = [ep.observation["count"].tolist() for ep in plain]
    assert counts[-3:] == whole[-3:] and len(counts) == 4
    assert counts[0] == whole[2][-len(counts[0]) :] and not back[0].is_first[0]
    assert [ep.end for ep in back] == ["terminated", "truncated", "terminated", "truncated"]
    assert open_source(tmp_path / "buffer").fingerprint() == open_source(tmp_path / "buffer").fingerprint()


def test_source_ids_are_kept(tmp_path: Path) -> None:
    buffer = make_circular(SPEC, 100)
    for i in range(3):
        buffer.add(episode(100 * i, 5), source_id=i * 7)
    buffer.save(tmp_path / "buffer")
    assert [ep.metadata["source_id"] for ep in open_source(tmp_path / "buffer")] == [0, 7, 14]


@pytest.mark.parametrize("kind", ["make_prioritized", "make_circular"])
def test_other_buffers_of_episodes(tmp_path: Path, kind: str) -> None:
    buffer = getattr(rlds2buf, kind)(SPEC, 100)
    buffer.add([episode(0, 5), episode(100, 3)])
    buffer.save(tmp_path / "buffer")
    assert_only_lost([episode(0, 5), episode(100, 3)], open_source(tmp_path / "buffer"), {})


def test_pictures_kept_as_files(tmp_path: Path) -> None:
    """Decoded unless asked for as they are; a damaged one spoils its episode only."""
    with open_source(MADE / "rlds/bridge_dataset", split="train[:3]", images="encoded") as source:
        files = [ep.replace(is_last=np.arange(ep.num_steps) == ep.num_steps - 1, metadata={}) for ep in source]
        convert(MemoryOf(files, source.spec), tmp_path / "encoded")
    with open_source(MADE / "rlds/bridge_dataset", split="train[:3]") as source:
        pixels = [ep.replace(is_last=np.arange(ep.num_steps) == ep.num_steps - 1, metadata={}) for ep in source]
        with open_source(tmp_path / "encoded") as kept:
            assert kept.spec == source.spec
            assert_only_lost(pixels, kept, {})
            assert kept.encoded().spec == kept.encoded().encoded().spec != kept.spec
            assert_only_lost(files, kept.encoded(), {})
            assert kept.fingerprint() != kept.encoded().fingerprint()
    assert_only_lost(files, open_source(tmp_path / "encoded", images="encoded"), {})
    with pytest.raises(ValueError, match="images must be one of"):
        open_source(tmp_path / "encoded", images="jpeg")
    files[1].observation["image_0"][4] = files[1].observation["image_0"][4][:300]
    convert(MemoryOf(files, kept.encoded().spec), tmp_path / "damaged")
    found = list(open_source(tmp_path / "damaged").read())
    assert [isinstance(item, Episode) for item in found] == [True, False, True]
    assert "episode 1, step 4, observation/image_0" in str(found[1])


class MemoryOf(MemorySource):
    """Episodes in memory with a spec that says which strings are pictures."""

    def __init__(self, episodes: list[Episode], told: StepSpec) -> None:
        super().__init__(episodes)
        self.told = told

    @property
    def spec(self) -> StepSpec:
        return self.told


def test_values_of_any_length_in_files_that_are_written_in_place(tmp_path: Path) -> None:
    shapes = np.empty(4, object)
    shapes[:] = [np.arange(2.0 * n).reshape(n, 2) for n in range(4)]
    told = [episode(0, 4).replace(observation=shapes), episode(100, 4).replace(observation=shapes[::-1])]
    spec = dataclasses.replace(spec_of(told[0]), observation=FieldSpec((None, 2), np.float64))
    buffer = make_circular(spec, 100, directory=tmp_path / "buffer")
    buffer.add(told)
    buffer.save()
    assert_only_lost(told, open_source(tmp_path / "buffer"), {})


def test_buffers_of_something_else_are_refused(tmp_path: Path) -> None:
    single = make_circular(SPEC, 100)
    single.add(transitions(0, 5))
    single.save(tmp_path / "single")
    many = rlds2buf.make_multi_agent({"a": make_circular(SPEC, 100)})
    many.save(tmp_path / "many")
    reservoir = rlds2buf.make_reservoir(SPEC, 4, seed=0)
    for i in range(5):
        reservoir.add(episode(100 * i, 5))
    reservoir.save(tmp_path / "reservoir")
    for name, says in (("single", "single transitions"), ("many", "several agents"), ("reservoir", "drawn at random")):
        with pytest.raises(SourceFormatError, match=f"{says}, not of episodes; open it with rlds2buf.load_buffer"):
            open_source(tmp_path / name)
    with pytest.raises(SourceNotFound):
        BufferDirSource(tmp_path / "nothing")


def test_a_buffer_that_changes_is_refused(tmp_path: Path) -> None:
    buffer = make_circular(SPEC, 100, directory=tmp_path / "buffer")
    buffer.add(episode(0, 5))
    buffer.save()
    buffer.add(episode(0, 5))
    with pytest.raises(SourceFormatError, match="changed after it was last saved"):
        open_source(tmp_path / "buffer")


def test_damage_is_found(tmp_path: Path) -> None:
    """A byte flipped, a file cut short or gone: refused, or where nothing is compared, read as it is."""
    convert(EPISODES, tmp_path / "whole")
    rng = random.Random(1)
    files = sorted(path for path in (tmp_path / "whole").rglob("*") if path.is_file() and "sampler" not in path.name)
    for file in files:
        for damage in ("flip", "cut", "gone"):
            shutil.rmtree(tmp_path / "it", ignore_errors=True)
            shutil.copytree(tmp_path / "whole", tmp_path / "it")
            target = tmp_path / "it" / file.relative_to(tmp_path / "whole")
            data = bytearray(target.read_bytes())
            if damage == "flip":
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            target.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
            if damage == "gone":
                target.unlink()
            with pytest.raises(SourceFormatError):
                list(BufferDirSource(tmp_path / "it", verify=True))
            if damage == "flip":
                try:
                    list(BufferDirSource(tmp_path / "it", verify=False))
                except SourceFormatError:
                    continue


@pytest.mark.parametrize(
    "change",
    [
        {"columns": []},
        {"columns": None},
        {"kind": None, "columns": [{}]},
        {"oldest": -1},
        {"newest": 1000},
        {"newest": "x"},
        {"strings": {}},
        {"strings": {"observation/c/0": []}},
        {"spec": {}},
        {"spec": None},
        {"base": "a"},
        {"data": 3},
    ],
)
def test_manifests_that_do_not_fit(tmp_path: Path, change: dict[str, Any]) -> None:
    convert(EPISODES, tmp_path / "it")
    told = json.loads((tmp_path / "it/manifest.json").read_text())
    for name in ("format", "version", "checksum"):
        del told[name]
    write_manifest(tmp_path / "it", {**told, **change})
    with pytest.raises(SourceFormatError):
        list(BufferDirSource(tmp_path / "it", verify=True))


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=20),
    capacity=st.sampled_from([60, 130, 2000]),
    ids=st.booleans(),
    rows=st.sampled_from([1, 30, 100, 1 << 14]),
    data=st.data(),
)
def test_blocks_are_what_is_read_row_by_row(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    capacity: int,
    ids: bool,
    rows: int,
    data: st.DataObject,
) -> None:
    """Rows that go round in files that are written in place, so that the oldest episodes are left in part."""
    path = tmp_path_factory.mktemp("saved") / "buffer"
    ends = ("terminated", "truncated")
    made = [rich(100 * i, n, ends[i % 2] if n > 1 else "truncated") for i, n in enumerate(lengths)]
    buffer = make_circular(spec_of(made[0]), capacity, directory=path)
    for i, each in enumerate(made):
        facts = {"placeholder_final_row": True} if i % 3 == 1 and len(each) > 1 else {}
        buffer.add(each.replace(metadata=facts), source_id=3 * i if ids else 0)
    buffer.save()
    wanted = saved(path)
    source = open_source(path)
    assert source.num_episodes == len(wanted)
    start = data.draw(st.integers(0, len(wanted)), "start")
    stop = data.draw(st.none() | st.integers(0, len(wanted)), "stop")
    found = []
    for block in source.read_batches(start, stop, rows=rows):
        assert isinstance(block, EpisodeBatch) and (len(block) == 1 or block.num_steps <= rows)
        found.extend(block)
    for one, other in zip(found, wanted[start:stop], strict=True):
        assert_same_episode(one.replace(observation=flat(one)), other.replace(observation=flat(other)))
        assert (one.index, one.metadata) == (other.index, other.metadata)


def flat(episode: Episode) -> dict[str, np.ndarray]:
    """The observation by the names of the columns' files."""
    return {column_name(path): column for path, column in nest.flatten(episode.observation)}
