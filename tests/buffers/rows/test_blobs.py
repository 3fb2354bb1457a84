"""Byte strings and arrays of varying shape: saved, loaded, gone on with, written in a stream; and damaged."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import rlds2buf
from rlds2buf import Episode, SnapshotCorrupt, SnapshotTooNew, SpecMismatch
from rlds2buf.buffers.disk import manifest as manifests
from rlds2buf.buffers.disk.snapshot import SnapshotWriter
from rlds2buf.buffers.rows import blob_segments as live_blobs
from rlds2buf.buffers.rows import vocabulary
from rlds2buf.buffers.rows.blob_segments import LiveBlobs
from rlds2buf.core.ragged import pack_rows, unpack_rows
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.files.blob_file import SavedBlobs, joined_bytes
from tests.buffers.compare import assert_same_nest
from tests.buffers.numbered_blobs import SPEC, episode, transition

RAW = {"decode": False}
FORMAT1 = Path(__file__).parent / "format1"


def objects(values: list[Any]) -> np.ndarray:
    out = np.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out


def assert_same_rows(got: Any, expected: Any) -> None:
    assert_same_nest(got.observation, expected.observation, "observation")
    assert_same_nest(got.next_observation, expected.next_observation, "next_observation")
    assert_same_nest(got.extras, expected.extras, "extras")
    assert_same_nest(got.action, expected.action, "action")


class TestArraysOfVaryingShape:
    def test_they_come_as_they_went_in(self) -> None:
        spec = StepSpec(
            observation={"cloud": FieldSpec((None, 3), np.float32), "n": FieldSpec((), np.int64)},
            action=FieldSpec((2, None), np.int16),
            extras={"names": FieldSpec((None,), np.dtype(object))},
        )
        cloud = objects([np.full((i, 3), i, np.float32) for i in range(4)])
        actions = np.arange(24, dtype=np.int16).reshape(4, 2, 3)  # all of one length: a plain column
        names = objects([objects([b"a"] * i) for i in range(4)])
        ep = Episode(
            observation={"cloud": cloud, "n": np.arange(4)},
            action=actions,
            reward=np.zeros(4, np.float32),
            discount=np.ones(4, np.float32),
            extras={"names": names},
        )
        buffer = rlds2buf.make_circular(spec, 10, seed=0)
        buffer.add(ep)
        data = buffer.all()
        assert data.observation["cloud"].shape == data.action.shape == (3,)
        for i in range(3):
            np.testing.assert_array_equal(data.observation["cloud"][i], cloud[i])
            np.testing.assert_array_equal(data.next_observation["cloud"][i], cloud[i + 1])
            np.testing.assert_array_equal(data.action[i], actions[i])
            assert data.action[i].dtype == np.int16 and data.observation["cloud"][i].dtype == np.float32
            assert data.extras["names"][i].tolist() == [b"a"] * i
        again = rlds2buf.make_circular(spec, 10, seed=0)
        again.add(data)
        assert_same_rows(again.all(), data)
        cloud[0] = np.ones((1, 3), np.float32)
        assert data.observation["cloud"][0].shape == (0, 3)  # what was stored is the buffer's own

    def test_parts_that_differ_among_themselves(self) -> None:
        field = FieldSpec((2, None), np.float64)
        value = objects([np.arange(3.0), np.arange(1.0)])
        ((got,),) = (unpack_rows(pack_rows([value], field, ("action",)), field),)
        assert [part.tolist() for part in got] == [[0.0, 1.0, 2.0], [0.0]]

    @pytest.mark.parametrize(
        "value",
        [
            np.zeros(3, np.float32),
            np.zeros((2, 2), np.float32),
            np.zeros((2, 3), complex),
            [[1, 2, 3], [4]],
            "abc",
            None,
        ],
        ids=["axes", "width", "dtype", "ragged", "text", "nothing"],
    )
    def test_what_does_not_fit_is_refused(self, value: Any) -> None:
        field = FieldSpec((None, 3), np.float32)
        with pytest.raises(SpecMismatch) as caught:
            pack_rows([np.zeros((1, 3), np.float32), value], field, ("observation", "cloud"))
        assert (caught.value.path, caught.value.step) == ("observation/cloud", 1)

    @given(st.data())
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    def test_damage_is_a_value_error(self, data: Any) -> None:
        field = FieldSpec((None, 2), data.draw(st.sampled_from([np.dtype(np.float32), np.dtype(object)])))
        value = objects([b"ab", b"", b"c", b"de"]).reshape(2, 2) if field.is_string else np.ones((3, 2), np.float32)
        blob = bytearray(pack_rows([value], field, ())[0])
        for _ in range(data.draw(st.integers(1, 4))):
            blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
        cut = bytes(blob[: data.draw(st.integers(1, len(blob)))])
        try:
            (got,) = unpack_rows(objects([cut]), field)
        except ValueError:
            return
        assert got.size <= 8 * len(cut)


class TestSaved:
    @pytest.fixture
    def buffer(self) -> Any:
        buffer = rlds2buf.make_prioritized(SPEC, 30, seed=0, view=RAW)
        for start in range(0, 40, 8):
            buffer.add(episode(start, 8), source_id=start % 3)
        buffer.add([transition(i) for i in range(100, 110)], source_id=2)
        return buffer

    def test_a_saved_buffer_is_mapped_and_the_same(self, buffer: Any, tmp_path: Path) -> None:
        buffer.save(tmp_path / "saved")
        manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
        assert manifest["version"] == 2 <= manifests.VERSION
        assert not any(entry["dtype"] == "|O" for entry in manifest["columns"])
        loaded = rlds2buf.load_buffer(tmp_path / "saved", verify=True)
        assert_same_rows(loaded.all(), buffer.all())
        assert loaded.sample(8).info.key.tolist() == buffer.sample(8).info.key.tolist()
        assert_same_rows(loaded.get(loaded.keys(), n_step=3), buffer.get(buffer.keys(), n_step=3))
        loaded.save(tmp_path / "again")
        assert_same_rows(rlds2buf.load_buffer(tmp_path / "again").all(), buffer.all())
        loaded.resize(20)
        buffer.resize(20)
        assert_same_rows(loaded.all(), buffer.all())
        loaded.clear()
        loaded.add(episode(0, 4))
        assert len(loaded) == 3

    def test_an_older_reader_is_told(self, buffer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        buffer.save(tmp_path / "saved")
        monkeypatch.setattr(manifests, "VERSION", 1)
        with pytest.raises(SnapshotTooNew):
            rlds2buf.load_buffer(tmp_path / "saved")

    def test_what_needs_no_new_format_is_written_in_the_old_one(self, tmp_path: Path) -> None:
        ep = Episode(observation=objects([b"a", b"b"]), action=np.zeros(2), reward=np.zeros(2))
        buffer = rlds2buf.make_circular(rlds2buf.spec_of(ep), 5)
        buffer.add(ep)
        buffer.save(tmp_path / "saved")
        rlds2buf.convert([ep], tmp_path / "written")
        for name in ("saved", "written"):
            assert json.loads((tmp_path / name / "manifest.json").read_text())["version"] == 1

    def test_any_flipped_byte_or_cut_is_told(self, buffer: Any, tmp_path: Path) -> None:
        buffer.save(tmp_path / "saved")
        files = sorted((tmp_path / "saved").rglob("*.bytes.npy")) + sorted((tmp_path / "saved").rglob("*.ends.npy"))
        assert len(files) >= 12
        for file in files:
            whole = file.read_bytes()
            for place in (len(whole) - 1, 130):
                file.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
                with pytest.raises(SnapshotCorrupt):
                    rlds2buf.load_buffer(tmp_path / "saved")
            file.write_bytes(whole[:-3])
            with pytest.raises(SnapshotCorrupt):
                rlds2buf.load_buffer(tmp_path / "saved", verify=False)
            file.write_bytes(whole)

    @pytest.mark.parametrize("name", ["converted", "prioritized"])
    def test_format_1_is_read(self, name: str, tmp_path: Path) -> None:
        loaded = rlds2buf.load_buffer(FORMAT1 / name, verify=True)
        data = loaded.all()
        for here, texts in ((data.observation, "observation"), (data.next_observation, "next_observation")):
            for number, text in zip(here["n"].tolist(), here["text"].tolist(), strict=True):
                explicit = {"observation": b"explicit", "next_observation": b"next %d" % (number - 100)}
                logged = b"pick" if number % 2 else "place ä".encode()
                assert text == (explicit[texts] if number >= 30 else logged)
        assert len(loaded) == {"converted": 5, "prioritized": 17}[name]
        shutil.copytree(FORMAT1 / name, tmp_path / name)
        live = rlds2buf.load_buffer(tmp_path / name, writable=True)
        live.add(live.all())
        live.save()
        assert len(rlds2buf.load_buffer(tmp_path / name)) == len(live)


class TestManyStrings:
    SPEC = StepSpec(observation=FieldSpec((), np.dtype(object)), action=FieldSpec((), np.int64))

    def episode(self, start: int, rows: int) -> Episode:
        number = np.arange(start, start + rows)
        return Episode(
            observation=objects([b"text %d" % i for i in number]),
            action=number,
            reward=np.zeros(rows, np.float32),
            discount=np.ones(rows, np.float32),
        )

    def check(self, data: Any) -> None:
        assert data.observation.tolist() == [b"text %d" % i for i in data.action]
        assert data.next_observation.tolist() == [b"text %d" % (i + 1) for i in data.action]

    def test_texts_that_left_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vocabulary, "MAX_STRINGS", 100)
        buffer = rlds2buf.make_circular(self.SPEC, 200, seed=0)
        for start in range(0, 20_000, 50):
            buffer.add(self.episode(start, 50))
        self.check(buffer.all())
        assert buffer.stats()["bytes"] < 200 * 150

    @pytest.mark.parametrize("limit", [100, 1 << 16], ids=["not-remembered", "remembered"])
    def test_manifests_hold_no_long_lists(self, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vocabulary, "MAX_STRINGS", limit)
        episodes = [self.episode(start, 50) for start in range(0, 10_000, 50)]
        rlds2buf.convert(episodes, tmp_path / "written")
        buffer = rlds2buf.make_circular(self.SPEC, 20_000, seed=0)
        buffer.add(episodes)
        buffer.save(tmp_path / "saved")
        live = rlds2buf.make_circular(self.SPEC, 20_000, seed=0, directory=tmp_path / "live")
        live.add(episodes)
        live.save()
        again = rlds2buf.make_circular(self.SPEC, 20_000)
        again.load_state_dict(buffer.state_dict())
        self.check(again.all())
        for name in ("written", "saved", "live"):
            assert (tmp_path / name / "manifest.json").stat().st_size < 5000
            loaded = rlds2buf.load_buffer(tmp_path / name)
            self.check(loaded.all())
            loaded.add(self.episode(50_000, 3))
            self.check(loaded.all())
            going_on = rlds2buf.load_buffer(tmp_path / name, writable=True)
            going_on.add(self.episode(60_000, 3))
            self.check(going_on.all())
            going_on.save()
            self.check(rlds2buf.load_buffer(tmp_path / name).all())

    def test_bytes_count_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vocabulary, "MAX_BYTES", 1000)
        buffer = rlds2buf.make_circular(self.SPEC, 60, seed=0)
        for start in range(0, 2000, 50):
            buffer.add(self.episode(start, 50))
        self.check(buffer.all())
        assert not buffer.engine.store.vocabularies


class TestInADirectory:
    def test_it_is_saved_loaded_and_gone_on_with(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live_blobs, "SEGMENT_BYTES", 500)
        path = tmp_path / "live"
        live = rlds2buf.make_circular(SPEC, 30, seed=0, view=RAW, directory=path)
        twin = rlds2buf.make_circular(SPEC, 30, seed=0, view=RAW)
        for start in range(0, 80, 8):
            for buffer in (live, twin):
                buffer.add(episode(start, 8))
                buffer.add(transition(1000 + start), source_id=1)
            assert_same_rows(live.all(), twin.all())
            live.save()
            assert_same_rows(rlds2buf.load_buffer(path).all(), twin.all())
            if start % 3 == 0:
                live = rlds2buf.load_buffer(path, writable=True)
        live.resize(50)
        twin.resize(50)
        for buffer in (live, twin):
            buffer.add(episode(200, 20))
        assert_same_rows(live.all(), twin.all())
        live.clear()
        live.add(episode(0, 3))
        live.save()
        assert sum(file.stat().st_size for file in path.rglob("*.bytes")) < 4000  # the newest segments stay
        assert len(rlds2buf.load_buffer(path)) == 2

    def test_rows_that_moved_leave_no_files_behind(self, tmp_path: Path) -> None:
        live = rlds2buf.make_circular(SPEC, 30, seed=0, view=RAW, directory=tmp_path / "live")
        live.add(episode(0, 30))
        expected = live.all()

        def file_bytes() -> int:
            return sum(file.stat().st_size for file in (tmp_path / "live").rglob("*.bytes"))

        once = file_bytes()
        for capacity in (40, 35, 60):
            live.resize(capacity)
            assert_same_rows(live.all(), expected)
            assert file_bytes() == once
        live.save()
        loaded = rlds2buf.load_buffer(tmp_path / "live")
        loaded.resize(50)  # into memory: the files are not this one's to remove
        assert file_bytes() == once
        assert_same_rows(rlds2buf.load_buffer(tmp_path / "live").all(), expected)

    def test_a_saved_buffer_goes_on_in_place(self, tmp_path: Path) -> None:
        writer = SnapshotWriter(tmp_path / "b", SPEC)
        for start in range(0, 40, 8):
            writer.write(episode(start, 8))
        writer.commit()
        before = rlds2buf.load_buffer(tmp_path / "b").all(decode=False)
        live = rlds2buf.load_buffer(tmp_path / "b", writable=True)
        assert_same_rows(live.all(decode=False), before)
        live.resize(60)
        live.add(episode(100, 30))
        live.save()
        loaded = rlds2buf.load_buffer(tmp_path / "b")
        assert_same_rows(loaded.all(decode=False), live.all(decode=False))
        live.add(episode(200, 5))
        with pytest.raises(SnapshotCorrupt, match="changed after"):
            rlds2buf.load_buffer(tmp_path / "b")

    def test_a_reservoir_tidies_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live_blobs, "SEGMENT_BYTES", 1000)
        buffer = rlds2buf.make_reservoir(SPEC, 20, seed=0, view=RAW, directory=tmp_path / "live")
        for start in range(0, 2000, 10):
            buffer.add(episode(start, 10))
        buffer.check_valid()
        data = buffer.all()
        for number, text in zip(data.observation["count"].tolist(), data.observation["text"].tolist(), strict=True):
            assert text == b"row %d" % (number // 3)
        column = buffer.engine.store.columns[buffer.engine.store.names.index("observation/picture")]
        assert isinstance(column, LiveBlobs)
        assert column.file_bytes <= 2 * column.nbytes + 3 * 1000

    def test_segments_elsewhere_are_not_touched(self, tmp_path: Path) -> None:
        live = rlds2buf.make_circular(SPEC, 30, seed=0, view=RAW, directory=tmp_path / "live")
        live.add(episode(0, 20))
        live.save()
        manifest = json.loads((tmp_path / "live" / "manifest.json").read_text())
        mine = tmp_path / "mine"
        mine.write_bytes(bytes(100))
        del manifest["checksum"]
        manifest["segments"]["observation/picture"].insert(0, ["../mine", 1 << 40, 100, 0])
        manifests.write_manifest(tmp_path / "live", manifest)
        with pytest.raises(SnapshotCorrupt, match="leads out of"):
            rlds2buf.load_buffer(tmp_path / "live", writable=True)
        assert mine.exists()

    @pytest.mark.parametrize("what", ["shorter", "missing", "places"])
    def test_damage(self, what: str, tmp_path: Path) -> None:
        live = rlds2buf.make_circular(SPEC, 30, seed=0, view=RAW, directory=tmp_path / "live")
        live.add(episode(0, 20))
        live.save()
        file = next((tmp_path / "live").rglob("*picture*.bytes"))
        if what == "shorter":
            file.write_bytes(file.read_bytes()[:-1])
        elif what == "missing":
            file.unlink()
        else:
            places = next((tmp_path / "live").rglob("*picture*places.npy"))
            data = bytearray(places.read_bytes())
            data[-17 * 30 + 7] = 0x7F
            places.write_bytes(bytes(data[: len(data) // 2]) + b"\x7f" * (len(data) - len(data) // 2))
        with pytest.raises(SnapshotCorrupt):
            rlds2buf.load_buffer(tmp_path / "live")


@given(st.data())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_strings_in_files_against_a_list(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """Random writes, releases and moves of a ring of strings; files stay within twice what is held."""
    folder = tmp_path_factory.mktemp("blobs")
    slots = data.draw(st.integers(1, 12))
    column = LiveBlobs(folder / "column", np.zeros((slots, 2), np.int64))
    twin = [b""] * slots
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_blobs, "SEGMENT_BYTES", 64)
        for _ in range(data.draw(st.integers(1, 40))):
            start = data.draw(st.integers(0, slots - 1))
            stop = data.draw(st.integers(start, slots))
            action = data.draw(st.sampled_from(["write", "write", "write", "release", "keep"]))
            if action == "write":
                sizes = data.draw(st.lists(st.integers(0, 40), min_size=stop - start, max_size=stop - start))
                values = [bytes([65 + size % 26]) * size for size in sizes]
                column[start:stop] = objects(values)
                twin[start:stop] = values
            elif action == "release":
                column[start:stop] = None
                twin[start:stop] = [b""] * (stop - start)
            else:
                kept = np.arange(start, stop)
                column.keep(kept)
                twin = twin[start:stop] + [b""] * (slots - (stop - start))
            assert column[np.arange(slots)].tolist() == twin
            held = sum(map(len, twin))
            assert sum(segment.live for segment in column.segments) == held
            assert column.file_bytes <= 2 * column.nbytes + 3 * 64 + 40 * slots
            on_disk = sum(file.stat().st_size for file in folder.iterdir())
            assert on_disk == column.file_bytes


def test_saved_strings_that_do_not_fit_together() -> None:
    data, ends = joined_bytes(objects([b"a", b"bc", b""]))
    assert SavedBlobs(data, ends)[:].tolist() == [b"a", b"bc", b""]
    for wrong in (ends + 1, ends - 2, ends[::-1].copy(), ends.astype(np.int32), ends[:1]):
        with pytest.raises(ValueError, match="byte strings"):
            SavedBlobs(data, wrong)


class TestWriter:
    def write(self, path: Path, stops: tuple[int, ...]) -> dict[str, bytes]:
        """Twelve episodes, given up and gone on with behind some of them."""
        position = 0
        for stop in (*stops, 12):
            writer = SnapshotWriter(path, SPEC, resume=True)
            assert writer.episodes == position
            while position < stop:
                writer.write(episode(position * 10, 10))
                position += 1
            writer.checkpoint()
            if stop < 12:
                writer.write(episode(9999, 7))  # what is behind the last checkpoint is written again
                writer.abort(keep=True)
        writer.commit()
        return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*.*")) if file.is_file()}

    @pytest.mark.parametrize("limit", [3, 1 << 16], ids=["texts-not-remembered", "texts-remembered"])
    def test_interrupted_it_writes_the_same_bytes(
        self, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vocabulary, "MAX_STRINGS", limit)
        monkeypatch.setattr("rlds2buf.buffers.disk.snapshot.MAX_STRINGS", limit)
        whole = self.write(tmp_path / "whole", ())
        assert self.write(tmp_path / "parts", (0, 1, 5, 11)) == whole
        loaded = rlds2buf.load_buffer(tmp_path / "parts")
        buffer = rlds2buf.make_circular(SPEC, 120)
        buffer.add([episode(i * 10, 10) for i in range(12)])
        assert_same_rows(loaded.all(decode=False), buffer.all(decode=False))


class TestWhatIsAskedOfLoad:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        buffer = rlds2buf.make_circular(SPEC, 30, seed=0, view=RAW)
        buffer.add(episode(0, 20))
        buffer.add([transition(50), transition(51, 1)], source_id=[1, 2])
        buffer.save(tmp_path / "saved")
        return tmp_path / "saved"

    def test_wrong_arguments_are_not_a_damaged_buffer(self, saved: Path, tmp_path: Path) -> None:
        with pytest.raises(TypeError):
            rlds2buf.load_buffer(saved, seed="x")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="non-negative"):
            rlds2buf.load_buffer(saved, seed=-1)
        for name in ("reward_fn", "policy_mapping", "nonsense"):
            with pytest.raises(TypeError, match=name):
                rlds2buf.load_buffer(saved, **{name: len})
        agents = rlds2buf.make_multi_agent({"a": rlds2buf.make_circular(SPEC, 20)})
        agents.add({"a": episode(0, 5)})
        agents.save(tmp_path / "agents")
        with pytest.raises(TypeError, match="reward_fn"):
            rlds2buf.load_buffer(tmp_path / "agents", reward_fn=len)

    @pytest.mark.parametrize(
        ("column", "change"),
        [
            ("sampler/starts", lambda rows: rows + 1000),
            ("sampler/starts", lambda rows: rows.astype(">u4")),
            ("observation/text", lambda rows: rows + 1000),
            ("observation/text", lambda rows: rows - 1000),
            ("flags", lambda rows: rows | 128),
            ("action", lambda rows: rows.astype(">i4")),
            ("observation/picture/ends", lambda rows: rows.astype(">i8")),
        ],
        ids=["starts", "starts-order", "texts", "texts-below", "links-missing", "order", "ends-order"],
    )
    def test_rows_that_lead_elsewhere_are_found_without_checksums(self, column: str, change: Any, saved: Path) -> None:
        manifest = json.loads((saved / "manifest.json").read_text())
        entry = next(entry for entry in manifest["columns"] if entry["name"] == column)
        file = saved / manifest["data"] / entry["file"]
        rows = change(np.load(file))
        np.save(file, rows)
        entry["dtype"] = rows.dtype.str
        del manifest["checksum"]
        manifests.write_manifest(saved, manifest)
        with pytest.raises(SnapshotCorrupt):
            rlds2buf.load_buffer(saved, verify=False)


def test_a_spec_of_other_fields_is_not_taken_for_this_one() -> None:
    plain = rlds2buf.make_circular(dataclasses.replace(SPEC, extras={}), 10)
    buffer = rlds2buf.make_circular(SPEC, 10)
    buffer.add(episode(0, 5))
    with pytest.raises(rlds2buf.SnapshotError):
        plain.load_state_dict(buffer.state_dict())


@pytest.mark.parametrize("limit", [3, 1 << 16], ids=["tables", "manifest"])
def test_a_saved_buffer_is_read_back_as_episodes(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MAX_STRINGS", limit)
    episodes = [episode(start, 9) for start in range(0, 45, 9)]
    writer = SnapshotWriter(tmp_path / "saved", SPEC)
    for ep in episodes:
        writer.write(ep)
    writer.commit()
    with rlds2buf.open_source(tmp_path / "saved", images="encoded") as source:
        assert source.spec.observation == SPEC.observation
        found = list(source)
    for got, expected in zip(found, episodes, strict=True):
        assert_same_nest(got.observation, expected.observation)
        assert_same_nest(got.extras, expected.extras)
    file = next((tmp_path / "saved").rglob("*picture.ends.npy"))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(rlds2buf.SourceFormatError):
        rlds2buf.open_source(tmp_path / "saved")
