"""Every format that is read, damaged at random: typed errors in a sentence, in time, and nothing left behind.

``RLDS2BUF_DAMAGE_TRIALS`` sets the number of trials; more of them find rarer things.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from rlds2buf.formats.registry import BUILT_IN
from tests.cli.one_of_each import MAKERS, MORE
from tests.cli.run import run

TRIALS = int(os.environ.get("RLDS2BUF_DAMAGE_TRIALS", "6"))
SECONDS = 20.0
"""A command on a few rows takes a fraction of one; a busy machine some."""


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
