"""Paths to write to."""

from __future__ import annotations

import os
import re

__all__ = ["refuse_address"]

_ADDRESS = re.compile(r"(([A-Za-z][A-Za-z0-9+.-]+):)/(/?)")


def refuse_address(path: str | os.PathLike[str]) -> None:
    """Raise for an address such as ``s3://bucket/name``, so that no folder of that name is made.

    Of ``Path("s3://bucket")`` pathlib has left ``s3:/bucket``; where there is a folder called ``s3:``, that is a
    path in it.

    Raises:
        ValueError: it is an address.

    >>> refuse_address("buffers/hopper")
    >>> refuse_address("s3://bucket/hopper")
    Traceback (most recent call last):
    ...
    ValueError: s3://bucket/hopper: nothing is written to s3:// addresses; name a local path
    """
    text = os.fspath(path)
    found = _ADDRESS.match(text)
    if found is None or (not found[3] and os.path.isdir(found[1])):
        return
    scheme = found[2].lower()
    way = "push fills a Reverb table" if scheme == "reverb" else "name a local path"
    raise ValueError(f"{text}: nothing is written to {scheme}:// addresses; {way}")
