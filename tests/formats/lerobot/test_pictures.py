"""Pictures in rows, frames of videos, parts of vectors."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf.codecs.video.frame_names import runs
from rlds2buf.errors import EpisodeError, LimitExceeded, SourceFormatError
from rlds2buf.formats.lerobot.source import LeRobotDirSource
from tests.codecs.video.videos import moving, write
from tests.formats.lerobot.made import Camera, Made, png, write_v2, write_v3

ACTION = {"dtype": "float32", "shape": [2], "names": None}
FRONT, TOP = "observation.images.front", "observation.images.top"


def with_pictures(
    root: Path, *, names: list[str], shape: list[int], channels: int = 3
) -> tuple[Path, list[np.ndarray]]:
    rng = np.random.default_rng(1)
    frames = [rng.integers(0, 256, (count, 12, 10, channels)).astype(np.uint8) for count in (3, 1, 4)]
    episodes = [
        {"action": np.zeros((len(part), 2), np.float32), FRONT: [png(frame) for frame in part]} for part in frames
    ]
    features = {"action": ACTION, FRONT: {"dtype": "image", "shape": shape, "names": names}}
    return write_v3(root, Made(episodes, features)), frames


@pytest.mark.parametrize(
    ("names", "shape"),
    [(["height", "width", "channels"], [12, 10, 3]), (["channels", "height", "width"], [3, 12, 10])],
)
def test_pictures_in_rows(tmp_path: Path, names: list[str], shape: list[int]) -> None:
    root, frames = with_pictures(tmp_path / "set", names=names, shape=shape)
    with rlds2buf.open_source(root) as source:
        assert repr(source.spec.observation["images"]["front"]) == "FieldSpec(uint8[12, 10, 3])"
        for part, episode in zip(frames, source, strict=True):
            assert np.array_equal(episode.observation["images"]["front"], part)
        encoded = source.encoded()
        assert encoded.spec.observation["images"]["front"].image.shape == (12, 10, 3)
        for part, episode in zip(frames, encoded, strict=True):
            assert episode.observation["images"]["front"].tolist() == [png(frame) for frame in part]
        assert encoded.encoded() is encoded and encoded.fingerprint() != source.fingerprint()
    for threads in (1, 3):
        small = LeRobotDirSource(root, resize=(6, 5), image_threads=threads)
        assert [episode.observation["images"]["front"].shape for episode in small] == [
            (3, 6, 5, 3),
            (1, 6, 5, 3),
            (4, 6, 5, 3),
        ]
    assert "images" not in repr(rlds2buf.open_source(root, drop=["observation"]).spec)


def test_a_damaged_picture_costs_its_episode(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root, _ = with_pictures(tmp_path / "set", names=["height", "width", "channels"], shape=[12, 10, 3])
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for value, why in (({"bytes": b"PNG?", "path": "x"}, "image"), ({"bytes": None, "path": "x.png"}, "path and not")):
        column = table.column(FRONT).to_pylist()
        column[5] = value
        kind = table.schema.field(FRONT).type
        index = table.schema.get_field_index(FRONT)
        pq.write_table(table.set_column(index, FRONT, pa.array(column, kind)), path)
        with rlds2buf.open_source(root) as source:
            first, second, third = source.read()
            assert not isinstance(first, EpisodeError) and not isinstance(second, EpisodeError)
            assert "episode 2, step 1, observation/images/front" in str(third) and why in str(third)
            assert "file-000.parquet" in str(third)


def test_pictures_that_would_take_too_much_memory_are_refused(tmp_path: Path) -> None:
    root, _ = with_pictures(tmp_path / "set", names=["height", "width", "channels"], shape=[12, 10, 3])
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][FRONT]["shape"] = [30_000, 30_000, 3]
    (root / "meta/info.json").write_text(json.dumps(info))
    with rlds2buf.open_source(root) as source, pytest.raises(LimitExceeded):
        list(source.read())


LENGTHS = (7, 5, 9, 6)
CUTS = {FRONT: ((0, 0), (0, 0), (0, 1), (1, 0)), TOP: ((0, 0), (0, 1), (0, 1), (0, 1))}
"""In which video of each camera an episode is: the cameras' files are of their own, and not the data's."""


def with_videos(root: Path, fps: int = 10) -> tuple[Path, dict[str, list[np.ndarray]]]:
    made = Made(
        [{"action": np.full((count, 2), number, np.float32)} for number, count in enumerate(LENGTHS)],
        {"action": ACTION},
        fps=fps,
    )
    frames: dict[str, list[np.ndarray]] = {}
    cameras = {}
    for seed, (name, places) in enumerate(CUTS.items()):
        made.features[name] = {"dtype": "video", "shape": [96, 128, 3], "names": ["height", "width", "channels"]}
        shown = [moving(count, seed=10 * seed + number) for number, count in enumerate(LENGTHS)]
        starts = []
        for number, place in enumerate(places):
            starts.append(sum(LENGTHS[i] for i in range(number) if places[i] == place) / fps)
        for place in dict.fromkeys(places):
            path = root / f"videos/{name}/chunk-{place[0]:03d}/file-{place[1]:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, np.concatenate([shown[i] for i in range(4) if places[i] == place]), "h264", fps=fps)
        cameras[name] = Camera([place[0] for place in places], [place[1] for place in places], starts)
        frames[name] = shown
    return write_v3(root, made, data=[(0, 0), (0, 0), (0, 1), (0, 1)], cameras=cameras), frames


def near(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether both are the same frames, but for what a codec loses."""
    return one.shape == other.shape and float(np.abs(one.astype(int) - other.astype(int)).mean()) < 8


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[np.ndarray]]]:
    return with_videos(tmp_path_factory.mktemp("videos") / "set")


