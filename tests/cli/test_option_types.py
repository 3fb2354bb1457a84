"""Options by name and type: what is wrong with one is a usage error that names it and what it may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlds2buf
from tests.cli.run import run
from tests.formats.step_log.files import write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = {"episode": [0, 0, 1, 1], "observation": [1.0, 2, 3, 4], "action": [0, 1, 0, 1], "reward": [1.0, 1, 1, 1]}
    return write(tmp_path / "log.csv", {**rows, "terminated": [False, True] * 2})


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        ("-O max_episode_steps=abc", "max_episode_steps", "an integer"),
        ("-O max_episode_steps=1.5", "max_episode_steps", "an integer"),
        ("-O final_rows=maybe", "final_rows", "true or false"),
        ("-O final_rows=2", "final_rows", "true or false"),
        ("-O delimiter=3", "delimiter", "a text"),
        ("-O columns=3", "map", "a mapping"),
        ("-O delimiter=" + "[" * 100_000, "delimiter", ""),
        ("-O min_length=-5", "min_length", "not be negative"),
        ("-O min_length=x", "min_length", "an integer"),
        ("-O min_return=NaN", "min_return", "a number"),
        ("-O max_return=high", "max_return", "a number"),
        ("-O float32=perhaps", "float32", "true or false"),
        ("-O nonsense=1", "nonsense", "its options"),
        ("--seed=one", "__seed", "integer"),
        ("--min-length=-5", "min_length", "x>=0"),
        ("--to rlds -T num_shards=abc", "num_shards", "an integer"),
        ("--to rlds -T val_fraction=half", "val_fraction", "a number"),
        ("--to rlds -T name=[1]", "name", "a text"),
        ("--to rlds -T nonsense=1", "nonsense", "its options"),
        ("--to d4rl -T next_observations=maybe", "next_observations", "true or false"),
        ("--to minari -T author=7", "author", "a text"),
        ("--to reverb-checkpoint -T sequence_length=long", "sequence_length", "an integer"),
        ("--to reverb-checkpoint -T max_size=big", "max_size", "an integer"),
        ("--to reverb-checkpoint -T chunk_length=1.5", "chunk_length", "an integer"),
        ("--to reverb-checkpoint -T table=5", "table", "name"),
        ("--to reverb-checkpoint -T pad=maybe", "pad", "true or false"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path, given: str, name: str, words: str
) -> None:
    target = tmp_path / ("out-v0" if "minari" in given else "out")
    found = run(capsys, "convert", log, target, *given.split())
    assert found.code == 2
    # An option that has a spelling of its own on the command line is called by that.
    assert name in found.err.replace("-", "_") and words in found.err
    assert sorted(tmp_path.iterdir()) == [log]


def test_right_options_in_every_spelling(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    given = ["-O", "max_episode_steps=7", "-O", "final_rows=false", "-O", "delimiter=,", "-O", "min_length=2"]
    assert run(capsys, "convert", log, tmp_path / "out", *given, "-O", "float32=1").code == 0
    with rlds2buf.open_source(log, max_episode_steps=np.int64(7), final_rows=np.bool_(False), min_return=1) as source:
        assert source.num_episodes is None or source.num_episodes == 2


def test_options_of_a_minari_dataset(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="infos must be true or false, got 'maybe'"):
        rlds2buf.open_source(tmp_path, format="minari", infos="maybe")
    with pytest.raises(TypeError, match="images must be a text, got 3"):
        rlds2buf.open_source(tmp_path, format="minari", images=3)
    with pytest.raises(TypeError, match="resize must be an integer or a pair of integers, got 'big'"):
        rlds2buf.open_source(tmp_path, format="minari", resize="big")


def test_seeds_of_a_sample(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    assert run(capsys, "convert", log, tmp_path / "out").code == 0
    found = run(capsys, "sample", tmp_path / "out", "--seed", "-1")
    assert found.code == 2 and "--seed" in found.err and "x>=0" in found.err
