"""Every error rlds2buf raises on purpose.

::

    Rlds2bufError
     |- SourceError            a dataset can't be read
     |   |- SourceNotFound     (+ FileNotFoundError)
     |   |- SourceFormatError  (+ ValueError)   the bytes are not what the format says
     |   |   `- LimitExceeded    they would take more memory than is allowed; names limit and option
     |   `- MissingDependency  (+ ImportError)  names the pip line that mends it
     |- EpisodeError           (+ ValueError)   one episode is wrong: .source .episode .step .path
     |   |- BoundaryError      is_first / is_last / is_terminal break the grammar
     |   |- SpecMismatch       shapes or dtypes differ from the spec
     |   |- EmptyEpisode       no steps
     |   `- FilteredOut        nothing wrong: left out because a filter says so
     |- SinkError              an output can't be written
     |   |- CountsDisagree     after a push: .address .items .inserted
     |   |- SignatureMismatch  (+ ValueError)   field-by-field difference to a table
     |   |- WriteTimeout       (+ TimeoutError)
     |   `- ServerUnavailable  (+ ConnectionError)
     |- ReplayError            a buffer can't answer
     |   |- NotEnoughItems
     |   |- TooLarge           (+ ValueError)   what is asked for does not fit into memory
     |   |- UnknownKey         (+ KeyError)
     |   `- InvalidPriority    (+ ValueError)
     `- SnapshotError          a saved buffer can't be read or written
         |- SnapshotExists
         |- SnapshotCorrupt
         `- SnapshotTooNew

Errors of other libraries are translated once, ``from`` the cause.  A plain ``ValueError`` or
``TypeError`` means that an argument, not the data, is wrong.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BoundaryError",
    "CountsDisagree",
    "EmptyEpisode",
    "EpisodeError",
    "FilteredOut",
    "InvalidPriority",
    "LimitExceeded",
    "MissingDependency",
    "NotEnoughItems",
    "ReplayError",
    "Rlds2bufError",
    "ServerUnavailable",
    "SignatureMismatch",
    "SinkError",
    "SnapshotCorrupt",
    "SnapshotError",
    "SnapshotExists",
    "SnapshotTooNew",
    "SourceError",
    "SourceFormatError",
    "SourceNotFound",
    "SpecMismatch",
    "TooLarge",
    "UnknownKey",
    "WriteTimeout",
]


class Rlds2bufError(Exception):
    """Base of every error that rlds2buf raises on purpose.

    Attributes:
        source: the dataset that it is about (path or address), or None.
        advice: what can be done about it, as a sentence; or None.
        report: what had been done until then, where a conversion or a push failed (its ConvertReport or
            PushReport); else None.
    """

    source: str | None = None
    advice: str | None = None
    report: Any = None


class SourceError(Rlds2bufError):
    """A dataset can't be read."""


class SourceNotFound(SourceError, FileNotFoundError):
    """Nothing is at that path, or the split or shard is missing."""


class SourceFormatError(SourceError, ValueError):
    """The bytes are not what the format says they should be."""

    def at(self, where: object) -> SourceFormatError:
        """The same, saying where: what is raised on from inside a file, a record, a field.

        >>> SourceFormatError("cut short").at("a.hdf5")
        SourceFormatError('a.hdf5: cut short')
        """
        return SourceFormatError(f"{where}: {self}")


class LimitExceeded(SourceFormatError):
    """A small piece of data would take more memory or time than is allowed.

    The message names the limit and the option that raises it (``max_bytes``, ``max_objects``).
    """

    def at(self, where: object) -> LimitExceeded:
        """As :meth:`SourceFormatError.at`."""
        return LimitExceeded(f"{where}: {self}")


class MissingDependency(SourceError, ImportError):
    """An optional package is needed and not installed; the message holds the pip line."""