def test_each_camera_has_videos_of_its_own(videos: tuple[Path, dict[str, list[np.ndarray]]]) -> None:
    root, frames = videos
    with rlds2buf.open_source(root) as source:
        episodes = list(source)
        for number, episode in enumerate(episodes):
            for camera in (FRONT, TOP):
                found = episode.observation["images"][camera.rpartition(".")[2]]
                assert near(found, frames[camera][number]), (number, camera)
        (third,) = source.read(2, 3)
        assert np.array_equal(third.observation["images"]["top"], episodes[2].observation["images"]["top"])
        (block,) = source.without(["observation/images/top"]).read_batches(1, 3)
        assert np.array_equal(block.rows.observation["images"]["front"][:5], episodes[1].observation["images"]["front"])
        chosen = list(source.only(lambda i: i in (0, 3)).read())
        assert [episode.index for episode in chosen] == [0, 3]
        assert np.array_equal(chosen[1].observation["images"]["front"], episodes[3].observation["images"]["front"])
    small = LeRobotDirSource(root, resize=24)
    (one,) = small.read(1, 2)
    assert one.observation["images"]["front"].shape == (5, 24, 24, 3)


def test_blocks_are_decoded_ahead_and_to_the_same(videos: tuple[Path, dict[str, list[np.ndarray]]]) -> None:
    root, frames = videos
    for threads in (1, 3):
        blocks = list(LeRobotDirSource(root, image_threads=threads).read_batches(rows=1))
        assert [len(block) for block in blocks] == [1, 1, 1, 1]
        for number, block in enumerate(blocks):
            assert near(block.rows.observation["images"]["front"], frames[FRONT][number])
    begun = LeRobotDirSource(root, image_threads=3).read_batches(rows=1)
    next(begun)
    begun.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("rlds2buf-video")]


def test_frames_by_name(videos: tuple[Path, dict[str, list[np.ndarray]]]) -> None:
    root, _ = videos
    with rlds2buf.open_source(root).with_video_frames() as source:
        field = source.spec.observation["images"]["top"]
        assert field.is_video and field.image.shape == (96, 128, 3)
        (block,) = source.read_batches()
        found = runs(block.rows.observation["images"]["top"])
        assert [(Path(run.path).name, run.first, run.count) for run in found] == [
            ("file-000.mp4", 0, 7),
            ("file-001.mp4", 0, 20),
        ]
        (one,) = source.read(3, 4)
        (run,) = runs(one.observation["images"]["top"])
        assert (run.first, run.count) == (14, 6)


def test_videos_that_are_absent_or_short(tmp_path: Path) -> None:
    root, frames = with_videos(tmp_path / "set")
    path = root / f"videos/{FRONT}/chunk-000/file-001.mp4"
    write(path, frames[FRONT][2][:6], "h264", fps=10)
    for lane in (lambda source: source, lambda source: source.with_video_frames()):
        with lane(rlds2buf.open_source(root)) as source:
            found = list(source.read())
        assert [isinstance(item, EpisodeError) for item in found] == [False, False, True, False]
        assert "episode 2, step 6, observation/images/front" in str(found[2]) and f"{path}: no frame is" in str(
            found[2]
        )
    path.unlink()
    with rlds2buf.open_source(root) as source:
        found = list(source.read())
        assert [isinstance(item, EpisodeError) for item in found] == [False, False, True, False]
        assert str(path) in str(found[2]) and "--drop observation/images/front reads the rest" in str(found[2])
        assert any("1 of 3 videos are not there" in text for text in source.warnings())
        assert source.details()["cameras"][FRONT] == {"files": 3, "absent": 1}
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 82515\n")
    with rlds2buf.open_source(root) as source:
        assert "LFS pointer" in str(list(source.read())[2])


