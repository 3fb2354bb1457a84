"""D4RL's HDF5 files: one flat table of steps with terminal and time-out flags."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, describe_value, open_hdf5
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import OPEN_TAIL
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.d4rl.block_reader import BlockReader
from rlds2buf.formats.d4rl.layout import Layout, flagged_rows
from rlds2buf.io.blocks import in_parts, spans
from rlds2buf.io.cuts import Cuts, cut
from rlds2buf.io.source import Source

__all__ = ["D4rlHdf5Source"]


class D4rlHdf5Source(Source):
    """Episodes of a D4RL file (Fu et al. 2020, https://arxiv.org/abs/2004.07219).

    Row t of the file holds an observation, the action taken there, and the reward and flags that
    came of it.  An episode ends at a row flagged in ``terminals`` or ``timeouts``.  The last action
    of each has a successor only where the file has ``next_observations``.  What becomes of an
    episode of n rows, here and elsewhere, as its number of transitions and the last one's successor:

    =====================  ===================  ==========  ==========  =================  ==================
    the episode ends in    here                 qlearning   sequence    TFDS               robomimic
    =====================  ===================  ==========  ==========  =================  ==================
    terminal, with next    n, its own           n, alien    n-1         n, the file's      n, repeated
    terminal, without      n, zeros (marked)    n, alien    n-1         n, zeros           n, repeated
    time-out, with next    n, its own           n-1         n-1         n, the file's      n, repeated, done
    time-out, without      n-1                  n-1         n-1         n-1                n, repeated, done
    both flags in a row    as a terminal        n-1         n-1         as a terminal      n, repeated, done
    nothing (open tail)    as a time-out,       n-1,        dropped     as a time-out,     dropped
                           marked               not ended               not marked
    the file's last row    no different         dropped     same        same               dropped, with its
                                                                                           whole episode
    no ``timeouts``        `max_episode_steps`  the environment's       ValueError         AssertionError
                           or terminals only    limit
    =====================  ===================  ==========  ==========  =================  ==================

    *qlearning* and *sequence* are d4rl 1.1's ``qlearning_dataset`` and ``sequence_dataset`` (which
    count the episode behind a terminal, or every later one, from 1, and so cut it a step early where
    the environment's limit decides); *TFDS* is tensorflow-datasets 4.9, *robomimic* its
    ``convert_d4rl``.  *Alien*: the first row of the next episode.  *The file's*: the last next
    observation of the whole file, for every episode.  *Repeated*: the last observation itself.
    *Marked*: ``metadata["placeholder_final_row"]`` or ``metadata["open_tail"]`` is True.

    The step into a terminal row has discount 0 and so has that row; all others have 1 (float32).
    On an added row action, reward and extras are zeros.  Within an episode ``next_observations``
    are not read; the next row is the successor.  Every value keeps its dtype; flags may be of any
    numeric type; rewards and flags ``[N, 1]`` are taken as ``[N]``.  ``infos/*`` and further
    per-step datasets become extras, ``metadata/*`` (strings, policy weights) the metadata of each
    episode, the same objects for all.

    Known oddities of published files, left as they are: antmaze v0's time-outs that miss the resets
    (D4RL issue 77), antmaze v2's terminals at each step spent at the goal, which make one-step
    episodes (199), maze2d's time-outs that mark a new goal, not a reset (85), door-human v0's that
    cut demonstrations (137).

    Args:
        path: the file.
        max_episode_steps: cut also after so many rows; for files whose time-outs are not marked.
        reward_shift: take a step's reward from so many rows further on in its episode, 0 past its
            end.  1 mends maze2d v1, where ``rewards[t]`` tells whether ``observations[t]``, and not
            the next one, is at the goal (D4RL issue 194).
        infos: whether to read ``infos/*``.
        external: data that the file has in other files, by links, external storage or virtual datasets:
            ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, or it is no such file; the message
            names the dataset that is missing or does not fit.
        ValueError: an option is out of range.

    >>> import h5py, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.hdf5")
    >>> with h5py.File(path, "w") as file:
    ...     file["observations"] = np.arange(5, dtype=np.float32)[:, None]
    ...     file["actions"] = np.zeros((5, 2), np.float32)
    ...     file["rewards"] = np.ones(5, np.float32)
    ...     file["terminals"] = np.array([0, 0, 1, 0, 0], bool)
    ...     file["timeouts"] = np.array([0, 0, 0, 0, 1], bool)
    >>> list(D4rlHdf5Source(path))
    [<Episode 0: 4 steps, terminated>, <Episode 1: 2 steps, truncated>]
    """

    format: ClassVar[str] = "d4rl"
    _timeouts: ClassVar[str] = "timeouts"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_episode_steps: int | None = None,
        reward_shift: int = 0,
        infos: bool = True,
        external: str = "refuse",
        budget: Budget = BUDGET,
    ) -> None:
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, got {max_episode_steps}")
        if reward_shift < 0:
            raise ValueError(f"reward_shift must not be negative, got {reward_shift}")
        self.path = Path(path)
        self.name = str(path)
        self._max_episode_steps = max_episode_steps
        self._reward_shift = reward_shift
        self._infos = infos
        self._budget = budget
        self._open = functools.partial(open_hdf5, self.path, budget=budget, external=external)
        with self._open() as file:
            layout = Layout(file, self.name, infos=infos, timeouts=self._timeouts)
            self._spec = layout.spec()
            self._rows = layout.count
            self._ignored = layout.ignored
            self._has_metadata = layout.has_metadata
            self._has_next = layout.following is not None
            self._has_timeouts = "timeouts" in layout.flags
            self._cuts = self._find_cuts(file, layout)

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._cuts)

    @property
    def num_steps(self) -> int:
        return int(self._cuts.lengths.sum())

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        row_bytes = max(1, self._spec.row_bytes)
        rows = min(rows, bytes // row_bytes, self._budget.max_bytes // row_bytes)
        with self._open() as file:
            layout = Layout(file, self.name, infos=self._infos, timeouts=self._timeouts)
            if layout.count != self._rows:
                raise SourceFormatError(f"{self.name}: the file changed, from {self._rows} to {layout.count} rows")
            reader = BlockReader(file, layout, self._cuts, reward_shift=self._reward_shift, row_bytes=row_bytes)
            for first, upto in spans(np.cumsum(self._cuts.lengths), start, stop, rows):
                yield from in_parts(functools.partial(self._block, reader), first, upto)

    def _block(self, reader: BlockReader, start: int, stop: int) -> EpisodeBatch:
        cuts = self._cuts
        columns, lowers = reader.read(start, stop)
        metadata: list[dict[str, Any]] | None = None
        if cuts.open_tail and stop == len(cuts):
            metadata = [{}] * (stop - start - 1) + [{OPEN_TAIL: True}]
        made_up = None if self._has_next else cuts.terminated[start:stop]
        rows = Episode(**columns, metadata=self._metadata, source=self.name, index=start)
        return EpisodeBatch(rows, lowers, made_up, metadata=metadata)

    def details(self) -> dict[str, Any]:
        cuts = self._cuts
        terminated = int(cuts.terminated.sum())
        warnings = []
        if not self._has_timeouts and self._max_episode_steps is None:
            warnings.append(f"no `{self._timeouts}`: episodes end at terminals only; max_episode_steps=N cuts them")
        if cuts.open_tail:
            warnings.append("the last episode has no end flag; it is kept as truncated")
        if terminated and not self._has_next:
            warnings.append(f"no `next_observations`: the {terminated} terminal observations are zeros")
        return {
            "rows": self._rows,
            "terminated": terminated,
            "truncated": len(cuts) - terminated,
            OPEN_TAIL: cuts.open_tail,
            "timeouts": self._has_timeouts,
            "next_observations": self._has_next,
            "metadata": describe_value(self._metadata),
            "ignored": self._ignored,
            "warnings": warnings,
        }

    def fingerprint(self) -> str:
        options = f"{self._max_episode_steps},{self._reward_shift},{self._infos}"
        return f"{self.format}:{fingerprint_files([self.path])}:{options}"

    def _find_cuts(self, file: Hdf5File, layout: Layout) -> Cuts:
        names = {"terminals": "terminals", "timeouts": self._timeouts}
        found = {
            flag: flagged_rows(file, column, f"{self.name}: `{names[flag]}`") for flag, column in layout.flags.items()
        }
        return cut(
            layout.count,
            found["terminals"],
            found.get("timeouts", np.empty(0, np.int64)),
            max_episode_steps=self._max_episode_steps,
            has_next=layout.following is not None,
        )

    @functools.cached_property
    def _metadata(self) -> dict[str, Any]:
        if not self._has_metadata:
            return {}
        with self._open() as file:
            found = file.get("metadata")
            if found is None:
                return {}
            values = nest.map_structure(file.value, file.tree(found, f"{self.name}: metadata"))
        return values if isinstance(values, dict) else {"metadata": values}
