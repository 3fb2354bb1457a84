"""Decoded frames as arrays of pixels, as LeRobot's readers give them.

Colours: a frame that says by which matrix and range its colours are coded (BT.601, BT.709, limited, full) is taken at
its word; one that doesn't, as all that LeRobot writes, is BT.601 in the limited range.  That is what FFmpeg's scaler
does, and so torchcodec and PyAV 17's ``to_ndarray(format="rgb24")``; older PyAV needs to be told what the frame says.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rlds2buf.codecs.video.opening import load_av
from rlds2buf.errors import SourceFormatError

__all__ = ["DEPTH", "PixelReader", "reformatter"]

DEPTH: Final = ("gray9", "gray10", "gray12", "gray14", "gray16")
"""How the pixel formats of depth maps begin: one channel of more than 8 bits."""


def reformatter() -> tuple[Any, dict[str, Any]]:
    """FFmpeg's scaler for one thread, and what to tell it with each frame.

    Since PyAV 17 it asks the frame for its colours, and makes threads of its own unless told otherwise; before it does
    neither, and is to be told nothing here.
    """
    av = load_av()
    is_new = int(av.__version__.partition(".")[0]) >= 17
    return av.video.reformatter.VideoReformatter(), {"threads": 1} if is_new else {}


class PixelReader:
    """Puts frames into rows of an array; for one thread."""

    def __init__(self) -> None:
        self._reformatter, self._options = reformatter()

    def put(self, frame: Any, out: np.ndarray) -> None:
        """The pixels of a decoded frame.

        Args:
            frame: PyAV's.
            out: ``[height, width, 3] uint8`` for colours, ``[height, width, 1] uint16`` for depth.

        Raises:
            SourceFormatError: the frame is of another size, or holds something else.
        """
        height, width, channels = out.shape
        if (frame.height, frame.width) != (height, width):
            raise SourceFormatError(f"it is {frame.height} x {frame.width} pixels large, not {height} x {width}")
        if out.dtype == np.uint16:
            out[..., 0] = self._depth(frame)
        elif frame.format.name.startswith(DEPTH):
            raise SourceFormatError(f"a depth map ({frame.format.name}), whose values are uint16")
        else:
            out[...] = self._rows(self._rgb(frame), channels, np.dtype(np.uint8))

    def _rgb(self, frame: Any) -> Any:
        if self._options:
            return self._reformatter.reformat(frame, format="rgb24", **self._options)
        return self._reformatter.reformat(
            frame,
            format="rgb24",
            src_colorspace=int(frame.colorspace),
            dst_colorspace="DEFAULT",
            src_color_range=int(frame.color_range),
            dst_color_range="UNSPECIFIED",
        )

    def _depth(self, frame: Any) -> np.ndarray:
        name = frame.format.name
        if not (name.startswith(DEPTH) and name.endswith("le")):
            raise SourceFormatError(f"its pixels are {name}, not the 9 to 16 bits of a depth map")
        return self._rows(frame, 1, np.dtype("<u2"))[..., 0]

    def _rows(self, frame: Any, channels: int, dtype: np.dtype) -> np.ndarray:
        """``[height, width, channels]``: a view of the frame's memory, whose lines may be longer than the picture."""
        plane = frame.planes[0]
        lines = np.frombuffer(plane, np.uint8)[: frame.height * plane.line_size].reshape(frame.height, plane.line_size)
        used = lines[:, : frame.width * channels * dtype.itemsize]
        return used.view(dtype).reshape(frame.height, frame.width, channels)
