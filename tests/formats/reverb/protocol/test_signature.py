from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.reverb.protocol.messages import message
from rlds2buf.formats.reverb.protocol.signature import (
    TableField,
    differences,
    encode_signature,
    flatten_signature,
    flatten_spec,
)


class Item(NamedTuple):
    zebra: Any
    apple: Any
    none: Any = ()


FLOATS = FieldSpec((None, 3), np.dtype(np.float32))
TEXT = FieldSpec((2,), np.dtype(object))
SPEC = Item(zebra={"b": FLOATS, "a": (TEXT, FLOATS)}, apple=FLOATS)


def test_signatures_come_back_in_order():
    value = message("StructuredValue", encode_signature(SPEC).SerializeToString())
    assert value.named_tuple_value.name == "Trajectory"
    assert flatten_signature(value) == [
        TableField(("zebra", "a", 0), (2,), "string"),
        TableField(("zebra", "a", 1), (None, 3), "float32"),
        TableField(("zebra", "b"), (None, 3), "float32"),
        TableField(("apple",), (None, 3), "float32"),
    ]


def test_the_data_side_is_flattened_in_the_same_order():
    assert [(field.path, str(field)) for field in flatten_signature(encode_signature(SPEC))] == [
        (path, str(field)) for path, field in flatten_spec(SPEC)
    ]


def test_what_is_no_signature_is_refused():
    with pytest.raises(SourceFormatError, match="unknown kind of value"):
        flatten_signature(message("StructuredValue"))


def test_fitting_signatures_do_not_differ():
    data = [(("a",), FieldSpec((2, 3), np.dtype(np.int64)))]
    for shape in ((2, 3), (None, 3), (None, None), None):
        assert differences(data, [TableField(("a",), shape, "int64")]) == []


@pytest.mark.parametrize(
    ("data", "table", "line"),
    [
        (
            FieldSpec((2, 3), np.dtype(np.int64)),
            TableField(("a",), (2, 4), "int64"),
            "a: the data are int64[2, 3], the table takes int64[2, 4]",
        ),
        (
            FieldSpec((2, 3), np.dtype(np.int64)),
            TableField(("a",), (2,), "int64"),
            "a: the data are int64[2, 3], the table takes int64[2]",
        ),
        (
            FieldSpec((None, 3), np.dtype(np.int64)),
            TableField(("a",), (2, 3), "int64"),
            "a: the data are int64[?, 3], the table takes int64[2, 3]",
        ),
        (
            FieldSpec((2,), np.dtype(object)),
            TableField(("a",), (2,), "float32"),
            "a: the data are string[2], the table takes float32[2]",
        ),
        (
            FieldSpec((2,), np.dtype(np.float64)),
            TableField(("a",), None, "float32"),
            "a: the data are float64[2], the table takes float32[...]",
        ),
    ],
)
def test_every_difference_is_a_line(data, table, line):
    assert differences([(("a",), data)], [table]) == [line]


def test_missing_fields_are_lines():
    data = [(("obs", "x"), FLOATS)]
    table = [TableField(("obs", "y"), (None, 3), "float32")]
    assert differences(data, table) == [
        "obs/x: only in the data, float32[?, 3]",
        "obs/y: only in the table, float32[?, 3]",
    ]
