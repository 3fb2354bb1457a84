"""What every sink offers."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError

__all__ = ["Sink"]

_S = TypeVar("_S", bound="Sink")


class Sink(abc.ABC):
    """Takes the episodes of one conversion: opened once, then written to, then committed or aborted.

    ::

        open -> write* -> commit       everything written is there, whole
        open -> write* -> abort        nothing is there that looks whole

    Subclasses implement one of :meth:`write` and :meth:`write_batch`; the other follows from it.  `flush` may come
    between writes.  A sink that can resume after a kill also keeps what
    :meth:`checkpoint` hands it, and gives the last of it back from :meth:`resumed`.

    Attributes:
        name: the path or address, for messages and reports.
        takes_encoded_images: whether it would rather have pictures as the files they are (JPEG, PNG)
            than as pixels, where the source can give them so.
        takes_video_frames: whether it would rather have frames of videos by their names than as pixels
            (:meth:`Source.with_video_frames`).
        keeps_provenance: whether what :meth:`open` is told of the source is kept with the output; else its
            fingerprint, which may take a while, is not asked for.
        holds_last_actions: whether the action of an episode's last row is kept, and the mark that it is real
            (:data:`~rlds2buf.core.row_flags.REAL_FINAL_ACTION`); else no transition starts there, and it is lost.
        found: after :meth:`open`, sentences on what earlier runs had left at the target, and what became of it.
        notes: what its caller should know of the output once it is committed: a name that was changed, an id.
    """

    name: str
    found: Sequence[str] = ()
    takes_encoded_images: bool = False
    takes_video_frames: bool = False
    keeps_provenance: ClassVar[bool] = True
    holds_last_actions: ClassVar[bool] = False
    notes: Sequence[str] = ()

    def __new__(cls: type[_S], *args: Any, **kwargs: Any) -> _S:
        if cls.write is Sink.write and cls.write_batch is Sink.write_batch:
            raise TypeError(f"{cls.__name__} has neither `write` nor `write_batch`; a Sink implements one of them")
        return super().__new__(cls)

    def expect(self, episodes: int | None, items: int | None = None, source_ids: Sequence[str] = ()) -> None:
        """Before :meth:`open`: what will come; what is written is the same without it.

        Args:
            episodes: about how many; None where that is not known.
            items: how many items they become; None where that is not known, or was said before.
            source_ids: names of the datasets that they are of, by the ``source_id`` in each episode's metadata;
                empty where there is only one.
        """
        return None

    def adopt(self, layout: Any) -> bool:
        """Before :meth:`open`: whether every episode's ``record``, of this layout, is taken as it is.

        Only offered where nothing is done to the episodes on their way.
        """
        return False

    @classmethod
    def usual_target(cls, path: str) -> tuple[str, str | None]:
        """Where the output goes whose path was given, and why, if that is elsewhere."""
        return path, None

    @abc.abstractmethod
    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        """Begin.

        Args:
            spec: of every episode that will be written.
            provenance: where they come from and how they are changed, as plain JSON values, to be
                kept with what is written: ``source``, ``format``, ``fingerprint`` (if it is kept), ``options``, the
                version of ``rlds2buf``, and ``dataset``, if anything is known of it as a whole.
                A conversion can only be resumed with an equal one.

        Raises:
            SinkError, SnapshotError: the target can't be written, or is already there.
        """

    def write(self, episode: Episode) -> int:
        """Take one episode; returns how many items (rows, table items) it became.

        Raises:
            SinkError: it can't be written.
            EpisodeError: it does not fit, for example a buffer smaller than the episode; nothing of it is written.
        """
        return self.write_batch(EpisodeBatch.of_one(episode))

    def write_batch(self, batch: EpisodeBatch) -> int:
        """Take several whole episodes; returns how many items they became.

        Raises:
            SinkError: they can't be written.
            EpisodeError: one does not fit: that behind those which its `written` counts; nothing else is written.
        """
        items = 0
        for written, episode in enumerate(batch):
            try:
                items += self.write(episode)
            except EpisodeError as error:
                error.written = written, items
                raise
        return items

    def flush(self) -> None:
        """Hand on what is held back, as far as the sink holds anything back."""
        return None

    def resumed(self) -> Mapping[str, Any] | None:
        """After :meth:`open`: what the last :meth:`checkpoint` of an earlier, unfinished conversion was given.

        None where there is nothing to resume.
        """
        return None

    def checkpoint(self, progress: Mapping[str, Any]) -> None:
        """Make everything written so far survive a kill, together with `progress` (plain JSON values)."""
        return None

    def lost(self) -> Mapping[str, str]:
        """What the format can't hold of what was written: a field's or metadata's path to the reason.

        What is left out is said here, never dropped in silence.
        """
        return {}

    @abc.abstractmethod
    def commit(self) -> None:
        """Finish: from here on the output is whole, and nothing more is written."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Give up: nothing that looks whole is left; idempotent, and also right before `open`."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
