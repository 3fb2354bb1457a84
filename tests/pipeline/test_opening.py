"""Telling formats by looking, and saying what was seen."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, SourceError, SourceFormatError, SourceNotFound, open_source
from rlds2buf.formats import registry
from rlds2buf.formats.d4rl.source import D4rlHdf5Source
from rlds2buf.formats.memory.source import MemorySource
from rlds2buf.formats.minari.source import MinariDirSource
from rlds2buf.formats.rlds.source import RldsDirSource
from rlds2buf.io.sink import Sink
from rlds2buf.io.source import Source
from tests.data import D4RL, DATA, MINARI
from tests.made import BOTH, MADE

STEPS = [{"observation": 0.0, "action": 1}, {"observation": 1.0, "action": 0}]
CARTPOLE = MADE / "minari/cartpole/random-v0"


class TestFound:
    @BOTH
    @pytest.mark.parametrize("name", D4RL)
    def test_d4rl(self, sets: Any, name: str) -> None:
        assert type(open_source(sets / name)) is D4rlHdf5Source

    @pytest.mark.parametrize("end", ["", "data", "data/main_data.hdf5"])
    @pytest.mark.parametrize("name", MINARI)
    @BOTH
    def test_minari(self, sets: Any, name: str, end: str) -> None:
        assert type(open_source(str(sets / name / end))) is MinariDirSource

    @pytest.mark.parametrize(
        "name",
        [
            "bridge_dataset",
            "bridge_dataset/1.0.0",
            "d4rl_mujoco_hopper/v0-medium",
            "d4rl_mujoco_hopper/v2-medium/1.2.0",
            "rlu_control_suite",
            "robomimic_ph/lift_ph_low_dim/1.0.1",
        ],
    )
    @BOTH
    def test_rlds(self, sets: Any, name: str) -> None:
        assert type(open_source(sets / f"rlds/{name}")) is RldsDirSource

    def test_rlds_with_a_split(self) -> None:
        source = open_source(MADE / "rlds/bridge_dataset", split="train[:2]")
        assert source.num_episodes == 2

    @pytest.mark.parametrize(
        "data", [[STEPS], (STEPS,), iter([STEPS]), [Episode(observation=np.zeros(2))], [{"steps": STEPS}]]
    )
    def test_memory(self, data: Any) -> None:
        source = open_source(data)
        assert type(source) is MemorySource
        assert [episode.num_steps for episode in source] == [2]

    def test_an_open_source_is_itself(self) -> None:
        source = MemorySource([STEPS])
        assert open_source(source) is source
        for options in ({"split": "train"}, {"format": "memory"}, {"infos": False}):
            with pytest.raises(ValueError, match="open already"):
                open_source(source, **options)  # type: ignore[arg-type]

    def test_options_reach_the_source(self) -> None:
        source = open_source(MADE / "d4rl/pen-human-v1.hdf5", max_episode_steps=50, infos=False)
        assert source.num_episodes == 8 and source.spec.extras == {}

    def test_a_name_can_lie(self, tmp_path: Path) -> None:
        """The content decides, not the ending."""
        path = Path(shutil.copy(MADE / "d4rl/hopper_medium.hdf5", tmp_path / "hopper.tfrecord"))
        assert type(open_source(path)) is D4rlHdf5Source

    def test_a_user_block_before_the_hdf5(self, tmp_path: Path) -> None:
        path = tmp_path / "a.h5"
        with h5py.File(path, "w", userblock_size=1024) as file:
            for name in ("observations", "actions", "rewards"):
                file[name] = np.arange(3.0)
            file["terminals"] = np.array([False, False, True])
        with open(path, "r+b") as raw:
            raw.write(b"made by hand\n")
        (episode,) = open_source(path)
        assert episode.observation.tolist() == [0, 1, 2, 0]

    def test_the_home_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copy(MADE / "d4rl/hopper_medium.hdf5", tmp_path / "a.hdf5")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert open_source("~/a.hdf5").num_episodes == 2

    def test_format_says_what_looking_would_not(self, tmp_path: Path) -> None:
        path = tmp_path / "a.hdf5"
        with h5py.File(path, "w") as file:
            file["actions"] = np.zeros(3)
        with pytest.raises(SourceFormatError, match="not a recognised dataset"):
            open_source(path)
        with pytest.raises(SourceFormatError, match="needs `observations`, `rewards`, `terminals`; it holds actions"):
            open_source(path, format="d4rl")


class TestUsage:
    @pytest.mark.parametrize("uri", [MADE / "d4rl/hopper_medium.hdf5", CARTPOLE, [STEPS]])
    def test_a_split_where_there_are_none(self, uri: Any) -> None:
        with pytest.raises(ValueError, match="has no splits, got split='train'"):
            open_source(uri, split="train")

    @pytest.mark.parametrize(
        ("uri", "offered"),
        [
            (MADE / "d4rl/hopper_medium.hdf5", "external, infos, max_episode_steps, reward_shift"),
            (CARTPOLE, "external, images, infos, resize"),
            (MADE / "rlds/bridge_dataset", "check_crc"),
            ([STEPS], "none"),
        ],
    )
    def test_an_option_that_the_format_does_not_have(self, uri: Any, offered: str) -> None:
        with pytest.raises(TypeError, match=f"takes no option 'colour'; its options: {offered}"):
            open_source(uri, colour="red")

    def test_an_unknown_format(self) -> None:
        with pytest.raises(
            ValueError,
            match=r"unknown format 'hdf5'; it is one of .*d4rl, .*memory, minari, .*rlds",
        ):
            open_source("x", format="hdf5")

    def test_a_format_that_is_no_path(self) -> None:
        with pytest.raises(TypeError, match=r"a tf\.data\.Dataset is not read from a path"):
            open_source(MADE / "d4rl/hopper_medium.hdf5", format="tf.data")
        with pytest.raises(TypeError, match="a D4RL HDF5 file is read from a path, got list"):
            open_source([STEPS], format="d4rl")

    @pytest.mark.parametrize(
        "uri", [3, None, b"a.hdf5", {"steps": STEPS}, np.zeros((3, 2)), Episode(observation=[1.0])]
    )
    def test_what_is_no_source(self, uri: Any) -> None:
        with pytest.raises(TypeError, match="a source is a path or a list of paths, an address"):
            open_source(uri)

    def test_every_entry_names_itself_as_its_source_does(self) -> None:
        names = [entry.name for entry in registry.BUILT_IN]
        assert len(set(names)) == len(names) and {"rlds", "minari", "d4rl"} <= set(names)
        for entry in registry.BUILT_IN:
            if entry.source is not None:
                cls = registry.source_class(entry)
                assert isinstance(cls, type) and issubclass(cls, Source) and cls.format == entry.name
                taken = set(inspect.signature(cls).parameters)
                passed = {"budget", "columns", "optional", "repair", "reward_shift"}
                assert taken & passed == set(entry.takes) and ("split" in taken) == entry.has_splits
            if entry.sink is not None:
                assert issubclass(registry.sink_class(entry), Sink)


def make(path: Path, content: Any) -> Path:
    """A file of bytes, a JSON file, or a folder of such."""
    if isinstance(content, dict):
        path.mkdir()
        for name, child in content.items():
            make(path / name, child)
    else:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("robosuite-wipe-demo.hdf5", "a robosuite or robomimic file .* neither observations nor rewards"),
            ("antmaze-medium-play-v0_0.tfrecord", "TF-Agents' own transition records"),
            ("antmaze-medium-play-v0_0.tfrecord.spec", "TF-Agents' own transition records"),
            ("", "TF-Agents' own transition records"),
        ],
    )
    def test_real_files_that_are_known(self, name: str, message: str) -> None:
        with pytest.raises(SourceFormatError, match=message) as caught:
            open_source(DATA / f"negative/{name}")
        assert str(DATA / f"negative/{name}") in str(caught.value)

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound, match=r"no such file or directory$"):
            open_source(tmp_path / "none")
        with pytest.raises(FileNotFoundError):
            open_source("/no/such/place")

    def test_a_slip_of_the_pen(self) -> None:
        with pytest.raises(SourceNotFound, match=r"is it .*/hopper_medium\.hdf5\?"):
            open_source(MADE / "d4rl/hoper_medium.hdf5")

    def test_a_name_that_can_not_be(self) -> None:
        for name in ("x" * 5000, "a\x00b", ""):
            with pytest.raises((SourceNotFound, SourceFormatError)):
                open_source(name)

    def test_addresses(self) -> None:
        with pytest.raises(SourceError, match="gs:// is not read"):
            open_source("gs://bucket/dataset")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({}, "a folder that is empty"),
            (b"", "an empty file"),
            (b"hello", "a text file of 5 bytes"),
            ({"a.txt": b"", "b": {}}, "a folder containing a.txt, b"),
            ({f"{i}.txt": b"" for i in range(9)}, "a folder containing 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 4 more"),
            ([1, 2], "a JSON file of 6 bytes"),
            (b"\x89PNG\r\n\x1a\n" + bytes(8), "a file of 16 bytes that begins with 89 50 4e 47 0d 0a 1a 0a"),
            (gzip.compress(b"x", mtime=0), "gzip-compressed data; unpack it first"),
            (pickle.dumps([1, 2]), "a Python pickle, which is never loaded"),
            (
                {"manifest.json": b'{"format": "rlds2buf-buffer"}'},
                r"manifest\.json: version should be an integer, got None",
            ),
            ({"x.tfrecord-00000-of-00001": b""}, r"record shards without the features\.json"),
            (
                {"namespace_metadata.json": b"{}", "x": {}},
                "a Minari namespace; name one of its datasets: there is none",
            ),
        ],
    )
    def test_what_was_seen_is_said(self, tmp_path: Path, content: Any, message: str) -> None:
        path = make(tmp_path / "it", content)
        with pytest.raises(SourceFormatError, match=message) as caught:
            open_source(path)
        assert str(path) in str(caught.value)

    def test_a_zip(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("x", "y")
        with pytest.raises(SourceFormatError, match="found a zip archive"):
            open_source(tmp_path / "a.zip")

    def test_another_hdf5_file(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["weights/0"] = np.zeros(3)
        with pytest.raises(SourceFormatError, match="found an HDF5 file containing weights"):
            open_source(tmp_path / "a.h5")
        with h5py.File(tmp_path / "b.h5", "w"):
            pass
        with pytest.raises(SourceFormatError, match="found an HDF5 file that holds nothing"):
            open_source(tmp_path / "b.h5")

    def test_an_hdf5_file_that_is_cut_short(self, tmp_path: Path) -> None:
        whole = (MADE / "d4rl/hopper_medium.hdf5").read_bytes()
        path = make(tmp_path / "a.hdf5", whole[: len(whole) // 2])
        with pytest.raises(SourceFormatError, match="cut short"):
            open_source(path)

    def test_a_robomimic_file(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a.hdf5", "w") as file:
            file["data/demo_0/obs/flat"] = np.zeros((3, 2))
            file["data/demo_0/actions"] = np.zeros((3, 1))
        assert open_source(tmp_path / "a.hdf5").format == "robomimic"
        with h5py.File(tmp_path / "a.hdf5", "a") as file:
            del file["data/demo_0/obs"]
        with pytest.raises(SourceFormatError, match=r"a robosuite or robomimic file .* without observations"):
            open_source(tmp_path / "a.hdf5")

    def test_one_shard(self) -> None:
        (shard,) = (MADE / "rlds/bridge_dataset/1.0.0").glob("*.tfrecord*")
        with pytest.raises(SourceFormatError, match=f"one shard of an RLDS folder; name the folder: {shard.parent}"):
            open_source(shard)

    def test_a_folder_of_datasets(self) -> None:
        with pytest.raises(
            SourceFormatError, match=r"several datasets; name one of them: antmaze-umaze-v0\.hdf5, door"
        ):
            open_source(MADE / "d4rl")
        with pytest.raises(SourceFormatError, match="a Minari namespace; name one of its datasets: random-v0"):
            open_source(MADE / "minari/cartpole")

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(SourceFormatError, match="neither a file nor a folder"):
            open_source(tmp_path / "pipe")
        with pytest.raises(SourceFormatError, match="not a file"):
            open_source(tmp_path / "pipe", format="d4rl")

    def test_links_in_a_circle(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to(tmp_path / "a")
        (tmp_path / "b").mkdir()
        (tmp_path / "b/again").symlink_to(tmp_path / "b")
        with pytest.raises(SourceNotFound):
            open_source(tmp_path / "a")
        with pytest.raises(SourceFormatError, match="a folder containing again"):
            open_source(tmp_path / "b")


def test_opening_a_list_loads_no_library() -> None:
    code = (
        "import sys, rlds2buf; rlds2buf.open_source([[{'observation': 1.0}]]);"
        "print(sorted({'tensorflow', 'h5py', 'numba', 'PIL', 'reverb', 'grpc'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_open_source_is_public() -> None:
    assert rlds2buf.open_source is open_source


def test_a_folder_of_several_datasets_lists_them(tmp_path: Path) -> None:
    episode = Episode(observation=np.arange(3), is_terminal=[False, False, True])
    for name in ("one", "two"):
        rlds2buf.convert([episode], tmp_path / name, to="rlds")
    with pytest.raises(SourceFormatError, match="a folder of several datasets; name one of them: one, two"):
        open_source(tmp_path)


def test_datasets_at_different_depths_are_listed(tmp_path: Path) -> None:
    episode = Episode(observation=np.arange(3), action=np.zeros(3), is_terminal=[False, False, True])
    for name in ("plain/1.0.0", "configs/small/1.0.0"):
        rlds2buf.convert([episode], tmp_path / "rlds" / name, to="rlds")
    rlds2buf.convert([episode], tmp_path / "minari" / "door" / "human-v0", to="minari")
    rlds2buf.convert([episode], tmp_path / "minari" / "pen" / "human-v0", to="minari")
    for folder, held in {
        "rlds": "configs, plain",
        "minari": "door/human-v0, pen/human-v0",
        ".": "minari/door/human-v0, minari/pen/human-v0, rlds/configs, rlds/plain",
    }.items():
        with pytest.raises(SourceFormatError, match=f"a folder of several datasets; name one of them: {held}$"):
            open_source(tmp_path / folder)
        for name in held.split(", "):
            assert open_source(tmp_path / folder / name).num_episodes == 1
    (tmp_path / "rlds/configs/b.hdf5").write_bytes(b"")  # beside a single config, what is no dataset
    assert open_source(tmp_path / "rlds/configs").format == "rlds"
    (tmp_path / "rlds/configs/log.csv").write_text("obs,act,terminated\n1,1,1\n")
    with pytest.raises(SourceFormatError, match=r"name one of them: log\.csv, small$"):
        open_source(tmp_path / "rlds/configs")


def test_files_inside_of_a_dataset_that_is_not_known_are_not_proposed(tmp_path: Path) -> None:
    (tmp_path / "set/meta").mkdir(parents=True)
    (tmp_path / "set/meta/tasks.jsonl").write_text("{}\n")
    (tmp_path / "set/meta/about.json").write_text("{}\n")
    with pytest.raises(SourceFormatError, match="not a recognised dataset: found a folder containing meta; closest:"):
        open_source(tmp_path / "set")


def test_a_file_that_is_not_known_gets_the_closest_formats(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["obs"] = np.zeros(3)
    with pytest.raises(SourceFormatError) as caught:
        open_source(tmp_path / "a.hdf5")
    assert "closest: d4rl (observations, actions, rewards and terminals at the top), robomimic" in str(caught.value)
    assert len(str(caught.value).replace(str(tmp_path), "")) < 250


def test_a_log_that_only_has_names_of_rllib_is_a_log(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"eps_id": 0, "obs": [1.0], "actions": 0, "reward": 1.0}\n' * 2)
    with open_source(tmp_path / "log.jsonl") as source:
        assert source.format == "jsonl"


@pytest.mark.parametrize("name", ["map", "cast"])
def test_a_mapping_is_a_mapping(name: str) -> None:
    episode = Episode(observation=np.arange(3), is_terminal=[False, False, True])
    with pytest.raises(TypeError, match=f"{name}: expected a dict"):
        open_source([episode], **{name: "a=b"})
