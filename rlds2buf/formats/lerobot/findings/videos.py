"""Each video: what it is against what info.json says, and its frames against the rows of its episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.video.probe import VideoFacts, probe
from rlds2buf.core.issue import Issue
from rlds2buf.errors import MissingDependency, SourceError
from rlds2buf.formats.lerobot.findings.dataset import Scope
from rlds2buf.formats.lerobot.index import Footage
from rlds2buf.formats.lerobot.info import Feature

__all__ = ["known_facts", "video_findings"]

_SAME: Final = {
    "libsvtav1": "av1",
    "libdav1d": "av1",
    "av01": "av1",
    "libx264": "h264",
    "avc": "h264",
    "avc1": "h264",
    "libx265": "hevc",
    "h265": "hevc",
    "hvc1": "hevc",
    "hev1": "hevc",
    "mp4v": "mpeg4",
}
"""Other names of codecs: of encoders, and those in MP4 files."""


def video_findings(dataset: Scope) -> Iterator[Issue]:
    """Of every camera that is read; a video that is no video is left to who reads it."""
    for camera, footage in dataset.footage.items():
        odd: dict[tuple[str, str, str], list[Path]] = {}
        seen: Counter[str] = Counter()
        chosen = dataset.chosen[np.argsort(footage.file[dataset.chosen], kind="stable")]
        edges = np.flatnonzero(np.diff(footage.file[chosen], prepend=-1))
        for episodes in np.split(chosen, edges[1:]) if len(chosen) else ():
            file = footage.files[int(footage.file[episodes[0]])]
            facts = known_facts(file)
            if facts is None:
                continue
            seen["files"] += 1
            for name, told, is_so in _differences(dataset.info.features[camera], facts, dataset.info.fps):
                odd.setdefault((name, str(told), str(is_so)), []).append(file)
            yield from _frames(dataset, camera, footage, episodes, file, facts)
        for (name, told, found), files in odd.items():
            which = "all videos" if len(files) == seen["files"] > 1 else files[0].name
            which += f" and {len(files) - 1} more" if 1 < len(files) < seen["files"] else ""
            text = f"info.json says that {name} is {told}, of {which} it is {found}"
            yield dataset.issue("wrong-info", text, file=files[0], feature=camera)


def known_facts(file: Path) -> VideoFacts | None:
    """What a video is; None of what can't be read as one.

    Raises:
        MissingDependency: PyAV is needed and not installed.
    """
    try:
        return probe(file)
    except MissingDependency:
        raise
    except SourceError:
        return None


def _differences(feature: Feature, facts: VideoFacts, fps: float) -> Iterator[tuple[str, Any, Any]]:
    """What info.json says otherwise of a camera: name, what it says, what the video is."""
    info = feature.info
    codec = str(info.get("video.codec", facts.codec)).lower()
    if _SAME.get(codec, codec) != facts.codec:
        yield "video.codec", codec, facts.codec
    for name, found in (("video.pix_fmt", facts.pix_fmt), ("has_audio", facts.has_audio)):
        if info.get(name, found) != found:
            yield name, info[name], found
    if feature.spec.shape[:2] != (facts.height, facts.width):
        yield "the size (height, width)", (*feature.spec.shape[:2],), (facts.height, facts.width)
    if facts.fps and abs(float(facts.fps) - fps) > 1e-3 * fps:
        yield "fps", f"{fps:g}", f"{float(facts.fps):g}"
    if feature.is_depth != facts.is_depth:
        yield "is_depth_map", feature.is_depth, facts.is_depth


def _frames(
    dataset: Scope, camera: str, footage: Footage, episodes: np.ndarray, file: Path, facts: VideoFacts
) -> Iterator[Issue]:
    """That the video has the frames of its episodes, and no others."""
    first = np.rint(footage.start[episodes] * dataset.info.fps).astype(np.int64)
    stop = first + dataset.index.lengths[episodes]
    for i in np.flatnonzero(stop > facts.frames).tolist():
        text = (
            f"its {stop[i] - first[i]} rows need frames {first[i]} to {stop[i] - 1}, and the video has {facts.frames}"
        )
        yield dataset.issue("video-frames", text, file=file, feature=camera, episode=episodes[i])
    if not dataset.is_whole:
        return
    shown = np.zeros(facts.frames, np.bool_)
    for low, high in zip(first.tolist(), stop.tolist(), strict=True):
        shown[low:high] = True
    if not shown.all():
        text = f"{np.count_nonzero(~shown):,} of its {facts.frames:,} frames belong to no row"
        text += f", the first one is number {int(np.argmin(shown))}"
        only = episodes[0] if len(episodes) == 1 else None
        yield dataset.issue("unused-frames", text, file=file, feature=camera, episode=only)
