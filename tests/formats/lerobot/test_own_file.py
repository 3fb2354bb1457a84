"""meta/rlds2buf.json: what is written reads back, and what others put there is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.lerobot.own_file import (
    FILE_NAME,
    ROWS,
    TASK,
    OwnField,
    OwnFile,
    read_own_file,
    value_from_json,
    value_to_json,
)

INFO = {
    "total_episodes": 2,
    "total_frames": 7,
    "features": {"action": {"dtype": "float32", "shape": [6], "names": None}},
}

FIELDS = (
    OwnField(("action", "arm", 0), FieldSpec((2, 3), np.float32, low=-np.inf, high=[[1.0, 2, 3]] * 2), name="action"),
    OwnField(("extras", "word"), FieldSpec((), object, values=(b"a", b"\xff")), TASK, "task"),
    OwnField(("extras", "ragged"), FieldSpec((None,), np.uint64), ROWS, "ragged"),
    OwnField(("observation",), FieldSpec((64, 64, 1), np.uint8), name="observation.images.image", encoded=True),
)


def own() -> OwnFile:
    return OwnFile(FIELDS, OwnFile.written_of(INFO), {"policy": b"expert"}, {"source": "a"}, {"lost": {}})


def write(folder: Path, content: Any) -> Path:
    path = folder / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_reads_back(tmp_path: Path) -> None:
    assert read_own_file(tmp_path) is None
    assert read_own_file(write(tmp_path, own().to_json())) == own()


def test_a_dataset_that_was_changed_is_no_longer_what_was_written() -> None:
    assert own().fits({**INFO, "fps": 3})
    assert not own().fits({**INFO, "total_episodes": 3})
    features = {**INFO["features"], "more": {"dtype": "int64", "shape": [1]}}  # type: ignore[dict-item]
    assert not own().fits({**INFO, "features": features})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"fields": [{"path": [], "kind": "feature", "name": "", "spec": {}}]}, "fields[0].path"),
        ({"fields": [{"path": ["a"], "kind": "wish", "name": "", "spec": {}}]}, "fields[0].kind"),
        ({"metadata": {"array": {"dtype": "O", "data": "", "shape": []}}}, "array"),
        ({"metadata": [1]}, "metadata should be"),
    ],
)
def test_what_is_not_ours_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceFormatError) as caught:
        read_own_file(write(tmp_path, {**own().to_json(), **change}))
    assert said in str(caught.value) and FILE_NAME in str(caught.value)


def test_no_json(tmp_path: Path) -> None:
    with pytest.raises(SourceFormatError, match=FILE_NAME):
        read_own_file(write(tmp_path, "{"))


ARRAYS = st.sampled_from(
    [
        np.arange(3),
        np.float32(2.5),
        np.array([[1.0, np.nan]]),
        np.array([b"a", b"\xff"], object),
        np.array(["x", "yz"]),
        np.array(3, np.uint64),
        np.zeros((0, 2), ">i2"),
        np.bool_(True),
        np.complex64(1j),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_values_keep_their_types(value: Any) -> None:
    back = value_from_json(json.loads(json.dumps(value_to_json(value))))
    assert alike(value, back)


def alike(one: Any, other: Any) -> bool:
    """Equal in type and value; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and repr(one.tolist()) == repr(other.tolist())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return repr(one) == repr(other)


def test_what_json_cannot_say() -> None:
    for value in (object(), {1: 2}, {3}, np.zeros(1, np.longdouble)):
        with pytest.raises(TypeError):
            value_to_json(value)
