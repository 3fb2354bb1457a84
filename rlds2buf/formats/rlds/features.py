"""features.json: what TFDS wrote down about the shape, dtype and encoding of every feature.

Two forms are about.  Since TFDS 4.4 a feature is a message as JSON, with its class and one member
that holds the content::

    {"pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
     "tensor": {"shape": {"dimensions": ["17"]}, "dtype": "float32", "encoding": "none"}}

Before, it was a type and a content, whose form is the class's own::

    {"type": "tensorflow_datasets.core.features.tensor_feature.Tensor",
     "content": {"shape": [17], "dtype": "float32", "encoding": "none"}}

Both become one tree: a dict for a FeaturesDict, :class:`Sequence` (also for Dataset and Video),
:class:`Tensor` (also for Scalar, Text, ClassLabel, Audio and BBoxFeature) and a
:class:`~rlds2buf.codecs.images.stored_image.StoredImage`.

Source: tensorflow_datasets/core/features, https://github.com/tensorflow/datasets
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.core.dtypes import dtype_name
from rlds2buf.core.json_text import integer_of, parse_json
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceError, SourceFormatError, SourceNotFound

__all__ = [
    "FeatureTree",
    "Sequence",
    "Tensor",
    "describe",
    "field_specs",
    "parse_features",
    "read_features",
    "with_images",
]

Shape = tuple[int | None, ...]

_DTYPES: Final = {
    name: np.dtype(name)
    for name in (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
    ).split()
}
_STRING: Final = np.dtype(object)
_BFLOAT16: Final = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Values of one shape and dtype.

    Attributes:
        shape: None where the length varies.
        dtype: numpy dtype of the decoded values; ``object`` for byte strings.
        encoding: ``"none"`` (in the message itself), ``"bytes"`` (raw) or ``"zlib"`` (raw, compressed).
        stored: the dtype's name on disk; differs from `dtype` for bfloat16, which numpy lacks and
            which is decoded to float32, an exact superset.
        optional: records may leave it out.
        low, high: inclusive limits, or None.
    """

    shape: Shape
    dtype: np.dtype
    encoding: str = "none"
    stored: str = ""
    optional: bool = False
    low: Any = None
    high: Any = None

    @property
    def num_unknown(self) -> int:
        """How many axes have no fixed length."""
        return self.shape.count(None)


@dataclasses.dataclass(frozen=True)
class Sequence:
    """A row of features, of fixed `length` or (None) not; `steps` of RLDS is one."""

    feature: FeatureTree
    length: int | None = None


FeatureTree = Tensor | StoredImage | Sequence | dict[str, "FeatureTree"]


def read_features(path: Path) -> dict[str, FeatureTree]:
    """Parse a ``features.json``.

    Raises:
        SourceNotFound: there is no such file.
        SourceFormatError: it is not JSON, or not what TFDS writes; the message names the feature.
    """
    try:
        tree = parse_features(parse_json(path.read_text(encoding="utf-8")))
    except FileNotFoundError as cause:
        raise SourceNotFound(f"{path}: no such file") from cause
    except OSError as cause:
        raise SourceError(f"{path}: {cause.strerror or cause}") from cause
    except SourceFormatError as cause:
        raise cause.at(path) from cause
    except ValueError as cause:
        raise SourceFormatError(f"{path}: not JSON: {cause}") from cause
    if not isinstance(tree, dict):
        raise SourceFormatError(f"{path}: the top is not a FeaturesDict")
    return tree


def parse_features(value: Any, name: str = "features") -> FeatureTree:
    """Parse one feature, in either form, from plain JSON values.

    Args:
        value: the JSON value.
        name: how messages call it.

    Raises:
        SourceFormatError: it is not what TFDS writes, or a class this reader does not know.

    >>> parse_features({"type": "tensorflow_datasets.core.features.text_feature.Text", "content": {}}).dtype
    dtype('O')
    """
    class_name, content = _class_and_content(value, name)
    parse = _PARSERS.get(class_name)
    if parse is None:
        known = ", ".join(sorted(_PARSERS))
        raise SourceFormatError(f"{name}: features of class {class_name!r} are not supported (supported: {known})")
    try:
        return parse(content, name)
    except SourceFormatError:
        raise
    except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as cause:
        raise SourceFormatError(f"{name}: malformed {class_name}: {type(cause).__name__}: {cause}") from cause


