"""Columns of numbers of another type than is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rlds2buf.codecs.arrow.parquet import Unfit, column_of
from rlds2buf.core.spec import FieldSpec


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e300, 0.5])
def test_what_is_no_whole_number_is_refused(wrong: float) -> None:
    with pytest.raises(Unfit, match="which int64 can't") as caught:
        column_of(pa.array([1.0, 2.0, wrong, 3.0]), FieldSpec((), np.dtype(np.int64)))
    assert caught.value.row == 2


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.uint8])
def test_whole_numbers_are_taken(kind: Any) -> None:
    found = column_of(pa.array([1.0, 2.0, 3.0]), FieldSpec((), np.dtype(kind)))
    assert found.dtype == kind and found.tolist() == [1, 2, 3]
