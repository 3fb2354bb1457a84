"""grain: transitions or windows of a buffer as a random-access data source."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from rlds2buf.adapters.held import as_buffer
from rlds2buf.buffers.buffer import Buffer
from rlds2buf.core import nest
from rlds2buf.core.sample import Trajectory, Transition, Windows
from rlds2buf.errors import MissingDependency, UnknownKey

try:
    from grain.sources import RandomAccessDataSource
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.grain needs grain 0.2.10 or later: pip install grain") from cause

__all__ = ["DataSource"]


class DataSource(RandomAccessDataSource):
    """The items that a buffer holds now, for ``grain.MapDataset.source`` and ``grain.DataLoader``.

    Source: https://google-grain.readthedocs.io, "Data sources": a length, elements by number, the same every time,
    from several threads at once, and picklable for worker processes. A saved buffer's workers open its files
    again, and share their pages. (``grain.DataLoader`` wants absl's flags parsed: in a program without
    ``absl.app`` call ``absl.flags.FLAGS.mark_as_parsed()``.)

    An element is a dict of what :class:`~rlds2buf.core.sample.Transition` has, without the leading axis:
    ``observation``, ``action``, ``reward``, ``discount``, ``next_observation``, ``extras``, ``is_done``, ``steps``,
    ``bootstrap_discount``; or, with `sequence_length`, of a :class:`~rlds2buf.core.sample.Trajectory`, ``[T, ...]``.
    What is missing or empty is left out.

    Args:
        buffer: a :class:`~rlds2buf.Buffer` that does not change meanwhile, or the path of a saved one.
        options: how items are read: `n_step`, `gamma`, `sequence_length`, `burn_in`, `decode`, as ``buffer.get`` has
            them.

    Raises:
        SnapshotError: there is no saved buffer at the path.
        TypeError, ValueError: there is no such option, or it is out of range.

    >>> import numpy as np
    >>> from rlds2buf import Episode, make_circular, spec_of
    >>> from rlds2buf.adapters.grain import DataSource
    >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5))
    >>> buffer = make_circular(spec_of(ep), 100)
    >>> keys = buffer.add(ep)
    >>> source = DataSource(buffer)
    >>> len(source), float(source[2]["observation"]), float(source[2]["next_observation"])
    (4, 2.0, 3.0)
    """

    def __init__(self, buffer: Buffer | str | os.PathLike[str], **options: Any) -> None:
        self._path = os.fspath(buffer) if isinstance(buffer, str | os.PathLike) else None
        self._options = options
        self._open(buffer)
        assert self._buffer is not None
        self._buffer.engine.request(**options)  # refuses what there is not

    def _open(self, buffer: Any) -> None:
        self._buffer: Buffer | None = as_buffer(buffer)
        self._keys = self._buffer.keys()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, record_key: SupportsIndex) -> dict[str, Any]:
        return self._getitems([record_key])[0]

    def _getitems(self, record_keys: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Several elements at once, in one read; grain looks for this name, and batches ask for it.

        Raises:
            IndexError: there is none of that number.
            UnknownKey: an item has left the buffer.
        """
        count = len(self)
        numbers = [number.__index__() for number in record_keys]
        for number in numbers:
            if not -count <= number < count:
                raise IndexError(f"element {number} of {count}")
        assert self._buffer is not None
        try:
            data = self._buffer.get(self._keys[np.asarray(numbers, np.int64)], **self._options)
        except UnknownKey as cause:
            raise UnknownKey(f"{self!r}: the buffer has changed since this source was made ({cause})") from cause
        parts = _fields(data)
        return [nest.map_structure(lambda column, i=i: column[i], parts) for i in range(len(numbers))]

    def __repr__(self) -> str:
        # grain compares this with what a checkpoint says, so it tells what the elements depend on.
        options = "".join(f", {name}={value!r}" for name, value in sorted(self._options.items()))
        if self._path is not None:
            return f"DataSource({self._path!r}{options})"
        assert self._buffer is not None
        return f"DataSource({self._buffer.kind}, {len(self)} items{options})"

    def __getstate__(self) -> dict[str, Any]:
        buffer = self._buffer if self._path is None else None
        return {"path": self._path, "buffer": buffer, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._path, self._options = state["path"], state["options"]
        self._open(state["path"] if state["buffer"] is None else state["buffer"])


def _fields(data: Transition | Trajectory | Windows) -> dict[str, Any]:
    """What there is of a batch."""
    return {name: part for name, part in data._asdict().items() if part is not None and not _is_empty(part)}


def _is_empty(part: nest.Nest) -> bool:
    return isinstance(part, dict) and not part
