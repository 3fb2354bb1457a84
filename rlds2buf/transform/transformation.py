"""Everything that is done to a dataset on its way from the files: one object, the same for the spec and the data."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.dtypes import dtype_name
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.nest import Nest
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, FilteredOut, SpecMismatch
from rlds2buf.transform.alignment import ALIGNMENTS, realign, realign_batch, shift_reward, shift_reward_batch
from rlds2buf.transform.casting import Casting
from rlds2buf.transform.filters import Fault, Filters
from rlds2buf.transform.leaves import ColumnLeaves, SpecLeaves
from rlds2buf.transform.mapping import Mapper, map_entries
from rlds2buf.transform.subset import Subset
from rlds2buf.transform.tree import batch_of, episode_of, find, spec_of_tree, tree_of

__all__ = ["OPTIONS", "Transformation"]

OPTIONS = (
    "map drop float32 cast alignment reward_shift min_return max_return min_length max_length where sample "
    "val_fraction part seed"
).split()
"""The keyword arguments of a transformation."""

_NEIGHBOURS = 1024
"""For so many indices at once it is looked up whether they are wanted."""


class Transformation:
    """Sample, map, cast, align, filter: in this order.

    1. `sample`, `val_fraction` and `part` choose by index (:class:`~rlds2buf.transform.subset.Subset`).
    2. `drop`, then `map` move fields (:class:`~rlds2buf.transform.mapping.Mapper`).
    3. `float32` and `cast` change types (:class:`~rlds2buf.transform.casting.Casting`).
    4. `alignment` and `reward_shift` move rows (:mod:`rlds2buf.transform.alignment`).
    5. `min_return`, ..., `where` look at the result (:class:`~rlds2buf.transform.filters.Filters`);
       an expression finds dropped fields too, by their old names.

    Args:
        spec: of the episodes that come in.
        num_episodes: how many there are, if that is known; for ``sample=100``.
        Others: as the classes above say.

    Attributes:
        spec: of the episodes that come out.
        filters: whether episodes may be left out.
        chooses: whether some are left out by their index alone, as :meth:`wants` says.
        unused: names of the fields that come in for nothing.

    Raises:
        ValueError, TypeError: an argument is wrong, or does not fit the spec.

    >>> from rlds2buf.core.spec import FieldSpec
    >>> spec = StepSpec(observation={"q": FieldSpec((2,), np.float64), "v": FieldSpec((), np.float64)}, reward=None)
    >>> Transformation(spec, map={"observation": "observation/*"}, float32=True).spec.observation
    FieldSpec(float32[3])
    """

    def __init__(
        self,
        spec: StepSpec,
        *,
        num_episodes: int | None = None,
        map: Mapping[str, str | Sequence[str]] | None = None,
        drop: str | Sequence[str] = (),
        float32: bool = False,
        cast: Mapping[str, npt.DTypeLike] | None = None,
        alignment: str = "sar",
        reward_shift: int = 0,
        min_return: float | None = None,
        max_return: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        where: str | Callable[[Episode], Any] | None = None,
        sample: float | int | None = None,
        val_fraction: float | None = None,
        part: str | None = None,
        seed: int = 0,
    ) -> None:
        choice("alignment", alignment, ALIGNMENTS)
        if reward_shift < 0:
            raise ValueError(f"reward_shift must not be negative, got {reward_shift}")
        self._alignment = alignment
        self._reward_shift = reward_shift
        self._subset = Subset(sample=sample, val_fraction=val_fraction, part=part, seed=seed, num_episodes=num_episodes)
        self._filters = Filters(
            min_return=min_return,
            max_return=max_return,
            min_length=min_length,
            max_length=max_length,
            where=where,
        )
        drop = [drop] if isinstance(drop, str) else list(drop)
        self._casting = Casting(float32=float32, cast=cast)
        self._described = _described(map, drop, float32, cast)
        tree = tree_of(spec)
        self._mapper = Mapper(tree, map or {}, drop, self._casting)
        mapped = self._mapper.apply(tree, SpecLeaves())
        self._casting.check(mapped)
        self._types = {path: leaf.dtype for path, leaf in nest.flatten(mapped) if leaf is not None}
        out = self._casting.apply(mapped, SpecLeaves(), self._types)
        _check_flags(out)
        if self._described and not out.keys() - {*FLAG_FIELDS}:
            raise ValueError("drop: nothing is left but flags")
        self.spec: StepSpec = spec_of_tree(out) if self._described else spec
        self._filters.check(out, tree)
        looked_at = [find(tree, name) for name in self._filters.columns]
        self.unused = [
            nest.path_name(path) for path in self._mapper.unused if path not in looked_at and path[0] not in FLAG_FIELDS
        ]
        self.chooses = bool(self._subset)
        self._kept: tuple[int, list[bool]] = -1, []
        self.filters = bool(self._filters) or self.chooses

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """What it does, as plain JSON values: the options that are not at their defaults."""
        found = dict(self._described)
        if self._alignment != "sar":
            found["alignment"] = self._alignment
        if self._reward_shift:
            found["reward_shift"] = self._reward_shift
        return {**found, **self._filters.describe(), **self._subset.describe()}

    def wants(self, index: int) -> bool:
        """Whether the episode of this index is in the sample and in the part."""
        first = index - index % _NEIGHBOURS
        kept = self._kept
        if kept[0] != first:  # readers ask for one after the other
            kept = self._kept = first, self._subset.keeps(np.arange(first, first + _NEIGHBOURS)).tolist()
        return kept[1][index - first]

    def left_out(self, start: int, stop: int, source: str | None) -> Iterator[FilteredOut]:
        """What stands for the episodes ``start`` up to (not with) ``stop``, none of which is wanted."""
        return _left_out(self._subset.faults(np.arange(start, stop)), start, source)

    def take(self, item: Episode | EpisodeError) -> Episode | EpisodeError:
        """What becomes of a wanted episode of the source; errors are returned, as from Source.read.

        Raises:
            ExpressionError: `where` can't be evaluated; and whatever a function given as `where` raises.
        """
        if isinstance(item, EpisodeError):
            return item
        try:
            episode = self.change(item)
        except EpisodeError as error:
            return error
        left_out = self._filters.fault(episode, item) if self._filters else None
        return episode if left_out is None else _filtered_out(left_out, episode.source, episode.index)

    def take_batch(
        self, batch: EpisodeBatch, start: int | None = None, source: str | None = None
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """What becomes of a batch of the source: runs of those that are kept, and errors in their places.

        Args:
            batch: with its `index`, where some are chosen by it.
            start: the index that comes next, where the source may have passed over some that are not wanted:
                the FilteredOut of those before the batch and within it are yielded too.
            source: the source's name, for those; by default the one that the batch tells.

        Raises:
            ExpressionError: as from :meth:`take`, behind what came before it.
        """
        source = batch.rows.source if source is None else source
        if not self.chooses:
            yield from self._in_order(batch, {})
            return
        if batch.index is None:
            batch = copy.copy(batch)
            batch.index = np.arange(len(batch)) + (start or 0)
        places = batch.index
        start, stop = int(places[0]) if start is None else start, int(places[-1]) + 1
        wanted = self._subset.keeps(places)
        if not wanted.any():
            yield from self.left_out(start, stop, source)
            return
        places = places[wanted]
        faults = self._subset.faults(np.arange(start, stop))
        expected = np.append(start, places[:-1] + 1)
        gaps: dict[int, Iterator[FilteredOut]] = {}
        for i in np.flatnonzero(expected != places).tolist():
            first, last = int(expected[i]), int(places[i])
            gaps[i] = _left_out(faults[first - start : last - start], first, source)
        yield from self._in_order(batch.take(wanted), gaps)
        last = int(places[-1]) + 1
        yield from _left_out(faults[last - start :], last, source)

    def _in_order(
        self, batch: EpisodeBatch, gaps: Mapping[int, Iterator[FilteredOut]]
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """Runs of those kept of a batch of wanted ones, and the errors; `gaps` by the position that each is before."""
        changed, others, end, stopped = self._outcomes(batch)
        begin = 0
        for position in sorted({*gaps, *others, end}):
            if position > end:
                break
            if begin < position:
                yield changed.take(slice(begin, position))
            begin = position
            if position in gaps:
                yield from gaps[position]
            if position < end and position in others:
                other = others[position]
                yield EpisodeBatch.of_one(other) if isinstance(other, Episode) else other
                begin = position + 1
        if stopped is not None:
            raise stopped

    def _outcomes(
        self, batch: EpisodeBatch
    ) -> tuple[EpisodeBatch, dict[int, Episode | EpisodeError], int, Exception | None]:
        """What becomes of each: the batch changed; something else for some, by position; up to where; what stopped it.

        An episode with a value that does not fit goes through :meth:`take`, which says so.
        """
        try:
            changed, suspects = self._changed(batch)
        except EpisodeError:
            changed, suspects = batch, np.ones(len(batch), np.bool_)
        others: dict[int, Episode | EpisodeError] = {}
        end, asked, origins = len(batch), -1, changed.each_source()
        stopped: Exception | None = None
        try:
            for asked, fault in self._filters.faults(changed, batch, suspects):
                if fault is not None:
                    index = None if changed.index is None else int(changed.index[asked])
                    others[asked] = _filtered_out(fault, origins[asked], index)
        except Exception as error:  # a function given as `where` may raise whatever it likes
            end, stopped = asked + 1, error
        positions = np.flatnonzero(suspects).tolist()
        for position, episode in zip(positions, batch.take(suspects) if positions else (), strict=True):
            try:
                others[position] = self.take(episode)
            except Exception as error:
                if position < end:
                    end, stopped = position, error
                break
        return changed, others, end, stopped

    def _changed(self, batch: EpisodeBatch) -> tuple[EpisodeBatch, np.ndarray]:
        """All episodes mapped, cast and aligned, and which of them, ``[E] bool``, have a value that does not fit.

        Raises:
            EpisodeError: this can't be done to episodes with these fields; what it names is to be asked of each.
        """
        unfit = np.zeros(batch.num_steps, np.bool_)
        if self._described:
            batch = batch_of(self._tree(batch.rows, unfit), batch)
        batch = realign_batch(batch, self._alignment)
        return shift_reward_batch(batch, self._reward_shift), np.logical_or.reduceat(unfit, batch.starts)

    def change(self, episode: Episode) -> Episode:
        """The episode mapped, cast and aligned; filters are not asked.

        Raises:
            EpisodeError: a value does not fit into its new type, or a field is not there.
        """
        if self._described:
            episode = episode_of(self._tree(episode), episode)
        return shift_reward(realign(episode, self._alignment), self._reward_shift)

    def _tree(self, rows: Episode, unfit: np.ndarray | None = None) -> dict[str, Nest]:
        """The fields of one episode or of several, mapped and cast; `unfit` as of ColumnLeaves."""
        leaves = ColumnLeaves(rows, unfit)
        try:
            tree: dict[str, Nest] = self._mapper.apply(tree_of(rows), leaves)
        except KeyError as cause:
            where: dict[str, Any] = {"source": rows.source, "episode": rows.index}
            raise SpecMismatch("the field is missing", path=str(cause.args[0]), rule="spec", **where) from cause
        return self._casting.apply(tree, leaves, self._types)


def _left_out(faults: Sequence[Fault | None], start: int, source: str | None) -> Iterator[FilteredOut]:
    """What stands for neighbours that are not wanted."""
    for index, fault in enumerate(faults, start):
        assert fault is not None, index
        yield _filtered_out(fault, source, index)


def _filtered_out(fault: Fault, source: str | None, index: int | None) -> FilteredOut:
    return FilteredOut(fault[1], source=source, episode=index, rule=fault[0])


def _described(
    map: Mapping[str, str | Sequence[str]] | None,
    drop: Sequence[str],
    float32: bool,
    cast: Mapping[str, npt.DTypeLike] | None,
) -> dict[str, Any]:
    """The part that changes fields, as plain JSON values."""
    found: dict[str, Any] = {}
    if map:
        found["map"] = {
            target: names if not isinstance(map[target], str) else names[0] for target, names, _ in map_entries(map)
        }
    if drop:
        found["drop"] = list(drop)
    if float32:
        found["float32"] = True
    if cast:
        found["cast"] = {name: dtype_name(np.dtype(wanted)) for name, wanted in cast.items()}
    return found


def _check_flags(tree: Mapping[str, Nest]) -> None:
    for name in FLAG_FIELDS:
        field = tree.get(name)
        if field is not None and (getattr(field, "shape", None) != () or field.dtype != np.bool_):
            raise ValueError(f"{name} must be one bool a step, and can't be {field}")
