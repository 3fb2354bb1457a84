"""Text files in blocks of whole lines."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from rlds2buf.codecs.arrow.text import is_installed
from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound
from rlds2buf.formats.step_log.table import BLOCK_BYTES

__all__ = ["Mark", "TextBlock", "by_arrow", "mark_of", "text_blocks"]

ARROW_BYTES = 1 << 17
"""Text of fewer bytes is read before pyarrow is imported."""

_MOST_QUOTED = 1 << 26
_LONGEST_LINE = 1 << 30
_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class TextBlock:
    """Some whole lines.

    Attributes:
        file: where they are from.
        data: the lines, as UTF-8.
        offset: the file's byte that they begin at.
        stop: the byte behind them.
        line: the number of the first one, from 1.
    """

    file: Path
    data: bytes
    offset: int
    stop: int
    line: int

    @functools.cached_property
    def text(self) -> str:
        """The lines as text."""
        return self.data.decode("utf-8")

    def after(self, characters: int, lines: int) -> TextBlock:
        """The block without its first `characters`, which are `lines` lines."""
        skipped = len(self.text[:characters].encode())
        return TextBlock(self.file, self.data[skipped:], self.offset + skipped, self.stop, self.line + lines)


@dataclasses.dataclass(frozen=True)
class Mark:
    """Where a block with rows is: file, bytes, first row, rows, and first line (from 1)."""

    file: int
    offset: int
    stop: int
    row: int
    rows: int
    line: int


def by_arrow(files: Sequence[Path]) -> bool:
    """Whether it is worth while to read text files by pyarrow, and it is there."""
    return sum(file.stat().st_size for file in files) >= ARROW_BYTES and is_installed()


def mark_of(marks: Sequence[Mark], row: int) -> int:
    """The number of the mark whose block holds a row; the last one for rows behind the end."""
    return max(0, bisect.bisect_right(marks, row, key=lambda mark: mark.row) - 1)


def text_blocks(
    file: Path, offset: int = 0, line: int = 1, *, stop: int | None = None, quotes: bool = True
) -> Iterator[TextBlock]:
    """Read a UTF-8 file forward in blocks of about 1 MiB that end with a line.

    Args:
        file: what to read.
        offset, line: the byte and the line to begin at; a line must begin there.
        stop: read up to (not with) this byte, as one block.
        quotes: a line that ends inside double quotes goes on in the next one.

    Raises:
        SourceNotFound, SourceError: it can't be opened.
        SourceFormatError: it is not UTF-8, or a quoted part does not end; with the line.
    """
    with _opened(file) as stream:
        stream.seek(offset)
        if offset == 0 and stream.read(len(_BOM)) == _BOM:
            offset = len(_BOM)
        stream.seek(offset)
        held: list[bytes] = []
        while True:
            chunk = stream.read(BLOCK_BYTES if stop is None else stop - offset)
            if stop is not None and len(chunk) < stop - offset:
                raise SourceFormatError(f"{file}: became shorter while it was read")
            held.append(chunk)
            if chunk and stop is None and b"\n" not in chunk:
                if sum(map(len, held)) > _LONGEST_LINE:
                    raise SourceFormatError(f"{file}, line {line}: longer than {_LONGEST_LINE:,} bytes")
                continue  # put together once, where the line ends
            data = b"".join(held)
            end = len(data) if not chunk or stop is not None else _whole_lines(data, quotes)
            held = [data[end:]]
            if quotes and len(held[0]) > _MOST_QUOTED:
                raise SourceFormatError(f"{file}, line {line}: a quoted part that does not end")
            if end:
                whole = data if end == len(data) else data[:end]
                _check_utf8(whole, file, line)
                yield TextBlock(file, whole, offset, offset + end, line)
                offset += end
                line += int(np.count_nonzero(np.frombuffer(whole, np.uint8) == ord("\n")))
            if not chunk or stop is not None:
                return


def _opened(file: Path) -> IO[bytes]:
    try:
        return open(file, "rb")
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{file}: no such file") from cause
    except OSError as cause:
        raise SourceError(f"{file}: can't be opened: {cause.strerror or cause}") from cause


def _whole_lines(data: bytes, quotes: bool) -> int:
    """How many bytes are whole lines; 0 if there is none, or none outside quotes."""
    end = data.rfind(b"\n") + 1
    for _ in range(100):
        if not end or not quotes or b'"' not in data or data.count(b'"', 0, end) % 2 == 0:
            return end
        # The last quote opens a part that goes on; what is before its line may be whole.
        end = data.rfind(b"\n", 0, data.rfind(b'"', 0, end)) + 1
    return 0


def _check_utf8(data: bytes, file: Path, line: int) -> None:
    if data.isascii():
        return
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as cause:
        where = line + data.count(b"\n", 0, cause.start)
        raise SourceFormatError(f"{file}, line {where}: not UTF-8 text ({cause.reason})") from cause
