"""Names of episodes that follow from their rows alone, whatever file or format these came from."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence

import numpy as np

from rlds2buf.kernels.row_hash import hash_rows, mix

__all__ = ["content_hashes"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def content_hashes(tensors: Sequence[np.ndarray], edges: np.ndarray) -> np.ndarray:
    """``[E, 2] uint64``: for each of E episodes two numbers, independent of each other, from its rows.

    Every byte counts, and which tensor, row and place it is in; so do dtypes (not their byte order), shapes and the
    number of rows.  Two episodes that differ have one of the numbers in common with the chance of random ones.

    Args:
        tensors: arrays ``[R, ...]`` of numbers or byte strings, the rows of all episodes.
        edges: ``[E+1] int64``: the first row of each, then R.

    >>> a, b = content_hashes([np.array([1, 2, 3, 1, 2, 3])], np.array([0, 3, 6]))
    >>> bool((a == b).all())
    True
    >>> c, = content_hashes([np.array([1, 2, 3], np.int32)], np.array([0, 3]))
    >>> bool((a == c).any())
    False
    """
    edges = np.ascontiguousarray(edges, np.int64)
    total = np.empty((len(edges) - 1, 2), np.uint64)
    total[:] = np.diff(edges).astype(np.uint64)[:, None]
    for tensor in tensors:
        total = mix(total * _GOLDEN + _head(tensor.dtype.newbyteorder("=").str[1:], tensor.shape[1:]))
        total += _hashed_strings(tensor, edges) if tensor.dtype == object else _hashed(tensor, edges)
    return mix(total)


def _hashed(tensor: np.ndarray, edges: np.ndarray) -> np.ndarray:
    out = np.zeros((len(edges) - 1, 2), np.uint64)
    size = math.prod(tensor.shape[1:]) * tensor.itemsize
    if size:
        width = math.gcd(size, 8)
        plain = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("="))
        words = plain.reshape(-1).view(f"u{width}").reshape(len(tensor), size // width)
        hash_rows(words, edges, _keys(size // width), out)
    return out


def _hashed_strings(tensor: np.ndarray, edges: np.ndarray) -> np.ndarray:
    out = np.empty((len(edges) - 1, 2), np.uint64)
    for i, (start, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        values = [bytes(value) for value in tensor[start:stop].reshape(-1)]
        lengths = np.array([len(value) for value in values], "<i8").tobytes()
        out[i] = np.frombuffer(hashlib.blake2b(lengths + b"".join(values), digest_size=16).digest(), "<u8")
    return out


@functools.lru_cache(maxsize=1024)
def _head(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """``[2]`` numbers for a type and a shape of rows."""
    return np.frombuffer(hashlib.blake2b(f"{dtype} {shape}".encode(), digest_size=16).digest(), "<u8")


@functools.lru_cache(maxsize=64)
def _keys(words: int) -> np.ndarray:
    """``[2, W]`` odd numbers, the same everywhere and for ever."""
    numbers = np.arange(1, 2 * words + 1, dtype=np.uint64).reshape(words, 2).T * _GOLDEN
    return np.ascontiguousarray(mix(numbers) | np.uint64(1))
