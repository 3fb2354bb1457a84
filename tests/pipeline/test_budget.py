"""Small files that would cost gigabytes: refused before anything is allocated, whatever their format."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import LimitExceeded
from rlds2buf.codecs.images.claims import declared_size
from rlds2buf.codecs.tfrecord.frames import frame
from tests.data import needed
from tests.formats.reverb.messages import example
from tests.formats.rlds.folder import CORE, STEPS, episode, rlds, sequence, tensor, write_folder

MIB = 1 << 20


def optional(shape: list[int], dtype: str) -> dict[str, Any]:
    feature = tensor(shape, dtype)
    return {**feature, "tensor": {**feature["tensor"], "optional": True}}


def image(shape: list[int]) -> dict[str, Any]:
    dims = {"dimensions": [str(n) for n in shape]}
    return {"pythonClassName": f"{CORE}.image_feature.Image", "image": {"shape": dims, "dtype": "uint8"}}


def png(height: int, width: int) -> bytes:
    """A black picture."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG", compress_level=9)
    return file.getvalue()


def one_record(path: Path, features: Any, record: dict[str, tuple[str, list]]) -> None:
    write_folder(path / "1.0.0", {"train": [[record]]}, features)


def absent_tensor(path: Path) -> Any:
    one_record(path, rlds(STEPS, big=optional([10**9], "float32")), episode(0, 3))
    return path, {}


def zlib_value(path: Path) -> Any:
    value = zlib.compress(bytes(8 * MIB), 9)
    steps = {**STEPS, "extra": tensor([-1], "uint8", "zlib")}
    record = {**episode(0, 3), "steps/extra": ("bytes", [value] * 3)}
    one_record(path, rlds(steps), record)
    return path, {"max_bytes": 20 * MIB}


def zlib_value_of_known_size(path: Path) -> Any:
    value = zlib.compress(bytes(8 * MIB), 9)
    record = {**episode(0, 3), "big": ("bytes", [value])}
    one_record(path, rlds(STEPS, big=tensor([8 * MIB], "uint8", "zlib")), record)
    return path, {"max_bytes": 7 * MIB}


def pictures(path: Path) -> Any:
    steps = {**STEPS, "camera": image([2000, 2000, 3])}
    record = {**episode(0, 100), "steps/camera": ("bytes", [png(2000, 2000)] * 100)}
    one_record(path, rlds(steps), record)
    return path, {}


def pictures_of_any_size(path: Path) -> Any:
    steps = {**STEPS, "camera": {"pythonClassName": f"{CORE}.image_feature.Image", "image": {"dtype": "uint8"}}}
    record = {**episode(0, 100), "steps/camera": ("bytes", [png(2000, 2000)] * 100)}
    one_record(path, rlds(steps), record)
    return path, {}


def many_strings(path: Path) -> Any:
    words = sequence({"pythonClassName": f"{CORE}.text_feature.Text", "text": {}})
    one_record(path, rlds(STEPS, words=words), {**episode(0, 3), "words": ("bytes", [b""] * 200_000)})
    return path, {"max_objects": 100_000}


def small_numbers(path: Path) -> Any:
    """A byte each in the record, eight in memory."""
    steps = {**STEPS, "n": tensor([100_000], "int64")}
    record = {**episode(0, 3), "steps/n": ("int64", [1] * 300_000)}
    one_record(path, rlds(steps), record)
    return path, {"max_bytes": MIB}


def gzip_record(path: Path) -> Any:
    path.write_bytes(gzip.compress(frame(example({"a": ("bytes", [bytes(8 * MIB)]), "is_last": ("int64", [1])}))))
    return path, {"format": "tf-example", "features": {"observation": "a", "is_last": "is_last"}, "max_bytes": MIB}


