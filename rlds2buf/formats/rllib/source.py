"""RLlib's offline data: its JSON and Parquet batches, read without Ray."""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import StepSpec, spec_of
from rlds2buf.errors import EpisodeError, SourceError, SourceFormatError, SourceNotFound, SpecMismatch
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.rllib.episode_joiner import FLAGS, EpisodeJoiner
from rlds2buf.formats.rllib.json_layout import json_batches
from rlds2buf.formats.rllib.parquet_layout import parquet_batches
from rlds2buf.io.blocks import part_of, row_bytes, split
from rlds2buf.io.source import Source

__all__ = ["RllibSource"]

_DONES = ("terminated", "truncated")
_SUFFIXES = (".json", ".jsonl", ".parquet")


class RllibSource(Source):
    """Episodes that RLlib (https://docs.ray.io/en/latest/rllib) has logged.

    Read are JSON with a ``SampleBatch`` or ``MultiAgentBatch`` a line, JSON with a step a line, Parquet with an
    episode a row (the new API stack), with a step a row (its ``output_write_episodes=False``) and with a batch
    a row.  A batch holds pieces of episodes, which go on in later lines and files; they are joined by
    ``eps_id``, agent and ``t`` (:class:`~rlds2buf.formats.rllib.episode_joiner.EpisodeJoiner`), and come in the order
    in which they end.

    T steps with ``new_obs`` are an episode of T + 1 rows.  Without ``new_obs`` the last observation is not
    known: a terminated episode gets a row of zeros (``metadata["placeholder_final_row"]``), another ends with
    its last row.  An end that is not flagged is a truncation (``metadata["open_tail"]``).  Columns of other
    names are extras; names of episode and agent are metadata, and so is ``first_t`` where the data begin in
    the middle of an episode.  Numbers in JSON are int64 or float64; the reward is always a float.

    Columns that RLlib packed (by default ``obs`` and ``new_obs``) hold pickles and are refused.

    Args:
        path: a file, a glob pattern, or a folder, whose ``.json``, ``.jsonl`` and ``.parquet`` files are read in
            the order of their names, those in folders below it too.
        policy: whose steps are read, where there are several policies (or modules).
        dones: what a ``done`` of the older data means: ``"terminated"`` or ``"truncated"``.  RLlib's ``dones``
            do not tell a time limit from a terminal state; newer data have ``terminateds`` and ``truncateds``.
        max_episode_steps: a ``done`` after so many steps is a truncation.
        infos: whether to read ``infos``, as JSON text.
        budget: for a row of Parquet.

    Raises:
        SourceNotFound: no file is there.
        SourceFormatError: a file is not RLlib's or is damaged, columns are packed, or several policies are
            there and none is named.
        MissingDependency: Parquet without pyarrow.
        ValueError: no such choice of `dones`, or a limit below 1.

    >>> import json, tempfile
    >>> file = Path(tempfile.mkdtemp()) / "batches.json"
    >>> batch = {"type": "SampleBatch", "obs": [[0.0], [1.0]], "new_obs": [[1.0], [2.0]], "actions": [0, 1],
    ...          "rewards": [1.0, 1.0], "dones": [False, True], "eps_id": [7, 7], "t": [0, 1]}
    >>> _ = file.write_text(json.dumps(batch))
    >>> list(RllibSource(file))
    [<Episode 0: 3 steps, terminated>]
    """

    format: ClassVar[str] = "rllib"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        policy: str | None = None,
        dones: str = "terminated",
        max_episode_steps: int | None = None,
        infos: bool = False,
        budget: Budget = BUDGET,
    ) -> None:
        choice("dones", dones, _DONES)
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, got {max_episode_steps}")
        self.name = os.fspath(path)
        self._policy = policy
        self._budget = budget
        self._dones = dones
        self._limit = max_episode_steps
        self._infos = infos
        self._files = _find_files(Path(path))
        first = next((columns for _, columns in self._batches() if columns), None)
        if first is None:
            self._refuse_nothing()
        self._columns = sorted(first)
        # What is missing or malformed in the first batch shows here, not at the first episode.
        next(self._joiner().add(first, str(self._files[0])), None)

    @functools.cached_property
    def spec(self) -> StepSpec:  # type: ignore[override]
        for found in self._episodes():
            if isinstance(found, EpisodeError):
                raise found
            return spec_of(found.rows if isinstance(found, EpisodeBatch) else found)
        raise SourceFormatError(f"{self.name}: no episodes")

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        """See :meth:`Source.read_batches`; a batch is of one place in the files, which its `source` names."""
        number, spec = 0, self.spec
        for item in self._episodes():
            found = EpisodeBatch.of_one(item) if isinstance(item, Episode) else item
            part = part_of(found, number, start, stop)
            number += len(found) if isinstance(found, EpisodeBatch) else 1
            if isinstance(part, EpisodeBatch):
                for block in split(part, min(rows, bytes // row_bytes(part))):
                    yield from _fitted(block, spec)
            elif part is not None:
                yield part
            if stop is not None and number >= stop:
                return

    def details(self) -> dict[str, Any]:
        ends = [name for name in FLAGS if name in self._columns]
        notes = []
        if ends == ["dones"]:
            notes.append(
                f"dones do not tell time limits from terminal states; taken as {self._dones}"
                + (f", as truncated after {self._limit} steps" if self._limit else "")
            )
        if not self._infos:
            notes.append("infos are not read (infos=True reads them as JSON text)")
        return {
            "path": self.name,
            "files": [str(file) for file in self._files],
            "policy": self._policy,
            "columns": self._columns,
            "ends": ends,
            "notes": notes,
        }

    def warnings(self) -> list[str]:
        return list(self.details()["notes"])

    def fingerprint(self) -> str:
        options = f"{self._policy}:{self._dones}:{self._limit}:{self._infos}"
        return f"rllib:{fingerprint_files(self._files)}:{options}"

    def _batches(self) -> Iterator[tuple[str, dict[str, nest.Nest]]]:
        for file in self._files:
            if file.suffix == ".parquet":
                yield from parquet_batches(file, policy=self._policy, infos=self._infos, budget=self._budget)
            else:
                yield from json_batches(file, policy=self._policy, infos=self._infos)

    def _refuse_nothing(self) -> NoReturn:
        if self._policy is None:
            raise SourceFormatError(f"{self.name}: no steps in {len(self._files)} files")
        nothing = f"{self.name}: no steps of the policy {self._policy!r}"
        asked, self._policy = self._policy, None
        try:
            next(self._batches(), None)
        except SourceFormatError as cause:  # it names the policies that there are
            raise SourceFormatError(f"{nothing}; {cause}") from cause
        raise SourceFormatError(f"{nothing}; there is one policy only, so don't name {asked!r}")

    def _joiner(self) -> EpisodeJoiner:
        return EpisodeJoiner(dones=self._dones, max_episode_steps=self._limit, source=self.name)

    def _episodes(self) -> Iterator[Episode | EpisodeBatch | EpisodeError]:
        joiner = self._joiner()
        for where, columns in self._batches():
            yield from joiner.add(columns, where)
        yield from joiner.finish()


def _fitted(batch: EpisodeBatch, spec: StepSpec) -> Iterator[EpisodeBatch | EpisodeError]:
    """With the dtypes of the first episode, where JSON wrote whole numbers as integers in one of them."""

    def cast(column: Any, want: Any) -> Any:
        if column is None or want is None or column.dtype == want.dtype:
            return column
        is_safe = column.dtype.kind in "biu" and want.dtype.kind in "iuf" and column.dtype != np.bool_
        return column.astype(want.dtype) if is_safe else column

    rows = batch.rows
    error: EpisodeError
    try:
        data = {
            name: nest.map_structure(cast, getattr(rows, name), getattr(spec, name))
            for name in ("observation", "action", "reward", "extras")
        }
        fitted = rows.replace(**data)
        spec.check(fitted)
    except SpecMismatch as cause:
        error = cause
    except (KeyError, IndexError, TypeError) as cause:
        error = SpecMismatch(
            f"its fields are not those of the first episode ({cause})",
            source=rows.source,
            episode=None if batch.index is None else int(batch.index[0]),
            rule="spec",
        )
    else:
        yield EpisodeBatch(
            fitted, batch.starts, batch.placeholder, index=batch.index, metadata=batch.metadata, derived=batch.derived
        )
        return
    if len(batch) == 1:
        yield error
    else:
        for episode in batch:
            yield from _fitted(EpisodeBatch.of_one(episode), spec)


def _find_files(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
        else:
            files = [path] if path.exists() else sorted(Path(name) for name in glob.glob(str(path)))
    except OSError as cause:
        raise SourceError(f"{cause.filename or path}: {cause.strerror or cause}") from cause
    if not files:
        raise SourceNotFound(f"{path}: no files of {', '.join(_SUFFIXES)} there")
    return files
