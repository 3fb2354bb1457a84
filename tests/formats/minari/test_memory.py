"""What a source holds does not grow with the number of episodes, or by a few bytes for each."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from rlds2buf.formats.minari import hdf5_groups
from rlds2buf.formats.minari.arrow_layout import ArrowEpisodes
from rlds2buf.formats.minari.hdf5_layout import Hdf5Episodes
from rlds2buf.formats.minari.source import MinariDirSource
from tests.formats.minari.folder import columns, write


def peak(work: Callable[[], Any]) -> int:
    """Bytes that some work takes at most."""
    work()
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_episodes_are_known_by_their_numbers(tmp_path: Path) -> None:
    def opened(count: int) -> int:
        path = tmp_path / f"{count}.hdf5"
        with h5py.File(path, "w") as file:
            for number in range(count):
                h5py.h5g.create(file.id, b"episode_%d" % number)
        names = Hdf5Episodes(path, infos=True).names
        assert len(names) == count and names[count - 1] == f"episode_{count - 1}"
        return peak(lambda: Hdf5Episodes(path, infos=True))

    assert opened(20_000) - opened(2_000) < 18_000 * 32


def test_files_of_episodes_are_known_by_one_name(tmp_path: Path) -> None:
    def opened(count: int) -> int:
        for number in range(count):
            folder = tmp_path / str(count) / str(number)
            folder.mkdir(parents=True)
            (folder / "part-0.arrow").touch()
        return peak(lambda: ArrowEpisodes(tmp_path / str(count), "arrow", {}, infos=True))

    assert opened(1_100) - opened(100) < 1_000 * 300


def test_reading_takes_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_groups, "_WINDOW_BYTES", 1 << 20)
    monkeypatch.setattr(hdf5_groups, "_MARGIN", 1 << 17)
    monkeypatch.setattr(hdf5_groups, "_NAMES", 64)

    def read(count: int) -> int:
        path = write(tmp_path / str(count), [columns(5)] * count)

        def work() -> None:
            rows = [item.num_steps for item in MinariDirSource(path).read_batches(rows=64)]
            assert sum(rows) == 6 * count

        return peak(work)

    assert read(1_000) < 1.1 * read(200)


def test_numbers_that_are_written_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "main_data.hdf5"
    (tmp_path / "metadata.json").write_text(json.dumps({"data_format": "hdf5"}))
    with h5py.File(path, "w") as file:
        for name in ("episode_10", "episode_2", "episode_02", "episode_007", "episode_x", "other"):
            file.create_group(name)
        h5py.h5g.create(file.id, b"episode_\xff")
    found = Hdf5Episodes(path, infos=True)
    assert list(found.names) == ["episode_2", "episode_007", "episode_10"]
    assert found.ignored == ["episode_02", "episode_\\xff", "episode_x", "other"]
