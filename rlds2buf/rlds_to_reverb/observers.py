"""TF-Agents' own observers, served at the speed of a push: the same items, made of whole batches of frames.

Called frame by frame, an observer appends to a Reverb writer and makes an item whenever a window or an episode is
full.  What items that gives follows from a few settings, so :class:`BulkPush` takes these from the observer, makes
the items itself, and afterwards brings the observer into the state in which it would be, had it seen the frames.
It calls the observer where only that gives the same: on the frames of an episode that the observer is in the middle
of, of one that is too long for it, and behind what a table's rate limiter lets in.

Which items those are: tf_agents/replay_buffers/reverb_utils.py of TF-Agents 0.19.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.fields import STEP_LAST
from rlds2buf.errors import MissingDependency, SinkError
from rlds2buf.formats.reverb.patterns.base import Laid
from rlds2buf.formats.reverb.patterns.spacing import spaced
from rlds2buf.formats.reverb.protocol.chunks import TENSOR_DTYPES, ChunkEncoder, Chunks
from rlds2buf.formats.reverb.protocol.connection import address_of
from rlds2buf.formats.reverb.protocol.insert_stream import InsertStream
from rlds2buf.formats.reverb.protocol.item_encoder import Column, ItemEncoder, RowSpan
from rlds2buf.formats.reverb.request_builder import CHUNK_BYTES, RequestBuilder

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["BulkPush", "Settings", "bulk_push", "is_stock", "packer", "settings_of", "windows_of"]

FLUSH_MS: Final = 5000
WRITE_SECONDS: Final = 60.0
PIECE: Final = 8
"""Windows of L frames are made of at least so many times L rows at once, since the last L rows are sent again."""

_log = logging.getLogger(__name__)


class Settings(NamedTuple):
    """What items a stock observer makes, and where they go.

    Attributes:
        kind: ``"windows"`` inside episodes, windows ``"across"`` episodes, or whole ``"episodes"``.
        address: the server's, ``host:port``.
        tables: names; every item goes into each.
        priority: of the items.
        length: frames per window, or the most frames of an episode.
        stride: frames from one window to the next.
        pad, tile: as in ``ReverbAddTrajectoryObserver``: how the end of an episode is filled.
    """

    kind: str
    address: str
    tables: tuple[str, ...]
    priority: float
    length: int
    stride: int = 1
    pad: bool = False
    tile: bool = False


def is_stock(observer: Any) -> bool:
    """Whether it is one of TF-Agents' observers; a class derived from one may do anything."""
    return type(observer) in _kinds()


def settings_of(observer: Any) -> Settings | None:
    """A stock observer's settings; None if it is another one, or holds what TF-Agents' do not.

    Raises:
        ValueError: its priority is negative or not finite, of which a Reverb server dies.
    """
    import reverb

    kind = _kinds().get(type(observer))
    # They have no public names for these; all that is read and changed of an observer goes by this dict.
    state = vars(observer) if kind else {}
    known = {"_py_client": reverb.Client, "_writer": reverb.TrajectoryWriter, "_cached_steps": int}
    if not all(type(state.get(name)) is type_ for name, type_ in known.items()):
        return None
    length: Any = state.get("_max_sequence_length" if kind == "episodes" else "_sequence_length")
    stride: Any = state.get("_stride_length", 1)
    priority: Any = state.get("_priority")
    numeric = isinstance(priority, int | float | np.number)
    if not numeric or not all(isinstance(number, int | np.integer) and number > 0 for number in (length, stride)):
        return None
    if not (math.isfinite(priority) and priority >= 0):
        raise ValueError(f"a priority must be finite and not negative, got {priority}")
    try:
        address = address_of(state["_py_client"].server_address)
    except ValueError:  # a local socket, say
        return None
    return Settings(
        kind=str(kind),
        address=address,
        tables=tuple(state["_table_names"]),
        priority=float(priority),
        length=int(length),
        stride=int(stride),
        pad=bool(state.get("_pad_end_of_episodes")) and kind == "windows",
        tile=bool(state.get("_tile_end_of_episodes")) and kind == "windows",
    )


