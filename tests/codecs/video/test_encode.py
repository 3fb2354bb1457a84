"""Pixels into files: the same as PyAV fed frame by frame, in any portions."""

from __future__ import annotations

import os
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2buf.codecs.video.encode import CODECS, VideoEncoder, why_not_encodable
from rlds2buf.codecs.video.probe import VideoFacts, probe
from rlds2buf.codecs.video.psnr import psnr
from rlds2buf.errors import MissingDependency, SinkError
from tests.codecs.video.videos import moving
from tests.imports import run_python
from tests.reference.video import all_frames


def encode(path: Path, frames: np.ndarray, portions: list[int] | None = None, **options: Any) -> VideoFacts:
    """The frames in portions of these sizes, the last of what is left."""
    height, width = frames.shape[1:3]
    with VideoEncoder(path, width, height, options.pop("fps", 30), **options) as video:
        at = 0
        for portion in portions or []:
            video.add(frames[at : at + portion])
            at += portion
        video.add(frames[at:])
        return video.close()


def test_by_default_the_bytes_are_those_of_lerobot_s_settings(tmp_path: Path) -> None:
    """What ``encode_video_frames`` of LeRobot 0.4.4 does, written out."""
    import av

    frames = moving(33)
    with av.open(str(tmp_path / "plain.mp4"), "w") as container:
        stream = container.add_stream("libsvtav1", 30, options={"g": "2", "crf": "30", "preset": "12"})
        stream.pix_fmt, stream.width, stream.height = "yuv420p", 128, 96
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    facts = encode(tmp_path / "ours.mp4", frames)
    assert (tmp_path / "ours.mp4").read_bytes() == (tmp_path / "plain.mp4").read_bytes()
    assert (facts.codec, facts.pix_fmt, facts.fps, facts.frames) == ("av1", "yuv420p", 30, 33)
    assert facts.keyframes.tolist() == list(range(0, 33, 2))


@given(portions=st.lists(st.integers(0, 9), max_size=5), codec=st.sampled_from(["av1", "h264", "hevc"]))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_do_not_depend_on_the_portions(portions: list[int], codec: str, tmp_path: Path) -> None:
    frames = moving(20)
    for name, sizes in (("one.mp4", []), ("many.mp4", portions)):
        (tmp_path / name).unlink(missing_ok=True)
        encode(tmp_path / name, frames, sizes, codec=codec)
    assert (tmp_path / "one.mp4").read_bytes() == (tmp_path / "many.mp4").read_bytes()


def test_bytes_of_av1_do_not_depend_on_threads(tmp_path: Path) -> None:
    for threads in (1, 3, 6):
        encode(tmp_path / f"{threads}.mp4", moving(40), threads=threads)
    assert len({(tmp_path / f"{threads}.mp4").read_bytes() for threads in (1, 3, 6)}) == 1


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_bytes_do_not_depend_on_the_cores_of_the_machine(codec: str, tmp_path: Path) -> None:
    code = f"""
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[2])])
from pathlib import Path
from tests.codecs.video.test_encode import encode, moving
encode(Path(sys.argv[1]), moving(40), codec={codec!r})
"""
    cores = sorted({1, len(os.sched_getaffinity(0))})
    for n in cores:
        run_python("-c", code, str(tmp_path / f"{n}.mp4"), str(n))
    assert len({(tmp_path / f"{n}.mp4").read_bytes() for n in cores}) == 1


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("fps", [30, 7, Fraction(30000, 1001)], ids=str)
def test_each_frame_is_shown_at_its_number_through_the_rate(codec: str, fps: Fraction, tmp_path: Path) -> None:
    frames = moving(25)
    facts = encode(tmp_path / "a.mp4", frames, codec=codec, fps=fps, g=6, crf=20)
    found, times = all_frames(tmp_path / "a.mp4")
    assert facts.fps == fps and facts.largest_offset < 1e-4
    np.testing.assert_allclose(times, np.arange(25) / float(fps), atol=1e-4)
    assert psnr(frames, found).mean() > 30
    assert facts.keyframes[0] == 0 and np.diff(facts.keyframes).max() <= 6


