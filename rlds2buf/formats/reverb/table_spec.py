"""What a Reverb table is: how it samples, what it drops, when it makes others wait."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Final

from rlds2buf.core.arguments import choice
from rlds2buf.core.options import check_types
from rlds2buf.formats.reverb.protocol.messages import message

__all__ = ["SELECTORS", "USUAL_SIZE", "TableSpec", "take_table"]

SELECTORS: Final = ("uniform", "prioritized", "fifo", "lifo", "max_heap", "min_heap")
"""How a table picks an item, to sample it or to remove it."""


USUAL_SIZE: Final = 1_000_000
"""A table that was not told its size holds at least so many items."""


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """A Reverb table's settings, in Reverb's own words.

    Attributes:
        name: the table's name.
        max_size: items it holds before the remover drops one; None for a whole dataset and room beside it
            (:meth:`size_for`).
        sampler: how an item is picked to be sampled: ``"uniform"``, ``"prioritized"``, ``"fifo"``, ``"lifo"``,
            ``"max_heap"`` or ``"min_heap"``.
        remover: how one is picked to be removed when the table is full, likewise.
        priority_exponent: of a prioritized sampler or remover.
        max_times_sampled: samples after which an item is removed; 0 for never.
        min_size_to_sample: items there must be before anything is sampled.
        samples_per_insert: how often an item should be sampled on the average; None never makes
            anybody wait, apart from `min_size_to_sample`.
        error_buffer: by how much samples may be ahead or behind; needed with `samples_per_insert`.

    Raises:
        ValueError: a setting that Reverb does not take.

    >>> TableSpec("replay", sampler="prioritized").limiter
    (1.0, -1.7976931348623157e+308, 1.7976931348623157e+308, 1)
    >>> TableSpec("replay", samples_per_insert=4, min_size_to_sample=100, error_buffer=50).limiter
    (4, 350, 450, 100)
    """

    name: str
    max_size: int | None = None
    sampler: str = "uniform"
    remover: str = "fifo"
    priority_exponent: float = 1.0
    max_times_sampled: int = 0
    min_size_to_sample: int = 1
    samples_per_insert: float | None = None
    error_buffer: float | None = None

    def __post_init__(self) -> None:
        for name in ("sampler", "remover"):
            choice(name, getattr(self, name), SELECTORS)
        if self.max_size is not None and self.max_size < 1:
            raise ValueError(f"max_size must be at least 1, got {self.max_size}")
        if self.priority_exponent < 0 or self.max_times_sampled < 0 or self.min_size_to_sample < 1:
            raise ValueError(
                "priority_exponent and max_times_sampled can't be negative, and min_size_to_sample is at least 1"
            )
        if self.samples_per_insert is not None:
            if not self.samples_per_insert > 0:
                raise ValueError(f"samples_per_insert must be positive, got {self.samples_per_insert}")
            # Less would block samples and inserts for ever.
            least = max(1.0, self.samples_per_insert)
            if self.error_buffer is None or self.error_buffer < least:
                raise ValueError(
                    f"samples_per_insert={self.samples_per_insert} needs an error_buffer of {least} or more"
                )
        elif self.error_buffer is not None:
            raise ValueError("error_buffer goes with samples_per_insert")

    @property
    def limiter(self) -> tuple[float, float, float, int]:
        """The rate limiter's ``samples_per_insert, min_diff, max_diff, min_size_to_sample``."""
        if self.samples_per_insert is None:
            return 1.0, -sys.float_info.max, sys.float_info.max, self.min_size_to_sample
        middle = self.samples_per_insert * self.min_size_to_sample
        assert self.error_buffer is not None
        return self.samples_per_insert, middle - self.error_buffer, middle + self.error_buffer, self.min_size_to_sample

    def size_for(self, items: int) -> int:
        """The table's `max_size` when a dataset gives so many items.

        Unless it was asked for: twice the items, and 1,000,000 at least (what Acme and TF-Agents' examples
        give their tables).  A table of exactly the data's size is full at once, and the first item of an actor
        evicts logged ones.

        >>> TableSpec("replay").size_for(3_000_000), TableSpec("replay", max_size=50).size_for(100)
        (6000000, 50)
        """
        return max(USUAL_SIZE, 2 * items) if self.max_size is None else self.max_size

    def checkpoint(self, items: int, signature: Any) -> Any:
        """The ``TableCheckpoint`` message of such a table that holds so many items, none sampled yet."""
        samples_per_insert, min_diff, max_diff, min_size = self.limiter
        return message(
            "TableCheckpoint",
            table_name=self.name,
            max_size=self.size_for(items),
            max_times_sampled=self.max_times_sampled,
            rate_limiter=message(
                "RateLimiterCheckpoint",
                samples_per_insert=samples_per_insert,
                min_diff=min_diff,
                max_diff=max_diff,
                min_size_to_sample=min_size,
                insert_count=items,
            ),
            sampler=self._selector(self.sampler),
            remover=self._selector(self.remover),
            signature=signature,
        )

    def _selector(self, kind: str) -> Any:
        if kind == "prioritized":
            return message(
                "KeyDistribution", prioritized=message("Prioritized", priority_exponent=self.priority_exponent)
            )
        if kind.endswith("heap"):
            heap = message("Heap", min_heap=kind == "min_heap")
            return message("KeyDistribution", heap=heap, is_deterministic=True)
        return message("KeyDistribution", **{kind: True}, is_deterministic=kind != "uniform")


def take_table(table: TableSpec | str, options: dict[str, Any]) -> TableSpec:
    """The settings that were given as such, or as a name and options; takes its own out of `options`.

    Raises:
        TypeError: it is neither, or an option is of the wrong type.
        ValueError: a setting that Reverb does not take.

    >>> options = {"sampler": "fifo", "n_step": 3}
    >>> take_table("replay", options).sampler, options
    ('fifo', {'n_step': 3})
    """
    if isinstance(table, TableSpec):
        return table
    if not isinstance(table, str):
        raise TypeError(f"table must be a name or a TableSpec, got {table!r}")
    check_types(TableSpec, options)
    names = [field.name for field in dataclasses.fields(TableSpec)[1:] if field.name in options]
    return TableSpec(table, **{name: options.pop(name) for name in names})
