"""What a pattern is: a way to cut episodes into the items of a Reverb table.

A pattern lays an episode out as tensors of rows, and says which rows each column of each item covers.
Rows are stored once, however many items hold them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, SpecMismatch
from rlds2buf.formats.reverb.protocol.item_encoder import Column, RowSpan

__all__ = ["Laid", "Pattern", "check_batch", "extra_field"]


class Laid(NamedTuple):
    """E episodes laid out, one behind the other.

    Attributes:
        tensors: arrays ``[R, ...]``, one row per stored step.
        edges: ``[E+1] int64``: the first row of each episode, then R.
        spans: rows of each of the I items; a pattern's columns say which span is theirs.
        counts: ``[E] int64``, how many items each episode has.
        numbers: ``[I] int64``, which item of its episode each is; stable, and distinct.
        rows: ``[I] int64``, the row of its episode where each item begins.
        items: gives some items of one episode as the pattern's NamedTuple of arrays ``[n, ...]``; by default all.
    """

    tensors: list[np.ndarray]
    edges: np.ndarray
    spans: list[RowSpan]
    counts: np.ndarray
    numbers: np.ndarray
    rows: np.ndarray
    items: Callable[..., Any]

    @property
    def of(self) -> np.ndarray:
        """``[I] int64``: whose each item is."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def first_items(self) -> np.ndarray:
        """``[E+1] int64``: the first item of each episode, then I."""
        return np.append(0, np.cumsum(self.counts))

    def take(self, which: np.ndarray) -> Laid:
        """Some of the episodes, ``[E] bool``; their items can't be had any more."""
        if which.all():
            return self
        keeps = np.repeat(which, np.diff(self.edges))
        moved = np.append(0, np.cumsum(keeps))  # where each row is then
        mine = which[self.of]
        return Laid(
            [tensor[keeps] for tensor in self.tensors],
            np.append(moved[self.edges[:-1]][which], moved[-1]),
            [RowSpan(moved[span.starts[mine]], moved[span.stops[mine]]) for span in self.spans],
            self.counts[which],
            self.numbers[mine],
            self.rows[mine],
            self.items,
        )


class Pattern(abc.ABC):
    """A way to cut episodes into items.

    Attributes:
        crosses: whether an item may begin in an earlier episode.
        chunk_steps: small steps per chunk, unless told otherwise.
        type_name: of the items' structure in a table's signature.
    """

    crosses = False
    chunk_steps = 16
    type_name = "Trajectory"

    @property
    @abc.abstractmethod
    def text(self) -> str:
        """The pattern with all that shapes its items, in one line; keys are derived from it."""

    @abc.abstractmethod
    def signature(self, spec: StepSpec) -> Any:
        """The item's NamedTuple of FieldSpec, with the axis of steps where items have one.

        Raises:
            ValueError: the data lack a field that it needs.
        """

    def table_signature(self, spec: StepSpec) -> Any:
        """The signature that a table for such items should have; an axis of steps is None there."""
        return self.signature(spec)

    @abc.abstractmethod
    def columns(self, spec: StepSpec) -> list[Column]:
        """How the item's columns read the tensors, in the signature's flat order."""

    def lay(self, episodes: Episode | EpisodeBatch) -> Laid:
        """Lay out one episode, or several.

        Raises:
            EpisodeError: they lack a field; it names the first of them.
        """
        batch = EpisodeBatch.of_one(episodes) if isinstance(episodes, Episode) else episodes
        try:
            return self.lay_batch(batch)
        except EpisodeError as error:
            error.episode = None if batch.index is None else int(batch.index[0])
            raise

    @abc.abstractmethod
    def lay_batch(self, batch: EpisodeBatch) -> Laid:
        """As :meth:`lay`."""

    def take_back(self, batch: EpisodeBatch) -> None:
        """Forget for :attr:`note` that these were laid out; they will be once more."""
        return None

    @abc.abstractmethod
    def count(self, steps: int, episodes: int) -> int | None:
        """How many items a dataset becomes, None where the lengths of its episodes would have to be known."""

    @property
    def note(self) -> str:
        """What the user should know of the items so far, if anything."""
        return ""

    def reset(self) -> None:
        """Forget earlier episodes."""
        return None


def extra_field(episode: Episode, name: str) -> nest.Nest:
    """An episode's extra step field.

    Raises:
        EpisodeError: it has none of that name.
    """
    if name not in episode.extras:
        raise EpisodeError(
            "the episode has no such field",
            source=episode.source,
            episode=episode.index,
            path=f"extras/{name}",
            rule="missing-field",
        )
    return episode.extras[name]


def check_batch(spec: StepSpec, batch: EpisodeBatch) -> None:
    """Raise unless the episodes of a batch, which all have one layout, fit the spec.

    Raises:
        SpecMismatch: they don't; it names the first of them.
    """
    try:
        spec.check(batch.rows)
    except SpecMismatch:
        spec.check(next(iter(batch)))
        raise
