"""HDF5 files that lead elsewhere, and files that become shorter while they are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rlds2buf
from rlds2buf import LimitExceeded, SourceFormatError
from rlds2buf.codecs.hdf5.reading import open_hdf5
from tests.cli.run import run

ROWS = 400


def d4rl(path: Path, observations: Any = None, rows: int = ROWS, **options: Any) -> Path:
    """A D4RL file of episodes of 20 rows; without `observations` if that is False."""
    with h5py.File(path, "w") as file:
        if observations is not False:
            given = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) if observations is None else observations
            file.create_dataset("observations", data=given, **options)
        file.create_dataset("actions", data=np.ones((rows, 2), np.float32), **options)
        file.create_dataset("rewards", data=np.ones(rows, np.float32), **options)
        file["terminals"] = np.arange(rows) % 20 == 19
    return path


def other(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file["k"] = np.full((ROWS, 3), 7, np.float32)
        file["group/q"] = np.full((ROWS, 3), 7, np.float32)
    return path


def external_link(path: Path, there: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["observations"] = h5py.ExternalLink(os.path.relpath(there, path.parent), "/k")


def external_group(path: Path, there: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["observations"] = h5py.ExternalLink(str(there), "/group")


def soft_to_external(path: Path, there: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["away"] = h5py.ExternalLink(str(there), "/")
        file["observations"] = h5py.SoftLink("/away/k")


def external_storage(path: Path, there: Path) -> None:
    there.write_bytes(np.full((ROWS, 3), 7, np.float32).tobytes())
    with h5py.File(path, "r+") as file:
        file.create_dataset("observations", (ROWS, 3), "f4", external=[(str(there), 0, ROWS * 12)])


def virtual(path: Path, there: Path) -> None:
    layout = h5py.VirtualLayout((ROWS, 3), np.float32)
    layout[:] = h5py.VirtualSource(str(there), "k", (ROWS, 3))
    with h5py.File(path, "r+") as file:
        file.create_virtual_dataset("observations", layout)


WAYS = [external_link, external_group, soft_to_external, external_storage, virtual]


def first(observation: Any) -> np.ndarray:
    return observation["q"] if isinstance(observation, dict) else observation


@pytest.mark.parametrize("way", WAYS)
class TestOtherFiles:
    def test_outside_is_refused(
        self, tmp_path: Path, way: Callable[[Path, Path], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "set").mkdir()
        path = d4rl(tmp_path / "set" / "a.hdf5", False)
        way(path, other(tmp_path / "elsewhere" / "b.hdf5"))
        with pytest.raises(SourceFormatError, match="no file in the dataset's folder; external='allow' reads it"):
            list(rlds2buf.open_source(path))
        result = run(capsys, "convert", path, tmp_path / "out")
        assert result.code == 3 and "-O external=allow" in result.err and not (tmp_path / "out").exists()

    def test_outside_is_allowed_by_an_option(
        self, tmp_path: Path, way: Callable[[Path, Path], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "set").mkdir()
        path = d4rl(tmp_path / "set" / "a.hdf5", False)
        way(path, other(tmp_path / "elsewhere" / "b.hdf5"))
        for episode in rlds2buf.open_source(path, external="allow"):
            assert (first(episode.observation)[:-1] == 7).all()
        assert run(capsys, "convert", path, tmp_path / "out", "-O", "external=allow").code == 0

    def test_inside_the_folder_is_read_right(self, tmp_path: Path, way: Callable[[Path, Path], None]) -> None:
        path = d4rl(tmp_path / "a.hdf5", False)
        way(path, other(tmp_path / "b.hdf5"))
        episodes = list(rlds2buf.open_source(path))
        assert len(episodes) == 20
        for episode in episodes:
            assert (first(episode.observation)[:-1] == 7).all()

    def test_a_link_in_the_folder_that_leads_out(self, tmp_path: Path, way: Callable[[Path, Path], None]) -> None:
        (tmp_path / "set").mkdir()
        path = d4rl(tmp_path / "set" / "a.hdf5", False)
        there = other(tmp_path / "elsewhere" / "b.hdf5")
        way(path, there)
        link = tmp_path / "set" / "b.hdf5"
        os.symlink(there, link)
        with h5py.File(path, "r+") as file:
            for name in ("observations", "away"):
                if name in file:
                    del file[name]
        if way is not external_storage:
            way(path, link)
        else:
            with h5py.File(path, "r+") as file:
                file.create_dataset("observations", (ROWS, 3), "f4", external=[(str(link), 0, ROWS * 12)])
        with pytest.raises(SourceFormatError, match="no file in the dataset's folder"):
            list(rlds2buf.open_source(path))


def test_a_virtual_dataset_of_one_that_lies_outside(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    path = d4rl(tmp_path / "set" / "a.hdf5", False)
    inner = tmp_path / "set" / "inner.hdf5"
    layout = h5py.VirtualLayout((ROWS, 3), np.float32)
    layout[:] = h5py.VirtualSource(str(other(tmp_path / "elsewhere" / "b.hdf5")), "k", (ROWS, 3))
    with h5py.File(inner, "w") as file:
        file.create_virtual_dataset("k", layout)
    virtual(path, inner)
    with pytest.raises(SourceFormatError, match="no file in the dataset's folder"):
        list(rlds2buf.open_source(path))


def test_virtual_datasets_of_each_other(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "a.hdf5", False)
    with h5py.File(path, "r+") as file:
        for name, source in (("observations", "x"), ("x", "observations")):
            layout = h5py.VirtualLayout((ROWS, 3), np.float32)
            layout[:] = h5py.VirtualSource(".", source, (ROWS, 3))
            file.create_virtual_dataset(name, layout)
    with rlds2buf.open_source(path) as source:
        assert source.num_episodes == 20


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "a.hdf5", False)
    os.mkfifo(tmp_path / "pipe")
    external_link(path, tmp_path / "pipe")
    with pytest.raises(SourceFormatError, match="no file in the dataset's folder"):
        rlds2buf.open_source(path, format="d4rl")


def test_links_inside_the_file_are_followed(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "a.hdf5", False)
    with h5py.File(path, "r+") as file:
        file["kept/values"] = np.full((ROWS, 3), 7, np.float32)
        file["short"] = h5py.SoftLink("kept")
        file["observations"] = h5py.SoftLink("/short/values")
    for episode in rlds2buf.open_source(path):
        assert (episode.observation[:-1] == 7).all()


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "a.hdf5", False)
    with h5py.File(path, "r+") as file:
        file["observations"] = h5py.SoftLink("/x")
        file["x"] = h5py.SoftLink("/observations")
    with pytest.raises(SourceFormatError, match="needs `observations`"):
        rlds2buf.open_source(path, format="d4rl")


def test_external_takes_one_of_two_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="external must be one of refuse, allow"):
        rlds2buf.open_source(d4rl(tmp_path / "a.hdf5"), external="yes")


# -- formats with a group for each episode ------------------------------------------------------


def robomimic(path: Path, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for demo in range(30):
            group = file.create_group(f"data/demo_{demo}")
            for name in ("obs/eef", "next_obs/eef"):
                group.create_dataset(name, data=np.ones((200, 8), np.float32), **options)
            group.create_dataset("actions", data=np.ones((200, 4), np.float32), **options)
    return path


def d3rlpy(path: Path, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"], file["version"] = 30, "2.1"
        for i in range(30):
            for name in ("observations", "actions", "rewards"):
                file.create_dataset(f"{name}_{i}", data=np.ones((200, 8 if name != "rewards" else 1), "f4"), **options)
            file[f"terminated_{i}"] = False
    return path


def minari(path: Path, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for i in range(30):
            group = file.create_group(f"episode_{i}")
            group.create_dataset("observations", data=np.ones((201, 8), np.float32), **options)
            for name in ("actions", "rewards"):
                group.create_dataset(name, data=np.ones(200, np.float32), **options)
            for name in ("terminations", "truncations"):
                group[name] = np.arange(200) == 199
    path.with_name("metadata.json").write_text('{"data_format": "hdf5", "total_episodes": 30}')
    return path


KINDS = [robomimic, d3rlpy, minari]
FIRST = {"robomimic": "data/demo_3/obs/eef", "d3rlpy": "observations_3", "minari": "episode_3/observations"}


@pytest.mark.parametrize("make", KINDS)
def test_an_episodes_column_elsewhere(tmp_path: Path, make: Callable[..., Path]) -> None:
    (tmp_path / "set").mkdir()
    path = make(tmp_path / "set" / ("main_data.hdf5" if make is minari else "a.hdf5"))
    with h5py.File(path, "r+") as file:
        shape = file[FIRST[make.__name__]].shape
        del file[FIRST[make.__name__]]
        file[FIRST[make.__name__]] = h5py.ExternalLink(str(tmp_path / "b.hdf5"), "/k")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file["k"] = np.full(shape, 7, np.float32)
    with pytest.raises(SourceFormatError, match="no file in the dataset's folder"):
        list(rlds2buf.open_source(path))
    episodes = list(rlds2buf.open_source(path, external="allow"))
    found = episodes[3].observation
    assert ((found["eef"] if make is robomimic else found)[:199] == 7).all()


# -- files that become shorter ------------------------------------------------------------------


def cut_while_read(path: Path) -> Iterator[Any]:
    items = rlds2buf.open_source(path).batches(rows=400)
    yield from next(items)
    os.truncate(path, path.stat().st_size // 4)
    for batch in items:
        yield from batch


@pytest.mark.parametrize("options", [{}, {"chunks": True}, {"chunks": True, "compression": "gzip"}], ids=str)
@pytest.mark.parametrize("make", [d4rl, *KINDS])
def test_a_file_cut_short_while_it_is_read(tmp_path: Path, make: Callable[..., Path], options: Any) -> None:
    """Never zeros: they were as many as there were rows behind the cut."""
    path = make(tmp_path / ("main_data.hdf5" if make is minari else "a.hdf5"), **options)
    if make is d4rl:
        d4rl(path, rows=300_000, **options)
    with pytest.raises(SourceFormatError, match=r"shorter while it was read|can't be read|damaged|cut short"):
        for episode in cut_while_read(path):
            own = episode.observation["eef"] if make is robomimic else episode.observation
            assert own[1:-1].any(axis=-1).all()


def test_a_linked_file_cut_short(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "a.hdf5", False)
    external_link(path, other(tmp_path / "b.hdf5"))
    with open_hdf5(path) as file:
        dataset = file.get("observations")
        os.truncate(tmp_path / "b.hdf5", 3000)
        with pytest.raises(SourceFormatError, match=r"b\.hdf5: became shorter"):
            file.rows(dataset, 0, ROWS)


# -- what small files claim ---------------------------------------------------------------------


def test_external_storage_that_is_not_there(tmp_path: Path) -> None:
    """Zeros without end, by way of a device."""
    path = d4rl(tmp_path / "a.hdf5", False)
    with h5py.File(path, "r+") as file:
        size = ROWS * (1 << 24)
        file.create_dataset("observations", (ROWS, 1 << 24), "u1", external=[("/dev/null", 0, size)])
    with pytest.raises(SourceFormatError, match="no file in the dataset's folder"):
        rlds2buf.open_source(path)
    with pytest.raises(SourceFormatError, match="more than the 0 bytes that its files hold"):
        rlds2buf.open_source(path, external="allow")


@pytest.mark.parametrize("external", ["refuse", "allow"])
@pytest.mark.parametrize("name", ["gone.hdf5", "/nowhere/gone.hdf5", "without.hdf5"])
def test_a_virtual_dataset_of_what_is_not_there(tmp_path: Path, name: str, external: str) -> None:
    """The library gives zeros for it."""
    path = d4rl(tmp_path / "a.hdf5", False)
    with h5py.File(tmp_path / "without.hdf5", "w") as file:
        file.create_group("k")
    virtual(path, Path(name))
    with pytest.raises(SourceFormatError, match=r"is not there|no such dataset is"):
        list(rlds2buf.open_source(path, external=external))


def test_a_virtual_dataset_that_was_moved_with_its_source(tmp_path: Path) -> None:
    """The library looks in the file's own folder too."""
    path = d4rl(tmp_path / "a.hdf5", False)
    virtual(path, Path("/nowhere") / other(tmp_path / "b.hdf5").name)
    for episode in rlds2buf.open_source(path):
        assert set(episode.observation[:-1].ravel().tolist()) == {7.0}


