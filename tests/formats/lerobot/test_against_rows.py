"""Whatever the layout, blocks hold what a reader of single rows finds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf.core.episode_batch import EpisodeBatch
from tests.formats.lerobot.made import Made, write_v2, write_v3
from tests.reference.lerobot import column, ends_of, read_lerobot

KINDS = ("float32", "float64", "int64", "int32", "uint8", "int16", "bool")


@st.composite
def sets(draw: st.DrawFn) -> tuple[Made, dict[str, Any]]:
    """A dataset, and how it is laid down."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=9))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    shapes = st.lists(st.integers(1, 3), max_size=3)
    fields = draw(st.dictionaries(st.sampled_from("abcd"), st.tuples(st.sampled_from(KINDS), shapes), max_size=3))
    features: dict[str, Any] = {"observation.state": {"dtype": "float32", "shape": [2], "names": None}}
    features |= {name: {"dtype": kind, "shape": shape or [1], "names": None} for name, (kind, shape) in fields.items()}
    flags = draw(st.lists(st.sampled_from(["next.done", "next.truncated"]), unique=True))
    features |= {name: {"dtype": "bool", "shape": [1], "names": None} for name in flags}
    episodes = []
    for count in lengths:
        episode: dict[str, Any] = {"observation.state": rng.normal(size=(count, 2)).astype(np.float32)}
        for name, (kind, shape) in fields.items():
            wide = () if shape in ([], [1]) else shape
            episode[name] = rng.integers(0, 2 if kind == "bool" else 100, (count, *wide)).astype(kind)
        for name in flags:
            episode[name] = rng.random(count) < 0.3
        episode["task_index"] = rng.integers(0, 3, count)
        episodes.append(episode)
    places: list[tuple[int, int]] = [(0, 0)]
    for _ in lengths[1:]:
        chunk, file = places[-1]
        places.append(draw(st.sampled_from([(chunk, file), (chunk, file + 1), (chunk + 1, 0)])))
    layout = {
        "version": draw(st.sampled_from(["v3.0", "v2.1", "v2.0"])),
        "data": places,
        "meta_rows": draw(st.integers(1, 5)),
        "groups": draw(st.sampled_from([None, 1, 3, 100])),
        "chunks_size": draw(st.integers(1, 4)),
    }
    return Made(episodes, features, tasks=("a", "bb", "c c"), groups=layout.pop("groups")), layout


def write(root: Path, made: Made, layout: dict[str, Any]) -> Path:
    if layout["version"] == "v3.0":
        return write_v3(root, made, data=layout["data"], meta_rows=layout["meta_rows"])
    return write_v2(root, made, version=layout["version"], chunks_size=layout["chunks_size"])


@settings(max_examples=60, deadline=None)
@given(sets(), st.integers(1, 20), st.data())
def test_blocks_hold_the_rows(given_set: tuple[Made, dict[str, Any]], rows: int, data: st.DataObject) -> None:
    made, layout = given_set
    with tempfile.TemporaryDirectory() as folder:
        root = write(Path(folder) / "set", made, layout)
        expected = list(read_lerobot(root))
        start = data.draw(st.integers(0, len(expected)))
        stop = data.draw(st.integers(start, len(expected)))
        kept = data.draw(st.sets(st.integers(0, len(expected))))
        with rlds2buf.open_source(root) as source:
            check(source, expected, range(start, stop), source.read_batches(start, stop, rows=rows))
            fewer = source.only(lambda number: number in kept)
            check(source, expected, sorted(kept & set(range(start, stop))), fewer.read_batches(start, stop, rows=rows))


def check(source: Any, expected: list[list[dict[str, Any]]], numbers: Any, blocks: Any) -> None:
    found = []
    for block in blocks:
        assert isinstance(block, EpisodeBatch), block
        found.extend(block)
    assert [episode.index for episode in found] == list(numbers)
    for episode in found:
        rows = expected[episode.index]
        source.spec.check(episode)
        assert np.array_equal(episode.observation["state"], column(rows, "observation.state", np.float32))
        assert episode.extras["task"].tolist() == [row["task"].encode() for row in rows]
        for name in set("abcd") & episode.extras.keys():
            assert np.array_equal(episode.extras[name], column(rows, name, episode.extras[name].dtype))
        assert episode.is_terminal.tolist() == ends_of(rows)
        assert episode.is_last.tolist() == [False] * (len(rows) - 1) + [True]
