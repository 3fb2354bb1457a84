"""Logs in CSV files, read by pyarrow where it is installed, and by Python's csv module."""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.step_log.ahead import ahead
from rlds2buf.formats.step_log.column_map import tells_ends
from rlds2buf.formats.step_log.csv_cells import Kind, parse, widen
from rlds2buf.formats.step_log.csv_columns import Cells, read_cells
from rlds2buf.formats.step_log.held import Held
from rlds2buf.formats.step_log.source import StepLogSource
from rlds2buf.formats.step_log.table import Block, Table, log_files
from rlds2buf.formats.step_log.text_blocks import Mark, TextBlock, by_arrow, mark_of, text_blocks

__all__ = ["CsvTable", "StepLogCsvSource"]

SUFFIXES: Final = (".csv", ".tsv")
_DELIMITERS: Final = ",\t;|"
_SAMPLE: Final = 100


class StepLogCsvSource(StepLogSource):
    """Steps in a CSV file, a row each, with a header; or in a folder of such files with one header.

    A column of whole numbers is int64, of other numbers float64 (a blank cell is NaN), of ``True`` and
    ``False`` bool; anything else is text, as bytes.  The whole file decides, so it is read when it is
    opened, and once more, unless its columns are few enough to be held.  Fields may be quoted.  See
    :class:`~rlds2buf.formats.step_log.source.StepLogSource` for what columns become.

    Args:
        path: a file, or a folder of them.
        delimiter: what stands between cells; None: comma, tabulator, semicolon or bar, as the header has.

    Raises:
        SourceNotFound, SourceFormatError: as there; a damaged row is named by its line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = path.write_text('''obs_0,obs_1,action,reward,terminated
    ... 0.5,1,0,1,0
    ... 1.5,2,1,1,1
    ... ''')
    >>> source = StepLogCsvSource(path)
    >>> source.spec.observation, list(source)
    (FieldSpec(float64[2]), [<Episode 0: 3 steps, terminated>])
    """

    format: ClassVar[str] = "csv"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Mapping[str, Any] | None = None,
        final_rows: bool | None = None,
        max_episode_steps: int | None = None,
        optional: Collection[str] = (),
        delimiter: str | None = None,
        budget: Budget = BUDGET,
    ) -> None:
        if delimiter is not None and len(delimiter) != 1:
            raise ValueError(f"delimiter should be one character, got {delimiter!r}")
        self._delimiter = delimiter
        super().__init__(
            path,
            columns=columns,
            final_rows=final_rows,
            max_episode_steps=max_episode_steps,
            optional=optional,
            budget=budget,
        )

    def _open(self) -> Table:
        return CsvTable(self.path, self._delimiter, self._given)


