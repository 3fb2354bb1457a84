"""Frames of videos by name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.codecs.video.frame_names import FrameRun, frame_names, runs
from rlds2buf.errors import SourceFormatError

PATHS = st.sampled_from(["/a.mp4", "/b#frame=1.mp4", "/with space/c.mp4", "/é\udcff.mp4", "/a.mp4#frame=2"])
RUNS = st.lists(st.tuples(PATHS, st.integers(0, 30), st.integers(0, 5)), max_size=12)


def naive_runs(rows: list[tuple[str, int]]) -> list[FrameRun]:
    found: list[FrameRun] = []
    for row, (path, number) in enumerate(rows):
        if found and found[-1].path == path and found[-1].stop == number:
            last = found.pop()
            found.append(FrameRun(path, last.first, last.count + 1, last.start_row))
        else:
            found.append(FrameRun(path, number, 1, row))
    return found


@given(RUNS)
def test_runs_are_those_found_row_by_row(parts: list[tuple[str, int, int]]) -> None:
    rows = [(path, first + i) for path, first, count in parts for i in range(count)]
    names = [frame_names(path, first, count) for path, first, count in parts]
    column = np.concatenate([np.empty(0, object), *names])
    assert runs(column) == runs(column.tolist()) == naive_runs(rows)


def test_names_hold_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = frame_names("a.mp4", 3, 2)
    assert names.dtype == object and names.shape == (2,)
    assert names.tolist() == [
        os.fsencode(tmp_path / "a.mp4") + b"#frame=3",
        os.fsencode(tmp_path / "a.mp4") + b"#frame=4",
    ]
    assert frame_names("a.mp4", 0, 0).shape == (0,) and runs(frame_names("a.mp4", 0, 0)) == []


@pytest.mark.parametrize(
    "wrong",
    [b"", b"/a.mp4", b"#frame=1", b"/a.mp4#frame=", b"/a.mp4#frame=-1", b"/a.mp4#frame=x", "/a.mp4#frame=1", None, 3],
)
def test_what_names_no_frame_is_refused(wrong: object) -> None:
    column = np.array([b"/a.mp4#frame=1", wrong], object)
    with pytest.raises(SourceFormatError, match=r"row 1: .* does not name a frame"):
        runs(column)


def test_frames_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="below 0"):
        frame_names("/a.mp4", -1, 2)


def test_a_hundred_thousand_names_take_no_call_each() -> None:
    begin = time.process_time()
    column = np.concatenate([frame_names(f"/data/file-{i:03d}.mp4", 0, 1000) for i in range(100)])
    assert len(runs(column)) == 100
    assert time.process_time() - begin < 2.0  # 0.06 s; a wide margin for machines under load
