"""Metadata with right checksums and wrong contents: whatever they hold, no error of another library comes out.

``RLDS2BUF_MUTANTS`` sets how many there are of each kind; a case is repeated by its number.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf.buffers.disk.manifest import read_manifest, write_manifest
from rlds2buf.errors import Rlds2bufError
from tests.data import ROOT
from tests.mutants import mutant

LEFT = ROOT / "tests" / "from_0_1_0"
MUTANTS = int(os.environ.get("RLDS2BUF_MUTANTS", "20"))
BUFFERS = sorted({*json.loads((LEFT / "buffers.json").read_text()), "buffer", "multi_agent"})


def met(observation: np.ndarray, action: np.ndarray, after: np.ndarray) -> Any:
    return after[:, 0] > after[:, 1]


def use_buffer(folder: Path, *, writable: bool) -> None:
    """All that a saved buffer is for."""
    functions = {"reward_fn": met, "done_fn": met} if folder.name.startswith("hindsight") else {}
    buffer: Any = rlds2buf.load_buffer(folder, seed=None, writable=writable, **functions)
    buffer.stats()
    if folder.name == "multi_agent":
        buffer.sample(2)
        return
    keys = buffer.keys()
    buffer.sample(2)
    if not folder.name.startswith("hindsight"):
        buffer.sample(2, sequence_length=3)
    if len(keys):
        buffer.get(keys[:1])
    step = buffer.all(decode=False)
    if len(step.is_done):
        row = rlds2buf.core.nest.map_structure(lambda c: None if c is None else c[:1], step._asdict())
        buffer.add({name: row[name] for name in row if name not in ("steps", "bootstrap_discount")})
    buffer.save(None if writable else folder.with_name("saved"), **({} if writable else {"overwrite": True}))


def read_source(path: Path, **options: Any) -> None:
    with rlds2buf.open_source(path, **options) as source:
        assert source.spec is not None and source.details() is not None and source.facts() is not None
        assert source.fingerprint()
        for _ in source.read():
            pass


@pytest.mark.parametrize("name", BUFFERS)
def test_a_manifest(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(LEFT / name, folder)
    manifest = read_manifest(folder)
    for number in range(MUTANTS):
        rng = random.Random(f"{name} {number}")
        changed, what = mutant(manifest, rng)
        writable = name == "in_a_folder" or number % 8 == 7
        here = folder
        if writable:
            here = tmp_path / "written" / name
            shutil.rmtree(here.parent, ignore_errors=True)
            shutil.copytree(LEFT / name, here)
        write_manifest(here, changed)
        for use in (functools.partial(use_buffer, here, writable=writable), functools.partial(read_source, here)):
            _only_ours(use, f"case {number} of {name}, {what}")


@pytest.mark.parametrize(
    "file",
    ["rlds/features.json", "rlds/dataset_info.json", "rlds/metadata.json", "minari-v0/data/metadata.json"],
)
def test_metadata_of_a_dataset(file: str, tmp_path: Path) -> None:
    root = file.split("/")[0]
    shutil.copytree(LEFT / root, tmp_path / root)
    content = json.loads((LEFT / file).read_text())
    for number in range(2 * MUTANTS):
        changed, what = mutant(content, random.Random(f"{file} {number}"))
        (tmp_path / file).write_text(json.dumps(changed))
        _only_ours(functools.partial(read_source, tmp_path / root), f"case {number} of {file}, {what}")


def _only_ours(use: Any, case: str) -> None:
    try:
        with contextlib.suppress(Rlds2bufError):
            use()
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