def gzip_episode(path: Path) -> Any:
    """Records of one step, all of one episode."""
    record = frame(example({"a": ("bytes", [bytes(MIB // 2)]), "is_last": ("int64", [0])}))
    path.write_bytes(gzip.compress(record * 64))
    features = {"observation": "a", "is_last": "is_last"}
    return path, {"format": "tf-example", "features": features, "record": "step", "max_bytes": 16 * MIB}


def npz_row(path: Path) -> Any:
    path = path.with_suffix(".npz")
    np.savez_compressed(path, obs=np.zeros((2, 4 * MIB)), act=np.zeros(2), rew=np.zeros(2), timeouts=np.array([0, 1]))
    return path, {"max_bytes": 16 * MIB}


def npz_text(path: Path) -> Any:
    path = path.with_suffix(".npz")
    words = np.array(["x" * 4 * MIB, ""])
    np.savez_compressed(path, obs=words, act=np.zeros(2), rew=np.zeros(2), timeouts=np.array([0, 1]))
    return path, {"max_bytes": 8 * MIB}


def npz_columns_first(path: Path) -> Any:
    path = path.with_suffix(".npz")
    obs = np.asfortranarray(np.zeros((1000, 1000)))
    np.savez_compressed(path, obs=obs, act=np.zeros(1000), rew=np.zeros(1000), timeouts=np.arange(1000) % 10 == 9)
    return path, {"max_bytes": 4 * MIB}


def npz_episode(path: Path) -> Any:
    path = path.with_suffix(".npz")
    np.savez_compressed(
        path, obs=np.zeros((1000, 1000)), act=np.zeros(1000), rew=np.zeros(1000), timeouts=np.zeros(1000)
    )
    return path, {"max_bytes": 4 * MIB}


def npz_rows(path: Path) -> Any:
    path = path.with_suffix(".npz")
    count = 2_000_000
    columns = {name: np.zeros(count, np.uint8) for name in ("obs", "act", "rew", "timeouts")}
    np.savez_compressed(path, **columns)
    return path, {"max_bytes": 8 * MIB}


def parquet_row(path: Path) -> Any:
    pyarrow = needed("pyarrow")
    import pyarrow.parquet as parquet

    path = path.with_suffix(".parquet")
    width = 2 * MIB
    obs = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.zeros(2 * width)), width)
    flags = pyarrow.array([False, True])
    one = pyarrow.array([0.0, 0.0])
    parquet.write_table(pyarrow.table({"obs": obs, "act": one, "rew": one, "timeouts": flags}), path)
    return path, {"max_bytes": 8 * MIB}


def minari_table(path: Path) -> Any:
    pyarrow = needed("pyarrow")
    import pyarrow.parquet as parquet

    (path / "data" / "0").mkdir(parents=True)
    box = {"type": "Box", "dtype": "float64", "shape": [], "low": -1, "high": 1}
    told = {"data_format": "parquet", "total_episodes": 1, "observation_space": box, "action_space": box}
    (path / "data" / "metadata.json").write_text(json.dumps(told))
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    zeros = {name: np.zeros(2_000_000, bool if name.startswith("t") else float) for name in names}
    parquet.write_table(pyarrow.table(zeros), path / "data" / "0" / "0.parquet")
    return path, {"max_bytes": 16 * MIB}


def box(path: Path) -> Any:
    (path / "data").mkdir(parents=True)
    space = {"type": "Box", "dtype": "float32", "shape": [60_000, 60_000], "low": 0.0, "high": 1.0}
    told = {"data_format": "hdf5", "total_episodes": 0, "observation_space": space, "action_space": space}
    (path / "data" / "metadata.json").write_text(json.dumps(told))
    return path, {}


def box_of_limits(path: Path) -> Any:
    (path / "data").mkdir(parents=True)
    space = {"type": "Box", "dtype": "uint8", "shape": [2, 1 << 28], "low": [[0], [1]], "high": 9}
    told = {"data_format": "hdf5", "total_episodes": 0, "observation_space": space, "action_space": space}
    (path / "data" / "metadata.json").write_text(json.dumps(told))
    return path, {}


BOMBS = [
    absent_tensor, zlib_value, zlib_value_of_known_size, pictures, pictures_of_any_size, many_strings, small_numbers,
    gzip_record, gzip_episode, npz_row, npz_text, npz_columns_first, npz_episode, npz_rows, parquet_row, minari_table,
    box, box_of_limits,
]  # fmt: skip


@pytest.mark.parametrize("make", BOMBS)
def test_refused_with_the_limit_and_the_option(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    path, options = make(tmp_path / "a")
    option = "max_objects" if make in (many_strings, box_of_limits) else "max_bytes"
    with pytest.raises(LimitExceeded, match=rf"the limit is [\d,]+; {option}=\d+ \(--{option.replace('_', '-')}\)"):
        list(rlds2buf.open_source(path, **options))


@pytest.mark.parametrize(
    "make", [make for make in BOMBS if make not in (absent_tensor, pictures, pictures_of_any_size, box, box_of_limits)]
)
def test_read_where_the_limit_allows_it(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    path, options = make(tmp_path / "a")
    for name in ("max_bytes", "max_objects"):
        options.pop(name, None)
    assert list(rlds2buf.open_source(path, **options))


_LITTLE = """
import resource, sys
import rlds2buf, numpy, zlib
rlds2buf.open_source([[{"observation": 1.0}] * 2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    list(rlds2buf.open_source(sys.argv[1]))
except rlds2buf.LimitExceeded as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_nothing_is_allocated_before(tmp_path: Path) -> None:
    path, _ = absent_tensor(tmp_path / "a")
    done = subprocess.run([sys.executable, "-c", _LITTLE, str(path)], capture_output=True, text=True, timeout=120)
    assert int(done.stdout) * 1024 < 200 * MIB, done.stderr


def test_a_compressed_file_larger_than_the_limit_is_read_as_a_stream(tmp_path: Path) -> None:
    record = example({"a": ("float", [0.0] * 20_000), "is_last": ("int64", [0] * 199 + [1])})
    (tmp_path / "a").write_bytes(gzip.compress(frame(record) * 100))
    features = {"observation": {"key": "a", "shape": [100]}, "is_last": "is_last"}
    source = rlds2buf.open_source(tmp_path / "a", format="tf-example", features=features, max_bytes=MIB)
    assert sum(len(episode) for episode in source) == 20_000


def test_a_compressed_log_larger_than_the_limit_is_read_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    rows = 20_000
    np.savez_compressed(
        path, obs=np.zeros((rows, 100)), act=np.zeros(rows), rew=np.zeros(rows), timeouts=np.arange(rows) % 100 == 99
    )
    with zipfile.ZipFile(path) as archive:
        assert sum(member.file_size for member in archive.infolist()) > 15 * MIB
    source = rlds2buf.open_source(path, max_bytes=MIB)
    assert len(list(source)) == 200
    assert sum(len(batch.rows) for batch in source.batches()) == rows


def test_pictures_as_they_usually_are_have_no_limit(tmp_path: Path) -> None:
    """A long episode of honest pictures may take gigabytes; those of a bomb are far smaller than their pixels."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG")
    steps = {**STEPS, "camera": image([64, 64, 3])}
    record = {**episode(0, 50), "steps/camera": ("bytes", [file.getvalue()] * 50)}
    one_record(tmp_path / "a", rlds(steps), record)
    (found,) = rlds2buf.open_source(tmp_path / "a", max_bytes=MIB // 2)
    assert found.extras["camera"].nbytes == 50 * 64 * 64 * 3 > MIB // 2


@pytest.mark.parametrize(("height", "width"), [(1, 1), (33, 65), (300, 7)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "progressive"])
def test_the_size_that_a_picture_declares(height: int, width: int, kind: str) -> None:
    from PIL import Image

    file = io.BytesIO()
    options = {"progressive": True, "comment": b"x" * 300} if kind == "progressive" else {}
    Image.new("RGB", (width, height)).save(file, kind if not options else "JPEG", **options)
    assert declared_size(file.getvalue()) == (height, width)
    for length in range(0, len(file.getvalue()), 3):
        assert declared_size(file.getvalue()[:length]) in ((0, 0), (height, width))
