"""What every source offers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, TypeVar

from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.issue import Issue
from rlds2buf.core.spec import StepSpec, spec_of
from rlds2buf.errors import EpisodeError, FilteredOut, SourceFormatError
from rlds2buf.io.blocks import blocks_of

__all__ = ["LANES", "Source", "spec_of_first"]

_READ_BYTES = 1 << 20
"""Of a block of which episodes are views: one that is kept keeps its block, so that is small."""

_S = TypeVar("_S", bound="Source")


class Source(abc.ABC):
    """A dataset that yields :class:`~rlds2buf.core.episode.Episode`, as often as it is iterated.

    A context manager.  Subclasses implement :attr:`spec` and one of :meth:`read` (episode by episode) and
    :meth:`read_batches` (several at once), the other follows from it; they open files in their constructor far
    enough to raise what is wrong with them as a whole.

    Attributes:
        format: the format's name, as ``open_source(format=...)`` takes it.
        name: the path or address with the split, for messages and provenance.
        recipe: path and options from which :func:`rlds2buf.open_source` opened it, and the lanes that were chosen
            then (of :data:`LANES`), in order; None if it was opened otherwise.
    """

    format: ClassVar[str]
    name: str
    recipe: tuple[str, dict[str, Any], tuple[str, ...]] | None = None

    def __new__(cls: type[_S], *args: Any, **kwargs: Any) -> _S:
        if cls.read is Source.read and cls.read_batches is Source.read_batches:
            raise TypeError(f"{cls.__name__} has neither `read` nor `read_batches`; a Source implements one of them")
        return super().__new__(cls)

    @property
    @abc.abstractmethod
    def spec(self) -> StepSpec:
        """Shape and dtype of every step field."""

    @property
    def num_episodes(self) -> int | None:
        """How many episodes there are; None where only a full pass would tell."""
        return None

    @property
    def num_items(self) -> int | None:
        """How many items :meth:`read` yields, those left out included; None where only a full pass would tell."""
        return self.num_episodes

    @property
    def num_steps(self) -> int | None:
        """How many rows (final rows included) there are; None where only a full pass would tell."""
        return None

    @property
    def is_endless(self) -> bool:
        """Whether iterating goes on for ever."""
        return False

    @property
    def transformation(self) -> dict[str, Any]:
        """What is done to the episodes on their way, as plain JSON values, for the provenance."""
        return {}

    @property
    def source_ids(self) -> Sequence[str]:
        """Names of the datasets that the episodes are of, by the ``source_id`` in their metadata; empty for one."""
        return ()

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        """Yield episodes ``start`` up to (not with) ``stop``, in the dataset's order.

        An episode that can't be built (ragged columns, no steps) is yielded as the
        :class:`~rlds2buf.errors.EpisodeError` that says why, so that the ones behind it can still
        be read; one that a filter leaves out as FilteredOut.  Every episode has `source` and `index` set.

        Raises:
            SourceError: the files are damaged; nothing after that point can be trusted.
        """
        for item in self.read_batches(start, stop, bytes=_READ_BYTES):
            if isinstance(item, EpisodeBatch):
                yield from item
            else:
                yield item

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """As :meth:`read`, several whole episodes at a time, all of a batch with the same fields, shapes and types.

        Between them come the EpisodeErrors of those that can't be built or are left out, each in its place;
        the `index` of a batch tells what it holds.

        Args:
            start, stop: as of :meth:`read`.
            rows, bytes: about how many a batch has, and takes; a longer episode is a batch of its own.

        Raises:
            SourceError: as from :meth:`read`, behind a last batch of what came before it.
        """
        return blocks_of(self.read(start, stop), rows, bytes)

    def batches(self, rows: int = 1 << 14) -> Iterator[EpisodeBatch]:
        """All episodes, several at a time: the fast lane into a buffer, without validation.

        Args:
            rows: about how many rows a batch has; a longer episode is a batch of its own.

        Raises:
            EpisodeError, SourceError: as iterating does.
        """
        for item in blocks_of(
            (item for item in self.read_batches(rows=rows) if not isinstance(item, FilteredOut)), rows
        ):
            if isinstance(item, EpisodeError):
                raise item
            yield item

    def encoded(self) -> Source:
        """The same data with pictures as the files they are, where this source stores such files.

        Their fields are byte strings then, whose FieldSpec has an ``image``.  Itself where there are
        none, or where the source was told how its pictures are to be had.
        """
        return self

    def with_video_frames(self) -> Source:
        """The same data, each frame of a video as what it is called, not as its pixels.

        For a sink that copies videos.  The fields are byte strings then, whose FieldSpec has an ``image`` and
        ``is_video``.  Pictures that a dataset of videos has as files may be those files (:meth:`encoded`), so that
        they are copied too.  Itself where there are no videos, or where the source was told how pictures are to be had.
        """
        return self

    def as_episodes(self) -> Source:
        """The same data as episodes, where :meth:`read` gives pieces of them (items of a table); else itself.

        A conversion and a validation ask for it.  What is returned is closed with this one.
        """
        return self

    def without(self, paths: Iterable[str]) -> Source:
        """The same data, perhaps without these step fields: a hint that nobody will look at them.

        A source that saves work by it (pictures not decoded) leaves them out of its spec and its
        episodes; others return themselves.

        Args:
            paths: as ``spec.fields()`` names them, joined by ``/``: ``"observation/image_0"``,
                ``"extras/depth"``; also of whole nests.

        Raises:
            ValueError: no field is called so, or none would be left.
        """
        return self

    def only(self, wanted: Callable[[int], bool]) -> Source:
        """The same data, perhaps without some episodes: a hint that nobody will look at those.

        A source that saves work by it, and knows how many there are, does not yield them from
        :meth:`read`; the others keep their index.  Others return themselves.

        Args:
            wanted: whether the episode of an index will be looked at.
        """
        return self

    def with_records(self) -> tuple[Source, Any] | None:
        """The same data, each episode with the `record` that it was read from, and how records are laid out.

        For a sink that takes records as they are
        (:class:`~rlds2buf.formats.rlds.record_layout.RecordLayout`); None where there are none.
        """
        return None

    def details(self) -> dict[str, Any]:
        """Further facts for ``rlds2buf inspect``, as plain JSON values (splits, files, versions)."""
        return {}

    def warnings(self) -> list[str]:
        """What should be known of the data before they are used: what is missing, what is guessed."""
        return [str(text) for text in self.details().get("warnings", [])]

    def findings(self, *, quick: bool = False) -> Iterator[Issue]:
        """What is wrong with the files and metadata as such, beyond the EpisodeErrors of single episodes.

        A finding that names an episode is about that one (and only counts where that one is read, so batches
        must have their `index`); one that names none is about the dataset as a whole.  An error says that what is
        read is, or may be, wrong: of that episode, or of all of them.  Metadata that reading does not depend on
        make warnings.

        Args:
            quick: only what is told without a pass over the data, and what reading would give wrong data for; a
                conversion asks for this, :func:`rlds2buf.validate` for everything.
        """
        return iter(())

    def facts(self) -> dict[str, Any]:
        """What is known of the dataset as a whole and a copy should keep (author, environment); plain JSON values."""
        return {}

    def fingerprint(self) -> str:
        """A text that changes when the dataset does; for provenance and resuming."""
        return self.name

    def close(self) -> None:
        """Release files; idempotent."""
        return None

    def __iter__(self) -> Iterator[Episode]:
        for item in self.read():
            if isinstance(item, FilteredOut):
                continue
            if isinstance(item, EpisodeError):
                raise item
            yield item

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


def spec_of_first(source: Source, what: str = "episodes") -> StepSpec:
    """The spec of the first episode that can be built, for sources whose files don't tell it.

    Raises:
        SourceFormatError: there are no episodes, called `what` in the message.
        EpisodeError: none of them can be built; that of the last one.
    """
    error: Exception = SourceFormatError(f"{source.name}: no {what}, so nothing tells what a step is")
    for stop in (1, None):  # most often the very first one will do, and no other is looked at
        for found in source.read_batches(0, stop, rows=1):
            if isinstance(found, EpisodeBatch):
                return spec_of(found.rows)
            error = found
    raise error


LANES: Final[Mapping[str, Callable[[Source], Source]]] = {
    "encoded": lambda source: source.encoded(),
    "with_video_frames": lambda source: source.with_video_frames(),
}
"""Forms of pictures that a sink may rather have than pixels, and how a source is asked for them."""
