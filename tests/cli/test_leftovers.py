"""What lies beside a target when a conversion begins: ours is dealt with and said, anything else is left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from rlds2buf import Episode, convert, load_buffer, make_circular, open_source, spec_of
from tests.cli.run import run

EPISODE = Episode(
    observation=np.arange(8.0, dtype=np.float32).reshape(4, 2),
    action=np.arange(4),
    reward=np.ones(4, np.float32),
    discount=np.ones(4, np.float32),
    is_terminal=[False, False, False, True],
)
TARGETS = {"buffer": "out", "rlds": "out", "minari": "out-v0", "d4rl": "out.hdf5", "reverb-checkpoint": "out"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    convert([EPISODE] * 2, "source.hdf5")
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("how", ["link", "folder"])
def test_nothing_of_others_is_followed_or_removed(
    here: Path, kind: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = here / "victim"
    (victim / "folder").mkdir(parents=True)
    (victim / "thesis.tex").write_text("years")
    hidden = here / f".{TARGETS[kind]}.partial"
    if how == "link":
        hidden.symlink_to(victim)
    else:
        victim.rename(hidden)
    for options in ([], ["--overwrite"]):
        result = run(capsys, "convert", "source.hdf5", TARGETS[kind], "--to", kind, *options)
        assert result.code == 5 and "left as it is" in result.err
    assert (hidden / "thesis.tex").read_text() == "years" and names(hidden) == ["folder", "thesis.tex"]
    assert not (here / TARGETS[kind]).exists()


@pytest.mark.parametrize("kind", TARGETS)
def test_a_folder_set_aside_by_others_is_left_alone(here: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    aside = here / f".{TARGETS[kind]}.replaced"
    aside.mkdir()
    (aside / "thesis.tex").write_text("years")
    result = run(capsys, "convert", "source.hdf5", TARGETS[kind], "--to", kind)
    assert result.code == 5 and str(aside.name) in result.err
    convert([EPISODE], here / "first" / TARGETS[kind], to=kind)
    (here / "first" / TARGETS[kind]).rename(here / TARGETS[kind])
    result = run(capsys, "convert", "source.hdf5", TARGETS[kind], "--to", kind, "--overwrite", "--json")
    assert result.code == 0 and any("left as it is" in warning for warning in result.json["warnings"])
    assert (aside / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("kind", TARGETS)
def test_a_link_is_not_overwritten(here: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    convert([EPISODE], here / "real" / TARGETS[kind], to=kind)
    (here / TARGETS[kind]).symlink_to(here / "real" / TARGETS[kind])
    before = {path: path.stat().st_mtime_ns for path in (here / "real").rglob("*")}
    result = run(capsys, "convert", "source.hdf5", TARGETS[kind], "--to", kind, "--overwrite")
    assert result.code == 5 and str(here / "real" / TARGETS[kind]) in result.err
    assert (here / TARGETS[kind]).is_symlink()
    assert {path: path.stat().st_mtime_ns for path in (here / "real").rglob("*")} == before


def test_a_saved_buffer_is_not_overwritten_through_a_link(here: Path) -> None:
    buffer = make_circular(spec_of(EPISODE), 10)
    buffer.add(EPISODE)
    buffer.save("real")
    (here / "latest").symlink_to("real")
    with pytest.raises(Exception, match="symbolic link"):
        buffer.save("latest", overwrite=True)
    assert len(load_buffer("latest")) == 3


@pytest.mark.parametrize("name", ["data-of-mine", "data-", "data-0123456789abc"])
def test_a_buffer_that_is_saved_again_removes_its_own_columns_only(here: Path, name: str) -> None:
    buffer = make_circular(spec_of(EPISODE), 10)
    buffer.add(EPISODE)
    buffer.save("saved")
    (here / "saved" / name).mkdir()
    (here / "saved" / name / "000-mine.npy").write_text("years")
    for _ in range(2):
        buffer.add(EPISODE)
        buffer.save("saved", overwrite=True)
    live = load_buffer("saved", writable=True)
    live.add(EPISODE)
    live.save()
    assert (here / "saved" / name / "000-mine.npy").read_text() == "years"
    assert len(load_buffer("saved")) == len(live) > 0


@pytest.mark.parametrize("kind", ["minari", "d4rl"])
def test_what_is_left_behind_the_last_rename_goes_with_the_next_run(
    here: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = here / TARGETS[kind]
    convert([EPISODE], target, to=kind)
    hidden = here / f".{target.name}.partial"
    (hidden / "spool").mkdir(parents=True)
    (hidden / "lock").touch()
    left = {"provenance": {}, "state": {"columns": {}}, "publishing": os.lstat(target).st_ino}
    (hidden / "journal.json").write_text(json.dumps(left))
    result = run(capsys, "convert", "source.hdf5", target.name, "--to", kind)
    assert result.code == 5 and "is there already" in result.err and not hidden.exists()
    assert len(list(open_source(target))) == 1
