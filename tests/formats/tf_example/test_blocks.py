"""Records of an episode each, read together against each of them read by itself."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.formats.tf_example.source import TfExampleSource
from rlds2buf.io import record_blocks
from tests.formats.blocks import Found, assert_same, together, without_blocks
from tests.formats.reverb.messages import example
from tests.formats.tf_example.records import write

FEATURES = {
    "features": {
        "observation/x": {"key": "x", "shape": [2]},
        "observation/camera": {"key": "camera", "encoding": "image", "shape": [None, 5, 3]},
        "observation/raw": {"key": "raw", "encoding": "bytes", "dtype": "int16", "shape": [3]},
        "action": {"key": "action", "dtype": "int32"},
        "reward": "reward",
        "discount": "discount",
        "words": {"key": "words", "dtype": "string", "shape": [2]},
        "metadata/seed": "seed",
        "metadata/deep/name": "name",
        "metadata/list": "list",
    },
    "shift": ["reward", "discount", "words"],
    "terminal_discount": True,
}
HARMLESS = ["", "", "", "", "loose", "short", "picture", "tall", "none", "cut raw", "whole raw"]
FATAL = ["missing", "kind", "uneven", "cut"]


def png(seed: int, height: int = 4) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, 5, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


PICTURES = [png(seed) for seed in range(3)]


def record(rng: np.random.Generator, steps: int, kind: str) -> bytes:
    raw = rng.integers(-99, 99, 3 * steps).astype("<i2")
    entries: dict[str, tuple[str, list[Any]]] = {
        "x": ("float", rng.normal(size=2 * steps).tolist()),
        "camera": ("bytes", [PICTURES[i] for i in rng.integers(0, 3, steps)]),
        "raw": ("bytes", [raw.tobytes()] if kind == "whole raw" else [row.tobytes() for row in raw.reshape(-1, 3)]),
        "action": ("int64", rng.integers(-(2**31), 2**31, steps).tolist()),
        "reward": ("float", rng.normal(size=steps).tolist()),
        "discount": ("float", [1.0] * (steps - 1) + [float(rng.integers(2))]),
        "words": ("bytes", [b"%d" % x for x in rng.integers(0, 99, 2 * steps)]),
        "seed": ("int64", [int(rng.integers(99))]),
        "name": ("bytes", [b"name"]),
        "list": ("float", rng.normal(size=int(rng.integers(1, 3))).tolist()),
        "other": ("int64", [1]),
    }
    if kind in ("short", "uneven"):
        key = "reward" if kind == "short" else "x"
        entries[key] = ("float", entries[key][1][1:])
    elif kind == "picture":
        entries["camera"][1][-1] = entries["camera"][1][-1][:-30]
    elif kind == "tall":
        entries["camera"] = ("bytes", [png(7, height=6)] * steps)
    elif kind == "none":
        entries = {key: (kind_of, values[:0]) for key, (kind_of, values) in entries.items()}
    return _finished(entries, kind)


def _finished(entries: dict[str, tuple[str, list[Any]]], kind: str) -> bytes:
    if kind == "missing":
        del entries["words"]
    elif kind == "kind":
        entries["words"] = ("float", [1.0])
    elif kind == "cut raw":
        entries["raw"] = ("bytes", [value[:-1] for value in entries["raw"][1]])
    whole = example(entries, packed=kind != "loose")
    return whole[:-3] if kind == "cut" else whole


@settings(
    max_examples=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_blocks_hold_what_each_record_holds(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    count = data.draw(st.integers(1, 12))
    kinds = ["", *(data.draw(st.sampled_from(HARMLESS)) for _ in range(count))]
    if data.draw(st.integers(0, 3)) == 0:
        kinds[data.draw(st.integers(1, count))] = data.draw(st.sampled_from(FATAL))
    records = [record(rng, int(rng.integers(1, 51)), kind) for kind in kinds]
    folder, compressed = tmp_path_factory.mktemp("raw") / "raw", data.draw(st.booleans())
    cut = data.draw(st.integers(1, len(records)))
    for name, part in (("a", records[:cut]), ("b", records[cut:])):
        write(folder / name, part, compressed)
    images = data.draw(st.sampled_from(["decoded", "encoded"]))
    source = TfExampleSource(folder, features=FEATURES, images=images)
    start = data.draw(st.integers(0, count + 2))
    stop = data.draw(st.none() | st.integers(start, count + 2))
    monkeypatch.setattr(record_blocks, "_LEAST_STRETCH", data.draw(st.sampled_from([1, 5000, 1 << 16])))
    rows = data.draw(st.sampled_from([1, 7, 60, 1 << 14]))
    many = together(source, start, stop, rows, data.draw(st.sampled_from([1, 20_000, 1 << 26])))
    with without_blocks():
        assert_same(many, together(source, start, stop))


def test_records_made_alike_are_read_together(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    path = write(tmp_path_factory.mktemp("raw") / "a", [record(rng, steps, "") for steps in (3, 1, 40, 7)])
    monkeypatch.delattr(record_blocks.RecordBlocks, "_one_by_one")
    (batch,) = TfExampleSource(path, features=FEATURES).read_batches()
    assert isinstance(batch, EpisodeBatch) and batch.lengths.tolist() == [3, 1, 40, 7]


STEPS = {
    "observation": {"key": "x", "shape": [2]},
    "action": "action",
    "reward": "reward",
    "words": {"key": "words", "dtype": "string"},
    "metadata/seed": "seed",
}
STEP_FAULTS = ["", "", "", "", "", "loose", "missing", "two", "kind"]


def step(rng: np.random.Generator, kind: str, **flags: bool) -> bytes:
    entries: dict[str, tuple[str, list[Any]]] = {
        "x": ("float", rng.normal(size=2).tolist()),
        "action": ("int64", rng.integers(-(2**40), 2**40, 1).tolist()),
        "reward": ("float", rng.normal(size=2 if kind == "two" else 1).tolist()),
        "after": ("float", rng.normal(size=2).tolist()),
        "words": ("bytes", [b"%d" % rng.integers(99)]),
        "seed": ("int64", [int(rng.integers(99))]),
        "id": ("int64", [int(rng.integers(3))]),
        **{name: ("int64", [int(value)]) for name, value in flags.items()},
    }
    if kind == "missing":
        del entries["words"]
    elif kind == "kind":
        entries["words"] = ("float", [1.0])
    return example(entries, packed=kind != "loose")


def masked(many: Found) -> Found:
    """Which episode a damaged record is of is known as well as the records before it were looked at."""
    return [re.sub(r"episode \d+ or behind", "an episode", item) if isinstance(item, str) else item for item in many]


@settings(
    max_examples=80,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_steps_read_together_make_the_episodes_they_make_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    flags = sorted(data.draw(st.sets(st.sampled_from(["is_first", "is_last", "is_terminal"]))))
    with_id = not flags or data.draw(st.booleans())
    has_next, is_sound = data.draw(st.booleans()), data.draw(st.integers(0, 3)) > 0
    records = []
    for length in data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=6)):
        for t in range(length):
            kind = "" if is_sound or rng.random() > 0.02 else data.draw(st.sampled_from(STEP_FAULTS))
            told = {
                "is_first": t == 0,
                "is_last": t == length - 1,
                "is_terminal": t == length - 1 and rng.random() < 0.5,
            }
            records.append(step(rng, kind if records else "", **{name: bool(told[name]) for name in flags}))
    features: dict[str, Any] = {**STEPS, **{name: name for name in flags}}
    if has_next:
        features["next_observation"] = {"key": "after", "shape": [2]}
    folder, compressed = tmp_path_factory.mktemp("raw") / "raw", data.draw(st.booleans())
    cut = data.draw(st.integers(1, len(records)))
    for name, part in (("a", records[:cut]), ("b", records[cut:])):
        write(folder / name, part, compressed)
    source = TfExampleSource(folder, features=features, record="step", episode_id="id" if with_id else None)
    rows, size = data.draw(st.sampled_from([1, 7, 1 << 14])), data.draw(st.sampled_from([1, 3000, 1 << 26]))
    start, stop = data.draw(st.integers(0, 4)), data.draw(st.none() | st.integers(4, 6))
    many = together(source, start, stop, rows, size)
    with without_blocks():
        assert_same(masked(many), masked(together(source, start, stop)))


def test_an_episode_longer_than_a_stretch(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(5)
    records = [step(rng, "", is_last=t in (3, 299)) for t in range(303)]
    path = write(tmp_path_factory.mktemp("raw") / "a", records)
    source = TfExampleSource(path, features={**STEPS, "is_last": "is_last"}, record="step")
    episodes = [episode for batch in source.read_batches(bytes=2000) for episode in batch]  # type: ignore[attr-defined]
    assert [episode.num_steps for episode in episodes] == [4, 296, 3]
    assert [episode.metadata.get("open_tail", False) for episode in episodes] == [False, False, True]
