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
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError
from rlds2buf.formats.reverb.protocol.item_encoder import Column, RowSpan

__all__ = ["Laid", "Pattern", "extra_field"]


class Laid(NamedTuple):
    """One episode laid out.

    Attributes:
        tensors: arrays ``[R, ...]``, one row per stored step.
        spans: rows of each of the I items; a pattern's columns say which span is theirs.
        numbers: ``[I] int64``, which item of the episode each is; stable, and distinct.
        rows: ``[I] int64``, the row of the episode where each item begins.
        items: gives all items as the pattern's NamedTuple of arrays ``[I, ...]``.
    """

    tensors: list[np.ndarray]
    spans: list[RowSpan]
    numbers: np.ndarray
    rows: np.ndarray
    items: Callable[[], Any]


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

    @abc.abstractmethod
    def lay(self, episode: Episode) -> Laid:
        """Lay out one episode.

        Raises:
            EpisodeError: it lacks a field.
        """

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
