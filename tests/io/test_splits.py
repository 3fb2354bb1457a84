from __future__ import annotations

import pytest

from rlds2buf.errors import SourceNotFound
from rlds2buf.io.splits import Piece, pieces_of_split

SPLITS = {"train": [4, 4, 3], "val-1": [5], "none": []}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("train", [("train", 0, 11)]),
        ("val-1", [("val-1", 0, 5)]),
        ("none", [("none", 0, 0)]),
        ("train[5:20]", None),
        ("train[2:9]", [("train", 2, 9)]),
        ("train[:3]", [("train", 0, 3)]),
        ("train[3:]", [("train", 3, 11)]),
        ("train[-3:]", [("train", 8, 11)]),
        ("train[:-3]", [("train", 0, 8)]),
        ("train[-3:-1]", [("train", 8, 10)]),
        ("train[:10%]", [("train", 0, 1)]),
        ("train[50%:]", [("train", 6, 11)]),
        ("train[:-10%]", [("train", 0, 10)]),
        ("train[33.4%:66.6%]", [("train", 4, 7)]),
        ("train[10:50%]", [("train", 1, 6)]),
        ("train[1shard]", [("train", 4, 8)]),
        ("train[-1shard:]", [("train", 8, 11)]),
        ("train[:-1shard]", [("train", 0, 8)]),
        ("train[0shard:2shard]", [("train", 0, 8)]),
        ("train+val-1", [("train", 0, 11), ("val-1", 0, 5)]),
        ("val-1[:2] + train[1:2]", [("val-1", 0, 2), ("train", 1, 2)]),
        ("train+train", [("train", 0, 11), ("train", 0, 11)]),
        ("all", [("train", 0, 11), ("val-1", 0, 5), ("none", 0, 0)]),
        (" train ", [("train", 0, 11)]),
    ],
)
def test_splits(expression, expected):
    if expected is None:
        with pytest.raises(SourceNotFound, match="reaches past the 11 episodes"):
            pieces_of_split(expression, SPLITS)
    else:
        assert pieces_of_split(expression, SPLITS) == [Piece(*piece) for piece in expected]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("test", "no split 'test'; there are: train, val-1, none"),
        ("all[:2]", "no split 'all'"),
        ("", "'' is no split"),
        ("train+", "'' is no split"),
        ("train[", "is no split"),
        ("train[]", "is no split"),
        ("train[:]", "is no split"),
        ("train[1:2:3]", "is no split"),
        ("train[a:b]", "is no split"),
        ("train[1.5:2]", "is no split"),
        ("train[3]", "alone is no slice"),
        ("train[3%]", "alone is no slice"),
        ("train[:101%]", "per cents go from"),
        ("train[5:5]", "holds none of the 11"),
        ("train[7:3]", "holds none of the 11"),
        ("train[:0]", "holds none of the 11"),
        ("train[-12:]", "reaches past"),
        ("train[::]", "is no split"),
    ],
)
def test_what_is_no_split(expression, message):
    with pytest.raises(SourceNotFound, match=message):
        pieces_of_split(expression, SPLITS)
