"""Frames of a camera on their way into videos: each episode encoded by itself, then copied behind the others.

So an episode begins with a keyframe wherever it ends up, can be copied out again without decoding, and is the same
bytes whatever came before it.  Frames that come by name, whole episodes of a video or the beginning of one, are copied
without being decoded at all.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.video.copying import copy_kind, copy_runs, packet_bytes, why_not_copyable
from rlds2buf.codecs.video.decode import decode_into
from rlds2buf.codecs.video.encode import CODECS, VideoEncoder
from rlds2buf.codecs.video.frame_names import FrameRun, runs
from rlds2buf.codecs.video.probe import probe
from rlds2buf.codecs.video.psnr import psnr
from rlds2buf.core import nest
from rlds2buf.errors import SinkError, SnapshotCorrupt
from rlds2buf.files.durable import sync_file
from rlds2buf.formats.lerobot.features import Camera
from rlds2buf.formats.lerobot.picture_cells import decoded, pixels_of

__all__ = ["CameraVideos", "Encoding"]

_AT_ONCE: Final = 3
"""Videos that are encoded at the same time: the next begins while the last ones end."""
_COMPARED: Final = 20
"""Episodes of which a frame is compared with what came of it."""
_NAMES: Final = {"libsvtav1": "av1", "libx264": "h264", "libx265": "hevc"}


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How frames are encoded.

    Attributes:
        codec: of :data:`rlds2buf.codecs.video.encode.CODECS`; None: AV1, and what is a video already is copied, or
            stays of its codec.
        crf, g, preset: as of :class:`~rlds2buf.codecs.video.encode.VideoEncoder`.
    """

    codec: str | None = None
    crf: int | None = 30
    g: int | None = 2
    preset: str | int | None = None

    @property
    def encoder(self) -> str:
        """What encodes."""
        return CODECS[self.codec or "libsvtav1"]

    def like(self, codec: str) -> Encoding:
        """For frames of a video of a codec, which stay of it unless another one was asked for."""
        return dataclasses.replace(self, codec=codec) if self.codec is None and codec in CODECS else self


@dataclasses.dataclass
class _Episode:
    """Frames that will be in a video: of a run that is there, or that an encoder is at work on."""

    run: FrameRun
    encoder: VideoEncoder | None = None
    compared: tuple[int, np.ndarray] | None = None


