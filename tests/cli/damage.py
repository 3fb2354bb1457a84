"""Datasets that are broken in one way each: copies of real ones, damaged."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import crc32c
import h5py
import numpy as np

from tests.data import DATA
from tests.made import MADE

__all__ = ["DAMAGES", "rlds_copy", "tfrecord"]

HOPPER = MADE / "rlds/d4rl_mujoco_hopper/v2-medium/1.2.0"
SHARD = "d4rl_mujoco_hopper-train.tfrecord-00000-of-00001"


def rlds_copy(folder: Path) -> Path:
    """A writable copy of the hopper dataset's version folder."""
    target = folder / "hopper" / "1.2.0"
    target.mkdir(parents=True)
    for file in HOPPER.iterdir():
        shutil.copyfile(file, target / file.name)
    return target


def tfrecord(payload: bytes) -> bytes:
    """One record framed as TFRecord files have it: length, masked CRC-32C, bytes, masked CRC-32C."""
    length = struct.pack("<Q", len(payload))
    return length + _masked(length) + payload + _masked(payload)


def _masked(data: bytes) -> bytes:
    crc = crc32c.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def truncated_shard(folder: Path) -> Path:
    path = rlds_copy(folder)
    whole = (path / SHARD).read_bytes()
    (path / SHARD).write_bytes(whole[:-100])
    return path


def flipped_byte(folder: Path) -> Path:
    path = rlds_copy(folder)
    data = bytearray((path / SHARD).read_bytes())
    data[len(data) // 2] ^= 1
    (path / SHARD).write_bytes(data)
    return path


def missing_shard(folder: Path) -> Path:
    path = rlds_copy(folder)
    info = json.loads((path / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["1", "1"]
    (path / "dataset_info.json").write_text(json.dumps(info))
    (path / SHARD).rename(path / SHARD.replace("of-00001", "of-00002"))
    return path


def other_features(folder: Path) -> Path:
    path = rlds_copy(folder)
    text = (path / "features.json").read_text()
    assert '"11"' in text
    (path / "features.json").write_text(text.replace('"11"', '"12"'))
    return path


def endless_varint(folder: Path) -> Path:
    path = rlds_copy(folder)
    (path / SHARD).write_bytes(tfrecord(b"\x0a" + b"\xff" * 40))
    return path


def hdf5_without_actions(folder: Path) -> Path:
    path = folder / "no-actions.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.zeros((4, 3), np.float32)
        file["rewards"] = np.zeros(4, np.float32)
        file["terminals"] = np.array([0, 0, 0, 1], bool)
        file["timeouts"] = np.zeros(4, bool)
    return path


def truncated_hdf5(folder: Path) -> Path:
    path = folder / "cut.hdf5"
    path.write_bytes((MADE / "d4rl/hopper_medium.hdf5").read_bytes()[:5000])
    return path


def minari_without_metadata(folder: Path) -> Path:
    target = folder / "random-v0"
    (target / "data").mkdir(parents=True)
    shutil.copyfile(MADE / "minari/cartpole/random-v0/data/main_data.hdf5", target / "data" / "main_data.hdf5")
    return target


def robosuite(folder: Path) -> Path:
    return DATA / "negative/robosuite-wipe-demo.hdf5"


def tf_agents_records(folder: Path) -> Path:
    return DATA / "negative/antmaze-medium-play-v0_0.tfrecord"


def nothing(folder: Path) -> Path:
    return folder / "not-there"


def empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def text_file(folder: Path) -> Path:
    (folder / "notes.txt").write_text("hello")
    return folder / "notes.txt"


# How, and what the message must name.
DAMAGES: list[tuple[Callable[[Path], Path], str, list[str]]] = [
    (truncated_shard, "SourceFormatError", [SHARD]),
    (flipped_byte, "SourceFormatError", [SHARD]),
    (missing_shard, "SourceNotFound", ["d4rl_mujoco_hopper-train.tfrecord-0000"]),
    (other_features, "SourceFormatError", ["observation"]),
    (endless_varint, "SourceFormatError", [SHARD]),
    (hdf5_without_actions, "SourceFormatError", ["no-actions.hdf5", "actions"]),
    (truncated_hdf5, "SourceFormatError", ["cut.hdf5"]),
    (minari_without_metadata, "SourceFormatError", ["metadata.json"]),
    (robosuite, "SourceFormatError", ["robosuite"]),
    (tf_agents_records, "SourceFormatError", ["TF-Agents"]),
    (nothing, "SourceNotFound", ["not-there"]),
    (empty_folder, "SourceFormatError", ["empty"]),
    (text_file, "SourceFormatError", ["notes.txt"]),
]
