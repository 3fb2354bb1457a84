"""Pictures of RLDS folders: decoded, or the files as they are."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import rlds2buf
from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.sources.rlds_dir import RldsDirSource
from rlds2buf.wire.images import decode_images
from tests.contracts.source import SourceContract, assert_same_episode
from tests.data import DATA
from tests.sources.rlds_folder import CORE, STEPS, episode, rlds, sequence, write_folder

BRIDGE = DATA / "rlds/bridge_dataset"
PICTURE = FieldSpec((), object, image=FieldSpec((64, 64, 3), np.uint8))
RNG = np.random.default_rng(11)


def image_feature(height: int, width: int, channels: int = 3) -> dict:
    dims = {"dimensions": [str(n) for n in (height, width, channels)]}
    return {
        "pythonClassName": f"{CORE}.image_feature.Image",
        "image": {"shape": dims, "dtype": "uint8", "encodingFormat": "jpeg"},
    }


def file_of(pixels: np.ndarray, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()


def files_of(count: int, height: int = 6, width: int = 8) -> list[bytes]:
    return [file_of(RNG.integers(0, 256, (height, width, 3), np.uint8)) for _ in range(count)]


def folder_of(path, features, records, **metadata_features):
    """An RLDS folder of episodes of :data:`STEPS` with these step features more."""
    return write_folder(path / "toy" / "1.0.0", {"train": [records]}, rlds({**STEPS, **features}, **metadata_features))


class TestEncodedContract(SourceContract):
    @pytest.fixture
    def make_source(self):
        return lambda: RldsDirSource(BRIDGE, split="train[:4]", images="encoded")

    test_fingerprint_changes_with_the_content = None  # these files stay as they are


def test_encoded_pictures_are_the_files_untouched():
    (decoded,) = RldsDirSource(BRIDGE, split="train[:1]")
    source = RldsDirSource(BRIDGE, split="train[:1]", images="encoded")
    (encoded,) = source
    assert source.spec.observation["image_0"] == PICTURE
    for i in range(4):
        files = encoded.observation[f"image_{i}"]
        assert files.dtype == object and files.shape == (encoded.num_steps,)
        assert all(isinstance(file, bytes) and file[:3] == b"\xff\xd8\xff" for file in files)
        assert np.array_equal(decode_images(files.tolist(), 3), decoded.observation[f"image_{i}"])
    others = {path: column for path, column in encoded.flatten() if "image_" not in nest.path_name(path)}
    for path, column in others.items():
        assert column.tolist() == dict(decoded.flatten())[path].tolist()


def test_encoded_is_chosen_unless_the_choice_was_made():
    source = RldsDirSource(BRIDGE)
    other = source.encoded()
    assert other.spec.observation["image_2"] == PICTURE
    assert source.spec.observation["image_2"] == FieldSpec((64, 64, 3), np.uint8)
    assert other.name == source.name and other.num_episodes == source.num_episodes
    assert other.fingerprint() != source.fingerprint()
    assert_same_episode(next(iter(other)), next(iter(RldsDirSource(BRIDGE, images="encoded"))))
    for images in ("decoded", "encoded"):
        chosen = RldsDirSource(BRIDGE, images=images)
        assert chosen.encoded() is chosen
    plain = RldsDirSource(DATA / "rlds/robomimic_ph")
    assert plain.encoded() is plain
    with pytest.raises(ValueError, match="images must be one of decoded, encoded, got 'none'"):
        RldsDirSource(BRIDGE, images="none")


def test_encoded_sequences_and_metadata(tmp_path):
    files = files_of(9)
    features = {
        "pair": sequence(image_feature(6, 8), length=2),
        "some": sequence(image_feature(6, 8)),
    }
    record = {
        **episode(0, 3),
        "steps/pair/ragged_flat_values": ("bytes", files[:6]),
        "steps/pair/ragged_row_lengths_0": ("int64", [2, 2, 2]),
        "steps/some/ragged_flat_values": ("bytes", files[6:9]),
        "steps/some/ragged_row_lengths_0": ("int64", [1, 0, 2]),
        "poster": ("bytes", files[:1]),
    }
    folder = folder_of(tmp_path, features, [record], poster=image_feature(6, 8))
    source = RldsDirSource(folder, images="encoded")
    (ep,) = source
    source.spec.check(ep)
    assert ep.extras["pair"].dtype == object and ep.extras["pair"].tolist() == [files[:2], files[2:4], files[4:6]]
    assert [row.tolist() for row in ep.extras["some"]] == [files[6:7], [], files[7:9]]
    assert ep.metadata["poster"] == files[0]
    image = FieldSpec((6, 8, 3), np.uint8)
    assert source.spec.extras["pair"] == FieldSpec((2,), object, image=image)
    assert source.spec.extras["some"] == FieldSpec((None,), object, image=image)


def test_encoded_pictures_pass_the_checks():
    report = rlds2buf.validate(RldsDirSource(BRIDGE, images="encoded"))
    other = rlds2buf.validate(RldsDirSource(BRIDGE))
    assert [(issue.rule, issue.episode, issue.path) for issue in report.issues] == [
        (issue.rule, issue.episode, issue.path) for issue in other.issues
    ]
