"""What the real lerobot wrote, read by rlds2buf, is what ``ds[i]`` gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lerobot import sets
from tests.lerobot.conftest import Made
from tests.lerobot.opened import lengths, open_set
from tests.lerobot.ours import ENDS, assert_read_as_handed_out, columns, field_of
from tests.lerobot.sets import SETS
from tests.lerobot.test_sets import recorded


@pytest.mark.parametrize("name", SETS)
def test_every_feature_is_what_lerobot_hands_out(made: Made, name: str) -> None:
    assert_read_as_handed_out(made(name))


@pytest.mark.parametrize(("name", "seed"), [("numbers", 0), ("number_files", 1)])
def test_numbers_are_of_the_types_and_values_that_were_recorded(made: Made, name: str, seed: int) -> None:
    features, parts = sets.numbers(seed)
    ours = columns(made(name))
    for feature, described in features.items():
        if described["dtype"] == "string" or feature in ENDS:
            continue
        found = ours[field_of(feature)]
        assert found.dtype == described["dtype"], feature
        np.testing.assert_array_equal(found, recorded(parts, feature).reshape(found.shape), err_msg=feature)


def test_ends_are_what_was_recorded(made: Made) -> None:
    dataset, ours = open_set(made("numbers")), columns(made("numbers"))
    rows = dataset.hf_dataset.with_format("numpy")
    done, truncated = (np.asarray(rows[name][:]) for name in ("next.done", "next.truncated"))
    np.testing.assert_array_equal(ours["is_terminal"], done & ~truncated)
    assert 0 < ours["is_terminal"].sum() < len(lengths(dataset))
    last = np.cumsum(ours["lengths"]) - 1
    assert ours["is_last"].nonzero()[0].tolist() == last.tolist()
