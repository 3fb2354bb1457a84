"""Byte strings of a column, each kept once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

__all__ = ["Vocabulary"]


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
            self.strings = list(known)
            self._array = np.array([*self.strings, None], object)[:-1]
        return codes.reshape(column.shape)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Object array of ``bytes`` for codes of any shape."""
        return self._array[codes]
