"""What a target's name says about what is written there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, convert, load_buffer, make_circular, open_source, spec_of
from rlds2buf.formats.registry import BUILT_IN
from rlds2buf.formats.reverb.checkpoint_sink import ReverbCheckpointSink
from rlds2buf.formats.reverb.push_journal import Journal
from rlds2buf.pipeline.opening import format_of_target
from tests.cli.run import run

EPISODE = Episode(
    observation=np.arange(8.0, dtype=np.float32).reshape(4, 2),
    action=np.arange(4),
    reward=np.ones(4, np.float32),
    discount=np.ones(4, np.float32),
    is_terminal=[False, False, False, True],
)
WRITTEN = {suffix for entry in BUILT_IN for suffix in entry.target_suffixes}
NOT_WRITTEN = sorted({suffix for entry in BUILT_IN for suffix in entry.suffixes} - WRITTEN)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    convert([EPISODE], "source.hdf5", to="d4rl")
    return tmp_path


@pytest.mark.parametrize("name", ["out.hdf5", "out.h5", "OUT.HDF5", "deep/er/out.hdf5"])
def test_a_name_of_a_d4rl_file_becomes_one(here: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "convert", "source.hdf5", name).code == 0
    assert Path(name).is_file() and open_source(name).format == "d4rl"
    convert([EPISODE], here / "api" / name)
    assert open_source(here / "api" / name).format == "d4rl"


@pytest.mark.parametrize("suffix", [*NOT_WRITTEN, ".NPZ", ".mat", ".pkl"])
def test_a_name_of_files_that_are_not_written_is_refused(
    here: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "convert", "source.hdf5", f"out{suffix}", "--json")
    assert result.code == 2 and suffix.lower() in result.json["error"] and "--to" in result.json["error"]
    with pytest.raises(ValueError, match="which is not written"):
        convert([EPISODE], f"out{suffix}")
    assert [path.name for path in here.iterdir()] == ["source.hdf5"]


def test_what_is_not_written_has_the_suffixes_of_all_logs() -> None:
    assert {".npz", ".csv", ".jsonl", ".json", ".tfrecord"} <= set(NOT_WRITTEN)


def test_the_command_line_names_its_option_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = run(capsys, "convert", "source.hdf5", tmp_path / "out.npz")
    assert result.code == 2 and "say what to write there with --to: buffer, rlds" in result.err


@pytest.mark.parametrize("name", ["out.npz", "out.hdf5", "out"])
def test_what_is_asked_for_is_written_whatever_the_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "convert", "source.hdf5", name, "--to", "buffer").code == 0
    assert len(load_buffer(name)) == 3
    convert([EPISODE], f"rlds/{name}", to="rlds")
    assert open_source(f"rlds/{name}").format == "rlds"


@pytest.mark.parametrize("name", ["hopper-v2.1", "run.5", ".hidden", "folder.hdf5/", "a.b/c"])
def test_other_names_are_buffers(name: str) -> None:
    assert format_of_target(name).name == "buffer"
    convert([EPISODE], name)
    assert len(load_buffer(name)) == 3


ADDRESSES = ["s3://bucket/out", "gs://b/o", "hf://datasets/me/o", "https://example.com/x.hdf5", "reverb://h:1/t"]


@pytest.mark.parametrize("to", [[], ["--to", "d4rl"], ["--to", "minari"], ["--to", "rlds"], ["--to", "buffer"]])
@pytest.mark.parametrize("name", [*ADDRESSES, "any-thing://x", "file:///tmp/x", "s3://bucket/x.npz"])
def test_an_address_is_refused(here: Path, name: str, to: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "convert", "source.hdf5", name, *to, "--json")
    assert result.code == 2 and f"{name.split(':')[0]}:// addresses" in result.json["error"]
    assert [path.name for path in here.iterdir()] == ["source.hdf5"]


@pytest.mark.parametrize(
    "write",
    [
        lambda path: convert([EPISODE], path),
        lambda path: convert([EPISODE], path, to="buffer"),
        lambda path: make_circular(spec_of(EPISODE), 10).save(path),
        lambda path: make_circular(spec_of(EPISODE), 10, directory=path),
        ReverbCheckpointSink,
        lambda path: rlds2buf.write_checkpoint([EPISODE], path),
        lambda path: Journal(path, {}, 1),
    ],
)
@pytest.mark.parametrize("name", ADDRESSES)
def test_no_folder_is_called_like_an_address(here: Path, name: str, write: Callable[[Any], Any]) -> None:
    for given in (name, Path(name)):
        with pytest.raises(ValueError, match="addresses"):
            write(given)
    assert [path.name for path in here.iterdir()] == ["source.hdf5"]


def test_a_folder_with_a_colon_is_a_folder(here: Path) -> None:
    (here / "s3:").mkdir()
    convert([EPISODE], Path("s3:/bucket"))
    assert len(load_buffer("s3:/bucket")) == 3
