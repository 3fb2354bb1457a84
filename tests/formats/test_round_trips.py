"""Any dataset into any format and back: what differs is what the report names, and nothing else.

Every source is written in every format that can hold it. Each of these is written again in every other one, unless
it came from a real dataset that has a stand-in: then the second round would be that of the stand-in again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, SinkError, convert, open_source
from rlds2buf.core.spec import FieldSpec
from rlds2buf.io.source import Source
from rlds2buf.pipeline.conversion import ConvertReport
from tests.data import D4RL, DATA, MINARI
from tests.differences import assert_only_lost
from tests.made import BOTH, MADE

KINDS = ("memory", "buffer", "minari", "d4rl", "rlds", "lerobot")

NEEDS = {"lerobot": {"sink_options": {"fps": 10, "images": "png"}}}
"""What a format asks for, or loses pictures by."""

ADDED = {"minari": {"metadata/id", "metadata/total_steps", "metadata/open_tail"}}
"""What a format's episodes have of their own."""


def text(*items: bytes) -> np.ndarray:
    column = np.empty(len(items), object)
    column[:] = items
    return column


def flagged(rows: int, end: str) -> dict[str, np.ndarray]:
    last = np.arange(rows) == rows - 1
    never = np.zeros(rows, bool)
    return {
        "is_first": np.arange(rows) == 0,
        "is_last": never if end == "open" else last,
        "is_terminal": last if end == "terminated" else never,
    }


def plain(start: int, rows: int, end: str = "terminated", **changes: Any) -> Episode:
    """What a D4RL file holds, with values in the final row and a discount of its own."""
    number = np.arange(start, start + rows)
    episode = Episode(
        observation=np.stack([number, number * 0.5], 1),
        action=(number % 3).astype(np.int32),
        reward=(number * 0.25).astype(np.float32),
        discount=np.full(rows, 0.99),
        **flagged(rows, end),
        metadata={"policy": "expert", "number": start},
    )
    return episode.replace(**changes)


def nested(start: int, rows: int, end: str = "terminated") -> Episode:
    """Dicts, tuples, text, every size of number, and metadata of several kinds."""
    number = np.arange(start, start + rows)
    words = text(*[b"go %d" % (n % 3) for n in number])
    return Episode(
        observation={
            "state": {"low": number.astype(np.float16), "high": np.full((rows, 2), 2**64 - 1, np.uint64)},
            "pair": (number.astype(np.int8), words),
            "picture": np.random.default_rng(start).integers(0, 256, (rows, 34, 33, 3), np.uint8),
            "flag": number % 2 == 0,
        },
        action={"gripper": number, "arm": (number[:, None] * 0.5, number.astype(np.float32))},
        reward=number * 0.125,
        discount=np.ones(rows, np.float32),
        **flagged(rows, end),
        extras={"note": words, "infos": {"cost": number * 1.0, "deep": {"n": number}}, "sizes": (number, number)},
        metadata={"seed": start, "origin": b"here", "options": {"goal": [1.0, 2.0], "name": "left"}, "ok": True},
    )


def bare(rows: int) -> Episode:
    """Neither reward nor discount."""
    return Episode(observation=np.arange(rows), action=np.arange(rows) * 0.5, **flagged(rows, "truncated"))


NAMED = {
    **{Path(name).stem: (name, {}) for name in D4RL},
    **{f"minari-{name.split('/')[1]}": (name, {}) for name in MINARI},
    "bridge": ("rlds/bridge_dataset", {"split": "train[:4]"}),
    "cartpole_swingup": ("rlds/rlu_control_suite", {}),
    "robomimic": ("rlds/robomimic_ph", {"split": "train"}),
    "tfds-hopper-v0": ("rlds/d4rl_mujoco_hopper/v0-medium", {}),
    "tfds-hopper-v2": ("rlds/d4rl_mujoco_hopper/v2-medium", {}),
}
FILES = {
    "rllib": (DATA, "rllib/cartpole_small.json", {}),
    "rllib-rows": (DATA, "rllib/cartpole-v1-rowwise.jsonl", {}),
    **{name: (DATA, path, options) for name, (path, options) in NAMED.items()},
    **{f"made-{name}": (MADE, path, options) for name, (path, options) in NAMED.items()},
}
EPISODES = {
    "plain": [plain(0, 5), plain(100, 3, "truncated"), plain(200, 2, "open"), plain(300, 1), plain(400, 8)],
    "nested": [nested(0, 5), nested(100, 3, "truncated"), nested(200, 6, "open"), nested(300, 2)],
    "bare": [bare(4), bare(2)],
    "one row each": [plain(0, 1), plain(10, 1, "truncated")],
    "shared metadata": [plain(i, 3, metadata={"weights": np.eye(3), "name": b"x"}) for i in range(3)],
}


def source_of(name: str) -> Source:
    if name in EPISODES:
        return open_source(EPISODES[name])
    sets, path, options = FILES[name]
    return open_source(sets / path, **options)


def holds(kind: str, source: Source) -> bool:
    """Whether a format can hold such data at all."""
    spec = source.spec
    single = isinstance(spec.observation, FieldSpec) and isinstance(spec.action, FieldSpec)
    return kind != "d4rl" or single


def how(kind: str) -> dict[str, Any]:
    return {} if kind == "memory" else {"to": kind, **NEEDS.get(kind, {})}


def written(source: Any, kind: str, folder: Path) -> tuple[ConvertReport, Any]:
    """The report, and what can be opened to read it back."""
    target: Any = [] if kind == "memory" else str(folder)
    report = convert(source, target, on_invalid="repair", **how(kind))
    return report, target if kind == "memory" else report.sink  # Minari's gets a version


