"""What the sinks have in common that spool columns and write their output at the end."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError, SnapshotCorrupt, SpecMismatch
from rlds2buf.files.partial import PartialFolder
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.sink import Sink

__all__ = ["SpooledSink", "started"]

LAST_ROW_LOST = "the last row's value, which starts no transition, is not kept: it is read back as zeros"
NO_DISCOUNT = "the format has none: 1 is read back, and 0 on the step into a terminal row and on that row (float32)"
OPEN_END = "an episode that is not flagged last ends in a time-out here"


class SpooledSink(Sink):
    """Columns to disk while episodes come, the output from them at the end.

    An output that can't be continued after a kill, such as an HDF5 file, is written in one go.  So everything
    is first appended to plain files in ``.NAME.partial`` (:class:`~rlds2buf.io.column_spool.ColumnSpool`), and
    :meth:`commit` makes the output from these, a few megabytes at a time.  It needs the data's size twice on the disk.

    A subclass says what it spools in :meth:`plan`, which episodes it can't hold in :meth:`misfit`, takes the
    others in :meth:`take` and writes the output in :meth:`produce`.

    Args:
        path: where the output goes.
        overwrite: replace an output of this kind that is there.
        resume: continue a killed run, and leave this one's part in place if it is aborted.
        options: what else decides about the output, as plain JSON values.
    """

    what: ClassVar[str]
    """The output, for messages: "a D4RL file"."""

    _RESULT: ClassVar[str] = "out"

    def __init__(self, path: Any, *, overwrite: bool, resume: bool, options: Mapping[str, Any]) -> None:
        self.name = str(path)
        self.options = dict(options)
        self.provenance: dict[str, Any] = {}
        self._overwrite = overwrite
        self._resume = resume
        self._spec = StepSpec()
        self._part: PartialFolder | None = None
        self._spool: ColumnSpool | None = None
        self._losses: dict[str, str] = {}
        self._progress: dict[str, Any] | None = None

    @abc.abstractmethod
    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        """The columns to spool, by name; calls :meth:`lose` for fields that are left out.

        Raises:
            SinkError: the format can't hold such data at all.
            MissingDependency: what :meth:`produce` needs is not installed.
        """

    def misfit(self, batch: EpisodeBatch) -> tuple[int, SpecMismatch] | None:
        """The first episode of a batch of the spec that the format can't hold, by its place, and why; None: all fit."""
        return None

    @abc.abstractmethod
    def take(self, batch: EpisodeBatch) -> None:
        """Spool the episodes of a batch of the spec, of which none is a :meth:`misfit`."""

    @abc.abstractmethod
    def produce(self, spool: ColumnSpool, target: Path) -> None:
        """Write the output, a file or a folder, from the finished spool."""

    @abc.abstractmethod
    def replaceable(self, path: Path) -> bool | str:
        """Whether what is at `path` is an output of this kind, and nothing else; or why it is not replaced."""

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """What :meth:`take` remembers beside the spool, as plain JSON values."""

    @abc.abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Make the part folder, or find the one to resume.

        Raises:
            SnapshotExists: the target is there already, or another process is writing it.
            SnapshotError: resuming, and the source or the options are not the same.
            SinkError: the files can't be written, or the format can't hold such data.
            MissingDependency: what writes the output is not installed.
        """
        self._losses, self._progress = {}, None
        self._spec = spec
        self.provenance = dict(provenance)
        for path, field in spec.fields():
            if field.image is not None:
                raise SinkError(
                    f"{self.name}: {nest.path_name(path)} holds pictures as files; {self.what} takes them decoded"
                )
        fields = self.plan(spec)
        self._part = PartialFolder(
            Path(self.name),
            provenance={"source": self.provenance, "spec": spec.to_json(), "options": self.options, "to": self.what},
            overwrite=self._overwrite,
            resume=self._resume,
            replaceable=self.replaceable,
            what=self.what,
        )
        self.found = self._part.notes
        try:
            self._begin(self._part, fields)
        except BaseException:
            self._part.close(keep=self._resume)
            self._part = None
            raise

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Append episodes; their transitions are their items.

        Raises:
            SpecMismatch: one does not fit the spec, or the format can't hold a text in it; those before it are written.
            SinkError: they can't be written.
        """
        assert self._spool is not None, "write before open"
        self._spec.check(next(iter(batch)))
        found = self.misfit(batch)
        if found is None:
            self.take(batch)
            return batch.num_transitions
        place, error = found
        if place:
            self.take(batch.take(slice(place)))
        raise error

    def resumed(self) -> Mapping[str, Any] | None:
        """What the last checkpoint of the killed run was given."""
        assert self._spool is not None, "resumed before open"
        return self._progress

    def checkpoint(self, progress: Mapping[str, Any]) -> None:
        """Sync the columns and note how far they are."""
        assert self._spool is not None and self._part is not None, "checkpoint before open"
        self._progress = dict(progress)
        columns = self._spool.sync()
        self._part.write_journal(
            {"columns": columns, "losses": self._losses, "state": self.state(), "progress": self._progress}
        )

    def lost(self) -> Mapping[str, str]:
        """What the format can't hold of what was written."""
        return dict(self._losses)

    def commit(self) -> None:
        """Write the output from the columns, and move it to its place.

        Raises:
            SinkError: it can't be written.
        """
        assert self._spool is not None and self._part is not None, "commit before open"
        self._spool.finish()
        self.produce(self._spool, self._part.fresh(self._RESULT))
        self._spool.close()
        self._part.publish(self._RESULT)
        self._part = self._spool = None

    def abort(self) -> None:
        """Remove the part, or with `resume` leave it for another run to resume."""
        if self._spool is not None:
            self._spool.close()
        if self._part is not None:
            self._part.close(keep=self._resume)
        self._part = self._spool = None

    def lose(self, path: str, why: str) -> None:
        """Note that something is not kept, and why; there may be several reasons."""
        known = self._losses.get(path)
        if known is None:
            self._losses[path] = why
        elif why not in known:
            self._losses[path] = f"{known}; {why}"

    def reward_field(self, value: nest.Nest) -> FieldSpec:
        """What the rewards are spooled as.

        Raises:
            SinkError: they are not one number a step.
        """
        if value is None:
            self.lose("reward", "the data have none, and the format can't do without: zeros (float32)")
            return FieldSpec((), np.dtype(np.float32))
        if not isinstance(value, FieldSpec) or value.shape not in ((), (1,)) or value.dtype.kind not in "biuf":
            raise SinkError(f"{self.name}: reward is {value}, and {self.what} holds one number a step")
        if value.shape:
            self.lose("reward", "it is read back without its axis of length 1")
        return FieldSpec((), value.dtype)

    def rewards(self, batch: EpisodeBatch) -> np.ndarray:
        """The rewards of the episodes' transitions, ``[M - E]``."""
        if batch.rows.reward is None:
            return np.zeros(batch.num_transitions, np.float32)
        self.notice_final(batch, ("reward",), batch.rows.reward)
        return started(batch, batch.rows.reward).reshape(-1)

    def extra_name(self, path: nest.Path, place: nest.Path, fault: str | None) -> str | None:
        """The column for an extra that goes to `place`; None if it can't, which is noted, as a change of its place is.

        Args:
            path: of the field, in the extras.
            place: of the column.
            fault: why it can't go there, or None.
        """
        where, name = nest.path_name(("extras", *path)), nest.path_name(place)
        if fault is not None:
            self.lose(where, fault)
            return None
        if place != path or any(isinstance(part, int) for part in path):
            self.lose(where, f"it is read back as extras/{name}")
        return name

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Spool rows."""
        assert self._spool is not None
        self._spool.append(rows)

    def notice_discount(self, batch: EpisodeBatch) -> None:
        """Note logged discounts that are not the ones a reader makes up."""
        logged = batch.rows.discount
        if logged is None or "discount" in self._losses:
            return
        usual = np.ones(batch.num_steps, np.float32)
        ends = batch.ends
        terminals = ends[batch.rows.is_terminal[ends] & (batch.lengths > 1)]
        usual[terminals] = usual[terminals - 1] = 0
        same = isinstance(logged, np.ndarray) and logged.dtype == usual.dtype and np.array_equal(logged, usual)
        if not same:
            self.lose("discount", NO_DISCOUNT)

    def notice_final(self, batch: EpisodeBatch, path: nest.Path, column: np.ndarray) -> None:
        """Note last rows of a column ``[M, ...]`` that are more than padding."""
        name = nest.path_name(path)
        if LAST_ROW_LOST not in self._losses.get(name, "") and np.any(
            column[batch.ends] != (b"" if column.dtype == object else 0)
        ):
            self.lose(name, LAST_ROW_LOST)

    def notice_ends(self, batch: EpisodeBatch) -> None:
        """Note episodes that are not flagged last, which the format ends by a time-out."""
        rows, ends = batch.rows, batch.ends
        if not (rows.is_last[ends] | rows.is_terminal[ends]).all():
            self.lose("is_last", OPEN_END)

    def _begin(self, part: PartialFolder, fields: dict[str, FieldSpec]) -> None:
        journal = part.journal
        try:
            if journal is not None:
                self._losses.update(journal["losses"])
                self._progress = journal["progress"]
                self.restore(journal["state"])
            columns = None if journal is None else journal["columns"]
        except (LookupError, TypeError, ValueError) as cause:
            raise SnapshotCorrupt(f"{self.name}: the journal is not one of this conversion ({cause!r})") from cause
        self._spool = ColumnSpool(part.folder / "spool", fields, columns)


def started(batch: EpisodeBatch, column: np.ndarray) -> np.ndarray:
    """The rows of a column ``[M, ...]`` that start a transition, ``[M - E, ...]``: all but each episode's last."""
    return column[:-1] if len(batch) == 1 else np.delete(column, batch.ends, 0)
