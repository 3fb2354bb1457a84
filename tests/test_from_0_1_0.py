"""What version 0.1.0 left on disks opens and continues (`from_0_1_0/make.py` wrote it, with that version)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from tests.data import ROOT

LEFT = ROOT / "tests" / "from_0_1_0"
BUFFERS = json.loads((LEFT / "buffers.json").read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it all, as the working folder: sources were named by relative paths."""
    copy = tmp_path / "left"
    shutil.copytree(LEFT, copy)
    monkeypatch.chdir(copy)
    return copy


def met(observation: np.ndarray, action: np.ndarray, after: np.ndarray) -> Any:
    return after[:, 0] > after[:, 1]


def loaded(name: str, path: str | None = None, **how: Any) -> Any:
    """The buffer of that name, or one at another path that needs the same functions."""
    goals = {"reward_fn": met, "done_fn": met} if name.startswith("hindsight") else {}
    return rlds2buf.load_buffer(path or name, **goals, **how)


@pytest.mark.parametrize("name", sorted(BUFFERS))
def test_a_saved_buffer_holds_what_it_held(name: str, folder: Path) -> None:
    buffer, kept = loaded(name), BUFFERS[name]
    assert buffer.keys().tolist() == kept["keys"]
    if kept["rewards"] is not None:
        np.testing.assert_array_equal(buffer.all().reward, np.asarray(kept["rewards"], np.float32))
    assert set(buffer.sample(64).info.key.tolist()) <= set(kept["keys"])
    buffer.check_valid()


@pytest.mark.parametrize("name", sorted({*BUFFERS} - {"texts"}))
def test_a_saved_buffer_goes_on(name: str, folder: Path) -> None:
    how = {"writable": True} if name == "in_a_folder" else {}
    buffer = loaded(name, **how)
    (episode, *_) = rlds2buf.open_source("source.hdf5")
    extended = rlds2buf.Episode(
        **{key: getattr(episode, key) for key in ("observation", "action", "reward", "is_terminal", "is_last")},
        discount=np.ones(episode.num_steps, np.float32),
        extras={"cost": np.zeros(episode.num_steps, np.float32)},
    )
    before = int(buffer.keys().max())
    assert buffer.add(extended).min() > before
    path = name if name == "in_a_folder" else "again"
    buffer.save(None if path == name else path)
    again = loaded(name, path)
    np.testing.assert_array_equal(again.keys(), buffer.keys())


def test_a_checkpoint_of_reverb(folder: Path) -> None:
    with rlds2buf.open_source("checkpoint") as source:
        assert source.num_episodes == sum(episode.num_transitions for episode in source) == 52


def test_a_multi_agent_buffer(folder: Path) -> None:
    buffer = rlds2buf.load_buffer("multi_agent")
    assert {name: len(part) > 0 for name, part in buffer.policies.items()} == {"a": True, "b": True}


def columns(path: str) -> list[Any]:
    with rlds2buf.open_source(path) as source:
        return [(e.observation.tolist(), e.action.tolist(), e.reward.tolist(), e.end) for e in source]


@pytest.mark.parametrize("path", ["rlds", "minari-v0", "d4rl.hdf5", "buffer"])
def test_datasets_it_wrote(path: str, folder: Path) -> None:
    assert columns(path) == columns("source.hdf5")


@pytest.mark.parametrize("kind", ["rlds", "minari", "d4rl", "buffer"])
def test_a_killed_conversion_is_resumed(kind: str, folder: Path) -> None:
    target = f"{kind}-out-v0"
    report = rlds2buf.convert("source.hdf5", target, to=kind, resume=True, on_invalid="skip", float32=True)
    assert (report.resumed, report.episodes) == (7, 12)
    assert columns(target) == columns("source.hdf5")
    assert not list(folder.glob(f".{kind}-out*"))
