"""What is stored as byte strings, into what a learner gets: pixels, and arrays of varying shape.

Pictures are decoded outside the buffer's lock, each once however often a batch has it: as the next
observation of one step and the observation of the next one, say.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from rlds2buf.buffers.rows.blobs import OBJECT, is_blob
from rlds2buf.core import nest
from rlds2buf.core.ragged import unpack_rows
from rlds2buf.core.sample import Trajectory, Transition, Windows
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import ReplayError, SnapshotCorrupt, SourceFormatError

__all__ = ["Unpacker"]

_pool: Any = None
_pool_lock = threading.Lock()


def _forked() -> None:
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)


class Unpacker:
    """Turns batches as a reader gives them into batches for a learner.

    Args:
        spec: of the rows.
    """

    def __init__(self, spec: StepSpec) -> None:
        self._fields = [(str(path[0]), path[1:], field) for path, field in spec.fields() if is_blob(field)]

    def __call__(self, data: Any, decode: bool = True) -> Any:
        """A Transition, Trajectory or Windows with its arrays of varying shape unpacked, and pictures decoded.

        Args:
            data: as read; not changed.
            decode: whether pictures become pixels, ``[B, (T or K,) height, width, channels]`` (an object
                array of arrays where their sizes differ); else they stay byte strings.

        Raises:
            ReplayError: a picture can't be decoded.
            SnapshotCorrupt: an array of varying shape is damaged.
        """
        if not isinstance(data, Transition | Trajectory | Windows):
            return data
        for part, path, field in self._fields:
            if field.image is not None and not decode:
                continue
            names = [part, "next_observation"] if part == "observation" else [part]
            names = [name for name in names if getattr(data, name) is not None]
            columns = [nest.get(getattr(data, name), path) for name in names]
            if field.image is None:
                values = [_unpacked(column, field, (part, *path)) for column in columns]
            else:
                values = _decoded(columns, field.image, (part, *path))
            for name, value in zip(names, values, strict=True):
                data = data._replace(**{name: nest.replaced(getattr(data, name), path, value)})
        return data


def _unpacked(column: np.ndarray, field: FieldSpec, path: nest.Path) -> np.ndarray:
    try:
        return unpack_rows(column, field)
    except ValueError as cause:
        raise SnapshotCorrupt(f"{nest.path_name(path)}: {cause}") from cause


def _decoded(columns: list[np.ndarray], image: FieldSpec, path: nest.Path) -> list[np.ndarray]:
    """The pictures of several object arrays of files as pixels; where there is no file, zeros."""
    flat = [file for column in columns for file in column.reshape(-1).tolist()]
    distinct = {id(file): file for file in flat if file}
    place = {name: i for i, name in enumerate(distinct)}
    frames = _decode(list(distinct.values()), image, path)
    if len(distinct) == len(flat) and frames.dtype != OBJECT:
        pixels = frames
    else:
        index = np.array([place[id(file)] if file else -1 for file in flat], np.int64)
        there = index >= 0
        if frames.dtype == OBJECT:
            pixels = np.empty(len(flat), OBJECT)
            for i in np.flatnonzero(~there).tolist():
                pixels[i] = np.zeros(tuple(n or 0 for n in image.shape), image.dtype)
        else:
            pixels = np.zeros((len(flat), *frames.shape[1:]), frames.dtype)
        pixels[there] = frames[index[there]]
    ends = np.cumsum([column.size for column in columns])
    parts = np.split(pixels, ends[:-1])
    return [part.reshape(*column.shape, *part.shape[1:]) for part, column in zip(parts, columns, strict=True)]


def _decode(files: list[bytes], image: FieldSpec, path: nest.Path) -> np.ndarray:
    """``[N, height, width, channels]``, or ``[N] object`` where sizes differ (or, with none, are not known)."""
    from rlds2buf.codecs.images.pool import DecodePool
    from rlds2buf.codecs.images.stored_image import StoredImage

    global _pool
    if not files:
        known = None not in image.shape
        return np.empty((0, *image.shape), image.dtype) if known else np.empty(0, OBJECT)  # type: ignore[arg-type]
    with _pool_lock:
        _pool = _pool or DecodePool(name="rlds2buf-sampled-images")
        pending = _pool.submit(files, StoredImage(image.shape, image.dtype))
    try:
        frames: np.ndarray = pending.result()
    except SourceFormatError as cause:
        raise ReplayError(
            f"{nest.path_name(path)}: a picture that the buffer holds can't be decoded: {cause}"
        ) from cause
    return frames
