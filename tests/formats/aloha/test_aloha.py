"""ALOHA's files: as ACT's and Mobile ALOHA's scripts write them, broken ones, and written."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from rlds2buf import (
    Episode,
    EpisodeError,
    SinkError,
    SnapshotExists,
    SourceError,
    SourceFormatError,
    SourceNotFound,
    open_source,
    spec_of,
    validate,
)
from rlds2buf.codecs.images.decode import decode_image
from rlds2buf.formats.aloha.sink import AlohaSink
from rlds2buf.formats.aloha.source import AlohaSource
from rlds2buf.io.sink import Sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.contracts.source import MakeSource, SourceContract
from tests.differences import assert_only_lost

CAMERAS = ("top", "angle")
LENGTHS = {10: 4, 2: 6, 0: 3}


def columns(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    pictures = {
        f"observations/images/{name}": rng.integers(0, 256, (rows, 12, 16, 3)).astype(np.uint8) for name in CAMERAS
    }
    return {
        "observations/qpos": rng.normal(size=(rows, 14)),
        "observations/qvel": rng.normal(size=(rows, 14)),
        "action": rng.normal(size=(rows, 14)).astype(np.float32),
        **pictures,
    }


def write(path: Path, held: Mapping[str, np.ndarray], *, sim: bool = True, compress: bool = False) -> Path:
    """As record_sim_episodes.py; with `compress` as Mobile ALOHA's record_episodes.py."""
    with h5py.File(path, "w") as root:
        root.attrs["sim"] = sim
        if compress:
            root.attrs["compress"] = True
        lengths = []
        for name, column in held.items():
            if compress and "/images/" in name:
                files = [jpeg(frame) for frame in column]
                lengths.append(list(map(len, files)))
                column = np.zeros((len(files), max(lengths[-1])), np.uint8)
                for row, file in zip(column, files, strict=True):
                    row[: len(file)] = np.frombuffer(file, np.uint8)
            root.create_dataset(name, data=column, chunks=(1, *column.shape[1:]) if "/images/" in name else None)
        if compress:
            root["compress_len"] = np.array(lengths, np.float32)
    return path


def jpeg(frame: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, "JPEG", quality=50)
    return out.getvalue()