def with_images(feature: FeatureTree, **changes: Any) -> FeatureTree:
    """The same feature with attributes of every StoredImage in it changed.

    >>> with_images({"image": StoredImage((8, 8, 3), np.dtype("u1"))}, size=(4, 4))["image"].out_shape
    (4, 4, 3)
    """
    if isinstance(feature, dict):
        return {key: with_images(child, **changes) for key, child in feature.items()}
    if isinstance(feature, Sequence):
        return dataclasses.replace(feature, feature=with_images(feature.feature, **changes))
    return dataclasses.replace(feature, **changes) if isinstance(feature, StoredImage) else feature


def describe(feature: FeatureTree) -> Any:
    """The tree as plain JSON values for people: ``"float32[17]"``, ``"image uint8[64, 64, 3]"``.

    >>> describe({"x": Tensor((3,), np.dtype("f4")), "s": Sequence(StoredImage((8, 8, 3), np.dtype("u1")), 2)})
    {'s': 'image uint8[2, 8, 8, 3]', 'x': 'float32[3]'}
    """
    if isinstance(feature, dict):
        return {key: describe(feature[key]) for key in sorted(feature)}
    lengths: Shape = ()
    while isinstance(feature, Sequence):
        lengths = (*lengths, feature.length)
        feature = feature.feature
    if isinstance(feature, dict):
        return {"sequence": describe(feature)}
    dims = ", ".join("?" if n is None else str(n) for n in lengths + feature.shape)
    kind = "image " if isinstance(feature, StoredImage) else ""
    return f"{kind}{dtype_name(feature.dtype)}[{dims}]"


def field_specs(feature: FeatureTree, lengths: Shape = ()) -> Any:
    """The nest of :class:`~rlds2buf.core.spec.FieldSpec` of the decoded feature; `lengths` are axes before it."""
    if isinstance(feature, dict):
        return {key: field_specs(child, lengths) for key, child in feature.items()}
    if isinstance(feature, Sequence):
        return field_specs(feature.feature, (*lengths, feature.length))
    if isinstance(feature, StoredImage):
        if feature.keep_encoded:
            return FieldSpec(lengths, np.dtype(object), image=FieldSpec(feature.shape, feature.dtype))
        return FieldSpec(lengths + feature.out_shape, feature.dtype)
    return FieldSpec(lengths + feature.shape, feature.dtype, feature.low, feature.high)


def _class_and_content(value: Any, name: str) -> tuple[str, Any]:
    if not isinstance(value, Mapping):
        raise SourceFormatError(f"{name}: expected an object, got {type(value).__name__}")
    if "type" in value and "content" in value:
        class_name, content = value["type"], value["content"]
        if isinstance(content, str):
            content = _inner_json(content, name)
    elif "pythonClassName" in value:
        class_name = value["pythonClassName"]
        contents = [value[key] for key in _CONTENT_KEYS if key in value]
        # A message without fields, such as Text's, may be left out of the JSON.
        content = contents[0] if contents else {}
        if "jsonFeature" in value:
            content = _inner_json(value["jsonFeature"].get("json"), name)
    else:
        raise SourceFormatError(f'{name}: there is neither "pythonClassName" nor "type" and "content"')
    if not isinstance(class_name, str) or not isinstance(content, Mapping):
        raise SourceFormatError(f"{name}: the class is no name, or its content no object")
    return class_name.rsplit(".", 1)[-1], content


def _inner_json(text: Any, name: str) -> Any:
    try:
        return parse_json(text)
    except (TypeError, ValueError) as cause:
        raise SourceFormatError(f"{name}: its content is not JSON: {cause}") from cause


_CONTENT_KEYS: Final = (
    "featuresDict tensor classLabel image video audio boundingBox text translation sequence jsonFeature"
).split()


def _get(content: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """A member by its camelCase name or, as older files spell it, its snake_case one."""
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in key)
    value = content.get(key, content.get(snake))
    return default if value is None else value


def _shape(content: Mapping[str, Any], default: Shape | None = None) -> Shape:
    shape = content.get("shape")
    if shape is None:
        if default is None:
            raise KeyError("shape")
        return default
    dims = shape.get("dimensions", ()) if isinstance(shape, Mapping) else shape
    out: list[int | None] = []
    for dim in dims:
        length = -1 if dim is None else integer_of(dim)
        if length < -1:
            raise ValueError(f"a length of {length}")
        out.append(None if length == -1 else length)
    return tuple(out)


def _dtype(name: Any) -> tuple[np.dtype, str]:
    """The decoded dtype and the name of the stored one."""
    if name in ("string", "object", "str"):
        return _STRING, "string"
    if name == _BFLOAT16:
        return _DTYPES["float32"], _BFLOAT16
    if name not in _DTYPES:
        raise ValueError(f"unknown dtype {name!r}")
    return _DTYPES[name], str(name)


