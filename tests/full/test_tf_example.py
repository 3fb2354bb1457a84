"""Raw records of RL Unplugged: our named specs against the code of TFDS's builders, on files TensorFlow wrote."""

from __future__ import annotations

import types

import numpy as np
import pytest

from rlds2buf import open_source
from tests.full.quiet import tf
from tests.full.tfds_compare import leaves

RNG = np.random.default_rng(0)


def feature(values):
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if np.asarray(values).dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(features):
    held = {key: feature(values) for key, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=held)).SerializeToString()


def floats(rows, size=1):
    return RNG.normal(size=rows * size).astype(np.float32).tolist()


def discounts(rows, terminal):
    return [1.0] * (rows - 1) + [0.0 if terminal else 1.0]


def dm_control(rows, terminal, sizes, actions, **more):
    return example({
        **{f"observation/{name}": floats(rows, size) for name, size in sizes.items()},
        "action": floats(rows, actions), "reward": floats(rows), "discount": discounts(rows, terminal),
        "step_type": floats(rows), "episode_id": [rows], "timestamp": [12345], **more,
    })  # fmt: skip


def control_suite():
    from tensorflow_datasets.rl_unplugged.rlu_control_suite import rlu_control_suite as suite

    sizes = {"position": 3, "velocity": 2}
    config = types.SimpleNamespace(observation_size=sizes, action_size=1)
    builder = types.SimpleNamespace(builder_config=config)
    builder._get_example_specs = lambda: suite.RluControlSuite._get_example_specs(builder)
    records = [dm_control(rows, rows % 2, sizes, 1) for rows in (4, 7, 2)]
    return records, lambda record: suite.RluControlSuite.tf_example_to_step_ds(builder, record)


def locomotion():
    from tensorflow_datasets.rl_unplugged.rlu_locomotion import rlu_locomotion as suite

    told = suite._feature_description("humanoid_gaps")
    sizes = {key[len("observation/"):]: told[key].shape[0] for key in told
             if key.startswith("observation/") and "camera" not in key}  # fmt: skip
    records = [
        dm_control(rows, rows % 2, sizes, 56,
                   **{"observation/walker/egocentric_camera": [RNG.bytes(64 * 64 * 3) for _ in range(rows)]})
        for rows in (3, 5)
    ]  # fmt: skip
    builder = types.SimpleNamespace(builder_config=types.SimpleNamespace(name="humanoid_gaps"))
    return records, lambda record: suite.RluLocomotion.tf_example_to_step_ds(builder, record)


def atari():
    from tensorflow_datasets.rl_unplugged import atari_utils

    def record(rows, terminal):
        frames = [tf.io.encode_png(RNG.integers(0, 255, (84, 84, 1), np.uint8)).numpy() for _ in range(rows)]
        return example({
            "checkpoint_idx": [3], "episode_idx": [rows], "episode_return": [4.5], "clipped_episode_return": [2.5],
            "observations": frames, "actions": RNG.integers(0, 18, rows).tolist(), "unclipped_rewards": floats(rows),
            "clipped_rewards": floats(rows), "discounts": discounts(rows, terminal),
        })  # fmt: skip

    def theirs(record):
        episode = atari_utils.atari_example_to_rlds(record)
        files = episode["steps"]["observation"]
        episode["steps"]["observation"] = tf.stack([tf.io.decode_png(file, channels=1) for file in files])
        return episode

    return [record(rows, rows % 2) for rows in (3, 6)], theirs


@pytest.mark.parametrize("compression", ["GZIP", ""])
@pytest.mark.parametrize(
    ("name", "make"),
    [("rlu-control-suite", control_suite), ("rlu-locomotion", locomotion), ("rlu-atari", atari)],
)
def test_as_the_builders_of_tfds(tmp_path, name, make, compression):
    records, theirs = make()
    path = tmp_path / "train-00000-of-00001"
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for record in records:
            writer.write(record)
    source = open_source(path, format="tf-example", features=name)
    assert source.num_episodes == (None if compression else len(records))
    for episode, record in zip(source, records, strict=True):
        source.spec.check(episode)
        wanted = theirs(record)
        columns = {tuple(path): column for path, column in episode.flatten()}
        steps = dict(leaves(wanted["steps"]))
        assert set(columns) == set(steps)
        for where, value in steps.items():
            # A vector of one number is a number here: sizes are found from the record.
            want = np.asarray(value).reshape(columns[where].shape)
            assert np.array_equal(columns[where], want.astype(columns[where].dtype)), where
        for key, value in wanted.items():
            if key != "steps":
                assert np.float32(episode.metadata[key]) == np.float32(value)
