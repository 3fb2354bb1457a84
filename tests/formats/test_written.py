"""What is written is what was written before blocks, byte for byte, whatever the blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2buf import Episode, EpisodeBatch, EpisodeError
from rlds2buf.core import nest
from rlds2buf.core.episode_batch import FactColumns
from tests.data import GOLDEN
from tests.formats.written_sets import D4RL, RLDS, WrittenSet, digests, opened

WRITTEN: dict[str, dict[str, str]] = json.loads((GOLDEN / "written.json").read_text())
SETS = {**RLDS, **D4RL}


def blocks(episodes: list[Episode], most: int) -> list[EpisodeBatch]:
    rng = np.random.default_rng(most)
    out = []
    while episodes:
        count = int(rng.integers(1, most, endpoint=True))
        out.append(EpisodeBatch.of(episodes[:count]))
        episodes = episodes[count:]
    return out


def in_columns(batch: EpisodeBatch) -> EpisodeBatch:
    """The same, its metadata as a reader of columns gives them: what all share once, the rest in arrays and lists."""
    known = [dict(nest.flatten(episode.metadata)) for episode in batch]
    facts: dict[str, Any] = {}
    rows = batch.rows.replace(metadata={"same": 5})
    for path, first in known[0].items():
        values = [facts[path] for facts in known]
        if path != ("same",):
            here = facts
            for name in path[:-1]:
                here = here.setdefault(str(name), {})
            here[str(path[-1])] = values if isinstance(first, str | bytes) else np.array(values)
    return EpisodeBatch(rows, batch.starts, index=batch.index, metadata=FactColumns(facts, len(batch)))


def written(chosen: WrittenSet, target: Path, batches: list[EpisodeBatch]) -> dict[str, str]:
    sink = opened(chosen, target)
    for batch in batches:
        assert sink.write_batch(batch) == (batch.num_transitions if target.suffix else len(batch))
    sink.commit()
    return digests(target, sink.lost())


def one_by_one(chosen: WrittenSet, target: Path) -> dict[str, str]:
    sink = opened(chosen, target)
    for episode in chosen.episodes:
        sink.write(episode)
    sink.commit()
    return digests(target, sink.lost())


@pytest.mark.parametrize("most", [0, 1, 9, 100])
@pytest.mark.parametrize("name", SETS)
def test_as_before(name: str, most: int, tmp_path: Path) -> None:
    target = tmp_path / ("made.hdf5" if name in D4RL else "made")
    chosen = SETS[name]()
    found = written(chosen, target, blocks(chosen.episodes, most)) if most else one_by_one(chosen, target)
    assert found == WRITTEN[name]


@pytest.mark.parametrize("most", [9, 100])
def test_metadata_in_columns(most: int, tmp_path: Path) -> None:
    chosen = RLDS["plain facts"]()
    batches = [in_columns(batch) for batch in blocks(chosen.episodes, most)]
    alone = chosen._replace(episodes=[episode for batch in batches for episode in batch])
    assert written(chosen, tmp_path / "blocks/made", batches) == one_by_one(alone, tmp_path / "alone/made")
    assert len(digests(tmp_path / "blocks/made", {})) == 5


@pytest.mark.parametrize("name", ["texts", "d4rl"])
def test_one_that_does_not_fit_is_left_out_of_its_block(name: str, tmp_path: Path) -> None:
    """Those before it are written; its error says which it is, and the caller goes on behind it."""
    chosen = SETS[name]()
    bad = chosen.episodes[4]
    broken: Any = bad.extras["text" if name == "texts" else "note"].copy()
    broken[-1] = 3.5 if name == "texts" else b"a\0b"
    extras = {**bad.extras, ("text" if name == "texts" else "note"): broken}
    others = [*chosen.episodes[:4], bad.replace(extras=extras, index=999), *chosen.episodes[4:]]
    target = tmp_path / ("made.hdf5" if name in D4RL else "made")
    sink = opened(chosen, target)
    left = EpisodeBatch.of(others)
    with pytest.raises(EpisodeError) as caught:
        sink.write_batch(left)
    assert (caught.value.episode, caught.value.step) == (999, bad.num_steps - 1)
    sink.write_batch(left.take(slice(5, None)))
    sink.commit()
    assert digests(target, sink.lost()) == WRITTEN[name]
