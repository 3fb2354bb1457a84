"""Records read together against each of them read by itself."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.formats.rlds.source import RldsDirSource
from rlds2buf.io import record_blocks
from tests.formats.blocks import assert_same, found, together, without_blocks
from tests.formats.reverb.messages import delimited, feature
from tests.formats.rlds.folder import CORE, rlds, sequence, tensor

TEXT = {"pythonClassName": f"{CORE}.text_feature.Text", "text": {}}


def picture(height: int = 4, width: int = 5) -> dict[str, Any]:
    dims = {"dimensions": [str(n) for n in (height, width, 3)]}
    return {"pythonClassName": f"{CORE}.image_feature.Image", "image": {"shape": dims, "dtype": "uint8"}}


FEATURES = rlds(
    {
        "observation": tensor((2, 3), "float32"),
        "action": tensor((), "int32"),
        "reward": tensor((), "float32"),
        "is_first": tensor((), "bool"),
        "is_terminal": tensor((), "bool"),
        "half": tensor((2,), "float16"),
        "double": tensor((2,), "float64", "bytes"),
        "packed": tensor((3,), "uint8", "zlib"),
        "wide": tensor((), "uint64"),
        "text": TEXT,
        "words": tensor((2,), "string"),
        "pair": sequence(tensor((), "int64"), 2),
        "some": sequence(tensor((2,), "float32")),
        "deep": sequence(sequence(tensor((), "uint8"))),
        "camera": picture(),
        "cameras": sequence(picture(), 2),
        "any": tensor((-1, -1), "int16", "bytes"),
    },
    seed=tensor((), "int64"),
    goal=tensor((2,), "float64", "bytes"),
    note=TEXT,
    list=sequence(tensor((), "int64")),
    maybe={**tensor((), "int64"), "tensor": {**tensor((), "int64")["tensor"], "optional": True}},
)


@functools.cache
def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def record(rng: np.random.Generator, steps: int, inner: int, *, ragged: bool) -> dict[str, tuple[str, list[Any]]]:
    def ints(count: int, most: int = 100) -> list[int]:
        return rng.integers(0, most, count).tolist()

    def pictures(count: int) -> list[bytes]:
        return [png(seed) for seed in ints(count, 4)]

    rows = ints(steps, 3) if ragged else [inner] * steps
    of_rows = ints(sum(rows), 3) if ragged else [2] * sum(rows)
    shapes = [tuple(ints(2, 3)) if ragged else (1, inner) for _ in range(steps)]
    return {
        "steps/observation": ("float", rng.normal(size=6 * steps).tolist()),
        "steps/action": ("int64", rng.integers(-5, 5, steps).tolist()),
        "steps/reward": ("float", rng.normal(size=steps).tolist()),
        "steps/is_first": ("int64", [1] + [0] * (steps - 1) if steps else []),
        "steps/is_terminal": ("int64", [0] * steps),
        "steps/half": ("float", ints(2 * steps)),
        "steps/double": ("bytes", [rng.normal(size=2).tobytes() for _ in range(steps)]),
        "steps/packed": ("bytes", [zlib_of(ints(3)) for _ in range(steps)]),
        "steps/wide": ("int64", rng.integers(-(2**63), 2**63, steps).tolist()),
        "steps/text": ("bytes", [b"go"] * steps if inner else [b"%d" % i for i in range(steps)]),
        "steps/words": ("bytes", [b"%d" % x for x in ints(2 * steps)]),
        "steps/pair/ragged_flat_values": ("int64", ints(2 * steps, 1 << 40)),
        "steps/pair/ragged_row_lengths_0": ("int64", [2] * steps),
        "steps/some/ragged_flat_values": ("float", rng.normal(size=2 * sum(rows)).tolist()),
        "steps/some/ragged_row_lengths_0": ("int64", rows),
        "steps/deep/ragged_flat_values": ("int64", ints(sum(of_rows))),
        "steps/deep/ragged_row_lengths_0": ("int64", rows),
        "steps/deep/ragged_row_lengths_1": ("int64", of_rows),
        "steps/camera": ("bytes", pictures(steps)),
        "steps/cameras/ragged_flat_values": ("bytes", pictures(2 * steps)),
        "steps/cameras/ragged_row_lengths_0": ("int64", [2] * steps),
        "steps/any/value": ("bytes", [np.zeros(shape, np.int16).tobytes() for shape in shapes]),
        "steps/any/shape": ("int64", [n for shape in shapes for n in shape]),
        "seed": ("int64", ints(1)),
        "goal": ("bytes", [rng.normal(size=2).tobytes()]),
        "note": ("bytes", [b"note"]),
        "list": ("int64", ints(int(rng.integers(4)))),
        **({"maybe": ("int64", [1])} if rng.random() < 0.5 else {}),
    }


def zlib_of(values: list[int]) -> bytes:
    import zlib

    return zlib.compress(bytes(values))


def encoded(entries: dict[str, tuple[str, list[Any]]], packed: bool = True) -> bytes:
    parts = [
        delimited(1, delimited(1, key.encode()) + delimited(2, feature(kind, values, packed)))
        for key, (kind, values) in entries.items()
    ]
    return delimited(1, b"".join(parts))


def broken(rng: np.random.Generator, entries: dict[str, Any], kind: str) -> bytes:
    """The record with a fault, or made in a way that no writer makes it."""
    entries = dict(entries)
    if kind == "shuffled":
        keys = list(entries)
        rng.shuffle(keys)
        return encoded({key: entries[key] for key in keys})
    if kind == "more":
        return encoded({"other": ("float", [1.0]), **entries, "é": ("int64", [2])})
    if kind == "twice":
        first = {"steps/reward": ("float", [7.0])}
        return encoded(first)[:0] + delimited(1, _inside(encoded(first)) + _inside(encoded(entries)))
    changed = CHANGES.get(kind)
    if changed is not None:
        key, change = changed
        entries[key] = (entries[key][0], change(entries[key][1]))
    elif kind == "missing":
        del entries["steps/half"]
    elif kind == "kind":
        entries["steps/wide"] = ("float", [1.0])
    whole = encoded(entries, packed=kind != "loose")
    return whole[:-3] if kind == "cut" else whole


CHANGES: dict[str, tuple[str, Any]] = {
    "picture": ("steps/camera", lambda files: [*files[:-1], files[-1][:-30]]),
    "short": ("steps/reward", lambda values: values[1:]),
    "uneven": ("steps/observation", lambda values: values[1:]),
    "lengths": ("steps/pair/ragged_row_lengths_0", lambda values: [1, 3] + [2] * 48),
}


def _inside(record: bytes) -> bytes:
    at = 1
    while record[at] & 0x80:
        at += 1
    return record[at + 1 :]


HARMLESS = ["", "", "", "", "", "", "shuffled", "more", "twice", "loose", "picture", "short"]
FATAL = ["uneven", "lengths", "missing", "kind", "cut"]


def written(folder: Path, records: list[bytes], shards: int) -> Path:
    import json

    from rlds2buf.codecs.tfrecord.frames import frame

    folder.mkdir(parents=True)
    parts = [records[i::shards] for i in range(shards)]
    for i, part in enumerate(parts):
        (folder / f"toy-train.tfrecord-{i:05d}-of-{shards:05d}").write_bytes(b"".join(map(frame, part)))
    (folder / "features.json").write_text(json.dumps(FEATURES))
    splits = [{"name": "train", "shardLengths": [str(len(part)) for part in parts], "numBytes": "1"}]
    info = {"name": "toy", "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


@settings(
    max_examples=60,
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
    is_fatal = data.draw(st.integers(0, 3)) == 0
    ragged = data.draw(st.sampled_from([0.0, 0.0, 0.2, 1.0]))
    inner = data.draw(st.integers(0, 2))
    kinds = [data.draw(st.sampled_from(HARMLESS)) for _ in range(count)]
    if is_fatal:
        kinds[data.draw(st.integers(0, count - 1))] = data.draw(st.sampled_from(FATAL))
    records = []
    for kind in kinds:
        steps = int(rng.integers(1, 51)) if rng.random() < 0.95 else 0
        entries = record(rng, steps, inner if rng.random() < 0.8 else 1, ragged=rng.random() < ragged)
        records.append(broken(rng, entries, kind) if steps else encoded(entries))
    folder = written(tmp_path_factory.mktemp("blocks") / "toy" / "1.0.0", records, data.draw(st.integers(1, 2)))
    images = data.draw(st.sampled_from(["decoded", "encoded"]))
    source = RldsDirSource(folder, images=images, image_threads=data.draw(st.integers(1, 2)))
    if data.draw(st.booleans()):
        wanted = set(data.draw(st.lists(st.integers(0, count))))
        source = source.only(lambda index: index in wanted)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.none() | st.integers(start, count + 1))
    rows = data.draw(st.sampled_from([1, 7, 60, 1 << 14]))
    monkeypatch.setattr(record_blocks, "_LEAST_STRETCH", data.draw(st.sampled_from([1, 5000, 1 << 16])))
    with without_blocks():
        expected = together(source, start, stop)
    assert_same(together(source, start, stop, rows, data.draw(st.sampled_from([1, 20_000, 1 << 26]))), expected)
    assert_same(found(lambda: source.read(start, stop)), expected)


def test_records_made_alike_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the fields are, a block is not joined of single episodes."""
    rng = np.random.default_rng(3)
    records = [encoded(record(rng, steps, 2, ragged=False)) for steps in (3, 1, 40, 7)]
    source = RldsDirSource(written(tmp_path / "toy" / "1.0.0", records, 1))
    monkeypatch.delattr(record_blocks.RecordBlocks, "_one_by_one")
    (batch,) = source.read_batches()
    assert isinstance(batch, EpisodeBatch) and batch.lengths.tolist() == [3, 1, 40, 7]
    assert batch.derived == {"is_last"}
    assert [int(facts["seed"]) for facts in batch.metadata or ()] == [int(e.metadata["seed"]) for e in source]


def test_a_fault_in_the_middle_leaves_blocks_around_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    records = [record(rng, 5, 2, ragged=False) for _ in range(20)]
    made = [broken(rng, entries, "picture" if i == 9 else "") for i, entries in enumerate(records)]
    source = RldsDirSource(written(tmp_path / "toy" / "1.0.0", made, 1), images="decoded")
    items = list(source.read_batches())
    assert [len(item) if isinstance(item, EpisodeBatch) else item.episode for item in items] == [9, 9, 10]
