"""Minari's Arrow and Parquet layouts: a folder an episode.

::

    0/part-0.arrow     (or .parquet) T + 1 rows of observations, actions, rewards, terminations, truncations, infos
    0/metadata.json    id, total_steps, seed, options
    1/...

Row t of `actions`, `rewards` and the flags belongs to the step from observation t; the last row of
them is padding.  A Dict is a struct, a Tuple a struct with the names 0, 1, ...; Box, MultiDiscrete and
MultiBinary are lists of fixed size, flattened; JPEG pictures are binaries.  Infos that are arrays
record their shape in their field's metadata.

Source: minari/dataset/_storages/arrow_storage.py, https://github.com/Farama-Foundation/Minari
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.tables import arrow_errors, column_names, import_pyarrow, read_table, table_column
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceError, SourceFormatError, SpecMismatch
from rlds2buf.formats.minari.episode import BatchParts, EpisodeParts, Proof

__all__ = ["LAYOUTS", "ArrowEpisodes", "read_json"]

LAYOUTS = ("arrow", "parquet")
_METADATA = "metadata.json"
_MAX_TRIES = 4
"""If so many of a block are another thing when read alone, all are read alone."""


class ArrowEpisodes:
    """The episodes below such a folder, by number.

    Args:
        folder: the dataset's ``data`` folder.
        layout: ``"arrow"`` or ``"parquet"``.
        spaces: ``observation`` and ``action`` as nests of FieldSpec, which tell shapes and tuples.
        infos: whether to read the infos.
        budget: for each file.

    Attributes:
        names, ignored: as :class:`~rlds2buf.formats.minari.hdf5_layout.Hdf5Episodes` has them.

    Raises:
        SourceFormatError: an episode's folder holds no file.
        SourceError: the folder can't be read.
        MissingDependency: pyarrow is not installed.
    """

    def __init__(
        self, folder: Path, layout: str, spaces: dict[str, nest.Nest], *, infos: bool, budget: Budget = BUDGET
    ) -> None:
        import_pyarrow(f"{folder}: Minari's {layout} layout")
        self.folder = folder
        self._layout = layout
        self._spaces = spaces
        self._infos = infos
        self._budget = budget
        try:
            names = [path.name for path in folder.iterdir()]
            self.names = sorted((name for name in names if name.isdecimal() and name.isascii()), key=int)
            held: dict[tuple[str, ...], tuple[str, ...]] = {}  # most often the same in each
            self._files = [held.setdefault(found, found) for found in map(self._files_of, self.names)]
        except OSError as cause:
            raise SourceError(f"{cause.filename or folder}: {cause.strerror or cause}") from cause
        self.ignored = sorted(set(names) - set(self.names) - {_METADATA})

    @property
    def files(self) -> Iterator[Path]:
        """All files that hold episodes."""
        for name, files in zip(self.names, self._files, strict=True):
            yield from (self.folder / name / file for file in files)

    def read(self, start: int, stop: int) -> Iterator[EpisodeParts | SpecMismatch]:
        """Yield the parts of these episodes; in the place of one whose columns can't be had, the reason.

        Raises:
            SourceFormatError: a file is damaged.
        """
        for number in range(start, min(stop, len(self.names))):
            yield self._alone(self._load(number))

    def read_batches(
        self, start: int, stop: int, rows: int, bytes: int, prove: Proof
    ) -> Iterator[BatchParts | EpisodeParts | SpecMismatch]:
        """Yield the parts of these episodes, of many together where their files have one schema.

        Args:
            start, stop, rows, bytes: as of :meth:`Source.read_batches`.
            prove: asked about one of those that are put together, whether it is the same when read alone.

        Raises:
            SourceFormatError: a file is damaged.
        """
        held: list[_Files] = []
        count = size = 0
        for number in range(start, min(stop, len(self.names))):
            try:
                files = self._load(number)
            except SourceError:
                yield from self._together(held, prove)
                raise
            count, size = count + files.rows, size + files.bytes
            if held and (count > rows or size > bytes or not files.schema.equals(held[0].schema, check_metadata=True)):
                yield from self._together(held, prove)
                held, count, size = [], files.rows, files.bytes
            held.append(files)
        yield from self._together(held, prove)

    def _load(self, number: int) -> _Files:
        name = self.names[number]
        folder = self.folder / name
        tables = [read_table(folder / file, self._layout, self._budget) for file in self._files[number]]
        return _Files(number, name, tables, read_json(folder / _METADATA) or {})

    def _files_of(self, name: str) -> tuple[str, ...]:
        """The files that hold an episode's rows, as pyarrow's datasets see them."""
        folder = self.folder / name
        files = sorted(file for file in os.listdir(folder) if file != _METADATA and file[0] not in "._")
        if not files:
            raise SourceFormatError(f"{folder}: no file with the episode's rows")
        return tuple(files)

    def _alone(self, files: _Files) -> EpisodeParts | SpecMismatch:
        try:
            with arrow_errors(self.folder / files.name):
                return self._parts(files, files.tables, lambda column: column[:-1])
        except SourceFormatError as cause:
            return SpecMismatch(f"{files.name}: {cause}", rule="spec")

    def _together(self, held: list[_Files], prove: Proof) -> Iterator[BatchParts | EpisodeParts | SpecMismatch]:
        """The parts of some episodes, as soon as one of the first is the same in both ways."""
        for tried, files in enumerate(held[:_MAX_TRIES]):
            one, alone = self._joined([files]), self._alone(files)
            if one is not None and isinstance(alone, EpisodeParts) and prove(files.number, alone, one):
                yield from self._halves(held[tried:])
                return
            yield alone
        yield from map(self._alone, held[_MAX_TRIES:])

    def _halves(self, held: list[_Files]) -> Iterator[BatchParts | EpisodeParts | SpecMismatch]:
        """The parts of some episodes; where they can't be had together, of half of them at a time."""
        half = len(held) // 2
        parts = self._joined(held) if half else self._alone(held[0])
        if parts is not None:
            yield parts
        else:
            yield from self._halves(held[:half])
            yield from self._halves(held[half:])

    def _joined(self, held: list[_Files]) -> BatchParts | None:
        """The parts of some episodes in one; None if that can't be had."""
        lengths = np.array([files.rows for files in held])
        ends = np.cumsum(lengths) - 1

        def without_padding(column: np.ndarray) -> np.ndarray:
            if column.dtype == object:
                column[ends] = b""
            return column

        try:
            with arrow_errors(self.folder):
                table = import_pyarrow("Arrow").concat_tables(table for files in held for table in files.tables)
                parts = self._parts(held[0], [table], without_padding)
        except SourceFormatError:
            return None
        infos = parts.infos or {}
        columns = (parts.observations, parts.actions, parts.rewards, parts.terminations, parts.truncations, infos)
        if not lengths.all() or not all(isinstance(leaf, np.ndarray) for _, leaf in nest.flatten(columns)):
            return None
        return BatchParts(
            index=np.array([files.number for files in held]),
            lengths=lengths,
            **{field.name: getattr(parts, field.name) for field in dataclasses.fields(parts)[1:6]},
            infos=infos,
            short=(),
            facts=[files.metadata for files in held],
        )

    def _parts(self, files: _Files, tables: list[Any], of_steps: Callable[[np.ndarray], np.ndarray]) -> EpisodeParts:
        """What some tables hold; `of_steps` has that of a column which is no padding."""
        held = set.intersection(*({*column_names(table)} for table in tables))
        rows = sum(table.num_rows for table in tables)

        def part(column: str) -> nest.Nest:
            if column not in held:
                return None
            return nest.map_structure(_concatenated, *(table_column(table, column) for table in tables))

        def data(column: str, field: str, kept: Callable[[np.ndarray], np.ndarray]) -> nest.Nest:
            if column not in held:
                return None
            shaped = _shaped(part(column), self._spaces[field], field, rows)
            return nest.map_structure(lambda c: None if c is None else _without_nulls(kept(c), field), shaped)

        def numbers(column: str) -> Any:
            found = part(column)
            return of_steps(found) if isinstance(found, np.ndarray) else found

        infos = part("infos") if self._infos else None
        return EpisodeParts(
            name=files.name,
            observations=data("observations", "observation", lambda column: column),
            actions=data("actions", "action", of_steps),
            rewards=numbers("rewards"),
            terminations=numbers("terminations"),
            truncations=numbers("truncations"),
            infos=nest.map_structure(lambda c: _without_nulls(c, "infos"), infos),
            metadata=files.metadata,
        )


