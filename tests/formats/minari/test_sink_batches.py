"""What is written a block at a time is what is written an episode at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2buf import Episode, spec_of
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.formats.minari import sink as minari_sink
from rlds2buf.formats.minari.sink import MinariDirSink
from tests.contracts.sink import PROVENANCE
from tests.reference.minari_groups import write_groups


def described(path: Path) -> dict[str, Any]:
    """All that is in a file, by name: kinds, types, shapes, values, attributes, and how it is stored."""
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        attributes = {
            key: (str(item.attrs.get_id(key).get_type().get_class()), item.attrs.get_id(key).dtype, value_of(value))
            for key, value in item.attrs.items()
        }
        if isinstance(item, h5py.Dataset):
            made = item.id.get_create_plist()
            stored = (made.get_layout(), made.get_nfilters(), made.get_obj_track_times(), item.maxshape)
            same_type = item.id.get_type().encode()
            found[name] = (item.shape, item.dtype, same_type, stored, value_of(item[()]), attributes)
        else:
            found[name] = (list(item), attributes)

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def value_of(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype == object else (value.dtype, value.shape, value.tobytes())
    return type(value), value.tobytes() if isinstance(value, np.generic) else value


def random_episode(rng: np.random.Generator, number: int) -> Episode:
    """1 to 50 rows of every type of number and of texts, nested, with facts of every kind."""
    rows = int(rng.integers(1, 51))

    def values(*shape: int, dtype: str = "f8") -> np.ndarray:
        return (rng.normal(size=(rows, *shape)) * 50).astype(dtype)

    def padded(column: np.ndarray) -> np.ndarray:
        column[-1] = b"" if column.dtype == object else 0
        return column

    words = np.array([b"go", b"", "größer".encode()], object)[rng.integers(0, 3, rows)]
    last = np.arange(rows) == rows - 1
    numbers = {f"x{code}": values(2, dtype=code) for code in ("?", "b", "H", "i", "Q", "e", "f")}
    metadata: dict[str, Any] = {
        "seed": int(rng.integers(1 << 40)),
        "options": {"goal": {"x": float(rng.normal())}, "größe": np.arange(number % 4, dtype=np.int16)},
        "fine": bool(number % 2),
        "infos": {"single": float(number), "bytes": b"ab"},
    }
    if number % 3 == 0:
        metadata.update({"who": b"me", "note": f"text {number}", "words": ["a", "bb"], "c": 1j, "empty": b""})
    return Episode(
        observation={"deep": {"pair": (values(), values(3, 2, dtype="u1"))}, "größe": values(), **numbers},
        action=(padded(values(2, dtype="f")), padded(words)),
        reward=padded(values(dtype="f4")),
        is_terminal=last & bool(number % 2) & (rows > 1),
        is_last=last,
        extras={
            "infos": {
                "word": words[::-1],
                "deep": {"c": values(dtype="F")},
                "none": values(0),
                "long": values(dtype="g"),
            }
        },
        metadata=metadata,
    )


@pytest.mark.parametrize("size", [1, 7, 40])
def test_what_is_written(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(size)
    episodes = [random_episode(rng, number) for number in range(40)]
    write_groups(tmp_path / "wanted.hdf5", episodes)
    monkeypatch.setattr(minari_sink, "BLOCK_BYTES", 1 << 12)  # several runs at the end too
    sink = MinariDirSink(tmp_path / "set-v0")
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for start in range(0, 40, size):
        some = episodes[start : start + size]
        assert sink.write_batch(EpisodeBatch.of(some)) == sum(episode.num_transitions for episode in some)
    sink.commit()
    assert sink.lost() == {}
    assert described(tmp_path / "set-v0/data/main_data.hdf5") == described(tmp_path / "wanted.hdf5")


@pytest.mark.parametrize("size", [1, 5, 12])
def test_what_is_lost(tmp_path: Path, size: int) -> None:
    """The same is said of episodes in a block as of each."""
    rng = np.random.default_rng(0)
    episodes = [random_episode(rng, number) for number in range(12)]
    episodes[3].reward[-1] = 1
    episodes[5].metadata["id"] = 9
    episodes[7] = episodes[7].replace(is_last=np.zeros(episodes[7].num_steps, bool), is_terminal=None)
    episodes[9].metadata["large"] = np.zeros(10_000)
    sink = MinariDirSink(tmp_path / "set-v0")
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for start in range(0, 12, size):
        sink.write_batch(EpisodeBatch.of(episodes[start : start + size]))
    sink.commit()
    assert sorted(sink.lost()) == ["is_last", "metadata/id", "metadata/large", "reward"]
