"""Reverb's messages, as far as we read or write them whole.

The field numbers are those of dm-reverb's and TensorFlow's public .proto files, so the bytes are
theirs; the package name is our own and the pool is private, so they live beside dm-reverb and
TensorFlow in one process, under protobuf 4.25 as well as newer ones.  What is written in bulk (items,
chunks) does not pass through these classes; see :mod:`rlds2buf.formats.reverb.protocol.item_encoder` and
:mod:`rlds2buf.formats.reverb.protocol.chunks`.

Sources: reverb_service.proto, schema.proto and checkpoint.proto in
https://github.com/google-deepmind/reverb; tensor.proto and struct.proto of TensorFlow.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from rlds2buf.errors import MissingDependency

__all__ = ["METHODS", "message", "messages"]

METHODS: Final = {
    name: f"/deepmind.reverb.ReverbService/{name}"
    for name in ("InsertStream", "SampleStream", "ServerInfo", "Reset", "Checkpoint", "InitializeConnection")
}
"""gRPC paths of the calls."""

_PACKAGE: Final = "rlds2buf.reverb"

# One message per line: "Name: field=number type, ..."; "*" after a type is repeated, a name that is
# not a scalar is another message.  Only the fields that we use; protobuf keeps or skips the rest.
_DEFINITIONS: Final = """
Timestamp: seconds=1 int64, nanos=2 int32
Uint128: high=1 uint64, low=2 uint64
Timeout: milliseconds=1 int64
Dim: size=1 int64, name=2 string
TensorShape: dim=2 Dim*, unknown_rank=3 bool
Tensor: dtype=1 int32, tensor_shape=2 TensorShape, version_number=3 int32, tensor_content=4 bytes, half_val=13 int32*, \
float_val=5 float*, double_val=6 double*, int_val=7 int32*, string_val=8 bytes*, int64_val=10 int64*, bool_val=11 bool*
NoneValue:
ListValue: values=1 StructuredValue*
TupleValue: values=1 StructuredValue*
FieldsEntry: key=1 string, value=2 StructuredValue
DictValue: fields=1 FieldsEntry*
PairValue: key=1 string, value=2 StructuredValue
NamedTupleValue: name=1 string, values=2 PairValue*
TensorSpec: name=1 string, shape=2 TensorShape, dtype=3 int32
BoundedTensorSpec: name=1 string, shape=2 TensorShape, dtype=3 int32, minimum=4 Tensor, maximum=5 Tensor
StructuredValue: none_value=1 NoneValue, tensor_spec_value=33 TensorSpec, \
bounded_tensor_spec_value=35 BoundedTensorSpec, list_value=51 ListValue, tuple_value=52 TupleValue, \
dict_value=53 DictValue, named_tuple_value=54 NamedTupleValue
SequenceRange: episode_id=1 uint64, start=2 int32, end=3 int32, sparse=4 bool
ChunkContent: tensors=1 Tensor*
ChunkData: chunk_key=1 uint64, sequence_range=2 SequenceRange, delta_encoded=4 bool, data=5 ChunkContent, \
data_tensors_len=6 int32, data_uncompressed_size=7 int64, deprecated_data=3 Tensor*
ChunkSlice: chunk_key=1 uint64, offset=2 int32, length=3 int32, index=4 int32
Column: chunk_slices=1 ChunkSlice*, squeeze=2 bool
FlatTrajectory: columns=1 Column*
SliceRange: offset=1 int32, length=2 int32
PrioritizedItem: key=1 uint64, table=2 string, priority=5 double, times_sampled=6 int32, inserted_at=7 Timestamp, \
flat_trajectory=8 FlatTrajectory, deprecated_chunk_keys=3 uint64*, deprecated_sequence_range=4 SliceRange
SampleInfo: item=1 PrioritizedItem, probability=2 double, table_size=3 int64, rate_limited=4 bool
Prioritized: priority_exponent=1 double
Heap: min_heap=1 bool
KeyDistribution: fifo=1 bool, uniform=2 bool, prioritized=3 Prioritized, heap=4 Heap, lifo=6 bool, \
is_deterministic=7 bool
CallStats: completed=2 int64
RateLimiterInfo: samples_per_insert=1 double, min_diff=2 double, max_diff=3 double, min_size_to_sample=4 int64, \
insert_stats=5 CallStats, sample_stats=6 CallStats
TableWorkerTime:
TableInfo: name=8 string, sampler_options=1 KeyDistribution, remover_options=2 KeyDistribution, max_size=3 int64, \
max_times_sampled=4 int32, rate_limiter_info=5 RateLimiterInfo, signature=6 StructuredValue, current_size=7 int64, \
num_episodes=9 int64, num_deleted_episodes=10 int64, num_unique_samples=11 int64, table_worker_time=12 TableWorkerTime
ServerInfoResponse: tables_state_id=1 Uint128, table_info=2 TableInfo*
InsertStreamRequest: chunks=1 ChunkData*, items=2 PrioritizedItem*, keep_chunk_keys=3 uint64*
InsertStreamResponse: keys=1 uint64*
SampleStreamRequest: table=1 string, num_samples=2 int64, rate_limiter_timeout=3 Timeout
SampleEntry: info=1 SampleInfo, data=2 ChunkData*, end_of_sequence=3 bool
SampleStreamResponse: entries=1 SampleEntry*
ResetRequest: table=1 string
CheckpointResponse: checkpoint_path=1 string
RateLimiterCheckpoint: samples_per_insert=2 double, min_diff=3 double, max_diff=4 double, min_size_to_sample=5 int64, \
sample_count=6 int64, insert_count=7 int64, delete_count=8 int64
TableCheckpoint: table_name=1 string, max_size=6 int64, max_times_sampled=7 int32, \
rate_limiter=3 RateLimiterCheckpoint, sampler=4 KeyDistribution, remover=5 KeyDistribution, \
num_deleted_episodes=8 int64, signature=9 StructuredValue, num_unique_samples=10 int64
"""

_SCALARS: Final = ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes")
_FIELD: Final = re.compile(r"(\w+)=(\d+) (\w+)(\*?)")


@functools.cache
def messages() -> dict[str, Any]:
    """Every message class by its name in the table above.

    Raises:
        MissingDependency: protobuf is not installed.

    >>> item = messages()["KeyDistribution"](fifo=True)
    >>> item.SerializeToString()
    b'\\x08\\x01'
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as cause:
        raise MissingDependency(
            "talking to Reverb needs protobuf: pip install 'rlds2buf[reverb]'", name="google.protobuf"
        ) from cause
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="rlds2buf_reverb.proto", package=_PACKAGE, syntax="proto3")
    for line in _DEFINITIONS.strip().splitlines():
        name, _, fields = line.partition(":")
        described = file.message_type.add(name=name)
        for field, number, kind, repeated in _FIELD.findall(fields):
            added = described.field.add(name=field, number=int(number))
            added.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in _SCALARS:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
            else:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


def message(name: str, data: bytes | None = None, /, **fields: Any) -> Any:
    """A new message of that name, parsed from `data` if given.

    Raises:
        MissingDependency: protobuf is not installed.
        google.protobuf.message.DecodeError: `data` is no such message.

    >>> message("Uint128", b"\\x08\\x05").high
    5
    """
    kind = messages()[name]
    return kind(**fields) if data is None else kind.FromString(data)
