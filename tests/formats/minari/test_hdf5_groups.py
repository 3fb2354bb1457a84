"""Groups that are read together are what they are when each is read alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2buf import Episode, SourceFormatError
from rlds2buf.codecs.hdf5.reading import Hdf5File
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.formats.minari import hdf5_groups, hdf5_layout
from rlds2buf.formats.minari.source import MinariDirSource
from tests.formats.blocks import assert_same, each_alone, together
from tests.formats.minari.folder import columns, write

COUNT = 24


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups that were read alone."""
    names: list[str] = []
    read = hdf5_layout.read_group

    def noted(file: Hdf5File, name: str, group: Any, *, infos: bool) -> Any:
        names.append(name)
        return read(file, name, group, infos=infos)

    monkeypatch.setattr(hdf5_layout, "read_group", noted)
    return names


def random_episode(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """1 to 50 rows, of every type of number, nested, with infos of both lengths and of one value."""
    steps = int(rng.integers(0, 50))

    def values(rows: int, *shape: int, dtype: str = "f8") -> np.ndarray:
        return (rng.normal(size=(rows, *shape)) * 50).astype(dtype)

    ends = {name: np.zeros(steps, bool) for name in ("terminations", "truncations")}
    if steps and number % 5:
        ends["terminations" if number % 2 else "truncations"][-1] = True
    return {
        "attrs": {"id": number, "total_steps": steps, "rewards_mean": float(rng.normal()), "fine": bool(number % 2)},
        "observations/state": values(steps + 1, 3, 2, dtype="f4"),
        "observations/pair/_index_0": values(steps + 1, dtype="i8"),
        "observations/pair/_index_1": values(steps + 1, 4, dtype="u1"),
        "actions": values(steps, 2, dtype="f2"),
        "rewards": values(steps),
        **ends,
        "infos/long": values(steps + 1, dtype="i2"),
        "infos/short/one": values(steps, 2, dtype="c8"),
        "infos/short/flag": values(steps + 1) > 0,
        "infos/word": np.array([b"ab", b"c"])[rng.integers(0, 2, steps + 1)],
        "infos/big": values(steps + 1, dtype=">f4"),
        "infos/single": np.float32(number),
    }


def store(folder: Path, episodes: list[dict[str, Any]], libver: str = "earliest", **options: Any) -> Path:
    """As :func:`~tests.formats.minari.folder.write`, by other means of the library."""
    write(folder, episodes)
    with h5py.File(folder / "main_data.hdf5", "w", libver=libver) as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update(episode.get("attrs", {}))
            for name, value in episode.items():
                if name != "attrs":
                    more = dict(options) if np.ndim(value) else {}
                    if more.get("chunks") == "pieces":  # a third of each axis, but for that of rows a quarter
                        more["chunks"] = (len(value) // 4 + 1, *(-(-n // 3) for n in np.shape(value)[1:]))
                    group.create_dataset(name, data=value, **more)
    return folder


@pytest.fixture(scope="module")
def episodes() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [random_episode(rng, number) for number in range(COUNT)]


LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": True},
    "pieces": {"chunks": "pieces"},
    "compressed": {"chunks": True, "compression": "gzip"},
    "latest": {"libver": "latest"},
}


@pytest.mark.parametrize(("layout", "infos"), [*((layout, True) for layout in sorted(LAYOUTS)), ("contiguous", False)])
def test_every_layout(tmp_path: Path, episodes: list[dict[str, Any]], layout: str, infos: bool) -> None:
    source = MinariDirSource(store(tmp_path / "data", episodes, **LAYOUTS[layout]), infos=infos)
    wanted = each_alone(source, COUNT)
    for start, stop, rows in [(0, COUNT, 1 << 14), (0, COUNT, 1), (7, 20, 60), (COUNT - 5, COUNT + 5, 200)]:
        assert_same(together(source, start, stop, rows), wanted[start:stop])


def equal_lengths(**more: Any) -> list[dict[str, Any]]:
    """Of 5 to 7 steps, numbered, so that none is like another."""
    out = []
    for number in range(COUNT):
        steps = 5 + number % 3
        episode = columns(steps, attrs={"id": number, "seed": 2**40 + number}, **more)
        out.append({**episode, "rewards": np.arange(steps) + 100.0 * number})
    return out


@pytest.mark.parametrize("options", [{}, {"chunks": True}, {"chunks": "pieces"}], ids=str)
def test_the_library_is_asked_about_few(tmp_path: Path, alone: list[str], options: dict[str, Any]) -> None:
    source = MinariDirSource(store(tmp_path / "data", equal_lengths(), **options))
    assert source.spec.reward is not None
    alone.clear()
    batches = list(source.read_batches())
    assert len(batches) == 1 and len(alone) <= 3
    assert isinstance(batches[0], EpisodeBatch) and batches[0].metadata is not None
    assert batches[0].metadata[9] == {"id": 9, "seed": 2**40 + 9}
    assert type(batches[0].metadata[9]["id"]) is int


def test_several_makes(tmp_path: Path, alone: list[str]) -> None:
    """A seed here and there, and another order of what was made, which is another order in the file."""
    episodes = equal_lengths()
    for number, episode in enumerate(episodes):
        if number % 3:
            del episode["attrs"]["seed"]
        if number % 4 == 1:
            episodes[number] = {"attrs": episode.pop("attrs"), **dict(reversed(episode.items()))}
    source = MinariDirSource(write(tmp_path / "data", episodes))
    wanted = each_alone(source, COUNT)
    alone.clear()
    (batch,) = source.read_batches()
    assert isinstance(batch, EpisodeBatch) and len(alone) <= 8
    assert_same(list(batch), wanted)


def test_another_layout_is_another_block(tmp_path: Path) -> None:
    episodes = equal_lengths()
    for episode in episodes[10:20]:
        episode["actions"] = episode["actions"].astype(np.float32)
    source = MinariDirSource(write(tmp_path / "data", episodes))
    found = [len(item) for item in source.read_batches() if isinstance(item, EpisodeBatch)]
    assert found == [10, 10, 4]
    assert_same(together(source), each_alone(source, COUNT))


def without(name: str) -> Callable[[h5py.Group], None]:
    def change(group: h5py.Group) -> None:
        del group[name]

    return change


def instead(name: str, value: Any, **options: Any) -> Callable[[h5py.Group], None]:
    def change(group: h5py.Group) -> None:
        del group[name]
        if isinstance(value, h5py.SoftLink | h5py.ExternalLink):
            group[name] = value
        elif value is not None:
            group.create_dataset(name, data=value, **options)

    return change


def twice(group: h5py.Group) -> None:
    del group["infos/b"]
    group["infos/b"] = group["infos/a"]


def unlike(group: h5py.Group) -> None:
    group["rewards"].attrs["unit"] = "m"


def as_link(group: h5py.Group) -> None:
    group["infos"].move("a", "elsewhere")
    group["infos/a"] = h5py.SoftLink("elsewhere")


CHANGES: dict[str, Callable[[h5py.Group], None]] = {
    "no rewards": without("rewards"),
    "no infos": without("infos"),
    "short observations": instead("observations", np.zeros(2)),
    "short infos": instead("infos/a", np.zeros(2)),
    "other infos": lambda group: group.move("infos/a", "infos/c"),
    "flags of numbers": instead("truncations", np.zeros(5, np.uint8)),
    "flags of two": instead("truncations", np.zeros((5, 2), bool)),
    "a group of rewards": lambda group: group.move("rewards", "rewards2") or group.create_group("rewards/x"),
    "a link": as_link,
    "a link that leads nowhere": instead("infos/a", h5py.SoftLink("gone")),
    "a link to another file": instead("infos/a", h5py.ExternalLink("gone.hdf5", "x")),
    "by two names": twice,
    "compressed": instead("observations", np.arange(6.0), chunks=True, compression="gzip"),
    "in pieces": instead("observations", np.arange(6.0), chunks=(4,)),
    "texts": instead("infos/a", np.array([b"a"] * 6, object)),
    "an attribute of a dataset": unlike,
    "an attribute of its own": lambda group: group.attrs.update({"note": "text", "more": np.arange(3)}),
    "nothing stored": lambda group: without("infos/a")(group) or group.create_dataset("infos/a", (6,), "f8"),
    "no data": lambda group: without("infos/a")(group) or group.create_dataset("infos/a", dtype="f8"),
    "a type of its own": lambda group: (
        group.file.__setitem__("t", np.dtype("f8"))
        or without("infos/a")(group)
        or group.create_dataset("infos/a", (6,), group.file["t"])
    ),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
@pytest.mark.parametrize("at", [0, 13])
def test_one_that_differs(tmp_path: Path, change: str, at: int, alone: list[str]) -> None:
    """Nothing of its neighbours is lost, and what is said of it is what is said of it alone."""
    folder = write(tmp_path / "data", equal_lengths(**{"infos/a": np.zeros(6), "infos/b/c": np.zeros((6, 2), "i4")}))
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        for number in range(COUNT):  # all of one length
            for name in ("observations", "actions", "rewards", "terminations", "truncations"):
                values = file[f"episode_{number}/{name}"][: 6 if name == "observations" else 5]
                del file[f"episode_{number}/{name}"]
                file[f"episode_{number}/{name}"] = values
        CHANGES[change](file[f"episode_{at}"])
    source = MinariDirSource(folder)
    wanted = each_alone(source, COUNT)
    alone.clear()
    assert_same(together(source), wanted)
    assert_same(together(source, at, COUNT, 50), wanted[at:])
    assert len(alone) <= 30 + COUNT  # both times by far the most were read together


@pytest.mark.parametrize("user_block", [0, 512])
def test_texts_by_the_library(tmp_path: Path, user_block: int, alone: list[str]) -> None:
    """Minigrid's missions: one column of texts beside numbers, and attributes of texts."""
    episodes = equal_lengths()
    for number, episode in enumerate(episodes):
        rows = len(episode["observations"])
        episode["observations/mission"] = np.array([f"go to {number}".encode()] * rows, object)
        episode["observations/direction"] = episode.pop("observations")
        episode["attrs"]["options/level"] = f"level {number}"
    folder = write(tmp_path / "data", [])
    (folder / "metadata.json").write_text(f'{{"total_episodes": {COUNT}}}')
    with h5py.File(folder / "main_data.hdf5", "w", userblock_size=user_block) as file:
        for number, episode in enumerate(episodes):
            file.create_group(f"episode_{number}").attrs.update(episode.pop("attrs"))
            for name, value in episode.items():
                file[f"episode_{number}/{name}"] = value
    source = MinariDirSource(folder)
    wanted = each_alone(source, COUNT)
    alone.clear()
    assert_same(together(source), wanted)
    assert len(alone) == COUNT if user_block else len(alone) <= 4
    last = wanted[-1]
    assert isinstance(last, Episode) and last.observation["mission"][0] == b"go to 23"
    assert last.metadata["options"] == {"level": "level 23"}


def test_in_many_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: list[str]) -> None:
    """What is not whole in one window is in the next, and values may lie anywhere in the file."""
    folder = write(tmp_path / "data", equal_lengths(**{"infos/one": 0.5}))
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        for number in range(0, COUNT, 3):
            del file[f"episode_{number}/rewards"]
            file[f"episode_{number}/rewards"] = np.full(5 + number % 3, -1.0)
            del file[f"episode_{number}/infos/one"]
            file[f"episode_{number}/infos/one"] = float(number)
    source = MinariDirSource(folder)
    wanted = each_alone(source, COUNT)
    monkeypatch.setattr(hdf5_groups, "_WINDOW_BYTES", 1 << 16)
    monkeypatch.setattr(hdf5_groups, "_MARGIN", 1 << 13)
    alone.clear()
    assert_same(together(source), wanted)
    assert len(alone) < COUNT
    assert_same(together(source, 11, 20), wanted[11:20])


def damaged(folder: Path, rng: np.random.Generator) -> Iterator[None]:
    """The file with one byte changed, again and again."""
    path = folder / "main_data.hdf5"
    whole = path.read_bytes()
    for _ in range(25):
        bad = bytearray(whole)
        bad[int(rng.integers(96, len(whole)))] ^= int(rng.choice([1, 0x10, 0x80, 0xFF]))
        path.write_bytes(bad)
        yield


@pytest.mark.parametrize("options", [{}, {"chunks": True}, {"chunks": "pieces"}], ids=str)
def test_damage_is_what_it_is_alone(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = store(tmp_path / "data", equal_lengths(**{"infos/a/b": np.zeros(5)})[:8], **options)
    (folder / "metadata.json").write_text("{}")
    for _ in damaged(folder, np.random.default_rng(1)):
        try:
            source = MinariDirSource(folder)
        except SourceFormatError:
            continue
        assert_same(together(source), each_alone(source, COUNT))


def test_a_file_that_is_cut_short_meanwhile(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", equal_lengths())
    items = MinariDirSource(folder).read_batches(rows=20)
    next(items)
    path = folder / "main_data.hdf5"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(SourceFormatError, match="became shorter while it was read"):
        list(items)
