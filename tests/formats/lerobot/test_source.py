"""LeRobot datasets read: real ones, made ones, and what must be refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.pipeline.summary import summarize
from tests.cli.run import run
from tests.contracts.source import MakeSource, SourceContract
from tests.data import DATA
from tests.formats.lerobot.made import vectors, write_v2, write_v3


class TestContractV3(SourceContract):
    @pytest.fixture
    def make_source(self, tmp_path: Path) -> MakeSource:
        places = [(0, 0), (0, 0), (0, 1), (1, 0)]
        root = write_v3(tmp_path / "set", vectors(), data=places, meta_rows=2)
        return lambda: rlds2buf.open_source(root)

    @pytest.fixture
    def change(self, tmp_path: Path) -> Any:
        path = tmp_path / "set/data/chunk-001/file-000.parquet"
        return lambda: path.write_bytes(path.read_bytes() + b" ")


class TestContractV2(SourceContract):
    @pytest.fixture
    def make_source(self, tmp_path: Path) -> MakeSource:
        root = write_v2(tmp_path / "set", vectors(), chunks_size=3)
        return lambda: rlds2buf.open_source(root)

    @pytest.fixture
    def change(self, tmp_path: Path) -> Any:
        path = tmp_path / "set/data/chunk-001/episode_000003.parquet"
        return lambda: path.write_bytes(path.read_bytes() + b" ")


def test_columns_are_those_that_were_written(tmp_path: Path) -> None:
    made = vectors()
    for root in (
        write_v3(tmp_path / "v3", made, data=[(0, 0), (0, 1), (0, 1), (1, 0)]),
        write_v2(tmp_path / "v2", made),
    ):
        with rlds2buf.open_source(root) as source:
            for columns, episode in zip(made.episodes, source, strict=True):
                assert np.array_equal(episode.observation["state"], columns["observation.state"])
                assert np.array_equal(episode.action, columns["action"]) and episode.action.dtype == np.float64
                assert np.array_equal(episode.reward, columns["next.reward"])
                assert np.array_equal(episode.extras["grid"]["small"], columns["grid.small"])
                assert episode.extras["note"].tolist() == [text.encode() for text in columns["note"]]
                assert set(episode.extras["task"].tolist()) == {b"lift it"}
                assert episode.end == "truncated" and episode.metadata == {"real_final_action": True}


def test_real_v21() -> None:
    with rlds2buf.open_source(DATA / "lerobot/g1_v21", drop=["observation/images"]) as source:
        assert [len(episode) for episode in source] == [393, 343, 290]
        assert repr(source.spec.action) == "FieldSpec(float32[26])"
        assert source.facts()["fps"] == 30


def test_real_v30_whose_videos_are_absent() -> None:
    path = DATA / "lerobot/so101_v3_no_video"
    with rlds2buf.open_source(path, drop=["observation/images"]) as source:
        assert source.num_steps == sum(len(episode) for episode in source) == 1492
        assert not any("videos are not there" in text for text in source.warnings())
    with rlds2buf.open_source(path) as source:
        told = " ".join(source.warnings())
        assert "observation.images.top: 1 of 1 videos are not there" in told and "--drop observation/images" in told


def test_what_the_command_line_says_of_absent_videos(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = DATA / "lerobot/so101_v3_no_video"
    result = run(capsys, "convert", path, tmp_path / "out")
    assert result.code != 0 and "file-000.mp4" in result.err
    assert "--drop observation/images reads the rest" in result.err and "Traceback" not in result.err
    result = run(capsys, "convert", path, tmp_path / "out", "--drop", "observation/images")
    assert result.code == 0 and "the last action of 4 episodes is real" in result.out
    assert "real_final_action" not in result.out


def test_inspect_decodes_no_video(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("rlds2buf.formats.lerobot.pictures.decode_into", refuse)
    with rlds2buf.open_source(DATA / "lerobot/g1_v21") as source:
        found = summarize(source)
    assert found.episodes == 3 and found.fields["observation/images/cam_high"]["shape"] == [480, 640, 3]


def test_refused() -> None:
    with pytest.raises(SourceFormatError, match=r"episodes\.jsonl: a Git LFS pointer"):
        rlds2buf.open_source(DATA / "negative/lerobot_lfs_pointers")
    with pytest.raises(SourceFormatError, match="no codebase_version"):
        rlds2buf.open_source(DATA / "negative/not_lerobot")


def test_a_file_without_its_footer_costs_its_own_episodes(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "set", vectors(), data=[(0, 0), (0, 1), (0, 1), (0, 2)])
    path = root / "data/chunk-000/file-001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with rlds2buf.open_source(root) as source:
        found = list(source.read())
    assert [item.episode for item in found if isinstance(item, EpisodeError)] == [1, 2]
    assert "file-001.parquet: a Parquet file without its footer" in str(found[1])
