"""A format of datasets: what is known of it before anything is read or written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rlds2buf.io.look import Look

__all__ = ["Format", "Refusal"]


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Something known that is not read.

    Attributes:
        fits: whether something at a path looks like it.
        why: what it is and what to do, for the message.
    """

    fits: Callable[[Look], bool]
    why: Callable[[Look], str]


@dataclasses.dataclass(frozen=True)
class Format:
    """A format: its name, how it is told, and which classes read and write it; those load when they are used.

    It is read from a path, unless it has `fits_object` (data in memory) or a `scheme` (an address), and written to a
    path, unless it has `writes_to`.

    Attributes:
        name: what ``open_source(format=...)`` and ``convert(to=...)`` call it.
        what: what it is, for messages: ``"a D4RL HDF5 file"``.
        source: the :class:`~rlds2buf.io.source.Source` that reads it, as ``"package.module:Class"``; None: it is not
            read.  It is called with the path (object, address); its further parameters are the format's options.
        sink: the :class:`~rlds2buf.io.sink.Sink` that writes it, likewise.
        fits: whether what lies at a path looks like it; None: it is read only where it is asked for.
        fits_object: whether an object in memory is it.
        scheme: of the addresses that it is read from.
        writes_to: whether its sink writes to this object.
        has_splits: whether the source takes ``split``.
        takes: further arguments of the source that are given to it and are no options: ``"budget"``, the limits of a
            record (:class:`~rlds2buf.core.budget.Budget`); ``"columns"``, what a user gives as ``map``;
            ``"reward_shift"``, where the source does that itself; ``"optional"``, which of observation and action
            are not wanted and may be missing; ``"repair"``, to read what the data prove where files or metadata are
            damaged.
        suffixes: of its files' names, where these mean this format and no other.
        target_suffixes: of the names of targets that mean it.
        over: names of formats that it is a special form of: what fits both is this one.
        by_name: whether it is told by names alone.
        members: of a folder that fits because of what lies in it, the names of that; None where the folder is the
            dataset itself.  A folder with another dataset beside its members is not one dataset.
        refusals: what looks as if it were of this kind, but is not read; those of built-in formats are
            asked where nothing fits.
        told_by: what it is told by, for whoever has a file that no format fits.
        near: how much such a file or folder looks like it, from 0 (not at all) to 3.
        extras: packages that are installed as extras of rlds2buf, each with what needs it (all of it, if empty).
        plugin: the distribution and entry point it comes from; set when it is loaded.

    >>> entry = Format("tally", "a tally", source="tally_format:TallySource", fits=lambda look: "TALLY" in look.names)
    >>> entry.is_path, entry.fits(Look(__import__("pathlib").Path("/")))
    (True, False)
    """

    name: str
    what: str
    source: str | None = None
    sink: str | None = None
    fits: Callable[[Look], bool] | None = None
    fits_object: Callable[[Any], bool] | None = None
    scheme: str | None = None
    writes_to: Callable[[Any], bool] | None = None
    has_splits: bool = False
    takes: Collection[str] = ()
    suffixes: tuple[str, ...] = ()
    target_suffixes: tuple[str, ...] = ()
    over: Collection[str] = ()
    by_name: bool = False
    members: Callable[[Look], Collection[str] | None] = lambda look: None
    refusals: tuple[Refusal, ...] = ()
    told_by: str = ""
    near: Callable[[Look], int] = lambda look: 0
    extras: Mapping[str, str] = dataclasses.field(default_factory=dict)
    plugin: str = ""

    @property
    def is_path(self) -> bool:
        """Whether it is read from a path."""
        return self.source is not None and self.fits_object is None and self.scheme is None

    @property
    def is_target(self) -> bool:
        """Whether it is written to a path."""
        return self.sink is not None and self.writes_to is None
