"""Frames of videos by name: one byte string per row in place of pixels, ``b"/data/episode_000000.mp4#frame=17"``.

Rows can then be filtered, cut and merged without decoding anything; whoever wants pixels, or whole runs of
packets, asks which frames of which file the rows are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rlds2buf.errors import SourceFormatError

__all__ = ["FrameRun", "frame_names", "runs"]

_MARK: Final = b"#frame="


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Consecutive frames of one file in consecutive rows.

    Attributes:
        path: the file.
        first: the number of its first frame, 0-based, in the order of presentation.
        count: how many frames.
        start_row: the row of the first.

    >>> FrameRun("a.mp4", 10, 5).stop
    15
    """

    path: str
    first: int
    count: int
    start_row: int = 0

    @property
    def stop(self) -> int:
        """The number of the frame behind the last."""
        return self.first + self.count


def frame_names(path: str | os.PathLike[str], first: int, count: int) -> np.ndarray:
    """The names of `count` frames from number `first` on, ``[count] object`` (bytes).

    The file's absolute path stands in them; links are not followed, and the file need not be there.

    >>> frame_names("/data/a.mp4", 9, 2).tolist()
    [b'/data/a.mp4#frame=9', b'/data/a.mp4#frame=10']
    """
    if first < 0 or count < 0:
        raise ValueError(f"frames {first} to {first + count}: there are none below 0")
    head = os.fsencode(Path(path).absolute()) + _MARK
    out = np.empty(count, object)
    out[:] = [head + b"%d" % number for number in range(first, first + count)]
    return out


def runs(names: Sequence[bytes] | np.ndarray) -> list[FrameRun]:
    """The longest runs of consecutive frames of one file, in the order of the rows.

    Args:
        names: ``[T]`` byte strings as :func:`frame_names` gives them.

    Raises:
        SourceFormatError: one of them is no name of a frame.

    >>> runs([b"/a.mp4#frame=3", b"/a.mp4#frame=4", b"/b.mp4#frame=5", b"/b.mp4#frame=5"])
    [FrameRun(path='/a.mp4', first=3, count=2, start_row=0), FrameRun(path='/b.mp4', first=5, count=1, start_row=2), \
FrameRun(path='/b.mp4', first=5, count=1, start_row=3)]
    """
    rows = names.tolist() if isinstance(names, np.ndarray) else list(names)
    if not rows:
        return []
    try:
        heads, _, tails = zip(*[row.rpartition(_MARK) for row in rows], strict=True)
        numbers = np.array(tails, "S").astype(np.int64)
    except (AttributeError, TypeError, ValueError) as cause:
        raise _stranger(rows) from cause
    if not all(heads) or numbers.min() < 0:
        raise _stranger(rows)
    is_new = np.ones(len(rows), bool)
    is_new[1:] = numbers[1:] != numbers[:-1] + 1
    is_new[1:] |= np.fromiter(map(bytes.__ne__, heads[1:], heads), bool, len(rows) - 1)
    starts = np.flatnonzero(is_new)
    counts = np.diff(starts, append=len(rows))
    paths = {head: os.fsdecode(head) for head in {heads[start] for start in starts}}
    return [
        FrameRun(paths[heads[start]], first, count, start)
        for start, first, count in zip(starts.tolist(), numbers[starts].tolist(), counts.tolist(), strict=True)
    ]


def _stranger(rows: Sequence[object]) -> SourceFormatError:
    for row, name in enumerate(rows):
        head, mark, number = name.rpartition(_MARK) if isinstance(name, bytes) else (b"", b"", b"")
        if not (head and mark and number.isdigit()):
            return SourceFormatError(f"row {row}: {str(name)[:80]} does not name a frame of a video")
    return SourceFormatError("frames of videos whose numbers are too large")
