"""How TFDS cuts a split into shards.

Source: tensorflow_datasets/core/utils/shard_utils.py (``ShardConfig``, ``get_shard_boundaries``),
https://github.com/tensorflow/datasets
"""

from __future__ import annotations

import itertools
from typing import Final

__all__ = ["FRAME_BYTES", "MIN_SHARD", "number_of_shards", "shard_lengths"]

FRAME_BYTES: Final = 16
"""What a TFRecord file has around every record."""

MIN_SHARD: Final = 64 << 20
MAX_SHARD: Final = 1 << 30
_MOST_USUAL: Final = 1024


def number_of_shards(num_bytes: int, num_records: int) -> int:
    """How many shards TFDS makes of a split.

    A power of two up to 1024, the largest with at least 64 MiB a shard; if shards would hold more than
    1 GiB even then, the first multiple of 1024 with which they don't.  Never more than there are
    records.

    Args:
        num_bytes: of all records together, without what the file has around them.
        num_records: how many there are.

    >>> [number_of_shards(n << 20, 5000) for n in (1, 127, 128, 300, 1 << 17, 3 << 20)]
    [1, 1, 2, 4, 1024, 3072]
    """
    total = num_bytes + num_records * FRAME_BYTES
    most, least = total // MIN_SHARD, total // MAX_SHARD
    if least > _MOST_USUAL:
        count = 2 * _MOST_USUAL
        while count < least and count + _MOST_USUAL <= num_records:
            count += _MOST_USUAL
        return min(count, max(1, num_records))
    count = _MOST_USUAL
    while count > 1 and not (least <= count <= most and num_records >= count):
        count //= 2
    return count


def shard_lengths(num_records: int, num_shards: int) -> list[int]:
    """How many records each shard holds; they differ by one at most.

    >>> shard_lengths(10, 4)
    [2, 3, 3, 2]
    """
    ends = [round(num_records * i / num_shards) for i in range(num_shards + 1)]
    return [end - start for start, end in itertools.pairwise(ends)]
