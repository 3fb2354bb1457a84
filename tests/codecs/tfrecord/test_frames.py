from __future__ import annotations

import gzip
import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.codecs.tfrecord.frames import FrameReader, count_records, frame, masked_crc, read_records
from rlds2buf.codecs.tfrecord.gzip_frames import GzipFrameReader
from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound

RECORDS = [b"first", b"", b"third record" * 7]


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"".join(map(frame, RECORDS)))
    return path


@pytest.mark.parametrize("start", range(5))
def test_reads_from_any_record(shard, start):
    assert list(read_records(shard, start)) == RECORDS[start:]
    assert count_records(shard) == 3


@given(records=st.lists(st.binary(max_size=300)), start=st.integers(0, 5))
def test_round_trip(tmp_path_factory, records, start):
    path = tmp_path_factory.mktemp("tfrecord") / "x"
    path.write_bytes(b"".join(map(frame, records)))
    assert list(read_records(path, start)) == records[start:]


def test_an_empty_file_has_no_records(tmp_path):
    (tmp_path / "x").touch()
    assert list(read_records(tmp_path / "x")) == []


def test_every_truncation_is_an_error_that_names_file_and_record(shard):
    data = shard.read_bytes()
    borders = {0, 21, 37, len(data)}
    for size in set(range(len(data))) - borders:
        shard.write_bytes(data[:size])
        number = sum(size > border for border in (21, 37))
        with pytest.raises(SourceFormatError, match=rf"x.tfrecord: record {number} at byte .* truncated"):
            list(read_records(shard))
        with pytest.raises(SourceFormatError, match="truncated"):
            count_records(shard)


def test_every_flipped_byte_is_an_error(shard):
    data = shard.read_bytes()
    for at in range(len(data)):
        shard.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(SourceFormatError, match="checksum"):
            list(read_records(shard))


def test_the_records_before_the_damage_are_read(shard):
    data = bytearray(shard.read_bytes())
    data[-10] ^= 1
    shard.write_bytes(data)
    records = read_records(shard)
    assert [next(records), next(records)] == RECORDS[:2]
    with pytest.raises(SourceFormatError, match="record 2 at byte 37: the checksum of its 84 bytes does not match"):
        next(records)


def test_checking_the_data_can_be_left_out_the_lengths_not(shard):
    data = bytearray(shard.read_bytes())
    data[12] ^= 1
    shard.write_bytes(data)
    assert len(list(read_records(shard, check_data=False))) == 3
    data[0] ^= 1
    shard.write_bytes(data)
    with pytest.raises(SourceFormatError, match="checksum of its length"):
        list(read_records(shard, check_data=False))


def test_a_length_past_the_end_is_refused_before_anything_is_allocated(tmp_path):
    length = struct.pack("<Q", 2**60)
    (tmp_path / "x").write_bytes(length + struct.pack("<I", masked_crc(length)) + bytes(100))
    with pytest.raises(SourceFormatError, match="truncated"):
        list(read_records(tmp_path / "x"))


def test_files_that_are_not_there_or_not_files(tmp_path):
    with pytest.raises(SourceNotFound, match="nope"):
        list(read_records(tmp_path / "nope"))
    with pytest.raises(SourceError, match="directory"):
        list(read_records(tmp_path))


def test_the_published_check_value():
    # CRC-32C of "123456789" is 0xE3069283 (RFC 3720, B.4 and the CRC catalogue).
    assert masked_crc(b"123456789") == (((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8) % 2**32


@given(
    records=st.lists(st.binary(max_size=300)),
    sizes=st.lists(st.integers(1, 400), min_size=1),
    most=st.integers(1, 5) | st.none(),
    compressed=st.booleans(),
)
def test_stretches_of_any_size_hold_what_the_file_holds(tmp_path_factory, records, sizes, most, compressed):
    path = tmp_path_factory.mktemp("tfrecord") / "x"
    data = b"".join(map(frame, records))
    path.write_bytes(gzip.compress(data) if compressed else data)
    found, again = [], itertools.cycle([True, False, False])
    with (GzipFrameReader if compressed else FrameReader)(path) as reader:
        for size in itertools.cycle(sizes):
            assert reader.number == len(found)
            taken = reader.take(size, most)
            if not len(taken):
                break
            assert len(taken) == 1 or (len(taken.whole) <= size and len(taken) <= (most or len(taken)))
            if next(again):
                reader.go_back(taken, len(taken) // 2)
                taken = taken[: len(taken) // 2]
            found.extend(record for record, _ in taken)
    assert found == records


@pytest.mark.parametrize("compressed", [False, True])
def test_damage_anywhere_in_a_stretch_leaves_the_records_before_it(tmp_path, compressed):
    frames = [frame(bytes([i]) * 20) for i in range(9)]
    path = tmp_path / "x"
    for at in range(len(frames[0])):
        data = bytearray(b"".join(frames))
        data[5 * len(frames[0]) + at] ^= 8
        path.write_bytes(gzip.compress(data) if compressed else data)
        with (GzipFrameReader if compressed else FrameReader)(path) as reader:
            assert [record for record, _ in reader.take()] == [bytes([i]) * 20 for i in range(5)]
            for _ in range(2):
                with pytest.raises(SourceFormatError, match=r"record 5.*checksum"):
                    reader.take()


@pytest.mark.parametrize("lost", [1, 10, 60, 100])
def test_a_compressed_file_that_is_cut_short_gives_what_is_left_of_it(tmp_path, lost):
    rng = np.random.default_rng(0)
    records = [rng.bytes(30) for _ in range(20)]
    whole = gzip.compress(b"".join(map(frame, records)))
    (tmp_path / "x").write_bytes(whole[:-lost])
    found = []
    with (
        GzipFrameReader(tmp_path / "x") as reader,
        pytest.raises(SourceFormatError, match=r"record \d+: the comp.* short"),
    ):
        while len(taken := reader.take(100)):
            found.extend(record for record, _ in taken)
    assert found == records[: len(found)] and len(found) >= 15
