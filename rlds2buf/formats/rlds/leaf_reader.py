"""From the features of one record to columns, as features.json says they are stored.

What TFDS stores where (``key`` is the path of names, joined by ``/``; sequences add nothing)::

    no sequence above            key                                  the values of one tensor
    one sequence                 key                                  n tensors behind each other
    two and more                 key/ragged_flat_values               all tensors behind each other
                                 key/ragged_row_lengths_0, _1, ...    how many per row, from outside in
    bytes, zlib, images          one byte string per tensor instead of its values
    more than one unknown axis   key/value and key/shape, for the byte strings and their shapes

Booleans and integers are stored as int64 (uint64 bit by bit), floats of all widths as float32.
An RLDS episode is a record whose ``steps`` are the outermost sequence.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Mapping

import numpy as np

from rlds2buf.codecs.images.claims import check_pixels, claim_numbers, claimed_strings
from rlds2buf.codecs.images.pool import PendingFrames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.codecs.tfrecord.example import Feature
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Tally
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.rlds.features import FeatureTree, Sequence, Shape, Tensor

__all__ = ["LeafReader", "check_lengths", "cut_rows", "leaf_readers", "native", "raw_dtype"]


def leaf_readers(feature: FeatureTree, key: str = "", lengths: Shape = ()) -> nest.Nest:
    """The nest of :class:`LeafReader` for a feature.

    Args:
        feature: what features.json says.
        key: its path in the record, names joined by ``/``.
        lengths: those of the sequences around it.

    Raises:
        SourceFormatError: TFDS has no way to store such a feature.
    """
    if isinstance(feature, dict):
        return {name: leaf_readers(child, f"{key}/{name}" if key else name, lengths) for name, child in feature.items()}
    if isinstance(feature, Sequence):
        return leaf_readers(feature.feature, key, (*lengths, feature.length))
    if isinstance(feature, Tensor) and feature.encoding == "none" and feature.num_unknown > (0 if lengths else 1):
        raise SourceFormatError(f"{key}: a tensor of unknown shape {list(feature.shape)} stored without encoding")
    return LeafReader(key, feature, lengths)


@dataclasses.dataclass(frozen=True)
class LeafReader:
    """Reads one leaf of a record.

    Attributes:
        key: its path in the record.
        leaf: what one value of it is.
        lengths: of the sequences around it, from outside in; None where not fixed.
    """

    key: str
    leaf: Tensor | StoredImage
    lengths: Shape
    _row_size: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_row_size", _size_of_plain_rows(self.leaf) if self.lengths == (None,) else 0)

    def read(
        self, features: Mapping[str, Feature], pixels: np.ndarray | None = None, tally: Tally | None = None
    ) -> np.ndarray:
        """The decoded values, owned by the caller: ``[*lengths, *shape]``, without sequences ``[*shape]``.

        Where rows of a sequence differ in length, or its tensors in shape, the rows are the elements
        of an object array instead; strings, and pictures kept encoded, are objects of type ``bytes``.

        Args:
            features: of the record.
            pixels: what has become of the :meth:`files`, if they are decoded already.
            tally: of the record; None: one of its own.

        Raises:
            SourceFormatError: the record does not hold what features.json says; names the key.
            LimitExceeded: its values would take too much memory.
        """
        tally = tally or Tally(BUDGET)
        try:
            return self._read_numbers(features, tally) if self._row_size else self._read(features, pixels, tally)
        except SourceFormatError as cause:
            raise cause.at(self.key) from cause

    @property
    def keys(self) -> list[str]:
        """Of the features it looks at: that of the values, those of inner sequences' lengths, that of the shapes."""
        suffix = "/ragged_flat_values" if len(self.lengths) > 1 else ""
        inner = [f"{self.key}/ragged_row_lengths_{i}" for i in range(len(self.lengths) - 1)]
        if isinstance(self.leaf, Tensor) and self.leaf.encoding != "none" and self.leaf.num_unknown > 1:
            return [f"{self.key}/value{suffix}", *inner, f"{self.key}/shape{suffix}"]
        return [self.key + suffix, *inner]

    @property
    def has_pixels(self) -> bool:
        """Whether there are files to decode."""
        return isinstance(self.leaf, StoredImage) and not self.leaf.keep_encoded

    def files(self, features: Mapping[str, Feature], tally: Tally | None = None) -> list[bytes]:
        """The files of all pictures, those of a step and of a row behind each other.

        Raises:
            SourceFormatError, LimitExceeded: as :meth:`read`.
        """
        assert isinstance(self.leaf, StoredImage)
        tally = tally or Tally(BUDGET)
        try:
            files = claimed_strings(_feature(features, self._flat_key), tally)
            check_pixels(files, self.leaf, tally)
            return files
        except SourceFormatError as cause:
            raise cause.at(self.key) from cause

    def step_of(self, features: Mapping[str, Feature], number: int) -> int | None:
        """The row of the outermost sequence that file `number` is in; None without a sequence."""
        if not self.lengths:
            return None
        for i in range(len(self.lengths) - 2, -1, -1):
            ends = np.cumsum(_feature(features, f"{self.key}/ragged_row_lengths_{i}").ints())
            number = int(np.searchsorted(ends, number, "right"))
        return number

    @property
    def _flat_key(self) -> str:
        return f"{self.key}/ragged_flat_values" if len(self.lengths) > 1 else self.key

    def _read_numbers(self, features: Mapping[str, Feature], tally: Tally) -> np.ndarray:
        """The plainest leaf, which is nearly every leaf: one row of numbers a step."""
        leaf = self.leaf
        feature = _feature(features, self.key)
        claim_numbers(feature, leaf.dtype, tally)
        # Floats are copied: aligned, writable, and not tied to the record.
        flat = feature.floats().astype(leaf.dtype) if leaf.dtype.kind == "f" else feature.ints(leaf.dtype)
        if not leaf.shape:
            return flat
        if flat.size % self._row_size:
            return _reshape(flat, (None, *leaf.shape))
        return flat.reshape(-1, *leaf.shape)  # type: ignore[arg-type]

    def _read(self, features: Mapping[str, Feature], pixels: np.ndarray | None, tally: Tally) -> np.ndarray:
        depth = len(self.lengths)
        if depth == 0:
            if isinstance(self.leaf, Tensor) and self.leaf.optional and self.key not in features:
                return _default(self.leaf, tally)
            values = self._values(features, "", pixels, tally, alone=True)
            if len(values) != 1:
                raise SourceFormatError(f"{len(values)} values where one is expected")
            return values[0]
        if depth == 1:
            return self._counted(self._values(features, "", pixels, tally))
        values = self._values(features, "/ragged_flat_values", pixels, tally)
        for i in range(depth - 2, -1, -1):
            lengths = _feature(features, f"{self.key}/ragged_row_lengths_{i}").ints()
            check_lengths(lengths, self.lengths[i + 1])
            values = cut_rows(values, lengths, self.lengths[i + 1])
        return self._counted(values)

    def _counted(self, values: np.ndarray) -> np.ndarray:
        if self.lengths[0] not in (None, len(values)):
            raise SourceFormatError(f"a sequence of length {len(values)} where {self.lengths[0]} is expected")
        return values

    def _values(
        self,
        features: Mapping[str, Feature],
        suffix: str,
        pixels: np.ndarray | None,
        tally: Tally,
        alone: bool = False,
    ) -> np.ndarray:
        """All values of the leaf in one row: ``[M, *shape]``, or ``[M] object`` where their shapes differ."""
        leaf = self.leaf
        if isinstance(leaf, StoredImage):
            if pixels is not None:
                return pixels
            files = claimed_strings(_feature(features, self.key + suffix), tally)
            if leaf.keep_encoded:
                return np.array(files, object)
            check_pixels(files, leaf, tally)
            return PendingFrames(files, leaf).result()
        if leaf.encoding == "none":
            return _plain(_feature(features, self.key + suffix), leaf, alone, tally)
        if leaf.num_unknown < 2:
            return _encoded(claimed_strings(_feature(features, self.key + suffix), tally), leaf, tally)
        values = claimed_strings(_feature(features, f"{self.key}/value{suffix}"), tally)
        shapes = _feature(features, f"{self.key}/shape{suffix}").ints()
        rank = len(leaf.shape)
        if len(shapes) != rank * len(values):
            raise SourceFormatError(f"{len(values)} tensors, but {len(shapes)} lengths for shapes of rank {rank}")
        return _encoded(values, leaf, tally, shapes.reshape(-1, rank))


