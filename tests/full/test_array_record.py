"""ArrayRecord folders that TFDS itself has written, against what TFDS reads from the TFRecord ones."""

from __future__ import annotations

import json
import shutil

import pytest

from rlds2buf.formats.rlds.source import RldsDirSource
from tests.data import RLDS
from tests.full.quiet import tf, tfds
from tests.full.synthetic_rlds import IN_ORDER, SyntheticRlds
from tests.full.tfds_compare import assert_same_dataset
from tests.made import BOTH


def convert(folder, target):
    """The train split's records written by TFDS's own adapter (its `convert_format` command needs Apache Beam)."""
    from tensorflow_datasets.core.file_adapters import ArrayRecordFileAdapter

    target.mkdir()
    (tfrecord,) = folder.glob("*-train.tfrecord-*")
    records = tf.data.TFRecordDataset(str(tfrecord)).as_numpy_iterator()
    name = tfrecord.name.replace("tfrecord", "array_record")
    ArrayRecordFileAdapter.write_examples(target / name, ((None, record) for record in records))
    info = json.loads((folder / "dataset_info.json").read_text())
    (target / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "array_record"}))
    shutil.copyfile(folder / "features.json", target / "features.json")
    assert tfds.builder_from_directory(target).info.file_format.value == "array_record"
    return target


@BOTH
@pytest.mark.parametrize("name", RLDS)
def test_converted_by_tfds(sets, name, tmp_path):
    folder = sets / name
    converted = convert(folder, tmp_path / "converted")
    source = RldsDirSource(converted)
    assert source.details()["file_format"] == "array_record"
    dataset = tfds.builder_from_directory(folder).as_dataset(split="train")
    assert assert_same_dataset(source, dataset) > 100


@pytest.mark.parametrize("split", ["train", "test[1:]"])
def test_written_by_tfds(tmp_path, split):
    """Every kind of feature, by a builder told file_format="array_record", against its twin told "tfrecord"."""
    builders = {}
    for name in ("array_record", "tfrecord"):
        builders[name] = SyntheticRlds(data_dir=tmp_path / name, file_format=name)
        builders[name].download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
    assert list(builders["array_record"].data_path.glob("*train.array_record-00001-of-00002"))
    dataset = builders["tfrecord"].as_dataset(split=split, read_config=IN_ORDER)
    assert assert_same_dataset(RldsDirSource(builders["array_record"].data_dir, split=split), dataset) > 2
