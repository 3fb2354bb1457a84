"""Files of a LeRobot dataset: where the templates of info.json say that they are, and whether they are data at all."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from rlds2buf.codecs.arrow.parquet import open_parquet
from rlds2buf.errors import SourceFormatError, SourceNotFound
from rlds2buf.formats.lerobot.format import POINTER

__all__ = ["check_file", "filled", "has_footer", "opened"]

_PLACE: Final = re.compile(r"\{(\w+)(?::0?(\d{1,2})d)?\}")


def filled(template: str, **values: int | str) -> PurePosixPath:
    """A path by a template such as ``data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet``.

    Nothing else of Python's format strings is known: the template is out of a file.

    Raises:
        ValueError: it asks for something else, or leads out of the dataset's folder.

    >>> filled("videos/{video_key}/file-{file_index:03d}.mp4", video_key="top", file_index=7, chunk_index=0).as_posix()
    'videos/top/file-007.mp4'
    """

    def value(match: re.Match[str]) -> str:
        name, width = match.groups()
        if name not in values:
            raise ValueError(f"{template!r} asks for {name!r}; known are {', '.join(values)}")
        found = values[name]
        return found if isinstance(found, str) else f"{found:0{int(width or 1)}d}"

    text = _PLACE.sub(value, template)
    path = PurePosixPath(text)
    if "{" in text or "}" in text or "\0" in text:
        raise ValueError(f"{template!r} is no template of paths")
    if path.is_absolute() or ".." in path.parts or "\\" in text or not path.parts:
        raise ValueError(f"{template!r} leads out of the dataset's folder")
    return path


def check_file(path: Path) -> None:
    """Raise unless there is a file, and not a pointer to one.

    Raises:
        SourceNotFound: it is not there.
        SourceFormatError: it is a Git LFS pointer, or empty.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(len(POINTER))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as cause:
        raise SourceNotFound(f"{path}: no such file") from cause
    except OSError as cause:
        raise SourceFormatError(f"{path}: can't be opened: {cause.strerror or cause}") from cause
    if head == POINTER:
        raise SourceFormatError(
            f"{path}: a Git LFS pointer, not the data; run `git lfs pull` in the clone, or download the files"
        )
    if not head:
        raise SourceFormatError(f"{path}: empty, as a file is whose writing was broken off")


@contextlib.contextmanager
def opened(path: Path, footer: bytes | None = None) -> Iterator[Any]:
    """An open ``pyarrow.parquet.ParquetFile``.

    Args:
        path: where it is.
        footer: what it is to be read with, if it has none.

    Raises:
        SourceNotFound, SourceFormatError: as :func:`check_file`; it has no footer, or is damaged.
        MissingDependency: pyarrow is not installed.
    """
    check_file(path)
    if footer is None and not has_footer(path):
        raise SourceFormatError(
            f"{path}: a Parquet file without its footer: the recording was not finalized (lerobot's finalize())"
        )
    with open_parquet(path, footer) as parquet:
        yield parquet


def has_footer(path: Path) -> bool:
    """Whether a Parquet file was closed; it is there."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 4))
        return file.read(4) == b"PAR1" and size >= 12
