"""Everything again and again in one process: memory, open files and threads stay as they are."""

from __future__ import annotations

import gc
import os
import random
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf import convert, spec_of
from tests.campaign.cases import rng_of
from tests.campaign.kills import KINDS, OPTIONS, episodes

__all__ = ["Soak"]

WARM_UP = 150
MORE_BYTES = 24 << 20
"""What memory may vary by: allocators keep some of what is freed."""


class Soak:
    """A case is one round; all rounds of a run are in the same process.

    Args:
        folder: an empty one.
        seed: of the rounds.
    """

    CHUNK = 1

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._folder = folder
        self._data = episodes(60, seed)
        self._set = folder / "set-v0"
        convert(self._data, self._set, to="minari")
        self._first: tuple[int, int, int] | None = None
        self._rounds = 0

    def one(self, case: int) -> str:
        """A round; says what it did.  Growing is a fault."""
        rng = rng_of("soak", self._seed, case)
        what = rng.choice([self._converted, self._buffered, self._live, self._invalid, self._batches])
        with tempfile.TemporaryDirectory(dir=self._folder) as place:
            what(rng, Path(place))
        self._rounds += 1
        if self._rounds % 50 == 0:
            self._watch()
        return what.__name__.strip("_")

    def close(self) -> None:
        """Nothing is held."""

    def _watch(self) -> None:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        now = (pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), threading.active_count())
        if self._rounds <= WARM_UP or self._first is None:
            self._first = now
            return
        assert now[0] <= self._first[0] + MORE_BYTES, f"memory grew from {self._first[0]:,} to {now[0]:,} bytes"
        assert now[1] <= self._first[1], f"open files grew from {self._first[1]} to {now[1]}"
        assert now[2] <= self._first[2], f"threads grew from {self._first[2]} to {now[2]}"

    def _converted(self, rng: random.Random, place: Path) -> None:
        kind, target = rng.choice(KINDS), place / "out-v0"
        report = convert(str(self._set), str(target), to=kind, sink_options=OPTIONS[kind])
        assert report.episodes == report.read == len(self._data)
        with rlds2buf.open_source(target) as source:
            assert sum(episode.num_steps for episode in source) == report.steps
            assert rlds2buf.validate(source).ok

    def _buffered(self, rng: random.Random, place: Path) -> None:
        make = rng.choice([rlds2buf.make_circular, rlds2buf.make_prioritized, rlds2buf.make_reservoir])
        buffer: Any = make(spec_of(self._data[0]), rng.choice([100, 1000]), seed=0)
        for episode in self._data:
            buffer.add(episode)
        batch = buffer.sample(64)
        if make is rlds2buf.make_prioritized:
            buffer.update_priorities(batch.info.key, np.ones(64))
        buffer.save(place / "saved")
        assert len(rlds2buf.load_buffer(place / "saved")) == len(buffer)

    def _live(self, rng: random.Random, place: Path) -> None:
        buffer = rlds2buf.make_circular(spec_of(self._data[0]), 500, directory=place / "live", seed=0)
        for episode in self._data[:20]:
            buffer.add(episode)
        buffer.save()
        buffer.sample(16, n_step=3)
        del buffer
        gc.collect()

    def _invalid(self, rng: random.Random, place: Path) -> None:
        broken = self._data[0].replace(reward=np.full(self._data[0].num_steps, np.nan, np.float32))
        report = convert([broken, *self._data[1:5]], place / "out", on_invalid="skip")
        assert report.read == report.episodes + 1 == 5
        shutil.rmtree(place / "out")
        try:
            convert([broken], place / "out")
        except rlds2buf.EpisodeError:
            assert not list(place.iterdir())
        else:
            raise AssertionError("NaN is taken")

    def _batches(self, rng: random.Random, place: Path) -> None:
        buffer = rlds2buf.make_circular(spec_of(self._data[0]), 5000, seed=0)
        for episode in self._data:
            buffer.add(episode)
        stream = buffer.batches(32, prefetch=2)
        for _ in range(5):
            next(stream)
        stream.close()
