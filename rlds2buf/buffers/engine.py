"""All of a buffer but its public methods: what they, saving, live folders and multi-agent buffers work on."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rlds2buf.buffers.add.allowed import Allowed
from rlds2buf.buffers.add.intake import Intake
from rlds2buf.buffers.contents.contents import Contents
from rlds2buf.buffers.read.hindsight import Drawn, Hindsight
from rlds2buf.buffers.read.reader import Reader
from rlds2buf.buffers.read.view import View
from rlds2buf.buffers.read.windows import WindowReader
from rlds2buf.buffers.rows.blobs import is_blob
from rlds2buf.buffers.rows.block import Block
from rlds2buf.buffers.rows.columns import MemoryColumns, saved_columns, small_strings, write_columns
from rlds2buf.buffers.rows.row_store import Home, RowStore
from rlds2buf.buffers.select.prioritized import checked_priorities
from rlds2buf.buffers.select.samplers import Draw, item_slots
from rlds2buf.core import forks, nest
from rlds2buf.core.agreement import same_columns
from rlds2buf.core.arguments import integer, named_well
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import LINKED, OWN_NEXT
from rlds2buf.core.sample import Sample, SampleInfo, Trajectory, Transition, Windows
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, NotEnoughItems, ReplayError, SnapshotCorrupt, SnapshotError, UnknownKey

__all__ = ["Engine", "Folder", "HasEngine", "Prepared", "Request"]

_R = TypeVar("_R")

_NONE = np.zeros((2, 0))


class Request(NamedTuple):
    """What a batch is to be; fields as the arguments of ``Buffer.sample``.

    With `chosen`, the items are what that gives, called with the buffer's lock held, and of how many they are.
    """

    view: View
    beta: float | None = None
    source_id: int | None = None
    replace: bool = True
    concatenate: bool = False
    chosen: Callable[[], tuple[Draw, int]] | None = None


class Prepared(NamedTuple):
    """Blocks that a buffer takes, and the priorities ``[items] float64`` of what is in them, or None.

    Where an episode of a batch is not taken, `error` says why, and the blocks are those before it.
    """

    blocks: list[Block]
    priorities: np.ndarray | None
    error: EpisodeError | None = None

    @property
    def items(self) -> int:
        """How many there are."""
        return sum(block.items for block in self.blocks)


class Folder(Home, Protocol):
    """The folder of a buffer whose columns are files there (buffers/disk/live_folder.py has the one there is)."""

    path: Path

    @property
    def is_clean(self) -> bool:
        """Whether the files are as they were saved last."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether the folder is another buffer's by now."""
        ...

    def touch(self, store: RowStore) -> None:
        """The buffer is about to change."""

    def save(self, engine: Engine) -> Any:
        """Make what is there a saved buffer."""


class HasEngine(Protocol):
    """A buffer, as far as those see it that make one and fill it."""

    @property
    def engine(self) -> Engine:
        """What it works on."""
        ...


