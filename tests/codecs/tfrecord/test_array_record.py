"""ArrayRecord files as the package itself writes them, whole and damaged."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from rlds2buf import MissingDependency, SourceFormatError, SourceNotFound
from rlds2buf.codecs.tfrecord.array_record import ArrayRecordReader, count_array_records
from rlds2buf.codecs.tfrecord.frames import FrameReader, frame
from rlds2buf.errors import SourceError

OPTIONS = ["group_size:1", "group_size:3", "group_size:1,uncompressed", "group_size:2,brotli:3", "group_size:1,snappy"]


def write(path: Path, records: list[bytes], options: str = "group_size:1") -> Path:
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def read_array_records(path: Path, start: int = 0) -> Iterator[bytes]:
    """One at a time, so that what is before damage is given."""
    with ArrayRecordReader(path, start) as reader:
        while len(records := reader.take(most=1)):
            yield records[0][0]


def some_records(count: int = 20) -> list[bytes]:
    """Of different lengths, one empty, half of them noise."""
    rng = np.random.default_rng(0)
    return [b"" if i == 3 else rng.bytes(100 * i) + b"x" * 300 for i in range(count)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("start", [0, 1, 7, 19, 20, 25])
def test_records_from_anywhere(tmp_path: Path, options: str, start: int) -> None:
    records = some_records()
    path = write(tmp_path / "a", records, options)
    assert list(read_array_records(path, start)) == records[start:]
    assert count_array_records(path) == 20


@pytest.mark.parametrize("size", [1, 700, 2500, 1 << 20])
def test_stretches_and_what_is_given_back(tmp_path: Path, size: int) -> None:
    records = some_records()
    found: list[bytes] = []
    with ArrayRecordReader(write(tmp_path / "a", records, "group_size:3"), 2) as reader:
        while len(taken := reader.take(size)):
            kept = (len(taken) + 1) // 2
            reader.go_back(taken, kept)
            found += [record for record, _ in taken[:kept]]
            assert reader.number == 2 + len(found)
    assert found == records[2:]
    with FrameReader(framed(tmp_path / "b", records)) as other:
        assert bytes(other.take(1 << 20).whole) == b"".join(map(frame, records))


def framed(path: Path, records: list[bytes]) -> Path:
    """The same records as ArrayRecordReader frames them, as a TFRecord file."""
    with ArrayRecordReader(write(path.with_suffix(".array"), records)) as reader:
        path.write_bytes(reader.take(1 << 20).whole)
    return path


def test_no_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [])
    assert list(read_array_records(path)) == [] and count_array_records(path) == 0


def test_reading_may_stop_anywhere_and_twice_at_a_time(tmp_path: Path) -> None:
    records = some_records()
    path = write(tmp_path / "a", records)
    ahead = read_array_records(path)
    assert list(itertools.islice(ahead, 5)) == records[:5]
    assert list(read_array_records(path, 2)) == records[2:]
    assert list(ahead) == records[5:]


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="none: no such file"):
        list(read_array_records(tmp_path / "none"))
    with pytest.raises(SourceError, match="directory"):
        count_array_records(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no records here", bytes(65536), bytes(3 * 65536), b"\xff" * 200_000])
def test_what_is_no_such_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(SourceFormatError, match="can't be read as ArrayRecord"):
        count_array_records(path)


@pytest.mark.parametrize("options", OPTIONS[:3])
def test_damage_is_noticed_or_does_not_matter(tmp_path: Path, options: str) -> None:
    """Cut short, or with bytes changed, a file gives a typed error, or its records: never others, never fewer."""
    records = some_records(8)
    whole = write(tmp_path / "a", records, options).read_bytes()
    used = np.flatnonzero(np.frombuffer(whole, np.uint8))  # most of a file is padding
    rng = np.random.default_rng(1)
    path = tmp_path / "b"
    noticed = 0
    for trial in range(150):
        data = bytearray(whole)
        at = int(rng.choice(used if trial % 2 else used[-100:]))
        if trial % 3 == 0:
            del data[at if trial % 6 else int(rng.integers(len(data))) :]
        else:
            data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            found = list(read_array_records(path))
        except SourceFormatError:
            noticed += 1
        else:
            assert found == records
    assert noticed > 100


def test_damage_says_where(tmp_path: Path) -> None:
    path = write(tmp_path / "a", some_records())
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceFormatError, match=r"a: record \d+: .* damaged or cut short \(Corrupted Riegeli"):
        list(read_array_records(path))


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a", some_records())
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(MissingDependency, match=r"pip install 'rlds2buf\[array-record\]'"):
        list(read_array_records(path))
