"""Episodes into a replay buffer: one in memory, or a folder that becomes one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError
from rlds2buf.io.sink import Sink

if TYPE_CHECKING:
    from rlds2buf.buffers.disk.snapshot import SnapshotWriter

__all__ = ["BufferFolderSink", "BufferSink"]


class BufferSink(Sink):
    """Adds to a buffer, which drops its oldest rows as it must.

    Episodes of a mixture (:func:`rlds2buf.open_mixture`) are added with their source's id.

    Args:
        buffer: one of this package, or whatever has ``add(episode) -> keys``, ``clear()`` and a length.

    >>> import numpy as np
    >>> from rlds2buf import Episode, convert, make_circular, spec_of
    >>> ep = Episode(observation=np.zeros((3, 2)), action=np.zeros(3), reward=np.ones(3), discount=np.ones(3),
    ...              is_terminal=[False, False, True])
    >>> buffer = make_circular(spec_of(ep), 100)
    >>> convert([ep, ep], BufferSink(buffer)).items, len(buffer)
    (4, 4)
    """

    keeps_provenance: ClassVar[bool] = False

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.name = f"a {getattr(buffer, 'kind', type(buffer).__name__)} buffer"
        self._cleared_on_abort = False
        self._has_ids = False
        self._lost: dict[str, str] = {}

    def expect(self, episodes: int | None, items: int | None = None, source_ids: Sequence[str] = ()) -> None:
        """Learn whether the episodes have ids of sources."""
        self._has_ids = bool(source_ids)

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Give a buffer without a spec this one; remember if it is empty: only then can :meth:`abort` restore it."""
        from rlds2buf.buffers.first_add import EngineToBe

        engine = getattr(self.buffer, "engine", None)
        if isinstance(engine, EngineToBe):
            engine.begin(spec)
        self._cleared_on_abort = len(self.buffer) == 0
        self._lost = {}

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Add episodes; their transitions are their items.

        Raises:
            EpisodeError: one does not fit, and its `episode` says which; those before it are in the buffer.
        """
        parts: Iterable[Any] = [batch] if self._takes_batches() else batch
        ids = _source_ids(batch) if self._has_ids else None
        items = 0
        try:
            for i, part in enumerate(parts):
                mine = {} if ids is None else {"source_id": ids if part is batch or np.ndim(ids) == 0 else int(ids[i])}
                items += len(self.buffer.add(part, **mine))
        except EpisodeError as error:
            before: Any = [] if batch.index is None else np.flatnonzero(batch.index == error.episode)
            if len(before) and before[0]:
                self._lose_metadata(batch.take(slice(0, int(before[0]))))
            raise
        self._lose_metadata(batch)
        return items

    def lost(self) -> Mapping[str, str]:
        """The episodes' metadata, by their first names."""
        return dict(sorted(self._lost.items()))

    def commit(self) -> None:
        """The buffer keeps what was added."""
        self._cleared_on_abort = False

    def abort(self) -> None:
        """Empty the buffer again if it was empty; otherwise the added episodes stay in it."""
        if self._cleared_on_abort:
            self.buffer.clear()
            self._cleared_on_abort = False

    def _takes_batches(self) -> bool:
        """Whether the buffer is one of this package, and not just one that has the same methods."""
        from rlds2buf.buffers.buffer import Buffer
        from rlds2buf.buffers.vectorized.cost_replay import CostReplay

        return isinstance(self.buffer, Buffer | CostReplay)

    def _lose_metadata(self, batch: EpisodeBatch) -> None:
        _lose_metadata(batch, self._lost, kept={"source_id"} if self._has_ids else frozenset())


class BufferFolderSink(Sink):
    """Writes a folder that :func:`rlds2buf.load_buffer` opens, without holding the data.

    Until :meth:`commit` everything lies in ``.NAME.partial`` beside the target.

    Args:
        path: the folder to make.
        overwrite: replace a saved buffer that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.

    >>> BufferFolderSink("hopper-buffer")
    <BufferFolderSink hopper-buffer>
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False, resume: bool = False) -> None:
        self.name = str(path)
        self._overwrite = overwrite
        self._resume = resume
        self._writer: SnapshotWriter | None = None
        self._lost: dict[str, str] = {}

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Make the part folder, or find the one to resume.

        Raises:
            SnapshotExists: the target is there already, or another process is writing it.
            SnapshotError: resuming, and the source or the options are not the same.
            SinkError: the files can't be written.
        """
        from rlds2buf.buffers.disk.snapshot import SnapshotWriter

        self._writer = SnapshotWriter(
            self.name, spec, provenance=provenance, overwrite=self._overwrite, resume=self._resume
        )
        self.found = self._writer.found
        self._lost = dict(self._writer.notes.get("lost", {}))

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Append episodes; their transitions are their items.

        Raises:
            SpecMismatch: one does not fit the spec, and its `episode` says which; those before it are written.
            SinkError: they can't be written.
        """
        assert self._writer is not None, "write before open"
        before = self._writer.episodes
        try:
            return self._writer.write(batch)
        finally:
            written = self._writer.episodes - before
            if written:
                _lose_metadata(batch if written == len(batch) else batch.take(slice(0, written)), self._lost)

    def lost(self) -> Mapping[str, str]:
        """The episodes' metadata, by their first names."""
        return dict(sorted(self._lost.items()))

    def resumed(self) -> Mapping[str, Any] | None:
        """What the last checkpoint of the killed run was given."""
        assert self._writer is not None, "resumed before open"
        progress: Mapping[str, Any] | None = self._writer.notes.get("progress")
        return progress

    def checkpoint(self, progress: Mapping[str, Any]) -> None:
        """Sync the columns and note how far they are."""
        assert self._writer is not None, "checkpoint before open"
        self._writer.notes = {"progress": dict(progress), "lost": self._lost}
        self._writer.checkpoint()

    def commit(self) -> None:
        """Finish the columns and move the folder to its place."""
        assert self._writer is not None, "commit before open"
        self._writer.commit()
        self._writer = None

    def abort(self) -> None:
        """Remove the part folder, or with `resume` leave it for another run to resume."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort(keep=self._resume)


def _source_ids(batch: EpisodeBatch) -> Any:
    """The ``source_id`` in the metadata of each episode ``[E]``, or the one that they share."""
    shared, own = batch.rows.metadata.get("source_id"), batch.metadata
    if isinstance(own, FactColumns):
        return np.asarray(own.columns["source_id"]) if "source_id" in own.columns else shared
    return shared if own is None else np.array([facts.get("source_id", shared) for facts in own])


def _lose_metadata(batch: EpisodeBatch, lost: dict[str, str], kept: AbstractSet[str] = frozenset()) -> None:
    for name in batch.fact_names - kept:
        lost.setdefault(f"metadata/{name}", "a buffer holds rows, and no facts of whole episodes")
