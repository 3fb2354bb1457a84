"""Which steps of a rollout form a path, and how each path ends."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core.row_flags import CONTINUE, TERMINATED, TRUNCATED
from rlds2buf.errors import ReplayError, SpecMismatch

__all__ = ["Ends", "Paths", "Place"]


class Place(NamedTuple):
    """Where incoming steps go in tables ``[num_envs, size]``.

    Attributes:
        cells: index of the table's cells.
        lead: leading axes of what comes: ``()`` or ``[T]`` of one environment, ``[num_envs]`` or
            ``[T, num_envs]`` of all.
        envs: the environments.
        steps: T.
    """

    cells: tuple[Any, ...]
    lead: tuple[int, ...]
    envs: slice
    steps: int

    def env_first(self, array: np.ndarray) -> np.ndarray:
        """What comes, ``[*lead, ...]``, in the order of the table."""
        return array.swapaxes(0, 1) if len(self.lead) == 2 else array

    def table(self, array: np.ndarray) -> np.ndarray:
        """What comes, ``[*lead]``, as ``[environments, T]``."""
        return self.env_first(array).reshape(-1, self.steps)


class Ends(NamedTuple):
    """How the steps of a rollout end, ``[N]`` each, in the order of :meth:`Paths.flat`.

    Attributes:
        is_done: uint8; the last step of every path is 1 or 2, all others are 0.
        value_r, value_c: what follows, where `is_done` is 2.
    """

    is_done: np.ndarray
    value_r: np.ndarray
    value_c: np.ndarray


class Paths:
    """The steps stored and the paths they form, per environment.

    Args:
        num_envs, size: environments, and steps that fit for each.
        dtype: of values.

    Attributes:
        stored: ``[num_envs]``: steps stored.
        start: ``[num_envs]``: where the open path begins; equal to `stored` if none is.
        waiting: ``[num_envs] bool``: the newest step is truncated, and its bootstrap value is due.
    """

    def __init__(self, num_envs: int, size: int, dtype: np.dtype) -> None:
        self.num_envs, self.size = num_envs, size
        self.stored = np.zeros(num_envs, np.int64)
        self.start = np.zeros(num_envs, np.int64)
        self.waiting = np.zeros(num_envs, np.bool_)
        self._is_done = np.zeros((num_envs, size), np.uint8)
        self._value_r = np.zeros((num_envs, size), dtype)
        self._value_c = np.zeros((num_envs, size), dtype)

    def place(self, lead: tuple[int, ...], env: int | None) -> Place:
        """Where steps go that come with the leading axes `lead`.

        Raises:
            ReplayError: no room, or a truncated step still waits for its bootstrap value.
            SpecMismatch: `lead` does not fit the number of environments.
            ValueError: there is no such environment.
        """
        if env is None and self.num_envs == 1 and len(lead) < 2:
            env = 0
        if env is None:
            if not 1 <= len(lead) <= 2 or lead[-1] != self.num_envs:
                raise SpecMismatch(
                    f"expected shape [{self.num_envs}] or [T, {self.num_envs}] for {self.num_envs} environments, "
                    f"got {list(lead)}; env= stores for one of them",
                    path="reward",
                    rule="spec",
                )
            envs, steps = slice(None), 1 if len(lead) == 1 else lead[0]
        else:
            envs = self._one(env)
            if len(lead) > 1:
                raise SpecMismatch(f"expected shape [] or [T], got {list(lead)}", path="reward", rule="spec")
            steps = lead[0] if lead else 1
        self._require_room(envs, steps)
        return Place(self._index(lead, envs, steps), lead, envs, steps)

    def advance(self, place: Place, codes: np.ndarray | None, final_r: Any, final_c: Any) -> None:
        """Count the steps at `place`, and end paths where `codes` ``[*lead]`` says so (None: nowhere).

        Raises:
            ReplayError: a step before the last one is truncated, and there are no final values.
            SpecMismatch: final values of another shape.
        """
        if codes is not None and codes.any():
            values = [self._final(name, given, place) for name, given in (("r", final_r), ("c", final_c))]
            table = place.table(codes)
            cut = table == TRUNCATED
            if final_r is None and cut[:, :-1].any():
                row, step = np.argwhere(cut[:, :-1])[0]
                env = range(self.num_envs)[place.envs][row]
                raise ReplayError(
                    f"environment {env}: step {step} of {place.steps} is truncated; final_value_r must say what follows"
                )
            waiting = cut[:, -1] & (final_r is None)
            ended = table != CONTINUE
            ended[:, -1] &= ~waiting
            after = place.steps - ended[:, ::-1].argmax(axis=1)
            before = self.start[place.envs]
            self.start[place.envs] = np.where(ended.any(axis=1), self.stored[place.envs] + after, before)
            self.waiting[place.envs] = waiting
            self._is_done[place.cells] = place.env_first(codes)
            for column, value in zip((self._value_r, self._value_c), values, strict=True):
                column[place.cells] = value
        self.stored[place.envs] += place.steps

    def finish(self, last_r: Any, last_c: Any, env: int | None) -> int:
        """End open paths at their newest steps; see ``OnPolicyBuffer.finish_path``."""
        envs = slice(None) if env is None else self._one(env)
        count = len(self.stored[envs])
        values = [self._last(name, given, count) for name, given in (("r", last_r), ("c", last_c))]
        lengths = self.stored[envs] - self.start[envs]
        is_open = lengths > 0
        if not is_open.any():
            return 0
        which = np.arange(self.num_envs)[envs][is_open]
        if last_r is None and self.waiting[which].any():
            late = int(which[self.waiting[which].argmax()])
            raise ReplayError(
                f"environment {late}: step {self.stored[late] - 1} was truncated, not terminated; finish_path() needs "
                "last_value_r, the value of the final observation"
            )
        newest = self.stored[which] - 1
        self._is_done[which, newest] = TERMINATED if last_r is None else TRUNCATED
        self._value_r[which, newest] = values[0][is_open]
        self._value_c[which, newest] = values[1][is_open]
        self.start[which] = self.stored[which]
        self.waiting[which] = False
        return int(lengths.sum())

    def require_finished(self) -> None:
        """Raise unless every step belongs to a finished path.

        Raises:
            ReplayError: it names the first open path.
        """
        is_open = self.stored > self.start
        if is_open.any():
            env = int(is_open.argmax())
            raise ReplayError(
                f"{np.count_nonzero(is_open)} of {self.num_envs} environments have an open path (environment {env}: "
                f"steps {self.start[env]} to {self.stored[env] - 1}); call finish_path(), or pass last_value_r to get()"
            )

    def ends(self) -> Ends:
        """How the steps end."""
        return Ends(self.flat(self._is_done), self.flat(self._value_r), self.flat(self._value_c))

    def flat(self, column: np.ndarray) -> np.ndarray:
        """``[num_envs, size, ...]`` to ``[N, ...]``: a copy of the steps stored, environment after environment."""
        count = int(self.stored[0])
        if (self.stored == count).all():
            return np.array(column[:, :count]).reshape(-1, *column.shape[2:])
        return np.concatenate([column[env, : self.stored[env]] for env in range(self.num_envs)])

    def where(self, position: int) -> tuple[int, int]:
        """Environment and step of a position in :meth:`flat`'s order."""
        ends = np.cumsum(self.stored)
        env = int(np.searchsorted(ends, position, side="right"))
        return env, position - int(ends[env] - self.stored[env])

    def arrays(self) -> dict[str, np.ndarray]:
        """All there is, by name; not copied."""
        return {
            "stored": self.stored,
            "start": self.start,
            "waiting": self.waiting,
            "is_done": self._is_done,
            "value_r": self._value_r,
            "value_c": self._value_c,
        }

    def clear(self) -> None:
        """Forget everything."""
        self._is_done[:, : int(self.stored.max())] = CONTINUE
        self.stored[:] = 0
        self.start[:] = 0
        self.waiting[:] = False

    def _one(self, env: int) -> slice:
        if not 0 <= env < self.num_envs:
            raise ValueError(f"env must be in [0, {self.num_envs}), got {env}")
        return slice(env, env + 1)

    def _require_room(self, envs: slice, steps: int) -> None:
        fullest = int(self.stored[envs].max())
        if fullest + steps > self.size:
            raise ReplayError(
                f"no room: {fullest} of {self.size} steps per environment are stored, {steps} more came; get() empties "
                "the buffer"
            )
        if self.waiting[envs].any():
            env = range(self.num_envs)[envs][int(self.waiting[envs].argmax())]
            raise ReplayError(
                f"environment {env}: step {self.stored[env] - 1} was truncated, and nothing says what followed; call "
                "finish_path(last_value_r) with the final observation's value first, or store final_value_r with it"
            )

    def _index(self, lead: tuple[int, ...], envs: slice, steps: int) -> tuple[Any, ...]:
        first = int(self.stored[envs][0])
        if envs != slice(None):
            return (envs.start, slice(first, first + steps) if lead else first)
        if (self.stored == first).all():
            return (envs, first if len(lead) == 1 else slice(first, first + steps))
        everyone = np.arange(self.num_envs)
        if len(lead) == 1:
            return (everyone, self.stored.copy())
        return (everyone[:, None], self.stored[:, None] + np.arange(steps))

    def _final(self, name: str, given: Any, place: Place) -> np.ndarray:
        value = np.asarray(0.0 if given is None else given)
        if value.shape not in (place.lead, ()):
            raise SpecMismatch(
                f"expected shape {list(place.lead)}, got {list(value.shape)}", path=f"final_value_{name}", rule="spec"
            )
        return place.env_first(np.broadcast_to(value, place.lead))

    def _last(self, name: str, given: Any, count: int) -> np.ndarray:
        value = np.asarray(0.0 if given is None else given)
        if value.shape not in ((), (count,)):
            raise ValueError(f"last_value_{name} has shape {list(value.shape)}, expected [] or [{count}]")
        return np.broadcast_to(value, (count,))
