"""A saved buffer's manifest names files inside its own folder, and no others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import SnapshotCorrupt, SourceFormatError
from rlds2buf.buffers.disk.manifest import read_manifest, write_manifest
from tests.buffers.numbered import SPEC, episode

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two saved buffers side by side; the second one is somebody else's."""
    for name, start in (("mine", 0), ("theirs", 500)):
        buffer = rlds2buf.make_circular(SPEC, 20, seed=0)
        buffer.add(episode(start, 5))
        buffer.save(tmp_path / name)
    return tmp_path / "mine", tmp_path / "theirs"


def rewrite(folder: Path, edit: Edit) -> None:
    """Change a manifest; its checksum is right again."""
    manifest = read_manifest(folder)
    edit(manifest)
    write_manifest(folder, manifest)


def column(folder: Path, name: str) -> Path:
    manifest = read_manifest(folder)
    entry = next(entry for entry in manifest["columns"] if entry["name"].startswith(name))
    return Path(manifest["data"], entry["file"])


def names_file(name: Any) -> Edit:
    def edit(manifest: dict[str, Any]) -> None:
        next(entry for entry in manifest["columns"] if entry["name"].startswith("observation"))["file"] = name

    return edit


def refuses(folder: Path, match: str = "leads out of the buffer's folder") -> None:
    for opened in (rlds2buf.load_buffer, lambda path: rlds2buf.load_buffer(path, writable=True)):
        with pytest.raises(SnapshotCorrupt, match=match):
            opened(folder)
    with pytest.raises(SourceFormatError, match=match):
        rlds2buf.open_source(folder)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["up", "absolute"])
def test_a_column_elsewhere(two: tuple[Path, Path], how: str) -> None:
    mine, theirs = two
    before = everything(theirs)
    there = theirs / column(theirs, "observation")
    rewrite(mine, names_file(str(there) if how == "absolute" else f"../../theirs/{column(theirs, 'observation')}"))
    refuses(mine)
    assert everything(theirs) == before


@pytest.mark.parametrize("name", ["../../theirs", "..", "/etc"])
def test_a_data_folder_elsewhere(two: tuple[Path, Path], name: str) -> None:
    rewrite(two[0], lambda manifest: manifest.update(data=name))
    refuses(two[0])


@pytest.mark.parametrize("name", [7, None, ["x"], "a\0b"])
def test_what_is_no_name(two: tuple[Path, Path], name: Any) -> None:
    rewrite(two[0], names_file(name))
    refuses(two[0], r"no name of a file|columns\[0\]\.file should be a text")


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_link_that_leads_out(two: tuple[Path, Path], whole_folder: bool) -> None:
    mine, theirs = two
    own, other = column(mine, "observation"), column(theirs, "observation")
    own, other = (own.parent, other.parent) if whole_folder else (own, other)
    os.rename(mine / own, mine / "before")
    os.symlink(theirs / other, mine / own)
    refuses(mine)


def test_links_inside_and_to_the_folder_are_fine(two: tuple[Path, Path], tmp_path: Path) -> None:
    mine = two[0]
    own = column(mine, "observation")
    os.rename(mine / own, mine / "kept.npy")
    os.symlink("../kept.npy", mine / own)
    os.symlink(mine, tmp_path / "link")
    assert len(rlds2buf.load_buffer(tmp_path / "link")) == 4


def test_a_pipe_is_not_waited_for(two: tuple[Path, Path]) -> None:
    own = two[0] / column(two[0], "observation")
    own.unlink()
    os.mkfifo(own)
    refuses(two[0], "neither a file nor a folder")


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    buffer = rlds2buf.make_multi_agent({"a": rlds2buf.make_circular(SPEC, 20), "b": rlds2buf.make_circular(SPEC, 20)})
    buffer.policies["a"].add(episode(0, 5))
    buffer.save(tmp_path / "agents")
    return tmp_path / "agents"


def place(name: str) -> Edit:
    return lambda manifest: manifest["policies"].update(a=name)


@pytest.mark.parametrize(
    "edit",
    [place("../../mine"), lambda manifest: manifest.update(data="../mine"), place("/tmp")],
    ids=["of a folder", "all of them", "absolute"],
)
def test_a_policy_elsewhere(agents: Path, two: tuple[Path, Path], edit: Edit) -> None:
    rewrite(agents, edit)
    with pytest.raises(SnapshotCorrupt, match="leads out of the buffer's folder"):
        rlds2buf.load_buffer(agents)


def test_a_policy_that_is_the_whole(agents: Path) -> None:
    rewrite(agents, lambda manifest: manifest.update(data=".", policies={"a": ".", "b": "."}))
    with pytest.raises(SnapshotCorrupt, match="of several agents"):
        rlds2buf.load_buffer(agents)


def test_a_policys_column_elsewhere(agents: Path, two: tuple[Path, Path]) -> None:
    manifest = read_manifest(agents)
    inner = agents / manifest["data"] / manifest["policies"]["a"]
    rewrite(inner, names_file("../" * 6 + "etc/passwd"))
    with pytest.raises(SnapshotCorrupt, match="leads out of the buffer's folder"):
        rlds2buf.load_buffer(agents)


def test_a_buffer_in_its_own_folder_goes_on(tmp_path: Path) -> None:
    """Its files are named from the folder, and may be empty columns without a file."""
    live = rlds2buf.make_circular(SPEC, 20, directory=tmp_path / "live", seed=0)
    live.add(episode(0, 5))
    live.save()
    del live
    again = rlds2buf.load_buffer(tmp_path / "live", writable=True)
    again.add(episode(100, 5))
    again.save()
    np.testing.assert_array_equal(len(rlds2buf.load_buffer(tmp_path / "live")), 8)


@pytest.mark.parametrize(
    ("entry", "value", "match"),
    [("version", "1", "version should be an integer, got '1'"), ("options", {"beta": "x"}, "no buffer of kind")],
)
def test_what_a_manifest_says_wrong_is_said_with_its_folder(
    two: tuple[Path, Path], entry: str, value: Any, match: str
) -> None:
    mine, _ = two
    rewrite(mine, lambda manifest: manifest.update({entry: value}))
    with pytest.raises(SnapshotCorrupt, match=match) as raised:
        rlds2buf.load_buffer(mine)
    assert str(raised.value).startswith(str(mine))
