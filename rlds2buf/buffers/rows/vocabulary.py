"""Byte strings of a column, each kept once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rlds2buf.buffers.rows.blobs import OBJECT
from rlds2buf.files.blob_file import SavedBlobs

__all__ = ["MAX_BYTES", "MAX_STRINGS", "SavedTexts", "TextCoder", "Vocabulary"]

MAX_STRINGS = 1 << 16
MAX_BYTES = 1 << 24
"""Beyond so many different strings, or bytes of them together, strings are kept row by row."""

_MANIFEST_STRINGS, _MANIFEST_BYTES = 1 << 12, 1 << 16


class Vocabulary:
    """Numbers for byte strings, in order of first appearance; number 0 is the empty string.

    Instructions and ids repeat from row to row, so a column of strings is stored as a column of
    numbers.

    >>> words = Vocabulary()
    >>> words.encode(np.array([b"pick", b"place", b"pick"], object))
    array([1, 2, 1], dtype=int32)
    >>> words.decode(np.array([2, 0])).tolist()
    [b'place', b'']
    """

    def __init__(self, strings: Iterable[bytes] = (b"",)) -> None:
        self.strings = list(strings)
        self._codes = {text: code for code, text in enumerate(self.strings)}
        self._array = np.array([*self.strings, None], object)[:-1]
        self.nbytes = sum(map(len, self.strings))

    def __len__(self) -> int:
        return len(self.strings)

    @property
    def fits_manifest(self) -> bool:
        """Whether there is so little text that a manifest may hold it."""
        return len(self.strings) <= _MANIFEST_STRINGS and self.nbytes <= _MANIFEST_BYTES

    @property
    def is_large(self) -> bool:
        """Whether there are so many strings that rows should keep their own."""
        return len(self.strings) > MAX_STRINGS or self.nbytes > MAX_BYTES

    def encode(self, column: np.ndarray) -> np.ndarray:
        """``int32`` codes of a column of ``bytes`` (``str`` is taken as UTF-8), any shape."""
        flat = column.reshape(-1)
        codes = np.empty(len(flat), np.int32)
        known = self._codes
        previous, code = None, 0
        for i, text in enumerate(flat.tolist()):
            if text is not previous:
                key = text.encode() if isinstance(text, str) else bytes(text)
                code = known.setdefault(key, len(known))
                previous = text
            codes[i] = code
        if len(known) > len(self.strings):
            before = len(self.strings)
            self.strings = list(known)
            self._array = np.array([*self.strings, None], object)[:-1]
            self.nbytes += sum(map(len, self.strings[before:]))
        return codes.reshape(column.shape)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Object array of ``bytes`` for codes of any shape."""
        return self._array[codes]

    def parts(self) -> Iterator[np.ndarray]:
        """All strings in order, as object arrays."""
        yield self._array


class SavedTexts:
    """The strings of a saved vocabulary that is too large for a manifest; nothing can be added.

    Args:
        strings: ``[N]``, by their numbers.
    """

    is_large, fits_manifest = True, False

    def __init__(self, strings: SavedBlobs) -> None:
        self._strings = strings
        self.nbytes = strings.nbytes

    def __len__(self) -> int:
        return len(self._strings)

    def encode(self, column: np.ndarray) -> np.ndarray:
        """Not to be called: whoever adds has such a column promoted first."""
        raise AssertionError("a saved vocabulary takes no strings")

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """As :meth:`Vocabulary.decode`."""
        return self._strings[codes.reshape(-1)].reshape(codes.shape)

    def parts(self) -> Iterator[np.ndarray]:
        """As :meth:`Vocabulary.parts`."""
        for start in range(0, len(self), 1024):
            yield self._strings[start : start + 1024]


class TextCoder:
    """Numbers for strings that are written to a file one behind the other, and not held.

    Strings met again get the number they had, as long as they are among the first ones, which are
    remembered up to the limits above; so it takes little memory however many there are.

    Args:
        known: the first strings of those written so far.
        count: how many those are; None for the same number.

    >>> texts = TextCoder()
    >>> [part.tolist() for part in texts.encode(np.array([b"pick", b"place", b"pick"], object))]
    [[1, 2, 1], [b'pick', b'place']]
    """

    def __init__(self, known: Iterable[bytes] = (b"",), count: int | None = None) -> None:
        self._codes: dict[bytes, int] = {}
        self._bytes = 0
        for code, text in enumerate(known):
            self._remember(text, code)
        self.count = len(self._codes) if count is None else count

    @property
    def small(self) -> list[bytes] | None:
        """All strings where there are so few of them that a manifest may hold them; else None."""
        if self.count > len(self._codes) or self.count > _MANIFEST_STRINGS or self._bytes > _MANIFEST_BYTES:
            return None
        return list(self._codes)

    def encode(self, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``int32`` codes of a column of ``bytes``, and an object array of those to be written behind the others."""
        flat = [value or b"" for value in column.reshape(-1).tolist()]
        codes = np.empty(len(flat), np.int32)
        fresh: list[bytes] = []
        previous, code = None, 0
        for i, text in enumerate(flat):
            if text != previous:
                found = self._codes.get(text)
                if found is None:
                    found = self.count
                    self.count += 1
                    fresh.append(text)
                    self._remember(text, found)
                previous, code = text, found
            codes[i] = code
        texts = np.empty(len(fresh), OBJECT)
        texts[:] = fresh
        return codes.reshape(column.shape), texts

    def _remember(self, text: bytes, code: int) -> None:
        if len(self._codes) < MAX_STRINGS and self._bytes + len(text) <= MAX_BYTES and code == len(self._codes):
            self._codes[text] = code
            self._bytes += len(text)
