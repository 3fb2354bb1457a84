"""Reverb's checkpoints, told by their three files, and tables of running servers."""

from __future__ import annotations

import itertools

from rlds2buf.io.format import Format
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]

_FILES = {"DONE", "tables.tfrecord", "chunks.tfrecord"}
_MAX_FOLDERS = 500


def _fits(look: Look) -> bool:
    """A checkpoint, or a checkpointer's folder with one in it."""
    return any(_FILES <= set(folder.names) for folder in itertools.islice(look.folders(1), _MAX_FOLDERS))


FORMATS = (
    Format(
        "reverb-checkpoint",
        "a Reverb checkpoint",
        source="rlds2buf.formats.reverb.checkpoint_source:ReverbCheckpointSource",
        sink="rlds2buf.formats.reverb.checkpoint_sink:ReverbCheckpointSink",
        fits=_fits,
        takes=("budget",),
        told_by="DONE, tables.tfrecord and chunks.tfrecord",
        near=lambda look: 2 * look.has_names("tables.tfrecord", "done"),
        extras={"reverb": ""},
    ),
    Format(
        "reverb",
        "a Reverb table",
        source="rlds2buf.formats.reverb.table_source:ReverbTableSource",
        scheme="reverb",
        extras={"reverb": ""},
    ),
)