def test_v21_with_a_video_of_each_episode(tmp_path: Path) -> None:
    made = Made([{"action": np.zeros((count, 2), np.float32)} for count in LENGTHS], {"action": ACTION})
    made.features[TOP] = {"dtype": "video", "shape": [3, 96, 128], "names": ["channel", "height", "width"]}
    root = write_v2(tmp_path / "set", made, version="v2.0", chunks_size=3)
    shown = [moving(count, seed=number) for number, count in enumerate(LENGTHS)]
    for number, frames in enumerate(shown):
        path = root / f"videos/chunk-{number // 3:03d}/{TOP}/episode_{number:06d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, frames, "h264", fps=10)
    with rlds2buf.open_source(root) as source:
        for frames, episode in zip(shown, source, strict=True):
            assert near(episode.observation["images"]["top"], frames)


def vectors(root: Path, **features: list[int]) -> Path:
    columns = {name.replace("__", "."): shape for name, shape in features.items()}
    episodes = [
        {
            name: np.arange(4 * int(np.prod(shape)), dtype=np.float32).reshape(4, *shape)
            for name, shape in columns.items()
        }
    ]
    listed = {name: {"dtype": "float32", "shape": shape, "names": None} for name, shape in columns.items()}
    return write_v3(root, Made(episodes, listed))


def test_parts_that_gr00t_names(tmp_path: Path) -> None:
    root = vectors(tmp_path / "set", observation__state=[6], action=[3])
    told: dict[str, Any] = {
        "state": {"arm": {"start": 0, "end": 4}, "hand": {"start": 4, "end": 6}},
        "action": {"arm": {"start": 0, "end": 2}},
        "video": {"front": {"original_key": FRONT}},
    }
    (root / "meta/modality.json").write_text(json.dumps(told))
    with rlds2buf.open_source(root) as source:
        (episode,) = source
        source.spec.check(episode)
        assert {name: column.shape for name, column in episode.observation["state"].items()} == {
            "arm": (4, 4),
            "hand": (4, 2),
        }
        assert episode.observation["state"]["hand"][0].tolist() == [4, 5]
        assert {name: column[0].tolist() for name, column in episode.action.items()} == {"arm": [0, 1], "rest": [2]}
    with rlds2buf.open_source(root, modality=False) as source:
        assert repr(source.spec.action) == "FieldSpec(float32[3])"
    told["state"]["hand"]["end"] = 9
    (root / "meta/modality.json").write_text(json.dumps(told))
    with pytest.raises(SourceFormatError, match=r"modality\.json: state\.hand: 4 to 9 are no columns of observation"):
        rlds2buf.open_source(root)


def test_names_that_are_nests_and_leaves(tmp_path: Path) -> None:
    root = vectors(
        tmp_path / "set",
        **{name: [2] for name in ("observation__state", "observation__state__gripper", "action", "action__original")},
    )
    with rlds2buf.open_source(root) as source:
        names = {"/".join(map(str, path)) for path, field in source.spec.fields() if field.shape == (2,)}
    assert names == {"observation/state", "observation/state.gripper", "action", "extras/action/original"}


def test_an_action_of_parts(tmp_path: Path) -> None:
    with rlds2buf.open_source(vectors(tmp_path / "set", action__arm=[2], action__hand=[1], observation=[3])) as source:
        assert set(source.spec.action) == {"arm", "hand"} and repr(source.spec.observation) == "FieldSpec(float32[3])"


def test_names_of_openpi_are_guessed_and_that_is_said(tmp_path: Path) -> None:
    with rlds2buf.open_source(vectors(tmp_path / "set", state=[2], actions=[3], other=[1])) as source:
        assert repr(source.spec.action) == "FieldSpec(float32[3])" and set(source.spec.observation) == {"state"}
        assert any("taken are state as observation/state, actions as action" in text for text in source.warnings())


def test_the_next_block_is_decoded_ahead_and_an_error_comes_in_its_place(tmp_path: Path) -> None:
    root, frames = with_videos(tmp_path / "set")
    (root / f"videos/{TOP}/chunk-000/file-000.mp4").write_bytes(b"no video")
    for threads in (1, 2):
        found = list(LeRobotDirSource(root, image_threads=threads).read())
        assert [isinstance(item, EpisodeError) for item in found] == [True, False, False, False]
        for number in (1, 2, 3):
            assert near(found[number].observation["images"]["top"], frames[TOP][number])  # type: ignore[union-attr]
        reading = LeRobotDirSource(root, image_threads=threads).read_batches(rows=5)
        next(reading)
        reading.close()  # type: ignore[attr-defined]
