"""What a target's name says about what is written there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from rlds2buf.files.local_path import refuse_address
from rlds2buf.formats.registry import FORMATS
from rlds2buf.pipeline.sink_opening import KINDS

__all__ = ["kind_of"]

_UNKNOWN: Final[Mapping[str, str]] = {
    ".zarr": "a Zarr store",
    ".npy": "a numpy array",
    ".arrow": "Arrow tables",
    ".feather": "Arrow tables",
    ".pkl": "a pickle",
    ".pickle": "a pickle",
    ".pt": "a PyTorch file",
    ".mat": "a MATLAB file",
    ".zip": "an archive",
    ".tar": "an archive",
    ".gz": "a compressed file",
}
"""What other names mean to people, so that no folder is called so unasked."""


def kind_of(path: str | os.PathLike[str]) -> str:
    """What a path becomes where nobody says it, one of `KINDS`: by its suffix, or else a buffer.

    Raises:
        ValueError: the suffix is of files that are not written, or it is an address.

    >>> kind_of("hopper-buffer"), kind_of("hopper.hdf5")
    ('buffer', 'd4rl')
    """
    refuse_address(path)
    name = os.fspath(path)
    suffix = os.path.splitext(name)[1].lower()
    for kind, entry in KINDS.items():
        if suffix in entry.suffixes:
            return kind
    what = _UNKNOWN.get(suffix) or next((entry.what for entry in FORMATS if suffix in entry.suffixes), None)
    if what is None:
        return "buffer"
    written = ", ".join(KINDS)
    raise ValueError(
        f"{name}: {suffix} means {what}, which is not written; choose another name, or say what to write there "
        f"with to=: {written} (a buffer is a folder, whatever its name)"
    )
