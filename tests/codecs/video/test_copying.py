"""Packets copied from files into new ones: the frames that decode are those of the runs, at their times."""

from __future__ import annotations

import shutil
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2buf.codecs.video.copying import copy_kind, copy_runs, is_copyable, packet_bytes, why_not_copyable
from rlds2buf.codecs.video.decode import decode_into
from rlds2buf.codecs.video.encode import VideoEncoder
from rlds2buf.codecs.video.frame_names import FrameRun
from rlds2buf.codecs.video.mp4 import read_mp4
from rlds2buf.codecs.video.mp4_tables import data_head
from rlds2buf.codecs.video.probe import probe
from rlds2buf.errors import SinkError, SourceFormatError, SourceNotFound
from tests.codecs.video.videos import KINDS, moving, write
from tests.data import DATA
from tests.imports import run_python
from tests.reference.video import all_frames, all_packets

CAMERA = "lerobot/g1_v21/videos/chunk-000/observation.images.cam_high"
LENGTHS = (1, 17, 40, 2, 33)
MANY = (3, 17, 40, 4, 33)
"""For libx265, which tells no times of one or two frames."""

Videos = dict[str, list[tuple[str, np.ndarray]]]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Videos:
    """By kind, episodes of several lengths in files of their own, and their frames as PyAV decodes them."""
    folder = tmp_path_factory.mktemp("videos")
    found: Videos = {}
    for kind in KINDS:
        lengths = MANY if kind.startswith("hevc") else LENGTHS
        paths = [write(folder / f"{kind}_{i}.mp4", moving(n, seed=i), kind) for i, n in enumerate(lengths)]
        found[kind] = [(str(path), all_frames(path)[0]) for path in paths]
    return found


def check(path: Path, expected: np.ndarray, fps: Fraction) -> None:
    """Its frames, decoded from begin to end, alone, and by our own tables; and when they are shown."""
    frames, times = all_frames(path)
    np.testing.assert_array_equal(frames, expected)
    np.testing.assert_allclose(times, np.arange(len(expected)) / float(fps), atol=1e-4)
    facts = probe(path)
    assert (facts.frames, facts.fps) == (len(expected), fps) and facts.largest_offset < 1e-6
    assert facts.duration == pytest.approx(len(expected) / float(fps))
    out = np.zeros_like(expected[::3])
    numbers = range(0, len(expected), 3)
    decode_into(out, [FrameRun(str(path), number, 1, row) for row, number in enumerate(numbers)])
    np.testing.assert_array_equal(out, expected[::3])


@pytest.mark.parametrize("kind", KINDS)
def test_whole_episodes_into_one_file_and_out_again(kind: str, videos: Videos, tmp_path: Path) -> None:
    episodes = videos[kind]
    runs = [FrameRun(path, 0, len(frames)) for path, frames in episodes]
    facts = copy_runs(runs, tmp_path / "all.mp4")
    everything = np.concatenate([frames for _, frames in episodes])
    check(tmp_path / "all.mp4", everything, Fraction(30))
    packets = [data for path, _ in episodes for *_, data in all_packets(path)]
    assert [data for *_, data in all_packets(tmp_path / "all.mp4")] == packets
    at = 0
    for i, (path, frames) in enumerate(episodes):
        assert at in facts.keyframes
        run = FrameRun(str(tmp_path / "all.mp4"), at, len(frames))
        copy_runs([run], tmp_path / f"{i}.mp4")
        check(tmp_path / f"{i}.mp4", frames, Fraction(30))
        assert packet_bytes(run) == packet_bytes(FrameRun(path, 0, len(frames)))
        at += len(frames)


CUTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 39), st.integers(1, 40)), min_size=1, max_size=5)