def _size_of_plain_rows(leaf: Tensor | StoredImage) -> int:
    """How many numbers a value has, if they are stored as they are and it is always the same; else 0."""
    if isinstance(leaf, StoredImage) or leaf.encoding != "none" or leaf.dtype.kind not in "biuf" or leaf.num_unknown:
        return 0
    return math.prod(leaf.shape)  # type: ignore[arg-type]


def _feature(features: Mapping[str, Feature], key: str) -> Feature:
    feature = features.get(key)
    if feature is None:
        raise SourceFormatError(f"features.json has it, but the record has no {key!r}")
    return feature


def _plain(feature: Feature, leaf: Tensor, alone: bool, tally: Tally) -> np.ndarray:
    flat: np.ndarray
    claim_numbers(feature, leaf.dtype, tally)
    if leaf.dtype.kind in "biu":
        flat = feature.ints(leaf.dtype)
    elif leaf.dtype.kind == "f":
        flat = feature.floats().astype(leaf.dtype)
    elif leaf.dtype == object:
        flat = np.array(claimed_strings(feature, tally), object)
    else:
        raise SourceFormatError(f"{leaf.stored} is stored without encoding")
    if leaf.shape == ():
        return flat
    return _reshape(flat, (1 if alone else None, *leaf.shape))


