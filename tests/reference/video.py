"""Videos read frame by frame with PyAV alone, from the beginning to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def all_frames(path: str | Path, format: str = "rgb24") -> tuple[np.ndarray, list[float]]:
    """``[N, height, width, 3] uint8``, and when each is shown."""
    import av

    with av.open(str(path)) as container:
        frames = [(frame.to_ndarray(format=format), frame.time) for frame in container.decode(video=0)]
    return np.stack([pixels for pixels, _ in frames]), [time for _, time in frames]


def all_packets(path: str | Path) -> list[Any]:
    """Times of decoding and showing in seconds, whether it is a keyframe, and the bytes, as they come."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return [
            (packet.dts * packet.time_base, packet.pts * packet.time_base, packet.is_keyframe, bytes(packet))
            for packet in container.demux(stream)
            if packet.size
        ]
