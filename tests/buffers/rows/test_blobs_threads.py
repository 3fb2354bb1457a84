"""One writer and several samplers on values of any length: none torn, none another row's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import rlds2buf
from rlds2buf import NotEnoughItems
from rlds2buf.buffers.rows import blob_segments as live_blobs
from tests.buffers.crew import Crew
from tests.buffers.numbered_blobs import SPEC, blobs, episode

SECONDS = 2.0


def check(batch: Any) -> None:
    for name, shift in (("observation", 0), ("next_observation", 1)):
        observation = getattr(batch, name)
        for i, number in enumerate(batch.observation["count"].tolist()):
            expected = blobs(number + shift)
            for field in ("picture", "text"):
                assert observation[field][i] == expected[field]
            assert observation["two"][i].tolist() == expected["two"].tolist()
            assert observation["points"][i].tolist() == expected["points"].tolist()


@pytest.mark.parametrize("kind", ["memory", "directory", "reservoir", "reservoir in a directory"])
def test_samplers_beside_a_writer(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_blobs, "SEGMENT_BYTES", 2000)
    make = rlds2buf.make_reservoir if kind.startswith("reservoir") else rlds2buf.make_circular
    where = tmp_path / "live" if "directory" in kind else None
    buffer = make(SPEC, 200, seed=0, view={"decode": False}, directory=where)
    episodes = [episode(start, 20) for start in range(0, 1000, 20)]

    def write(i: int) -> None:
        buffer.add(episodes[i % len(episodes)])
        if i % 50 == 49 and make is rlds2buf.make_circular:
            buffer.resize(150 + i % 100)

    def sample(i: int) -> None:
        try:
            check(buffer.sample(16).data)
            check(buffer.get(buffer.keys()[-1:]))
        except (NotEnoughItems, rlds2buf.UnknownKey):
            time.sleep(0.001)

    buffer.add(episodes[:3])
    check(buffer.sample(16).data)
    crew = Crew()
    crew.hire("writer", write)
    for i in range(3):
        crew.hire(f"sampler {i}", sample)
    crew.work(SECONDS)
    assert min(crew.rounds.values()) > 1
    buffer.check_valid()
    check(buffer.all())