def assert_comes_back(source: Source, kind: str, folder: Path) -> Any:
    """Write and read it; what can be opened, or None where the format can't hold it and says so."""
    if not holds(kind, source):
        with pytest.raises(SinkError, match="is nested"):
            written(source, kind, folder)
        assert not folder.exists()
        return None
    before: list[Episode] = []
    convert(source, before, on_invalid="repair")  # flags mended as they are on the way
    report, target = written(source, kind, folder)
    assert report.rejected.total() == 0 and report.written == len(before)
    added = ADDED.get(kind, set()) | ({"discount"} if source.spec.discount is None else set())
    with open_source(target) as after:
        assert_only_lost(before, after, report.lost, added=added)
        for episode in after:
            after.spec.check(episode)
    return target


@pytest.mark.parametrize("name", [*FILES, *EPISODES])
@pytest.mark.parametrize("kind", KINDS)
def test_into_every_format_and_from_there_into_every_other(tmp_path: Path, name: str, kind: str) -> None:
    with source_of(name) as source:
        target = assert_comes_back(source, kind, tmp_path / "first")
    if target is None or kind == "memory" or name in NAMED:  # from memory it would be the first round again
        return
    for other in KINDS:
        with open_source(target) as again:
            if again.num_episodes == 0:
                continue  # episodes of one row, of which a D4RL file keeps none
            assert_comes_back(again, other, tmp_path / f"second-{other}")


@BOTH
def test_pictures_travel_as_files(sets: Any, tmp_path: Path) -> None:
    """Kept as JPEG from folder to buffer to folder, byte for byte; then pixels, where a format has no files."""
    path, options = sets / "rlds/bridge_dataset", {"split": "train[:4]"}
    with open_source(path, **options, images="encoded") as source:
        files: list[Episode] = []
        convert(source, files, on_invalid="repair")
        report, first = written(source, "buffer", tmp_path / "buffer")
        assert set(report.lost) == {"metadata/episode_metadata"}
    with open_source(first) as source:
        _, second = written(source, "rlds", tmp_path / "rlds")
    with open_source(second, images="encoded") as back:
        assert_only_lost([episode.replace(metadata={}) for episode in files], back, {})
    with open_source(path, **options) as source:
        pixels: list[Episode] = []
        convert(source, pixels, on_invalid="repair")
    with open_source(second) as source:
        report, third = written(source, "minari", tmp_path / "minari")
    with open_source(third) as back:
        bare = [episode.replace(metadata={}) for episode in pixels]
        assert_only_lost(bare, back, report.lost, added=ADDED["minari"])
    with pytest.raises(SinkError, match="takes them decoded"):
        convert(open_source(first, images="encoded"), str(tmp_path / "no"), to="minari", on_invalid="repair")


def test_open_ends_are_mended_and_counted(tmp_path: Path) -> None:
    for kind in KINDS:
        report, target = written(EPISODES["plain"], kind, tmp_path / kind)
        assert report.repaired == {"last-missing": 1}
        ends = ["terminated", "truncated", "truncated", "terminated", "terminated"]
        found = [episode.end for episode in open_source(target)]
        if kind == "d4rl":
            assert report.lost["episodes"].startswith("one has one row")
            del ends[3]
        if kind == "minari":
            assert "one row" in report.lost["is_terminal"]
            ends[3] = "truncated"
        assert found == ends


DTYPES = [np.bool_, np.int8, np.uint16, np.int64, np.uint64, np.float16, np.float32, np.float64]
WORDS = st.binary(max_size=4).filter(lambda word: b"\0" not in word)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3).map(str.encode)


@st.composite
def datasets(draw: st.DrawFn, some_words: st.SearchStrategy[bytes]) -> list[Episode]:
    """Episodes of one spec: any dtypes and shapes, any bits, text, ends and lengths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shapes = [draw(st.sampled_from([(), (1,), (3,), (2, 0), (2, 2)])) for _ in range(3)]
    dtypes = [np.dtype(draw(st.sampled_from(DTYPES))) for _ in range(4)]
    has = {name: draw(st.booleans()) for name in ("discount", "infos", "words")}

    def column(rows: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if dtype.kind == "f":
            return rng.normal(size=(rows, *shape)).astype(dtype)
        if dtype.kind == "b":
            return rng.integers(0, 2, (rows, *shape)).astype(dtype)
        return np.frombuffer(rng.bytes(rows * int(np.prod(shape)) * dtype.itemsize), dtype).reshape(rows, *shape)

    episodes = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 6))
        words = draw(st.lists(some_words, min_size=rows, max_size=rows)) if has["words"] else []
        extras: dict[str, Any] = {"words": text(*words)} if words else {}
        if has["infos"]:
            extras["infos"] = {"a": column(rows, shapes[2], dtypes[2])}
        episodes.append(
            Episode(
                observation=column(rows, shapes[0], dtypes[0]),
                action=column(rows, shapes[1], dtypes[1]),
                reward=column(rows, (), dtypes[3]),
                discount=rng.random(rows).round().astype(np.float32) if has["discount"] else None,
                **flagged(rows, draw(st.sampled_from(["terminated", "truncated"]))),
                extras=extras,
                metadata=draw(st.dictionaries(st.sampled_from("ab"), st.one_of(st.integers(-9, 9), WORDS), max_size=2)),
            )
        )
    return episodes


@settings(max_examples=30, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS[1:]))
def test_whatever_comes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str) -> None:
    episodes = data.draw(datasets(TEXTS if kind == "lerobot" else WORDS))  # a text of LeRobot's is UTF-8
    folder = tmp_path_factory.mktemp("any")
    with open_source(episodes) as source:
        assert assert_comes_back(source, kind, folder / "out") is not None
