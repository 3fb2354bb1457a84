"""Whether two episodes are the same, whatever their values are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2buf.core.episode import Episode
from rlds2buf.core.same import is_same


def column(*values: Any) -> np.ndarray:
    """One of objects."""
    out = np.empty(len(values), object)
    out[:] = values
    return out


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (column(np.ones(2), np.ones(3)), column(np.ones(2), np.ones(3)), True),
        (column(np.ones(2), np.ones(3)), column(np.ones(2), np.zeros(3)), False),
        (column(np.ones(2), np.ones(3)), column(np.ones(2), np.ones(3, int)), False),
        (column(b"a", b"b"), column(b"a", b"b"), True),
        (column(b"a", b"b"), column(b"a", "b"), False),
    ],
)
def test_columns_of_objects(one: np.ndarray, other: np.ndarray, same: bool) -> None:
    assert is_same(Episode(observation=one), Episode(observation=other)) == same
    lists = (Episode(observation=np.zeros(2), metadata={"of": [*values]}) for values in (one, other))
    assert is_same(*lists) == same
