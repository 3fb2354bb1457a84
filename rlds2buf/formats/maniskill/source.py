"""ManiSkill's trajectory files: a group an episode, and a JSON file beside them."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, check_names, open_hdf5
from rlds2buf.codecs.hdf5.rows import native_dtype
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.row_flags import OPEN_TAIL
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EmptyEpisode, EpisodeError, SourceError, SourceFormatError, SpecMismatch
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.maniskill.format import TRAJECTORY
from rlds2buf.io.blocks import blocks_of
from rlds2buf.io.padding import padded
from rlds2buf.io.source import Source, spec_of_first

__all__ = ["ManiSkillSource"]

_FLAGS = ("terminated", "truncated")
_FIELDS = ("obs", "actions", "rewards", *_FLAGS)
_AHEAD = ("obs", "env_states")
"""What has a row more than there are actions."""


class ManiSkillSource(Source):
    """Trajectories as ManiSkill's ``RecordEpisode`` writes them (https://maniskill.readthedocs.io, "Datasets").

    ==========================  ===================================================================
    ``traj_N`` in the file      the episode, of T + 1 rows
    ==========================  ===================================================================
    ``obs`` ``[T + 1, ...]``    the observation, nested as it is; where there is none, None
    ``actions`` ``[T, ...]``    the action
    ``rewards [T]``             the reward; where there is none, None
    ``terminated [T]``          the last one says whether the last row is terminal
    ``env_states [T + 1, ...]`` extras, nested as they are
    ``terminated``,             extras: what came of each action.  Where a recording went on behind
    ``truncated``, ``success``, a success, ``terminated`` is set before the end, too
    ``fail``
    ==========================  ===================================================================

    The last row has zeros as action, reward and flags of a step.  The discount is 1 (float32), and 0 on the step into
    a terminal row and on that row.  A trajectory that neither flag ends is taken as truncated, and its
    ``metadata["open_tail"]`` is True.  What the ``.json`` beside the file tells of each episode (seed, control mode,
    success, how it was reset) is its metadata, with the environment's ``env_id``.

    Args:
        path: the ``.h5`` file.
        info: whether to read the ``.json`` of the same name, and hold the file against it.
        states: whether to read ``env_states``.
        external: data that the file has in other files: ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound, SourceFormatError: nothing is there, it is no such file, or the ``.json`` is of another one.
    """

    format: ClassVar[str] = "maniskill"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        info: bool = True,
        states: bool = True,
        external: str = "refuse",
        budget: Budget = BUDGET,
    ) -> None:
        self.path = Path(path)
        self.name = str(path)
        self._states, self._info = states, info
        self._open = functools.partial(open_hdf5, self.path, budget=budget, external=external)
        with self._open() as file:
            check_names(file, self.name)
            numbers = {name: int(match[1]) for name in file if (match := TRAJECTORY.fullmatch(name))}
        self._names = sorted(numbers, key=lambda name: (numbers[name], name))
        if not self._names:
            raise SourceFormatError(f"{path}: a ManiSkill file needs trajectories, traj_0 and so on")
        self._json = self.path.with_suffix(".json")
        self._env_info: dict[str, Any] = {}
        self._told = self._read_json(numbers) if info and self._json.is_file() else {}

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._names)

    @property
    def num_steps(self) -> int:
        return self._num_steps

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        stop = len(self._names) if stop is None else min(stop, len(self._names))
        with self._open() as file:
            yield from blocks_of((self._item(file, index) for index in range(start, stop)), rows, bytes)

    def _item(self, file: Hdf5File, index: int) -> Episode | EpisodeError:
        file.new_record()
        try:
            return self._episode(file, index)
        except EpisodeError as error:
            return error

    def _episode(self, file: Hdf5File, index: int) -> Episode:
        name = self._names[index]
        where: dict[str, Any] = {"source": self.name, "episode": index}
        held = file.tree(file.get(name), f"{self.name}: {name}")
        if not isinstance(held, Mapping):
            raise SpecMismatch(f"{name} should be a group", rule="spec", **where)
        steps = _length(held.get("actions"))
        if steps is None:
            raise SpecMismatch(f"{name} has no `actions`, or none of one length", path="action", rule="spec", **where)
        told = self._told.get(name)
        if told is not None and told.get("elapsed_steps", steps) != steps:
            message = f"{name} has {steps} actions, but {self._json.name} says {told['elapsed_steps']} elapsed_steps"
            raise SpecMismatch(message, path="action", rule="ragged-columns", **where)
        if not steps:
            raise EmptyEpisode(f"{name} has no actions", rule="empty-episode", **where)
        columns = {key: self._read(file, key, tree, steps, where) for key, tree in held.items() if self._wanted(key)}
        flags = {key: columns.pop(key) for key in _FLAGS if key in columns}
        for key, column in flags.items():
            _check_flags(column, key, where)
        rows = steps + 1
        last = np.arange(rows) == steps
        terminal = last & bool("terminated" in flags and flags["terminated"][steps - 1])
        discount = np.ones(rows, np.float32)
        if terminal[-1]:
            discount[-2:] = 0
        observation = columns.pop("obs", None)
        if isinstance(observation, dict) and not observation:
            observation = None
        is_open = not any(column[steps - 1] for column in flags.values())
        return Episode(
            observation=observation,
            action=columns.pop("actions"),
            reward=_number(columns.pop("rewards", None), where),
            discount=discount,
            is_first=np.arange(rows) == 0,
            is_last=last,
            is_terminal=terminal if "terminated" in flags else None,
            extras={**columns, **flags},
            metadata={**(told or {}), **self._environment(), **({OPEN_TAIL: True} if is_open else {})},
            source=self.name,
            index=index,
        )

    def _wanted(self, key: str) -> bool:
        return key != "env_states" or self._states

    def _read(self, file: Hdf5File, key: str, tree: Any, steps: int, where: dict[str, Any]) -> Any:
        field = {"obs": "observation", "actions": "action", "rewards": "reward"}.get(key, f"extras/{key}")
        rows = steps + 1
        expected = rows if key in _AHEAD else steps

        def column(path: nest.Path, dataset: Any) -> np.ndarray:
            count = dataset.shape[0] if dataset.shape else 0
            if count != expected:
                message = f"{count} rows in `{key}`, but {steps} actions"
                raise SpecMismatch(message, path=nest.path_name(path), rule="ragged-columns", **where)
            values = np.asarray(file.read(dataset)).astype(native_dtype(dataset), copy=False)
            return padded(values, rows)

        return nest.unflatten(tree, iter([column(path, one) for path, one in nest.flatten(tree, (field,))]))

    def details(self) -> dict[str, Any]:
        warnings = []
        if self.spec.observation is None:
            warnings.append(
                "no observations (obs_mode none): mani_skill.trajectory.replay_trajectory makes them, or "
                "map={'observation': 'extras/env_states/...'} takes states for them"
            )
        if self.spec.reward is None:
            warnings.append("no rewards")
        if self._info and not self._told:
            warnings.append(f"no {self._json.name} beside it: nothing tells environment, control mode and seeds")
        modes = sorted({str(told["control_mode"]) for told in self._told.values() if "control_mode" in told})
        return {"env_info": self._env_info, "control_modes": modes, "warnings": warnings}

    def facts(self) -> dict[str, Any]:
        return {"environment": self._env_info} if self._env_info else {}

    def fingerprint(self) -> str:
        files = [self.path, *([self._json] if self._told else [])]
        return f"maniskill:{fingerprint_files(files)}:{self._info},{self._states}"

    def _environment(self) -> dict[str, Any]:
        return {"env_id": self._env_info["env_id"]} if "env_id" in self._env_info else {}

    def _read_json(self, numbers: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """What is told of each trajectory."""
        try:
            told = parse_json(self._json.read_bytes())
            episodes = {int(one["episode_id"]): dict(one) for one in told["episodes"]}
            self._env_info = dict(told.get("env_info") or {})
        except OSError as cause:
            raise SourceError(f"{self._json}: can't be read: {cause.strerror or cause}") from cause
        except (LookupError, TypeError, ValueError) as cause:
            raise SourceFormatError(f"{self._json}: not what ManiSkill tells of trajectories ({cause!r})") from cause
        way = "it is of another file, or one of them is cut short; info=False reads the file without it"
        if missing := sorted(set(numbers.values()) - episodes.keys()):
            raise SourceFormatError(f"{self._json}: has no episode {missing[0]}, but {self.path.name} has: {way}")
        if missing := sorted(episodes.keys() - set(numbers.values())):
            raise SourceFormatError(f"{self.path}: has no traj_{missing[0]}, but {self._json.name} has: {way}")
        return {name: episodes[number] for name, number in numbers.items()}

    @functools.cached_property
    def _spec(self) -> StepSpec:
        return spec_of_first(self, "trajectories")

    @functools.cached_property
    def _num_steps(self) -> int:
        with self._open() as file:
            lengths = (_length(file.tree(file.get(f"{name}/actions"), name)) for name in self._names)
            return sum(0 if length is None else length + 1 for length in lengths)


def _length(tree: Any) -> int | None:
    """Rows of a dataset, or of all of a group; None if they differ, or there are none."""
    lengths = {leaf.shape[0] if leaf is not None and leaf.shape else None for _, leaf in nest.flatten(tree)}
    return lengths.pop() if len(lengths) == 1 else None


def _check_flags(column: Any, key: str, where: Mapping[str, Any]) -> None:
    path = f"extras/{key}"
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "biuf":
        raise SpecMismatch(f"`{key}` should hold one flag a step", path=path, rule="spec", **where)
    wrong = (column != 0) & (column != 1)
    if wrong.any():
        step = int(np.argmax(wrong))
        raise SpecMismatch(f"a flag should be 0 or 1, got {column[step]}", step=step, path=path, rule="spec", **where)


def _number(column: Any, where: Mapping[str, Any]) -> np.ndarray | None:
    """Rewards ``[N]``; ``[N, 1]`` is taken as that."""
    if isinstance(column, np.ndarray) and column.shape[1:] == (1,):
        column = column[:, 0]
    if column is None:
        return None
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "biuf":
        raise SpecMismatch("`rewards` should hold one number a step", path="reward", rule="spec", **where)
    return column
