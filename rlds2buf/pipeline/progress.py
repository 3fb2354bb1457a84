"""A progress bar on standard error: episodes, steps per second, time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.issue import Issue
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError
from rlds2buf.io.source import Source
from rlds2buf.pipeline import interruption
from rlds2buf.pipeline.reading import blocks

__all__ = ["Tracked"]

_REFRESH_SECONDS = 0.1


class Tracked(Source):
    """A source that shows how far it has been read.

    It draws on standard error, and only where that is a terminal; otherwise it passes everything
    through.  A signal that got lost (:mod:`rlds2buf.pipeline.interruption`) stops it in either case.

    Args:
        source: what is read; it stays the caller's to close.
        label: the word before the bar.
        enabled: False shows nothing at all.
        jobs: how many processes read it (:func:`~rlds2buf.pipeline.reading.blocks`).

    >>> import rlds2buf, numpy as np
    >>> ep = rlds2buf.Episode(observation=np.zeros(3), reward=np.zeros(3), is_terminal=np.zeros(3, bool))
    >>> with rlds2buf.open_source([ep]) as source:
    ...     sum(episode.num_steps for episode in Tracked(source, "count"))
    3
    """

    def __init__(self, source: Source, label: str, *, enabled: bool = True, jobs: int = 1) -> None:
        self._source = source
        self._jobs = jobs
        self._label = label
        self._enabled = enabled and sys.stderr.isatty()
        self.format = source.format  # type: ignore[misc]  # each Tracked has its source's own
        self.name = source.name

    @property
    def spec(self) -> StepSpec:
        """The source's."""
        return self._source.spec

    @property
    def num_episodes(self) -> int | None:
        """The source's."""
        return self._source.num_episodes

    @property
    def num_steps(self) -> int | None:
        """The source's."""
        return self._source.num_steps

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """The source's blocks, counted as they go by."""
        with contextlib.ExitStack() as stack:
            bar = None
            if self._enabled:
                total = stop if stop is not None else self._source.num_items
                bar = stack.enter_context(_Bar(self._label, None if total is None else max(total - start, 0)))
            for item in blocks(self._source, start, stop, jobs=self._jobs, rows=rows, bytes=bytes):
                yield item
                if bar is not None:
                    bar.advance(*((len(item), item.num_steps) if isinstance(item, EpisodeBatch) else (1, 0)))
                interruption.check()

    def details(self) -> dict[str, Any]:
        """The source's."""
        return self._source.details()

    def warnings(self) -> list[str]:
        """The source's."""
        return self._source.warnings()

    def findings(self, *, quick: bool = False) -> Iterator[Issue]:
        """The source's."""
        return self._source.findings(quick=quick)

    def fingerprint(self) -> str:
        """The source's."""
        return self._source.fingerprint()


class _Bar:
    """Counts by itself and redraws at most ten times a second."""

    def __init__(self, label: str, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._progress.add_task(label, total=total, text="")
        self._total = total
        self._episodes = 0
        self._steps = 0
        self._start = self._drawn = time.monotonic()

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def advance(self, episodes: int, steps: int) -> None:
        """Count episodes of so many steps together."""
        self._episodes += episodes
        self._steps += steps
        now = time.monotonic()
        if now - self._drawn >= _REFRESH_SECONDS:
            self._drawn = now
            of = "" if self._total is None else f"/{self._total:,}"
            rate = self._steps / (now - self._start)
            text = f"{self._episodes:,}{of} episodes  {self._steps:,} steps  {rate:,.0f} steps/s"
            self._progress.update(self._task, completed=self._episodes, text=text, refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
