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

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.arrow.tables import arrow_errors, column_names, import_pyarrow, read_table, table_column
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceError, SourceFormatError, SpecMismatch
from rlds2buf.formats.minari.episode import BatchParts, EpisodeParts

__all__ = ["LAYOUTS", "ArrowEpisodes", "read_json"]

LAYOUTS = ("arrow", "parquet")
_METADATA = "metadata.json"


class ArrowEpisodes:
    """The episodes below such a folder, by number.

    Args:
        folder: the dataset's ``data`` folder.
        layout: ``"arrow"`` or ``"parquet"``.
        spaces: ``observation`` and ``action`` as nests of FieldSpec, which tell shapes and tuples.
        infos: whether to read the infos.
        budget: for each file.

    Attributes:
        names, files, ignored: as :class:`~rlds2buf.formats.minari.hdf5_layout.Hdf5Episodes` has them.

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
            self._files = [_files_of(folder / name) for name in self.names]
        except OSError as cause:
            raise SourceError(f"{cause.filename or folder}: {cause.strerror or cause}") from cause
        self.ignored = sorted(set(names) - set(self.names) - {_METADATA})
        self.files = [file for files in self._files for file in files]

    def read(self, start: int, stop: int) -> Iterator[EpisodeParts | SpecMismatch]:
        """Yield the parts of these episodes; in the place of one whose columns can't be had, the reason.

        Raises:
            SourceFormatError: a file is damaged.
        """
        for number in range(start, min(stop, len(self.names))):
            name = self.names[number]
            tables = [read_table(file, self._layout, self._budget) for file in self._files[number]]
            metadata = read_json(self.folder / name / _METADATA) or {}
            found: EpisodeParts | SpecMismatch
            try:
                with arrow_errors(self.folder / name):
                    found = self._parts(name, tables, metadata)
            except SourceFormatError as cause:
                found = SpecMismatch(f"{name}: {cause}", rule="spec")
            yield found

    def read_batches(
        self, start: int, stop: int, rows: int, bytes: int, prove: Any
    ) -> Iterator[BatchParts | EpisodeParts | SpecMismatch]:
        yield from self.read(start, stop)

    def _parts(self, name: str, tables: list[Any], metadata: dict[str, Any]) -> EpisodeParts:
        held = set.intersection(*({*column_names(table)} for table in tables))
        rows = sum(table.num_rows for table in tables)

        def part(column: str) -> nest.Nest:
            if column not in held:
                return None
            return nest.map_structure(_concatenated, *(table_column(table, column) for table in tables))

        def data(column: str, field: str, count: int) -> nest.Nest:
            if column not in held:
                return None
            shaped = _shaped(part(column), self._spaces[field], field, rows)
            return nest.map_structure(lambda c: None if c is None else _without_nulls(c[:count], field), shaped)

        def numbers(column: str) -> Any:
            found = part(column)
            return found[:-1] if isinstance(found, np.ndarray) else found

        infos = part("infos") if self._infos else None
        return EpisodeParts(
            name=name,
            observations=data("observations", "observation", rows),
            actions=data("actions", "action", rows - 1),
            rewards=numbers("rewards"),
            terminations=numbers("terminations"),
            truncations=numbers("truncations"),
            infos=nest.map_structure(lambda c: _without_nulls(c, "infos"), infos),
            metadata=metadata,
        )


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


def _files_of(folder: Path) -> list[Path]:
    """The files that hold an episode's rows, as pyarrow's datasets see them."""
    files = sorted(path for path in folder.iterdir() if path.name != _METADATA and path.name[0] not in "._")
    if not files:
        raise SourceFormatError(f"{folder}: no file with the episode's rows")
    return files


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