def _reshape(flat: np.ndarray, shape: Shape) -> np.ndarray:
    """`flat` as `shape`, of which one length may be None."""
    known = math.prod(n for n in shape if n is not None)
    if None not in shape:
        if flat.size != known or any(n < 0 or n > max(known, 1 << 31) for n in shape):  # type: ignore[operator]
            raise SourceFormatError(f"{flat.size} values do not make the shape {list(shape)}")
        return flat.reshape(shape)  # type: ignore[arg-type]
    if known == 0:
        raise SourceFormatError(f"the shape {list(shape[1:])} holds no values, so its rows can't be counted")
    count, rest = divmod(flat.size, known)
    if rest:
        raise SourceFormatError(f"{flat.size} values are no whole number of {['?' if n is None else n for n in shape]}")
    return flat.reshape([count if n is None else n for n in shape])


def _encoded(values: list[bytes], leaf: Tensor, tally: Tally, shapes: np.ndarray | None = None) -> np.ndarray:
    dtype = raw_dtype(leaf)
    size = None if leaf.num_unknown else math.prod(leaf.shape) * dtype.itemsize  # type: ignore[arg-type]
    raw = [_inflate(value, size, tally) for value in values] if leaf.encoding == "zlib" else values
    if size is not None:
        for value in raw:
            if len(value) != size:
                raise SourceFormatError(f"{len(value)} bytes of raw values where {leaf.stored} of {list(leaf.shape)}")
        flat = np.frombuffer(bytearray().join(raw), dtype)
        return native(flat, leaf).reshape(len(raw), *leaf.shape)  # type: ignore[arg-type]
    out = []
    for i, value in enumerate(raw):
        if len(value) % dtype.itemsize:
            raise SourceFormatError(f"{len(value)} bytes of raw values are no whole number of {leaf.stored}")
        shape = leaf.shape if shapes is None else tuple(int(n) for n in shapes[i])
        if any(have != want for have, want in zip(shape, leaf.shape, strict=True) if want is not None):
            raise SourceFormatError(f"a tensor of shape {list(shape)} where features.json says {list(leaf.shape)}")
        out.append(_reshape(native(np.frombuffer(bytearray(value), dtype), leaf), shape))
    return _stack(out, leaf)


def raw_dtype(leaf: Tensor) -> np.dtype:
    """Of the bytes that values are encoded as."""
    return np.dtype("<u2") if leaf.stored == "bfloat16" else leaf.dtype.newbyteorder("<")


