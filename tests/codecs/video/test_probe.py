"""What is told of a video file without decoding it."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rlds2buf.codecs.video.frame_index import frame_index
from rlds2buf.codecs.video.mp4 import read_mp4
from rlds2buf.codecs.video.probe import probe
from rlds2buf.errors import SourceFormatError, SourceNotFound
from tests.codecs.video.videos import KINDS, moving, write
from tests.data import DATA
from tests.reference.video import all_frames, all_packets

REAL = "lerobot/g1_v21/videos/chunk-000/observation.images.cam_high/episode_000000.mp4"


def test_a_real_video() -> None:
    facts = probe(DATA / REAL)
    assert (facts.codec, facts.pix_fmt, facts.width, facts.height) == ("av1", "yuv420p", 640, 480)
    assert (facts.fps, facts.frames, facts.has_audio, facts.is_depth) == (30, 393, False, False)
    assert facts.duration == pytest.approx(393 / 30) and facts.largest_offset < 1e-9
    assert facts.keyframes.tolist() == list(range(0, 393, 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fps", [30, 10, Fraction(30000, 1001), Fraction(25, 2)], ids=str)
def test_it_is_what_decoding_tells(kind: str, fps: Fraction, tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", moving(23), kind, fps)
    facts = probe(path)
    frames, times = all_frames(path)
    packets = all_packets(path)
    assert facts.frames == len(frames) == 23 and (facts.height, facts.width) == frames.shape[1:3]
    assert facts.fps == fps
    np.testing.assert_allclose(facts.timestamps, times, atol=1e-9)
    assert facts.largest_offset == pytest.approx(np.abs(np.array(times) - np.arange(23) / float(fps)).max(), abs=1e-9)
    keys = sorted(pts for _, pts, is_key, _ in packets if is_key)
    assert facts.timestamps[facts.keyframes] == pytest.approx([float(pts) for pts in keys])
    assert facts.duration == pytest.approx(23 / float(fps), abs=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_mp4_files_are_what_their_packets_tell(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", moving(40), kind)
    track = read_mp4(str(path))
    assert track is not None
    packets = all_packets(path)
    content = path.read_bytes()
    for i, (dts, pts, is_key, data) in enumerate(packets):
        assert Fraction(int(track.dts[i]), track.timescale) == dts
        assert Fraction(int(track.pts[i]), track.timescale) == pts
        assert bool(track.is_key[i]) == is_key
        assert content[track.offsets[i] : track.offsets[i] + track.sizes[i]] == data
    assert len(track.dts) == len(packets) == 40


@pytest.mark.parametrize("name, flags", [("a.mp4", "frag_keyframe+empty_moov"), ("a.mkv", ""), ("a.mov", "faststart")])
def test_other_layouts_tell_the_same(name: str, flags: str, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.mp4", moving(20), "h264_b")
    options = {"movflags": flags} if flags else {}
    other = write(tmp_path / name, moving(20), "h264_b", container_options=options)
    assert (read_mp4(str(other)) is None) == (name != "a.mov")
    one, two = probe(plain), probe(other)
    assert (one.frames, one.fps, one.keyframes.tolist()) == (two.frames, two.fps, two.keyframes.tolist())
    np.testing.assert_allclose(two.timestamps, all_frames(other)[1], atol=1e-9)


def test_it_is_read_again_only_when_the_file_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", moving(5))
    first = probe(path)
    assert probe(str(path)) is first and frame_index(str(path)) is frame_index(str(path))
    write(path, moving(7))
    os.utime(path, ns=(1, 1))
    assert probe(path).frames == 7


def test_times_that_jump_show(tmp_path: Path) -> None:
    import av

    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 10)
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for i, pixels in enumerate(moving(10)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = i * 100 + (250 if i >= 5 else 0), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    facts = probe(path)
    assert facts.timestamps[5] - facts.timestamps[4] == pytest.approx(0.35)
    assert facts.largest_offset > 0.05


class TestWrongFiles:
    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound, match=r"a\.mp4: there is no such video"):
            probe(tmp_path / "a.mp4")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFormatError, match="can't be read"):
            probe(tmp_path)

    def test_empty(self, tmp_path: Path) -> None:
        (tmp_path / "a.mp4").touch()
        with pytest.raises(SourceFormatError, match=r"a\.mp4: the file is empty"):
            probe(tmp_path / "a.mp4")

    def test_a_pointer_of_git_lfs(self, tmp_path: Path) -> None:
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4000000\n"
        (tmp_path / "a.mp4").write_text(text)
        with pytest.raises(SourceFormatError, match=r"a\.mp4: a Git LFS pointer.*git lfs pull"):
            probe(tmp_path / "a.mp4")

    @pytest.mark.parametrize("content", [b"x", b"not a video, but some text\n" * 100, bytes(5000)])
    def test_not_a_video(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "a.mp4").write_bytes(content)
        with pytest.raises(SourceFormatError, match=r"a\.mp4: "):
            probe(tmp_path / "a.mp4")

    @pytest.mark.parametrize("kept", [0.01, 0.5, 0.99])
    def test_cut_short_without_its_table(self, kept: float, tmp_path: Path) -> None:
        content = write(tmp_path / "a.mp4", moving(20)).read_bytes()
        (tmp_path / "a.mp4").write_bytes(content[: int(kept * len(content))])
        with pytest.raises(SourceFormatError, match=r"a\.mp4: .*cut short"):
            probe(tmp_path / "a.mp4")

    def test_cut_short_behind_its_table(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.mp4", moving(20), container_options={"movflags": "faststart"})
        content = path.read_bytes()
        path.write_bytes(content[: content.index(b"mdat") + 2000])
        with pytest.raises(
            SourceFormatError, match=r"a\.mp4: cut short: it tells of 20 frames, and ends within number \d"
        ):
            probe(path)

    def test_sound_without_pictures(self, tmp_path: Path) -> None:
        import av

        path = tmp_path / "a.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("aac", 44100)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate = 44100
            container.mux(stream.encode(frame))
            container.mux(stream.encode())
        with pytest.raises(SourceFormatError, match="no video in it, only audio"):
            probe(path)
