"""What the sinks have in common that write one HDF5 file at the end."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.writing import find_h5py
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import SinkError, SnapshotCorrupt, SpecMismatch
from rlds2buf.files.partial import PartialFolder
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.sink import Sink

__all__ = ["SpooledSink", "check_texts", "clash", "field_fault", "is_plain_name"]

LAST_ROW_LOST = "the last row's value, which starts no transition, is not kept: it is read back as zeros"
NO_DISCOUNT = "the format has none: 1 is read back, and 0 on the step into a terminal row and on that row (float32)"
OPEN_END = "an episode that is not flagged last ends in a time-out here"


class SpooledSink(Sink):
    """Columns to disk while episodes come, the output from them at the end.

    An HDF5 file can't be gone on with after a kill.  So everything is first appended to plain files
    in ``.NAME.partial`` (:class:`~rlds2buf.io.column_spool.ColumnSpool`), and :meth:`commit` makes
    the output from these, a few megabytes at a time.  It needs the data's size twice on the disk.

    A subclass says what it spools in :meth:`plan`, takes episodes in :meth:`take` and writes the
    output in :meth:`produce`.

    Args:
        path: where the output goes.
        overwrite: replace an output of this kind that is there.
        resume: go on from a killed run, and leave this one's part in place if it is aborted.
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
        """

    @abc.abstractmethod
    def take(self, episode: Episode) -> None:
        """Spool an episode that fits the spec; nothing is spooled if this raises."""

    @abc.abstractmethod
    def produce(self, spool: ColumnSpool, target: Path) -> None:
        """Write the output, a file or a folder, from the finished spool."""

    @abc.abstractmethod
    def replaceable(self, path: Path) -> bool:
        """Whether what is at `path` is an output of this kind."""

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """What :meth:`take` remembers beside the spool, as plain JSON values."""

    @abc.abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Make the part folder, or find the one to go on from.

        Raises:
            SnapshotExists: the target is there already, or another process is writing it.
            SnapshotError: resuming, and the source or the options are not the same.
            SinkError: the files can't be written, or the format can't hold such data.
            MissingDependency: h5py is not installed.
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
        find_h5py()
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

    def write(self, episode: Episode) -> int:
        """Append an episode; its transitions are its items.

        Raises:
            SpecMismatch: it does not fit the spec, or a text in it has no form in HDF5; nothing was written.
            SinkError: it can't be written.
        """
        assert self._spool is not None, "write before open"
        self._spec.check(episode)
        self.take(episode)
        return episode.num_transitions

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
        """Remove the part, or with `resume` leave it for another run to go on from."""
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

    def rewards(self, episode: Episode) -> np.ndarray:
        """The rewards of an episode's transitions, ``[N - 1]``."""
        if episode.reward is None:
            return np.zeros(episode.num_transitions, np.float32)
        self.notice_final(("reward",), episode.reward)
        rewards: np.ndarray = episode.reward[:-1].reshape(-1)
        return rewards

    def extra_name(self, path: nest.Path, field: FieldSpec, place: nest.Path, taken: Iterable[str]) -> str | None:
        """The dataset for an extra that goes to `place`; None if it can't, which is noted, as a change of its place is.

        Args:
            path: of the field, in the extras.
            field: its spec.
            place: of the dataset.
            taken: the datasets of other extras.
        """
        where, name = nest.path_name(("extras", *path)), nest.path_name(place)
        fault = field_fault(field)
        if fault is None and not all(is_plain_name(part) for part in path):
            fault = "its name can't be one in an HDF5 file"
        if fault is None and any(clash(name, other) for other in taken):
            fault = f"another field is {name} in the file already"
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

    def notice_discount(self, episode: Episode) -> None:
        """Note logged discounts that are not the ones a reader makes up."""
        logged = episode.discount
        if logged is None or "discount" in self._losses:
            return
        usual = np.ones(episode.num_steps, np.float32)
        if episode.is_terminal[-1] and episode.num_steps > 1:
            usual[-2:] = 0
        same = isinstance(logged, np.ndarray) and logged.dtype == usual.dtype and np.array_equal(logged, usual)
        if not same:
            self.lose("discount", NO_DISCOUNT)

    def notice_final(self, path: nest.Path, column: np.ndarray) -> None:
        """Note a last row that is more than padding."""
        name = nest.path_name(path)
        if LAST_ROW_LOST not in self._losses.get(name, "") and np.any(
            column[-1] != (b"" if column.dtype == object else 0)
        ):
            self.lose(name, LAST_ROW_LOST)

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


def field_fault(field: FieldSpec) -> str | None:
    """Why a column of such rows can't be a dataset; None if it can."""
    if None in field.shape:
        return "its length varies, and a dataset's rows have one shape"
    if not field.is_string and field.dtype.kind not in "biufc":
        return f"it is {field.dtype}, which HDF5 has no type for"
    return None


def is_plain_name(part: Any) -> bool:
    """Whether a key can be a name in an HDF5 file."""
    return isinstance(part, int) or not (part in ("", ".") or "/" in part or "\0" in part)


def clash(one: str, other: str) -> bool:
    """Whether two paths can't both be datasets of one file.

    >>> clash("infos/a", "infos"), clash("infos/a", "infos/ab")
    (True, False)
    """
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def check_texts(episode: Episode, path: nest.Path, column: np.ndarray, *, utf8: bool = False) -> None:
    """Raise for text that a dataset can't hold; numbers pass.

    Raises:
        SpecMismatch: a text has zero bytes, or is not UTF-8 where it should be.
    """
    if column.dtype != object:
        return
    flat = column.reshape(len(column), -1)
    for step, row in enumerate(flat.tolist()):
        for text in row:
            why = "a text with zero bytes, which HDF5 can't hold" if b"\0" in text else None
            if why is None and utf8 and not _is_utf8(text):
                why = "a text that is not UTF-8"
            if why is not None:
                where: dict[str, Any] = {"source": episode.source, "episode": episode.index, "step": step}
                raise SpecMismatch(why, path=nest.path_name(path), rule="spec", **where)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