@dataclasses.dataclass(frozen=True)
class _Files:
    """What lies in an episode's folder."""

    number: int
    name: str
    tables: list[Any]
    metadata: dict[str, Any]

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(table.nbytes for table in self.tables)

    @property
    def schema(self) -> Any:
        return self.tables[0].schema


def _concatenated(*columns: Any) -> Any:
    if any(column is None for column in columns):
        return None
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _shaped(found: nest.Nest, space: nest.Nest, path: str, rows: int) -> nest.Nest:
    """The columns with the structure and the shapes that the space tells."""
    if isinstance(space, dict):
        if not isinstance(found, dict) or set(found) != set(space):
            raise SourceFormatError(f"{path}: the file does not hold what the space says: {', '.join(space)}")
        return {key: _shaped(found[key], child, f"{path}/{key}", rows) for key, child in space.items()}
    if isinstance(space, tuple):
        if not isinstance(found, dict) or set(found) != {str(i) for i in range(len(space))}:
            raise SourceFormatError(f"{path}: the file does not hold the {len(space)} members that the space says")
        return tuple(_shaped(found[str(i)], child, f"{path}/{i}", rows) for i, child in enumerate(space))
    if found is None and space.is_string:
        return np.full(rows, None)  # the texts of an episode without steps
    if not isinstance(found, np.ndarray):
        raise SourceFormatError(f"{path}: {'null' if found is None else 'a struct'}, where the space has one value")
    return _reshaped(found, space, path)


def _reshaped(column: np.ndarray, spec: FieldSpec, path: str) -> np.ndarray:
    # Pictures are files and texts bytes; a Discrete is one number a row already.
    if column.ndim == 1:
        return column
    size = int(np.prod(column.shape[1:], dtype=np.int64))
    if size != int(np.prod([n or 0 for n in spec.shape], dtype=np.int64)):
        raise SourceFormatError(f"{path}: rows of {size} values, but the space has the shape {list(spec.shape)}")
    return column.reshape(len(column), *spec.shape)


def _without_nulls(column: Any, path: str) -> Any:
    if isinstance(column, np.ndarray) and column.dtype == object and any(value is None for value in column):
        raise SourceFormatError(f"{path}: a text is null")
    return column


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file of JSON; None if there is no such file.

    Raises:
        SourceFormatError: it can't be read, or holds something else.
    """
    try:
        value = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as cause:
        raise SourceFormatError(f"{path}: not readable as JSON ({cause})") from cause
    if not isinstance(value, dict):
        raise SourceFormatError(f"{path}: should hold a JSON object, it holds a {type(value).__name__}")
    return value
