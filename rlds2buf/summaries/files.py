"""Small files that people ask for by name."""

from __future__ import annotations

from pathlib import Path

from rlds2buf.errors import SinkError
from rlds2buf.files.durable import replace_text

__all__ = ["write_file"]


def write_file(path: Path, text: str, *, overwrite: bool = False) -> None:
    """Write a file at once: it is there whole, or as it was before.

    Args:
        path: of the file; its folder is there.
        text: what it will hold.
        overwrite: replace a file that is there.

    Raises:
        SinkError: it can't be written, or something is there already.
    """
    if (path.exists() or path.is_symlink()) and not (overwrite and path.is_file() and not path.is_symlink()):
        what = "a file" if path.is_file() and not path.is_symlink() else "something that is no plain file"
        hint = "; overwrite=True replaces it" if what == "a file" else ""
        raise SinkError(f"{path}: {what} is there already{hint}")
    replace_text(path, text)
