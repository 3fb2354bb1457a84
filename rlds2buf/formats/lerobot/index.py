"""The episodes of a LeRobot dataset as columns: how long each is, in which rows of which file, in which videos."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.arrow.parquet import Unfit, column_of, leaf_of, spec_of_leaf
from rlds2buf.codecs.arrow.tables import rows_at_once
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.entries import Entries
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError, SourceNotFound
from rlds2buf.formats.lerobot.files import check_file, opened
from rlds2buf.formats.lerobot.info import Info

__all__ = ["Footage", "Index", "Told", "episode_files", "read_index", "read_told"]

_EPISODES: Final = "meta/episodes"
_LINES: Final = "meta/episodes.jsonl"
_INTEGER: Final = FieldSpec((), np.dtype(np.int64))
_SECONDS: Final = FieldSpec((), np.dtype(np.float64))
_MOST_ROWS: Final = 1 << 40
_ROWS: Final = 1 << 14


@dataclasses.dataclass(frozen=True)
class Footage:
    """Where the frames of one camera are.

    Attributes:
        files: the videos that there should be.
        file: ``[E] int64``, the number of each episode's video in `files`.
        start: ``[E] float64``, seconds in it at which the episode begins.
        stop: ``[E] float64``, at which it ends; NaN where nothing says it.
    """

    files: Sequence[Path]
    file: np.ndarray
    start: np.ndarray
    stop: np.ndarray


@dataclasses.dataclass(frozen=True)
class Told:
    """What the metadata tell of one episode.

    Attributes:
        length: its rows.
        footage: by camera of v3, its video and the seconds in it at which it begins.
    """

    length: int
    footage: Mapping[str, tuple[Path, float]]


@dataclasses.dataclass(frozen=True)
class Index:
    """The episodes, E of them, in the order of their numbers.

    Attributes:
        numbers: ``[E] int64``, as the data's ``episode_index`` has them, ascending.
        lengths: ``[E] int64``, their rows, at least 1.
        files: the data files that there should be.
        file: ``[E] int64``, the number of each episode's file in `files`, ascending.
        first: ``[E] int64``, its first row there.
        footage: by camera.
        oddities: what the metadata say that does not fit together, each as a sentence.
        footers: of data files that have none, what they are read with.
    """

    numbers: np.ndarray
    lengths: np.ndarray
    files: Sequence[Path]
    file: np.ndarray
    first: np.ndarray
    footage: Mapping[str, Footage]
    oddities: Sequence[str] = ()
    footers: Mapping[Path, bytes] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def num_rows(self) -> int:
        """All of them."""
        return int(self.lengths.sum())

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """``[E] int64``: how many rows there are up to the end of each episode."""
        return np.cumsum(self.lengths)


def read_index(info: Info, budget: Budget = BUDGET) -> Index:
    """The episodes that a dataset's metadata tell of.

    Args:
        info: the dataset's.
        budget: what one row of the metadata may take.

    Raises:
        SourceNotFound, SourceFormatError: a file of them is not there, is damaged, is a Git LFS pointer, lacks what
            it should have, or has episodes out of order or without rows; the message names file and episode.
        MissingDependency: pyarrow is not installed.
    """
    return _index_v3(info, budget) if info.is_v3 else _index_v2(info)


def read_told(info: Info, budget: Budget = BUDGET) -> tuple[dict[int, Told], list[str]]:
    """What the metadata tell of each episode, as far as they can be read.

    Returns:
        By number, and why files, or lines behind the last one that could be read, could not be.

    Raises:
        MissingDependency: pyarrow is not installed.
    """
    found: dict[int, Told] = {}
    unread: list[str] = []
    if not info.is_v3:
        try:
            for number, length in _lines(info.root / _LINES):
                found[number] = Told(length, {})
        except (SourceFormatError, SourceNotFound) as error:
            unread.append(str(error))
        return found, unread
    files = episode_files(info)
    if not files:
        unread.append(f"{info.root / _EPISODES}: no Parquet file with the episodes")
    for file in files:
        try:
            columns = _read_episodes(file, list(info.cameras), budget)
        except (SourceFormatError, SourceNotFound) as error:
            unread.append(str(error))
            continue
        for i, (number, length) in enumerate(
            zip(columns["episode_index"].tolist(), columns["length"].tolist(), strict=True)
        ):
            found[number] = Told(length, dict(_told_footage(info, columns, i)))
    return found, unread


def _told_footage(info: Info, columns: Mapping[str, np.ndarray], row: int) -> Iterator[tuple[str, tuple[Path, float]]]:
    for camera in info.cameras:
        names = ("chunk_index", "file_index", "from_timestamp")
        chunk, file, start = (columns[f"videos/{camera}/{name}"][row].item() for name in names)
        if 0 <= chunk <= _MOST_ROWS and 0 <= file <= _MOST_ROWS and 0 <= start < _MOST_ROWS:
            yield camera, (info.video_file(camera, chunk_index=chunk, file_index=file), start)


def episode_files(info: Info) -> list[Path]:
    """v3's files of episodes, in order."""
    folder = info.root / _EPISODES
    found = folder.glob("*/*.parquet") if folder.is_dir() else ()
    return sorted((path for path in found if path.name[0] != "."), key=_natural)


