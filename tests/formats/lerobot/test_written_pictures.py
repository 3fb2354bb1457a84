"""Pictures that are written: as files in the rows, and as videos whose frames are where the metadata say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from rlds2buf import Episode, convert, open_source
from rlds2buf.codecs.images.decode import decode_image
from rlds2buf.codecs.images.png import encode_png
from rlds2buf.codecs.video.decode import decode_into
from rlds2buf.codecs.video.frame_names import FrameRun, frame_names
from rlds2buf.codecs.video.probe import probe
from rlds2buf.codecs.video.psnr import psnr
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.lerobot.picture_numbers import numbers_of_pictures, sampled_frames, summary_of_pictures
from rlds2buf.formats.lerobot.sink import LeRobotDirSink
from tests.formats.lerobot.test_sink import info_of, rows_of, texts

LENGTHS = (5, 1, 12)
NAME = "observation.images.image"


def footage(count: int, height: int, width: int, channels: int, seed: int) -> np.ndarray:
    """Waves that move: what a codec keeps well."""
    y, x = np.mgrid[:height, :width]
    frames = [np.sin((x + 5 * t + 40 * seed) / 9) * 60 + np.cos((y - 3 * t) / 7) * 60 + 128 for t in range(count)]
    return np.repeat(np.stack(frames).astype(np.uint8)[..., None], channels, 3) + np.arange(channels, dtype=np.uint8)


def episodes(height: int = 64, width: int = 80, channels: int = 3) -> list[Episode]:
    return [
        Episode(
            observation={"image": footage(n, height, width, channels, i)},
            action=np.ones((n, 2), np.float32),
            reward=np.zeros(n, np.float32),
            discount=np.ones(n, np.float32),
        )
        for i, n in enumerate(LENGTHS)
    ]


def pixels(made: list[Episode]) -> np.ndarray:
    return np.concatenate([np.asarray(ep.observation["image"]) for ep in made])


def write(folder: Path, made: list[Episode], **options: Any) -> Any:
    return convert(made, LeRobotDirSink(folder, **{"fps": 10, "task_text": "t", **options}))


def seen(folder: Path, version: str = "v3.0") -> np.ndarray:
    """All frames, by what the table of episodes says."""
    parts = []
    for i, n in enumerate(LENGTHS):
        if version == "v2.1":
            path, first = folder / f"videos/chunk-000/{NAME}/episode_{i:06d}.mp4", 0
        else:
            table = parquet.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pydict()
            assert table[f"videos/{NAME}/chunk_index"][i] == 0
            path = folder / f"videos/{NAME}/chunk-000/file-{table[f'videos/{NAME}/file_index'][i]:03d}.mp4"
            start, stop = (table[f"videos/{NAME}/{edge}_timestamp"][i] for edge in ("from", "to"))
            first = round(start * 10)
            assert round(stop * 10) - first == n
        out = np.empty((n, 64, 80, 3), np.uint8)
        decode_into(out, [FrameRun(str(path), first, n)])
        parts.append(out)
    return np.concatenate(parts)


@pytest.mark.parametrize("codec", ["libsvtav1", "h264"])
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_videos(tmp_path: Path, version: str, codec: str) -> None:
    made = episodes()
    report = write(tmp_path / "a", made, version=version, codec=codec)
    ratios = psnr(pixels(made), seen(tmp_path / "a", version))
    assert ratios.min() > 34
    assert any("PSNR" in note and "observation/image is a video" in note for note in report.notes)
    feature = info_of(tmp_path / "a")["features"][NAME]
    assert (feature["dtype"], feature["shape"]) == ("video", [64, 80, 3])
    assert feature["names"] == ["height", "width", "channels"]
    assert feature["info"]["video.codec"] == ("av1" if codec == "libsvtav1" else "h264")
    assert feature["info"]["video.fps"] == 10
    assert NAME not in rows_of(tmp_path / "a")
    stats = json.loads((tmp_path / "a/meta/stats.json").read_text())[NAME]
    assert np.shape(stats["q10"]) == (3, 1, 1) and stats["count"] == [sum(LENGTHS)]


def test_a_new_video_is_begun_where_one_would_become_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds2buf.formats.lerobot.sink.VIDEO_BYTES", 1)
    made = episodes()
    write(tmp_path / "a", made)
    assert len(list((tmp_path / f"a/videos/{NAME}/chunk-000").iterdir())) > 1
    assert psnr(pixels(made), seen(tmp_path / "a")).min() > 34


def test_gray_is_written_as_colours(tmp_path: Path) -> None:
    made = episodes(channels=1)
    write(tmp_path / "a", made)
    assert psnr(np.repeat(pixels(made), 3, 3), seen(tmp_path / "a")).min() > 34
    write(tmp_path / "b", made, images="png")
    for cell, frame in zip(rows_of(tmp_path / "b")[NAME], pixels(made), strict=True):
        assert np.array_equal(decode_image(cell["bytes"], 3), np.repeat(frame, 3, 2))


@pytest.mark.parametrize(("height", "width", "why"), [(65, 64, "odd side"), (64, 62, "smaller than 64")])
def test_what_no_video_holds_stands_in_the_rows(tmp_path: Path, height: int, width: int, why: str) -> None:
    made = episodes(height, width)
    report = write(tmp_path / "a", made)
    assert any(why in note and "observation/image" in note for note in report.notes)
    feature = info_of(tmp_path / "a")["features"][NAME]
    assert (feature["dtype"], feature["shape"]) == ("image", [height, width, 3])
    for cell, frame in zip(rows_of(tmp_path / "a")[NAME], pixels(made), strict=True):
        assert np.array_equal(decode_image(cell["bytes"], 3), frame)


def test_jpeg(tmp_path: Path) -> None:
    made = episodes()
    write(tmp_path / "a", made, images="jpeg")
    found = np.stack([decode_image(cell["bytes"], 3) for cell in rows_of(tmp_path / "a")[NAME]])
    assert psnr(found, pixels(made)).min() > 34


def test_files_stay_as_they_are(tmp_path: Path) -> None:
    spec = StepSpec(
        observation=FieldSpec((), object, image=FieldSpec((None, None, 3), np.uint8)),
        action=FieldSpec((2,), np.float32),
    )
    files = [encode_png(np.full((8 + i, 9, 3), i, np.uint8)) for i in range(4)]
    episode = Episode(
        observation=texts(files),
        action=np.ones((4, 2), np.float32),
        reward=np.zeros(4, np.float32),
        discount=np.ones(4, np.float32),
    )
    sink = LeRobotDirSink(tmp_path / "a", fps=10, images="png", task_text="t")
    assert sink.takes_encoded_images
    sink.open(spec, {})
    sink.write(episode)
    sink.commit()
    assert [cell["bytes"] for cell in rows_of(tmp_path / "a")[NAME]] == files
    assert info_of(tmp_path / "a")["features"][NAME]["shape"] == [8, 9, 3]


def test_frames_by_name_are_copied(tmp_path: Path) -> None:
    made = episodes()
    write(tmp_path / "a", made)
    path = tmp_path / f"a/videos/{NAME}/chunk-000/file-000.mp4"
    spec = StepSpec(
        observation={"image": FieldSpec((), object, image=FieldSpec((64, 80, 3), np.uint8), is_video=True)},
        action=FieldSpec((2,), np.float32),
    )
    places = np.append(0, np.cumsum(LENGTHS))
    sink = LeRobotDirSink(tmp_path / "b", fps=10, task_text="t")
    assert sink.takes_video_frames
    sink.open(spec, {})
    for i in (2, 0, 1):
        sink.write(
            Episode(
                observation={"image": frame_names(path, int(places[i]), LENGTHS[i])},
                action=np.ones((LENGTHS[i], 2), np.float32),
                reward=np.zeros(LENGTHS[i], np.float32),
                discount=np.ones(LENGTHS[i], np.float32),
            )
        )
    sink.commit()
    assert any("the packets of 3 episodes were copied, none was encoded again" in note for note in sink.notes)
    copy = tmp_path / f"b/videos/{NAME}/chunk-000/file-000.mp4"
    assert probe(copy).frames == sum(LENGTHS)
    before, after = (np.empty((sum(LENGTHS), 64, 80, 3), np.uint8) for _ in range(2))
    decode_into(before, [FrameRun(str(path), 0, len(before))])
    decode_into(after, [FrameRun(str(copy), 0, len(after))])
    order = np.concatenate([np.arange(places[i], places[i + 1]) for i in (2, 0, 1)])
    assert np.array_equal(before[order], after)


def test_frames_that_are_no_whole_run_are_encoded_again(tmp_path: Path) -> None:
    write(tmp_path / "a", episodes())
    path = tmp_path / f"a/videos/{NAME}/chunk-000/file-000.mp4"
    spec = StepSpec(
        observation={"image": FieldSpec((), object, image=FieldSpec((64, 80, 3), np.uint8), is_video=True)},
        action=FieldSpec((2,), np.float32),
    )
    sink = LeRobotDirSink(tmp_path / "b", fps=10, task_text="t")
    sink.open(spec, {})
    names = frame_names(path, 0, 5)[[0, 2, 4]]
    row = {"action": np.ones((3, 2), np.float32), "reward": np.zeros(3, np.float32)}
    sink.write(Episode(observation={"image": names}, **row, discount=np.ones(3, np.float32)))
    sink.commit()
    assert any("all 1 episodes were encoded again: its frames are not one run" in note for note in sink.notes)
    before, after = (np.empty((3, 64, 80, 3), np.uint8) for _ in range(2))
    decode_into(before, [FrameRun(str(path), n, 1, i) for i, n in enumerate((0, 2, 4))])
    decode_into(after, [FrameRun(str(tmp_path / f"b/videos/{NAME}/chunk-000/file-000.mp4"), 0, 3)])
    assert psnr(before, after).min() > 34


def test_numbers_of_pictures() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (7, 20, 30, 3)).astype(np.uint8)
    values = numbers_of_pictures(frames)
    flat = frames.reshape(-1, 3) / 255
    expected = [flat.min(0), flat.max(0), flat.mean(0), flat.std(0)]
    expected += [np.quantile(flat, level, axis=0) for level in (0.01, 0.1, 0.5, 0.9, 0.99)]
    np.testing.assert_allclose(values.reshape(9, 3), expected, rtol=1e-12, atol=1e-12)
    gray = numbers_of_pictures(frames[..., :1])
    np.testing.assert_array_equal(gray[:, 1], gray[:, 0])
    two = np.stack([numbers_of_pictures(frames[:3]), numbers_of_pictures(frames[3:])])
    summary = summary_of_pictures(two, np.array([3, 4]))
    np.testing.assert_allclose(np.ravel(summary["std"]), flat.std(0), rtol=1e-12)


def test_how_many_are_sampled() -> None:
    """The counts that LeRobot's estimate_num_samples states."""
    assert [len(sampled_frames(n)) for n in (1, 99, 500, 1000, 2000, 5000)] == [1, 99, 105, 177, 299, 594]


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("images", ["png", "jpeg"])
def test_one_channel_in_the_rows_is_read_back_as_one(tmp_path: Path, images: str, version: str) -> None:
    made = episodes(channels=1)
    write(tmp_path / "a", made, images=images, version=version)
    with open_source(tmp_path / "a") as source:
        found = pixels(list(source))
    assert found.shape == pixels(made).shape
    assert np.array_equal(found, pixels(made)) if images == "png" else psnr(pixels(made), found).min() > 30
    convert(tmp_path / "a", tmp_path / "rlds", to="rlds")
    with open_source(tmp_path / "rlds") as source:
        assert np.array_equal(pixels(list(source)), found)
