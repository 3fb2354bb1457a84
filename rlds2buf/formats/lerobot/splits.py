"""Splits: ranges of episodes that ``info.json`` names."""

from __future__ import annotations

import re

import numpy as np

from rlds2buf.errors import SourceFormatError, SourceNotFound
from rlds2buf.formats.lerobot.info import Info
from rlds2buf.io.splits import pieces_of_split

__all__ = ["RANGE", "places_of_split"]

RANGE = re.compile(r"(\d+):(\d+)")
"""Of a split's episodes: the first, and the one behind the last."""


def places_of_split(info: Info, count: int, split: str | None) -> np.ndarray:
    """``[n] int64``: the places of a split's episodes in the dataset, in the order that the split names them.

    Args:
        info: the dataset's.
        count: its episodes.
        split: as TFDS writes it; None: all of them.

    Raises:
        SourceNotFound: there is no such split.
        SourceFormatError: what ``info.json`` says of one that is named is no range of the dataset's episodes.
    """
    if split is None:
        return np.arange(count)
    ranges = {name: RANGE.fullmatch(told) for name, told in info.splits.items()}
    borders = {name: (int(one[1]), int(one[2])) if one else (0, 0) for name, one in ranges.items()}
    lengths = {name: [max(0, stop - start)] for name, (start, stop) in borders.items()}
    try:
        pieces = pieces_of_split(split, lengths)
    except SourceNotFound as error:
        raise SourceNotFound(f"{info.root}: {error}") from None
    for piece in pieces:
        start, stop = borders[piece.split]
        if ranges[piece.split] is None or not start <= stop <= count:
            told = info.splits[piece.split]
            raise SourceFormatError(
                f"{info.path}: the split {piece.split!r} is {told!r}, no range of the {count} episodes"
            )
    return np.concatenate([np.arange(p.start, p.stop) + borders[p.split][0] for p in pieces])
