"""What features.json says of step fields: which feature each becomes, and the file itself.

============================================  ==================================================================
a field of                                    is written as
============================================  ==================================================================
bool, integers, float16, float32              Tensor; large rows of integers with encoding ``bytes``
float64, complex; shapes with a length of 0   Tensor with encoding ``bytes``, for TFDS stores floats as float32
byte strings                                  Text, or Tensor of strings
lengths that vary                             Tensor with encoding ``bytes``; of strings and uint32, which can't
                                              be had so, a Sequence for each axis up to the last that varies
files of pictures (``FieldSpec.image``)       StoredImage, the files as they are
pixels, if pictures are asked for             StoredImage, as PNG
============================================  ==================================================================

Source: tensorflow_datasets/core/features, https://github.com/tensorflow/datasets
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.core import nest
from rlds2buf.core.dtypes import dtype_name
from rlds2buf.core.fields import STEP_FIELDS
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.rlds.features import FeatureTree, Sequence, Shape, Tensor

__all__ = ["features_json", "names_of", "step_features"]

_CORE: Final = "tensorflow_datasets.core.features"
_STORED: Final = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)
_ONLY_AS_BYTES: Final = ("float64", "complex64", "complex128")
_NEVER_AS_BYTES: Final = "uint32"
"""TensorFlow can't decode raw bytes to this dtype."""
_LARGE_ROW: Final = 1024
_PICTURE_SIDE: Final = 32
_PICTURE_CHANNELS: Final = (1, 3, 4)


def step_features(spec: StepSpec, *, images: str = "png") -> tuple[dict[str, FeatureTree], dict[str, str]]:
    """The features of a step, and what of the spec has none: field to the reason.

    Tuples become dicts with the keys ``"0"``, ``"1"``, ...

    Args:
        spec: of the episodes.
        images: what pixels become: ``"png"``, StoredImage where they look like a picture, that is uint8 or
            uint16 ``[height, width, 1, 3 or 4]`` of at least 32 by 32; ``"tensor"``, Tensor always.

    >>> step_features(StepSpec(observation=FieldSpec((3,), "f4"), discount=None))[0]["observation"].shape
    (3,)
    """
    tree: dict[str, Any] = {}
    lost: dict[str, str] = {}
    taken: set[str] = set()
    for path, field in spec.fields():
        names, name = names_of(path), nest.path_name(path)
        if (path[0] == "extras" and names[0] in STEP_FIELDS) or "/".join(names) in taken:
            lost[name] = "another field of a step has this name in RLDS"
            continue
        try:
            feature = _feature_of(field, images)
        except ValueError as cause:
            lost[name] = str(cause)
            continue
        if field.dtype.kind in "SU":
            lost[name] = f"text of fixed width ({field.dtype.str}) is read back as byte strings"
        taken.add("/".join(names))
        here = tree
        for part in names[:-1]:
            here = here.setdefault(part, {})
        here[names[-1]] = feature
    return tree, lost


def names_of(path: nest.Path) -> tuple[str, ...]:
    """The names of a field in a step, from outside in; `path` is its path in an episode.

    >>> names_of(("extras", "infos", 0))
    ('infos', '0')
    """
    return tuple(str(part) for part in (path[1:] if path[0] == "extras" else path))