@pytest.mark.parametrize("codec", ["av1", "h264", "hevc"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_short_videos(codec: str, count: int, tmp_path: Path) -> None:
    for i in range(10):  # what a memory happens to hold differs from time to time
        facts = encode(tmp_path / f"{i}.mp4", moving(count), codec=codec, g=30)
        assert facts.frames == len(all_frames(tmp_path / f"{i}.mp4")[0]) == count
        assert facts.largest_offset < 1e-6 and facts.fps == 30
    assert len({(tmp_path / f"{i}.mp4").read_bytes() for i in range(10)}) == 1


def test_settings_count(tmp_path: Path) -> None:
    frames = moving(30)
    sizes = [
        encode(tmp_path / f"{crf}.mp4", frames, codec="h264", crf=crf) and (tmp_path / f"{crf}.mp4").stat().st_size
        for crf in (10, 40)
    ]
    assert sizes[0] > 2 * sizes[1]
    assert np.diff(encode(tmp_path / "g.mp4", frames, codec="h264", g=10).keyframes).max() == 10
    encode(tmp_path / "fast.mp4", frames, codec="h264", preset="ultrafast")
    encode(tmp_path / "slow.mp4", frames, codec="h264", preset="veryslow")
    assert (tmp_path / "fast.mp4").stat().st_size > (tmp_path / "slow.mp4").stat().st_size


def test_gray_pictures_are_the_same_in_three_channels(tmp_path: Path) -> None:
    gray = moving(10)[..., 1:2]
    encode(tmp_path / "one.mp4", gray, codec="h264", crf=5)
    encode(tmp_path / "three.mp4", np.repeat(gray, 3, -1), codec="h264", crf=5)
    one, three = (all_frames(tmp_path / name)[0] for name in ("one.mp4", "three.mp4"))
    assert psnr(one, three).min() > 40 and psnr(np.repeat(gray, 3, -1), one).min() > 35


@pytest.mark.parametrize("pix_fmt, channels", [("yuv420p", 3), ("gray", 1)])
def test_the_array_may_be_changed_at_once(pix_fmt: str, channels: int, tmp_path: Path) -> None:
    frames = moving(60)[..., :channels]
    with VideoEncoder(tmp_path / "a.mp4", 128, 96, 30, codec="h264", pix_fmt=pix_fmt) as video:
        room = np.empty((3, 96, 128, channels), np.uint8)
        for at in range(0, 60, 3):
            room[:] = frames[at : at + 3]
            video.add(room)
            room[:] = 0
    encode(tmp_path / "b.mp4", frames, codec="h264", pix_fmt=pix_fmt)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_strided_read_only_and_single_frames(tmp_path: Path) -> None:
    frames = moving(8)
    frames.flags.writeable = False
    encode(tmp_path / "a.mp4", frames[::2, ::-1, :, ::-1], codec="h264")
    encode(tmp_path / "b.mp4", frames[::2, ::-1, :, ::-1].copy(), codec="h264")
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    assert encode(tmp_path / "c.mp4", frames[:1]).frames == 1
    assert encode(tmp_path / "d.mp4", frames[..., :1]).frames == 8


def test_end_does_not_wait(tmp_path: Path) -> None:
    videos = [VideoEncoder(tmp_path / f"{i}.mp4", 128, 96, 30) for i in range(3)]
    for video in videos:
        video.add(moving(10))
        video.end()
    assert [video.close().frames for video in videos] == [10, 10, 10]
    assert [video.close().frames for video in videos] == [10, 10, 10]
    assert not [thread for thread in threading.enumerate() if thread.name == "rlds2buf-encoder"]


def test_nothing_is_printed(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tests.codecs.video.test_encode import CODECS, encode, moving
for codec in CODECS:
    encode(Path(sys.argv[1]) / f"{codec}.mp4", moving(5), codec=codec)
"""
    done = run_python("-c", code, str(tmp_path))
    assert done.stdout == done.stderr == ""


class TestErrors:
    def test_a_file_that_is_there_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "a.mp4").write_text("mine")
        with pytest.raises(SinkError, match=r"a\.mp4: is already there"):
            VideoEncoder(tmp_path / "a.mp4", 128, 96, 30)
        assert (tmp_path / "a.mp4").read_text() == "mine"

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(SinkError, match=r"b/a\.mp4: .* can't be begun"):
            VideoEncoder(tmp_path / "b" / "a.mp4", 128, 96, 30)

    def test_no_frames(self, tmp_path: Path) -> None:
        with pytest.raises(SinkError, match=r"a\.mp4: a video without frames"):
            VideoEncoder(tmp_path / "a.mp4", 128, 96, 30).close()
        assert not list(tmp_path.iterdir())

    def test_left_by_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError), VideoEncoder(tmp_path / "a.mp4", 128, 96, 30) as video:
            video.add(moving(30))
            raise KeyError
        assert not list(tmp_path.iterdir())
        with pytest.raises(ValueError, match="takes no more frames"):
            video.add(moving(1))

    def test_a_disk_that_is_full(self, tmp_path: Path) -> None:
        code = """
import resource, sys
from pathlib import Path
import numpy as np
from rlds2buf.codecs.video.encode import VideoEncoder
from rlds2buf.errors import SinkError
sys.dont_write_bytecode = True  # it would be cut short
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
rng = np.random.default_rng(0)
try:
    with VideoEncoder(sys.argv[1], 256, 256, 30, codec="h264", crf=10) as video:
        for _ in range(100):
            video.add(rng.integers(0, 256, (1, 256, 256, 3), np.uint8))
except SinkError as error:
    print(error)
"""
        done = run_python("-c", code, str(tmp_path / "a.mp4"))
        assert done.stdout == f"{tmp_path / 'a.mp4'}: the video could not be written (File too large)\n"
        assert not list(tmp_path.iterdir())

    def test_no_pyav(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "av", None)
        with pytest.raises(MissingDependency, match=r"pip install 'rlds2buf\[lerobot\]'"):
            VideoEncoder(tmp_path / "a.mp4", 128, 96, 30)

    @pytest.mark.parametrize("shape, dtype", [((2, 96, 128, 4), "u1"), ((96, 128, 3), "u1"), ((2, 96, 128, 3), "f4")])
    def test_frames_of_another_form(self, shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
        with (
            pytest.raises(ValueError, match=r"its frames are uint8\[96, 128, 3\]"),
            VideoEncoder(tmp_path / "a.mp4", 128, 96, 30) as video,
        ):
            video.add(np.zeros(shape, dtype))
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        "change, told",
        [
            ({"codec": "vp9"}, "one of libsvtav1, av1, h264"),
            ({"fps": 0}, "more than 0"),
            ({"threads": 0}, "at least 1"),
            ({"width": 127}, "sides of a video must be even"),
            ({"height": 62}, "below 64 x 64"),
        ],
    )
    def test_arguments(self, change: dict[str, Any], told: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=told):
            VideoEncoder(**{"path": tmp_path / "a.mp4", "width": 128, "height": 96, "fps": 30, **change})
        assert not list(tmp_path.iterdir())

    def test_settings_that_the_encoder_refuses(self, tmp_path: Path) -> None:
        with pytest.raises(SinkError, match=r"a\.mp4: a video of libx264 can't be begun"):
            VideoEncoder(tmp_path / "a.mp4", 128, 96, 30, codec="h264", preset="nonsense")
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("codec", ["av1", "h264", "hevc"])
@pytest.mark.parametrize("size", [(64, 64), (16, 16), (64, 66), (18, 200), (14, 64), (64, 65)], ids=str)
def test_sizes_are_refused_that_can_t_be_encoded(codec: str, size: tuple[int, int], tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, *size, 3), np.uint8)
    if why_not_encodable(*size, codec) is None:
        encode(tmp_path / "a.mp4", frames, codec=codec)
        assert all_frames(tmp_path / "a.mp4")[0].shape == frames.shape
        assert probe(tmp_path / "a.mp4").frames == 4
    else:
        with pytest.raises(ValueError, match="pixels: "):
            encode(tmp_path / "a.mp4", frames, codec=codec)


class TestPsnr:
    def test_it_is_the_formula(self) -> None:
        rng = np.random.default_rng(0)
        one, other = rng.integers(0, 256, (2, 5, 20, 30, 3), np.uint8)
        other[3] = one[3]
        errors = ((one.astype(float) - other) ** 2).mean((1, 2, 3))
        with np.errstate(divide="ignore"):
            expected = 10 * np.log10(255**2 / errors)
        found = psnr(one, other)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert found[3] == np.inf

    def test_pictures_of_two_kinds(self) -> None:
        with pytest.raises(ValueError, match="can't be compared"):
            psnr(np.zeros((1, 2, 2, 3), np.uint8), np.zeros((1, 2, 4, 3), np.uint8))
