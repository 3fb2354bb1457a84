"""The rows of one Zarr array, read forward by the zarr library, each chunk decoded once.

The library fills with a value what is not there, so every chunk is asked for before it is read.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlds2buf.codecs.cores import cores
from rlds2buf.core.budget import Budget
from rlds2buf.errors import MissingDependency, SourceFormatError
from rlds2buf.formats.zarr.store import ArrayInfo, Store

__all__ = ["DamagedChunk", "ZarrRows", "find_zarr", "opened_group"]

_RAISES = (
    ArithmeticError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Whatever a damaged chunk comes out as."""


_AHEAD_BYTES = 1 << 26
_BLOSC_HEADER = 16


class DamagedChunk(SourceFormatError):
    """A chunk is not there, or can't be decoded; the others can.

    Attributes:
        field: the array.
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


def find_zarr(what: str) -> Any:
    """The module.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import zarr
    except ImportError as cause:
        raise MissingDependency(f"{what} needs zarr: pip install 'rlds2buf[zarr]'") from cause
    return zarr


@contextlib.contextmanager
def opened_group(store: Store) -> Iterator[Callable[[ArrayInfo], Any]]:
    """A function that opens an array of the store, until the block ends.

    Raises:
        MissingDependency: zarr is not installed, or older than what the store was written with.
        SourceFormatError: the array can't be opened.
    """
    zarr = find_zarr(f"{store.path}: Zarr")
    with contextlib.ExitStack() as stack:
        where: Any = str(store.path)
        if store.is_zip:
            where = zarr.storage.ZipStore(str(store.path), mode="r")
            stack.callback(where.close)

        def opened(info: ArrayInfo) -> Any:
            if info.version == 3 and int(zarr.__version__.split(".")[0]) < 3:
                raise MissingDependency(
                    f"{store.path}: Zarr version 3, which zarr {zarr.__version__} does not read: "
                    "pip install 'zarr>=3' (it needs Python 3.11 or later)"
                )
            _require_codecs(store, info)
            try:
                return zarr.open_array(where, path=info.path, mode="r")
            except _RAISES as cause:
                raise SourceFormatError(f"{store.path}: {info.path}: can't be opened ({_said(cause)})") from cause

        yield opened


class ZarrRows:
    """Rows of one array.

    Args:
        store: where it is.
        info: of the array.
        array: the array, opened by zarr.
        budget: what a chunk may take beyond the store's size.
        fill: whether a chunk that is not there is the array's fill value.
    """

    def __init__(self, store: Store, info: ArrayInfo, array: Any, budget: Budget, *, fill: bool) -> None:
        self.info = info
        self._store, self._array, self._fill = store, array, fill
        size = info.step * info.row_bytes
        if size > budget.max_bytes:
            budget.check_bytes(size - store.size, f"{store.path}: a chunk of {info.path}")
        self._held = np.empty(0, info.dtype)
        self._held_from = 0
        # zarr decodes the chunks that it is asked for on all cores.
        self._ahead = max(1, min(cores(), _AHEAD_BYTES // max(1, size)))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` up to (not with) ``stop``, ``[n, ...]``, in memory of their own.

        Raises:
            DamagedChunk: one of their chunks is not there, or can't be decoded.
        """
        step, out, at = self.info.step, np.empty((stop - start, *self.info.row_shape), self.info.dtype), start
        while at < stop:
            held = at - self._held_from
            if 0 <= held < len(self._held):
                upto = min(stop, self._held_from + len(self._held))
                out[at - start : upto - start] = self._held[held : held + upto - at]
            elif at % step == 0 and (whole := stop // step * step if stop < self.info.shape[0] else stop) > at:
                upto = whole
                if at == start and upto == stop:
                    return self._decoded(at, upto)
                out[at - start : upto - start] = self._decoded(at, upto)
            else:
                upto = at
                low = at // step * step
                self._held = self._decoded_from(low)
                self._held_from = low
            at = upto
        return out

    def _decoded_from(self, start: int) -> np.ndarray:
        """The rows of a chunk, and of those behind it where they can be had."""
        step, total = self.info.step, self.info.shape[0]
        if self._ahead > 1:
            with contextlib.suppress(DamagedChunk):  # whoever asks for the rows of that one is told
                return self._decoded(start, min(start + self._ahead * step, total))
        return self._decoded(start, min(start + step, total))

    def _decoded(self, start: int, stop: int) -> np.ndarray:
        try:
            self._check_chunks(start, stop)
            rows = np.asarray(self._array[start:stop])
        except DamagedChunk:
            raise
        except _RAISES as cause:
            raise self._damaged(start, stop, f"can't be decoded ({_said(cause)})") from cause
        if self.info.dtype == object:
            return _as_bytes(rows)
        return rows.astype(self.info.dtype, copy=False)

    def _check_chunks(self, start: int, stop: int) -> None:
        chunk = self.info.chunk[0]
        for number in range(start // chunk, -(-stop // chunk)):
            low, high = number * chunk, min((number + 1) * chunk, self.info.shape[0])
            for key in self.info.chunks(number):
                if self._store.has(key):
                    if self.info.is_blosc and not _is_whole(*self._store.head(key, _BLOSC_HEADER)):
                        raise self._damaged(low, high, f"the chunk {key} is not as long as it says it is")
                elif not self._fill:
                    why = "it is lost, or was left out since it is nothing but the fill value, as zarr 3 does"
                    way = "missing_chunks='fill' takes it for that"
                    raise self._damaged(low, high, f"the chunk {key} is not there: {why}; {way}")

    def _damaged(self, start: int, stop: int, why: str) -> DamagedChunk:
        where = f"{self._store.path}: {self.info.path}, rows {start} to {stop - 1}"
        return DamagedChunk(f"{where}: {why}", self.info.path)


def _is_whole(head: bytes, length: int) -> bool:
    """Whether what blosc packed has the length that is in its header: the library reads on where it is cut short.

    Source: https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst
    """
    return len(head) == _BLOSC_HEADER and int.from_bytes(head[12:16], "little") == length


def _as_bytes(rows: np.ndarray) -> np.ndarray:
    """Texts of any kind as an array of bytes objects."""
    out = np.empty(rows.size, object)
    out[:] = [text if isinstance(text, bytes) else str(text).encode() for text in rows.ravel().tolist()]
    return out.reshape(rows.shape)


def _require_codecs(store: Store, info: ArrayInfo) -> None:
    """Refuse an array of version 2 whose codecs are not there; those of version 3 the library looks up.

    Raises:
        MissingDependency: one is not.
    """
    if info.version != 2:
        return
    import numcodecs

    for name, config in info.codecs:
        try:
            _registered(name)
            numcodecs.get_codec(dict(config))
        except (ImportError, ValueError, TypeError, LookupError) as cause:
            extra = "pip install imagecodecs" if name.startswith("imagecodecs") else "install the package that has it"
            raise MissingDependency(
                f"{store.path}: {info.path} is stored with the codec {name!r}, which is not here: {extra}"
            ) from cause


def _registered(name: str) -> None:
    """UMI's pictures are JPEG XL by a codec of imagecodecs, which has to be told to numcodecs."""
    if name.startswith("imagecodecs_"):
        from imagecodecs.numcodecs import register_codecs

        register_codecs(name, verbose=False)


def _said(cause: BaseException) -> str:
    text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
    return text[:200]