def features_json(features: Mapping[str, FeatureTree], formats: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The features of a dataset as the plain JSON values of a ``features.json``.

    Args:
        features: by name; ``steps`` is written as a Dataset.
        formats: ``"jpeg"`` or ``"png"`` of Images, by their keys; what is not named is left open.

    >>> sorted(features_json({"id": Tensor((), np.dtype("i8"))}))
    ['featuresDict', 'pythonClassName']
    """
    entries = {}
    for name, feature in features.items():
        entries[name] = _json(feature, name, formats or {})
        if name == "steps":
            entries[name]["pythonClassName"] = f"{_CORE}.dataset_feature.Dataset"
    return _features_dict(entries)


def _feature_of(field: FieldSpec, images: str) -> FeatureTree:
    if field.image is not None:
        return _in_sequences(StoredImage(_image_shape(field.image), field.image.dtype), len(field.shape))
    shape = field.shape
    if field.dtype.kind in "OSU":
        outer = _outer_axes(shape)
        return _in_sequences(Tensor(shape[outer:], np.dtype(object), stored="string"), outer)
    name = dtype_name(field.dtype)
    if name not in _STORED:
        raise ValueError(f"TFDS has no dtype {field.dtype}")
    dtype = np.dtype(name)
    if images == "png" and _is_picture(shape, dtype):
        return StoredImage(shape, dtype)
    by_shape = None in shape or 0 in shape
    if by_shape and name == _NEVER_AS_BYTES:
        outer = _outer_axes(shape)
        return _in_sequences(Tensor(shape[outer:], dtype, stored=name), outer)
    if None in shape:  # beside a length of 0 another one can't be told from the number of bytes
        shape = tuple(length or None for length in shape)
    large = dtype.kind in "biu" and not by_shape and math.prod(shape) >= _LARGE_ROW  # type: ignore[arg-type]
    encoded = by_shape or name in _ONLY_AS_BYTES or (large and name != _NEVER_AS_BYTES)
    return Tensor(shape, dtype, "bytes" if encoded else "none", name)


def _outer_axes(shape: Shape) -> int:
    """How many axes there are up to the last whose length varies or is 0."""
    return max((i + 1 for i, length in enumerate(shape) if not length), default=0)


def _in_sequences(feature: FeatureTree, count: int) -> FeatureTree:
    for _ in range(count):
        feature = Sequence(feature)
    return feature


def _image_shape(image: FieldSpec) -> Shape:
    if len(image.shape) != 3 or image.shape[2] not in (1, 2, 3, 4):
        raise ValueError(f"TFDS has no pictures of shape {list(image.shape)}")
    if image.dtype.name not in ("uint8", "uint16") and (image.dtype.name, image.shape[2]) != ("float32", 1):
        raise ValueError(f"TFDS has no pictures of {image.dtype}")
    return image.shape


def _is_picture(shape: Shape, dtype: np.dtype) -> bool:
    if dtype not in (np.uint8, np.uint16) or len(shape) != 3 or shape[2] not in _PICTURE_CHANNELS:
        return False
    return all(side is None or side >= _PICTURE_SIDE for side in shape[:2])


def _json(feature: FeatureTree, key: str, formats: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(feature, dict):
        return _features_dict({name: _json(child, f"{key}/{name}", formats) for name, child in feature.items()})
    if isinstance(feature, Sequence):
        content = {"feature": _json(feature.feature, key, formats), "length": "-1"}
        return {"pythonClassName": f"{_CORE}.sequence_feature.Sequence", "sequence": content}
    if isinstance(feature, StoredImage):
        image: dict[str, Any] = {"shape": _shape_json(feature.shape), "dtype": feature.dtype.name}
        if formats.get(key):
            image["encodingFormat"] = formats[key]
        return {"pythonClassName": f"{_CORE}.image_feature.Image", "image": image}
    if feature.dtype == object and not feature.shape:
        return {"pythonClassName": f"{_CORE}.text_feature.Text", "text": {}}
    tensor = {
        "shape": _shape_json(feature.shape),
        "dtype": dtype_name(feature.dtype),
        "encoding": feature.encoding,
    }
    if feature.shape == () and feature.encoding == "none":
        return {"pythonClassName": f"{_CORE}.scalar.Scalar", "tensor": tensor}
    return {"pythonClassName": f"{_CORE}.tensor_feature.Tensor", "tensor": tensor}


def _features_dict(entries: Mapping[str, Any]) -> dict[str, Any]:
    content = {"features": dict(entries)}
    return {"pythonClassName": f"{_CORE}.features_dict.FeaturesDict", "featuresDict": content}


def _shape_json(shape: Shape) -> dict[str, Any]:
    return {"dimensions": ["-1" if n is None else str(n) for n in shape]} if shape else {}