class Engine:
    """Rows, what enters and leaves, what is drawn and how it is read, and the lock over all of it.

    Adding has two parts: :meth:`prepare`, which refuses, and :meth:`add`, which can't go wrong any
    more.  In between, a caller can look at what else it wants to add, so that all goes in or nothing does.
    Only what is said to take the lock does; call the rest with it held.

    Args:
        spec: of the rows.
        contents: store, remover and sampler.
        kind: which factory made it.
        make: that factory, to make another one like it: ``make(spec, capacity, seed=seed, **options)``.
        intake: brings into one form what is added.
        options: arguments of the factory, as plain JSON values.
        view: what is sampled unless a call says otherwise.
        seed: of the draws.
        home: the folder that the columns are files of, if they are.
        hindsight: what puts in goals, if anything.

    Attributes:
        store, sampler, remover: of `contents`.
        reader: turns drawn slots into batches.
        windows: likewise, of a view with windows.
        rng: of the draws.
        seed: what `rng` started from.
        lock: over everything here.
        origin: the saved buffer that the rows are as in, if they are.
        provenance: what is saved with it.
        sampled: items drawn so far.
    """

    def __init__(
        self,
        spec: StepSpec,
        contents: Contents,
        *,
        kind: str,
        make: Callable[..., HasEngine],
        intake: Intake | None = None,
        options: Mapping[str, Any] | None = None,
        view: View | None = None,
        seed: int | np.random.SeedSequence | None = None,
        home: Folder | None = None,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.spec, self.kind, self.make = spec, kind, make
        self.contents, self.store = contents, contents.store
        self.sampler, self.remover = contents.sampler, contents.remover
        self.reader = Reader(contents.store)
        self.windows = WindowReader(self.reader)
        self.intake = intake or Intake(spec)
        self.options = dict(options or {})
        self.view = view or View()
        self.rng = np.random.default_rng(seed)
        self.seed = forks.seed_of(self.rng)
        self.lock: Any = threading.RLock()
        self.home = home
        self.origin: Path | None = None
        self.provenance: dict[str, Any] = {}
        self.sampled = 0
        self.hindsight = hindsight
        if hindsight is not None:
            hindsight.bind(contents.store)
        forks.register(self, Engine.forked, lock=lambda engine: engine.lock)

    @functools.cached_property
    def allowed(self) -> Allowed:
        """The spec's limits and finite sets."""
        return Allowed(self.spec)

    @property
    def capacity(self) -> int:
        """How much fits, in `capacity_unit`."""
        return self.remover.limit

    @property
    def capacity_unit(self) -> str:
        """What `capacity` counts."""
        return self.remover.unit

    @property
    def storage_unit(self) -> str:
        """What an item is."""
        return str(self.options.get("storage_unit", "timesteps"))

    def require_priorities(self, whose: str = "this buffer") -> None:
        """Raise ReplayError if all items are drawn alike."""
        if not self.sampler.has_priorities:
            raise ReplayError(f"{whose} samples uniformly and keeps no priorities")

    def touch(self) -> None:
        """Call before anything that is saved changes."""
        self.origin = None
        if self.home is not None:
            self.home.touch(self.store)

    def forked(self, number: int) -> None:
        """This is a child now: see core/forks.py."""
        self.lock = threading.RLock()
        self.seed = forks.fork_seed(self.seed, number)
        self.rng = np.random.default_rng(self.seed)
        self.contents.reseed(self.seed)

    def change_goals(self, name: str, value: Any) -> None:
        """Put another hindsight in place of the one there is: a batch under way keeps the one it was drawn with."""
        assert self.hindsight is not None, "no goals to change"
        self.hindsight = self.hindsight.changed(**{name: value})
        self.options.update(self.hindsight.options())

    # -- what comes in ----------------------------------------------------------------------------

    def prepare(
        self,
        data: Any,
        source_id: int | Sequence[int] | np.ndarray = 0,
        priorities: npt.ArrayLike | None = None,
        consecutive: bool = True,
        check_limits: bool = False,
        partly: bool = False,
    ) -> Prepared:
        """Bring what ``Buffer.add`` was given into the form it is stored in; nothing changes yet.

        Args:
            data, source_id, priorities, consecutive, check_limits: as ``Buffer.add`` has them.
            partly: give what a batch has before an episode that is not taken, and the error, in place of raising it.

        Raises:
            SpecMismatch, EpisodeError, InvalidPriority, ValueError, TypeError: as ``Buffer.add`` says.
        """
        error = None
        if isinstance(data, EpisodeBatch):
            blocks, error = self._of_batch(data, source_id, check_limits)
            if error is not None and not partly:
                raise error
        else:
            blocks = self._blocks(data, source_id, check_limits)
        if not consecutive:
            blocks = [block.apart() for block in blocks]
        if priorities is None:
            return Prepared(blocks, None, error)
        items = sum(block.items for block in blocks)
        given = priorities if error is None else np.asarray(priorities)[:items]
        return Prepared(blocks, checked_priorities(given, items), error)

    def _blocks(self, data: Any, source_id: Any, check_limits: bool) -> list[Block]:
        """What ``Buffer.add`` was given, in blocks that it takes."""
        if isinstance(data, list | tuple) and not isinstance(data, Transition):
            ids = np.broadcast_to(np.asarray(source_id), (len(data),)).tolist()
            parts = zip(data, ids, strict=True)
            return [block for part, number in parts for block in self._blocks(part, number, check_limits)]
        if isinstance(data, EpisodeBatch):
            blocks, error = self._of_batch(data, source_id, check_limits)
            if error is not None:
                raise error
            return blocks
        return self._taken(data, source_id, check_limits)

    def _of_batch(
        self, batch: EpisodeBatch, source_id: Any, check_limits: bool
    ) -> tuple[list[Block], EpisodeError | None]:
        """Several episodes as one block; or those before one that is not taken, and why it isn't."""
        with contextlib.suppress(EpisodeError):
            return self._taken(batch, source_id, check_limits), None
        blocks: list[Block] = []
        ids = np.broadcast_to(np.asarray(source_id), (len(batch),)).tolist()
        for i, (episode, number) in enumerate(zip(batch, ids, strict=True)):
            try:
                blocks += self._taken(episode, number, check_limits)
            except EpisodeError as error:
                error.source = error.source or episode.source
                if error.episode is None:
                    error.episode = i if episode.index is None else episode.index
                return blocks, error
        return blocks, None

    def _taken(self, data: Any, source_id: Any, check_limits: bool) -> list[Block]:
        blocks = self.intake.blocks(data, source_id)
        for block in blocks:
            self.remover.refuse(block)
            if check_limits:
                self.allowed.refuse(block)
        return blocks

    def add(self, prepared: Prepared) -> np.ndarray:
        """Store it; returns the keys ``[items] uint64``.

        Raises:
            EpisodeError: that of an episode of a batch that is not taken; those before it are stored.
        """
        self.touch()
        given = prepared.priorities
        keys = []
        for block in prepared.blocks:
            block = block if block.ids is None else block.parted()
            keys.append(self.contents.add(block, None if given is None else given[: block.items]))
            given = None if given is None else given[block.items :]
        if prepared.error is not None:
            raise prepared.error
        return keys[0] if len(keys) == 1 else np.concatenate([np.zeros(0, np.uint64), *keys])

    # -- what goes out ----------------------------------------------------------------------------

    @named_well("")
    def request(
        self,
        *,
        n_step: int | Sequence[int] | None = None,
        gamma: float | None = None,
        sequence_length: int | None = None,
        burn_in: int | None = None,
        initial_state: str | None = None,
        state: str | Sequence[str] | None = None,
        beta: float | None = None,
        source_id: int | None = None,
        replace: bool = True,
        concatenate: bool = False,
        decode: bool | None = None,
        offsets: Mapping[str, Any] | None = None,
        fps: float | None = None,
        stack: int | None = None,
        context: int | None = None,
        pad: str | None = None,
    ) -> Request:
        """What these options of ``Buffer.sample`` ask for.

        Raises:
            TypeError, ValueError: there is no such option, or it is out of range.
        """
        view = self.view.changed(
            n_step=n_step,
            gamma=gamma,
            sequence_length=sequence_length,
            burn_in=burn_in,
            initial_state=initial_state,
            state=state,
            decode=decode,
            offsets=offsets,
            fps=fps,
            stack=stack,
            context=context,
            pad=pad,
        )
        return Request(view, beta, source_id, replace, concatenate)

    def draw(self, rng: np.random.Generator, batch_size: int, request: Request) -> Sample:
        """A batch; takes the lock.

        Raises:
            NotEnoughItems: the buffer is empty, or without replacement smaller than `batch_size`.
            TooLarge: memory has no room for it.
            ValueError: an argument is out of range.
        """
        batch_size = integer("batch_size", batch_size, 1)
        self.reader.require_room(batch_size, request.view)
        if request.view.windows is not None:
            self.windows.require_room(batch_size, request.view.windows)
        with self.lock:
            self.store.require_whole()
            draw, size = self._draw(rng, batch_size, request)
            if request.view.whole:
                data, info = self._whole(draw, size, request)
            else:
                data = self._read(draw.slots, request.view, self._chances(rng, batch_size, request.view))
                keys = self.contents.keys_of(draw.slots)
                info = SampleInfo(keys, draw.probability, draw.priority, draw.weight, size)
        return Sample(self._finished(data, request.view), info)

    def draw_many(self, rng: np.random.Generator, count: int, batch_size: int, request: Request) -> list[Sample]:
        """`count` batches, read together: the same as one by one, in fewer calls; takes the lock."""
        count, batch_size = integer("count", count, 1), integer("batch_size", batch_size, 1)
        if count == 1 or request.view.whole:
            return [self.draw(rng, batch_size, request) for _ in range(count)]
        self.reader.require_room(count * batch_size, request.view)
        if request.view.windows is not None:
            self.windows.require_room(count * batch_size, request.view.windows)
        with self.lock:
            self.store.require_whole()
            drawn, chances = [], []
            for _ in range(count):
                drawn.append(self._draw(rng, batch_size, request))
                chances.append(self._chances(rng, batch_size, request.view))
            size = drawn[0][1]
            slots = np.concatenate([draw.slots for draw, _ in drawn])
            data = self._read(slots, request.view, np.concatenate(chances, axis=1))
            keys = self.contents.keys_of(slots)
        data = self._finished(data, request.view)
        parts = zip(_split(data, count), _split(keys, count), drawn, strict=True)
        return [
            Sample(part, SampleInfo(mine, draw.probability, draw.priority, draw.weight, size))
            for part, mine, (draw, _) in parts
        ]

    def draw_together(self, rng: np.random.Generator, count: int, batch_size: int, request: Request) -> list[Sample]:
        """As one batch of ``count * batch_size`` items, cut into `count`, which share its memory; takes the lock."""
        if count == 1:
            return [self.draw(rng, batch_size, request)]
        return _split(self.draw(rng, count * batch_size, request), count)

    def refresh(self) -> None:
        """Be up to date, where others write what is read here (see buffers/disk/following.py)."""

    def get(
        self, keys: np.ndarray, view: View, rng: np.random.Generator | None = None
    ) -> Transition | Trajectory | Windows:
        """The items of ``keys [B] uint64``, with the goals they had; takes the lock.

        Args:
            keys: of items held.
            view: what becomes of them.
            rng: what a horizon is drawn from that the view leaves open.

        Raises:
            UnknownKey: a key was never given out, or its item has left.
            ValueError: the view leaves the horizon open, and there is nothing to draw it from.
        """
        horizons = None
        if isinstance(view.n_step, tuple):
            if rng is None:
                raise ValueError(f"get draws nothing, so it takes one n_step, not one of {view.n_step}")
            horizons = view.horizons(rng.random(len(keys)))
        self.reader.require_room(len(keys), view)
        if view.windows is not None:
            self.windows.require_room(len(keys), view.windows)
        with self.lock:
            self.store.require_whole()
            held = self.contents.holds(keys)
            if not held.all():
                some = ", ".join(str(key) for key in keys[~held][:5])
                raise UnknownKey(f"{int((~held).sum())} of {len(keys)} keys are not in the buffer: {some}")
            data = self._rows(self.contents.slots_of(keys), view, horizons)
        unpacked: Transition | Trajectory | Windows = self.reader.unpack(data, view.decode)
        return unpacked

    def at_once(self, read: Callable[[Engine], _R]) -> _R:
        """What a function reads of this engine, which nobody changes meanwhile; takes the lock."""
        with self.lock:
            self.store.require_whole()
            return read(self)

    def _draw(self, rng: np.random.Generator, size: int, request: Request) -> tuple[Draw, int]:
        """B items, and of how many; where items have several steps and not all are wanted, one of their steps."""
        contents, replace = self.contents, request.replace
        if request.concatenate and not request.view.whole:
            raise ValueError("concatenate is for items of several transitions, sampled whole")
        if request.chosen is not None:
            draw, available = request.chosen()
        elif request.source_id is None:
            available = contents.sampler.count
            _enough(available, size, replace, "")
            draw = contents.sampler.draw(rng, size, replace=replace, beta=request.beta)
        else:
            slots = item_slots(contents.store)
            source = contents.store.source
            held = np.zeros(len(slots), np.uint32) if source is None else source[slots]
            slots = slots[held == request.source_id]
            available = len(slots)
            _enough(available, size, replace, f" of source {request.source_id}")
            draw = contents.sampler.among(rng, size, slots, replace=replace, beta=request.beta)
        self.sampled += size
        if contents.hits is not None:
            contents.hits.drawn(draw.slots)
        items = contents.store.items
        if items is not None and not request.view.whole:
            lengths = items[draw.slots]
            steps = (rng.random(size) * lengths).astype(np.int64)
            draw = draw._replace(
                slots=(draw.slots + steps) % contents.store.slots, probability=draw.probability / lengths
            )
        return draw, available

    def _chances(self, rng: np.random.Generator, size: int, view: View) -> np.ndarray:
        """What picks of goals go by, ``[2, B]``, and below them an open horizon, ``[1, B]``; neither where none is."""
        hindsight = self.hindsight
        count = 2 if hindsight is not None and hindsight.while_sampling else 0
        if isinstance(view.n_step, tuple):
            count += 1
        return rng.random((count, size)) if count else _NONE

    def _read(self, slots: np.ndarray, view: View, chances: np.ndarray) -> Any:
        horizons = view.horizons(chances[-1]) if isinstance(view.n_step, tuple) else None
        if self.hindsight is not None and self.hindsight.while_sampling:
            return self.hindsight.read(slots, view, chances, self.contents.waiting, horizons)
        if view.windows is None:
            return self.reader.read(slots, view, self.contents.waiting.values(), horizons)
        return self._rows(slots, view, horizons)

    def _rows(self, slots: np.ndarray, view: View, horizons: np.ndarray | None) -> Any:
        """What a view makes of rows ``slots [B] int64``, with the goals they had."""
        waiting, windows = self.contents.waiting, view.windows
        if windows is None:
            return self.reader.read(slots, view, waiting.values(), horizons)
        how: dict[str, Any] = {"n_step": view.longest, "gamma": view.gamma, "horizons": horizons}
        return self.windows.read(slots, windows, waiting, **how)

    def _finished(self, data: Any, view: View) -> Any:
        """Pictures decoded and goals put in, without the lock: the caller's functions run here."""
        unpack = self.reader.unpack
        if isinstance(data, Drawn):
            data = data._replace(rows=unpack(data.rows, view.decode), windows=unpack(data.windows, view.decode))
            return data.hindsight.finish(data, view.gamma)
        return unpack(data, view.decode)

    def _whole(self, draw: Draw, size: int, request: Request) -> tuple[Any, SampleInfo]:
        """Items with all their steps, padded or one behind the other."""
        keys = self.contents.keys_of(draw.slots)
        info = SampleInfo(keys, draw.probability, draw.priority, draw.weight, size)
        if not request.concatenate:
            return self.reader.whole(draw.slots), info
        path, steps = self.reader.members(draw.slots)
        flat = path[np.arange(path.shape[1]) < steps[:, None]]
        key, probability, priority, weight = (
            np.repeat(column, steps) for column in (keys, draw.probability, draw.priority, draw.weight)
        )
        info = SampleInfo(key, probability, priority, weight, size)
        return self.reader.transitions(flat, request.view.gamma), info

    # -- everything, as plain values and arrays, and back -----------------------------------------

    def describe(self) -> dict[str, Any]:
        """What is not in the columns, as plain JSON values (strings of a column, if few, as latin-1 text)."""
        store, contents = self.store, self.contents
        return {
            "kind": self.kind,
            "spec": self.spec.to_json(),
            "capacity": self.capacity,
            "capacity_unit": self.capacity_unit,
            "options": self.options,
            "base": store.oldest,
            "oldest": store.oldest,
            "newest": store.newest,
            "episode_rows": list(self.remover.lengths),
            "open": {str(source): key for source, key in contents.waiting.items()},
            "counts": {"added": contents.added, "evicted": contents.evicted, "sampled": self.sampled},
            "rng": self.rng.bit_generator.state,
            "sampler": self.sampler.state(),
            "contents": contents.state(),
            "strings": small_strings(store),
        }

    def write(self, column: Callable[[str, tuple[int, ...], np.dtype], Any]) -> bool:
        """Write what is in columns, rows oldest first; as :func:`~rlds2buf.buffers.rows.columns.write_columns`."""
        wide = write_columns(self.store, column)
        for name, array in self.sampler.arrays(self.store).items():
            column(f"sampler/{name}", array.shape[1:], array.dtype).append(array)
        return wide

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Become what was described; `arrays` are used as they are, not copied.

        Raises:
            SnapshotCorrupt: something is missing or does not fit together; rows and counts were not changed.
        """
        store, contents, rng = self.store, self.contents, np.random.default_rng()
        try:
            columns, vocabularies = saved_columns(store, state["strings"], arrays)
            limit, unit = int(state["capacity"]), str(state["capacity_unit"])
            lengths = [int(rows) for rows in state["episode_rows"]]
            waiting = {int(source): int(key) for source, key in state["open"].items()}
            added, evicted, sampled = (int(state["counts"][name]) for name in ("added", "evicted", "sampled"))
            if state["rng"] is not None:
                rng.bit_generator.state = state["rng"]
            base, oldest, newest = (int(state[name]) for name in ("base", "oldest", "newest"))
            store.adopt(columns, base=base, oldest=oldest, newest=newest)
            store.vocabularies = vocabularies
            self.remover.limit, self.remover.unit = limit, unit
            self.remover.lengths.clear()
            self.remover.lengths.extend(lengths)
            inside = dict(state.get("contents") or {})
            if state["rng"] is None:
                inside.pop("rng", None)  # all draws start anew
            contents.restored(inside)
            contents.waiting = waiting
            contents.added, contents.evicted, self.sampled = added, evicted, sampled
            if state["rng"] is not None:
                self.draw_from(state["rng"])
            saved = {name[len("sampler/") :]: array for name, array in arrays.items() if name.startswith("sampler/")}
            self.sampler.restore(store, state["sampler"], saved)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as cause:
            raise SnapshotCorrupt(f"the saved state does not fit together: {cause!r}") from cause

    def draw_from(self, state: Any) -> None:
        """Go on drawing from this state of a generator."""
        self.rng.bit_generator.state = state
        self.seed = forks.seed_of(self.rng)

    def state(self) -> dict[str, Any]:
        """A deep copy of everything."""
        columns = MemoryColumns()
        self.write(columns.column)
        return {**copy.deepcopy(self.describe()), "version": 1, "arrays": columns.arrays()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Become what :meth:`state` gave.

        Raises:
            SnapshotError: the state is of another kind, spec, capacity or version, or not whole; nothing
                was changed.
        """
        missing = {*self.describe(), "version", "arrays"} - set(state)
        if missing:
            raise SnapshotError(f"the state lacks {', '.join(sorted(missing))}")
        if state.get("version") != 1:
            raise SnapshotError(f"the state has version {state.get('version')!r}, expected 1")
        options = dict(state["options"])
        mine = {"kind": self.kind, "capacity": self.capacity, "capacity_unit": self.capacity_unit}
        theirs = {name: state.get(name) for name in mine}
        for name in ("storage_unit", "item_length"):
            mine[name], theirs[name] = self.options.get(name), options.get(name)
        for name, ours in mine.items():
            if theirs[name] != ours:
                raise SnapshotError(f"the state is of a buffer with {name} {theirs[name]!r}, this one has {ours!r}")
        if not same_columns(state["spec"], self.spec):
            raise SnapshotError("the state is of a buffer with another spec")
        store = self.store
        slots = max(store.slots, int(state["newest"]) - int(state["oldest"]))
        arrays = {name: np.array(array) for name, array in state["arrays"].items()}
        flags = arrays.get("flags", np.zeros(0, np.uint8))
        own = {f"next_{store.names[i]}{'/ends' * is_blob(store.fields[i])}" for i in store.observation}
        for flag, needed in ((OWN_NEXT, own), (LINKED, {"links"})):
            if np.any(flags & np.uint8(flag)) and not needed <= set(arrays):
                raise SnapshotCorrupt(f"the state lacks {', '.join(sorted(needed - set(arrays)))}")
        self.touch()
        self.restore(state, arrays)
        self.contents.relay(slots)


def _split(value: nest.Nest, count: int) -> list[Any]:
    """Several batches that were read as one; views of it."""
    if isinstance(value, np.ndarray):
        return list(value.reshape(count, len(value) // count, *value.shape[1:]))
    if isinstance(value, dict):
        parts = [_split(child, count) for child in value.values()]
        return [dict(zip(value, each, strict=True)) for each in (zip(*parts, strict=True) if parts else [()] * count)]
    if isinstance(value, tuple):
        parts = [_split(child, count) for child in value]
        make: Any = type(value)._make if hasattr(value, "_make") else tuple
        return [make(each) for each in (zip(*parts, strict=True) if parts else [()] * count)]
    return [value] * count


def _enough(count: int, size: int, replace: bool, what: str) -> None:
    needed = 1 if replace else size
    if count < needed:
        raise NotEnoughItems(f"the buffer holds {count} transitions{what}, and sampling needs at least {needed}")
