"""Records in their frames: parts of them, and several joined."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2buf.codecs.tfrecord.frames import frame, masked_crc
from rlds2buf.core.records import Records

DATA = [b"one", b"", b"three" * 100, b"4"]
FRAMES = [frame(data) for data in DATA]


def records(*numbers: int) -> Records:
    return Records(b"before" + b"".join(FRAMES[i] for i in numbers), np.cumsum([6, *(len(FRAMES[i]) for i in numbers)]))


def test_each_record_with_its_checksum() -> None:
    whole = records(0, 1, 2, 3)
    assert list(whole) == [(data, masked_crc(data)) for data in DATA]
    assert whole.sizes.tolist() == [len(data) for data in DATA]
    assert whole[-1] == whole[3] and bytes(whole.whole) == b"".join(FRAMES)
    with pytest.raises(IndexError):
        whole[4]


@pytest.mark.parametrize(
    "which", [slice(None), slice(1, 3), slice(2, 2), slice(None, None, 2), [3, 0], [1, 2], np.array([2]), []]
)
def test_some_of_them(which: slice | list[int]) -> None:
    numbers = list(range(4))[which] if isinstance(which, slice) else [int(i) for i in which]
    part = records(0, 1, 2, 3).take(which)
    assert list(part) == [(DATA[i], masked_crc(DATA[i])) for i in numbers]
    assert bytes(part.whole) == b"".join(FRAMES[i] for i in numbers)


def test_joined() -> None:
    whole = records(0, 1, 2, 3)
    joined = Records.join([whole[:1], whole[1:3], whole[3:]])
    assert joined.frames is whole.frames and list(joined) == list(whole)
    assert list(Records.join([whole[2:], records(1)])) == [*list(whole[2:]), (b"", masked_crc(b""))]
    assert len(Records.join([])) == 0
