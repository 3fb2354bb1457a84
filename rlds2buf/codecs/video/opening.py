"""A video file opened with PyAV, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

from rlds2buf.errors import MissingDependency, SourceFormatError, SourceNotFound

__all__ = ["load_av", "open_video", "size_of_video", "translated"]

_POINTER: Final = b"version https://git-lfs.github.com/"


def load_av() -> Any:
    """PyAV.

    Raises:
        MissingDependency: it is not installed, or can't be loaded.
    """
    try:
        import av
    except ImportError as cause:
        raise MissingDependency(f"videos need PyAV: pip install 'rlds2buf[lerobot]' ({cause})") from cause
    return av


def size_of_video(path: str) -> int:
    """How many bytes the file has, if it may be a video.

    Raises:
        SourceNotFound: nothing is there.
        SourceFormatError: a folder, an empty file, or what Git LFS leaves in the place of a file.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(len(_POINTER))
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{path}: there is no such video") from cause
    except OSError as cause:
        raise SourceFormatError(f"{path}: can't be read ({cause.strerror})") from cause
    if not size:
        raise SourceFormatError(f"{path}: the file is empty")
    if head == _POINTER:
        raise SourceFormatError(f"{path}: a Git LFS pointer, not the video; 'git lfs pull' gets the files themselves")
    return size


@contextlib.contextmanager
def open_video(path: str) -> Iterator[tuple[Any, Any]]:
    """PyAV's container and its first video stream, closed at the end.

    Errors of PyAV inside of the block are translated too.

    Raises:
        SourceNotFound: nothing is there.
        SourceFormatError: no video, one without a stream of pictures, or one that is damaged.
        MissingDependency: PyAV is not installed.
    """
    av = load_av()
    size_of_video(path)
    with translated(path), av.open(path, metadata_errors="replace") as container:
        if not container.streams.video:
            raise SourceFormatError(f"{path}: there is no video in it, only {_kinds(container)}")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise SourceFormatError(f"{path}: a codec that this PyAV can't decode; a newer one may: pip install -U av")
        yield container, stream


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """PyAV's errors inside of the block become SourceFormatError that names the file."""
    av = load_av()
    try:
        yield
    except av.error.InvalidDataError as cause:
        raise SourceFormatError(f"{path}: not a video, or cut short or damaged ({_text(cause)})") from cause
    except (av.error.FFmpegError, av.codec.codec.UnknownCodecError) as cause:
        raise SourceFormatError(f"{path}: can't be decoded ({_text(cause)})") from cause


def _text(error: Any) -> str:
    return str(getattr(error, "strerror", None) or error)


def _kinds(container: Any) -> str:
    return ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
