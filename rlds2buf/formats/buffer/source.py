"""Saved buffers, read back as the episodes they were filled with."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.buffers.disk.manifest import STATES, inside, read_manifest
from rlds2buf.buffers.disk.saved_rows import is_of_rows, open_rows
from rlds2buf.buffers.disk.undo import settled
from rlds2buf.codecs.images.claims import check_pixels
from rlds2buf.codecs.images.decode import DamagedImage
from rlds2buf.codecs.images.pool import DecodePool, PendingFrames
from rlds2buf.codecs.images.resize import check_images
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from rlds2buf.core.fields import DATA_FIELDS
from rlds2buf.core.ragged import unpack_rows
from rlds2buf.core.row_flags import (
    CODE,
    FINAL_ROW,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    NOT_RECORDED,
    OWN_NEXT,
)
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, Rlds2bufError, SnapshotError, SourceFormatError
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.io.blocks import blocks_of, in_parts, spans
from rlds2buf.io.source import Source

__all__ = ["BufferDirSource"]

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
            if self._manifest["kind"] in STATES:
                raise SourceFormatError(f"{self.name}: a buffer of steps side by side, not of episodes; {_HINT}")
            self._columns = {entry["name"]: entry for entry in self._manifest["columns"] if is_of_rows(entry["name"])}
            for name, why in _NOT_EPISODES.items():
                if name in self._columns:
                    raise SourceFormatError(f"{self.name}: a buffer of steps {why}, not of episodes; {_HINT}")
            self._store = open_rows(self.path, self._manifest, verify=verify)
            self._edges = self._find_edges()

    @property
    def spec(self) -> StepSpec:
        return self._store.spec if self._images == "encoded" else self._decoded

    @property
    def num_episodes(self) -> int:
        return len(self._edges) - 1

    @property
    def num_steps(self) -> int:
        return int(self._edges[-1] - self._edges[0])

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        blocks = self._blocks(start, stop, min(rows, bytes // self._row_bytes))
        if self._images == "encoded" or self._decoded is self._store.spec:
            yield from blocks
            return
        with DecodePool() as pool:
            files = (episode for block in blocks for episode in block)
            yield from blocks_of((self._with_pixels(episode, pool) for episode in files), rows, bytes)

    def _blocks(self, start: int, stop: int | None, rows: int) -> Iterator[EpisodeBatch]:
        """Episodes with pictures as the files they are."""
        for first, upto in spans(self._edges[1:] - self._edges[0], start, stop, rows):
            yield from in_parts(self._block, first, upto)

    def encoded(self) -> BufferDirSource:
        """See :meth:`Source.encoded`; itself if `images` was given, or there are no pictures kept as files."""
        if self._images is not None or self._decoded is self._store.spec:
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
        columns = self._columns.values()
        told = [[entry["name"], entry["crc32c"], entry["shape"]] for entry in columns]
        known = json.dumps([told, self._manifest["spec"], self._manifest["strings"]])
        asked = ":encoded" if self._images == "encoded" else ""
        digest = hashlib.sha256(known.encode()).hexdigest()[:32]
        if all(entry["crc32c"] is not None for entry in columns):
            return f"buffer:{self.num_steps}:{digest}{asked}"
        files = [inside(self.path, self._manifest["data"], e["file"]) for e in columns if 0 not in e["shape"]]
        return f"buffer:{self._store.oldest}:{self.num_steps}:{digest}:{fingerprint_files(files)}{asked}"

    def _find_edges(self) -> np.ndarray:
        """Each episode's first row ``[E + 1] int64``, and behind the last one's last."""
        store = self._store
        edges = [np.array([store.oldest])]
        for start in range(store.oldest, store.newest, _FLAG_ROWS):
            found = self._rows(store.flags, start, min(start + _FLAG_ROWS, store.newest))
            if (found & OWN_NEXT).any():
                raise SourceFormatError(f"{self.name}: a buffer of single transitions, not of episodes; {_HINT}")
            edges.append(np.flatnonzero((found & CODE) == FINAL_ROW) + start + 1)
        if edges[-1].size == 0 or edges[-1][-1] != store.newest:
            edges.append(np.array([store.newest]))  # rows without an end, as they are; none if there are no rows
        found = np.concatenate(edges)
        return found[np.diff(found, prepend=-1) > 0]

    def _rows(self, column: Any, start: int, stop: int) -> np.ndarray:
        """Rows by their keys, as an array of their own."""
        self._store.require_whole()
        parts = [np.array(column[slots]) for slots, _ in self._store.spans(start, stop - start)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @functools.cached_property
    def _decoded(self) -> StepSpec:
        """The spec, pixels in place of pictures as files."""
        spec = self._store.spec
        if all(field.image is None for _, field in spec.fields()):
            return spec
        parts = {name: getattr(spec, name) for name in (*DATA_FIELDS, "extras")}
        return StepSpec(**nest.map_structure(lambda field: (field and field.image) or field, parts))

    @functools.cached_property
    def _row_bytes(self) -> int:
        """What a row takes, values of any length by their mean."""
        store = self._store
        blobs = sum(store.columns[i].nbytes // max(1, len(store.columns[i])) for i in store.blobs)
        return max(1, store.spec.row_bytes + blobs)

    def _block(self, start: int, stop: int) -> EpisodeBatch:
        """Episodes ``start`` up to (not with) ``stop``."""
        with _translated(self.name):
            edges = self._edges[start : stop + 1]
            first, last = int(edges[0]), int(edges[-1])
            store = self._store
            columns = {path: self._column(i, first, last) for i, path in enumerate(store.paths)}
            flags = self._rows(store.flags, first, last)
            parts = {}
            for name in (*DATA_FIELDS, "extras"):
                spec = getattr(store.spec, name)
                leaves = [columns.get((name, *path)) for path, _ in nest.flatten(spec)]
                parts[name] = nest.unflatten(spec, iter(leaves))
            final = flags[edges[1:] - 1 - first]
            placeholder = ((final & NOT_RECORDED) != 0) & ((final & CODE) == FINAL_ROW)
            metadata = None
            if store.source is not None:
                ids = self._rows(store.source, first, last)[edges[:-1] - first]
                metadata = FactColumns({"source_id": ids.tolist()}, len(ids))
            rows = Episode(
                **parts,
                is_first=(flags & IS_FIRST) != 0,
                is_last=(flags & IS_LAST) != 0,
                is_terminal=(flags & IS_TERMINAL) != 0,
                source=self.name,
                index=start,
            )
            return EpisodeBatch(rows, edges[:-1] - first, placeholder if placeholder.any() else None, metadata=metadata)

    def _column(self, i: int, start: int, stop: int) -> np.ndarray:
        """Rows of a column by their keys, texts as such and arrays of any shape unpacked."""
        store = self._store
        rows = self._rows(store.columns[i], start, stop)
        if i in store.vocabularies:
            rows = store.vocabularies[i].decode(rows)
        return unpack_rows(rows, store.fields[i]) if None in store.fields[i].shape else rows

    def _with_pixels(self, episode: Episode, pool: DecodePool) -> Episode | EpisodeError:
        """An episode whose pictures are files, with pixels in their place."""
        tally = Tally(self._budget)
        columns: dict[nest.Path, Any] = dict(episode.flatten())
        with _translated(self.name):
            for path, field in zip(self._store.paths, self._store.fields, strict=True):
                if field.image is not None:
                    files, image = columns[path].tolist(), StoredImage(field.image.shape, field.image.dtype)
                    check_pixels(files, image, tally)
                    columns[path] = pool.submit(files, image)
            for path, pending in columns.items():
                if isinstance(pending, PendingFrames):
                    try:
                        columns[path] = pending.result()
                    except DamagedImage as cause:
                        where: dict[str, Any] = {"source": self.name, "episode": episode.index, "step": cause.frame}
                        return EpisodeError(str(cause), path=nest.path_name(path), rule="unreadable", **where)
            parts = {}
            for name in (*DATA_FIELDS, "extras"):
                held = getattr(episode, name)
                leaves = [columns.get((name, *path)) for path, _ in nest.flatten(held)]
                parts[name] = nest.unflatten(held, iter(leaves))
            return episode.replace(**parts)


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
