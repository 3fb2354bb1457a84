"""Replaying all agents of a time step together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.buffers.engine import Engine, Prepared
from rlds2buf.buffers.keys import as_keys
from rlds2buf.buffers.multi_agent.new_items import old_for, shares
from rlds2buf.buffers.multi_agent.policies import Part
from rlds2buf.buffers.multi_agent.time_slots import TimeSlots
from rlds2buf.buffers.read.view import OPTIONS
from rlds2buf.buffers.rows.block import Block
from rlds2buf.buffers.rows.step_ids import IDS, StepIds, checked_times
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import CODE, CONTINUE
from rlds2buf.core.sample import MultiAgentSample, Sample, SampleInfo, Transition
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, NotEnoughItems, SpecMismatch

__all__ = ["Lockstep"]

_MANY_OPEN = 1024


class Piece(NamedTuple):
    """Episodes or a batch of a policy's transitions, ready to be stored; ids ``[items] int64``."""

    policy: int
    prepared: Prepared
    episode_id: np.ndarray
    t: np.ndarray
    agent_index: np.ndarray


class Lockstep:
    """Several buffers of explicit steps, and the table of which of their rows belong together.

    Args:
        engines: the buffers', by policy id; uniform ones that count rows.
        ratio: the share of replayed slots in a batch, or None not to care what is new.
        rng: of the draws.

    Attributes:
        next_slot: number of the first slot that is new.

    Raises:
        ValueError: a buffer samples by priority, counts something else, or has items of several steps:
            slots are drawn uniformly, and a row's place is found by its key.
    """

    def __init__(self, engines: Mapping[str, Engine], ratio: float | None, rng: np.random.Generator) -> None:
        for name, engine in engines.items():
            if engine.kind != "circular" or engine.capacity_unit != "rows" or engine.storage_unit != "timesteps":
                raise ValueError(
                    f"lockstep draws whole time steps uniformly, so it needs circular buffers of timesteps that count "
                    f"rows: policy {name!r} has a {engine.kind} one of {engine.storage_unit} that counts "
                    f"{engine.capacity_unit}"
                )
        self.names = list(engines)
        self.engines = list(engines.values())
        self.slots = TimeSlots([engine.capacity for engine in self.engines])
        # Steps of one agent in one episode follow one another: each such pair is a source of its own.
        self._sources: list[dict[tuple[int, int], int]] = [{} for _ in self.engines]
        self._tidy_at = [_MANY_OPEN] * len(self.engines)
        self._next_source = 1
        self.ratio, self.next_slot = ratio, 0
        self.rng = rng

    def add(self, parts: Sequence[Part], given: Mapping[str, Any], check_limits: bool = False) -> dict[Any, np.ndarray]:
        """Store what was given for each policy or agent, all of it or none; returns the keys by their ids.

        Args:
            parts: what there is.
            given: :data:`IDS` that are not columns of the data: for all, or by the parts' names.
            check_limits: compare values with the specs' limits.

        Raises:
            SpecMismatch: data don't fit, or lack an id; the message names it.
            EpisodeError: a row is there already, or an episode is longer than the capacity.
        """
        pieces, owners = self.check(parts, given, check_limits)
        stored = self.store(pieces)
        keys: dict[Any, list[np.ndarray]] = {part.name: [np.zeros(0, np.uint64)] for part in parts}
        for name, mine_keys in zip(owners, stored, strict=True):
            keys[name].append(mine_keys)
        return {name: np.concatenate(some) for name, some in keys.items()}

    def check(
        self, parts: Sequence[Part], given: Mapping[str, Any], check_limits: bool
    ) -> tuple[list[Piece], list[Any]]:
        """What is to be stored, and whose each of it is; raises unless :meth:`add` would take it."""
        pieces: list[Piece] = []
        owners: list[Any] = []
        for part in parts:
            ids = {name: value.get(part.name) if isinstance(value, Mapping) else value for name, value in given.items()}
            if ids["agent_index"] is None and part.agent is not None:
                ids["agent_index"] = part.agent
            mine = self.prepare(part.policy, part.data, ids, check_limits)
            pieces += mine
            owners += [part.name] * len(mine)
        self.refuse(pieces)
        return pieces, owners

    def sample(
        self, count: int, replace: bool, options: Mapping[str, Any], rng: np.random.Generator | None = None
    ) -> MultiAgentSample:
        """The rows of `count` time slots, drawn from the buffer's own generator or from this one.

        Raises:
            NotEnoughItems: without replacement there are fewer slots.
            ValueError: an option is of no use here, or out of range.
        """
        rng = self.rng if rng is None else rng
        self.refuse_options(options)
        self.follow()
        slots, wanted = self.slots, 0
        new = np.zeros(0, np.int64)
        old, ratio = count, self.ratio
        if ratio is not None and ratio < 1.0:
            if not len(slots.since(self.next_slot, 1)[0]):
                return MultiAgentSample()
            wanted = shares(count, ratio, rng)
            new, after = slots.since(self.next_slot, wanted)
            old = old_for(len(new), wanted, count, ratio, rng)
        if not len(slots):
            return MultiAgentSample()
        if not replace and old > len(slots):
            raise NotEnoughItems(f"the buffer holds {len(slots)} time slots, and sampling needs at least {old}")
        drawn = slots.draw(rng, old, replace=replace) if old else new[:0]
        batch = self.read(np.concatenate([new, drawn]), rng, **options)
        if ratio is not None:
            self.next_slot = after if wanted else self.next_slot
            batch.num_new = {name: int(np.count_nonzero(slot < len(new))) for name, slot in batch.slot.items()}
        return batch

    def refuse_options(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError if there is one that is of no use here."""
        useless = sorted(set(options) - set(OPTIONS))
        if useless:
            raise ValueError(
                f"{', '.join(useless)} can't be used in lockstep, where whole time steps are drawn uniformly"
            )

    def prepare(self, policy: str, data: Any, given: Mapping[str, Any], check_limits: bool = False) -> list[Piece]:
        """Bring a policy's data into the form they are stored in; nothing changes yet.

        Args:
            policy: its name.
            data: what ``Buffer.add`` takes.
            given: the ids that are not columns of the data: for all rows, or ``[items]``.
            check_limits: compare values with the spec's limits.

        Raises:
            SpecMismatch: the data don't fit, or lack an id; the message names it.
            EpisodeError: an episode is longer than the capacity.
        """
        number = self.names.index(policy)
        engine = self.engines[number]
        pieces = []
        for part in _leaves(data):
            prepared = engine.prepare(_without_ids(part, engine.spec), check_limits=check_limits)
            for block in prepared.blocks:
                rows = _IdColumns(part, block)
                ids = [rows.column(name, given.get(name), policy) for name in IDS]
                pieces.append(Piece(number, prepared, *ids))
        return pieces

    def refuse(self, pieces: Sequence[Piece]) -> None:
        """Raise if a row is there already, or comes twice.

        Raises:
            EpisodeError: it names the episode, the time and the agent.
        """
        self.follow()
        for policy in {piece.policy for piece in pieces}:
            ids = _joined(pieces, policy)
            row = self.slots.repeated(policy, *ids)
            if row >= 0:
                episode, time, agent = (int(column[row]) for column in ids)
                raise EpisodeError(
                    f"policy {self.names[policy]!r} has two rows of agent {agent} at this step",
                    episode=episode,
                    step=time,
                    path="agent_index",
                    rule="repeated-step",
                )

    def store(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """Store what :meth:`refuse` let pass; returns the keys ``uint64`` of each piece's rows."""
        keys = []
        for piece in pieces:
            ends = self._give_sources(piece)
            keys.append(self.engines[piece.policy].add(piece.prepared))
            for pair in ends:
                self._sources[piece.policy].pop(pair, None)
            self._tidy(piece.policy)
        self.follow()
        gone = []
        for piece, mine in zip(pieces, keys, strict=True):
            held = mine.astype(np.int64) >= self.slots.oldest[piece.policy]
            ids = (piece.episode_id[held], piece.t[held], piece.agent_index[held])
            self.slots.enter(piece.policy, mine[held].astype(np.int64), *ids)
            gone.append((piece.episode_id[~held], piece.t[~held]))
        for episodes, times in gone:  # of what did not fit, nothing is complete
            self.slots.drop(episodes, times)
        return keys

    def follow(self) -> None:
        """Let go of the slots of rows that have left, and take the buffers' new capacities if they have some."""
        for policy, engine in enumerate(self.engines):
            self.slots.follow(policy, engine.store.oldest)
        capacities = [engine.capacity for engine in self.engines]
        if capacities != self.slots.capacities:
            before, self.slots = self.slots.state(), TimeSlots(capacities)
            self.slots.restore(before)

    def read(self, drawn: np.ndarray, rng: np.random.Generator, **view: Any) -> MultiAgentSample:
        """The rows of slots ``drawn [n] int64``; policies that have none are absent.  Open horizons are drawn."""
        size = len(self.slots)
        batch = MultiAgentSample()
        batch.num_slots = len(drawn)
        for name, engine, (keys, slot, agents) in zip(self.names, self.engines, self.slots.rows_of(drawn), strict=True):
            if not len(keys):
                continue
            data = engine.get(as_keys(keys), engine.view.changed(**view), rng)
            ones = np.ones(len(keys))
            batch[name] = Sample(data, SampleInfo(keys.astype(np.uint64), ones / size, ones, ones, size))
            batch.slot[name], batch.agent_index[name] = slot, agents
        return batch

    def clear(self) -> None:
        """Forget all slots; the buffers are cleared already."""
        self.slots.clear()
        for sources in self._sources:
            sources.clear()
        self.follow()

    def state(self) -> dict[str, Any]:
        """What the slots don't say, as plain JSON values."""
        pairs = [[[*pair, source] for pair, source in sources.items()] for sources in self._sources]
        return {"sources": pairs, "next_source": self._next_source}

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Take back :meth:`state` and the slots'.

        Raises:
            KeyError, TypeError, ValueError: they don't fit together.
        """
        sources = [{(int(e), int(a)): int(s) for e, a, s in pairs} for pairs in state["sources"]]
        if len(sources) != len(self.engines):
            raise ValueError("sources of other buffers")
        self.slots.restore(dict(arrays))
        self._sources, self._next_source = sources, int(state["next_source"])

    def _give_sources(self, piece: Piece) -> list[tuple[int, int]]:
        """Set the blocks' source ids; returns the pairs of episode and agent that end in the piece."""
        known = self._sources[piece.policy]
        (block,) = piece.prepared.blocks
        if not len(piece.t):  # an episode of one row has no transition
            return []
        if block.own is None:
            self._give_new_sources(piece, block)
            return []
        pairs = np.stack([piece.episode_id, piece.agent_index], axis=1)
        if (pairs == pairs[0]).all():
            unique, which = pairs[:1], np.zeros(len(pairs), np.int64)
        else:
            unique, which = np.unique(pairs, axis=0, return_inverse=True)
            which = which.reshape(-1)
        numbers = np.array([self._source(known, (int(e), int(a))) for e, a in unique])
        block.source = int(numbers[0]) if len(numbers) == 1 else numbers[which]
        block.ids = StepIds({"t": piece.t})  # in time order, or it follows nothing; who it is of, the source says
        last = np.zeros(len(unique), np.int64)
        last[which] = np.arange(len(which))  # the last one of each pair wins
        ends = (block.flags[last] & CODE) != CONTINUE
        return [(int(e), int(a)) for e, a in unique[ends]]

    def _give_new_sources(self, piece: Piece, block: Block) -> None:
        """Set those of whole episodes, each the source of its first pair; nothing of theirs goes on."""
        known, edges = self._sources[piece.policy], block.edges
        episode = np.searchsorted(edges, block.starts, side="right")
        ids = np.stack([episode, piece.episode_id, piece.agent_index], axis=1)
        unique = ids[np.append(True, (ids[1:] != ids[:-1]).any(axis=1))]
        if len(unique) > len(edges):
            unique = np.unique(unique, axis=0)
        if known:
            pairs = map(tuple, unique[:, 1:].tolist())
            numbers = np.array([known.pop(pair, None) or self._new_sources(1)[0] for pair in pairs])
        else:
            numbers = self._new_sources(len(unique))
        first = np.append(True, np.diff(unique[:, 0]) > 0)
        source = np.zeros(len(edges), np.int64)
        source[unique[first, 0]] = numbers[first]
        block.source = int(source[0]) if len(source) == 1 else np.repeat(source, np.diff(edges, prepend=0))
        block.begins = numbers.tolist()

    def _source(self, known: dict[tuple[int, int], int], pair: tuple[int, int]) -> int:
        number = known.get(pair)
        if number is None:
            number = known[pair] = int(self._new_sources(1)[0])
        return number

    def _new_sources(self, count: int) -> np.ndarray:
        """So many ids ``int64`` that were not given before: from 1 up, and again from 1 when all have been used."""
        most = (1 << 32) - 1
        numbers = (self._next_source - 1 + np.arange(count + 1)) % most + 1
        self._next_source = int(numbers[-1])
        return numbers[:-1]

    def _tidy(self, policy: int) -> None:
        """Forget pairs whose newest rows have left: what comes now follows nothing."""
        known = self._sources[policy]
        if len(known) < self._tidy_at[policy]:
            return
        contents = self.engines[policy].contents
        oldest = contents.store.oldest
        contents.forget_open([source for source, key in contents.waiting.items() if key < oldest])
        kept = {pair: source for pair, source in known.items() if source in contents.waiting}
        self._sources[policy], self._tidy_at[policy] = kept, max(_MANY_OPEN, 2 * len(kept))


def _leaves(data: Any) -> Iterator[Any]:
    """Episodes, batches of them and of transitions in whatever ``Buffer.add`` takes."""
    if isinstance(data, list | tuple) and not isinstance(data, Transition):
        for part in data:
            yield from _leaves(part)
    elif data is not None and not (isinstance(data, str | Mapping) and not data):
        yield data


def _joined(pieces: Sequence[Piece], policy: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mine = [piece for piece in pieces if piece.policy == policy]
    columns = ([getattr(piece, name) for piece in mine] for name in IDS)
    episode, time, agent = (parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in columns)
    return episode, time, agent


def _without_ids(data: Any, spec: StepSpec) -> Any:
    """Explicit transitions without the ids, which are looked at apart; as extras only where they are not to be kept."""
    fields = data._asdict() if isinstance(data, Transition) else data
    if not isinstance(fields, Mapping):
        return data
    plain = {name: value for name, value in fields.items() if name not in IDS}
    if isinstance(plain.get("extras"), Mapping):
        plain["extras"] = {
            name: value for name, value in plain["extras"].items() if name not in IDS or name in spec.extras
        }
    return plain


class _IdColumns:
    """Where the ids of rows come from that are not given: the data's own columns.

    Args:
        data: an Episode, an EpisodeBatch, or explicit transitions.
        block: what became of them.
    """

    def __init__(self, data: Any, block: Block) -> None:
        self._block = block
        self._count = block.items
        self._rows = data.rows if isinstance(data, EpisodeBatch) else data if isinstance(data, Episode) else None
        self._fields: Mapping[str, Any] = {}
        if self._rows is None:
            self._fields = data._asdict() if isinstance(data, Transition) else data

    def column(self, name: str, given: Any, policy: str) -> np.ndarray:
        """One id of every transition, ``[items] int64``: as given, or a column of the data, or one of its extras.

        Raises:
            SpecMismatch: there is none, or it is none of integers.
        """
        value, count = given, self._count
        if value is None:
            value = self._own(name)
        if value is None:
            raise SpecMismatch(
                f"lockstep replay needs it to know which steps belong together; give policy {policy!r} such a column "
                f"or extra, or add(..., {name}=...)",
                path=name,
                rule="missing-field",
            )
        column = np.asarray(value)
        if self._block.ends is not None and column.shape not in ((), (count,)):
            lengths = np.diff(np.searchsorted(self._block.starts, self._block.edges), prepend=0)
            if (lengths == len(column)).all():
                column = np.tile(column, len(lengths))  # what is given for each of several episodes that are alike
        if column.dtype.kind not in "iu" or column.shape not in ((), (count,), (1,)):
            raise SpecMismatch(
                f"expected an integer for all rows of policy {policy!r}, or {count} of them, "
                f"got {column.dtype}{list(column.shape)}",
                path=name,
                rule="spec",
            )
        column = checked_times(column) if name == "t" else column.astype(np.int64)
        return np.ascontiguousarray(np.broadcast_to(column, (count,)))

    def _own(self, name: str) -> Any:
        if self._rows is None:
            return self._fields.get(name, (self._fields.get("extras") or {}).get(name))
        starts = self._block.starts
        if name in self._rows.extras:
            return np.asarray(self._rows.extras[name])[starts]
        edges = self._block.edges
        first = np.append(0, edges[:-1])
        return starts - first[np.searchsorted(edges, starts, side="right")] if name == "t" else None
