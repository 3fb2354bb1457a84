"""Frames decode to the pixels that torchcodec, by which lerobot reads, makes of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from rlds2buf.codecs.video.copying import copy_runs
from rlds2buf.codecs.video.decode import decode_into
from rlds2buf.codecs.video.encode import VideoEncoder
from rlds2buf.codecs.video.frame_names import FrameRun
from rlds2buf.codecs.video.probe import probe
from tests.codecs.video.videos import KINDS, moving, write
from tests.data import DATA

CAMERA = "lerobot/g1_v21/videos/chunk-000/observation.images.cam_high"


def check(path: Path) -> None:
    """The same pixels and times, for frames sought one by one as lerobot does."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(str(path), seek_mode="approximate")
    facts = probe(path)
    assert len(decoder) == facts.frames
    numbers = np.random.default_rng(0).permutation(facts.frames)[:40].tolist()
    theirs = decoder.get_frames_at(indices=numbers)
    np.testing.assert_allclose(theirs.pts_seconds.numpy(), facts.timestamps[numbers], atol=1e-6)
    ours = np.zeros((len(numbers), facts.height, facts.width, 3), np.uint8)
    decode_into(ours, [FrameRun(str(path), number, 1, row) for row, number in enumerate(numbers)])
    np.testing.assert_array_equal(ours, theirs.data.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_videos_of_others(kind: str, tmp_path: Path) -> None:
    check(write(tmp_path / "a.mp4", moving(50), kind))


@pytest.mark.parametrize("codec", ["av1", "h264", "hevc"])
def test_videos_of_ours(codec: str, tmp_path: Path) -> None:
    parts = []
    for i, count in enumerate((7, 30, 1)):
        with VideoEncoder(tmp_path / f"{i}.mp4", 128, 96, 30, codec=codec) as video:
            video.add(moving(count, seed=i))
        check(tmp_path / f"{i}.mp4")
        parts.append(FrameRun(str(tmp_path / f"{i}.mp4"), 0, count))
    copy_runs(parts, tmp_path / "all.mp4")
    check(tmp_path / "all.mp4")


def test_a_real_video() -> None:
    check(DATA / CAMERA / "episode_000000.mp4")


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuvj420p", "yuv444p", "gray"])
@pytest.mark.parametrize(("colorspace", "color_range"), list(itertools.product([2, 1, 5, 6, 9], [0, 1, 2])))
def test_colours_are_what_the_file_says(colorspace: int, color_range: int, pix_fmt: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", moving(5), pix_fmt=pix_fmt, colorspace=colorspace, color_range=color_range)
    check(path)
