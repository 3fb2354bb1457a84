"""Files and options that other libraries choke on: one sentence and an exit code of ours, never an error of theirs."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds2buf import SourceFormatError, open_source
from rlds2buf.codecs.message_pack import unpack
from rlds2buf.core.dtypes import parse_dtype
from rlds2buf.core.json_text import parse_json
from tests.cli.run import run
from tests.data import needed
from tests.formats.minari.folder import columns as minari_columns
from tests.formats.minari.folder import write as write_minari
from tests.formats.step_log.files import write as write_log

DEEP = "[" * 100_000
BOX: dict[str, Any] = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1, -1], "high": [1, 1]}
STRANGE_TYPES = [
    "f4,(",
    "f4,i4",
    "(2,3)f4",
    "<U4294967295",
    "S9999999999",
    "float33",
    "",
    " f4",
    "f4\n",
    "O,",
    None,
    4,
    [],
]


def npy(descr: str, data: bytes = b"", *, header: str | None = None) -> bytes:
    text = (header or f"{{'descr': {descr}, 'fortran_order': False, 'shape': (4,), }}").encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize("name", STRANGE_TYPES)
def test_a_type_is_one_name(name: Any) -> None:
    with pytest.raises(ValueError, match="is no numpy type"):
        parse_dtype(name)


@pytest.mark.parametrize("dtype", ["f4", ">i8", "|u1", "?", "U7", "S3", "M8[ns]", "float16", "complex64", "longdouble"])
def test_the_types_of_numpy_are_known(dtype: str) -> None:
    assert parse_dtype(dtype) == np.dtype(dtype)
    assert parse_dtype(np.dtype(dtype).str) == np.dtype(dtype)


@pytest.mark.parametrize(
    "header",
    [
        npy("", header="(" * 5000),
        npy("", header="-" * 9000 + "1"),
        npy("'<U4294967295'"),
        npy("'f4,('"),
        npy("'<f4'", header="{'descr': '<f4', 'fortran_order': 0, 'shape': (4,)}"),
        npy("'<f4'", header="{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}"),
        npy("'<f4'", header="{'descr': '<f4', 'fortran_order': False, 'shape': 4}"),
        npy("'<f4'", header="__import__('os').system('false')"),
        npy("'<f4'")[:30],
        b"\x93NUMPY\x07\x00" + b"\x00" * 30,
    ],
)
def test_a_damaged_header_of_an_array(capsys: pytest.CaptureFixture[str], tmp_path: Path, header: bytes) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "observation.npy").write_bytes(header + bytes(64))
    np.save(folder / "action.npy", np.zeros(4))
    found = run(capsys, "inspect", folder)
    assert found.code == 3 and "observation.npy" in found.err


def test_headers_that_numpy_writes_are_read(tmp_path: Path) -> None:
    structure = np.zeros(4, [("a", "f4"), ("b", "i4")])
    held = {
        "observation": np.asfortranarray(np.arange(8.0).reshape(4, 2)),
        "odd": structure,
        "note": np.array(["a"] * 4),
    }
    np.savez(tmp_path / "log.npz", **held, action=np.zeros(4), terminated=np.arange(4) == 3)
    (episode,) = open_source(tmp_path / "log.npz")
    np.testing.assert_array_equal(episode.observation[:4], held["observation"])
    old = npy("", np.arange(4.0).tobytes(), header="{'descr': '<f8', 'fortran_order': False, 'shape': (4L,), }")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "observation.npy").write_bytes(old)  # as numpy wrote it under Python 2
    np.save(tmp_path / "old" / "action.npy", np.zeros(4))
    np.save(tmp_path / "old" / "terminated.npy", np.arange(4) == 3)
    (episode,) = open_source(tmp_path / "old")
    assert episode.observation[:4].tolist() == [0, 1, 2, 3]


def minari(folder: Path, **metadata: Any) -> Path:
    return write_minari(folder / "data", [minari_columns(4)], **metadata).parent


@pytest.mark.parametrize("change", [{"dtype": dtype} for dtype in STRANGE_TYPES] + [{"shape": "ab"}, {"shape": [-2]}])
def test_a_space_of_minari_with_a_strange_type(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, Any]
) -> None:
    path = minari(tmp_path, observation_space=json.dumps(BOX | change))
    found = run(capsys, "inspect", path)
    assert found.code == 3 and "observation_space" in found.err and "metadata.json" in found.err


def test_json_nested_without_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = minari(tmp_path)
    for text in (DEEP, '{"a":' * 500 + "1" + "}" * 500, json.dumps({"env_spec": DEEP, "observation_space": DEEP})):
        (path / "data/metadata.json").write_text(text)
        found = run(capsys, "inspect", path)
        assert found.code == 3 and "metadata.json" in found.err
    assert parse_json('{"a":' * 50 + "[NaN]" + "}" * 50)


@pytest.mark.parametrize("depth", [40, 900, 100_000])
def test_a_line_of_json_nested_without_end(capsys: pytest.CaptureFixture[str], tmp_path: Path, depth: int) -> None:
    value = '{"a":' * depth + "1" + "}" * depth
    (tmp_path / "log.jsonl").write_text(f'{{"observation": {value}, "terminated": true}}\n')
    found = run(capsys, "inspect", tmp_path / "log.jsonl")
    assert found.code == 3 and "line 1" in found.err


@pytest.mark.parametrize("kind", ["array", "named type"])
def test_an_episode_of_minari_that_is_no_group(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str) -> None:
    path = write_minari(tmp_path / "data", [minari_columns(4), minari_columns(4)]).parent
    with h5py.File(path / "data/main_data.hdf5", "a") as file:
        del file["episode_1"]
        file["episode_1"] = np.zeros(3) if kind == "array" else np.dtype("f8")
    found = run(capsys, "convert", path, tmp_path / "out")
    assert found.code == 1 and "episode 1" in found.err and "not a group" in found.err
    assert run(capsys, "convert", path, tmp_path / "out", "--on-invalid", "skip").code == 0


def test_infos_of_minari_that_are_no_group(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_minari(tmp_path / "data", [minari_columns(4, infos=np.zeros(5))]).parent
    found = run(capsys, "convert", path, tmp_path / "out")
    assert found.code == 1 and "infos" in found.err
    assert run(capsys, "convert", path, tmp_path / "out", "-O", "infos=false").code == 0


def test_an_option_of_minari_beside_a_value_of_its_group(tmp_path: Path) -> None:
    attributes = {"options": 3, "options/level": 4, "seed/a/b": 5}
    path = write_minari(tmp_path / "data", [minari_columns(4, attrs=attributes)]).parent
    (episode,) = open_source(path)
    assert episode.metadata == {"options": 3, "options/level": 4, "seed": {"a": {"b": 5}}} | {
        key: value for key, value in episode.metadata.items() if key not in ("options", "options/level", "seed")
    }


@pytest.mark.parametrize("dtype", ["f4,(", "<U4294967295", "O"])
def test_a_strange_type_in_messagepack(dtype: str) -> None:
    msgpack = needed("msgpack")
    array = {b"nd": True, b"type": dtype.encode(), b"kind": b"", b"shape": [1], b"data": bytes(4)}
    with pytest.raises(SourceFormatError):
        unpack(msgpack.packb(array))


def test_a_strange_type_to_cast_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    write_log(log, {"episode": [0, 0], "observation": [1, 2], "action": [1, 2], "terminated": [False, True]})
    found = run(capsys, "inspect", log, "--cast", "action=f4,(")
    assert found.code == 2 and "f4,(" in found.err
