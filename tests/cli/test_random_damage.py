"""Every format that is read, damaged at random: typed errors in a sentence, in time, and nothing left behind.

``RLDS2BUF_DAMAGE_TRIALS`` sets the number of trials; more of them find rarer things.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2buf import Episode, convert
from rlds2buf.formats.registry import BUILT_IN
from tests.cli.run import run
from tests.formats.d3rlpy import files as d3rlpy_file
from tests.formats.minari.test_arrow_layout import columns as arrow_columns
from tests.formats.minari.test_arrow_layout import write as write_arrow
from tests.formats.robomimic import files as robomimic_file
from tests.formats.step_log import files as step_log_files
from tests.formats.tf_example.test_source import STEP, step_records
from tests.formats.tf_example.test_source import write as write_records

TRIALS = int(os.environ.get("RLDS2BUF_DAMAGE_TRIALS", "6"))
SECONDS = 20.0
"""A command on a few rows takes a fraction of one; a busy machine some."""
Make = Callable[[Path], object]


def episodes() -> list[Episode]:
    rng = np.random.default_rng(0)
    return [
        Episode(
            observation=rng.normal(size=(rows, 3)).astype(np.float32),
            action=rng.integers(0, 4, rows),
            reward=rng.normal(size=rows).astype(np.float32),
            discount=np.ones(rows, np.float32),
            is_terminal=np.arange(rows) == rows - 1,
            extras={"note": np.array([b"left", b"right"], object)[rng.integers(0, 2, rows)]} if words else {},
        )
        for rows, words in ((5, True), (9, True))
    ]


def numbers() -> list[Episode]:
    return [episode.replace(extras={}) for episode in episodes()]


def log(path: Path) -> None:
    rows = 14
    step_log_files.write(
        path,
        {
            "episode": np.repeat([0, 1], rows // 2),
            "observation": np.random.default_rng(0).normal(size=(rows, 3)),
            "action": np.arange(rows) % 3,
            "reward": np.ones(rows),
            "terminated": np.arange(rows) % 7 == 6,
            "truncated": np.zeros(rows, bool),
        },
    )


def rllib(path: Path) -> None:
    columns: dict[str, Any] = {
        "type": "SampleBatch",
        "obs": [[0.5 * i, 1.0] for i in range(6)],
        "actions": [0, 1, 0, 1, 0, 1],
        "rewards": [1.0] * 6,
        "terminateds": [False, False, True] * 2,
        "truncateds": [False] * 6,
        "eps_id": [7, 7, 7, 8, 8, 8],
        "new_obs": [[0.5 * i + 0.5, 1.0] for i in range(6)],
    }
    path.write_text(json.dumps(columns) + "\n")


MAKERS: dict[str, tuple[str, Make]] = {
    "rlds": ("set", lambda path: convert(episodes(), path, to="rlds")),
    "minari": ("set-v0", lambda path: convert(numbers(), path, to="minari")),
    "minari-arrow": ("set", lambda path: write_arrow(path, [arrow_columns(4), arrow_columns(6, 1)])),
    "rllib": ("batches.json", rllib),
    "tf-example": ("a.tfrecord", lambda path: write_records(path, step_records([3, 4]))),
    "robomimic": (
        "a.hdf5",
        lambda path: robomimic_file.write(path, {f"demo_{i}": robomimic_file.demo(5, i, 3) for i in range(2)}),
    ),
    "d3rlpy": (
        "a.h5",
        lambda path: d3rlpy_file.write_v2(path, [d3rlpy_file.episode(5, True, i, parts=True) for i in range(2)]),
    ),
    "d3rlpy-v1": ("a.h5", lambda path: d3rlpy_file.write_v1(path, **d3rlpy_file.table(9, [4, 8], None))),
    "d4rl": ("a.hdf5", lambda path: convert(numbers(), path, to="d4rl")),
    "reverb-checkpoint": ("set", lambda path: convert(numbers(), path, to="reverb-checkpoint")),
    "buffer": ("set", lambda path: convert(episodes(), path, to="buffer")),
    "npz": ("a.npz", log),
    "jsonl": ("a.jsonl", log),
    "csv": ("a.csv", log),
    "parquet": ("a.parquet", log),
}
MORE = {"tf-example": ["--format", "tf-example", "-O", f"features={json.dumps(STEP)}", "-O", "record=step"]}


def damage(path: Path, rng: random.Random) -> str:
    """Change one file of a dataset; says how."""
    files = sorted(file for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    files = [file for file in files if file.stat().st_size]
    file, how = rng.choice(files), rng.choice(["cut", "flip", "flip", "scatter", "zero", "swap", "grow", "delete"])
    data = bytearray(file.read_bytes())
    at, other = rng.randrange(len(data)), rng.randrange(len(data))
    if how == "delete" and len(files) > 1:
        file.unlink()
        return f"{file.name} deleted"
    if how == "cut":
        del data[at:]
    elif how == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif how == "scatter":
        for _ in range(rng.randrange(2, 30)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif how == "zero":
        data[at : at + rng.randrange(1, 200)] = bytes(min(rng.randrange(1, 200), len(data) - at))
    elif how == "swap":
        some = min(64, len(data) - max(at, other))
        data[at : at + some], data[other : other + some] = data[other : other + some], data[at : at + some]
    else:
        data += bytes(rng.randrange(256) for _ in range(rng.randrange(1, 100)))
    file.write_bytes(data)
    return f"{file.name}: {how} at {at}"


def test_every_format_is_damaged() -> None:
    assert {entry.name for entry in BUILT_IN if entry.is_path} <= set(MAKERS)


@pytest.mark.parametrize("format", MAKERS)
def test_typed_errors_alone(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, make = MAKERS[format]
    (tmp_path / "whole").mkdir()
    make(tmp_path / "whole" / name)
    more = MORE.get(format, [])
    assert run(capsys, "inspect", tmp_path / "whole" / name, *more, "--json").code == 0
    for trial in range(TRIALS):
        place = tmp_path / str(trial)
        shutil.copytree(tmp_path / "whole", place)
        how = damage(place / name, random.Random(f"{format} {trial}"))
        for command in (
            ["inspect", place / name],
            ["validate", place / name],
            ["convert", place / name, place / "out", "--on-invalid", "skip"],
        ):
            started = time.monotonic()
            result = run(capsys, *command, *more, "--json")
            said = f"trial {trial}, {how}, {command[0]}: {result}"
            assert result.code in (0, 1, 3, 5), said
            assert time.monotonic() - started < SECONDS, said
            assert isinstance(result.json, dict)
            if result.code:
                assert not (place / "out").exists(), said
        shutil.rmtree(place / "out", ignore_errors=True)
        assert [path.name for path in place.iterdir()] == [name], how
