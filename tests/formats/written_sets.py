"""Sets of episodes that reach every way of writing a field or a fact, to compare what is written with what was.

``python -m tests.formats.written_sets`` prints the digests that tests/golden/written.json holds.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from rlds2buf import Episode, FieldSpec, StepSpec, spec_of
from rlds2buf.formats.d4rl.sink import D4rlHdf5Sink
from rlds2buf.formats.rlds.sink import RldsDirSink
from rlds2buf.io.sink import Sink

__all__ = ["D4RL", "RLDS", "WrittenSet", "digests", "opened"]

NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()


class WrittenSet(NamedTuple):
    """Episodes, their spec, and how they are written."""

    episodes: list[Episode]
    spec: StepSpec
    sink: Callable[..., Any]
    options: dict[str, Any]


def column(cells: list[Any]) -> np.ndarray:
    out = np.empty(len(cells), object)
    for i, cell in enumerate(cells):
        out[i] = cell
    return out


def lengths(count: int, seed: int) -> list[int]:
    return [int(n) for n in np.random.default_rng(seed).integers(1, 50, count, endpoint=True)]


def flags(rows: int, i: int) -> dict[str, np.ndarray]:
    last = np.arange(rows) == rows - 1
    return {"is_first": np.arange(rows) == 0, "is_last": last & (i % 7 != 3), "is_terminal": last & (i % 3 == 0)}


def bits(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Values of any kind, small ones among them."""
    count = int(np.prod(shape))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        whole = np.frombuffer(rng.bytes(count * kind.itemsize), kind)
        return np.where(rng.integers(0, 3, count) == 0, whole, whole % 100).reshape(shape)
    return (rng.integers(-1000, 1000, (*shape,)) / 8).astype(kind)


def numbers(count: int = 60, seed: int = 1) -> list[Episode]:
    out = []
    for i, rows in enumerate(lengths(count, seed)):
        rng = np.random.default_rng([seed, i])
        observation, action = (bits(rng, "float32", rows, width) for width in (17, 6))
        action[-1], reward = 0, bits(rng, "float32", rows)
        reward[-1] = 0
        discount = np.ones(rows, np.float32)
        out.append(
            Episode(observation=observation, action=action, reward=reward, discount=discount, **flags(rows, i), index=i)
        )
    return out


def kinds() -> list[Episode]:
    out = []
    for i, rows in enumerate(lengths(25, 2)):
        rng = np.random.default_rng([2, i])
        extras = {name: bits(rng, name, rows) for name in NUMBERS}
        extras["wide"] = {name: bits(rng, name, rows, 2, 3) for name in NUMBERS}
        extras["large"] = (
            bits(rng, "int16", rows, 40, 30),
            bits(rng, "uint32", rows, 1030),
            bits(rng, "uint8", rows, 1024),
        )
        extras["none"] = bits(rng, "float32", rows, 0, 3)
        extras["pixels"] = bits(rng, "uint8", rows, 8, 8, 3)
        out.append(
            Episode(observation=bits(rng, "float64", rows, 3), reward=None, extras=extras, **flags(rows, i), index=i)
        )
    return out


def texts() -> list[Episode]:
    out = []
    for i, rows in enumerate(lengths(25, 3)):
        rng = np.random.default_rng([3, i])

        def some(most: int, rng: np.random.Generator = rng) -> bytes:
            return rng.bytes(int(rng.integers(0, most)))

        def ragged(dtype: str, *shape: int, rows: int = rows, rng: np.random.Generator = rng) -> np.ndarray:
            return column(
                [bits(rng, dtype, *(int(rng.integers(0, 4)) if n < 0 else n for n in shape)) for _ in range(rows)]
            )

        magic = (b"\xff\xd8", b"\x89P")[i % 2]
        extras = {
            "instruction": column([b"pick it up"] * rows),
            "text": column([some(300) for _ in range(rows)]),
            "pair": column([some(5) for _ in range(2 * rows)]).reshape(rows, 2),
            "words": column([column([some(4) for _ in range(int(rng.integers(0, 3)))]) for _ in range(rows)]),
            "points": ragged("float32", -1, 2),
            "grid": ragged("int64", -1, -1),
            "counts": ragged("uint32", -1),
            "file": column([b"\xff\xd8" + some(3000) for _ in range(rows)]),
            "files": column([magic + some(30) for _ in range(2 * rows)]).reshape(rows, 2),
        }
        out.append(Episode(action=bits(rng, "int32", rows), extras=extras, **flags(rows, i), index=i))
    return out


def text_spec() -> StepSpec:
    picture = FieldSpec((8, 8, 3), np.uint8)
    return StepSpec(
        action=FieldSpec((), np.int32),
        reward=None,
        discount=None,
        extras={
            "instruction": FieldSpec((), object),
            "text": FieldSpec((), object),
            "pair": FieldSpec((2,), object),
            "words": FieldSpec((None,), object),
            "points": FieldSpec((None, 2), np.float32),
            "grid": FieldSpec((None, None), np.int64),
            "counts": FieldSpec((None,), np.uint32),
            "file": FieldSpec((), object, image=picture),
            "files": FieldSpec((2,), object, image=picture),
        },
    )


