"""What the adapters of whole libraries start from: everything that there is, as episodes or as transitions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.loading import load_buffer
from rlds2buf.buffers.read.held_episodes import held_episodes
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, NotEnoughItems, SpecMismatch
from rlds2buf.pipeline.opening import open_source

__all__ = ["all_episodes", "as_buffer", "one_array", "spec_of_data"]


def as_buffer(data: Any) -> Buffer:
    """A buffer, or the saved one at a path.

    Raises:
        SnapshotError: there is no saved buffer at the path.
        TypeError: it is neither.
    """
    if isinstance(data, Buffer):
        return data
    if isinstance(data, str | os.PathLike):
        return load_buffer(Path(data), expect=Buffer)
    raise TypeError(f"expected a Buffer or the path of a saved one, got {type(data).__name__}")


def all_episodes(data: Any) -> EpisodeBatch:
    """Every episode of a buffer or a dataset, in memory.

    Args:
        data: a Buffer; an EpisodeBatch; an Episode; or what :func:`rlds2buf.open_source` opens, a path or a list of
            episodes, say.

    Returns:
        EpisodeBatch of E episodes, without those of one row, which have no transition.

    Raises:
        NotEnoughItems: there is no transition.
        EpisodeError: an episode can't be read.
        SourceError, ReplayError: as opening or reading says.
    """
    if isinstance(data, Buffer):
        found = data.engine.at_once(lambda engine: held_episodes(engine.reader))
    elif isinstance(data, EpisodeBatch):
        found = data
    else:
        source = open_source([data] if isinstance(data, Episode) else data)
        blocks = []
        for block in source.read_batches():
            if isinstance(block, EpisodeError):
                raise block
            blocks.append(block)
        found = EpisodeBatch.of(blocks) if len(blocks) > 1 else next(iter(blocks), None)
    if found is not None and (found.lengths == 1).any():
        longer = found.lengths > 1
        found = found.take(longer) if longer.any() else None
    if found is None:
        raise NotEnoughItems("there is no transition to hand on: the data are empty")
    return found


def spec_of_data(data: Any) -> StepSpec | None:
    """What is known of the fields' limits; None where the data alone would have to tell."""
    return data.spec if isinstance(data, Buffer) else None


def one_array(column: nest.Nest, name: str, library: str) -> np.ndarray:
    """The array of numbers that a library wants of a field.

    Args:
        column: array ``[N, ...]``, or a nest of them.
        name: of the field, for the message.
        library: who wants it, likewise.

    Raises:
        SpecMismatch: it is nested, missing, text, or of varying shape.
    """
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return column
    if column is None:
        what = "the data have none"
    elif isinstance(column, np.ndarray | FieldSpec):
        what = "it is text, or its shape varies, and numbers are wanted"
    else:
        leaves = ", ".join(nest.path_name(path) for path, _ in nest.flatten(column, (name,)))
        what = f"it is nested ({leaves}); choose or join its fields, for example convert(..., map={{{name!r}: ...}})"
    raise SpecMismatch(f"{library} takes one array of numbers here: {what}", path=name, rule="spec")