class CsvTable(Table):
    """The cells of CSV files as columns; opened, it has read them once.

    Args:
        path: a file, or a folder of them.
        delimiter: what stands between cells, or None.
        given: field to column, as the caller named them.
    """

    def __init__(self, path: Path, delimiter: str | None = None, given: Mapping[str, Any] | None = None) -> None:
        self.name = str(path)
        self.files = log_files(path, SUFFIXES if path.is_dir() else ())
        self.following, self.unfit, self.oddities = {}, {}, {}
        self._given = delimiter
        self._delimiter = delimiter or ","
        self._header: list[str] = []
        self._kinds: list[Kind] = []
        self._marks: list[Mark] = []
        self._held = Held(lambda name: tells_ends(name, given or {}))
        self._by_arrow = by_arrow(self.files)
        borders: list[int] = []
        self.count = 0
        for number in range(len(self.files)):
            before = self.count
            self._scan(number)
            if self.count > before or not borders:
                borders.append(before)
        self.borders = np.array(borders, np.int64)
        self.notes = []
        self.columns = {}
        for name, kind in zip(self._header, self._kinds, strict=True):
            if not name:
                self.unfit[""] = "has no name"
            else:
                self.columns[name] = FieldSpec((), kind.dtype)
        # The text -0 is 0 as a whole number, and -0.0 in a column that became one of floats.
        self._held.keep({name: spec.dtype for name, spec in self.columns.items()})

    def blocks(self, names: Sequence[str], start: int = 0) -> Iterator[Block]:
        places = {name: self._header.index(name) for name in names}
        for number in range(mark_of(self._marks, start), len(self._marks)):
            mark = self._marks[number]
            columns = self._held.get(number, names, self.files[mark.file])
            yield mark.row, self._read(mark, places) if columns is None else columns

    def place(self, row: int) -> str:
        mark = self._marks[mark_of(self._marks, row)]
        lines = self._lines(self._block(mark))
        return f"{self.files[mark.file].name}, line {lines[row - mark.row]}"

    def _block(self, mark: Mark) -> TextBlock:
        return next(text_blocks(self.files[mark.file], mark.offset, mark.line, stop=mark.stop))

    def _read(self, mark: Mark, places: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Some columns of a block that was read before."""
        block = self._block(mark)
        cells = self._cells(block, self._kinds, places.values())
        if cells is None or any(cells.kinds[place] is not self._kinds[place] for place in places.values()):
            rows = self._rows(block)
            texts = list(zip(*rows, strict=True))
            count = len(rows)
            columns = {i: self._parse(texts[i], i, mark.file) for i in places.values()} if count == mark.rows else {}
        else:
            count, columns = cells.rows, cells.columns
        if count != mark.rows:
            raise SourceFormatError(f"{self.files[mark.file]}: the file changed while it was read")
        return {name: columns[place] for name, place in places.items()}

    def _scan(self, number: int) -> None:
        """Read a file for its header, the kinds of its cells and its length."""
        file = self.files[number]
        self._held.begin(file)
        blocks = text_blocks(file)
        first = next(blocks, None)
        if first is None:
            raise SourceFormatError(f"{file}: an empty file, without even a header")
        first = self._read_header(first)
        self._take_up(number, first, self._cells(first, self._kinds if self.count else self._guess(first)))
        if not self._by_arrow:
            for block in blocks:
                self._take_up(number, block, None)
            return
        told = ((block, list(self._kinds)) for block in blocks)
        for (block, kinds), cells in ahead(lambda one: self._cells(*one), told, lambda one: len(one[0].data)):
            self._take_up(number, block, cells if kinds == self._kinds else self._cells(block, self._kinds))

    def _take_up(self, number: int, block: TextBlock, cells: Cells | None) -> None:
        """Add the rows of a file's next block, as read by pyarrow or still to be read."""
        if cells is None:
            cells = self._widened(block)
        if not cells.rows:
            return
        self._held.add(len(self._marks), {self._header[i]: column for i, column in cells.columns.items()})
        self._marks.append(Mark(number, block.offset, block.stop, self.count, cells.rows, block.line))
        for i, kind in cells.kinds.items():
            if kind is Kind.TEXT and self._kinds[i] is not Kind.TEXT:
                self._note(i, block)
            self._kinds[i] = kind
        self.count += cells.rows

    def _cells(self, block: TextBlock, kinds: Sequence[Kind], wanted: Collection[int] | None = None) -> Cells | None:
        """A block's cells by pyarrow; None if Python has to read them."""
        return read_cells(block.data, self._delimiter, kinds, wanted) if self._by_arrow and kinds else None

    def _guess(self, block: TextBlock) -> list[Kind]:
        """What the columns hold, by the first rows; nothing where there are none, or something is wrong with them."""
        if not self._by_arrow:
            return []
        reader = csv.reader(io.StringIO(block.text, newline=""), delimiter=self._delimiter, strict=True)
        try:
            rows = list(itertools.islice(filter(None, reader), _SAMPLE))
        except csv.Error:
            return []
        if {len(self._header)} != set(map(len, rows)):
            return []
        return [widen(Kind.NONE, cells) for cells in zip(*rows, strict=True)]

    def _widened(self, block: TextBlock) -> Cells:
        """A block's cells by Python's csv module."""
        texts = list(enumerate(zip(*self._rows(block), strict=True)))
        kinds = {i: widen(self._kinds[i], cells) for i, cells in texts}
        return Cells(len(texts[0][1]) if texts else 0, {i: parse(kinds[i], cells) for i, cells in texts}, kinds)

    def _read_header(self, block: TextBlock) -> TextBlock:
        """Take the first row off the first block."""
        if self._given is None:
            line = block.text.split("\n", 1)[0]
            self._delimiter = max(_DELIMITERS, key=lambda one: (line.count(one), -_DELIMITERS.index(one)))
        lines = io.StringIO(block.text, newline="")
        reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        try:
            names = [name.strip() for name in next(filter(None, reader))]
        except StopIteration as cause:
            raise SourceFormatError(f"{block.file}: no header, only blank lines") from cause
        except csv.Error as cause:
            raise SourceFormatError(f"{block.file}, line {block.line}: no header can be read ({cause})") from cause
        if self._header and names != self._header:
            raise SourceFormatError(f"{block.file}: its header differs from that of {self.files[0].name}")
        twice = next((name for i, name in enumerate(names) if name and name in names[:i]), None)
        if twice is not None:
            raise SourceFormatError(f"{block.file}, line {block.line}: two columns are called {twice!r}")
        if not self._header:
            self._header, self._kinds = names, [Kind.NONE] * len(names)
        return block.after(lines.tell(), reader.line_num)

    def _rows(self, block: TextBlock) -> list[list[str]]:
        reader = csv.reader(io.StringIO(block.text, newline=""), delimiter=self._delimiter, strict=True)
        try:
            rows = list(filter(None, reader))
        except csv.Error as cause:
            raise SourceFormatError(f"{block.file}, line {block.line + reader.line_num - 1}: {cause}") from cause
        if rows and set(map(len, rows)) != {len(self._header)}:
            wrong = next(i for i, row in enumerate(rows) if len(row) != len(self._header))
            line = self._lines(block)[wrong]
            message = f"{len(rows[wrong])} cells, but the header has {len(self._header)}"
            raise SourceFormatError(f"{block.file}, line {line}: {message}")
        return rows

    def _lines(self, block: TextBlock) -> list[int]:
        """The line on which each row of a block ends."""
        reader = csv.reader(io.StringIO(block.text, newline=""), delimiter=self._delimiter)
        return [block.line + reader.line_num - 1 for row in reader if row]

    def _note(self, column: int, block: TextBlock) -> None:
        """Remember where a column ceased to be numbers."""
        cells = [row[column] for row in self._rows(block)]
        before, row = self._kinds[column], 0  # each cell may fit by itself, and not with those before it
        while row + 1 < len(cells) and (so_far := widen(before, cells[row : row + 1])) is not Kind.TEXT:
            before, row = so_far, row + 1
        shown = cells[row] if len(cells[row]) <= 40 else cells[row][:40] + "..."
        what = "is no number" if before is not Kind.BOOL else "is neither True nor False"
        self.oddities[self._header[column]] = f"line {self._lines(block)[row]}: {shown!r} {what}"

    def _parse(self, cells: Sequence[str], column: int, file: int) -> np.ndarray:
        try:
            return parse(self._kinds[column], cells)
        except ValueError as cause:
            message = f"column `{self._header[column]}`: {cause}; did the file change?"
            raise SourceFormatError(f"{self.files[file]}: {message}") from cause