def _index_v3(info: Info, budget: Budget) -> Index:
    folder = info.root / _EPISODES
    files = episode_files(info)
    if not files:
        if info.total_episodes == 0:
            return _empty(info)
        raise SourceNotFound(f"{folder}: no Parquet file with the episodes; the recording was not finalized")
    cameras = list(info.cameras)
    parts = [_read_episodes(file, cameras, budget) for file in files]
    told = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    source = str(folder) if len(files) > 1 else str(files[0])
    numbers, lengths = told["episode_index"], told["length"]
    _check_numbers(source, numbers, lengths)
    _check_range(source, told, ("data/chunk_index", "data/file_index"), numbers)
    paths, file = _places(info, told["data/chunk_index"], told["data/file_index"], None)
    _check_files_in_order(source, numbers, file)
    footage = {}
    for camera in cameras:
        names = [f"videos/{camera}/{name}" for name in ("chunk_index", "file_index", "from_timestamp", "to_timestamp")]
        _check_range(source, told, names[:2], numbers)
        chunk, video, start, stop = (told[name] for name in names)
        if not np.isfinite(start).all() or (start < 0).any():
            at = int(np.argmin(np.isfinite(start) & (start >= 0)))
            raise SourceFormatError(f"{source}, episode {numbers[at]}: {names[2]} is {start[at]}")
        footage[camera] = Footage(*_places(info, chunk, video, camera), start, stop)
    return Index(numbers, lengths, paths, file, _first_rows(lengths, file), footage, _oddities(info, numbers, lengths))


def _index_v2(info: Info) -> Index:
    path = info.root / _LINES
    found = list(_lines(path))
    found.sort(key=lambda one: one[0])
    numbers, lengths = (np.array([one[i] for one in found], np.int64).reshape(-1) for i in range(2))
    _check_numbers(str(path), numbers, lengths)
    chunks = numbers // info.chunks_size
    files = np.arange(len(numbers))

    def places(camera: str | None) -> list[Path]:
        pairs = zip(chunks.tolist(), numbers.tolist(), strict=True)
        return [_file(info, camera, {"episode_chunk": chunk, "episode_index": number}) for chunk, number in pairs]

    zeros = np.zeros(len(numbers))
    stop = lengths / info.fps
    footage = {camera: Footage(places(camera), files, zeros, stop) for camera in info.cameras}
    first = np.zeros(len(numbers), np.int64)
    return Index(numbers, lengths, places(None), files, first, footage, _oddities(info, numbers, lengths))


def _lines(path: Path) -> Iterator[tuple[int, int]]:
    """Number and length of each episode in v2's JSON Lines."""
    check_file(path)
    try:
        text = path.read_bytes()
    except OSError as cause:
        raise SourceFormatError(f"{path}: can't be read: {cause.strerror or cause}") from cause
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            told = Entries(parse_json(line))
            yield told.integer("episode_index"), told.integer("length")
        except ValueError as cause:
            raise SourceFormatError(f"{path}, line {number}: {cause}") from cause


def _read_episodes(file: Path, cameras: Sequence[str], budget: Budget) -> dict[str, np.ndarray]:
    """The columns of one of v3's files of episodes."""
    wanted = {name: _INTEGER for name in ("episode_index", "length", "data/chunk_index", "data/file_index")}
    for camera in cameras:
        wanted |= {f"videos/{camera}/{name}": _INTEGER for name in ("chunk_index", "file_index")}
        wanted |= {f"videos/{camera}/{name}": _SECONDS for name in ("from_timestamp", "to_timestamp")}
    with opened(file) as parquet:
        names = set(parquet.schema_arrow.names)
        missing = [name for name in wanted if name not in names]
        if missing:
            raise SourceFormatError(f"{file}: no column `{missing[0]}`, which says where an episode is")
        most = rows_at_once(parquet, file, _ROWS, budget)
        parts: list[dict[str, np.ndarray]] = []
        for batch in parquet.iter_batches(most, columns=list(wanted), use_threads=False):
            batch.validate(full=True)  # offsets that point outside of their buffers would be followed else
            parts.append({name: _column(batch, name, spec, file) for name, spec in wanted.items()})
    if not parts:
        return {name: np.empty(0, spec.dtype) for name, spec in wanted.items()}
    return {name: np.concatenate([part[name] for part in parts]) for name in wanted}


