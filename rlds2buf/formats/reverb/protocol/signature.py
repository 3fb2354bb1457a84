"""A Reverb table's signature: which columns its items have, as names, shapes and dtypes.

Source: struct.proto of TensorFlow, and how dm-reverb's Table uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.reverb.protocol.chunks import TENSOR_DTYPES, tensor_dtype
from rlds2buf.formats.reverb.protocol.messages import message

__all__ = ["TableField", "differences", "encode_signature", "flatten_signature", "flatten_spec"]

_DTYPES = {number: "string" if name == "object" else name for name, number in TENSOR_DTYPES.items()}


_TENSOR_NAMES: Final[Mapping[nest.Path, str]] = {
    ("step_type",): "step_type",
    ("next_step_type",): "step_type",
    ("discount",): "discount",
}
"""TF-Agents names these tensors, and compares the names too."""


class TableField(NamedTuple):
    """One leaf of a table's signature.

    Attributes:
        path: keys and positions down to it.
        shape: with the axis of steps, None for an axis of any length; None as a whole: any rank.
        dtype: numpy's name, ``"string"`` for byte strings.
    """

    path: nest.Path
    shape: tuple[int | None, ...] | None
    dtype: str

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


def flatten_signature(value: Any, path: nest.Path = ()) -> list[TableField]:
    """The leaves of a ``StructuredValue`` message, in the order in which Reverb keeps an item's columns.

    Dict keys are visited sorted, tuples and named tuples in their own order.

    Raises:
        SourceFormatError: it holds something that is neither a structure nor a tensor spec.
    """
    if value.HasField("tensor_spec_value"):
        return [_field(value.tensor_spec_value, path)]
    if value.HasField("bounded_tensor_spec_value"):
        return [_field(value.bounded_tensor_spec_value, path)]
    fields = []
    for key, child in _children(value, path):
        fields += flatten_signature(child, (*path, key))
    return fields


def _children(value: Any, path: nest.Path) -> Iterator[tuple[str | int, Any]]:
    if value.HasField("named_tuple_value"):
        for pair in value.named_tuple_value.values:
            yield pair.key, pair.value
    elif value.HasField("dict_value"):
        for entry in sorted(value.dict_value.fields, key=lambda entry: entry.key):
            yield entry.key, entry.value
    elif value.HasField("tuple_value") or value.HasField("list_value"):
        sequence = value.tuple_value if value.HasField("tuple_value") else value.list_value
        yield from enumerate(sequence.values)
    elif not value.HasField("none_value"):
        raise SourceFormatError(
            f"a table's signature has an unknown kind of value at {nest.path_name(path) or 'its top'}"
        )


def _field(spec: Any, path: nest.Path) -> TableField:
    shape = None
    if not spec.shape.unknown_rank:
        shape = tuple(None if dim.size < 0 else dim.size for dim in spec.shape.dim)
    return TableField(path, shape, _DTYPES.get(spec.dtype, f"dtype{spec.dtype}"))


def encode_signature(spec: nest.Nest, *, name: str = "Trajectory", path: nest.Path = ()) -> Any:
    """The ``StructuredValue`` message of a nest of :class:`~rlds2buf.core.spec.FieldSpec`.

    A float32 field with scalar limits becomes a bounded spec.

    Args:
        spec: dicts, tuples and NamedTuples of FieldSpec.
        name: of the type of the outermost NamedTuple; ones further in keep their own.
        path: where `spec` is in a larger nest.

    Raises:
        ValueError: a dtype that Reverb can't hold.
    """
    if isinstance(spec, FieldSpec):
        return _encode_field(spec, _TENSOR_NAMES.get(path, ""))
    if _is_namedtuple(spec):
        pairs = [
            message("PairValue", key=key, value=_encode_child(child, (*path, key)))
            for key, child in zip(spec._fields, spec, strict=True)
        ]
        kind = type(spec).__name__ if path else name
        return message("StructuredValue", named_tuple_value=message("NamedTupleValue", name=kind, values=pairs))
    if isinstance(spec, Mapping):
        fields = [message("FieldsEntry", key=key, value=_encode_child(spec[key], (*path, key))) for key in sorted(spec)]
        return message("StructuredValue", dict_value=message("DictValue", fields=fields))
    if isinstance(spec, tuple):
        values = [_encode_child(child, (*path, i)) for i, child in enumerate(spec)]
        return message("StructuredValue", tuple_value=message("TupleValue", values=values))
    return message("StructuredValue", none_value=message("NoneValue"))


def _encode_field(spec: FieldSpec, name: str) -> Any:
    dims = [message("Dim", size=-1 if size is None else size) for size in spec.shape]
    number = tensor_dtype(spec.dtype)
    known = {"name": name, "shape": message("TensorShape", dim=dims), "dtype": number}
    if spec.dtype != np.float32 or spec.low is None or spec.high is None:
        return message("StructuredValue", tensor_spec_value=message("TensorSpec", **known))
    low, high = (
        message("Tensor", dtype=number, tensor_shape=message("TensorShape"), float_val=[limit])
        for limit in (spec.low, spec.high)
    )
    bounded = message("BoundedTensorSpec", **known, minimum=low, maximum=high)
    return message("StructuredValue", bounded_tensor_spec_value=bounded)


def _encode_child(child: nest.Nest, path: nest.Path) -> Any:
    return encode_signature(child, path=path)


def flatten_spec(spec: nest.Nest, path: nest.Path = ()) -> list[tuple[nest.Path, FieldSpec]]:
    """The leaves of a nest of FieldSpec in :func:`flatten_signature`'s order; NamedTuple fields go by name.

    >>> flatten_spec({"b": FieldSpec((2,), np.float32), "a": ()})
    [(('b',), FieldSpec(float32[2]))]
    """
    if isinstance(spec, FieldSpec):
        return [(path, spec)]
    children: Iterable[tuple[str | int, nest.Nest]] = ()
    if _is_namedtuple(spec):
        children = zip(spec._fields, spec, strict=True)
    elif isinstance(spec, Mapping):
        children = sorted(spec.items())
    elif isinstance(spec, tuple):
        children = enumerate(spec)
    return [leaf for key, child in children for leaf in flatten_spec(child, (*path, key))]


def _is_namedtuple(value: nest.Nest) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def differences(data: Sequence[tuple[nest.Path, FieldSpec]], table: Sequence[TableField]) -> list[str]:
    """Where the data's fields and a table's differ: one line per field, empty if they fit.

    A None axis of the table takes any length, a None axis of the data needs a None axis.

    >>> data = [(("reward",), FieldSpec((2,), np.float32))]
    >>> differences(data, [TableField(("reward",), (None,), "float32")])
    []
    >>> differences(data, [TableField(("reward",), (2,), "float64"), TableField(("cost",), (2,), "int32")])
    ['reward: the data are float32[2], the table takes float64[2]', 'cost: only in the table, int32[2]']
    """
    lines = []
    theirs = {field.path: field for field in table}
    for path, field in data:
        name = nest.path_name(path)
        if path not in theirs:
            lines.append(f"{name}: only in the data, {field}")
        elif not _fits(field, theirs[path]):
            lines.append(f"{name}: the data are {field}, the table takes {theirs[path]}")
    ours = {path for path, _ in data}
    lines += [f"{nest.path_name(field.path)}: only in the table, {field}" for field in table if field.path not in ours]
    return lines


def _fits(data: FieldSpec, table: TableField) -> bool:
    dtype = "string" if data.dtype == np.dtype(object) else data.dtype.name
    if dtype != table.dtype:
        return False
    if table.shape is None:
        return True
    if len(data.shape) != len(table.shape):
        return False
    return all(there is None or here == there for here, there in zip(data.shape, table.shape, strict=True))