@pytest.fixture(params=[False, True], ids=["pixels", "compressed"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "sim_transfer_cube").mkdir()
    for number, rows in LENGTHS.items():
        write(tmp_path / f"sim_transfer_cube/episode_{number}.hdf5", columns(rows, number), compress=request.param)
    return tmp_path / "sim_transfer_cube"


class TestSource(SourceContract):
    @pytest.fixture
    def make_source(self, folder: Path) -> MakeSource:
        return lambda: open_source(folder)

    @pytest.fixture
    def change(self, folder: Path) -> Callable[[], Any]:
        return lambda: write(folder / "episode_2.hdf5", columns(6, 99))

    def test_every_value(self, folder: Path) -> None:
        source = open_source(folder)
        assert (source.format, source.num_episodes, source.num_steps) == ("aloha", 3, 13)
        for number, episode in zip(sorted(LENGTHS), source, strict=True):
            with h5py.File(folder / f"episode_{number}.hdf5") as file:
                np.testing.assert_array_equal(episode.action, file["action"][:])
                assert episode.action.dtype == np.float32
                for name in ("qpos", "qvel"):
                    np.testing.assert_array_equal(episode.observation[name], file[f"observations/{name}"][:])
                for name, frames in episode.observation["images"].items():
                    stored = file[f"observations/images/{name}"][:]
                    if stored.ndim == 2:
                        stored = np.stack([decode_image(row.tobytes().rstrip(b"\0"), 3) for row in stored])
                    assert frames.dtype == np.uint8
                    np.testing.assert_array_equal(frames, stored)
            assert set(episode.observation) == {"qpos", "qvel", "images"} and not episode.extras
            assert episode.metadata == {"sim": True} and episode.reward is None
            assert episode.end == "truncated" and episode.derived == {"is_terminal"}
        assert validate(source).ok

    def test_one_file(self, folder: Path) -> None:
        (episode,) = open_source(folder / "episode_10.hdf5")
        assert len(episode) == 4


class TestChoices:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        held = {**columns(5), "base_action": np.arange(10.0).reshape(5, 2), "odd": np.zeros(3)}
        return write(tmp_path / "episode_0.hdf5", held, sim=False, compress=True)

    def test_actions_of_a_real_robot(self, path: Path) -> None:
        """ACT's utils.py: action = root['/action'][max(0, start_ts - 1):] where the file is not of a simulation."""
        source = open_source(path)
        assert any("actions='previous' does so" in text for text in source.warnings())
        (own,), (shifted,) = source, open_source(path, actions="previous")
        expected = [own.action[max(0, row - 1)] for row in range(5)]
        np.testing.assert_array_equal(shifted.action, expected)
        assert not any("actions=" in text for text in open_source(path, actions="previous").warnings())

    def test_channels(self, path: Path) -> None:
        (rgb,), (bgr,) = open_source(path), open_source(path, channels="bgr")
        for name in CAMERAS:
            np.testing.assert_array_equal(bgr.observation["images"][name][..., ::-1], rgb.observation["images"][name])

    def test_pictures_stay_files(self, path: Path) -> None:
        source = open_source(path)
        encoded = source.encoded()
        (files,), (pixels,) = encoded, source
        for name in CAMERAS:
            field = encoded.spec.observation["images"][name]
            assert field.is_string and field.image is not None and field.image.shape == (12, 16, 3)
            decoded = np.stack([decode_image(file, 3) for file in files.observation["images"][name]])
            np.testing.assert_array_equal(decoded, pixels.observation["images"][name])
        assert encoded.spec == open_source(path, images="encoded").spec and encoded.encoded() is encoded
        encoded.spec.check(files)

    def test_further_datasets(self, path: Path) -> None:
        (episode,) = open_source(path)
        assert list(episode.extras) == ["base_action"] and episode.metadata == {"sim": False}

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"actions": "next"}, "actions must be"),
            ({"channels": "hsv"}, "channels must"),
            ({"images": "no"}, "images"),
        ],
    )
    def test_wrong_options(self, path: Path, options: dict[str, str], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            open_source(path, **options)


class TestWrong:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"observations/qpos": np.zeros((3, 14))}, r"observation/qpos: 3 rows, but 4 actions"),
            ({"action": np.zeros((0, 14))}, "`action` has no rows"),
            ({"observations/qvel": None}, r"observation/qvel: the field is missing"),
            ({"observations/effort": np.zeros((4, 14))}, r"observation/effort: the field is not in the spec"),
            ({"action": np.zeros((4, 7), np.float32)}, r"action: expected float32\[14\], got float32\[7\]"),
            ({"action": None}, r"an ALOHA file needs `observations` and `action`; it holds observations"),
        ],
    )
    def test_one_bad_episode_leaves_the_others(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        for number in range(3):
            held = {**columns(4, number), **(changes if number == 1 else {})}
            write(tmp_path / f"episode_{number}.hdf5", {name: col for name, col in held.items() if col is not None})
        first, bad, last = open_source(tmp_path).read()
        assert isinstance(first, Episode) and isinstance(last, Episode) and isinstance(bad, EpisodeError)
        assert bad.episode == 1
        with pytest.raises(EpisodeError, match=message):
            raise bad

    def test_a_damaged_picture(self, tmp_path: Path) -> None:
        path = write(tmp_path / "episode_0.hdf5", columns(4), compress=True)
        with h5py.File(path, "a") as file:
            file["observations/images/top"][2, 4:] = 7
        (bad,) = open_source(path).read()
        assert isinstance(bad, EpisodeError) and (bad.step, bad.path) == (2, "observation/images/top")

    def test_a_file_that_is_cut_short(self, tmp_path: Path) -> None:
        for number in range(3):
            write(tmp_path / f"episode_{number}.hdf5", columns(4, number))
        path = tmp_path / "episode_0.hdf5"
        path.write_bytes(path.read_bytes()[:-500])
        bad, second, third = AlohaSource(tmp_path).read()
        assert isinstance(bad, EpisodeError) and "cut short" in str(bad) and str(path) in str(bad)
        assert isinstance(second, Episode) and isinstance(third, Episode)
        with pytest.raises(SourceFormatError, match="cut short"):
            AlohaSource(path)

    def test_bytes_that_are_no_pictures(self, tmp_path: Path) -> None:
        held = {**columns(4), "observations/images/top": np.ones((4, 50), np.uint8)}
        with pytest.raises(SourceFormatError, match=r"observation/images/top: rows of bytes that are neither"):
            open_source(write(tmp_path / "episode_0.hdf5", held))

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound):
            AlohaSource(tmp_path / "none.hdf5")
        with pytest.raises(SourceNotFound, match=r"no episode_N\.hdf5 in it"):
            AlohaSource(tmp_path)

    @pytest.mark.parametrize("seed", range(8))
    def test_damaged(self, tmp_path: Path, seed: int) -> None:
        path = write(tmp_path / "episode_0.hdf5", columns(6), compress=seed % 2 == 0)
        rng = np.random.default_rng(seed)
        content = bytearray(path.read_bytes())
        for place in rng.integers(0, len(content), 20):
            content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            assert len(list(AlohaSource(path).read())) == 1
        except SourceError:
            pass