def _column(batch: Any, name: str, spec: FieldSpec, file: Path) -> np.ndarray:
    try:
        array = leaf_of(batch, (name,))
        if spec_of_leaf(array.type, array).dtype.kind not in "iuf":
            raise Unfit(f"holds {array.type}, where numbers should be")
        return column_of(array, spec)
    except Unfit as cause:
        row = "" if cause.row is None else f", row {cause.row}"
        raise SourceFormatError(f"{file}{row}: column `{name}` {cause.why}") from cause


def _places(info: Info, chunks: np.ndarray, files: np.ndarray, camera: str | None) -> tuple[list[Path], np.ndarray]:
    """The files of pairs of numbers, and each pair's place among them."""
    pairs, place = np.unique(np.stack([chunks, files]), axis=1, return_inverse=True)
    paths = [_file(info, camera, {"chunk_index": chunk, "file_index": file}) for chunk, file in pairs.T.tolist()]
    return paths, place.reshape(-1).astype(np.int64)


def _natural(path: Path) -> tuple[Any, ...]:
    """So that file-1000 stands behind file-999."""
    return tuple((len(digits), digits) for digits in re.findall(r"\d+", "/".join(path.parts[-2:]))), str(path)


def _file(info: Info, camera: str | None, places: dict[str, int]) -> Path:
    return info.data_file(**places) if camera is None else info.video_file(camera, **places)


def _first_rows(lengths: np.ndarray, file: np.ndarray) -> np.ndarray:
    """``[E] int64``: the row of its file at which each episode begins; files are ascending."""
    before = np.cumsum(lengths) - lengths
    starts = np.flatnonzero(np.diff(file, prepend=-1))
    return before - np.repeat(before[starts], np.diff(starts, append=len(file)))


def _check_numbers(source: str, numbers: np.ndarray, lengths: np.ndarray) -> None:
    ascends = np.diff(numbers, prepend=-1) > 0
    if not ascends.all():
        at = int(np.argmin(ascends))
        before = "" if at == 0 else f" behind episode {numbers[at - 1]}"
        raise SourceFormatError(f"{source}, entry {at}: episode_index {numbers[at]} stands{before}, out of order")
    wrong = (lengths < 1) | (lengths > _MOST_ROWS)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise SourceFormatError(f"{source}, episode {numbers[at]}: its length is {lengths[at]}")


def _check_range(source: str, told: Mapping[str, np.ndarray], names: Sequence[str], numbers: np.ndarray) -> None:
    for name in names:
        wrong = (told[name] < 0) | (told[name] > _MOST_ROWS)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise SourceFormatError(f"{source}, episode {numbers[at]}: {name} is {told[name][at]}")


def _check_files_in_order(source: str, numbers: np.ndarray, file: np.ndarray) -> None:
    goes_back = np.diff(file, prepend=0) < 0
    if goes_back.any():
        at = int(np.argmax(goes_back))
        raise SourceFormatError(
            f"{source}, episode {numbers[at]}: its data file comes before that of episode {numbers[at - 1]}"
        )


def _oddities(info: Info, numbers: np.ndarray, lengths: np.ndarray) -> list[str]:
    found = []
    counts = (("total_episodes", info.total_episodes, len(numbers)), ("total_frames", info.total_frames, lengths.sum()))
    for name, told, held in counts:
        if told is not None and told != held:
            found.append(f"{name} in {info.path.name} is {told}, the episodes' own metadata have {held}")
    if len(numbers) and numbers[-1] != len(numbers) - 1:
        gap = int(np.argmax(numbers != np.arange(len(numbers))))
        found.append(f"no episode {gap}: the numbers of the episodes have gaps")
    return found


def _empty(info: Info) -> Index:
    none = np.empty(0, np.int64)
    footage = {camera: Footage([], none, none.astype(np.float64), none.astype(np.float64)) for camera in info.cameras}
    return Index(none, none, [], none, none, footage)
