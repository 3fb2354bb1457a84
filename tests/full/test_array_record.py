"""ArrayRecord folders that TFDS itself has converted from TFRecord, against what TFDS reads from the TFRecord ones."""

from __future__ import annotations

import pytest

from rlds2buf.sources.rlds_dir import RldsDirSource
from tests.data import DATA
from tests.full.quiet import tfds
from tests.full.test_rlds_dir import IN_ORDER, SyntheticRlds
from tests.full.tfds_compare import assert_same_dataset

FOLDERS = sorted(
    folder for path in (DATA / "rlds").glob("**/features.json")
    if "bridge" not in str(folder := path.parent)  # TFDS converts all splits it lists, and one has no file
)


def convert(folder, target):
    from tensorflow_datasets.scripts.cli.convert_format_utils import convert_dataset

    target.mkdir()
    copy = target / folder.name
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).symlink_to(file)
    convert_dataset(out_dir=None, out_file_format="array_record", dataset_version_dir=copy, num_workers=1)
    for file in copy.glob("*.tfrecord-*"):
        file.unlink()
    return copy


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "-".join(folder.parts[-3:-1]))
def test_converted_by_tfds(folder, tmp_path):
    converted = convert(folder, tmp_path / "converted")
    source = RldsDirSource(converted)
    assert source.details()["file_format"] == "array_record"
    dataset = tfds.builder_from_directory(folder).as_dataset(split="train")
    assert assert_same_dataset(source, dataset) > 100


def test_folders_are_there():
    assert len(FOLDERS) == 4


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