def native(flat: np.ndarray, leaf: Tensor) -> np.ndarray:
    """The values of :func:`raw_dtype` as those of the leaf."""
    if leaf.stored == "bfloat16":
        # The upper half of a float32.
        return (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.astype(leaf.dtype, copy=False)


def _inflate(value: bytes, size: int | None, tally: Tally) -> bytes:
    """The bytes of a value, which are so many, if that is known."""
    if size is not None:
        tally.bytes(size, "a compressed value")
    most = tally.bytes_left if size is None else size
    inflater = zlib.decompressobj()
    try:
        # One byte more than there may be tells too much without unpacking all of it.
        raw = inflater.decompress(value, most + 1)
        if len(raw) <= most:
            raw += inflater.flush()
    except zlib.error as cause:
        raise SourceFormatError(f"bad zlib data: {cause}") from cause
    if size is None:
        tally.bytes(len(raw), "a compressed value, or the beginning of one,")
    if not inflater.eof and len(raw) <= most:
        raise SourceFormatError("bad zlib data: it has no end")
    return raw


def _stack(arrays: list[np.ndarray], leaf: Tensor) -> np.ndarray:
    """``[M, *shape]`` if all have one shape, else ``[M] object``."""
    if not arrays:
        return np.empty((0, *(0 if n is None else n for n in leaf.shape)), leaf.dtype)
    if all(array.shape == arrays[0].shape for array in arrays):
        return np.stack(arrays)
    return _objects(arrays)


def cut_rows(values: np.ndarray, lengths: np.ndarray, length: int | None = None) -> np.ndarray:
    """Cut ``[M, ...]`` into rows of the given lengths: ``[n, k, ...]``, or ``[n] object`` where lengths differ.

    Args:
        values: M values, perhaps rows themselves (of an earlier cut).
        lengths: ``[n]``, adding up to M.
        length: how long every row is by the data's own account; only matters if there is none.

    Raises:
        SourceFormatError: the lengths don't add up.

    >>> cut_rows(np.arange(3), np.array([2, 1])).tolist()
    [array([0, 1]), array([2])]
    """
    # The longest first: a sum of absurd lengths could wrap around and look right.
    if lengths.max(initial=0) > len(values) or lengths.sum() != len(values):
        raise SourceFormatError(f"{len(values)} values for rows of {sum(lengths.tolist())} together")
    if not _holds_arrays(values) and (lengths == lengths[:1]).all():
        each = int(lengths[0]) if len(lengths) else length or 0
        return values.reshape(len(lengths), each, *values.shape[1:])
    return _objects([_even(row) for row in np.split(values, np.cumsum(lengths)[:-1])])


def _even(row: np.ndarray) -> np.ndarray:
    """A row of equally shaped arrays as one array."""
    if _holds_arrays(row) and all(cell.shape == row[0].shape for cell in row):
        return np.stack(list(row))
    return row


def _holds_arrays(values: np.ndarray) -> bool:
    return values.dtype == object and len(values) > 0 and isinstance(values[0], np.ndarray) and values.ndim == 1


def check_lengths(lengths: np.ndarray, expected: int | None) -> None:
    """Whether the lengths of rows are possible.

    Raises:
        SourceFormatError: one is negative, or not the one expected.
    """
    wrong = lengths < 0 if expected is None else lengths != expected
    if wrong.any():
        raise SourceFormatError(
            f"a row of length {lengths[wrong][0]} where {expected or 'one of 0 or more'} is expected"
        )


def _objects(values: list) -> np.ndarray:
    # One by one, since numpy would look inside arrays.
    out = np.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out


def _default(leaf: Tensor, tally: Tally) -> np.ndarray:
    """What TFDS gives for an optional feature that is left out."""
    shape = [0 if n is None else n for n in leaf.shape]
    tally.bytes(math.prod(shape) * leaf.dtype.itemsize, f"an optional {leaf.stored}{shape} that is left out")
    kind = leaf.dtype.kind
    if leaf.dtype == object:
        value: object = b""
    elif kind in "iu":
        value = np.iinfo(leaf.dtype).min
    else:
        value = np.finfo(leaf.dtype).min if kind == "f" else False
    return np.full(shape, value, leaf.dtype)[()]
