"""A tf.data.Dataset is told from other iterables, however it was made."""

from __future__ import annotations

import tensorflow as tf

from rlds2buf.formats.registry import find_object

STEPS = {"observation": [[0.0], [1.0]], "action": [0, 1]}


def name_of(value: object) -> str:
    found = find_object(value, [])
    assert found is not None
    return found.name


def test_every_kind_of_dataset() -> None:
    plain = tf.data.Dataset.from_tensors({"steps": STEPS})
    nested = plain.map(lambda episode: {"steps": tf.data.Dataset.from_tensor_slices(episode["steps"])})
    made = tf.data.Dataset.from_generator(lambda: iter([1.0]), output_signature=tf.TensorSpec([], tf.float32))
    for dataset in (plain, nested, made, plain.concatenate(plain), plain.batch(2).prefetch(1), plain.take(1).cache()):
        assert name_of(dataset) == "tf.data"


def test_what_is_made_of_one_is_none() -> None:
    assert name_of(tf.data.Dataset.range(2).as_numpy_iterator()) == "memory"
    assert name_of([{"steps": []}]) == "memory"
