"""Episodes of d3rlpy's second version that are read together are what they are when each is read alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, Rlds2bufError, SourceFormatError
from rlds2buf.codecs.hdf5 import alike_datasets
from rlds2buf.formats.d3rlpy.source_v2 import D3rlpyH5Source
from tests.formats.blocks import assert_same, together, without_blocks
from tests.formats.d3rlpy.files import episode, write_v2


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the episodes that the library read."""
    found: list[int] = []
    read = D3rlpyH5Source._episode

    def reading(self: D3rlpyH5Source, file: Any, index: int) -> Episode:
        found.append(index)
        return read(self, file, index)

    monkeypatch.setattr(D3rlpyH5Source, "_episode", reading)
    return found


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_lengths_and_types(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=1, max_size=30), "lengths")
    kinds = st.sampled_from(["f4", "f8", "i4", "u1", ">f4", "?"])
    observation, reward = data.draw(kinds, "observation"), data.draw(kinds, "reward")
    shape = data.draw(st.sampled_from([(), (1,), (3,), (2, 3), (400,)]), "shape")
    flat = data.draw(st.booleans(), "rewards of one axis")
    rng = np.random.default_rng(len(lengths))
    episodes = [
        {
            **episode(n, bool(rng.integers(2)), i, discrete=True),
            "observations": rng.integers(0, 2, (n, *shape)).astype(observation),
            "rewards": rng.integers(0, 2, n if flat else (n, 1)).astype(reward),
        }
        for i, n in enumerate(lengths)
    ]
    for at in data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=3), "others"):
        fault = data.draw(st.sampled_from(["short", "flag", "none", "wide", "type", "parts"]), "fault")
        rows = episodes[at]["actions"]
        if fault == "short":
            episodes[at]["rewards"] = np.zeros((len(rows) + 1, 1))
        elif fault == "flag":
            episodes[at]["terminated"] = 2
        elif fault == "none":
            episodes[at] = {**episode(0, False, 0), "terminated": False}
        elif fault == "wide":
            episodes[at]["rewards"] = np.zeros((len(rows), 2))
        elif fault == "type":
            episodes[at]["actions"] = rows.astype(np.float64)
        else:
            episodes[at]["observations"] = [np.zeros((len(rows), 2)), np.ones(len(rows))]
    path = write_v2(tmp_path_factory.mktemp("d3rlpy") / "replay.h5", episodes)
    start = data.draw(st.integers(0, len(lengths)), "start")
    stop = data.draw(st.none() | st.integers(0, len(lengths)), "stop")
    limit = data.draw(st.sampled_from([1, 60, 1 << 14]), "rows")
    source = D3rlpyH5Source(path)
    with without_blocks():
        other = D3rlpyH5Source(path)
        wanted = together(other)
    assert_same(together(source, start, stop, limit), wanted[start:stop])
    with without_blocks():
        assert (source.num_steps, source.details()) == (other.num_steps, other.details())


@pytest.mark.parametrize("rows", [20, 400])
def test_the_library_reads_the_first_only(tmp_path: Path, alone: list[int], rows: int) -> None:
    """Small datasets lie in their headers, larger ones elsewhere."""
    path = write_v2(tmp_path / "replay.h5", [episode(rows, i % 2 == 0, i) for i in range(50)])
    found = together(D3rlpyH5Source(path))
    assert alone == [0]
    with without_blocks():
        assert_same(found, together(D3rlpyH5Source(path)))


def test_a_column_more_is_read_one_by_one(tmp_path: Path) -> None:
    path = write_v2(tmp_path / "replay.h5", [{**episode(5, True, i), "extra": np.arange(5)} for i in range(9)])
    found = together(D3rlpyH5Source(path))
    with without_blocks():
        assert_same(found, together(D3rlpyH5Source(path)))
    assert isinstance(found[3], Episode) and found[3].extras["extra"].tolist() == [0, 1, 2, 3, 4, 0]


def test_a_dataset_that_is_missing(tmp_path: Path) -> None:
    path = write_v2(tmp_path / "replay.h5", [episode(5, True, i) for i in range(20)])
    with h5py.File(path, "a") as file:
        del file["actions_13"]
    found = together(D3rlpyH5Source(path))
    with without_blocks():
        assert_same(found, together(D3rlpyH5Source(path)))
    assert len(found) == 14 and "`actions_13` is missing" in str(found[13])


@pytest.mark.parametrize("window", [1 << 20, 1 << 25])
def test_a_file_that_becomes_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """Whether what is left of it was read already or not."""
    monkeypatch.setattr(alike_datasets, "_WINDOW_BYTES", window)
    path = write_v2(tmp_path / "replay.h5", [episode(3000, True, i) for i in range(40)])
    copy = Path(shutil.copy(path, tmp_path / "copy.h5"))
    batches = D3rlpyH5Source(copy).read_batches(rows=3001)
    next(batches)
    os.truncate(copy, copy.stat().st_size // 2)
    with pytest.raises(SourceFormatError, match="shorter"):
        for _ in batches:
            pass


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_flipped_byte(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Nothing but a typed error, and never a crash; where the library reads all, the values are the same."""
    folder = tmp_path_factory.mktemp("d3rlpy")
    path = write_v2(folder / "replay.h5", [episode(1 + i % 7, i % 2 == 0, i) for i in range(12)])
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3), "count")):
        raw[data.draw(st.integers(0, len(raw) - 1), "at")] ^= data.draw(st.integers(1, 255), "bits")
    path.write_bytes(raw)
    try:
        D3rlpyH5Source(path)
    except Rlds2bufError:
        return
    with without_blocks():
        wanted = together(D3rlpyH5Source(path))
    found = together(D3rlpyH5Source(path))
    if all(isinstance(item, Episode) for item in wanted):
        assert_same(found, wanted)
