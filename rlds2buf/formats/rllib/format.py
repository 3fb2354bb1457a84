"""RLlib's logged batches and steps, told by the names in the first of the files."""

from __future__ import annotations

import itertools
import re

from rlds2buf.io.format import Format
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]

_BATCH = re.compile(rb'\s*\{"type": ?"(SampleBatch|MultiAgentBatch)"')
_SUFFIXES = (".json", ".jsonl", ".parquet")
_ENDS = ("dones", "terminateds", "truncateds")
_MAX_FOLDERS = 500


def _fits(look: Look) -> bool:
    """RLlib's batches or steps, or a folder (of folders) of such files; the first file tells."""
    if look.is_folder:
        folders = itertools.islice(look.folders(2), _MAX_FOLDERS)
        files = (folder.inside(name) for folder in folders for name in folder.names)
        first = next((file for file in files if file.path.suffix in _SUFFIXES and file.path.is_file()), None)
        return first is not None and _fits(first)
    if look.path.suffix not in _SUFFIXES or not look.path.is_file():
        return False
    if look.parquet is not None:
        names = set(look.parquet)
        has_ends = any(name in names for name in _ENDS)
        rows = has_ends and {"eps_id", "obs", "actions", "rewards"} <= names
        return names == {"item"} or "policy_batches" in names or rows
    has_ends = any(f'"{name}"'.encode() in look.first_line for name in _ENDS)
    row = (b'"eps_id"', b'"obs"', b'"actions"')
    return bool(_BATCH.match(look.head)) or (has_ends and all(name in look.first_line for name in row))


FORMATS = (
    Format(
        "rllib",
        "RLlib's logged batches",
        source="rlds2buf.formats.rllib.source:RllibSource",
        sink="rlds2buf.formats.rllib.sink:RllibSink",
        fits=_fits,
        takes=("budget",),
        suffixes=(".json",),
        told_by='lines with "type": "SampleBatch", or with eps_id, obs and actions',
        near=lambda look: 2 * look.has_names(".json", ".jsonl"),
        extras={"arrow": "Parquet", "rllib": "whole episodes of its new API stack"},
    ),
)
