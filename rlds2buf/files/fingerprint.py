"""Telling whether files are the ones they were, wherever they lie."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path

__all__ = ["fingerprint_files"]

_WHOLE = 1 << 20
_PIECE = 1 << 14
_PIECES = 64
_MANY = 256


def fingerprint_files(paths: Iterable[Path]) -> str:
    """A short text from the files' sizes and contents; their places and times don't matter.

    A file of up to 1 MiB counts with every byte.  A larger one counts with its size and 64 pieces
    of 16 KiB, evenly spread, the first and the last included: a rewritten dataset shows, a single
    number changed in place may not.  Of each of more than 256 files, a sixteenth of that counts.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"one")
    >>> before = fingerprint_files([path])
    >>> _ = path.write_bytes(b"two")
    >>> before == fingerprint_files([path])
    False
    """
    digest = hashlib.sha256()
    files = iter(paths)
    first = list(itertools.islice(files, _MANY + 1))
    most, pieces = (_WHOLE, _PIECES) if len(first) <= _MANY else (_WHOLE // 16, _PIECES // 16)
    for path in itertools.chain(first, files):
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            digest.update(f"{size}\n".encode())
            if size <= most:
                file.seek(0)
                digest.update(file.read())
                continue
            for i in range(pieces):
                file.seek((size - _PIECE) * i // (pieces - 1))
                digest.update(file.read(_PIECE))
    return digest.hexdigest()[:32]