class Named(AlohaSink):
    """The counting contract's episodes, with an observation by the name that such files are told by."""

    def open(self, spec: Any, provenance: Mapping[str, Any]) -> None:
        fields = {name: getattr(spec, name) for name in ("action", "reward", "discount", "extras")}
        super().open(type(spec)(**fields, observation={"qpos": spec.observation["count"]}), provenance)

    def write(self, episode: Episode) -> int:
        return super().write(episode.replace(observation={"qpos": episode.observation["count"]}))


class TestSink(SinkContract):
    def make(self, folder: Path) -> Sink:
        return Named(folder / "out")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "out").exists():
            return None
        if not list((folder / "out").iterdir()):
            return []
        return [int(n) for ep in open_source(folder / "out") for n in np.asarray(ep.observation["qpos"])[:-1]]


def make(rows: int, start: int = 0, **changes: Any) -> Episode:
    number = np.arange(start, start + rows)
    frames = np.random.default_rng(start).integers(0, 256, (rows, 6, 8, 3)).astype(np.uint8)
    episode = Episode(
        observation={"qpos": np.stack([number, -number], 1) * 0.5, "images": {"top": frames}},
        action=(number + 1).astype(np.float32)[:, None],
        discount=np.ones(rows, np.float32),
        is_first=np.arange(rows) == 0,
        is_last=np.arange(rows) == rows - 1,
        extras={"base_action": number * 2.0},
        metadata={"sim": True},
    )
    return episode.replace(**changes)


def written(path: Path, episodes: list[Episode], **options: Any) -> Mapping[str, str]:
    sink = AlohaSink(path, **options)
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        sink.write(episode)
    sink.commit()
    return sink.lost()


class TestWriting:
    def test_is_a_folder_as_act_has_it(self, tmp_path: Path) -> None:
        episodes = [make(4), make(1, 10), make(6, 20)]
        lost = dict(written(tmp_path / "out", episodes))
        assert lost == {"metadata/sim": "the format has no place for facts about an episode"}
        for number, episode in enumerate(episodes):
            with h5py.File(tmp_path / f"out/episode_{number}.hdf5") as file:
                assert set(file) == {"observations", "action", "base_action"} and file.attrs["sim"]
                np.testing.assert_array_equal(file["observations/images/top"][:], episode.observation["images"]["top"])
                np.testing.assert_array_equal(file["action"][:], episode.action)
                assert json.loads(file.attrs["rlds2buf"]) == PROVENANCE
        plain = [episode.replace(metadata={}) for episode in episodes]
        assert written(tmp_path / "plain", plain) == {}
        assert_only_lost(plain, open_source(tmp_path / "plain"), {}, added={"metadata/sim"})

    def test_files_come_back(self, folder: Path, tmp_path: Path) -> None:
        before = [episode.replace(metadata={}) for episode in open_source(folder)]
        assert written(tmp_path / "back", before, sim=False) == {}
        assert_only_lost(before, open_source(tmp_path / "back"), {}, added={"metadata/sim"})

    def test_what_has_no_place_is_listed(self, tmp_path: Path) -> None:
        rows = np.arange(4)
        texts = np.array([b"a"] * 4, object)
        extras = {"note": texts, "action": rows, "deep": (rows, rows)}
        episode = make(4, observation=rows * 1.0, extras=extras, reward=rows * 1.0, metadata={}, is_terminal=rows == 3)
        lost = dict(written(tmp_path / "out", [episode]))
        assert lost["observation"] == "it is read back as observation/qpos"
        assert lost["extras/deep/0"] == "it is read back as extras/deep/0" and "text" in lost["extras/note"]
        assert lost.keys() == {
            *("observation", "extras/note", "extras/action", "extras/deep/0", "extras/deep/1", "reward", "is_terminal")
        }

    def test_padding_can_be_left_out(self, tmp_path: Path) -> None:
        episode = make(4, action=np.array([1, 2, 3, 0])[:, None])
        assert "observation" in written(tmp_path / "out", [episode], final_rows=False)
        assert [ep.action.ravel().tolist() for ep in open_source(tmp_path / "out")] == [[1, 2, 3]]

    @pytest.mark.parametrize(
        ("changes", "says"), [({"action": None}, "no action"), ({"observation": None}, "have no observation")]
    )
    def test_refused_before_anything_is_made(self, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
        with pytest.raises(SinkError, match=says):
            AlohaSink(tmp_path / "out").open(spec_of(make(4, **changes)), PROVENANCE)
        assert not list(tmp_path.iterdir())

    def test_overwrites_such_folders_only(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        path.mkdir()
        (path / "holiday.jpg").write_text("sun")
        for overwrite in (False, True):
            with pytest.raises(SnapshotExists):
                written(path, [make(4)], overwrite=overwrite)
        (path / "holiday.jpg").unlink()
        written(path, [make(4), make(4)])
        written(path, [make(3)], overwrite=True)
        assert [len(episode) for episode in open_source(path)] == [3]
