"""Spaces in Minari's JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlds2buf import SourceFormatError
from rlds2buf.core.spec import FieldSpec
from rlds2buf.formats.minari.spaces import is_image, space_specs

INF = float("inf")


def box(shape: list[int], low: object, high: object, dtype: str = "float32") -> str:
    return json.dumps({"type": "Box", "dtype": dtype, "shape": shape, "low": low, "high": high})


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (box([2], [-1, -1], [1, 1]), FieldSpec((2,), np.float32, -1.0, 1.0)),
        (box([2], [-1, 0], [1, 1]), FieldSpec((2,), np.float32, [-1.0, 0.0], 1.0)),
        (box([2], [-INF, -INF], [INF, 3]), FieldSpec((2,), np.float32, None, [INF, 3.0])),
        (box([], -INF, 2.5, "float64"), FieldSpec((), np.float64, None, 2.5)),
        (box([1, 2], [[0, 0]], [[255, 255]], "uint8"), FieldSpec((1, 2), np.uint8, 0, 255)),
        (box([0], [], []), FieldSpec((0,), np.float32)),
        ('{"type": "Discrete", "n": 3, "start": -1}', FieldSpec((), np.int64, values=(-1, 0, 1))),
        ('{"type": "Discrete", "n": 5000, "start": 2}', FieldSpec((), np.int64, 2, 5001)),
        (
            '{"type": "MultiDiscrete", "dtype": "int64", "nvec": [3, 2], "start": [0, 1]}',
            FieldSpec((2,), np.int64, [0, 1], 2),
        ),
        (
            '{"type": "MultiDiscrete", "dtype": "int32", "nvec": [[3, 2]]}',
            FieldSpec((1, 2), np.int32, 0, [[2, 1]]),
        ),
        ('{"type": "MultiBinary", "n": 4}', FieldSpec((4,), np.int8, values=(0, 1))),
        ('{"type": "MultiBinary", "n": [2, 3]}', FieldSpec((2, 3), np.int8, values=(0, 1))),
        ('{"type": "Text", "max_length": 5, "min_length": 1, "charset": "ab"}', FieldSpec((), object)),
        ('{"type": "Tuple", "subspaces": []}', ()),
    ],
)
def test_spaces(space: str, spec: object) -> None:
    assert space_specs(space) == spec


def test_spaces_nest() -> None:
    discrete = {"type": "Discrete", "n": 2}
    space = {"type": "Dict", "subspaces": {"b": {"type": "Tuple", "subspaces": [discrete, discrete]}, "a": discrete}}
    leaf = FieldSpec((), np.int64, values=(0, 1))
    assert space_specs(json.dumps(space)) == {"b": (leaf, leaf), "a": leaf}


@pytest.mark.parametrize(
    "space",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"type": "Graph"}',
        '{"type": ["Box"]}',
        '{"type": "Box", "dtype": "no", "shape": [1], "low": 0, "high": 1}',
        '{"type": "Box", "dtype": "float32", "shape": [2], "low": [1, 2, 3], "high": 1}',
        '{"type": "Box", "dtype": "uint8", "shape": [2], "low": [-1, 0], "high": 1}',
        '{"type": "Discrete", "n": "two"}',
        '{"type": "MultiDiscrete", "dtype": "int64", "nvec": [3], "start": [0, 1, 2, 3, "a"]}',
        '{"type": "Dict", "subspaces": {"a": {"type": "Box"}}}',
    ],
)
def test_no_space(space: str) -> None:
    with pytest.raises(SourceFormatError):
        space_specs(space)


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ([32, 32, 3], "uint8", True),
        ([64, 32], "uint8", True),
        ([31, 64, 3], "uint8", False),
        ([64, 64, 3], "int16", False),
        ([64], "uint8", False),
        ([2, 64, 64, 3], "uint8", False),
    ],
)
def test_which_boxes_are_pictures(shape: list[int], dtype: str, image: bool) -> None:
    assert is_image(space_specs({"type": "Box", "dtype": dtype, "shape": shape, "low": 0, "high": 255})) == image
    assert not is_image(space_specs({"type": "Box", "dtype": dtype, "shape": shape, "low": 0, "high": 100}))
