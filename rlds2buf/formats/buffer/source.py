"""Saved buffers, read back as the episodes they were filled with."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.buffers.disk.manifest import inside, read_manifest
from rlds2buf.buffers.disk.undo import settled
from rlds2buf.codecs.images.claims import check_pixels
from rlds2buf.codecs.images.decode import DamagedImage
from rlds2buf.codecs.images.pool import DecodePool, PendingFrames
from rlds2buf.codecs.images.resize import check_images
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import DATA_FIELDS, FINAL_ROW, FLAG_FIELDS
from rlds2buf.core.ragged import unpack_rows
from rlds2buf.core.row_flags import CODE, IS_FIRST, IS_LAST, IS_TERMINAL, NOT_RECORDED, OWN_NEXT, column_name
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, Rlds2bufError, SnapshotError, SourceFormatError
from rlds2buf.files.blob_file import SavedBlobs
from rlds2buf.files.column_file import checksum, open_column
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.io.source import Source

__all__ = ["BufferDirSource"]

_VERIFY_BELOW = 1 << 28
_VERIFY_BYTES = 1 << 22
_FLAG_ROWS = 1 << 20
_NOT_EPISODES = {"links": "of interleaved sources", "items": "of items of several steps", "keys": "drawn at random"}
_HINT = "open it with rlds2buf.load_buffer or `rlds2buf sample`"


class BufferDirSource(Source):
    """Episodes of a folder that ``convert`` or ``Buffer.save`` wrote.

    A buffer keeps an episode's rows side by side, the last one marked, so the episodes that were
    added come back in order: every field, dtype and flag, the padding of final rows too.  It keeps
    no metadata of theirs, but for ``placeholder_final_row``; ``metadata["source_id"]`` is there where
    rows were added with several ids.  If a buffer was full and dropped rows, its first episode is
    what is left of one, whose first row is not ``is_first``.

    Explicit transitions, interleaved sources, reservoirs and several agents' buffers are no episodes
    and are refused.

    Args:
        path: the folder.
        verify: compare every column's checksum; None does it below 256 MiB.
        images: what becomes of pictures that were kept as files: ``"decoded"``, columns of pixels;
            ``"encoded"``, the files, as byte strings; None: pixels, unless :meth:`encoded` is asked for.
        budget: for the pixels of an episode.

    Raises:
        ValueError: no such choice of images.
        SourceNotFound: there is no such folder.
        SourceFormatError: it is incomplete or damaged, a newer rlds2buf wrote it, or its rows are
            no episodes.

    >>> import tempfile, rlds2buf
    >>> episode = Episode(observation=np.arange(3), reward=np.ones(3))
    >>> path = tempfile.mkdtemp() + "/buffer"
    >>> _ = rlds2buf.convert([episode, episode], path)
    >>> [ep.observation.tolist() for ep in BufferDirSource(path)]
    [[0, 1, 2], [0, 1, 2]]
    """

    format: ClassVar[str] = "buffer"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify: bool | None = None,
        images: str | None = None,
        budget: Budget = BUDGET,
    ) -> None:
        check_images(images)
        self._images = images
        self._budget = budget
        self.path = Path(path)
        self.name = str(path)
        with _translated(self.name):
            self._manifest = settled(self.path, read_manifest(self.path))
            if self._manifest["kind"] == "multi_agent":
                raise SourceFormatError(f"{self.name}: a buffer of several agents, not of episodes; {_HINT}")
            self._spec = StepSpec.from_json(self._manifest["spec"])
            self._first, stop = int(self._manifest["oldest"]), int(self._manifest["newest"])
            self._columns = {entry["name"]: _Column.of(self.path, self._manifest, entry) for entry in self._entries()}
            for name, why in _NOT_EPISODES.items():
                if name in self._columns:
                    raise SourceFormatError(f"{self.name}: a buffer of steps {why}, not of episodes; {_HINT}")
            if verify or (verify is None and sum(c.num_bytes for c in self._columns.values()) < _VERIFY_BELOW):
                for column in self._columns.values():
                    column.verify()
            self._fields = [
                (path, field, self._column(column_name(path), field))
                for path, field in self._spec.fields()
                if path[0] not in FLAG_FIELDS
            ]
            self._edges = self._find_edges(stop)

    @property
    def spec(self) -> StepSpec:
        return self._spec if self._images == "encoded" else self._decoded

    @property
    def num_episodes(self) -> int:
        return len(self._edges) - 1

    @property
    def num_steps(self) -> int:
        return int(self._edges[-1] - self._edges[0])

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        stop = self.num_episodes if stop is None else min(stop, self.num_episodes)
        with DecodePool() as pool:
            for index in range(start, stop):
                with _translated(self.name):
                    episode = self._episode(index, int(self._edges[index]), int(self._edges[index + 1]), pool)
                yield episode

    def encoded(self) -> BufferDirSource:
        """See :meth:`Source.encoded`; itself if `images` was given, or there are no pictures kept as files."""
        if self._images is not None or self._decoded is self._spec:
            return self
        other = copy.copy(self)
        other._images = "encoded"
        return other

    def details(self) -> dict[str, Any]:
        names = ("kind", "capacity", "capacity_unit", "counts", "provenance", "rlds2buf")
        return {name: self._manifest[name] for name in names if name in self._manifest}

    def facts(self) -> dict[str, Any]:
        """See :meth:`Source.facts`: of the dataset that the buffer was made from."""
        made_from = self._manifest.get("provenance")
        facts = made_from.get("dataset") if isinstance(made_from, dict) else None
        return dict(facts) if isinstance(facts, dict) else {}

    def fingerprint(self) -> str:
        told = [[name, column.crc, column.shape] for name, column in self._columns.items()]
        known = json.dumps([told, self._manifest["spec"], self._manifest["strings"]])
        asked = ":encoded" if self._images == "encoded" else ""
        digest = hashlib.sha256(known.encode()).hexdigest()[:32]
        if all(column.crc is not None for column in self._columns.values()):
            return f"buffer:{self.num_steps}:{digest}{asked}"
        files = [column.path for column in self._columns.values() if column.num_bytes]
        return f"buffer:{self._first}:{self.num_steps}:{digest}:{fingerprint_files(files)}{asked}"

    def _entries(self) -> list[Mapping[str, Any]]:
        """The manifest's columns of rows; a sampler's are of no interest here."""
        return [entry for entry in self._manifest["columns"] if not str(entry["name"]).startswith("sampler/")]

    def _column(self, name: str, field: FieldSpec) -> _Column | _Blobs:
        if field.image is not None or None in field.shape:
            if f"{name}/places" in self._columns:
                raise SourceFormatError(
                    f"{self.name}: {name} is in files that a buffer writes in place; to read it as episodes "
                    "save it elsewhere, load_buffer(path).save(other)"
                )
            return self._blobs(name)
        column = self._columns[name]
        dtype = np.dtype(np.int32) if field.is_string else field.dtype.newbyteorder("=")
        if column.shape[1:] != field.shape or column.dtype != dtype:
            got = f"{column.dtype}{list(column.shape[1:])}"
            raise SourceFormatError(f"{self.name}: {name} is {got} in its file, but {field} in the spec")
        return column

    def _blobs(self, name: str) -> _Blobs:
        """Byte strings, memory-mapped."""
        data, ends = (self._columns[f"{name}/{part}"] for part in ("bytes", "ends"))
        return _Blobs(SavedBlobs(data.mapped(), ends.mapped()))

    def _find_edges(self, stop: int) -> np.ndarray:
        """Each episode's first row ``[E + 1] int64``, and behind the last one's last."""
        flags = self._columns["flags"]
        slots = flags.shape[0]
        rows = {name: column for name, column in self._columns.items() if not _is_apart(name)}
        uneven = [name for name, column in rows.items() if column.shape[0] != slots]
        if uneven or not 0 <= self._first <= stop <= self._first + slots or flags.dtype != np.uint8:
            what = f"{uneven[0]} has another length" if uneven else f"rows {self._first} to {stop} are not in {slots}"
            raise SourceFormatError(f"{self.name}: {what}; the manifest and the files do not fit together")
        edges = [np.array([self._first])]
        for start in range(self._first, stop, _FLAG_ROWS):
            found = self._rows(flags, start, min(start + _FLAG_ROWS, stop))
            if (found & OWN_NEXT).any():
                raise SourceFormatError(f"{self.name}: a buffer of single transitions, not of episodes; {_HINT}")
            edges.append(np.flatnonzero((found & CODE) == FINAL_ROW) + start + 1)
        if edges[-1].size == 0 or edges[-1][-1] != stop:
            edges.append(np.array([stop]))  # rows without an end, as they are; none if there are no rows
        return np.unique(np.concatenate(edges))

    def _rows(self, column: _Column | _Blobs, start: int, stop: int) -> np.ndarray:
        """Rows by their keys, which go round in the file."""
        slots = column.shape[0]
        low = (start - int(self._manifest["base"])) % max(slots, 1)
        head = min(stop - start, slots - low)
        rows = column.read(low, low + head)
        return rows if head == stop - start else np.concatenate([rows, column.read(0, stop - start - head)])

    @functools.cached_property
    def _decoded(self) -> StepSpec:
        """The spec, pixels in place of pictures as files."""
        if all(field.image is None for _, field in self._spec.fields()):
            return self._spec
        parts = {name: getattr(self._spec, name) for name in (*DATA_FIELDS, "extras")}
        return StepSpec(**nest.map_structure(lambda field: (field and field.image) or field, parts))

    @functools.cached_property
    def _strings(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, texts in self._manifest["strings"].items():
            out[name] = np.empty(len(texts), object)
            out[name][:] = [text.encode("latin-1") for text in texts]
        for path, field in self._spec.fields():
            name = column_name(path)
            if field.is_string and name not in out and f"strings/{name}/ends" in self._columns:
                out[name] = self._blobs(f"strings/{name}").strings
        return out

    def _episode(self, index: int, start: int, stop: int, pool: DecodePool) -> Episode | EpisodeError:
        columns: dict[nest.Path, Any] = {}
        tally = Tally(self._budget)
        for path, field, column in self._fields:
            rows = self._rows(column, start, stop)
            if isinstance(column, _Blobs):
                columns[path] = unpack_rows(rows, field) if None in field.shape else rows
            else:
                columns[path] = self._strings[column_name(path)][rows] if field.is_string else rows
            if field.image is not None and self._images != "encoded":
                files, image = columns[path].tolist(), StoredImage(field.image.shape, field.image.dtype)
                check_pixels(files, image, tally)
                columns[path] = pool.submit(files, image)
        for path, pending in columns.items():
            if isinstance(pending, PendingFrames):
                try:
                    columns[path] = pending.result()
                except DamagedImage as cause:
                    where: dict[str, Any] = {"source": self.name, "episode": index, "step": cause.frame}
                    return EpisodeError(str(cause), path=nest.path_name(path), rule="unreadable", **where)
        flags = self._rows(self._columns["flags"], start, stop)
        parts = {}
        for name in (*DATA_FIELDS, "extras"):
            leaves = [columns.get((name, *path)) for path, _ in nest.flatten(getattr(self._spec, name))]
            parts[name] = nest.unflatten(getattr(self._spec, name), iter(leaves))
        metadata: dict[str, Any] = {}
        if flags[-1] & NOT_RECORDED and flags[-1] & CODE == FINAL_ROW:
            metadata["placeholder_final_row"] = True
        if "source" in self._columns:
            metadata["source_id"] = int(self._rows(self._columns["source"], start, start + 1)[0])
        return Episode(
            **parts,
            is_first=(flags & IS_FIRST) != 0,
            is_last=(flags & IS_LAST) != 0,
            is_terminal=(flags & IS_TERMINAL) != 0,
            metadata=metadata,
            source=self.name,
            index=index,
        )


@dataclasses.dataclass(frozen=True)
class _Column:
    """One file of rows ``[slots, ...]``."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    crc: int | None
    offset: int

    @classmethod
    def of(cls, folder: Path, manifest: Mapping[str, Any], entry: Mapping[str, Any]) -> _Column:
        path = inside(folder, manifest["data"], entry["file"])
        shape = tuple(int(n) for n in entry["shape"])
        array = open_column(path, shape, entry["dtype"])
        return cls(path, shape, array.dtype, entry["crc32c"], int(getattr(array, "offset", 0)))

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def mapped(self) -> np.ndarray:
        """The file, memory-mapped."""
        return open_column(self.path, self.shape, self.dtype.str)

    def verify(self) -> None:
        """Raise unless the file's bytes have the checksum that the manifest says."""
        if self.crc is None:
            return
        crc, rows = 0, self.shape[0]
        step = max(1, _VERIFY_BYTES * rows // max(1, self.num_bytes))
        for start in range(0, rows, step):
            crc = checksum(self.read(start, min(start + step, rows)), crc)
        if crc != self.crc:
            raise SourceFormatError(f"{self.path}: its checksum does not match, it was changed or damaged")

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows of the file, as an array of their own."""
        shape = (stop - start, *self.shape[1:])
        count = int(np.prod(shape, dtype=np.int64))
        if not count:
            return np.empty(shape, self.dtype)
        row_bytes = count // (stop - start) * self.dtype.itemsize
        rows = np.fromfile(self.path, self.dtype, count, offset=self.offset + start * row_bytes)
        if len(rows) != count:
            raise SourceFormatError(f"{self.path}: has become shorter")
        return rows.reshape(shape)


@dataclasses.dataclass(frozen=True)
class _Blobs:
    """Two files of byte strings ``[slots, ...]``."""

    strings: SavedBlobs

    @property
    def shape(self) -> tuple[int, ...]:
        return self.strings.shape

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows, as an object array."""
        return self.strings[start:stop]


def _is_apart(name: str) -> bool:
    """Whether a column has not one row for each of the buffer's."""
    return name.startswith("strings/") or name.endswith("/bytes")


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    """What is wrong with a saved buffer, as what is wrong with a source."""
    try:
        yield
    except SnapshotError as cause:
        raise SourceFormatError(str(cause)) from cause
    except Rlds2bufError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, TypeError, ValueError) as cause:
        raise SourceFormatError(f"{name}: its manifest and files do not fit together ({cause!r})") from cause
