"""What every sink promises, wherever it writes.

A test class inherits :class:`SinkContract`, makes its sink in `make` and reads it back in `held`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlds2buf import Episode, SpecMismatch
from rlds2buf.io.sink import Sink
from tests.buffers.numbered import SPEC, episode

__all__ = ["PROVENANCE", "SinkContract", "numbers"]

PROVENANCE = {"source": "numbers", "format": "memory", "fingerprint": "1", "options": {}, "rlds2buf": "0"}


def numbers(episodes: list[Episode]) -> list[int]:
    """The number of each transition's first row, in order."""
    return [int(n) for ep in episodes for n in np.asarray(ep.observation["count"])[:-1]]


class SinkContract:
    """The shared suite."""

    episodes: ClassVar = [episode(0, 6), episode(100, 4, end="truncated"), episode(200, 1), episode(300, 9)]

    def make(self, folder: Path) -> Sink:
        """A new sink that writes in `folder`, if it writes files."""
        raise NotImplementedError

    def held(self, sink: Sink, folder: Path) -> list[int] | None:
        """What a reader finds, as `numbers` gives it; None where nothing can be read."""
        raise NotImplementedError

    def items_of(self, ep: Episode) -> int:
        """What `write` should return."""
        return ep.num_transitions

    def opened(self, folder: Path) -> Sink:
        sink = self.make(folder)
        sink.open(SPEC, PROVENANCE)
        return sink

    def test_has_a_name(self, tmp_path: Path) -> None:
        sink = self.make(tmp_path)
        assert sink.name and sink.name in repr(sink)

    def test_writes_what_it_is_given_in_order(self, tmp_path: Path) -> None:
        sink = self.opened(tmp_path)
        for ep in self.episodes:
            assert sink.write(ep) == self.items_of(ep)
        sink.flush()
        sink.commit()
        assert self.held(sink, tmp_path) == numbers(self.episodes)

    def test_nothing_written_is_still_whole(self, tmp_path: Path) -> None:
        sink = self.opened(tmp_path)
        sink.commit()
        assert self.held(sink, tmp_path) == []

    def test_abort_leaves_nothing_that_looks_whole(self, tmp_path: Path) -> None:
        sink = self.opened(tmp_path)
        for ep in self.episodes:
            sink.write(ep)
        sink.checkpoint({"read": len(self.episodes)})
        sink.abort()
        assert not self.held(sink, tmp_path)
        sink.abort()
        assert not self.held(sink, tmp_path)

    def test_abort_before_open_harms_nothing(self, tmp_path: Path) -> None:
        sink = self.make(tmp_path)
        sink.abort()
        sink.open(SPEC, PROVENANCE)
        sink.write(self.episodes[0])
        sink.commit()
        assert self.held(sink, tmp_path) == numbers(self.episodes[:1])

    def test_abort_after_commit_takes_nothing_back(self, tmp_path: Path) -> None:
        sink = self.opened(tmp_path)
        sink.write(self.episodes[0])
        sink.commit()
        sink.abort()
        assert self.held(sink, tmp_path) == numbers(self.episodes[:1])

    def test_nothing_to_go_on_from_at_first(self, tmp_path: Path) -> None:
        sink = self.opened(tmp_path)
        assert sink.resumed() is None
        sink.abort()

    @pytest.mark.parametrize("change", ["dtype", "shape", "missing"])
    def test_refuses_what_does_not_fit_and_goes_on(self, tmp_path: Path, change: str) -> None:
        sink = self.opened(tmp_path)
        sink.write(self.episodes[0])
        with pytest.raises(SpecMismatch, match="action"):
            sink.write(self.episodes[1].replace(action=_changed(self.episodes[1].action, change)))
        sink.write(self.episodes[3])
        sink.commit()
        assert self.held(sink, tmp_path) == numbers([self.episodes[0], self.episodes[3]])


def _changed(column: Any, how: str) -> Any:
    if how == "missing":
        return None
    return column.astype(np.float64) if how == "dtype" else np.stack([column, column], axis=1)
