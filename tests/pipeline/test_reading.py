"""Several processes read what one reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, EpisodeBatch, SourceError, SourceFormatError, convert, open_source, validate
from rlds2buf.pipeline import reading
from rlds2buf.pipeline.reading import blocks, jobs_for
from tests.buffers.numbered import episode

ENDS = ["terminated", "truncated"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Minari dataset of 60 episodes."""
    path = tmp_path_factory.mktemp("data") / "numbered-v0"
    convert([episode(100 * i, 1 + i % 9, end=ENDS[i % 2]) for i in range(2, 62)], path, to="minari")
    return path


def described(items: Any) -> list[Any]:
    found = []
    for item in items:
        if isinstance(item, EpisodeBatch):
            for one in item:
                columns = [(path, column.dtype, column.tolist()) for path, column in one.flatten()]
                found.append((one.index, one.source, one.metadata, columns))
        else:
            found.append((type(item), str(item)))
    return found


@pytest.mark.parametrize(("start", "stop"), [(0, None), (7, 33), (59, 60), (60, None), (5, 500)])
@pytest.mark.parametrize("jobs", [2, 5])
def test_the_same_episodes_in_the_same_order(dataset: Path, start: int, stop: int | None, jobs: int) -> None:
    with open_source(dataset, where="length > 2", float32=True) as source:
        assert jobs_for(source, jobs) == jobs
        several = described(blocks(source, start, stop, jobs=jobs, rows=40))
        assert several == described(source.read_batches(start, stop, rows=40))
        assert len(several) == max(0, min(stop or 60, 60) - start)


@pytest.mark.parametrize("to", ["buffer", "rlds", "minari"])
def test_what_is_written_is_the_same(dataset: Path, to: str, tmp_path: Path) -> None:
    outputs = [tmp_path / f"{jobs}" / "datasets" / "out-v0" for jobs in (1, 3)]
    for jobs, output in zip((1, 3), outputs, strict=True):
        convert(dataset, output, to=to, jobs=jobs)
    found = [{p.relative_to(output): p for p in output.rglob("*") if p.is_file()} for output in outputs]
    assert found[0].keys() == found[1].keys()
    for name in found[0]:
        if name.suffix != ".hdf5":  # which holds times
            assert found[0][name].read_bytes() == found[1][name].read_bytes(), name
    one, other = (described(open_source(output).read_batches(rows=1)) for output in outputs)
    assert [item[2:] for item in one] == [item[2:] for item in other] and len(one) == 60


def test_episodes_and_errors_name_the_path_as_it_was_given(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dataset.parent)
    with open_source(dataset.name) as source:
        several = [item.rows.source for item in blocks(source, jobs=2, rows=40) if isinstance(item, EpisodeBatch)]
        assert set(several) == {item.rows.source for item in source.read_batches() if isinstance(item, EpisodeBatch)}


def test_reports_count_the_same(dataset: Path) -> None:
    one, other = (validate(dataset, jobs=jobs).to_json() for jobs in (1, 2))
    assert one == other
    with pytest.raises(ValueError, match="jobs"):
        validate(dataset, jobs=0)


def test_pictures_as_files_are_read_as_files_elsewhere_too(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3), np.uint8)
    one = Episode(
        observation={"image": pixels, "x": np.zeros((4, 2), np.float32)},
        action=np.zeros((4, 1), np.float32),
        reward=np.zeros(4),
        is_terminal=np.arange(4) == 3,
    )
    convert([one] * 6, tmp_path / "pictures-v0", to="minari")
    for jobs in (1, 2):
        convert(tmp_path / "pictures-v0", tmp_path / f"rlds{jobs}", to="rlds", jobs=jobs)
    read = [[e.observation["image"].tolist() for e in open_source(tmp_path / f"rlds{jobs}")] for jobs in (1, 2)]
    assert read[0] == read[1] and len(read[0]) == 6


def test_what_others_can_not_open_is_read_here(dataset: Path) -> None:
    assert jobs_for(open_source(dataset), 4) == 4 and jobs_for(open_source(dataset), 100) == 60
    assert jobs_for(open_source(dataset, where=lambda one: True), 4) == 1
    assert jobs_for(open_source([episode(0, 3)]), 4) == 1
    assert jobs_for(rlds2buf.open_mixture([dataset, dataset]), 4) == 1


def test_an_error_while_reading_comes_behind_what_was_read(dataset: Path, tmp_path: Path) -> None:
    convert(dataset, tmp_path / "rlds", to="rlds", sink_options={"num_shards": 1})
    (shard,) = tmp_path.rglob("*.tfrecord*")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)
    outcomes = []
    with open_source(tmp_path / "rlds") as source:
        assert jobs_for(source, 3) == 3
        for jobs in (1, 3):
            items = []
            with pytest.raises(SourceFormatError) as caught:
                for item in blocks(source, jobs=jobs, rows=30):
                    items.append(item)
            outcomes.append((described(items), str(caught.value)))
    assert outcomes[0] == outcomes[1] and 0 < len(outcomes[0][0]) < 59


def test_a_killed_reader_is_an_error(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(reading.subprocess, "Popen", Watched)
    with open_source(dataset) as source:
        items = blocks(source, jobs=2, rows=30)
        next(items)
        for process in started:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(10)
        with pytest.raises(SourceError, match="jobs=1"):
            list(items)
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_readers_end_with_who_asks(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    original = subprocess.Popen

    def watched(*args: Any, **kwargs: Any) -> Any:
        started.append(original(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(reading.subprocess, "Popen", watched)
    items = blocks(open_source(dataset), jobs=3, rows=20)
    next(items)
    items.close()
    assert len(started) == 3 and all(process.poll() is not None for process in started)


def test_a_program_without_a_main_guard_is_not_run_again(dataset: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import rlds2buf\nprint('begins')\nprint(rlds2buf.validate({str(dataset)!r}, jobs=2).episodes)\n", "utf-8"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("begins\n60\n", 0), done.stderr
