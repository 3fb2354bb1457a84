"""Logs of one's own program: files that are told by their names alone, and arrays in memory."""

from __future__ import annotations

from typing import Any

from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]

_EBML = b"\x1a\x45\xdf\xa3"
_TAKES = ("columns", "optional", "budget")


def _is_log(look: Look, *suffixes: str) -> bool:
    """A file with one of the suffixes, or a folder with nothing but such files."""
    if not look.is_folder:
        return look.path.name.lower().endswith(suffixes) and look.path.is_file()
    names = [name for name in look.names if name[0] not in "._"]
    return bool(names) and all(name.lower().endswith(suffixes) for name in names)


def _is_arrays(look: Look) -> bool:
    return _is_log(look, ".npz") or (look.is_folder and _is_log(look, ".npy"))


def _is_arrays_held(value: Any) -> bool:
    """A dict of columns, or a list of such dicts; not a list of steps."""
    from rlds2buf.formats.step_log.arrays_log import holds_columns

    first = value[0] if isinstance(value, list | tuple) and value else value
    return holds_columns(first)


def _is_calvin(look: Look) -> bool:
    return "ep_start_end_ids.npy" in look.names or look.path.name in ("ep_start_end_ids.npy", "auto_lang_ann.npy")


_CALVIN = (
    "CALVIN's (a file for each step, annotations in a pickle), which is not read: pickles are never loaded; its "
    "conversions to RLDS and LeRobot are"
)
_ROBO_DM = (
    "Robo-DM's .vla (Matroska with pickled streams), which is not read: pickles are never loaded; its own tools "
    "export RLDS and LeRobot, which are"
)

FORMATS = (
    Format(
        "csv",
        "a log in CSV",
        source="rlds2buf.formats.step_log.csv_log:StepLogCsvSource",
        fits=lambda look: _is_log(look, ".csv", ".tsv"),
        takes=_TAKES,
        suffixes=(".csv", ".tsv"),
        by_name=True,
        told_by="a file .csv, or a folder of nothing else",
        near=lambda look: 3 * look.has_names(".csv", ".tsv", ".txt"),
    ),
    Format(
        "parquet",
        "a log in Parquet",
        source="rlds2buf.formats.step_log.parquet_log:StepLogParquetSource",
        sink="rlds2buf.formats.step_log.parquet_sink:ParquetSink",
        fits=lambda look: _is_log(look, ".parquet", ".pq", ".parq"),
        takes=_TAKES,
        suffixes=(".parquet", ".pq", ".parq"),
        target_suffixes=(".parquet", ".pq"),
        by_name=True,
        told_by="a file .parquet, or a folder of nothing else",
        near=lambda look: 3 * look.has_names(".parquet", ".pq", ".parq"),
        extras={"arrow": ""},
    ),
    Format(
        "jsonl",
        "a log in JSON Lines",
        source="rlds2buf.formats.step_log.json_log:StepLogJsonSource",
        fits=lambda look: _is_log(look, ".jsonl", ".ndjson"),
        takes=("columns", "optional"),
        suffixes=(".jsonl", ".ndjson"),
        by_name=True,
        told_by="a file .jsonl, or a folder of nothing else",
        near=lambda look: 3 * look.has_names(".json", ".jsonl", ".ndjson"),
    ),
    Format(
        "npz",
        "a log of numpy arrays",
        source="rlds2buf.formats.step_log.npz_log:StepLogNpzSource",
        fits=_is_arrays,
        takes=_TAKES,
        suffixes=(".npz",),
        by_name=True,
        told_by="a file .npz, or a folder of nothing but .npz or .npy",
        refusals=(
            Refusal(_is_calvin, lambda look: _CALVIN),
            Refusal(lambda look: look.head.startswith(_EBML) and look.path.suffix == ".vla", lambda look: _ROBO_DM),
        ),
        near=lambda look: 3 * look.has_names(".npz", ".npy"),
    ),
    Format(
        "arrays",
        "a dict of arrays",
        source="rlds2buf.formats.step_log.arrays_log:StepLogArraysSource",
        fits_object=_is_arrays_held,
        takes=("columns", "optional"),
    ),
)
