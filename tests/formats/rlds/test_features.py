from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError, SourceNotFound
from rlds2buf.formats.rlds.features import Sequence, Tensor, describe, field_specs, parse_features, read_features
from tests.data import DATA, RLDS, TFDS_METADATA
from tests.made import BOTH, MADE

CORE = "tensorflow_datasets.core.features"


def proto(class_name, **content):
    return {"pythonClassName": f"{CORE}.x.{class_name}", **content}


def legacy(class_name, content, **more):
    return {"type": f"{CORE}.x.{class_name}", "content": content, **more}


@pytest.mark.parametrize(
    ("sets", "name"), [*itertools.product([DATA], RLDS + TFDS_METADATA), *itertools.product([MADE], RLDS)]
)
def test_published_files_parse(sets, name):
    steps = read_features(sets / name / "features.json")["steps"]
    assert isinstance(steps, Sequence) and steps.length is None
    assert {"observation", "action", "reward", "is_first", "is_last", "is_terminal"} <= set(steps.feature)
    assert steps.feature["is_first"].dtype == np.bool_
    # What was not understood would have lost the names.
    assert set(describe(steps)["sequence"]) == set(steps.feature)


@BOTH
def test_bridge(sets):
    steps = read_features(sets / "rlds/bridge_dataset/1.0.0/features.json")["steps"].feature
    assert steps["observation"]["image_0"] == StoredImage((64, 64, 3), np.dtype(np.uint8))
    assert steps["language_embedding"] == Tensor((512,), np.dtype(np.float32), stored="float32")
    assert steps["language_instruction"].dtype == np.dtype(object)


def test_encodings_and_limits():
    tensor = {"shape": {"dimensions": ["2", "-1"]}, "dtype": "int16", "encoding": "zlib", "minimum": "-1"}
    parsed = parse_features(proto("Tensor", tensor={**tensor, "maximum": "5"}))
    assert parsed == Tensor((2, None), np.dtype(np.int16), "zlib", "int16", False, -1, 5)
    assert field_specs(parsed) == FieldSpec((2, None), np.int16, -1, 5)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (
            legacy("Tensor", {"shape": [3, None], "dtype": "float64", "encoding": "bytes"}),
            proto("Tensor", tensor={"shape": {"dimensions": ["3", "-1"]}, "dtype": "float64", "encoding": "bytes"}),
        ),
        (
            legacy("Tensor", {"shape": [], "dtype": "bool"}),
            proto("Scalar", tensor={"shape": {}, "dtype": "bool", "encoding": "none"}),
        ),
        (
            legacy("Tensor", '{"shape": {"dimensions": ["2"]}, "dtype": "int32"}', proto_cls="tensorflow_datasets.x"),
            proto("Tensor", tensor={"shape": {"dimensions": ["2"]}, "dtype": "int32"}),
        ),
        (legacy("Text", {}), proto("Text", text={})),
        (legacy("Text", {"use_encoder": False}), proto("Text")),
        (legacy("ClassLabel", {"num_classes": 4}), proto("ClassLabel", classLabel={"numClasses": "4"})),
        (
            legacy("Image", {"shape": [None, 8, 3], "dtype": "uint8", "encoding_format": "png"}),
            proto("Image", image={"shape": {"dimensions": ["-1", "8", "3"]}, "dtype": "uint8"}),
        ),
        (
            legacy("Video", {"shape": [None, 8, 8, 3], "encoding_format": "png", "ffmpeg_extra_args": []}),
            proto("Video", video={"shape": {"dimensions": ["-1", "8", "8", "3"]}, "dtype": "uint8"}),
        ),
        (
            legacy("Sequence", {"feature": legacy("Text", {}), "length": None}),
            proto("Sequence", sequence={"feature": proto("Text", text={}), "length": "-1"}),
        ),
        (
            legacy("Sequence", {"feature": legacy("Text", {}), "length": 3}),
            proto("Sequence", sequence={"feature": proto("Text", text={}), "length": "3"}),
        ),
        (
            legacy("FeaturesDict", {"a": legacy("Text", {}), "features": legacy("ClassLabel", {"num_classes": 2})}),
            proto(
                "FeaturesDict",
                featuresDict={
                    "features": {"a": proto("Text"), "features": proto("ClassLabel", classLabel={"numClasses": "2"})}
                },
            ),
        ),
        (
            legacy("Tensor", {"shape": [2], "dtype": "float32"}),
            proto("Tensor", jsonFeature={"json": json.dumps({"shape": [2], "dtype": "float32"})}),
        ),
        (
            legacy("Audio", {"shape": [None], "dtype": "int64", "file_format": "wav"}),
            proto("Audio", audio={"shape": {"dimensions": ["-1"]}, "dtype": "int64", "encoding": "NONE"}),
        ),
        (legacy("BBoxFeature", {}), proto("BBoxFeature", boundingBox={"shape": {"dimensions": ["4"]}})),
    ],
)
def test_both_forms_mean_the_same(older, newer):
    assert parse_features(older) == parse_features(newer)


