"""Telling whether files are the ones they were, wherever they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["fingerprint_files"]

_WHOLE = 1 << 20
_PIECE = 1 << 14
_PIECES = 64


def fingerprint_files(paths: Iterable[Path]) -> str:
    """A short text from the files' sizes and contents; their places and times don't matter.

    A file of up to 1 MiB counts with every byte.  A larger one counts with its size and 64 pieces
    of 16 KiB, evenly spread, the first and the last included: a rewritten dataset shows, a single
    number changed in place may not.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"one")
    >>> before = fingerprint_files([path])
    >>> _ = path.write_bytes(b"two")
    >>> before == fingerprint_files([path])
    False
    """
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            digest.update(f"{size}\n".encode())
            if size <= _WHOLE:
                file.seek(0)
                digest.update(file.read())
                continue
            for i in range(_PIECES):
                file.seek((size - _PIECE) * i // (_PIECES - 1))
                digest.update(file.read(_PIECE))
    return digest.hexdigest()[:32]
