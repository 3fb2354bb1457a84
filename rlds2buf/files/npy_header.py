"""The header of an .npy file, read strictly.

Numpy evaluates it as Python, by way of a tokenizer for what Python 2 wrote, and parses structured types
as Python too; damage there raises errors of any kind.  Here it is one literal of three entries.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
import functools
import re
import struct
from typing import IO, NamedTuple

import numpy as np

from rlds2buf.core.dtypes import parse_dtype

__all__ = ["NpyHeader", "read_npy_header"]

_MAGIC = b"\x93NUMPY"
_MOST = 10_000
"""Bytes of a header, as in numpy."""
_LONG = re.compile(r"(?<=\d)L\b")
_ENTRIES = {"descr", "fortran_order", "shape"}


class NpyHeader(NamedTuple):
    """What the header says.

    Attributes:
        shape: of the array.
        fortran_order: whether the first axis runs fastest.
        dtype: of its elements; None where that is a structure, or nothing that has a name.
        told: how the header writes the type.
    """

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype | None
    told: str


def read_npy_header(stream: IO[bytes]) -> NpyHeader:
    """Read up to where the data begin.

    Raises:
        ValueError: it is not such a header, or cut short.
    """
    start = stream.read(8)
    if start[:6] != _MAGIC or len(start) < 8:
        raise ValueError("no magic bytes of an .npy file")
    if start[6] not in (1, 2, 3):
        raise ValueError(f"version {start[6]}.{start[7]} of .npy is not known")
    width = 2 if start[6] == 1 else 4
    (size,) = struct.unpack("<H" if width == 2 else "<I", _exactly(stream, width))
    if size > _MOST:
        raise ValueError(f"a header of {size} bytes")
    text = _exactly(stream, size).decode("latin-1" if start[6] < 3 else "utf-8")
    return _parsed(text)


@functools.lru_cache(256)  # of thousands of files, most are alike
def _parsed(text: str) -> NpyHeader:
    return _checked(_literal(text))


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise ValueError("cut short in its header")
    return data


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(_LONG.sub("", text).strip())  # Python 2 wrote shapes as (10L,)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as cause:
        raise ValueError(f"its header can't be read: {text[:60]!r}") from cause


def _checked(value: object) -> NpyHeader:
    if not isinstance(value, dict) or set(value) != _ENTRIES:
        raise ValueError("its header is not one of descr, fortran_order and shape")
    shape, fortran, told = value["shape"], value["fortran_order"], value["descr"]
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
        raise ValueError(f"its shape is {str(shape)[:60]}")
    if not isinstance(fortran, bool):
        raise ValueError(f"its fortran_order is {str(fortran)[:60]}")
    return NpyHeader(shape, fortran, parse_dtype(told) if isinstance(told, str) else None, str(told))