def test_translation_is_a_text_per_language():
    parsed = parse_features(proto("Translation", translation={"languages": ["de", "en"]}))
    assert describe(parsed) == {"de": "string[]", "en": "string[]"}


def test_bfloat16_is_read_as_float32():
    parsed = parse_features(proto("Tensor", tensor={"shape": {}, "dtype": "bfloat16", "encoding": "bytes"}))
    assert (parsed.dtype, parsed.stored) == (np.dtype(np.float32), "bfloat16")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected an object, got list"),
        ({}, 'neither "pythonClassName" nor "type"'),
        ({"type": 3, "content": {}}, "the class is no name"),
        (proto("Tensor", tensor=[]), "its content no object"),
        (proto("Tensor", tensor={"dtype": "float32"}), "malformed Tensor: KeyError: 'shape'"),
        (proto("Tensor", tensor={"shape": {}, "dtype": "float31"}), "unknown dtype 'float31'"),
        (proto("Tensor", tensor={"shape": {}, "dtype": "float32", "encoding": "lzma"}), "unknown encoding"),
        (proto("Tensor", tensor={"shape": {}, "dtype": "string", "encoding": "zlib"}), "strings can't be encoded"),
        (proto("Tensor", tensor={"shape": {"dimensions": ["-2"]}, "dtype": "int8"}), "a length of -2"),
        (proto("Image", image={"shape": {"dimensions": ["2", "2"]}, "dtype": "uint8"}), "images of shape"),
        (proto("Image", image={"shape": {"dimensions": ["2", "2", "3"]}, "dtype": "float32"}), "images of float32"),
        (proto("Audio", audio={"lazyDecode": True}), "audio stored as its own file"),
        (legacy("Text", {"use_encoder": True}), "text encoded as integers"),
        (legacy("Text", "not json"), "its content is not JSON"),
        (proto("Sequence", sequence={}), "malformed Sequence"),
        ({"pythonClassName": "my.own.Lidar", "tensor": {}}, "features of class 'Lidar' are not supported"),
        (legacy("FeaturesDict", {"a": {"b": legacy("Text", {})}}), "features/a: there is neither"),
    ],
)
def test_a_malformed_feature_is_named(value, message):
    with pytest.raises(SourceFormatError, match=message):
        parse_features(value)


def test_files_that_are_not_what_they_should_be(tmp_path):
    path = tmp_path / "features.json"
    with pytest.raises(SourceNotFound, match=r"features\.json"):
        read_features(path)
    for text in ("{", "[" * 100_000, json.dumps(proto("Text"))):
        path.write_text(text)
        with pytest.raises(SourceFormatError, match=r"features\.json: "):
            read_features(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceFormatError, match="not JSON"):
        read_features(path)


def test_specs_hold_the_sequences_lengths():
    tree = {
        "x": Sequence(Sequence(Tensor((2,), np.dtype(np.int8)), 4)),
        "i": StoredImage((None, None, 3), np.dtype(np.uint8)),
    }
    assert field_specs(tree) == {"x": FieldSpec((None, 4, 2), np.int8), "i": FieldSpec((None, None, 3), np.uint8)}