def bulk_push(observer: Any, frames: Any) -> BulkPush | None:
    """How to push such frames for an observer in bulk; None where it has to see them one by one.

    Args:
        observer: anything that is called with frames.
        frames: the element spec of batches of frames, a Trajectory of tensor specs ``[n, ...]``.

    Raises:
        ValueError: the observer's priority is no priority.
    """
    settings = settings_of(observer) if is_stock(observer) else None
    if settings is None or not all(_can_be_held(leaf) for _, leaf in nest.flatten(frames)):
        return None
    try:
        _need_a_codec()
        # What the observer has made comes before what we send.
        return BulkPush(observer, settings, packer(frames)) if _flushed(observer) else None
    except (MissingDependency, SinkError) as error:
        _log.warning("the observer is called frame by frame, which is slow: %s", error)
        return None


class BulkPush:
    """Pushes batches of frames as the items that one stock observer would make of them.

    Used once, by one thread.

    Args:
        observer: it.
        settings: its settings.
        pack: makes a frame of its leaves.

    Raises:
        ServerUnavailable: the server doesn't answer.
        MissingDependency: what it takes to talk to a server is not installed.
        SinkError: it has no such table.
    """

    def __init__(self, observer: Any, settings: Settings, pack: Callable[[Iterator[Any]], Any]) -> None:
        self._observer, self._settings, self._pack = observer, settings, pack
        self._rng = np.random.default_rng()  # keys are new ones, as a writer's
        self._senders = [_Sender(settings, table) for table in settings.tables]
        rooms = [sender.stream.connect().insertable for sender in self._senders]
        self._room = min((room for room in rooms if room is not None), default=math.inf)
        cached = int(vars(observer)["_cached_steps"])
        across = settings.kind == "across"
        # Frames for the observer itself: so many, or all up to the end of an episode.
        self._alone: float = settings.length - 1 if across and cached else 0
        self._to_border = not across and bool(cached)
        self._is_flushed = True  # whether the server has the items of the frames that the observer was called with
        # The run that is under way: an episode, or all frames that an observer has ever seen.
        self._run = cached if across else 0  # its frames so far
        self._first = self._run  # the first window of it that is ours
        self._seen = self._run  # how many of its frames the observer has
        self._episode = _new_keys(self._rng, 1)
        self._tail: list[np.ndarray] = []  # its last frames, up to a window of them; they are sent
        self._waiting: list[list[np.ndarray]] = []  # frames that are not

    def push(self, batches: tf.data.Dataset) -> int:
        """Push all frames, and wait until the server has the items; returns how many frames there were.

        Whatever error the data end with, the items of the frames before it are made, and the observer has those
        frames.

        Raises:
            WriteTimeout, ServerUnavailable, SinkError: the server does not take the items.
            Further, what the dataset or the observer raises.
        """
        frames = 0
        try:
            for batch in batches.as_numpy_iterator():
                columns = [column for _, column in nest.flatten(batch)]
                self._take(columns)
                frames += len(columns[0])
        except SinkError:
            raise
        except Exception:
            self._settle()
            raise
        else:
            self._settle()
        finally:
            for sender in self._senders:
                sender.stream.close()
        return frames

    def _take(self, columns: list[np.ndarray]) -> None:
        shown = self._show(columns)
        if self._settings.kind == "across" and self._alone < math.inf:
            self._seen += shown
            shown = 0  # windows of ours may begin with frames that the observer had to see
        if shown < len(columns[0]):
            self._waiting.append([column[shown:] for column in columns])
        if self._waiting and self._is_enough(columns[0]):
            self._send()

    def _is_enough(self, step_types: np.ndarray) -> bool:
        rows = sum(len(part[0]) for part in self._waiting)
        if self._settings.kind == "episodes":
            return rows > self._settings.length or bool((step_types == STEP_LAST).any())
        return rows >= PIECE * self._settings.length

    def _show(self, columns: list[np.ndarray]) -> int:
        """Call the observer with frames as long as it has to see them itself; returns how many these were."""
        if not self._alone and not self._to_border:
            return 0
        self._is_flushed = False
        self._room -= len(columns[0]) + (self._settings.length if self._settings.pad else 0)
        is_last = (columns[0] == STEP_LAST).tolist()
        for i, row in enumerate(zip(*columns, strict=True)):
            if not self._alone and not self._to_border:
                return i
            self._observer(self._pack(iter(row)))
            self._alone = max(0, self._alone - 1)
            self._to_border = self._to_border and not is_last[i]
        return len(is_last)

    def _send(self) -> None:
        """Make the items that are due, and keep the frames that later ones need."""
        if self._settings.kind == "episodes":
            while self._send_episodes():
                pass
        else:
            self._send_windows()

    def _send_windows(self) -> None:
        waiting, tail = _joined(self._waiting), self._tail
        columns = _joined([tail, waiting]) if tail else waiting
        borders = columns[0] == STEP_LAST
        if self._settings.kind == "across":
            borders = np.zeros(len(borders), np.bool_)
        edges = _edges(borders)
        frames = np.diff(edges)
        closed = borders[edges[1:] - 1]
        before, first = np.zeros((2, len(frames)), np.int64)
        before[0] = self._run - (len(tail[0]) if tail else 0)
        first[0] = max(self._first, self._run - self._settings.length + 1)
        of, begins, missing = windows_of(before + frames, first, closed, self._settings)
        if not self._can_send(len(of)):
            self._give_up(waiting)
            return
        episodes = np.append(self._episode, _new_keys(self._rng, len(frames) - 1))
        padded, edges, place = spaced(columns, frames, behind=missing)
        kinds = np.full(len(padded[0]), STEP_LAST, columns[0].dtype)  # padding goes from last to first
        kinds[place] = columns[0]
        starts = edges[:-1][of] + begins - before[of]
        rows = RowSpan(starts, starts + self._settings.length)
        self._make([kinds, *padded[1:]], edges, of, rows, episodes)
        self._waiting = []
        if len(frames) > 1 or closed[-1]:
            self._first = self._seen = 0
        if closed[-1]:
            self._tail, self._run, self._episode = [], 0, _new_keys(self._rng, 1)
            return
        keep = min(int(frames[-1]), self._settings.length)
        self._tail = [column[-keep:].copy() for column in columns]
        self._run, self._episode = int(before[-1] + frames[-1]), episodes[-1:]

    def _send_episodes(self) -> bool:
        """Whole episodes; the observer itself says what becomes of one that is too long.  Whether more can be sent."""
        columns = _joined(self._waiting)
        borders = columns[0] == STEP_LAST
        edges = _edges(borders)
        too_long = np.flatnonzero(np.diff(edges) > self._settings.length)
        stop = int(too_long[0]) if len(too_long) else int(np.count_nonzero(borders))
        if not self._can_send(stop):
            self._give_up(columns)
            return False
        cut = int(edges[stop])
        rows = RowSpan(edges[:stop], edges[1 : stop + 1])
        whole = [column[:cut] for column in columns]
        self._make(whole, edges[: stop + 1], np.arange(stop), rows, _new_keys(self._rng, stop))
        rest = [column[cut:] for column in columns]
        if len(too_long):
            self._drain()
            self._waiting, self._to_border = [], True
            shown = self._show(rest)
            rest = [column[shown:] for column in rest]
        self._waiting = [rest] if len(rest[0]) else []
        return len(too_long) > 0 and len(rest[0]) > 0

    def _can_send(self, items: int) -> bool:
        """Whether no rate limiter will make us wait with so many items, nor with those that the observer made."""
        self._is_flushed = self._is_flushed or _flushed(self._observer)
        return self._is_flushed and items <= self._room

    def _make(
        self, columns: list[np.ndarray], edges: np.ndarray, of: np.ndarray, rows: RowSpan, episodes: np.ndarray
    ) -> None:
        """Send items: whose run each is, and its rows; and the runs' names."""
        if not len(of):
            return
        self._room -= len(of)
        counts = np.bincount(of, minlength=len(edges) - 1)
        begins = rows.starts - edges[:-1][of]
        laid = Laid(columns, edges, [rows], counts, begins, begins, lambda which=None: None)
        chunks = None
        for sender in self._senders:
            keys = _NewKeys(self._rng, episodes, chunks)
            sender.send(laid, keys)
            chunks = keys.chunk_keys  # the same for all tables, so that the server stores them once

    def _give_up(self, columns: list[np.ndarray]) -> None:
        """From here on the observer: a rate limiter may have it wait for samples, for as long as it likes."""
        _log.info("a table's rate limiter lets in no more for now, so the observer is called frame by frame")
        self._drain()
        ahead = self._restore()
        self._waiting, self._tail, self._alone = [], [], math.inf
        self._show([column[ahead:] for column in columns])

    def _settle(self) -> None:
        """Make the items that are left, wait for all, and let the observer have what it would hold."""
        if self._waiting:
            self._send()
        self._drain()
        if self._settings.kind == "episodes":
            waiting, self._waiting = self._waiting, []
            self._alone = math.inf
            for columns in waiting:
                self._show(columns)
        else:
            self._restore()

    def _drain(self) -> None:
        for sender in self._senders:
            sender.drain()

    def _restore(self) -> int:
        """Let the observer hold the frames of the run that it would; returns how many behind those it has already."""
        unseen = self._run - self._seen
        if unseen <= 0 or self._settings.kind == "episodes":
            return -unseen
        state = vars(self._observer)
        for row in zip(*(column[-unseen:] for column in self._tail), strict=True):
            frame = self._pack(iter(row))
            state["_writer"].append(frame)
            state["_last_trajectory"] = frame
        state["_cached_steps"] = self._seen = self._run
        return 0


