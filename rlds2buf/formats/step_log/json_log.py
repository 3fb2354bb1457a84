"""Logs in JSON Lines: a step a line, or an episode a line."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from rlds2buf.core.arguments import choice
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.step_log.ahead import ahead
from rlds2buf.formats.step_log.column_map import tells_ends
from rlds2buf.formats.step_log.held import Held
from rlds2buf.formats.step_log.json_columns import EpisodeReader, LineReader, Lines, StepReader
from rlds2buf.formats.step_log.json_episodes import FOLLOWING, episode_columns, looks_like_an_episode
from rlds2buf.formats.step_log.json_values import Misfit, columns_of, common
from rlds2buf.formats.step_log.source import StepLogSource
from rlds2buf.formats.step_log.table import Block, Table, log_files
from rlds2buf.formats.step_log.text_blocks import Mark, TextBlock, by_arrow, mark_of, text_blocks

__all__ = ["JsonTable", "StepLogJsonSource"]

SUFFIXES: Final = (".jsonl", ".ndjson")
LAYOUTS: Final = ("steps", "episodes")
_SAMPLE: Final = 32


class StepLogJsonSource(StepLogSource):
    """Steps in a JSON Lines file (https://jsonlines.org), or in a folder of such files.

    A line is a step: an object of numbers, flags, texts and lists of one shape, which may nest
    (``{"obs": {"arm": [0.1, 0.2]}, "reward": 1.0}``).  Or a line is an episode: an object of lists with an
    entry for each step; observations may have one entry more, the last observation.  Flags of an
    episode may be single (``"terminated": true``), and are those of its last step; other single
    values are its metadata.  An episode may be ``{"steps": [step, ...], ...}`` too.  See
    :class:`~rlds2buf.formats.step_log.source.StepLogSource` for what columns become.

    Whole numbers are int64, others float64; a column with both is float64, and null is NaN.  The whole
    file decides, so it is read when it is opened, and once more, unless its columns are few enough to be held.

    Args:
        path: a file, or a folder of them.
        layout: ``"steps"`` or ``"episodes"``; None: an episode, if a reward or a flag is a list.

    Raises:
        SourceNotFound, SourceFormatError: as there; a damaged line is named by its number.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> _ = path.write_text('{"obs": [[0], [1], [2]], "action": [0, 1], "reward": [0, 1], "terminated": true}')
    >>> list(StepLogJsonSource(path))
    [<Episode 0: 3 steps, terminated>]
    """

    format: ClassVar[str] = "jsonl"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Mapping[str, Any] | None = None,
        final_rows: bool | None = None,
        max_episode_steps: int | None = None,
        optional: Collection[str] = (),
        layout: str | None = None,
    ) -> None:
        if layout is not None:
            choice("layout", layout, LAYOUTS)
        self._layout = layout
        super().__init__(
            path, columns=columns, final_rows=final_rows, max_episode_steps=max_episode_steps, optional=optional
        )

    def _open(self) -> Table:
        return JsonTable(self.path, self._layout, self._given)


class JsonTable(Table):
    """The values of JSON Lines files as columns; opened, it has read them once.

    Args:
        path: a file, or a folder of them.
        layout: ``"steps"``, ``"episodes"`` or None.
        given: field to column, as the caller named them.
    """

    def __init__(self, path: Path, layout: str | None = None, given: Mapping[str, Any] | None = None) -> None:
        self.name = str(path)
        self.files = log_files(path, SUFFIXES if path.is_dir() else ())
        self.columns, self.unfit, self.oddities = {}, {}, {}
        self._given = given or {}
        self._episodes: bool | None = None if layout is None else layout == "episodes"
        self._specs: dict[str, FieldSpec] = {}
        self._marks: list[Mark] = []
        self._held = Held(lambda name: tells_ends(name, self._given))
        self._by_arrow = by_arrow(self.files)
        self._reader: LineReader | None = None
        borders: list[int] = []
        self.notes = []
        self.count = 0
        for number in range(len(self.files)):
            borders += self._scan(number)
        self.borders = np.array(borders or [0], np.int64)
        self.columns = {name: spec for name, spec in self._specs.items() if not name.endswith(FOLLOWING)}
        self.by_borders = bool(self._episodes)
        self.following = {name: name + FOLLOWING for name in self.columns if name + FOLLOWING in self._specs}

    def blocks(self, names: Sequence[str], start: int = 0) -> Iterator[Block]:
        for number in range(mark_of(self._marks, start), len(self._marks)):
            mark = self._marks[number]
            file = self.files[mark.file]
            held = self._held.get(number, names, file)
            parts = self._parts(self._block(mark), file) if held is None else [held]
            told = [{name: self._as_told(columns.get(name), name, file) for name in names} for columns in parts]
            if sum(len(next(iter(columns.values()))) for columns in told) != mark.rows:
                raise SourceFormatError(f"{file}: the file changed while it was read")
            yield mark.row, told[0] if len(told) == 1 else _joined(told)

    def place(self, row: int) -> str:
        mark = self._marks[mark_of(self._marks, row)]
        file = self.files[mark.file]
        seen = mark.row
        for line, value in self._values(self._block(mark)):
            count = len(next(iter(episode_columns(value)[0].values()))) if self._episodes else 1
            if row < seen + count:
                return f"{file.name}, line {line}" + (f", step {row - seen}" if self._episodes else "")
            seen += count
        return f"row {row}"

    def _block(self, mark: Mark) -> TextBlock:
        return next(text_blocks(self.files[mark.file], mark.offset, mark.line, stop=mark.stop, quotes=False))

    def _values(self, block: TextBlock) -> list[tuple[int, Any]]:
        """The objects of a block's lines, each with the line's number."""
        lines = block.text.split("\n")
        found = []
        for i, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as cause:
                where = f"{block.file}, line {block.line + i}, column {cause.colno}"
                raise SourceFormatError(f"{where}: no JSON ({cause.msg})") from cause
            except (ValueError, RecursionError) as cause:
                raise SourceFormatError(f"{block.file}, line {block.line + i}: {cause or 'nested too deep'}") from cause
            if not isinstance(value, dict) or not value:
                got = "an empty object" if value == {} else type(value).__name__
                raise SourceFormatError(f"{block.file}, line {block.line + i}: a line should be an object, it is {got}")
            found.append((block.line + i, value))
        if found and self._episodes is None:
            with _placed(block.file, found[0][0]):
                self._episodes = looks_like_an_episode(found[0][1], self._given)
        return found

    def _scan(self, number: int) -> list[int]:
        """Read a file for its columns' types, its length and its metadata; where in it something begins anew."""
        file = self.files[number]
        self._held.begin(file)
        borders: list[int] = []
        blocks = text_blocks(file, quotes=False)
        for block in blocks:
            borders += self._take_up(number, block, self._by_pyarrow(block), not borders)
            if self._reader is not None:
                break
        told = ((block, self._reader) for block in blocks)
        for (block, reader), found in ahead(_by_reader, told, lambda one: len(one[0].data)):
            if reader is not self._told_reader():
                found = self._by_pyarrow(block)
            borders += self._take_up(number, block, found, not borders)
        return borders

    def _take_up(self, number: int, block: TextBlock, found: Lines | None, is_first: bool) -> list[int]:
        """Add the lines of a file's next block, as read by pyarrow or still to be read; where something begins anew."""
        file, before = self.files[number], self.count
        if found is None:
            found = self._by_python(block, file)
            if found is None:
                return []
        else:
            self._merge(found.columns, file, block.line)
        count = len(next(iter(found.columns.values())))
        self.count += count
        self.notes += found.notes
        self._held.add(len(self._marks), found.columns)
        self._marks.append(Mark(number, block.offset, block.stop, before, count, block.line))
        if found.steps is None:
            return [before] if is_first else []
        return [int(start) for start in before + np.cumsum(found.steps) - found.steps]

    def _by_python(self, block: TextBlock, file: Path) -> Lines | None:
        """A block's lines by Python's json module, their types taken up; None where all are blank."""
        lines = self._values(block)
        if not lines:
            return None
        if not self._episodes:
            columns = self._steps(lines, file)
            self._merge(columns, file, lines[0][0])
            return Lines(columns)
        parts, notes = [], []
        for line, value in lines:
            columns, own = self._episode(line, value, file)
            self._merge(columns, file, line)
            parts.append(columns)
            notes.append(own)
        return Lines(_joined(parts), np.array([len(next(iter(part.values()))) for part in parts]), notes)

    def _parts(self, block: TextBlock, file: Path) -> list[dict[str, np.ndarray]]:
        """The columns of a block that was read before; of each of its lines, where these are episodes."""
        found = self._by_pyarrow(block)
        if found is not None:
            return [found.columns]
        lines = self._values(block)
        if self._episodes:
            return [self._episode(line, value, file)[0] for line, value in lines]
        return [self._steps(lines, file)] if lines else []

    def _by_pyarrow(self, block: TextBlock) -> Lines | None:
        """A block's lines by pyarrow; None if Python has to read them."""
        if not self._by_arrow:
            return None
        if self._reader is None:
            self._reader = self._first_reader(block)
        reader = self._told_reader()
        return None if reader is None else reader.read(block.data)

    def _told_reader(self) -> LineReader | None:
        """The reader for the types as they are known by now."""
        if self._reader is not None and self._specs and self._reader.specs != self._specs:
            self._reader = self._reader.widened(self._specs)
        return self._reader

    def _first_reader(self, block: TextBlock) -> LineReader | None:
        """A reader of lines as the first ones are; None if something is wrong with them."""
        some = b"\n".join(block.data.split(b"\n", _SAMPLE)[:_SAMPLE])
        known = self._specs
        try:
            self._specs = dict(known)
            sample = TextBlock(block.file, some, block.offset, block.offset + len(some), block.line)
            if self._by_python(sample, block.file) is None:
                return None
            reader = EpisodeReader if self._episodes else StepReader
            return reader(self._values(sample)[0][1], known or self._specs)
        except SourceFormatError:
            return None
        finally:
            self._specs = known

    def _steps(self, lines: list[tuple[int, Any]], file: Path) -> dict[str, np.ndarray]:
        try:
            columns = columns_of([value for _, value in lines])
        except Misfit as cause:
            raise SourceFormatError(f"{file}, line {lines[cause.row][0]}: `{cause.column}` {cause.why}") from cause
        if not columns:
            raise SourceFormatError(f"{file}, line {lines[0][0]}: a step without values")
        return columns

    def _episode(self, line: int, value: Any, file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        with _placed(file, line):
            return episode_columns(value)

    def _merge(self, columns: dict[str, np.ndarray], file: Path, line: int) -> None:
        """Widen the columns' specs by those of a block."""
        specs = _specs(columns)
        if not self._specs:
            self._specs = specs
            return
        if specs.keys() != self._specs.keys():
            name = sorted(specs.keys() ^ self._specs.keys())[0]
            what = "is missing" if name in self._specs else "is not in the lines before"
            if name.endswith(FOLLOWING):
                name, what = name[: -len(FOLLOWING)], "has one row more than there are steps in some lines only"
            raise SourceFormatError(f"{file}, from line {line} on: `{name}` {what}")
        for name, spec in specs.items():
            both = common(self._specs[name], spec)
            if both is None:
                message = f"`{name}` is {spec}, but before it is {self._specs[name]}"
                raise SourceFormatError(f"{file}, from line {line} on: {message}")
            self._specs[name] = both

    def _as_told(self, column: np.ndarray | None, name: str, file: Path) -> np.ndarray:
        spec = self._specs[name]
        if column is None or column.shape[1:] != spec.shape:
            raise SourceFormatError(f"{file}: `{name}` is not what it was; did the file change?")
        return column.astype(spec.dtype, copy=False)


def _by_reader(one: tuple[TextBlock, LineReader | None]) -> Lines | None:
    block, reader = one
    return None if reader is None else reader.read(block.data)


def _specs(columns: Mapping[str, np.ndarray]) -> dict[str, FieldSpec]:
    return {name: FieldSpec(column.shape[1:], column.dtype) for name, column in columns.items()}


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@contextlib.contextmanager
def _placed(file: Path, line: int) -> Iterator[None]:
    """What is wrong with a line's values, with the line."""
    try:
        yield
    except Misfit as cause:
        raise SourceFormatError(f"{file}, line {line}: `{cause.column}` {cause.why}") from cause
