"""RLDS folders: our reader against TFDS, step by step."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from rlds2buf.formats.rlds.source import RldsDirSource
from tests.data import RLDS
from tests.full.quiet import tfds
from tests.full.synthetic_rlds import IN_ORDER, F, SyntheticRlds
from tests.full.tfds_compare import assert_same_dataset
from tests.made import BOTH


@BOTH
@pytest.mark.parametrize("name", RLDS)
def test_datasets_are_equal(sets, name):
    folder = sets / name
    dataset = tfds.builder_from_directory(folder).as_dataset(split="train")
    assert assert_same_dataset(RldsDirSource(folder), dataset) > 100


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    """The folder of :class:`SyntheticRlds`, train in three shards."""
    builder = SyntheticRlds(data_dir=tmp_path_factory.mktemp("tfds"))
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    return builder.data_dir


@pytest.mark.parametrize("split", ["train", "test", "train[1:4]", "train[-2:]+test", "train[:50%]", "all"])
def test_synthetic_dataset_is_equal(synthetic, split):
    builder = tfds.builder_from_directory(synthetic)
    assert builder.info.splits["train"].num_shards == 3
    source = RldsDirSource(synthetic, split=split)
    assert_same_dataset(source, builder.as_dataset(split=split, read_config=IN_ORDER))
    for ep in source:
        source.spec.check(ep)


def test_specs_are_those_of_tfds(synthetic):
    info = tfds.builder_from_directory(synthetic).info.features["steps"].feature.get_tensor_info()
    spec = RldsDirSource(synthetic).spec
    for name, theirs in info["observation"].items():
        if isinstance(theirs, dict):
            continue
        mine = spec.observation[name]
        dtype = np.dtype(np.float32) if "bfloat16" in name else np.dtype(theirs.np_dtype)
        assert (mine.shape, mine.dtype) == (tuple(theirs.shape), dtype), name


def test_features_json_in_the_older_form(synthetic, tmp_path):
    folder = tmp_path / "1.2.3"
    shutil.copytree(synthetic, folder)
    older = tfds.builder_from_directory(synthetic).info.features.to_json()
    assert set(older) == {"type", "content", "proto_cls"}
    (folder / "features.json").write_text(json.dumps(older))
    assert_same_dataset(
        RldsDirSource(folder), tfds.builder_from_directory(synthetic).as_dataset(split="train", read_config=IN_ORDER)
    )


class FixedSequence(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.0.0")
    code_path = None

    def _info(self):
        step = {"observation": F.Sequence(F.Tensor(shape=(2,), dtype=np.int32), length=4), "is_first": np.bool_}
        return tfds.core.DatasetInfo(builder=self, features=F.FeaturesDict({"steps": F.Dataset(step)}))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"steps": [{"observation": np.full((4, 2), t, np.int32), "is_first": t == 0} for t in range(3)]}


def test_fixed_sequences_that_tfds_writes_but_cannot_read(tmp_path):
    builder = FixedSequence(data_dir=tmp_path)
    builder.download_and_prepare()
    with pytest.raises(TypeError):
        next(iter(builder.as_dataset(split="train")))
    (ep,) = RldsDirSource(builder.data_dir)
    assert ep.observation.shape == (3, 4, 2) and ep.observation[:, 0, 0].tolist() == [0, 1, 2]


EXPRESSIONS = [
    f"train[{a}{unit}:{b}{unit}]"
    for unit in ("", "%", "shard")
    for a in ("", "0", "1", "2", "-1", "-2", "33", "50", "99", "100", "12.5", "-101")
    for b in ("", "0", "1", "3", "-1", "-3", "34", "66", "100", "101", "99.9")
]


def test_splits_pick_the_episodes_that_tfds_picks(synthetic):
    from tensorflow_datasets.core import splits

    from rlds2buf.errors import SourceNotFound
    from rlds2buf.io.splits import pieces_of_split

    for lengths in ([3, 0, 2, 2], [40, 40, 37], [1], [100]):
        infos = [splits.SplitInfo(name="train", shard_lengths=lengths, num_bytes=0)]
        for expression in EXPRESSIONS:
            try:
                (theirs,) = splits._make_absolute_instructions(infos, expression)
                expected = (theirs.from_ or 0, sum(lengths) if theirs.to is None else theirs.to)
            except Exception:
                expected = None
            if expected is not None and expected[0] >= expected[1]:
                expected = None  # TFDS gives no file to read then
            try:
                ((_, *mine),) = pieces_of_split(expression, {"train": lengths})
            except SourceNotFound:
                mine = None
            assert mine == (None if expected is None else list(expected)), (lengths, expression)
