"""What sources of a Reverb table's items share."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.spec import StepSpec, spec_of
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.formats.reverb.item_rows import columns_of, episode_of
from rlds2buf.formats.reverb.joined_items import ItemStore, JoinedItems
from rlds2buf.formats.reverb.protocol.signature import TableField
from rlds2buf.io.source import Source

__all__ = ["ItemSource"]


class ItemSource(Source):
    """Items of a table, each as an episode; or, joined, the episodes that their rows are of.

    Attributes:
        fields: of the table's signature; None where it has none.
        join: whether :meth:`read` gives episodes (:class:`~rlds2buf.formats.reverb.joined_items.JoinedItems`) and
            not items; None: only to conversions and validation, which ask for episodes.
    """

    fields: Sequence[TableField] | None
    join: bool | None = None

    @property
    def spec(self) -> StepSpec:
        """That of the first item, or episode."""
        return self.joined.spec if self.join else self._spec

    @property
    def num_episodes(self) -> int | None:
        """How many items are read in a pass; None where they are joined."""
        return None if self.join else self.num_table_items

    @property
    @abc.abstractmethod
    def num_table_items(self) -> int:
        """How many items are read in a pass."""

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        """Items `start` up to `stop`, or episodes."""
        return self.joined.read(start, stop) if self.join else self.read_items(start, stop)

    @abc.abstractmethod
    def read_items(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        """Items `start` up to `stop`."""

    @abc.abstractmethod
    def store(self) -> ItemStore:
        """The items and chunks to join."""

    def as_episodes(self) -> Source:
        """The episodes that the items' rows are of, unless it was said what to read."""
        return self if self.join is not None else self.joined

    @functools.cached_property
    def joined(self) -> JoinedItems:
        """The same data as episodes."""
        return JoinedItems(self.name, self.format, self.fields, self.store, self.details)

    def warnings(self) -> list[str]:
        return self.joined.warnings() if self.join else super().warnings()

    def first_item(self) -> Iterator[Episode | EpisodeError]:
        """One, to look at; a table that loses it by that gives it out once more."""
        return self.read_items(0, 1)

    @functools.cached_property
    def _spec(self) -> StepSpec:
        for item in self.first_item():
            if isinstance(item, Episode):
                return spec_of(item)
        raise SourceFormatError(f"{self.name}: the table is empty, so nothing tells what an item looks like")

    def signature(self) -> dict[str, str] | None:
        """The signature in words: type and shape by name."""
        return None if self.fields is None else {nest.path_name(field.path): str(field) for field in self.fields}

    def episode(self, item: Any, index: int, tensor: Callable[[int, int], np.ndarray]) -> Episode:
        """An item as an episode; see :func:`~rlds2buf.formats.reverb.item_rows.episode_of`."""
        metadata = {"key": item.key, "priority": item.priority, "times_sampled": item.times_sampled}
        return episode_of(columns_of(item, tensor), self.fields, source=self.name, index=index, metadata=metadata)
