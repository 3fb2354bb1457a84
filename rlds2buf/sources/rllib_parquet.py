"""RLlib's Parquet output: a step a row (the new API stack), or a batch a row (the older ``DatasetWriter``).

The new stack's columns are ``eps_id, agent_id, module_id, obs, actions, rewards, new_obs, terminateds,
truncateds`` and the module's own outputs.  With ``output_write_episodes=True`` it writes whole episodes as
one binary column ``item``: msgpack, in which arrays of objects are pickles; that is refused.

Source: rllib/offline/{offline_env_runner, dataset_writer}.py, https://github.com/ray-project/ray
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.errors import SourceFormatError
from rlds2buf.sources.arrow_columns import arrow_errors, import_pyarrow, table_column
from rlds2buf.sources.rllib_columns import HOW_TO_UNPACK, columns_of, refuse_packed
from rlds2buf.sources.rllib_json import choose_policy

__all__ = ["parquet_batches"]

_ROWS = 4096
_EPISODES = "item"


def parquet_batches(path: Path, *, policy: str | None, infos: bool) -> Iterator[tuple[str, dict[str, nest.Nest]]]:
    """Yield where it is (file and row) and the columns of each batch.

    Args, Raises: as :func:`rlds2buf.sources.rllib_json.json_batches`.
    """
    pyarrow = import_pyarrow(f"{path}: Parquet")
    with arrow_errors(path):
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            names = [str(name) for name in file.schema_arrow.names]
            if names == [_EPISODES]:
                raise SourceFormatError(
                    f"{path}: whole episodes as serialized objects in one column {_EPISODES!r} (msgpack that may hold "
                    f"pickles), which are never loaded; {HOW_TO_UNPACK}"
                )
            first = 0
            for batch in file.iter_batches(_ROWS, use_threads=False):
                table = pyarrow.Table.from_batches([batch])
                table.validate(full=True)
                where = f"{path}, row {first}"
                try:
                    if "type" in names or "policy_batches" in names:
                        yield from _whole_batches(table, policy, infos, path, first)
                    else:
                        yield where, _rows(table, policy, infos, where)
                except SourceFormatError as cause:
                    raise SourceFormatError(
                        f"{where}: {cause}" if str(path) not in str(cause) else str(cause)
                    ) from cause
                first += batch.num_rows


def _rows(table: Any, policy: str | None, infos: bool, where: str) -> dict[str, nest.Nest]:
    columns: dict[str, nest.Nest] = {}
    for name in [str(name) for name in table.column_names]:
        if name == "infos":
            if infos:
                texts = [json.dumps(value, sort_keys=True, default=str) for value in table.column(name).to_pylist()]
                columns[name] = np.array([text.encode() for text in texts], object)
            continue
        column = table_column(table, name)
        if isinstance(column, np.ndarray) and column.dtype == object and len(column):
            refuse_packed(column[0], name)
            if any(value is None for value in column):
                raise SourceFormatError(f"{name}: some of its values are null")
        if column is not None:
            columns[name] = column
    modules = columns.get("module_id")
    if not isinstance(modules, np.ndarray) or not len(modules):
        return columns
    held = sorted({value.decode("utf-8", "replace") for value in set(modules.tolist())})
    if policy is not None and policy not in held:
        return {}
    chosen = modules == choose_policy(held, policy, where).encode()
    return nest.map_structure(lambda column: column[chosen], columns) if not chosen.all() else columns


def _whole_batches(
    table: Any, policy: str | None, infos: bool, path: Path, first: int
) -> Iterator[tuple[str, dict[str, nest.Nest]]]:
    """Rows that are batches, their columns lists in a cell."""
    for number, value in enumerate(table.to_pylist(), first):
        where = f"{path}, row {number}"
        batches = value.get("policy_batches")
        if isinstance(batches, dict):
            held = sorted(key for key, batch in batches.items() if batch)
            if not held or (policy is not None and policy not in held):
                continue
            value = batches[choose_policy(held, policy, where)]
        try:
            yield where, columns_of({k: v for k, v in value.items() if k not in ("type", "count")}, infos=infos)
        except SourceFormatError as cause:
            raise SourceFormatError(f"{where}: {cause}") from cause
