"""Comparing our episodes with the elements of a ``tf.data.Dataset``, leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tests.full.quiet import tf


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, tuple):
        for i, child in enumerate(value):
            yield from leaves(child, (*path, i))
    else:
        yield path, value


def plain(value: Any) -> Any:
    """A tensor as an array; a ragged one as nested lists of arrays."""
    if isinstance(value, tf.RaggedTensor):
        return [plain(row) for row in value]
    array = value.numpy()
    return array.astype(np.float32) if value.dtype == tf.bfloat16 else array


def assert_same_value(mine: Any, theirs: Any, where: str) -> None:
    theirs = plain(theirs)
    if isinstance(theirs, list):
        assert len(mine) == len(theirs), where
        for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            other = other if isinstance(other, list) else np.asarray(other)
            assert_same_array(one, other, f"{where}[{i}]")
    else:
        assert_same_array(mine, theirs, where)


def assert_same_array(mine: Any, theirs: Any, where: str) -> None:
    if isinstance(theirs, bytes):
        assert isinstance(mine, bytes) and mine == theirs, where
        return
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    assert mine.dtype == theirs.dtype, f"{where}: {mine.dtype}, TFDS gives {theirs.dtype}"
    assert mine.shape == theirs.shape, f"{where}: {mine.shape}, TFDS gives {theirs.shape}"
    if mine.dtype == object:
        assert mine.tolist() == theirs.tolist(), where
    else:
        assert mine.tobytes() == theirs.tobytes(), where


def assert_same_dataset(source: Any, dataset: tf.data.Dataset) -> int:
    """Every value, dtype and shape of every step and of the metadata; returns the number of steps compared."""
    steps = 0
    episodes = list(source)
    elements = list(dataset)
    assert len(episodes) == len(elements) == source.num_episodes
    for ep, element in zip(episodes, elements, strict=True):
        columns = {path[1:] if path[0] == "extras" else path: column for path, column in ep.flatten()}
        for name in ep.derived:
            del columns[(name,)]
        row = -1
        for row, step in enumerate(element["steps"]):
            theirs = dict(leaves(step))
            assert set(theirs) == set(columns)
            for path, value in theirs.items():
                assert_same_value(columns[path][row], value, f"episode {ep.index}, step {row}, {path}")
        assert row + 1 == ep.num_steps
        steps += ep.num_steps
        metadata = dict(leaves({key: value for key, value in element.items() if key != "steps"}))
        mine = dict(leaves(ep.metadata))
        assert set(mine) == set(metadata)
        for path, value in metadata.items():
            assert_same_value(mine[path], value, f"episode {ep.index}, metadata {path}")
    return steps