@given(kind=st.sampled_from(list(KINDS)), cuts=CUTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_runs_that_may_be_copied_decode_to_their_frames(
    kind: str, cuts: list[tuple[int, int, int]], videos: Videos, tmp_path: Path
) -> None:
    runs, expected = [], []
    for episode, first, count in cuts:
        path, frames = videos[kind][episode]
        keys = probe(path).keyframes
        first = int(keys[first % len(keys)])
        run = FrameRun(path, first, min(count, len(frames) - first))
        if is_copyable(run):
            runs.append(run)
            expected.append(frames[run.first : run.stop])
    (tmp_path / "a.mp4").unlink(missing_ok=True)
    if runs:
        copy_runs(runs, tmp_path / "a.mp4")
        check(tmp_path / "a.mp4", np.concatenate(expected), Fraction(30))


@pytest.mark.parametrize("kind", ["av1", "h264", "h264_b", "hevc", "mpeg4"])
def test_episodes_encoded_one_by_one_may_be_cut_where_a_keyframe_begins(kind: str, videos: Videos) -> None:
    path, frames = videos[kind][2]
    keys = probe(path).keyframes.tolist()
    for first, stop in zip(keys, [*keys[1:], len(frames)], strict=True):
        assert why_not_copyable(FrameRun(path, first, stop - first)) is None
    if len(keys) < len(frames):
        between = next(i for i in range(len(frames)) if i not in keys)
        assert why_not_copyable(FrameRun(path, between, 1)) == f"frame {between} is no keyframe"


def test_open_groups_of_pictures_are_not_cut(videos: Videos) -> None:
    path, frames = videos["hevc_open"][2]
    keys = probe(path).keyframes.tolist()
    assert len(keys) > 2 and is_copyable(FrameRun(path, 0, len(frames)))
    assert not any(is_copyable(FrameRun(path, key, 1)) for key in keys[1:])
    assert not is_copyable(FrameRun(path, 0, keys[1]))  # the frames before it are decoded behind it


def test_b_frames_are_not_torn_from_what_they_refer_to(videos: Videos) -> None:
    path, _ = videos["h264_b"][2]
    whys = [why_not_copyable(FrameRun(path, 0, count)) for count in range(1, 13)]
    assert whys[0] is None and whys[11] is None
    assert any(why is not None and "B-frames" in why for why in whys)


def test_real_videos(tmp_path: Path) -> None:
    paths = [str(DATA / CAMERA / f"episode_{i:06d}.mp4") for i in range(3)]
    copy_runs([FrameRun(path, 0, probe(path).frames) for path in paths], tmp_path / "all.mp4")
    frames = np.concatenate([all_frames(path)[0][:20] for path in paths])
    out = np.zeros_like(frames)
    decode_into(out, [FrameRun(str(tmp_path / "all.mp4"), at, 20, 20 * i) for i, at in enumerate((0, 393, 736))])
    np.testing.assert_array_equal(out, frames)
    facts = probe(tmp_path / "all.mp4")
    assert (facts.frames, facts.fps, facts.codec, facts.pix_fmt) == (1026, 30, "av1", "yuv420p")
    np.testing.assert_allclose(facts.timestamps, np.arange(1026) / 30, atol=1e-9)


@pytest.mark.parametrize("fps", [30, 10, 50, Fraction(30000, 1001)], ids=str)
def test_times_are_those_of_the_rate_asked_for(fps: Fraction, videos: Videos, tmp_path: Path) -> None:
    runs = [FrameRun(path, 0, len(frames)) for path, frames in videos["h264_b"]]
    copy_runs(runs, tmp_path / "a.mp4", fps)
    check(tmp_path / "a.mp4", np.concatenate([frames for _, frames in videos["h264_b"]]), Fraction(fps))


def test_the_bytes_depend_on_the_packets_only(videos: Videos, tmp_path: Path) -> None:
    paths = [path for path, _ in videos["av1"]]
    copy_runs([FrameRun(path, 0, LENGTHS[i]) for i, path in enumerate(paths)], tmp_path / "direct.mp4")
    copy_runs([FrameRun(path, 0, LENGTHS[i]) for i, path in enumerate(paths[:2])], tmp_path / "part.mp4")
    rest = [FrameRun(path, 0, LENGTHS[i + 2]) for i, path in enumerate(paths[2:])]
    part = [FrameRun(str(tmp_path / "part.mp4"), 0, 1), FrameRun(str(tmp_path / "part.mp4"), 1, 17)]
    copy_runs([*part, *rest], tmp_path / "again.mp4")
    assert (tmp_path / "direct.mp4").read_bytes() == (tmp_path / "again.mp4").read_bytes()


def test_sound_is_left_out(tmp_path: Path) -> None:
    import av

    path = tmp_path / "a.mp4"
    frames = moving(40)
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", 30, options={"g": "5", "sc_threshold": "0"})
        video.width, video.height, video.pix_fmt = 128, 96, "yuv420p"
        audio = container.add_stream("aac", 44100, layout="mono")
        for pixels in frames:
            container.mux(video.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            sound = av.AudioFrame.from_ndarray(np.zeros((1, 1470), np.float32), format="fltp", layout="mono")
            sound.sample_rate = 44100
            container.mux(audio.encode(sound))
        container.mux(video.encode())
        container.mux(audio.encode())
    assert probe(path).has_audio
    facts = copy_runs([FrameRun(str(path), 5, 30)], tmp_path / "b.mp4")
    assert not facts.has_audio
    check(tmp_path / "b.mp4", all_frames(path)[0][5:35], Fraction(30))


def test_what_we_encode_can_be_copied(tmp_path: Path) -> None:
    for i, codec in enumerate(("av1", "h264", "hevc")):
        parts = []
        for k, count in enumerate((5, 12, 1)):
            part = tmp_path / f"{codec}{k}.mp4"
            with VideoEncoder(part, 128, 96, 30, codec=codec) as video:
                video.add(moving(count, seed=i + k))
            parts.append(FrameRun(str(part), 0, count))
        assert len({copy_kind(part) for part in parts}) == 1
        copy_runs(parts, tmp_path / f"{codec}.mp4")
        expected = np.concatenate([all_frames(part.path)[0] for part in parts])
        check(tmp_path / f"{codec}.mp4", expected, Fraction(30))


def test_more_than_four_gigabytes_have_a_longer_head() -> None:
    assert data_head(10) == b"\0\0\0\x12mdat"
    assert data_head(1 << 33) == b"\0\0\0\1mdat" + struct.pack(">Q", (1 << 33) + 16)


class TestErrors:
    @pytest.fixture()
    def path(self, tmp_path: Path) -> Path:
        return write(tmp_path / "a.mp4", moving(20))

    def test_a_file_that_is_there_is_left_alone(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "b.mp4").write_text("mine")
        with pytest.raises(SinkError, match=r"b\.mp4: is already there"):
            copy_runs([FrameRun(str(path), 0, 2)], tmp_path / "b.mp4")
        assert (tmp_path / "b.mp4").read_text() == "mine"

    def test_a_folder_that_is_not_there(self, path: Path, tmp_path: Path) -> None:
        with pytest.raises(SinkError, match=r"b\.mp4: can't be written \(No such file"):
            copy_runs([FrameRun(str(path), 0, 2)], tmp_path / "c" / "b.mp4")

    def test_two_kinds(self, path: Path, tmp_path: Path) -> None:
        for other in (write(tmp_path / "c.mp4", moving(3), "av1"), write(tmp_path / "d.mp4", moving(3, 64))):
            assert copy_kind(FrameRun(str(other), 0, 2)) != copy_kind(FrameRun(str(path), 0, 2))
            with pytest.raises(ValueError, match=rf"{other.name}: encoded otherwise than .*a\.mp4"):
                copy_runs([FrameRun(str(path), 0, 2), FrameRun(str(other), 0, 2)], tmp_path / "b.mp4")
        assert not (tmp_path / "b.mp4").exists()

    def test_no_keyframe(self, path: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"a\.mp4: packets can't be copied: frame 1 is no keyframe"):
            copy_runs([FrameRun(str(path), 1, 2)], tmp_path / "b.mp4")

    def test_nothing(self, path: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no frames to copy"):
            copy_runs([], tmp_path / "b.mp4")
        assert why_not_copyable(FrameRun(str(path), 3, 0)) == "no frames"

    def test_fewer_frames_than_asked_for(self, path: Path, tmp_path: Path) -> None:
        with pytest.raises(SourceFormatError, match=r"a\.mp4: frame 20 is asked for, and it has 20 frames"):
            copy_runs([FrameRun(str(path), 0, 21)], tmp_path / "b.mp4")

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound):
            copy_runs([FrameRun(str(tmp_path / "c.mp4"), 0, 21)], tmp_path / "b.mp4")

    @pytest.mark.parametrize("name, flags", [("c.mp4", "frag_keyframe+empty_moov"), ("c.mkv", "")])
    def test_files_without_plain_tables(self, name: str, flags: str, tmp_path: Path) -> None:
        path = write(tmp_path / name, moving(20), container_options={"movflags": flags} if flags else {})
        assert why_not_copyable(FrameRun(str(path), 0, 20)) == "not an MP4 file with plain tables"
        with pytest.raises(ValueError, match="plain tables"):
            copy_kind(FrameRun(str(path), 0, 20))

    @pytest.mark.parametrize("fps", [0, -1])
    def test_no_rate(self, fps: int, path: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="more than 0"):
            copy_runs([FrameRun(str(path), 0, 2)], tmp_path / "b.mp4", fps)

    def test_a_disk_that_is_full(self, path: Path, tmp_path: Path) -> None:
        code = """
import resource, sys
from rlds2buf.codecs.video.copying import FrameRun, copy_runs
from rlds2buf.errors import SinkError
sys.dont_write_bytecode = True  # it would be cut short
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    copy_runs([FrameRun(sys.argv[1], 0, 20)], sys.argv[2])
except SinkError as error:
    print(error)
"""
        done = run_python("-c", code, str(path), str(tmp_path / "b.mp4"))
        assert done.stdout == f"{tmp_path / 'b.mp4'}: can't be written (File too large)\n"
        assert not (tmp_path / "b.mp4").exists()

    def test_a_file_that_shrinks_meanwhile(self, path: Path, tmp_path: Path) -> None:
        """Its table is known from before; what it tells of is not there any more."""
        from rlds2buf.codecs.video.copying import _copy

        track = read_mp4(str(path))
        assert track is not None
        shutil.copy(path, tmp_path / "c.mp4")
        with open(tmp_path / "c.mp4", "r+b") as file:
            file.truncate(500)
        with open(tmp_path / "d", "wb") as target, pytest.raises(SourceFormatError, match=r"c\.mp4: cut short"):
            _copy(str(tmp_path / "c.mp4"), target.fileno(), track.offsets, track.sizes)