def _tensor(content: Mapping[str, Any], name: str) -> Tensor:
    return _make_tensor(content, name, _shape(content))


def _make_tensor(content: Mapping[str, Any], name: str, shape: Shape, default_dtype: str | None = None) -> Tensor:
    dtype, stored = _dtype(_get(content, "dtype", default_dtype))
    encoding = str(_get(content, "encoding", "none")).rsplit(".", 1)[-1].lower() or "none"
    if encoding not in ("none", "bytes", "zlib"):
        raise ValueError(f"unknown encoding {encoding!r}")
    if encoding != "none" and dtype == _STRING:
        raise ValueError(f"strings can't be encoded as {encoding}")
    low, high = (_limit(_get(content, key), dtype) for key in ("minimum", "maximum"))
    return Tensor(shape, dtype, encoding, stored, bool(_get(content, "optional", False)), low, high)


def _limit(value: Any, dtype: np.dtype) -> Any:
    if value is None or dtype.kind not in "iuf":
        return None
    limit = np.asarray(value, dtype=object)
    number = float if dtype.kind == "f" else int
    return number(value) if limit.ndim == 0 else np.vectorize(number, otypes=[object])(limit).tolist()


def _scalar(content: Mapping[str, Any], name: str) -> Tensor:
    return _make_tensor(content, name, ())


def _text(content: Mapping[str, Any], name: str) -> Tensor:
    if _get(content, "useEncoder", False):
        raise SourceFormatError(f"{name}: text encoded as integers is not supported")
    return Tensor((), _STRING, stored="string", optional=bool(_get(content, "optional", False)))


def _class_label(content: Mapping[str, Any], name: str) -> Tensor:
    num_classes = integer_of(_get(content, "numClasses", 0))
    # -1 stands for no label.
    limits = (-1, num_classes - 1) if num_classes > 0 else (None, None)
    return Tensor((), _DTYPES["int64"], "none", "int64", False, *limits)


def _image(content: Mapping[str, Any], name: str) -> StoredImage:
    shape = _shape(content, (None, None, 3)) or (None, None, 3)
    dtype, stored = _dtype(_get(content, "dtype", "uint8") or "uint8")
    if len(shape) != 3 or shape[2] not in (1, 2, 3, 4):
        raise SourceFormatError(f"{name}: images of shape {list(shape)} are not supported")
    if stored not in ("uint8", "uint16") and (stored, shape[2]) != ("float32", 1):
        raise SourceFormatError(f"{name}: images of {stored} with {shape[2]} channels are not supported")
    return StoredImage(shape, dtype)


def _video(content: Mapping[str, Any], name: str) -> Sequence:
    shape = _shape(content, (None, None, None, 3)) or (None, None, None, 3)
    if len(shape) != 4:
        raise ValueError(f"a video of shape {list(shape)}")
    return Sequence(_image({**content, "shape": list(shape[1:])}, name), shape[0])


def _audio(content: Mapping[str, Any], name: str) -> Tensor:
    if _get(content, "lazyDecode", False):
        raise SourceFormatError(f"{name}: audio stored as its own file is not supported")
    return _make_tensor(content, name, _shape(content, (None,)), "int64")


def _bounding_box(content: Mapping[str, Any], name: str) -> Tensor:
    return _make_tensor(content, name, (4,), "float32")


def _translation(content: Mapping[str, Any], name: str) -> dict[str, FeatureTree]:
    return {str(language): _text({}, name) for language in content["languages"]}


def _features_dict(content: Mapping[str, Any], name: str) -> dict[str, FeatureTree]:
    # The older form is the mapping itself; a feature that happens to be called "features" has a class.
    inner = content.get("features", {} if not content else content)
    if isinstance(inner, Mapping) and ("pythonClassName" in inner or "type" in inner):
        inner = content
    if not isinstance(inner, Mapping):
        raise TypeError("its features are no object")
    return {str(key): parse_features(child, f"{name}/{key}") for key, child in inner.items()}


def _sequence(content: Mapping[str, Any], name: str) -> Sequence:
    length = integer_of(_get(content, "length", -1))
    return Sequence(parse_features(content["feature"], name), None if length < 0 else length)


_PARSERS: Final[Mapping[str, Callable[[Mapping[str, Any], str], FeatureTree]]] = {
    "Audio": _audio,
    "BBoxFeature": _bounding_box,
    "ClassLabel": _class_label,
    "Dataset": _sequence,
    "FeaturesDict": _features_dict,
    "Image": _image,
    "LabeledImage": _image,
    "Scalar": _scalar,
    "Sequence": _sequence,
    "Tensor": _tensor,
    "Text": _text,
    "Translation": _translation,
    "Video": _video,
}
