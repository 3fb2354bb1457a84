"""RLlib's JSON output: a batch a line (``JsonWriter``), or a step a line (``Dataset.write_json``).

::

    {"type": "SampleBatch", "obs": [[..], ..], "new_obs": .., "actions": [..], "rewards": [..], "dones": [..],
     "eps_id": [..], "t": [..], "agent_index": [..], "unroll_id": [..], "infos": [{}, ..], ...}
    {"type": "MultiAgentBatch", "count": 20, "policy_batches": {"policy": {"obs": .., ...}, ...}}
    {"obs": [..], "actions": 1, "rewards": 1.0, "eps_id": 7, "t": 0, ...}

Source: rllib/offline/{json_writer, json_reader}.py, https://github.com/ray-project/ray
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlds2buf.core import nest
from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound
from rlds2buf.formats.rllib.columns import choose_policy, columns_of, of_policy

__all__ = ["json_batches"]

_ROWS = 1024
_TYPES = ("SampleBatch", "MultiAgentBatch")


def json_batches(path: Path, *, policy: str | None, infos: bool) -> Iterator[tuple[str, dict[str, nest.Nest]]]:
    """Yield where it is (``file:line``) and the columns of each batch; of single rows, up to 1024 as one.

    Args:
        path: the file.
        policy: whose batches are read of several.
        infos: whether to keep the infos, as JSON text.

    Raises:
        SourceNotFound, SourceError: the file can't be read.
        SourceFormatError: a line is no JSON object, or none that RLlib writes; its columns are packed; or
            it holds several policies and none was named.
    """
    rows: list[dict[str, Any]] = []
    first = 0
    for number, value in _objects(path):
        where = f"{path}:{number}"
        if value.get("type") in _TYPES:
            yield from _told(rows, policy, f"{path}:{first}", infos)
            rows = []
            yield where, _columns(_batch(value, policy, where), where, infos)
            continue
        if "type" in value and isinstance(value["type"], str):
            raise SourceFormatError(f"{where}: a {value['type']}, where RLlib writes {' or '.join(_TYPES)}")
        if rows and (len(rows) >= _ROWS or value.keys() != rows[0].keys()):
            yield from _told(rows, policy, f"{path}:{first}", infos)
            rows = []
        first = first if rows else number
        rows.append(value)
    yield from _told(rows, policy, f"{path}:{first}", infos)


def _batch(value: dict[str, Any], policy: str | None, where: str) -> dict[str, Any]:
    if value["type"] == "SampleBatch":
        batch = {key: child for key, child in value.items() if key != "type"}
        choose_policy(["default_policy"], policy, where)
        return batch
    batches = value.get("policy_batches")
    if not isinstance(batches, dict) or not all(isinstance(batch, dict) for batch in batches.values()):
        raise SourceFormatError(f"{where}: a MultiAgentBatch without policy_batches")
    if policy is not None and policy not in batches:
        return {}  # not every batch has steps of every policy
    return dict(batches[choose_policy(sorted(batches), policy, where)]) if batches else {}


def _told(
    rows: list[dict[str, Any]], policy: str | None, where: str, infos: bool
) -> Iterator[tuple[str, dict[str, nest.Nest]]]:
    if rows:
        keys = rows[0].keys()
        columns = _columns({key: [row[key] for row in rows] for key in keys}, where, infos)
        yield where, of_policy(columns, policy, where)


def _columns(batch: dict[str, Any], where: str, infos: bool) -> dict[str, nest.Nest]:
    try:
        return columns_of(batch, infos=infos)
    except SourceFormatError as cause:
        raise cause.at(where) from cause


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON object on each line that is not blank, with the line's number."""
    number = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise SourceFormatError(f"{path}:{number}: a JSON {type(value).__name__}, not an object")
                yield number, value
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{path}: no such file") from cause
    except SourceError:
        raise
    except OSError as cause:
        raise SourceError(f"{path}: {cause.strerror or cause}") from cause
    except (ValueError, RecursionError) as cause:
        raise SourceFormatError(f"{path}:{number}: not readable as JSON, or cut short ({cause})") from cause
