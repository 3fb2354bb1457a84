from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.codecs.tfrecord.frames import count_records, frame, masked_crc, read_records
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
