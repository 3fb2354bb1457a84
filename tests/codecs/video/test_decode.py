"""Frames of files into arrays: the same as PyAV decoding everything from the beginning."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2buf.codecs.video.copying import why_not_copyable
from rlds2buf.codecs.video.decode import decode_into
from rlds2buf.codecs.video.frame_names import FrameRun, frame_names, runs
from rlds2buf.codecs.video.probe import probe
from rlds2buf.errors import MissingDependency, SourceFormatError, SourceNotFound
from tests.codecs.video.videos import KINDS, moving, write
from tests.data import DATA
from tests.reference.video import all_frames

CAMERA = "lerobot/g1_v21/videos/chunk-000/observation.images.cam_high"


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, np.ndarray]]:
    """By kind a file, and its frames as PyAV decodes them one by one."""
    folder = tmp_path_factory.mktemp("videos")
    found = {}
    for seed, kind in enumerate(KINDS):
        path = write(folder / f"{kind}.mp4", moving(75, seed=seed), kind)
        found[kind] = (str(path), all_frames(path)[0])
    return found


REQUESTS = st.lists(
    st.tuples(st.sampled_from(list(KINDS)), st.integers(0, 74), st.integers(0, 40)), min_size=1, max_size=6
)


@given(REQUESTS, st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_frames_of_any_files_are_what_decoding_everything_gives(
    videos: dict[str, tuple[str, np.ndarray]], asked: list[tuple[str, int, int]], threads: int, random: Any
) -> None:
    requests, expected, row = [], [], 0
    for kind, first, count in asked:
        path, frames = videos[kind]
        count = min(count, len(frames) - first)
        requests.append(FrameRun(path, first, count, row))
        expected.append(frames[first : first + count])
        row += count
    random.shuffle(requests)
    out = np.full((row + 1, 96, 128, 3), 7, np.uint8)
    decode_into(out, requests, threads)
    np.testing.assert_array_equal(out[:-1], np.concatenate(expected))
    assert (out[-1] == 7).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_alone_and_backwards(kind: str, videos: dict[str, tuple[str, np.ndarray]]) -> None:
    path, frames = videos[kind]
    out = np.zeros((2 * len(frames), *frames.shape[1:]), np.uint8)
    column = frame_names(path, 0, len(frames))[::-1]
    decode_into(out, runs(np.concatenate([column, column[::7], column[: 2 * len(frames) - 86]])), threads=2)
    rows = [*range(74, -1, -1), *range(74, -1, -7), *range(74, 74 - (2 * 75 - 86), -1)]
    np.testing.assert_array_equal(out, frames[rows])


def test_real_videos_of_several_files() -> None:
    paths = [str(DATA / CAMERA / f"episode_{i:06d}.mp4") for i in range(3)]
    frames = [all_frames(path)[0] for path in paths]
    requests = [FrameRun(paths[2], 250, 40, 0), FrameRun(paths[0], 0, 60, 40), FrameRun(paths[1], 101, 20, 100)]
    out = np.zeros((120, 480, 640, 3), np.uint8)
    decode_into(out, requests)
    np.testing.assert_array_equal(out, np.concatenate([frames[2][250:290], frames[0][:60], frames[1][101:121]]))


@pytest.mark.parametrize("name, flags", [("a.mp4", "frag_keyframe+empty_moov"), ("a.mkv", "")])
def test_files_without_plain_tables(name: str, flags: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, moving(40), "h264_b", container_options={"movflags": flags} if flags else {})
    frames = all_frames(path)[0]
    out = np.zeros((60, 96, 128, 3), np.uint8)
    decode_into(out, [FrameRun(str(path), 13, 20, 0), FrameRun(str(path), 0, 40, 20)], threads=2)
    np.testing.assert_array_equal(out, np.concatenate([frames[13:33], frames]))


COLORS = [(space, range_) for space, range_ in itertools.product([2, 1, 5, 9], [0, 1, 2])]
_WEIGHTS = {1: (0.2126, 0.0722), 9: (0.2627, 0.0593)}


@pytest.mark.parametrize("colorspace, color_range", COLORS)
def test_colours_are_what_the_file_says_of_them(colorspace: int, color_range: int, tmp_path: Path) -> None:
    """Each matrix and range of ITU-T H.273, computed for even colours; unsaid: BT.601, limited."""
    import av

    rng = np.random.default_rng(1)
    path = tmp_path / "a.mp4"
    colors = rng.integers(60, 190, (12, 3))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 10, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = colorspace, color_range
        for yuv in colors:
            planes = [np.full((64, 64), yuv[0]), np.full((16, 64), yuv[1]), np.full((16, 64), yuv[2])]
            frame = av.VideoFrame.from_ndarray(np.concatenate(planes).astype(np.uint8), format="yuv420p")
            frame.colorspace, frame.color_range = colorspace, color_range
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    out = np.zeros((12, 64, 64, 3), np.uint8)
    decode_into(out, [FrameRun(str(path), 0, 12)])

    red, blue = _WEIGHTS.get(colorspace, (0.299, 0.114))
    y, cb, cr = colors.T.astype(float)
    if color_range == 2:
        y, cb, cr = y / 255, (cb - 128) / 255, (cr - 128) / 255
    else:
        y, cb, cr = (y - 16) / 219, (cb - 128) / 224, (cr - 128) / 224
    r, b = y + 2 * (1 - red) * cr, y + 2 * (1 - blue) * cb
    g = (y - red * r - blue * b) / (1 - red - blue)
    expected = np.clip(np.stack([r, g, b], 1) * 255, 0, 255)
    np.testing.assert_allclose(out[:, 20, 20], expected, atol=3.0)  # the scaler rounds down, three times


@pytest.mark.parametrize(
    "name, kind, bits", [("a.mkv", "ffv1", 10), ("a.mkv", "ffv1", 16), ("a.mp4", "hevc_depth", 12)]
)
def test_depth_maps_are_their_stored_values(name: str, kind: str, bits: int, tmp_path: Path) -> None:
    """The last as LeRobot writes them, but for being lossless."""
    rng = np.random.default_rng(0)
    depth = rng.integers(0, 1 << bits, (9, 48, 70, 1)).astype(np.uint16)
    path = write(tmp_path / name, depth, kind, pix_fmt=f"gray{bits}le")
    out = np.zeros((5, 48, 70, 1), np.uint16)
    decode_into(out, [FrameRun(str(path), 2, 5)])
    np.testing.assert_array_equal(out, depth[2:7])
    facts = probe(path)
    assert facts.is_depth and facts.pix_fmt == f"gray{bits}le"
    with pytest.raises(SourceFormatError, match=rf"frame 2: a depth map \(gray{bits}le\), whose values are uint16"):
        decode_into(np.zeros((5, 48, 70, 3), np.uint8), [FrameRun(str(path), 2, 5)])


class TestErrors:
    @pytest.fixture()
    def path(self, tmp_path: Path) -> Path:
        return write(tmp_path / "a.mp4", moving(20))

    @pytest.fixture()
    def out(self) -> np.ndarray:
        return np.zeros((30, 96, 128, 3), np.uint8)

    def test_fewer_frames_than_asked_for(self, path: Path, out: np.ndarray) -> None:
        with pytest.raises(SourceFormatError, match=r"a\.mp4: frame 24 is asked for, and it has 20 frames"):
            decode_into(out, [FrameRun(str(path), 0, 25)])

    def test_absent(self, tmp_path: Path, out: np.ndarray) -> None:
        with pytest.raises(SourceNotFound, match=r"b\.mp4: there is no such video"):
            decode_into(out, [FrameRun(str(tmp_path / "b.mp4"), 0, 1)])

    def test_another_size(self, path: Path) -> None:
        with pytest.raises(SourceFormatError, match=r"a\.mp4: frame 3: it is 96 x 128 pixels large, not 48 x 128"):
            decode_into(np.zeros((2, 48, 128, 3), np.uint8), [FrameRun(str(path), 3, 2)])

    def test_colours_are_no_depth(self, path: Path) -> None:
        with pytest.raises(SourceFormatError, match=r"a\.mp4: frame 3: its pixels are yuv420p, not .* a depth map"):
            decode_into(np.zeros((2, 96, 128, 1), np.uint16), [FrameRun(str(path), 3, 2)])

    @pytest.mark.parametrize("kind", ["av1", "h264", "hevc"])
    def test_damaged(self, kind: str, tmp_path: Path, out: np.ndarray) -> None:
        path = write(tmp_path / "a.mp4", moving(30), kind)
        content = bytearray(path.read_bytes())
        begin, end = content.index(b"mdat") + 4, content.index(b"moov") - 4
        third = (end - begin) // 3
        content[begin + third : begin + 2 * third] = bytes(third)
        path.write_bytes(content)
        with pytest.raises(SourceFormatError, match=r"a\.mp4.* damaged"):
            decode_into(out, [FrameRun(str(path), 0, 30)])

    @pytest.mark.parametrize("kind", ["av1", "h264_b", "hevc", "mpeg4"])
    @pytest.mark.parametrize("where", ["tables", "packets"])
    def test_whatever_is_damaged_it_decodes_or_says_so(
        self, kind: str, where: str, tmp_path: Path, out: np.ndarray
    ) -> None:
        """Files of which a few bytes are wrong; some once made FFmpeg's threads wait for each other for ever."""
        whole = write(tmp_path / "a.mp4", moving(14), kind).read_bytes()
        tables = whole.index(b"moov")
        begin, end = (tables, len(whole)) if where == "tables" else (whole.index(b"mdat") + 4, tables - 4)
        rng = np.random.default_rng(0)
        damaged = 0
        for i in range(100):
            content = bytearray(whole)
            for at in rng.integers(begin, end, 4):
                content[at] = rng.integers(256)
            path = tmp_path / f"{i}.mp4"
            path.write_bytes(content)
            try:
                why_not_copyable(FrameRun(str(path), 0, 5))
                decode_into(out, [FrameRun(str(path), 0, 14)], threads=2)
            except SourceFormatError as error:
                damaged += 1
                assert str(path) in str(error)
        assert damaged > 5

    def test_names_inside_that_are_no_text(self, path: Path, out: np.ndarray) -> None:
        path.write_bytes(path.read_bytes().replace(b"VideoHandler", b"Vid\xeeoHandler"))
        decode_into(out, [FrameRun(str(path), 0, 20)])
        assert probe(path).frames == 20 and out[19].any()

    def test_the_first_of_several_errors_counts(self, tmp_path: Path, out: np.ndarray) -> None:
        paths = [write(tmp_path / f"{i}.mp4", moving(3, height=64 + 2 * i)) for i in range(6)]
        with pytest.raises(SourceFormatError, match=r"2\.mp4: frame 0"):
            decode_into(out, [FrameRun(str(paths[i]), 0, 3) for i in (2, 4, 1, 0, 5)], threads=3)

    def test_no_pyav(self, path: Path, out: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "av", None)
        with pytest.raises(MissingDependency, match=r"pip install 'rlds2buf\[lerobot\]'"):
            decode_into(out, [FrameRun(str(path), 0, 1)])

    @pytest.mark.parametrize("shape, dtype", [((3, 4, 5), "u1"), ((3, 4, 5, 3), "f4"), ((3, 4, 5, 1), "u1")])
    def test_arrays_of_another_form(self, shape: tuple[int, ...], dtype: str) -> None:
        with pytest.raises(ValueError, match="frames go into"):
            decode_into(np.zeros(shape, dtype), [])

    @pytest.mark.parametrize("run", [FrameRun("a", 0, 31), FrameRun("a", 0, 2, 29), FrameRun("a", -1, 2)])
    def test_rows_that_are_not_there(self, run: FrameRun, out: np.ndarray) -> None:
        with pytest.raises(ValueError, match="does not fit into 30 rows"):
            decode_into(out, [run])

    def test_no_threads(self, out: np.ndarray) -> None:
        with pytest.raises(ValueError, match="threads must be at least 1"):
            decode_into(out, [], threads=0)


def test_nothing_asked_is_nothing_done() -> None:
    out = np.ones((2, 8, 8, 3), np.uint8)
    decode_into(out, [FrameRun("/absent.mp4", 3, 0)])
    assert out.all()


def test_threads_end_with_the_call(tmp_path: Path) -> None:
    import threading

    path = write(tmp_path / "a.mp4", moving(80), fps=Fraction(30))
    decode_into(np.zeros((80, 96, 128, 3), np.uint8), [FrameRun(str(path), 0, 80)], threads=4)
    assert not [thread for thread in threading.enumerate() if thread.name == "rlds2buf-video"]
