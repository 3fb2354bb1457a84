"""Replay buffers: saved ones, told by their manifest, and open ones, which episodes are added to."""

from __future__ import annotations

from typing import Any

from rlds2buf.io.format import Format
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]


def _fits(look: Look) -> bool:
    if "manifest.json" not in look.names:
        return False
    manifest = look.inside("manifest.json").json()
    return isinstance(manifest, dict) and manifest.get("format") == "rlds2buf-buffer"


def _is_open_buffer(value: Any) -> bool:
    return hasattr(value, "add") and hasattr(value, "sample")


FORMATS = (
    Format(
        "buffer",
        "a saved buffer",
        source="rlds2buf.formats.buffer.source:BufferDirSource",
        sink="rlds2buf.formats.buffer.sink:BufferFolderSink",
        fits=_fits,
        takes=("budget",),
        told_by="manifest.json",
        near=lambda look: 2 * look.has_names("manifest.json"),
    ),
    Format(
        "open-buffer",
        "a buffer in memory",
        sink="rlds2buf.formats.buffer.sink:BufferSink",
        writes_to=_is_open_buffer,
    ),
)
