"""The texts of a LeRobot dataset's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.parquet import Unfit, column_of, leaf_of, spec_of_leaf
from rlds2buf.codecs.arrow.tables import rows_at_once
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.entries import Entries
from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.lerobot.files import check_file, opened
from rlds2buf.formats.lerobot.info import Info

__all__ = ["Tasks", "read_tasks", "tasks_file"]

_ROWS: Final = 1 << 12


class Tasks:
    """Texts by their ``task_index``.

    Args:
        numbers: ``[K] int64``.
        texts: ``[K] object``, byte strings.

    Raises:
        ValueError: a number stands twice.

    >>> tasks = Tasks(np.array([1, 0]), np.array([b"lift", b"push"], object))
    >>> tasks.of(np.array([0, 0, 1])).tolist(), tasks.unknown(np.array([0, 7]))
    ([b'push', b'push', b'lift'], 1)
    """

    def __init__(self, numbers: np.ndarray, texts: np.ndarray) -> None:
        order = np.argsort(numbers, kind="stable")
        self.numbers = numbers[order]
        self.texts = texts[order]
        twice = np.diff(self.numbers) == 0
        if twice.any():
            raise ValueError(f"task_index {self.numbers[int(np.argmax(twice))]} stands twice")

    def __len__(self) -> int:
        return len(self.numbers)

    def unknown(self, numbers: np.ndarray) -> int | None:
        """The place of the first number that has no text; None if all have."""
        place = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        missing = self.numbers[place] != numbers if len(self.numbers) else np.ones(len(numbers), np.bool_)
        return int(np.argmax(missing)) if missing.any() else None

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """``[N] object``: the texts of numbers that are known."""
        return self.texts[np.searchsorted(self.numbers, numbers)]


def tasks_file(info: Info) -> Path:
    """Where they are."""
    return info.root / "meta" / ("tasks.parquet" if info.is_v3 else "tasks.jsonl")


def read_tasks(info: Info, budget: Budget = BUDGET) -> Tasks | None:
    """The dataset's tasks; None where it has no file of them.

    Raises:
        SourceFormatError: that file is damaged, a Git LFS pointer, or has no texts and numbers.
        MissingDependency: pyarrow is not installed.
    """
    path = tasks_file(info)
    if not path.exists():
        return None
    try:
        if not info.is_v3:
            found = list(_lines(path))
            texts = np.empty(len(found), object)
            texts[:] = [text.encode("utf-8", "surrogateescape") for _, text in found]
            return Tasks(np.array([number for number, _ in found], np.int64).reshape(-1), texts)
        return Tasks(*_table(path, budget))
    except SourceFormatError:
        raise
    except ValueError as cause:
        raise SourceFormatError(f"{path}: {cause}") from cause


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    check_file(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as cause:
        raise SourceFormatError(f"{path}: can't be read: {cause.strerror or cause}") from cause
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = Entries(parse_json(line))
            yield told.integer("task_index"), told.text("task")
        except ValueError as cause:
            raise SourceFormatError(f"{path}, line {number}: {cause}") from cause


def _table(path: Path, budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    """Of v3's: a pandas frame whose index, whatever it is called, has the texts."""
    numbers, texts = [np.empty(0, np.int64)], [np.empty(0, object)]
    with opened(path) as parquet:
        schema = parquet.schema_arrow
        held = [name for name in schema.names if name != "task_index"]
        named = [name for name in ("task", "__index_level_0__") if name in held] or held[:1]
        if "task_index" not in schema.names or not named:
            raise SourceFormatError(
                f"{path}: its columns are {', '.join(schema.names)}, not task_index and the task's text"
            )
        for batch in parquet.iter_batches(rows_at_once(parquet, path, _ROWS, budget), use_threads=False):
            batch.validate(full=True)  # offsets that point outside of their buffers would be followed else
            numbers.append(_column(path, batch, "task_index", "iu").astype(np.int64))
            texts.append(_column(path, batch, named[0], "O"))
    return np.concatenate(numbers), np.concatenate(texts)


def _column(path: Path, batch: Any, name: str, kinds: str) -> np.ndarray:
    try:
        array = leaf_of(batch, (name,))
        spec = spec_of_leaf(array.type, array)
        if spec.dtype.kind not in kinds or spec.shape:
            raise Unfit(f"holds {array.type}")
        return column_of(array, spec)
    except Unfit as cause:
        raise SourceFormatError(f"{path}: column `{name}` {cause.why}") from cause