class CameraVideos:
    """The videos of one camera, one behind the other.

    Args:
        camera: whose.
        place: a video's path, by its number.
        parts: a folder for what is encoded, until it is copied.
        encoding: how.
        most_bytes: of a video; an episode alone may be larger.  0: each episode has its own.
        reached: what :meth:`checkpoint` gave an interrupted run, to go on from.

    Attributes:
        placed: ``[file, first frame, frames]`` of the episodes that are settled, and were not taken yet.

    Raises:
        SnapshotCorrupt: what `reached` tells of is not there.
    """

    def __init__(
        self,
        camera: Camera,
        place: Callable[[int], Path],
        parts: Path,
        encoding: Encoding,
        *,
        most_bytes: int,
        reached: Mapping[str, Any] | None = None,
    ) -> None:
        self.camera = camera
        self._place, self._parts, self._encoding, self._most_bytes = place, parts, encoding, most_bytes
        self._again = encoding
        self._count = self._number = self._bytes = 0
        self._kind = b""
        self._held: list[FrameRun] = []
        self._spent: list[Path] = []
        self._waiting: deque[_Episode] = deque()
        self._fps = 0
        self._encoded = 0
        self._why = ""
        self._ratios: list[float] = []
        self.placed: list[list[int]] = []
        try:
            parts.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise SinkError(f"{parts}: {cause.strerror or cause}") from cause
        if reached is not None:
            self._go_on(reached)

    def append(self, column: np.ndarray, fps: int) -> None:
        """The frames of one more episode.

        Args:
            column: ``[T, height, width, 3 or 1] uint8``, or ``[T] object`` names of frames, or files of pictures.
            fps: frames a second.

        Raises:
            SinkError: earlier ones could not be encoded or written.
            SourceFormatError: frames that come by name are not there.
            SpecMismatch: a file is not the picture that it should be.
        """
        self._fps = fps
        run = self._copied(column) if self.camera.is_video else None
        if run is not None:
            self._waiting.append(_Episode(run))
        else:
            self._waiting.append(self._encode(self._decoded(column)))
        self._count += 1
        while sum(episode.encoder is not None for episode in self._waiting) > _AT_ONCE:
            self._settle()
        while self._waiting and self._waiting[0].encoder is None:
            self._settle()

    def drain(self) -> None:
        """Wait for everything that is being encoded."""
        while self._waiting:
            self._settle()

    def checkpoint(self) -> dict[str, Any]:
        """Behind :meth:`drain`: force what there is to the disk; what is returned is `reached` of another one."""
        try:
            for path in {Path(run.path) for run in self._held if self._is_own(run)}:
                sync_file(path)
        except OSError as cause:
            raise SinkError(f"{cause.filename}: {cause.strerror or cause}") from cause
        held = [[Path(run.path).name if self._is_own(run) else run.path, run.first, run.count] for run in self._held]
        return {
            "count": self._count,
            "number": self._number,
            "bytes": self._bytes,
            "kind": self._kind.hex(),
            "held": held,
            "encoded": self._encoded,
            "fps": self._fps,
        }

    def forget(self) -> None:
        """Remove what is copied already; what :meth:`checkpoint` gave is on the disk."""
        for path in self._spent:
            path.unlink(missing_ok=True)
        self._spent = []

    def finish(self) -> None:
        """Write the last video."""
        self.drain()
        if self._held:
            self._flush()

    def abandon(self) -> None:
        """Let go of everything; idempotent."""
        for episode in self._waiting:
            if episode.encoder is not None:
                episode.encoder.abort()
        self._waiting.clear()

    def said(self) -> Iterator[str]:
        """Sentences on what became of the frames."""
        where = nest.path_name(self.camera.field.path)
        copied = self._count - self._encoded
        if copied:
            rest = f"{self._encoded:,} were encoded again: {self._why}" if self._encoded else "none was encoded again"
            yield f"{where}: the packets of {copied:,} episodes were copied, {rest}"
        elif self.camera.is_video and self._encoded:
            yield f"{where}: all {self._encoded:,} episodes were encoded again: {self._why}"
        if self._ratios:
            codec = _NAMES[self._again.encoder]
            yield (
                f"{where} is a video ({codec}, crf {self._encoding.crf}): PSNR {np.mean(self._ratios):.1f} dB, "
                f"at least {min(self._ratios):.1f}, by a frame of each of {len(self._ratios)} episodes"
            )

    def info(self) -> dict[str, Any]:
        """What ``info.json`` says of the videos, by the first of them."""
        facts = probe(self._place(0))
        return {
            "video.height": facts.height,
            "video.width": facts.width,
            "video.codec": facts.codec,
            "video.pix_fmt": facts.pix_fmt,
            "video.is_depth_map": facts.is_depth,
            "video.fps": self._fps,
            "video.channels": 1 if facts.is_depth else 3,
            "has_audio": False,
        }

    def _copied(self, column: np.ndarray) -> FrameRun | None:
        """The run that an episode's frames are, if their packets can be copied."""
        found = runs(column)
        facts = probe(found[0].path)
        self._again = self._encoding.like(facts.codec)
        if len(found) > 1:
            self._why = "its frames are not one run of a video"
            return None
        codec = self._encoding.codec
        if codec is not None and facts.codec != _NAMES[self._encoding.encoder]:
            self._why = f"it was {facts.codec}"
            return None
        why = why_not_copyable(found[0])
        if why is not None:
            self._why = why
            return None
        return found[0]

    def _decoded(self, column: np.ndarray) -> np.ndarray:
        if self.camera.is_encoded:
            return np.stack(pixels_of(column, self.camera, range(len(column))))
        if not self.camera.is_video:
            return column
        if self.camera.is_depth:
            where = nest.path_name(self.camera.field.path)
            raise SinkError(f"{where}: depth can be copied, not encoded, and {self._why}: --drop {where}")
        return decoded(column, self.camera)

    def _encode(self, frames: np.ndarray) -> _Episode:
        height, width = frames.shape[1:3]
        path = self._parts / f"{self._count:06d}.mp4"
        path.unlink(missing_ok=True)
        how = self._again
        encoder = VideoEncoder(
            path, width, height, self._fps, codec=how.encoder, crf=how.crf, g=how.g, preset=how.preset
        )
        try:
            encoder.add(frames)
        except BaseException:
            encoder.abort()
            raise
        encoder.end()
        self._encoded += 1
        middle = len(frames) // 2
        compared = (middle, frames[middle : middle + 1].copy()) if len(self._ratios) < _COMPARED else None
        return _Episode(FrameRun(str(path), 0, len(frames)), encoder, compared)

    def _settle(self) -> None:
        """The first that waits is copied behind the others, or will be."""
        episode = self._waiting[0]
        run = episode.run
        if episode.encoder is not None:
            facts = episode.encoder.close()
            if facts.frames != run.count:
                raise SinkError(f"{run.path}: {facts.frames} frames were encoded of {run.count}")
            self._compare(episode)
        self._waiting.popleft()
        size, kind = packet_bytes(run), copy_kind(run)
        if self._held and (not self._most_bytes or self._bytes + size >= self._most_bytes or kind != self._kind):
            self._flush()
        frames = sum(held.count for held in self._held)
        self._held.append(run)
        self._bytes, self._kind = self._bytes + size, kind
        self.placed.append([self._number, frames, run.count])

    def _compare(self, episode: _Episode) -> None:
        if episode.compared is None or len(self._ratios) >= _COMPARED:
            return
        frame, pixels = episode.compared
        pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3))
        out = np.empty(pixels.shape, np.uint8)
        decode_into(out, [FrameRun(episode.run.path, frame, 1)], threads=1)
        self._ratios.append(float(min(99.0, psnr(np.ascontiguousarray(pixels), out)[0])))

    def _flush(self) -> None:
        """Write a video of what is held."""
        path = self._place(self._number)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if len(self._held) == 1 and self._is_own(self._held[0]):
                _link(self._held[0].path, path)
            else:
                copy_runs(self._held, path, self._fps)
        except OSError as cause:
            raise SinkError(f"{path}: {cause.strerror or cause}") from cause
        self._spent += [Path(run.path) for run in self._held if self._is_own(run)]
        self._number += 1
        self._bytes, self._held = 0, []

    def _is_own(self, run: FrameRun) -> bool:
        return Path(run.path).parent == self._parts

    def _go_on(self, reached: Mapping[str, Any]) -> None:
        self._count, self._number, self._bytes = (int(reached[name]) for name in ("count", "number", "bytes"))
        self._kind = bytes.fromhex(reached["kind"])
        self._encoded, self._fps = int(reached["encoded"]), int(reached["fps"])
        for name, first, count in reached["held"]:
            path = name if os.path.isabs(name) else str(self._parts / name)
            if not os.path.isfile(path):
                raise SnapshotCorrupt(f"{path}: missing, it can't be gone on from; start over")
            self._held.append(FrameRun(path, first, count))
        kept = {Path(run.path).name for run in self._held}
        for path in self._parts.iterdir():
            if path.name not in kept:
                path.unlink()


def _link(source: str, target: Path) -> None:
    """The same file at another place."""
    try:
        os.link(source, target)
    except OSError:  # some file systems have no links
        shutil.copyfile(source, target)
