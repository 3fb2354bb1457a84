"""A tf.data.Dataset of RLDS episodes as a source."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2buf import EmptyEpisode, SourceFormatError, SpecMismatch, open_source
from rlds2buf.core.spec import FieldSpec
from rlds2buf.formats.rlds.source import RldsDirSource
from rlds2buf.formats.rlds.tf_data_source import RldsDatasetSource
from tests.contracts.source import SourceContract, assert_same_episode
from tests.data import RLDS
from tests.full.quiet import tf, tfds
from tests.full.tfds_compare import assert_same_dataset
from tests.made import BOTH


def steps(length: int, number: int = 0) -> tf.data.Dataset:
    rows = tf.range(length)
    where = tf.stack([tf.fill([length], number), rows], 1)
    columns = {
        "observation": {"where": where, "both": (rows, tf.cast(rows, tf.float32))},
        "action": tf.cast(rows, tf.int64),
        "reward": tf.ones(length),
        "discount": tf.ones(length),
        "is_first": rows == 0,
        "is_last": rows == length - 1,
        "is_terminal": rows == length,
        "word": tf.strings.as_string(rows),
    }
    return tf.data.Dataset.from_tensor_slices(columns)


def episodes(lengths: list[int]) -> tf.data.Dataset:
    """Of those lengths; the number of an episode is in its metadata and in every observation."""
    numbered = tf.data.Dataset.from_tensor_slices(np.array(lengths, np.int32)).enumerate()
    return numbered.map(lambda i, n: {"steps": steps(n, tf.cast(i, tf.int32)), "number": i, "tag": "x"})


class TestContract(SourceContract):
    @pytest.fixture
    def make_source(self):
        return lambda: RldsDatasetSource(self.dataset)

    dataset = episodes([3, 1, 4])

    @pytest.fixture
    def change(self, monkeypatch):
        return lambda: monkeypatch.setattr(self, "dataset", episodes([3, 1]))


@BOTH
@pytest.mark.parametrize("name", RLDS)
def test_datasets_are_equal_step_by_step_and_to_the_folder(sets, name):
    folder = sets / name
    dataset = tfds.builder_from_directory(folder).as_dataset(split="train")
    source, direct = RldsDatasetSource(dataset), RldsDirSource(folder)
    assert assert_same_dataset(source, dataset) > 100
    assert source.spec == direct.spec
    for one, other in zip(source, direct, strict=True):
        assert_same_episode(one, other)


def test_columns():
    source = open_source(episodes([2, 3]))
    assert isinstance(source, RldsDatasetSource)
    first, second = source
    assert second.observation["where"].tolist() == [[1, 0], [1, 1], [1, 2]]
    assert [column.dtype.name for column in second.observation["both"]] == ["int32", "float32"]
    assert second.extras["word"].tolist() == [b"0", b"1", b"2"]
    assert second.metadata == {"number": 1, "tag": b"x"}
    assert (first.index, second.index, second.source) == (0, 1, "tf.data.Dataset")
    assert source.spec.observation["where"] == FieldSpec((2,), np.int32)
    assert source.spec.extras == {"word": FieldSpec((), object)}


def test_long_episodes_are_whole():
    (ep,) = RldsDatasetSource(episodes([70_000]))
    assert ep.num_steps == 70_000 and ep.action[-1] == 69_999


def test_empty_episodes_do_not_hide_the_others():
    source = RldsDatasetSource(episodes([0, 2, 0]))
    first, second, third = source.read()
    assert isinstance(first, EmptyEpisode) and isinstance(third, EmptyEpisode) and third.episode == 2
    assert (second.num_steps, second.index) == (2, 1)


def test_an_unknown_number_of_episodes():
    source = RldsDatasetSource(episodes([2, 3, 2]).filter(lambda ep: ep["number"] != 1))
    assert source.num_episodes is None
    assert [ep.metadata["number"] for ep in source] == [0, 2]


def test_rows_of_different_shapes_become_arrays():
    ragged = tf.ragged.constant([[1.0], [], [2.0, 3.0]])
    texts = tf.ragged.constant([[[b"a"], []], [], [[b"b", b"c"]]])
    inner = tf.data.Dataset.from_tensor_slices({"observation": ragged, "texts": texts, "action": tf.range(3)})
    source = RldsDatasetSource(tf.data.Dataset.from_tensors({"steps": inner}))
    (ep,) = source
    assert [row.tolist() for row in ep.observation] == [[1], [], [2, 3]]
    assert [[cell.tolist() for cell in row] for row in ep.extras["texts"]] == [[[b"a"], []], [], [[b"b", b"c"]]]
    assert source.spec.observation == FieldSpec((None,), np.float32)
    source.spec.check(ep)


def test_images_of_any_size():
    sizes = tf.data.Dataset.from_tensor_slices([[2, 3], [2, 3], [4, 1]])
    inner = sizes.map(lambda size: {"observation": tf.ones([size[0], size[1], 3], tf.uint8)})
    (ep,) = RldsDatasetSource(tf.data.Dataset.from_tensors({"steps": inner}))
    assert [frame.shape for frame in ep.observation] == [(2, 3, 3), (2, 3, 3), (4, 1, 3)]
    (ep,) = RldsDatasetSource(tf.data.Dataset.from_tensors({"steps": inner.take(2)}))
    assert ep.observation.shape == (2, 2, 3, 3) and ep.observation.dtype == np.uint8


def test_brain_floats_become_float32():
    inner = tf.data.Dataset.from_tensor_slices({"observation": tf.cast([1.0, 1 / 3], tf.bfloat16)})
    source = RldsDatasetSource(tf.data.Dataset.from_tensors({"steps": inner}))
    (ep,) = source
    assert ep.observation.dtype == source.spec.observation.dtype == np.float32
    assert ep.observation[1] == np.float32(0.333984375)


def test_steps_that_are_batched_already():
    batched = episodes([3, 2]).map(lambda ep: {**ep, "steps": ep["steps"].batch(9).get_single_element()})
    source = RldsDatasetSource(batched)
    assert source.spec == RldsDatasetSource(episodes([3, 2])).spec
    for one, other in zip(source, RldsDatasetSource(episodes([3, 2])), strict=True):
        assert_same_episode(one, other)


def test_other_nested_datasets_are_metadata():
    goals = tf.data.Dataset.from_tensor_slices({"at": [1.0, 2.0]})
    (ep,) = RldsDatasetSource(episodes([2]).map(lambda ep: {**ep, "goals": goals, "none": goals.take(0)}))
    assert ep.metadata["goals"]["at"].tolist() == [1, 2] and ep.metadata["none"] is None


def test_shapes_that_tensorflow_does_not_know():
    inner = tf.data.Dataset.from_generator(
        lambda: [{"observation": [1.0, 2.0]}] * 2, output_types={"observation": tf.float32}
    )
    spec = RldsDatasetSource(tf.data.Dataset.from_tensors({"steps": inner})).spec
    assert spec.observation == FieldSpec((2,), np.float32)


def test_steps_of_unequal_length():
    uneven = tf.data.Dataset.from_tensors({"steps": {"observation": [1.0, 2.0], "action": [1]}})
    (error,) = RldsDatasetSource(uneven).read()
    assert isinstance(error, SpecMismatch) and error.episode == 0


def test_errors_inside_tensorflow_name_the_episode():
    def fail_at_one(episode):
        check = tf.debugging.Assert(episode["number"] != 1, ["the disk is on fire"])
        with tf.control_dependencies([check]):
            return {**episode, "number": tf.identity(episode["number"])}

    reading = RldsDatasetSource(episodes([2, 2, 2]).map(fail_at_one)).read()
    assert next(reading).index == 0
    with pytest.raises(SourceFormatError, match=r"tf\.data\.Dataset: episode 1: .*the disk is on fire"):
        next(reading)


@pytest.mark.parametrize(
    "dataset",
    [
        tf.data.Dataset.range(3),
        tf.data.Dataset.from_tensors({"image": 1}),
        tf.data.Dataset.from_tensors({"steps": 1}),
        tf.data.Dataset.from_tensors({"steps": tf.data.Dataset.range(3)}),
    ],
)
def test_other_datasets_are_refused(dataset):
    with pytest.raises(SourceFormatError, match="no RLDS episodes"):
        RldsDatasetSource(dataset)


def test_endless_datasets_are_refused():
    with pytest.raises(SourceFormatError, match="no end"):
        RldsDatasetSource(episodes([2]).repeat())
