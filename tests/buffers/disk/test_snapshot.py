"""Saved buffers: whole or refused, never half."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import SnapshotCorrupt, SnapshotError, SnapshotExists, SnapshotTooNew, SourceNotFound, SpecMismatch
from rlds2buf.buffers.disk.manifest import VERSION
from rlds2buf.buffers.disk.snapshot import SnapshotWriter
from tests.buffers.compare import assert_same_nest, assert_transitions
from tests.buffers.numbered import SPEC, episode, transition, transitions
from tests.reference.replay import ListReplay


def busy() -> Any:
    """A buffer with everything that is stored only when needed: own next observations, sources, links, a wrap."""
    buffer = rlds2buf.make_circular(SPEC, 20, seed=4)
    for i in range(4):
        buffer.add(episode(100 * i, 5), source_id=i)
        buffer.add(transitions(100 * i + 50, 4), source_id=[1, 2, 1, 2])
    return buffer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    busy().save(tmp_path / "saved")
    return tmp_path / "saved"


def content(path: Path, **kwargs: Any) -> dict[str, Any]:
    loaded = rlds2buf.load_buffer(path, **kwargs)
    keys = loaded.keys()
    return {
        "keys": keys,
        "all": loaded.all()._asdict(),
        "long": loaded.get(keys, n_step=4, gamma=0.5)._asdict(),
        "drawn": loaded.sample(20).info.key,
    }


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# -- loading ------------------------------------------------------------------------------------


def test_loaded_equals_saved(saved: Path) -> None:
    buffer = busy()
    loaded = rlds2buf.load_buffer(saved)
    assert_same_nest(loaded.all()._asdict(), buffer.all()._asdict())
    assert_same_nest(
        loaded.get(loaded.keys(), n_step=4, gamma=0.5)._asdict(),
        buffer.get(buffer.keys(), n_step=4, gamma=0.5)._asdict(),
    )
    mine, theirs = loaded.stats(), buffer.stats()
    for name in ("num_rows", "num_items", "capacity", "capacity_unit", "added", "evicted", "sampled"):
        assert mine[name] == theirs[name]
    for _ in range(5):
        assert loaded.sample(7).info.key.tolist() == buffer.sample(7).info.key.tolist()


def test_every_file_is_npy_or_json(saved: Path) -> None:
    """Anybody can read it: numpy opens every column, without pickles."""
    names = [path.name for path in files_of(saved)]
    assert names.count("manifest.json") == 1
    columns = [np.load(path, allow_pickle=False, mmap_mode="r") for path in files_of(saved) if path.suffix == ".npy"]
    assert len(columns) == len(names) - 1
    assert all(len(column) in (0, 20, len(busy())) for column in columns)


def test_seed_starts_draws_anew(saved: Path) -> None:
    one, two = (rlds2buf.load_buffer(saved, seed=5).sample(20).info.key.tolist() for _ in range(2))
    assert one == two
    assert one != rlds2buf.load_buffer(saved, seed=6).sample(20).info.key.tolist()


def test_moved_folder(saved: Path, tmp_path: Path) -> None:
    before = content(saved)
    saved.rename(tmp_path / "elsewhere")
    assert_same_nest(content(tmp_path / "elsewhere"), before)


def test_rows_are_mapped_not_read(tmp_path: Path) -> None:
    """A loaded buffer's memory is the files' until something is added."""
    rows = 200_000
    ep = rlds2buf.Episode(observation=np.zeros((rows, 32), np.float32), action=np.zeros(rows), reward=np.zeros(rows))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), rows)
    buffer.add(ep)
    buffer.save(tmp_path / "saved")
    loaded = rlds2buf.load_buffer(tmp_path / "saved", verify=False)
    assert all(isinstance(column, np.memmap) for column in loaded.engine.store.columns)
    assert loaded.sample(4).data.observation.shape == (4, 32)


def test_old_buffer_works_after_its_files_were_replaced(saved: Path) -> None:
    loaded = rlds2buf.load_buffer(saved)
    before = loaded.all()._asdict()
    other = rlds2buf.make_circular(SPEC, 20)
    other.add(episode(900, 7))
    other.save(saved, overwrite=True)
    assert_same_nest(loaded.all()._asdict(), before)


def test_saving_over_the_files_it_was_loaded_from(saved: Path) -> None:
    loaded = rlds2buf.load_buffer(saved)
    loaded.save(saved, overwrite=True)
    assert_same_nest(rlds2buf.load_buffer(saved).all()._asdict(), busy().all()._asdict())
    loaded.add(transition(777))
    loaded.save(saved, overwrite=True)
    assert rlds2buf.load_buffer(saved).all().observation["count"][-1] == 777
    assert_same_nest(rlds2buf.load_buffer(saved).all()._asdict(), loaded.all()._asdict())


@pytest.mark.parametrize("unit", ["rows", "transitions", "episodes"])
def test_unit_and_what_leaves_next_survive(tmp_path: Path, unit: str) -> None:
    buffer, twin = rlds2buf.make_circular(SPEC, 6, capacity_unit=unit), ListReplay(6, unit)
    for i in range(9):
        buffer.add(episode(10 * i, 2 + i % 4))
        twin.add_episode(episode(10 * i, 2 + i % 4))
    buffer.save(tmp_path / "saved")
    loaded = rlds2buf.load_buffer(tmp_path / "saved")
    assert loaded.capacity_unit == unit and loaded.capacity == 6
    for i in range(9, 18):
        loaded.add(episode(10 * i, 2 + i % 4))
        twin.add_episode(episode(10 * i, 2 + i % 4))
        assert_transitions(loaded.all(), twin, twin.keys())
        loaded.check_valid()


def test_provenance(tmp_path: Path) -> None:
    buffer = busy()
    buffer.save(tmp_path / "saved", provenance={"source": "somewhere", "options": {"split": "train"}})
    assert rlds2buf.load_buffer(tmp_path / "saved").provenance["source"] == "somewhere"
    assert json.loads((tmp_path / "saved" / "manifest.json").read_text())["rlds2buf"] == rlds2buf.__version__


# -- what is not whole --------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound):
        rlds2buf.load_buffer(tmp_path / "nothing")


def test_folders_and_files_that_are_no_buffers(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"format": "something else", "version": 1}')
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "manifest.json").write_text("[1, 2]")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "manifest.json").write_text("[" * 100_000)
    for name in ("empty", "other", "list", "deep"):
        with pytest.raises(SnapshotCorrupt):
            rlds2buf.load_buffer(tmp_path / name)
    (tmp_path / "file").write_text("hello")
    with pytest.raises((SnapshotCorrupt, SourceNotFound)):
        rlds2buf.load_buffer(tmp_path / "file")


def test_a_folder_that_is_no_buffer_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    (tmp_path / "file").write_text("years of work")
    for name in ("thesis", "file"):
        for overwrite in (False, True):
            with pytest.raises(SnapshotExists):
                busy().save(tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert (tmp_path / "file").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "thesis"]


def edit(saved: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    change(manifest)
    (saved / "manifest.json").write_text(json.dumps(manifest))


def test_newer_version(saved: Path) -> None:
    edit(saved, lambda manifest: manifest.update(version=VERSION + 1))
    with pytest.raises(SnapshotTooNew, match="upgrade"):
        rlds2buf.load_buffer(saved)


def test_manifest_that_was_changed(saved: Path) -> None:
    names = json.loads((saved / "manifest.json").read_text()).keys()
    for name in names:
        copy = saved.with_name(f"without-{name}")
        shutil.copytree(saved, copy)
        edit(copy, lambda manifest, name=name: manifest.pop(name))
        with pytest.raises(SnapshotError):
            rlds2buf.load_buffer(copy)
        edit(copy, lambda manifest, name=name: manifest.update({name: "nonsense"}))
        with pytest.raises(SnapshotError):
            rlds2buf.load_buffer(copy)


def test_any_flipped_byte_of_the_manifest(saved: Path) -> None:
    """Refused, or (white space, a number written otherwise) of no effect."""
    before = content(saved)
    path = saved / "manifest.json"
    whole = path.read_bytes()
    refused = 0
    for position in range(0, len(whole), 3):
        for bit in (0, 4):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                after = content(saved)
            except (SnapshotCorrupt, SnapshotTooNew):
                refused += 1
            else:
                assert_same_nest(after, before, f"byte {position}")
    assert refused > len(whole) / 3


def test_missing_files(saved: Path) -> None:
    for path in files_of(saved):
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(SnapshotCorrupt) as caught:
            rlds2buf.load_buffer(saved)
        assert path.name in str(caught.value)
        path.write_bytes(whole)
    content(saved)


@pytest.mark.parametrize("kwargs", [{}, {"verify": False}, {"writable": True}, {"writable": True, "verify": False}])
def test_short_files(saved: Path, kwargs: dict[str, Any]) -> None:
    for path in files_of(saved):
        whole = path.read_bytes()
        for keep in (0, 1, 64, len(whole) // 2, len(whole) - 1):
            if keep >= len(whole):
                continue
            path.write_bytes(whole[:keep])
            with pytest.raises(SnapshotCorrupt) as caught:
                rlds2buf.load_buffer(saved, **kwargs)
            assert path.stat().st_size == keep
            assert path.name in str(caught.value)
        path.write_bytes(whole)
    content(saved)


def test_flipped_bytes_of_columns(saved: Path) -> None:
    before = content(saved)
    for path in files_of(saved):
        if path.suffix != ".npy":
            continue
        whole = path.read_bytes()
        start = len(whole) - np.load(path).nbytes
        for position in [*range(0, start, 7), start, (start + len(whole)) // 2, len(whole) - 1]:
            if position >= len(whole):
                continue
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            path.write_bytes(damaged)
            if position >= start:
                with pytest.raises(SnapshotCorrupt, match=path.name.replace(".", r"\.")):
                    rlds2buf.load_buffer(saved)
            else:  # padding of the header may change without effect
                try:
                    after = content(saved)
                except SnapshotCorrupt:
                    pass
                else:
                    assert_same_nest(after, before, f"{path.name} byte {position}")
        path.write_bytes(whole)


def test_columns_swapped(saved: Path) -> None:
    columns = [path for path in files_of(saved) if path.suffix == ".npy"]
    by_size: dict[int, list[Path]] = {}
    for path in columns:
        by_size.setdefault(path.stat().st_size, []).append(path)
    pair = next(
        group for group in by_size.values() if len(group) > 1 and group[0].read_bytes() != group[1].read_bytes()
    )
    one, two = pair[0].read_bytes(), pair[1].read_bytes()
    pair[0].write_bytes(two)
    pair[1].write_bytes(one)
    with pytest.raises(SnapshotCorrupt):
        rlds2buf.load_buffer(saved)


def test_columns_that_hold_pickles_are_not_opened(saved: Path) -> None:
    path = next(path for path in files_of(saved) if path.suffix == ".npy")
    np.save(path, np.array([{"a": 1}] * 20, object), allow_pickle=True)
    with pytest.raises(SnapshotCorrupt):
        rlds2buf.load_buffer(saved)


@pytest.mark.parametrize("length", [1, 17])
def test_a_state_dict_that_is_not_whole(length: int) -> None:
    buffer = busy()
    state = buffer.state_dict()
    before = buffer.all()._asdict()
    for name in list(state):
        broken = {key: value for key, value in state.items() if key != name}
        with pytest.raises(SnapshotError):
            buffer.load_state_dict(broken)
        assert_same_nest(buffer.all()._asdict(), before)
    for name in state["arrays"]:
        for arrays in (
            {key: value for key, value in state["arrays"].items() if key != name},
            state["arrays"] | {name: state["arrays"][name][:length]},
        ):
            other = busy()
            try:
                other.load_state_dict({**state, "arrays": arrays})
            except SnapshotError:
                assert_same_nest(other.all()._asdict(), before)
                other.check_valid()
            else:  # something that can be made again from the rest
                other.check_valid()
                assert_same_nest(other.all()._asdict(), before)


# -- a buffer whose columns are files -----------------------------------------------------------


def test_own_folder_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    buffer = rlds2buf.make_circular(SPEC, 20, seed=1, directory=folder)
    twin = ListReplay(20)
    for i in range(5):
        buffer.add(episode(100 * i, 6), source_id=i)
        buffer.add([transition(100 * i + 50)], source_id=7)
        twin.add_episode(episode(100 * i, 6), i)
        twin.add_transitions([transition(100 * i + 50)], 7)
    buffer.save()
    drawn = buffer.sample(9).info.key.tolist()
    del buffer
    again = rlds2buf.load_buffer(folder, writable=True)
    assert again.sample(9).info.key.tolist() == drawn
    assert_transitions(again.get(again.keys(), n_step=3), twin, twin.keys(), 3)
    for i in range(5, 9):
        again.add(episode(100 * i, 6), source_id=i)
        again.add([transition(100 * i + 50)], source_id=7)
        twin.add_episode(episode(100 * i, 6), i)
        twin.add_transitions([transition(100 * i + 50)], 7)
        again.check_valid()
    again.resize(31)
    twin.resize(31)
    again.add([transition(7000 + i) for i in range(13)])
    twin.add_transitions([transition(7000 + i) for i in range(13)])
    again.save()
    for loaded in (again, rlds2buf.load_buffer(folder), rlds2buf.load_buffer(folder, writable=True)):
        loaded.check_valid()
        assert_transitions(loaded.get(loaded.keys(), n_step=3), twin, twin.keys(), 3)


def test_own_folder_changed_after_its_save_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    buffer = rlds2buf.make_circular(SPEC, 20, seed=1, directory=folder)
    with pytest.raises(SnapshotCorrupt):
        rlds2buf.load_buffer(folder)  # never saved
    for change in (
        lambda: buffer.add(episode(0, 6)),
        lambda: buffer.add(transition(3)),
        lambda: buffer.resize(15),
        lambda: buffer.clear(),
        lambda: buffer.load_state_dict(buffer.state_dict()),
    ):
        buffer.save()
        rlds2buf.load_buffer(folder)
        change()
        with pytest.raises(SnapshotCorrupt):
            rlds2buf.load_buffer(folder)


def test_own_folder_is_a_copy_elsewhere(tmp_path: Path) -> None:
    buffer = rlds2buf.make_circular(SPEC, 20, seed=1, directory=tmp_path / "live")
    buffer.add(episode(0, 6))
    before = buffer.all()._asdict()
    buffer.save(tmp_path / "copy")
    buffer.add(episode(50, 18))
    assert_same_nest(rlds2buf.load_buffer(tmp_path / "copy").all()._asdict(), before)


def test_own_folder_given_as_path_leaves_the_buffer_usable(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    buffer = rlds2buf.make_circular(SPEC, 20, seed=1, directory=folder)
    buffer.add(episode(0, 6))
    buffer.save()
    with pytest.raises(SnapshotExists):
        buffer.save(folder)
    buffer.save(folder, overwrite=True)
    buffer.add(episode(50, 9))
    buffer.save()
    for loaded in (buffer, rlds2buf.load_buffer(folder)):
        assert loaded.all().observation["count"].tolist() == [*range(5), *range(50, 58)]


def test_no_folder_of_its_own() -> None:
    with pytest.raises(ValueError, match="path"):
        busy().save()


# -- writing episode by episode -----------------------------------------------------------------


def test_writer_gives_what_a_buffer_of_the_same_episodes_gives(tmp_path: Path) -> None:
    episodes = [episode(100 * i, 1 + (5 * i) % 9, ["terminated", "truncated", "open"][i % 3]) for i in range(12)]
    writer = SnapshotWriter(tmp_path / "saved", SPEC, provenance={"from": "here"})
    assert [writer.write(ep) for ep in episodes] == [len(ep) - 1 for ep in episodes]
    assert writer.episodes == 12
    assert not (tmp_path / "saved").exists()
    writer.commit()
    loaded = rlds2buf.load_buffer(tmp_path / "saved", seed=0)
    buffer = rlds2buf.make_circular(SPEC, sum(len(ep) for ep in episodes), seed=0)
    for ep in episodes:
        buffer.add(ep)
    assert loaded.capacity == buffer.capacity and loaded.provenance["from"] == "here"
    assert_same_nest(loaded.all()._asdict(), buffer.all()._asdict())
    assert loaded.sample(9).info.key.tolist() == buffer.sample(9).info.key.tolist()
    loaded.check_valid()
    loaded.resize(100)
    loaded.add(transition(5))
    assert len(loaded) == len(buffer) + 1


def test_writer_that_gives_up_leaves_nothing(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path / "saved", SPEC)
    writer.write(episode(0, 5))
    with pytest.raises(SpecMismatch):
        writer.write(episode(0, 5).replace(action=np.zeros(5)))
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_target(tmp_path: Path) -> None:
    first = SnapshotWriter(tmp_path / "saved", SPEC)
    with pytest.raises(SnapshotExists, match="another"):
        SnapshotWriter(tmp_path / "saved", SPEC)
    first.write(episode(0, 5))
    first.commit()
    assert len(rlds2buf.load_buffer(tmp_path / "saved")) == 4


def test_resuming_with_other_options_is_refused(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path / "saved", SPEC, provenance={"split": "train"})
    writer.write(episode(0, 5))
    writer.checkpoint()
    writer.abort(keep=True)
    with pytest.raises(SnapshotError, match="options"):
        SnapshotWriter(tmp_path / "saved", SPEC, provenance={"split": "test"}, resume=True)
