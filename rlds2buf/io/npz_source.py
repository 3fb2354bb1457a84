"""What the formats have in common that are flat arrays of steps in one .npz file."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.codecs.npy_rows import NpyRows
from rlds2buf.codecs.npz import ForwardRows, open_npz
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import OPEN_TAIL
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.io.blocks import spans
from rlds2buf.io.padding import FinalRows
from rlds2buf.io.source import Source

__all__ = ["NpzLayout", "NpzSource"]


class NpzLayout:
    """Where the episodes of a file lie.

    Args:
        fields: ``observation``, ``action``, ``reward`` and ``extras`` as nests of arrays ``[M, ...]``, or None.
        rows: ``[E] int64``, how many of the M rows each episode has; at least 1.
        terminated: ``[E] bool``, whose last row is terminal; None where nothing tells.
        has_final: the observations have a row more of each episode, M + E together.
        is_open: the last episode runs into the file's end.
        facts: what is known of each episode, E of them; None if nothing is.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        rows: np.ndarray,
        *,
        terminated: np.ndarray | None = None,
        has_final: bool = False,
        is_open: bool = False,
        facts: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.fields = {"reward": None, "extras": {}, **fields}
        self.rows = rows.astype(np.int64)
        self.terminated = terminated
        self.has_final = has_final
        self.is_open = is_open
        self.facts = facts


class NpzSource(Source):
    """Episodes of one file; a subclass tells in :meth:`layout` where they lie.

    Args:
        path: the file.
        budget: what a block, and a row, may take beyond the file's size.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file; the message names the array.
    """

    def __init__(self, path: str | os.PathLike[str], *, budget: Budget = BUDGET) -> None:
        self.path = Path(path)
        self.name = str(path)
        self.budget = budget
        self._size = self.path.stat().st_size if self.path.is_file() else 0
        self.arrays = open_npz(self.path, budget)
        self._layout = self.layout()
        self._steps = self._layout.rows + self._layout.has_final
        fields = nest.map_structure(
            lambda array: None if array is None else FieldSpec(array.shape[1:], array.dtype), self._layout.fields
        )
        if fields["reward"] is not None:
            fields["reward"] = FieldSpec((), fields["reward"].dtype)
        self._spec = StepSpec(discount=FieldSpec((), np.dtype(np.float32)), **fields)

    @abc.abstractmethod
    def layout(self) -> NpzLayout:
        """Where the episodes lie, from :attr:`arrays`."""

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._layout.rows)

    @property
    def num_steps(self) -> int:
        return int(self._steps.sum())

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        row_bytes = max(1, self._spec.row_bytes)
        most = max(1, min(rows, min(bytes, self.budget.max_bytes) // row_bytes))
        layout = self._layout
        start = min(start, len(layout.rows))
        fields = {name: field for name, field in layout.fields.items() if name != "observation"}
        low, low_seen = int(layout.rows[:start].sum()), int(self._steps[:start].sum())
        with ForwardRows(fields, low) as others, ForwardRows(layout.fields["observation"], low_seen) as seen:
            for first, upto in spans(np.cumsum(self._steps), start, stop, most):
                count = int(self._steps[first:upto].sum())
                self.budget.check_bytes(count * row_bytes - self._size, f"{self.name}: {count} rows of an episode")
                low += int(layout.rows[first:upto].sum())
                low_seen += count
                yield self._block(first, upto, others.read(low), seen.read(low_seen))

    def _block(self, start: int, stop: int, columns: dict[str, Any], observation: Any) -> EpisodeBatch:
        layout = self._layout
        rows = layout.rows[start:stop]
        final = FinalRows(rows, np.full(len(rows), layout.has_final))
        if columns["reward"] is not None:
            columns["reward"] = columns["reward"].reshape(-1)
        columns = nest.map_structure(lambda column: None if column is None else final.padded(column), columns)
        told = layout.terminated
        columns.update(final.flags(np.zeros(len(rows), np.bool_) if told is None else told[start:stop]))
        metadata = None if layout.facts is None else [dict(facts) for facts in layout.facts[start:stop]]
        if layout.is_open and stop == len(layout.rows):
            metadata = metadata or [{} for _ in rows]
            metadata[-1][OPEN_TAIL] = True
        whole = Episode(observation=observation, **columns, source=self.name, index=start)
        return EpisodeBatch(whole, final.starts, metadata=metadata, derived=() if told is not None else {"is_terminal"})

    def details(self) -> dict[str, Any]:
        arrays = {name: [list(array.shape), str(array.dtype)] for name, array in self.arrays.items()}
        return {"rows": int(self._layout.rows.sum()), "arrays": arrays, "warnings": self.cautions()}

    @abc.abstractmethod
    def cautions(self) -> list[str]:
        """The ``warnings`` of :meth:`details`."""

    def fingerprint(self) -> str:
        return f"{self.format}:{fingerprint_files([self.path])}"

    # -- for subclasses -------------------------------------------------------------------------

    def array(self, name: str, what: str = "") -> NpyRows:
        """An array of rows.

        Args:
            name: its name.
            what: which part of the message says what it is for, behind the name.

        Raises:
            SourceFormatError: there is none, it has no rows, or holds objects.
        """
        found = self.arrays.get(name)
        if found is None:
            there = ", ".join(sorted(self.arrays))
            raise SourceFormatError(f"{self.name}: no `{name}`{what and f', {what}'}; it holds {there}")
        if found.why is not None or not found.shape:
            raise SourceFormatError(f"{self.name}: `{name}` {found.why or 'is a single value, not rows'}")
        return found

    def numbers(self, name: str, what: str = "") -> np.ndarray:
        """All of an array ``[n]`` (``[n, 1]`` is taken as that) of numbers, which is held for all episodes together.

        Raises:
            SourceFormatError: as from :meth:`array`; or it holds something else.
            LimitExceeded: it takes too much.
        """
        found = self.array(name, what)
        self.number(name)
        self.budget.check_bytes(found.shape[0] * found.row_bytes - self._size, f"{self.name}: `{name}`")
        with found.reading(0) as read:
            return read(found.shape[0]).reshape(-1)

    def number(self, name: str) -> NpyRows:
        """An array of one number a row.

        Raises:
            SourceFormatError: as from :meth:`array`; or it is something else.
        """
        found = self.array(name)
        if found.dtype.kind not in "biuf" or found.shape[1:] not in ((), (1,)):
            got = f"{found.dtype}{list(found.shape)}"
            raise SourceFormatError(f"{self.name}: `{name}` should hold one number a row, got {got}")
        return found

    def flagged(self, name: str, what: str = "") -> np.ndarray:
        """The rows where a flag is set, ascending ``int64``.

        Raises:
            SourceFormatError: as from :meth:`numbers`; or a value is neither 0 nor 1.
        """
        values = self.numbers(name, what)
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SourceFormatError(f"{self.name}: `{name}`, row {row}: a flag should be 0 or 1, got {values[row]}")
        return np.flatnonzero(values).astype(np.int64)

    def same_length(self, names: Sequence[str], rows: int) -> None:
        """Refuse arrays that don't have so many rows.

        Raises:
            SourceFormatError: one has not.
        """
        for name in names:
            if (count := self.array(name).shape[0]) != rows:
                raise SourceFormatError(f"{self.name}: `{name}` has {count} rows, it should have {rows}")