class EpisodeError(Rlds2bufError, ValueError):
    """One episode is wrong.

    Attributes:
        source: where the episode came from (path or address), or None.
        episode: its number in the source, 0-based, or None.
        step: the row inside the episode, 0-based, or None.
        path: the field, for example ``"observation/state"``, or None.
        rule: the id of the validation rule that it breaks, or None.
        advice: as of every error; it ends the text.
        written: where several were to be written: how many of those before it were, and the items they became.
    """

    written: tuple[int, int] = (0, 0)

    def __init__(
        self,
        message: str,
        *,
        source: str | None = None,
        episode: int | None = None,
        step: int | None = None,
        path: str | None = None,
        rule: str | None = None,
        advice: str | None = None,
    ) -> None:
        self.message = message
        self.source = source
        self.episode = episode
        self.step = step
        self.path = path
        self.rule = rule
        self.advice = advice
        super().__init__(message)

    def __str__(self) -> str:
        where = []
        if self.source is not None:
            where.append(str(self.source))
        if self.episode is not None:
            where.append(f"episode {self.episode}")
        if self.step is not None:
            where.append(f"step {self.step}")
        if self.path is not None:
            where.append(self.path)
        told = f"{self.message}; {self.advice}" if self.advice else self.message
        return f"{', '.join(where)}: {told}" if where else told


class BoundaryError(EpisodeError):
    """is_first, is_last or is_terminal break the episode grammar."""


class SpecMismatch(EpisodeError):
    """Shapes, dtypes or fields differ from the spec."""


class EmptyEpisode(EpisodeError):
    """The episode has no steps."""


class FilteredOut(EpisodeError):
    """Nothing is wrong with the episode: a filter that was asked for leaves it out.

    :meth:`Source.read <rlds2buf.io.source.Source.read>` yields it in the episode's place, so that
    it is counted; iterating a source passes over it.  Its rule names the filter.
    """


class SinkError(Rlds2bufError):
    """An output can't be written."""


class CountsDisagree(SinkError):
    """After a push, a server's counts don't agree with what it had acknowledged.

    Attributes:
        address: the server.
        items: how many it had acknowledged, in earlier runs too.
        inserted: how many it says that it inserted.
        size_before, size_after: of the table.
    """

    def __init__(
        self,
        message: str,
        *,
        address: str = "",
        items: int = 0,
        inserted: int = 0,
        size_before: int = 0,
        size_after: int = 0,
    ) -> None:
        self.address = address
        self.items = items
        self.inserted = inserted
        self.size_before = size_before
        self.size_after = size_after
        super().__init__(message)


class SignatureMismatch(SinkError, ValueError):
    """A table's signature differs from what would be written; the message lists the fields."""


class WriteTimeout(SinkError, TimeoutError):
    """A write did not finish in time; the message says what it waited for."""


class ServerUnavailable(SinkError, ConnectionError):
    """No server answers at the address."""


class ReplayError(Rlds2bufError):
    """A buffer can't do what was asked."""


class NotEnoughItems(ReplayError):
    """The buffer holds fewer items than the call needs."""


class TooLarge(ReplayError, ValueError):
    """A capacity or a batch that does not fit into memory; the message names the argument and the bytes."""


class UnknownKey(ReplayError, KeyError):
    """A key was never given out, or its item has been evicted."""

    # KeyError prints the repr of its argument; a sentence should stay a sentence.
    __str__ = Exception.__str__


class InvalidPriority(ReplayError, ValueError):
    """A priority is negative or not finite."""


class SnapshotError(Rlds2bufError):
    """A saved buffer can't be read or written."""


class SnapshotExists(SnapshotError):
    """The target is already there; nothing was changed."""


class SnapshotCorrupt(SnapshotError):
    """The saved buffer is incomplete or was changed."""


class SnapshotTooNew(SnapshotError):
    """The saved buffer was written by a newer rlds2buf."""


def tell(error: BaseException, **facts: Any) -> None:
    """Set `advice` or `report` of an error that may be of any class: KeyboardInterrupt, another library's.

    >>> stopped = KeyboardInterrupt()
    >>> tell(stopped, advice="the same command goes on from here")
    >>> told(stopped, "advice"), told(stopped, "report")
    ('the same command goes on from here', None)
    """
    vars(error).update(facts)


def told(error: BaseException, name: str) -> Any:
    """What :func:`tell` set, or what the error's class declares; None for neither."""
    return getattr(error, name, None)