def windows_of(
    frames: np.ndarray, first: np.ndarray, closed: np.ndarray, settings: Settings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which windows are due in each of R runs of frames.

    Args:
        frames: ``[R] int64``, how many frames each has so far.
        first: ``[R] int64``, where windows of it may begin; the earlier ones are made.
        closed: ``[R] bool``, whether it is at its end.
        settings: length, stride, pad and tile count.

    Returns:
        ``[I] int64`` whose each window is, ``[I] int64`` the frame of the run where it begins, and ``[R] int64`` how
        many frames of padding each run needs.

    >>> settings = Settings("windows", "localhost:1", ("t",), 1.0, length=3, stride=2)
    >>> of, begins, missing = windows_of(np.array([6, 2]), np.array([0, 0]), np.array([True, True]), settings)
    >>> of.tolist(), begins.tolist(), missing.tolist()
    ([0, 0], [0, 2], [0, 0])
    >>> padded = settings._replace(pad=True)
    >>> of, begins, missing = windows_of(np.array([6, 2]), np.array([0, 0]), np.array([True, True]), padded)
    >>> of.tolist(), begins.tolist(), missing.tolist()
    ([0, 0, 1], [0, 2, 0], [0, 1])
    """
    length, stride = settings.length, settings.stride
    last = frames - length
    if settings.pad:
        last = np.where(closed, frames - 1 if settings.tile else np.maximum(last, 0), last)
    first = -(-first // stride) * stride
    counts = np.maximum((last - first) // stride + 1, 0)
    of = np.repeat(np.arange(len(frames)), counts)
    begins = first[of] + (np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)) * stride
    ends = first + (counts - 1) * stride + length
    return of, begins, np.where(counts > 0, np.maximum(ends - frames, 0), 0)


class _Sender:
    """Items on their way into one table."""

    def __init__(self, settings: Settings, table: str) -> None:
        self.stream = InsertStream(settings.address, table, timeout=WRITE_SECONDS, on_acknowledged=lambda marks: None)
        self._settings = settings
        self._table = table
        self._builder: RequestBuilder | None = None

    def send(self, laid: Laid, keys: _NewKeys) -> None:
        if self._builder is None:
            steps = 1024 if self._settings.kind == "episodes" else 16
            row_bytes = max(1, sum(tensor[:1].nbytes for tensor in laid.tensors))
            chunk_length = int(min(steps, max(1, CHUNK_BYTES // row_bytes)))
            columns = [Column(i) for i in range(len(laid.tensors))]
            encoder = ItemEncoder(self._table, columns, max_chunk_length=chunk_length)
            stream = self.stream
            self._builder = RequestBuilder(encoder, chunk_length, send=stream.send, mark=stream.mark)
        marks = [None] * len(laid.counts)
        self._builder.add(laid, keys, np.full(len(laid.numbers), self._settings.priority), marks)

    def drain(self) -> None:
        if self._builder is not None:
            self._builder.flush()
            self.stream.drain()


class _NewKeys:
    """Keys that nobody has used, as Reverb's own writers draw them."""

    def __init__(self, rng: np.random.Generator, episode_ids: np.ndarray, chunk_keys: np.ndarray | None) -> None:
        self._rng = rng
        self.episode_ids = episode_ids
        self.chunk_keys = chunk_keys

    def items(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return _new_keys(self._rng, len(of))

    def chunks(self, of: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        if self.chunk_keys is None:
            self.chunk_keys = _new_keys(self._rng, len(of))
        return self.chunk_keys


def packer(structure: Any) -> Callable[[Iterator[Any]], Any]:
    """What :func:`rlds2buf.core.nest.unflatten` does for one structure, looked at once and not for every row."""
    if isinstance(structure, dict):
        children = {key: packer(structure[key]) for key in sorted(structure)}
        return lambda leaves: {key: child(leaves) for key, child in children.items()}
    if isinstance(structure, tuple):
        items = [packer(child) for child in structure]
        if hasattr(structure, "_fields"):
            return lambda leaves: type(structure)(*[item(leaves) for item in items])
        return lambda leaves: tuple([item(leaves) for item in items])
    return next


def _kinds() -> dict[type, str]:
    utils = importlib.import_module("tf_agents.replay_buffers.reverb_utils")
    return {
        utils.ReverbAddTrajectoryObserver: "windows",
        utils.ReverbTrajectorySequenceObserver: "across",
        utils.ReverbAddEpisodeObserver: "episodes",
    }


def _can_be_held(leaf: Any) -> bool:
    """Whether a column of such rows can be laid out by us: of one shape, and of a dtype that numpy has."""
    import tensorflow as tf

    if not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank is None or not leaf.shape[1:].is_fully_defined():
        return False
    return np.dtype(leaf.dtype.as_numpy_dtype).name in TENSOR_DTYPES


def _flushed(observer: Any) -> bool:
    """Wait until the server has the items that the observer has made; False if it takes them too slowly."""
    import reverb

    try:
        vars(observer)["_writer"].flush(0, timeout_ms=FLUSH_MS)
    except reverb.DeadlineExceededError:
        return False
    return True


def _need_a_codec() -> None:
    """Raise MissingDependency now and not in the middle of a push."""
    number = np.zeros(1, np.uint64)
    ChunkEncoder().encode(Chunks(np.array([0, 1]), number, number, np.array([0])), [0], [np.zeros(1)])


def _new_keys(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 1 << 64, count, np.uint64)


def _joined(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    return parts[0] if len(parts) == 1 else [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _edges(borders: np.ndarray) -> np.ndarray:
    """``[R+1]``: where runs begin that end with a border ``[n] bool``, and the end; the last may be without one."""
    edges = np.append(0, np.flatnonzero(borders) + 1)
    return edges if edges[-1] == len(borders) else np.append(edges, len(borders))
