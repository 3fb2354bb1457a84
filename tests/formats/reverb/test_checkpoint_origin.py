"""The note in a checkpoint that says whose items it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlds2buf import SinkError, open_source, write_checkpoint
from rlds2buf.formats.reverb.checkpoint_origin import Origin, latest_in, require_checkpoints_only
from tests.buffers.numbered import episode

GIVEN = [episode(0, 6), episode(100, 40, end="truncated")]


def test_what_we_write_says_whose_it_is(tmp_path: Path) -> None:
    report = write_checkpoint(GIVEN, tmp_path / "seed", "t", pattern="transition", n_step=2)
    latest = latest_in(tmp_path / "seed")
    assert latest is not None
    origin = Origin.read(latest)
    assert origin is not None
    with open_source(GIVEN) as source:
        assert origin == Origin.of("memory", source.fingerprint(), "t", "transition n_step=2 gamma=1.0 extras=", 44)
    assert "44 items of memory (transition n_step=2" in str(origin)
    (note,) = report.notes
    assert "table 't': 44 of at most 1,000,000 items (remover fifo)" in note and "its size too" in note
    require_checkpoints_only(tmp_path / "seed")
    assert open_source(tmp_path / "seed").num_episodes == 44


def test_a_note_that_says_nothing(tmp_path: Path) -> None:
    assert Origin.read(tmp_path) is None
    good = Origin.of("a", "b", "t", "p", 3)
    good.write(tmp_path)
    assert Origin.read(tmp_path) == good
    whole = json.loads((tmp_path / "rlds2buf.json").read_text())
    for bad in ({**whole, "items": "3"}, {**whole, "rlds2buf_checkpoint": 9}, {**whole, "more": 1}, [1], {}, None, 3):
        (tmp_path / "rlds2buf.json").write_text(json.dumps(bad))
        assert Origin.read(tmp_path) is None
    (tmp_path / "rlds2buf.json").write_bytes(b"\xff\x00")
    assert Origin.read(tmp_path) is None


def test_what_is_a_later_state_of_the_same(tmp_path: Path) -> None:
    log = tmp_path / "log.hdf5"
    log.touch()
    first = Origin.of(str(log), "1", "t", "p", 3)
    assert first.differs(Origin.of(str(log), "2", "t", "p")) == []  # it has grown
    assert first.differs(Origin.of("copy", "1", "t", "p")) == []
    assert first.differs(Origin.of("copy", "2", "t", "p")) == ["data"]
    assert first.differs(Origin.of(str(log), "1", "t", "q")) == ["pattern"]
    # Everything in memory is called "memory".
    assert Origin.of("memory", "1", "t", "p").differs(Origin.of("memory", "2", "t", "p")) == ["data"]


def test_a_folder_with_anything_else_in_it(tmp_path: Path) -> None:
    require_checkpoints_only(tmp_path)
    require_checkpoints_only(tmp_path / "not there yet")
    assert latest_in(tmp_path) is None and latest_in(tmp_path / "not there yet") is None
    write_checkpoint(GIVEN, tmp_path / "seed")
    (checkpoint,) = (tmp_path / "seed").iterdir()
    with pytest.raises(SinkError, match="a checkpoint itself; name the folder that holds it"):
        require_checkpoints_only(checkpoint)
    (tmp_path / "seed" / "2026-11-22T10:00:00.5+00:00").mkdir()  # one that Reverb could not finish
    require_checkpoints_only(tmp_path / "seed")
    for name in ("holiday.jpg", ".hidden"):
        (tmp_path / "seed" / name).write_bytes(b"mine")
        with pytest.raises(SinkError, match=f"something else than Reverb checkpoints, .*\\({name}\\)"):
            require_checkpoints_only(tmp_path / "seed")
        (tmp_path / "seed" / name).unlink()
    checkpoint.rename(tmp_path / "seed" / "renamed")
    with pytest.raises(SinkError, match=r"\(renamed\)"):
        require_checkpoints_only(tmp_path / "seed")
    (tmp_path / "seed" / "renamed").rename(checkpoint)
    (tmp_path / "seed" / "link").symlink_to(checkpoint)
    with pytest.raises(SinkError, match="link"):
        require_checkpoints_only(tmp_path / "seed")
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="no folder for checkpoints"):
        require_checkpoints_only(tmp_path / "file")
