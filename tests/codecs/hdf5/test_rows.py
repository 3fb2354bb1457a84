"""Reading rows of HDF5 datasets, with and without the library."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import SourceFormatError
from rlds2buf.codecs.hdf5 import rows
from rlds2buf.codecs.hdf5.reading import open_hdf5
from rlds2buf.codecs.hdf5.rows import LibraryRows, RawRows, native_dtype, rows_of

DATA = np.arange(5000 * 3, dtype=np.float32).reshape(5000, 3)


def make(path: Path, data: Any = DATA, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, **options)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rows")
    return {
        "plain": make(folder / "plain"),
        "chunked": make(folder / "chunked", chunks=(77, 2)),
        "gzip": make(folder / "gzip", chunks=(1000, 3), compression="gzip"),
        "big-endian": make(folder / "big-endian", DATA.astype(">f4")),
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_blocks_that_go_forward(files: dict[str, Path], data: st.DataObject) -> None:
    """With gaps between them, and rows picked out of them, as an episode source asks for them."""
    path = files[data.draw(st.sampled_from(sorted(files)), "file")]
    start = data.draw(st.integers(0, 4000), "start")
    near = data.draw(st.sampled_from([0, 100, 1 << 14]), "near")
    with open_hdf5(path) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_NEAR", near)
        reader = rows_of(file, file.get("x"))
        assert reader.shape == (3,) and reader.dtype == np.float32 and reader.count == 5000
        for length, gap in data.draw(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 9)), max_size=4), "blocks"):
            if start + length > 5000:
                break
            out = np.full((length, 3), -1, np.float32)
            reader.fill(out, start)
            np.testing.assert_array_equal(out, DATA[start : start + length])
            some = np.unique(np.linspace(start, max(start, start + length - 1), 5).astype(np.int64))
            np.testing.assert_array_equal(reader.at(some), DATA[some])
            start += length + gap


def test_no_rows(files: dict[str, Path]) -> None:
    for path in files.values():
        with open_hdf5(path) as file:
            reader = rows_of(file, file.get("x"))
            assert reader.at(np.empty(0, np.int64)).shape == (0, 3)
            reader.fill(np.empty((0, 3), np.float32), 7)


def test_a_short_read_goes_on(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives one for more than 2 GiB; here for more than a few bytes."""
    whole = os.preadv

    def few(descriptor: int, parts: list[Any], at: int) -> int:
        return whole(descriptor, [memoryview(parts[0]).cast("B")[:1000]], at)

    with open_hdf5(files["plain"]) as file:
        reader = rows_of(file, file.get("x"))
        monkeypatch.setattr(os, "preadv", few)
        out = np.zeros((5000, 3), np.float32)
        reader.fill(out, 0)
        np.testing.assert_array_equal(out, DATA)
        np.testing.assert_array_equal(reader.at(np.array([3, 4999])), DATA[[3, 4999]])


@pytest.mark.parametrize("kind", ["plain", "chunked", "gzip", "big-endian"])
@pytest.mark.parametrize("how", ["fill", "at"])
def test_a_file_that_becomes_shorter(files: dict[str, Path], tmp_path: Path, kind: str, how: str) -> None:
    """The library would read zeros."""
    path = Path(shutil.copy(files[kind], tmp_path / "a"))
    with open_hdf5(path) as file:
        reader = rows_of(file, file.get("x"))
        out = np.full((10, 3), -1, np.float32)
        reader.fill(out, 0)
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(SourceFormatError, match=r"shorter while it was read|can't be read"):
            if how == "at":
                reader.at(np.array([4990, 4999]))
            else:
                reader.fill(out, 4990)


def test_a_file_that_is_shorter_already(files: dict[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copy(files["plain"], tmp_path / "a"))
    with open_hdf5(path) as file:
        os.truncate(path, 4000)
        with pytest.raises(SourceFormatError, match="cut short"):
            rows_of(file, file.get("x"))


def test_a_chunk_is_read_once(tmp_path: Path) -> None:
    """Small steps through large chunks ask the library for whole chunks, each once."""
    path = make(tmp_path / "a", chunks=(1000, 3), compression="gzip")
    with open_hdf5(path) as file:
        asked: list[tuple[int, int]] = []

        class Counting(LibraryRows):
            def _load(self, start: int, stop: int) -> np.ndarray:
                asked.append((start, stop))
                return super()._load(start, stop)

        reader = Counting(file, file.get("x"))
        out = np.zeros((70, 3), np.float32)
        for start in range(0, 4970, 70):
            reader.fill(out, start)
            np.testing.assert_array_equal(out, DATA[start : start + 70])
    assert asked == [(i, i + 1000) for i in range(0, 5000, 1000)]


@pytest.mark.parametrize(
    ("data", "options", "raw"),
    [
        (DATA, {}, True),
        (DATA.astype("i8"), {}, True),
        (DATA.astype("u1"), {}, True),
        (DATA.astype("f2"), {}, True),
        (DATA > 3, {}, False),
        (DATA.astype(">f8"), {}, False),
        (DATA, {"chunks": True}, False),
        (DATA, {"chunks": True, "compression": "lzf"}, False),
        (DATA[:0], {}, False),
        (np.array([b"a", b"bc"]), {}, False),
        (["a", "bc"], {"dtype": h5py.string_dtype()}, False),
    ],
)
def test_which_reader(tmp_path: Path, data: Any, options: dict[str, Any], raw: bool) -> None:
    path = make(tmp_path / "a", data, **options)
    with open_hdf5(path) as file:
        reader = rows_of(file, file.get("x"))
        assert isinstance(reader, RawRows if raw else LibraryRows)
        out = np.empty((len(data), *reader.shape), reader.dtype)
        reader.fill(out, 0)
    if isinstance(data, np.ndarray) and data.dtype.kind != "S":
        np.testing.assert_array_equal(out, data)
        assert out.dtype.isnative
    else:
        assert out.tolist() == [b"a", b"bc"]


def test_rows_that_lie_in_other_files(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a", "w") as file:
        file.create_dataset("x", data=DATA, external=str(tmp_path / "bytes"))
    layout = h5py.VirtualLayout((5000, 3), np.float32)
    layout[:] = h5py.VirtualSource(make(tmp_path / "b"), "x", (5000, 3))
    with h5py.File(tmp_path / "c", "w") as file:
        file.create_virtual_dataset("x", layout)
    for name in "ac":
        with open_hdf5(tmp_path / name) as file:
            reader = rows_of(file, file.get("x"))
            assert isinstance(reader, LibraryRows)
            np.testing.assert_array_equal(reader.at(np.array([0, 4999])), DATA[[0, 4999]])


def test_squeeze(tmp_path: Path) -> None:
    path = make(tmp_path / "a", DATA[:, :1])
    with open_hdf5(path) as file:
        for reader in (rows_of(file, file.get("x"), squeeze=True), LibraryRows(file, file.get("x"), squeeze=True)):
            assert reader.shape == ()
            np.testing.assert_array_equal(reader.at(np.array([1, 2])), DATA[1:3, 0])


@pytest.mark.parametrize("dtype", [[("a", "f4")], h5py.vlen_dtype(np.int32), h5py.ref_dtype])
def test_what_is_no_column(tmp_path: Path, dtype: Any) -> None:
    with h5py.File(tmp_path / "a", "w") as file:
        file.create_dataset("x", (3,), dtype=dtype)
        with pytest.raises(SourceFormatError, match="no column of steps"):
            native_dtype(file["x"])