def test_a_virtual_dataset_of_nothing(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "a.hdf5", False)
    with h5py.File(path, "r+") as file:
        file.create_virtual_dataset("observations", h5py.VirtualLayout((ROWS, 1 << 23), "u1"))
    with pytest.raises(LimitExceeded, match=r"the limit is 1,073,741,824; max_bytes=3355443200 \(--max-bytes\)"):
        rlds2buf.open_source(path)


@pytest.mark.parametrize("make", KINDS)
def test_an_episode_that_is_mostly_compression(tmp_path: Path, make: Callable[..., Path]) -> None:
    path = make(tmp_path / ("main_data.hdf5" if make is minari else "a.hdf5"), chunks=True, compression="gzip")
    with pytest.raises(LimitExceeded, match=r"max_bytes=\d+ \(--max-bytes\) allows it"):
        list(rlds2buf.open_source(path, max_bytes=6_000))
    assert len(list(rlds2buf.open_source(path, max_bytes=20_000))) == 30


def test_an_episode_that_is_mostly_compression_in_a_table(tmp_path: Path) -> None:
    path = d4rl(tmp_path / "a.hdf5", np.zeros((ROWS, 100), np.float32), chunks=True, compression="gzip")
    assert len(list(rlds2buf.open_source(path, max_bytes=20_000))) == 20  # 20 rows of 412 bytes at a time
    assert sum(len(batch.rows) for batch in rlds2buf.open_source(path, max_bytes=20_000).batches()) == ROWS + 20
    with h5py.File(path, "r+") as file:
        file["terminals"][:-1] = False
    with pytest.raises(LimitExceeded, match=r"with the rest of its record.*max_bytes=\d+ \(--max-bytes\) allows it"):
        list(rlds2buf.open_source(path, max_bytes=20_000))