def facts(i: int) -> dict[str, Any]:
    """Metadata of one kind in all episodes, but for a few."""
    known: dict[str, Any] = {
        "id": i,
        "seed": np.int64(-i),
        "score": i / 3,
        "name": f"run {i}" if i % 4 else "",
        "raw": b"\xff" * (i % 5),
        "weights": {"w": np.eye(3, dtype=np.float32) * i, "pair": (np.uint8(i), "x")},
        "path": np.arange(i % 4),
        "tags": ["a"] * (i % 3),
        "same": "text",
        "placeholder_final_row": i % 5 == 1,
        "steps": i,
        "thing": object(),
    }
    if i % 6 == 4:
        known.update(id="seven", late=1, score=None, open_tail="yes", path=np.zeros((2, 2)))
        del known["seed"]
    return known


def with_facts(episodes: list[Episode], make: Callable[[int], dict[str, Any]]) -> list[Episode]:
    return [episode.replace(metadata=make(i)) for i, episode in enumerate(episodes)]


def plain_facts(i: int) -> dict[str, Any]:
    """Metadata that every episode has alike, some the same."""
    known = {
        "id": np.int64(i),
        "score": np.float32(i / 3),
        "flag": np.bool_(i % 2),
        "same": 5,
        "goal": np.arange(3.0) + i,
    }
    return {**known, "name": f"run {i}", "raw": b"\xfe" * (i % 5), "at": {"x": np.uint8(i), "y": 7}}


def d4rl_episodes() -> list[Episode]:
    out = []
    for i, episode in enumerate(numbers(60, 4)):
        rng = np.random.default_rng([4, i])
        rows = episode.num_steps
        extras = {
            "infos": {"qpos": bits(rng, "float64", rows, 2)},
            "cost": bits(rng, "int16", rows),
            "note": column([b"step %d" % t for t in range(rows)]),
            "group": {"a": bits(rng, "uint64", rows, 2)},
        }
        out.append(episode.replace(extras=extras, metadata={"policy": "expert", "id": i, "x": {"y": np.arange(2)}}))
    return out


def _rlds(episodes: list[Episode], spec: StepSpec | None = None, **options: Any) -> Callable[[], WrittenSet]:
    return lambda: WrittenSet(episodes, spec or spec_of(episodes[0]), RldsDirSink, options)


RLDS: Mapping[str, Callable[[], WrittenSet]] = {
    "numbers": lambda: _rlds(numbers())(),
    "kinds": lambda: _rlds(kinds(), images="tensor")(),
    "texts": lambda: _rlds(texts(), text_spec())(),
    "facts": lambda: _rlds(with_facts(numbers(40, 5), facts))(),
    "plain facts": lambda: _rlds(with_facts(numbers(40, 6), plain_facts))(),
    "shards": lambda: _rlds(numbers(), num_shards=4)(),
    "small shards": lambda: _rlds(numbers(), shard_size=20_000)(),
    "splits": lambda: _rlds(with_facts(numbers(), facts), val_fraction=0.3, seed=3, num_shards=3)(),
}
"""By name; made when they are asked for."""

D4RL: Mapping[str, Callable[[], WrittenSet]] = {
    "d4rl": lambda: WrittenSet(made := d4rl_episodes(), spec_of(made[0]), D4rlHdf5Sink, {}),
    "d4rl without next": lambda: WrittenSet(
        made := numbers(30, 8), spec_of(made[0]), D4rlHdf5Sink, {"next_observations": False}
    ),
}


def opened(chosen: WrittenSet, target: Path) -> Sink:
    """A sink for the set."""
    sink: Sink = chosen.sink(target, **chosen.options)
    sink.expect(len(chosen.episodes))
    sink.open(chosen.spec, {"source": "made"})
    return sink


def digests(target: Path, lost: Mapping[str, str]) -> dict[str, str]:
    """SHA-256 of each file's content, without versions; of an HDF5 file's values and attributes; of what is lost."""
    files = sorted(target.iterdir()) if target.is_dir() else [target]
    contents = {path.name: _content(path) for path in files}
    contents["lost"] = json.dumps(lost, sort_keys=True).encode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def _content(path: Path) -> bytes:
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        content.get("rlds2buf", {}).pop("version", None)
        return json.dumps(content).encode()
    if path.suffix != ".hdf5":
        return path.read_bytes()
    parts: list[str] = []

    def note(name: str, item: Any) -> None:
        parts.append(f"{name} {sorted(item.attrs.items())}")
        if isinstance(item, h5py.Dataset):
            value = np.asarray(item[()])
            data = repr(value.tolist()) if value.dtype == object else value.tobytes().hex()
            parts.append(f"{item.dtype} {item.shape} {data}")

    with h5py.File(path) as file:
        note("/", file)
        file.visititems(note)
    return "\n".join(parts).encode()


def main() -> None:
    """Write every set, episode by episode."""
    found = {}
    for name, make in {**RLDS, **D4RL}.items():
        with tempfile.TemporaryDirectory() as folder:
            chosen = make()
            target = Path(folder) / ("made.hdf5" if name in D4RL else "made")
            sink = opened(chosen, target)
            for episode in chosen.episodes:
                sink.write(episode)
            sink.commit()
            found[name] = digests(target, sink.lost())
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
