"""RLlib's Parquet output: a step a row (the new API stack), or a batch a row (the older ``DatasetWriter``).

The new stack's columns are ``eps_id, agent_id, module_id, obs, actions, rewards, new_obs, terminateds,
truncateds`` and the module's own outputs; or with ``output_write_episodes=True`` one binary column
``item``, an episode or a part of one in each row (:mod:`rlds2buf.formats.rllib.items`).

Source: rllib/offline/{offline_env_runner, dataset_writer}.py, https://github.com/ray-project/ray
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.tables import VARIABLE_TENSOR, arrow_errors, column_names, parquet_tables, table_column
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.rllib.columns import HOW_TO_UNPACK, choose_policy, columns_of, of_policy, refuse_packed
from rlds2buf.formats.rllib.items import columns_of_item

__all__ = ["parquet_batches"]

_ROWS = 1024
_EPISODES = "item"


def parquet_batches(
    path: Path, *, policy: str | None, infos: bool, budget: Budget = BUDGET
) -> Iterator[tuple[str, dict[str, nest.Nest]]]:
    """Yield where it is (file and row) and the columns of each batch.

    Args, Raises: as :func:`rlds2buf.formats.rllib.json_layout.json_batches`.
    """
    first = 0
    for table in parquet_tables(path, _ROWS, budget):
        where = f"{path}, row {first}"
        with arrow_errors(where):
            names = column_names(table)
        if names == [_EPISODES]:
            yield from _items(table, policy, infos, path, first)
        elif "type" in names or "policy_batches" in names:
            yield from _whole_batches(table, policy, infos, path, first)
        else:
            yield where, _rows(table, policy, infos, where)
        first += table.num_rows


def _items(
    table: Any, policy: str | None, infos: bool, path: Path, first: int
) -> Iterator[tuple[str, dict[str, nest.Nest]]]:
    """Rows that are episodes, or parts of them."""
    with arrow_errors(f"{path}, row {first}"):
        items = table.column(_EPISODES).to_pylist()
    for number, item in enumerate(items, first):
        where = f"{path}, row {number}"
        try:
            if not isinstance(item, bytes):
                raise SourceFormatError(f"an {_EPISODES!r} that is no binary")
            columns = columns_of_item(item, infos=infos)
        except SourceFormatError as cause:
            raise SourceFormatError(f"{where}: {cause}; {HOW_TO_UNPACK}") from cause
        yield where, of_policy(columns, policy, where) if columns else {}


def _rows(table: Any, policy: str | None, infos: bool, where: str) -> dict[str, nest.Nest]:
    try:
        with arrow_errors(where):
            columns = {name: _column(table, name) for name in column_names(table) if infos or name != "infos"}
    except SourceFormatError as cause:
        raise cause if where in str(cause) else cause.at(where) from cause
    return of_policy({name: column for name, column in columns.items() if column is not None}, policy, where)


def _column(table: Any, name: str) -> nest.Nest:
    if name == "infos":
        texts = [json.dumps(value, sort_keys=True, default=str) for value in table.column(name).to_pylist()]
        return np.array([*(text.encode() for text in texts), None], object)[:-1]
    column = table_column(table, name)
    if isinstance(column, np.ndarray) and column.dtype == object and len(column):
        refuse_packed(column[0], name)
        if any(value is None for value in column):
            raise SourceFormatError(f"{name}: some of its values are null")
    return column


def _whole_batches(
    table: Any, policy: str | None, infos: bool, path: Path, first: int
) -> Iterator[tuple[str, dict[str, nest.Nest]]]:
    """Rows that are batches, their columns lists in a cell."""
    with arrow_errors(f"{path}, row {first}"):
        columns = {name: _cells(table, name) for name in column_names(table)}
    for number in range(first, first + table.num_rows):
        value = {name: cells[number - first] for name, cells in columns.items()}
        where = f"{path}, row {number}"
        batches = value.get("policy_batches")
        if isinstance(batches, dict):
            held = sorted(key for key, batch in batches.items() if batch)
            if not held or (policy is not None and policy not in held):
                continue
            value = batches[choose_policy(held, policy, where)]
        else:
            choose_policy(["default_policy"], policy, where)
        try:
            yield where, columns_of({k: v for k, v in value.items() if k not in ("type", "count")}, infos=infos)
        except SourceFormatError as cause:
            raise cause.at(where) from cause


def _cells(table: Any, name: str) -> list[Any]:
    """A column whose cells are lists, with the shapes that Ray Data keeps beside its tensors."""
    cells: list[Any] = table.column(name).to_pylist()
    metadata = table.schema.field(name).metadata or {}
    kind = metadata.get(b"ARROW:extension:name", b"")
    if kind.startswith(b"ray.data.arrow_tensor"):
        shape = parse_json(metadata[b"ARROW:extension:metadata"])
        return [np.asarray(cell).reshape(shape).tolist() for cell in cells]
    if kind.startswith(VARIABLE_TENSOR):
        return [np.asarray(cell["data"]).reshape(cell["shape"]).tolist() for cell in cells]
    return cells
