"""Videos made by PyAV alone, for tests."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {
    "av1": ("libsvtav1", {"g": "2", "crf": "30", "preset": "12"}),
    "av1_long": ("libsvtav1", {"g": "30", "crf": "35", "preset": "12"}),
    "h264": ("libx264", {"g": "2", "crf": "23", "preset": "ultrafast"}),
    "h264_b": ("libx264", {"g": "12", "bf": "3", "crf": "23", "preset": "medium", "sc_threshold": "0"}),
    "h264_short_b": ("libx264", {"g": "4", "bf": "2", "b_strategy": "0", "crf": "23", "preset": "medium"}),
    "hevc": ("libx265", {"g": "10", "crf": "28", "preset": "ultrafast", "x265-params": "log-level=none:open-gop=0"}),
    "hevc_open": (
        "libx265",
        {"crf": "28", "preset": "medium", "x265-params": "log-level=none:keyint=8:min-keyint=8:open-gop=1:bframes=3"},
    ),
    "mpeg4": ("mpeg4", {"g": "5"}),
}
"""Codecs and settings, some with B-frames, some with open groups of pictures."""

DEPTH = {"ffv1": ("ffv1", {}), "hevc_depth": ("libx265", {"x265-params": "log-level=none:lossless=1"})}
"""For one channel of 16 bits."""


def moving(count: int, height: int = 96, width: int = 128, seed: int = 0) -> np.ndarray:
    """``[count, height, width, 3] uint8``: something moves over a still ground, and no two frames are the same."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    ground = np.stack([x * 255 // width, y * 255 // height, np.full_like(x, rng.integers(256))], -1).astype(np.uint8)
    frames = np.repeat(ground[None], count, 0)
    for i in range(count):
        top, left = (i * 5) % (height - 16), (i * 7) % (width - 16)
        frames[i, top : top + 16, left : left + 16] = rng.integers(0, 256, 3)
        frames[i, :8, : 8 * (1 + i % 8)] = 255 - i % 200
    return frames


def write(path: Path, frames: np.ndarray, kind: str = "h264", fps: Any = 30, **options: Any) -> Path:
    """A file of these frames, with PyAV alone."""
    import av

    codec, settings = {**KINDS, **DEPTH}[kind]
    pix_fmt = options.pop("pix_fmt", "yuv420p")
    with av.open(str(path), "w", options=options.pop("container_options", {})) as container:
        stream = container.add_stream(codec, Fraction(fps), options={**settings, **options.pop("settings", {})})
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], pix_fmt
        for name, value in options.items():
            setattr(stream.codec_context, name, value)
        for pixels in frames:
            taken = _frame(av, pixels, pix_fmt)
            taken.colorspace = options.get("colorspace", taken.colorspace)
            taken.color_range = options.get("color_range", taken.color_range)
            container.mux(stream.encode(taken))
        container.mux(stream.encode())
    return path


def _frame(av: Any, pixels: np.ndarray, pix_fmt: str) -> Any:
    if pixels.shape[-1] == 3:
        return av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=pix_fmt)
    height, width, _ = pixels.shape
    frame = av.VideoFrame(width, height, pix_fmt)
    lines = np.zeros((height, frame.planes[0].line_size), np.uint8)
    lines[:, : 2 * width] = pixels[..., 0].astype("<u2").view(np.uint8)
    frame.planes[0].update(lines)
    return frame
