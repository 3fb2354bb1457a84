"""Many of Minari's episodes in the HDF5 layout: groups that are alike, read together."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.hdf5.alike import Alike, Leaf, Pieces, Unfit, Window, walk
from rlds2buf.codecs.hdf5.gathering import Gathering
from rlds2buf.codecs.hdf5.reading import H5PY_RAISES, Hdf5File, as_numpy, is_dataset
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import FactColumns
from rlds2buf.errors import EpisodeError, SourceError, SpecMismatch
from rlds2buf.formats.minari.episode import BatchParts, EpisodeParts, Proof
from rlds2buf.formats.minari.hdf5_group import nested, read_dataset, read_facts, tuples

__all__ = ["Groups"]

_PARTS = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
_WINDOW_BYTES = 1 << 24
_MARGIN = 1 << 20
"""A group's structures lie somewhere near its header; its values may be anywhere."""

_NAMES = 1 << 12
"""Of so many episodes is asked at a time where they are."""

_LEAST = 4
"""Fewer episodes are read one by one."""

_MAX_MAKES = 4
_FAILURES = (EpisodeError, SourceError, *H5PY_RAISES)


class Groups:
    """The groups of an open file, many at a time.

    The file's bytes are read in windows, and the groups in one of them are parsed together, in as many makes as
    there are.  The first of each make is read by the library too, and has to be the same.  What is not plain numbers
    in one piece, the library reads one by one into the columns.

    Args:
        file: the open file.
        names: of the groups.
        infos: whether to read the infos.
        read: reads one alone, by its number.
        prove: see :data:`~rlds2buf.formats.minari.episode.Proof`.
    """

    def __init__(
        self,
        file: Hdf5File,
        names: Sequence[str],
        infos: bool,
        read: Callable[[int], EpisodeParts | SpecMismatch],
        prove: Proof,
    ) -> None:
        self._file = file
        self._names = names
        self._wanted = [name.encode() for name in (_PARTS if infos else _PARTS[:-1])]
        self._read = read
        self._prove = prove
        self._useful = file.is_flat
        self._room = np.empty(_WINDOW_BYTES, np.uint8)  # for one window after the other, as the heap would grow
        self._ahead = 0, np.zeros(0, np.int64)

    def read(self, start: int, stop: int, rows: int, bytes: int) -> Iterator[BatchParts | None]:
        """Yield some of the episodes from `start` on; None in the place of one that is to be read alone.

        Raises:
            SourceFormatError: the file became shorter.
        """
        held = self._held(start, stop) if self._useful else None
        if held is None:
            yield None
            return
        done = 0
        while done < len(held.names):
            found = held.together(done, rows, bytes)
            yield found
            done += 1 if found is None else len(found)

    def _held(self, start: int, stop: int) -> _Held | None:
        """The next window; None if there is none worth it."""
        places = self._addresses(start, stop)
        known = np.where(places < 0, places[:1], places)
        span = np.maximum.accumulate(known) - np.minimum.accumulate(known)
        count = int(np.searchsorted(span, _WINDOW_BYTES - 2 * _MARGIN, "right"))
        if count < _LEAST or places[0] < 0:
            return None
        first = max(0, int(known[:count].min()) - _MARGIN)
        window = Window(self._file.raw(first, int(span[count - 1]) + 2 * _MARGIN, self._room), first)
        held = _Held(self._file, window, start, self._names[start : start + count])
        left = np.arange(count)
        for _ in range(_MAX_MAKES):
            if len(left) < _LEAST:
                break
            left = left[~self._add(held, places[left], left)]
        self._useful = bool((held.make_of >= 0).any())
        held.cut()
        return held

    def _addresses(self, start: int, stop: int) -> np.ndarray:
        """``[N] int64``: where groups from `start` on lie; those that the last window had no room for are known."""
        first, known = self._ahead
        places = known[start - first :] if start >= first else known[:0]
        names = self._names[start + len(places) : min(stop, start + _NAMES)]
        places = np.concatenate([places, self._file.addresses(names)])
        self._ahead = start, places
        return places[: stop - start]

    def _add(self, held: _Held, places: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Find out how the first of some episodes is made, and who is made alike: those, ``[N] bool``."""
        first, before = int(positions[0]), held.make_of.copy()
        known = np.arange(len(positions)) == 0
        try:
            parts = self._read(held.start + first)
            alike = walk(held.window, self._file.size, places, self._wanted)
            held.outside[positions] |= alike.outside
            _add_make(self._file, held, positions, alike)
            one = held.together(first, 1, 0)
            known |= held.make_of[positions] != before[positions]
            if isinstance(parts, EpisodeParts) and one is not None and self._prove(held.start + first, parts, one):
                return known
        except (Unfit, *_FAILURES):
            known[1:] = False
        held.make_of = before
        return known


@dataclasses.dataclass(frozen=True)
class _Column:
    """A dataset that all groups of one make have.

    Attributes:
        stored: the dtype in the file.
        dtype: as a column.
        shape: of one row.
        short: whether it has T values for T steps, and not T + 1.
        piece: the shape of one row of a chunk; as `shape` where rows are whole.
    """

    stored: np.dtype
    dtype: np.dtype
    shape: tuple[int, ...]
    short: bool
    piece: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return self.stored.itemsize * math.prod(self.shape)

    @property
    def piece_bytes(self) -> int:
        """Of one row of a chunk."""
        return self.stored.itemsize * math.prod(self.piece)

    def corners(self) -> list[tuple[int, ...]]:
        """Where in a row its pieces begin, in the order of the file."""
        axes = zip(self.shape, self.piece, strict=True)
        return list(itertools.product(*(range(0, length, step) for length, step in axes)))


@dataclasses.dataclass(frozen=True)
class _Make:
    """K episodes that are made alike.

    Attributes:
        columns: the datasets by path, the part's name first.
        pieces: path to where the rows of each lie; None if the library is to read them.
        facts: attributes and single infos of each.
    """

    columns: dict[nest.Path, _Column]
    pieces: dict[nest.Path, Pieces | None]
    facts: Sequence[Mapping[str, Any]]


class _Held:
    """A window, and what is known of the N episodes in it.

    Attributes:
        start: the first one's number.
        names: of their groups.
        steps: ``[N] int64``, how many they have.
        make_of, rank: ``[N] int64``, which of the makes, -1 for none, and the how manyth of it.
        outside: ``[N] bool``, of which something is outside of the window.
    """

    def __init__(self, file: Hdf5File, window: Window, start: int, names: Sequence[str]) -> None:
        self.window = window
        self.start = start
        self.names = names
        self.steps = np.zeros(len(names), np.int64)
        self.make_of = np.full(len(names), -1)
        self.rank = np.zeros(len(names), np.int64)
        self.outside = np.zeros(len(names), np.bool_)
        self._file = file
        self._makes: list[_Make] = []

    def add(self, make: _Make, positions: np.ndarray, steps: np.ndarray) -> None:
        """Note how some of the episodes are made."""
        self._makes.append(make)
        self.make_of[positions] = len(self._makes) - 1
        self.rank[positions] = np.arange(len(positions))
        self.steps[positions] = steps

    def cut(self) -> None:
        """Leave the last ones to the next window that are not whole in this one."""
        inside = np.flatnonzero(~self.outside | (self.make_of >= 0))
        self.names = self.names[: max(1, inside[-1] + 1 if len(inside) else 1)]

    def together(self, first: int, rows: int, bytes: int) -> BatchParts | None:
        """The parts of episodes from the `first` on, of about so many rows; None if that is to be read alone."""
        if self.make_of[first] < 0:
            return None
        columns = self._makes[self.make_of[first]].columns
        of_one_layout = [make for make, held in enumerate(self._makes) if held.columns == columns]
        same = np.isin(self.make_of[first : len(self.names)], of_one_layout)
        most = min(rows, bytes // max(1, sum(column.row_bytes for column in columns.values())))
        count = len(same) if same.all() else int(np.argmin(same))
        count = max(1, int(np.searchsorted(np.cumsum(self.steps[first : first + count] + 1), most, "right")))
        foreign = self._by_library(first, count)
        if foreign is None:
            return None
        count = len(foreign)
        run = slice(first, first + count)
        lengths = self.steps[run] + 1
        starts = np.cumsum(lengths) - lengths
        parts: dict[str, Any] = {name: {} for name in _PARTS}
        for path, column in columns.items():
            values = self._gather(column, path, run)
            for episode, own in enumerate(foreign):
                if path in own:
                    values[starts[episode] :][: len(own[path])] = own[path]
            _put(parts, path, values)
        return BatchParts(
            index=np.arange(self.start + first, self.start + first + count),
            lengths=lengths,
            short=[path[1:] for path, column in columns.items() if column.short and path[0] == "infos"],
            facts=self._facts(run),
            **{name: value if name == "infos" else tuples(value) for name, value in parts.items()},
        )

    def _gather(self, column: _Column, path: nest.Path, run: slice) -> np.ndarray:
        """The rows of a column, wherever they lie; zeros for those that the library reads."""
        of_rows, places = self._pieces(path, run)
        corners = column.corners()
        counts = self.steps[run] + (not column.short)
        chunks = np.maximum(-(-counts // of_rows), 1)
        episode = np.repeat(np.arange(len(chunks)), chunks)
        number = np.arange(len(episode)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        is_last = number == chunks[episode] - 1
        lengths = np.where(is_last, (counts - (chunks - 1) * of_rows)[episode], of_rows[episode])
        gathering = Gathering(self._file, self.window, lengths + (is_last & column.short))
        out = np.zeros((gathering.total, *column.shape), column.stored if column.row_bytes else column.dtype)
        if not column.row_bytes or (places < 0).all():
            return out.astype(column.dtype)
        for i, corner in enumerate(corners):
            at = places[episode, np.minimum(number * len(corners) + i, places.shape[1] - 1)]
            found = gathering.read(column.piece_bytes, at, is_last & column.short)
            block = found.view(column.stored).reshape(gathering.total, *column.piece)
            if column.piece == column.shape:
                return block.astype(column.dtype, copy=False)
            here = slice(None), *(slice(k, k + step) for k, step in zip(corner, column.piece, strict=True))
            part = out[here]
            part[...] = block[tuple(map(slice, part.shape))]
        return out.astype(column.dtype, copy=False)

    def _pieces(self, path: nest.Path, run: slice) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a piece ``[E]``, and where each lies ``[E, n]``; -1 for what the library reads."""
        found = {number: self._makes[number].pieces[path] for number in np.unique(self.make_of[run]).tolist()}
        most = max((pieces.places.shape[1] for pieces in found.values() if pieces is not None), default=1)
        of_rows = np.ones(run.stop - run.start, np.int64)
        places = np.full((len(of_rows), most), -1)
        for number, pieces in found.items():
            if pieces is not None:
                own = self.make_of[run] == number
                rank = self.rank[run][own]
                of_rows[own] = pieces.rows[rank]
                places[own, : pieces.places.shape[1]] = pieces.places[rank]
        return of_rows, places

    def _by_library(self, first: int, count: int) -> list[dict[nest.Path, Any]] | None:
        """For each episode what the library has to read, up to one where it can't; None if that is the first."""
        foreign = [[path for path, pieces in make.pieces.items() if pieces is None] for make in self._makes]
        if not any(foreign):
            return [{}] * count
        out: list[dict[nest.Path, Any]] = []
        for position in range(first, first + count):
            self._file.new_record()
            try:
                paths = foreign[self.make_of[position]]
                out.append({path: read_dataset(self._file, self._dataset(position, path)) for path in paths})
            except _FAILURES:
                break
        return out or None

    def _dataset(self, position: int, path: nest.Path) -> Any:
        return self._file.get("/".join((self.names[position], *map(str, path))))

    def _facts(self, run: slice) -> Sequence[Mapping[str, Any]]:
        makes, rank = self.make_of[run], self.rank[run]
        facts = self._makes[makes[0]].facts
        if isinstance(facts, FactColumns) and (makes == makes[0]).all():
            return facts.take(rank)
        return [self._makes[make].facts[i] for make, i in zip(makes.tolist(), rank.tolist(), strict=True)]


def _add_make(file: Hdf5File, held: _Held, positions: np.ndarray, alike: Alike) -> None:
    """Note what the first of the episodes at some positions is made of, and who else is.

    Raises:
        Unfit: its parts are not as long as they should be, or nothing for columns.
    """
    group = file.get(held.names[int(positions[0])])
    if group is None:
        raise Unfit
    leaves: dict[nest.Path, Leaf] = {
        tuple(_text(name) for name in path): leaf for path, leaf in nest.flatten(alike.tree)
    }
    rewards = leaves.get(("rewards",))
    if rewards is None or rewards.rows is None:
        raise Unfit
    steps, fit = rewards.rows, alike.fit
    columns: dict[nest.Path, _Column] = {}
    texts = np.zeros(len(steps), np.int64)
    for path, leaf in leaves.items():
        if leaf.rows is None:
            continue
        short = bool(leaf.rows[0] == steps[0])
        fit = fit & (leaf.rows == steps + (not short))
        columns[path], is_plain = _column(_dataset(file, group, path), leaf, short)
        if not is_plain:
            leaf.places = None
        if columns[path].dtype == object:
            texts += leaf.rows * int(np.prod(leaf.shape, dtype=np.int64))
    fit = fit & (texts <= file.budget.max_objects)
    if not fit[0]:
        raise Unfit
    kept = np.flatnonzero(fit)
    pieces = {path: _pieces(leaves[path], kept) for path in columns}
    found = _attributes(group, alike, kept)
    singles = {path: leaf for path, leaf in leaves.items() if leaf.rows is None}
    facts: Sequence[Mapping[str, Any]]
    if found is not None:
        facts = FactColumns(found | _single_infos(file, group, held.window, singles, kept), len(kept))
    elif singles:
        raise Unfit
    else:
        facts = [read_facts(file.get(held.names[position])) for position in positions[kept].tolist()]
    held.add(_Make(columns, pieces, facts), positions[kept], steps[kept])


def _dataset(file: Hdf5File, group: Any, path: nest.Path) -> Any:
    found = file.get("/".join(map(str, path)), group)
    if not is_dataset(found):  # though it is one by its bytes
        raise Unfit
    return found


def _column(dataset: Any, leaf: Leaf, short: bool) -> tuple[_Column, bool]:
    """What a dataset becomes, and whether its bytes are as numpy has them."""
    stored = dataset.dtype
    piece = leaf.places.shape if isinstance(leaf.places, Pieces) else leaf.shape
    if stored.metadata and isinstance(stored.metadata.get("vlen"), np.dtype):
        return _Column(stored, np.dtype(object), leaf.shape, short, piece), False
    column = _Column(stored, native_dtype(dataset), leaf.shape, short, piece)
    return column, as_numpy(dataset.id.get_type(), stored)


def _pieces(leaf: Leaf, kept: np.ndarray) -> Pieces | None:
    """Where the rows of those lie that are kept, whole ones as pieces too."""
    if leaf.places is None or leaf.rows is None:
        return None
    if isinstance(leaf.places, Pieces):
        return Pieces(leaf.places.rows[kept], leaf.places.shape, leaf.places.places[kept])
    return Pieces(np.maximum(leaf.rows[kept], 1), leaf.shape, leaf.places[kept, np.newaxis])


def _attributes(group: Any, alike: Alike, kept: np.ndarray) -> dict[str, Any] | None:
    """Columns of the attributes of those that are kept; None if the library has to read them."""
    found: dict[str, Any] = {}
    for name in group.attrs:
        attribute = group.attrs.get_id(name)
        values = alike.attributes.get(name.encode())
        if values is None or not as_numpy(attribute.get_type(), attribute.dtype):
            return None
        found[name] = _values(values[kept], attribute.dtype, attribute.shape)
    return nested(found.items())


def _single_infos(
    file: Hdf5File, group: Any, window: Window, singles: Mapping[nest.Path, Leaf], kept: np.ndarray
) -> dict[str, Any]:
    """Columns of the infos that are one value each."""
    found: dict[str, Any] = {}
    for path, leaf in singles.items():
        dataset = _dataset(file, group, path)
        plain = isinstance(leaf.places, np.ndarray) and as_numpy(dataset.id.get_type(), dataset.dtype)
        if path[0] != "infos" or not plain:
            raise Unfit
        of_one = Gathering(file, window, np.ones(len(kept), np.int64))
        values = of_one.read(dataset.dtype.itemsize, np.asarray(leaf.places)[kept])
        _put(found, path, _values(values, dataset.dtype, ()))
    return found


def _values(stored: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> list[Any]:
    """``[K] V`` as values of Python's, or arrays."""
    values = stored.view(dtype).reshape(len(stored), *shape)
    return list(values) if shape else values.tolist()


def _text(name: Any) -> str:
    try:
        return str(name.decode())
    except UnicodeDecodeError as cause:
        raise Unfit from cause


def _put(tree: dict[str, Any], path: nest.Path, value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(str(name), {})
    tree[str(path[-1])] = value
