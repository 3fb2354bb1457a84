"""Alignment against RLDS's own shift, and what is done to episodes of a tf.data.Dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2buf import Episode, open_source
from rlds2buf.transform.alignment import realign
from tests.full.quiet import tf


def steps(rows: int) -> dict[str, Any]:
    return {
        "observation": {"state": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)},
        "action": np.arange(rows) + 10,
        "reward": np.arange(rows, dtype=np.float64) + 20,
        "discount": np.linspace(1, 0.5, rows).astype(np.float32),
        "is_first": np.arange(rows) == 0,
        "is_last": np.arange(rows) == rows - 1,
        "is_terminal": np.arange(rows) == rows - 1,
    }


@pytest.mark.parametrize(
    ("alignment", "moved"), [("ars", ["action", "reward", "discount"]), ("rsa", ["reward", "discount"])]
)
@pytest.mark.parametrize("rows", [2, 3, 40])
def test_rows_are_those_of_shift_keys(alignment: str, moved: list[str], rows: int) -> None:
    """RLDS shifts and drops the row that is left without a partner; here it is the padding."""
    from rlds.transformations import shift_keys  # its own imports warn, unless the ones above were first

    logged = steps(rows)
    shifted = shift_keys(tf.data.Dataset.from_tensor_slices(logged), moved, 1)
    expected = list(shifted.as_numpy_iterator())
    out = realign(Episode(**logged), alignment)
    assert len(expected) == rows - 1
    for t, row in enumerate(expected):
        for name in ("action", "reward", "discount", "is_terminal"):
            assert getattr(out, name)[t] == row[name], name
        assert np.array_equal(out.observation["state"][t], row["observation"]["state"])


def test_a_tf_data_dataset_is_mapped_and_filtered() -> None:
    lengths = [3, 5, 2]

    def episodes() -> Any:
        for number, rows in enumerate(lengths):
            yield {"steps": tf.data.Dataset.from_tensor_slices(steps(rows)), "number": number}

    element = {
        name: tf.TensorSpec(column.shape[1:], column.dtype)
        for name, column in steps(2).items()
        if name != "observation"
    }
    element["observation"] = {"state": tf.TensorSpec((2,), tf.float32)}
    dataset = tf.data.Dataset.from_generator(
        episodes, output_signature={"steps": tf.data.DatasetSpec(element), "number": tf.TensorSpec((), tf.int64)}
    )
    how: dict[str, Any] = {"map": {"observation": "observation/state"}, "float32": True, "alignment": "rsa"}
    found = list(open_source(dataset, **how, where="length > 2 and metadata/number < 9"))
    assert [episode.index for episode in found] == [0, 1]
    for episode, rows in zip(found, lengths, strict=False):
        assert np.array_equal(episode.observation, steps(rows)["observation"]["state"])
        assert episode.reward.dtype == np.float32 and episode.reward.tolist() == [*range(21, 20 + rows), 0]