def test_what_lies_in_the_file_as_it_is_may_be_of_any_size(tmp_path: Path) -> None:
    for make in (d4rl, robomimic, d3rlpy):
        assert list(rlds2buf.open_source(make(tmp_path / "a.hdf5"), max_bytes=2_000))


def test_one_dataset_by_many_names(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        group = file["data/demo_0"]
        group["large"] = np.zeros((200, 1 << 12), np.float32)
        for i in range(20):
            group[f"again{i}"] = group["large"]
    with pytest.raises(LimitExceeded, match="with the rest of its record"):
        list(rlds2buf.open_source(path, max_bytes=1 << 24))


@pytest.mark.parametrize("link", ["hard", "soft"])
@pytest.mark.parametrize("make", [d4rl, minari, robomimic])
def test_groups_that_are_there_twice_at_each_level(tmp_path: Path, make: Callable[..., Path], link: str) -> None:
    """28 groups, 2 ** 28 paths."""
    path = make(tmp_path / ("main_data.hdf5" if make is minari else "a.hdf5"))
    with h5py.File(path, "r+") as file:
        top = file.require_group(
            {"d4rl": "infos", "minari": "episode_0/infos", "robomimic": "data/demo_0"}[make.__name__]
        )
        below = file.create_group("zz0") if make is d4rl else top.create_group("zz0")
        below["x"] = np.zeros(ROWS)
        for i in range(1, 28):
            group = (file if make is d4rl else top).create_group(f"zz{i}")
            for name in "ab":
                group[name] = below if link == "hard" else h5py.SoftLink(below.name)
            below = group
        if make is d4rl:
            top["zz"] = below
    with pytest.raises(SourceFormatError, match="the same group as"):
        list(rlds2buf.open_source(path))


def test_more_groups_than_are_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = d4rl(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        for i in range(50):
            file[f"infos/x{i}"] = np.zeros(ROWS)
    with pytest.raises(LimitExceeded, match=r"infos.* made of 51 things, and the limit is 50; .*\(--max-objects\)"):
        rlds2buf.open_source(path, max_objects=50)
    assert run(capsys, "inspect", path, "--max-objects", "50").code == 3
    assert run(capsys, "inspect", path, "--max-objects", "51", "--max-bytes", "1MiB").code == 0


@pytest.mark.parametrize("given", ["0", "-1", "much", "1.5"])
def test_limits_that_are_none(tmp_path: Path, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "inspect", d4rl(tmp_path / "a.hdf5"), "--max-bytes", given).code == 2


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_objects": -5}, {"max_bytes": "1GB"}, {"max_bytes": 1.5}])
def test_limits_that_are_none_in_python(tmp_path: Path, limits: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(limits))} must be"):
        rlds2buf.open_source(d4rl(tmp_path / "a.hdf5"), **limits)


def test_a_group_where_a_value_belongs(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("version")
    with (
        open_hdf5(tmp_path / "a.h5") as opened,
        pytest.raises(SourceFormatError, match="/version is a group, where a value belongs"),
    ):
        opened.value(opened.root["version"])
