"""What vector environments give step by step, each observation kept once, and logged episodes beside it.

A transition that comes by itself would keep two observations.  So the newest steps wait in a small store of
their own, from which batches are drawn too, until there are enough of them to go into a buffer as rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.buffers.buffer import Buffer
from rlds2buf.core import nest
from rlds2buf.core.arguments import integer
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.nest import Nest
from rlds2buf.core.row_flags import CODE, CONTINUE, TERMINATED, TRUNCATED
from rlds2buf.core.sample import Transition
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import NotEnoughItems, SnapshotError

__all__ = ["StepReplay", "end_codes", "packed"]

_RECENT = 512
_SHARE = 64
"""At most so many steps of an environment wait, and at most one of so many that the buffer holds."""


def end_codes(done: Any, infos: Sequence[Mapping[str, Any]] = ()) -> np.ndarray:
    """How steps ended, ``[N] uint8``, as ``is_done`` has it, by what SB3's and CleanRL's buffers are told.

    Args:
        done: ``[N]``, whose episode ended.
        infos: N of them; one with a true ``"TimeLimit.truncated"`` says that its episode was cut. None of them
            (empty): every end is one by the environment.

    >>> end_codes([True, True, False], [{"TimeLimit.truncated": True}, {}, {}]).tolist()
    [2, 1, 0]
    """
    codes = np.where(done, np.uint8(TERMINATED), np.uint8(CONTINUE))
    for i in np.flatnonzero(codes).tolist() if len(infos) else ():
        if infos[i].get("TimeLimit.truncated", False):
            codes[i] = TRUNCATED
    return codes


def packed(
    transitions: Transition, goes_on: np.ndarray | None = None, begins: np.ndarray | None = None
) -> EpisodeBatch:
    """Transitions ``[N]`` that follow one another as rows of episodes, which keep each observation once.

    Args:
        transitions: of them observation, action, reward, next_observation and is_done are taken.
        goes_on: ``[N] bool``, whose next observation is the next one's observation, in the same episode; found out
            by comparing them unless given.
        begins: ``[N] bool``, which begin an episode and do not go on with one that was packed before; unless
            given, the first of each stretch does.

    >>> batch = packed(Transition(np.arange(3), np.zeros(3), np.ones(3), None, np.array([1, 9, 3]), is_done=[0, 2, 0]))
    >>> [episode.observation.tolist() for episode in batch]
    [[0, 1, 9], [2, 3]]
    """
    codes = np.asarray(transitions.is_done, np.uint8)
    count = len(codes)
    if goes_on is None:
        goes_on = np.zeros(count, np.bool_)
        goes_on[:-1] = (codes[:-1] == CONTINUE) & _same(
            nest.map_structure(lambda column: column[:-1], transitions.next_observation),
            nest.map_structure(lambda column: column[1:], transitions.observation),
        )
    goes_on[-1] = False
    ends = np.flatnonzero(~goes_on)
    place = np.arange(count)
    place[1:] += np.cumsum(~goes_on[:-1])
    final = place[ends] + 1
    starts = np.concatenate([[0], final[:-1] + 1])

    def rows(column: np.ndarray, last: np.ndarray | None = None) -> np.ndarray:
        out = np.zeros((count + len(ends), *column.shape[1:]), column.dtype)
        out[place] = column
        if last is not None:
            out[final] = last[ends]
        return out

    names = ("is_first", "is_last", "is_terminal")
    flags: dict[str, Any] = {name: np.zeros(count + len(ends), np.bool_) for name in names}
    flags["is_first"][starts] = True if begins is None else begins[np.concatenate([[0], ends[:-1] + 1])]
    flags["is_last"][final] = codes[ends] != CONTINUE
    flags["is_terminal"][final] = codes[ends] == TERMINATED
    columns = Episode(
        observation=nest.map_structure(rows, transitions.observation, transitions.next_observation),
        action=nest.map_structure(rows, transitions.action),
        reward=rows(transitions.reward),
        **flags,
    )
    return EpisodeBatch(columns, starts)


class StepReplay:
    """A buffer of rows that is added to a vector step at a time, and drawn from as a whole.

    Args:
        buffer: an empty one of transitions, whose spec has observation, action and reward; made for `capacity`.
        capacity: how many transitions it is to hold.
        num_envs: environments that step together.
        whole_episodes: wait for each episode's end before it can be drawn, as hindsight needs it.
        seed: of the share of steps that wait in a batch.
    """

    def __init__(
        self, buffer: Buffer, capacity: int, num_envs: int, *, whole_episodes: bool = False, seed: Any = None
    ) -> None:
        self.buffer = buffer
        self.num_envs = integer("n_envs", num_envs, 1)
        self.whole_episodes = whole_episodes
        self._rng = np.random.default_rng(seed)
        # One block of memory, of which what no row was written to costs nothing, in place of ever larger ones.
        buffer.engine.contents.relay(capacity + capacity // 64 + 64)
        width = min(_RECENT, capacity // (_SHARE * num_envs))
        together = not whole_episodes or num_envs == 1
        self._recent = _Recent(buffer.spec, num_envs, max(64 if whole_episodes else 1, width), together)

    @property
    def num_recent(self) -> int:
        """Transitions that wait and can be drawn."""
        return 0 if self.whole_episodes else int(self._recent.count.sum())

    def __len__(self) -> int:
        return len(self.buffer) + self.num_recent

    @property
    def nbytes(self) -> int:
        """Of all columns."""
        return int(self.buffer.stats()["bytes"]) + self._recent.nbytes

    def add_logged(self, batches: Iterable[EpisodeBatch]) -> None:
        """Add whole episodes as they are."""
        for batch in batches:
            self.buffer.add(batch)

    def add(
        self, observation: Nest, action: Nest, reward: np.ndarray, next_observation: Nest, codes: np.ndarray
    ) -> None:
        """Add one step of each environment, ``[num_envs, ...]``; `codes` are ``is_done``'s."""
        recent = self._recent
        if recent.is_full:
            if self.whole_episodes:
                recent.grow()
            else:
                self._pack(np.arange(self.num_envs))
        recent.put(observation, action, reward, next_observation, codes)
        if self.whole_episodes and codes.any():
            for env in np.flatnonzero(codes):
                self._pack(np.array([env]))

    def cut(self) -> None:
        """The episodes under way were cut behind their newest step: what comes next belongs to others."""
        self._recent.cut()
        if self.whole_episodes:
            for env in np.flatnonzero(self._recent.count):
                self._pack(np.array([env]))

    def episodes(self) -> EpisodeBatch:
        """All that can be drawn, as episodes.

        Raises:
            NotEnoughItems: there is nothing.
        """
        if self.num_recent:
            self._pack(np.arange(self.num_envs))
        if not len(self.buffer):
            raise NotEnoughItems("there are no episodes: nothing can be drawn yet")
        return packed(self.buffer.all())

    def sample(self, batch_size: int, n_step: int = 1, gamma: float = 1.0) -> Transition:
        """Draw transitions with replacement, each with the same chance, whether they wait or not.

        Raises:
            NotEnoughItems: there are none.
        """
        held, waiting = len(self.buffer), self.num_recent
        if not held and not waiting:
            end = "an episode's end" if self.whole_episodes else "a step"
            raise NotEnoughItems(f"there is nothing to sample before {end}: learn later (learning_starts) or add data")
        count = batch_size if not held else int(self._rng.binomial(batch_size, waiting / (held + waiting)))
        view: dict[str, Any] = {} if n_step == 1 else {"n_step": n_step, "gamma": gamma}
        newest = self._recent.draw(self._rng, count, n_step, gamma) if count else None
        if newest is not None and not held:
            return newest
        sample = self.buffer.sample(batch_size, **view)
        data: Transition = sample.data
        if self.buffer.engine.hindsight is not None and n_step == 1:
            data = data._replace(is_done=self._ends(sample.info.key))
        if newest is not None:
            # Which of the drawn ones make room is all the same.
            for name in ("observation", "action", "reward", "next_observation", "is_done", "steps"):
                nest.map_structure(lambda to, of: _put(to, of, count), getattr(data, name), getattr(newest, name))
        return data

    def clear(self) -> None:
        """Drop everything."""
        self.buffer.clear()
        self._recent.clear()

    def state(self) -> dict[str, Any]:
        """A deep copy of everything."""
        return {
            "buffer": self.buffer.state_dict(),
            "recent": self._recent.state(),
            "rng": self._rng.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Become what :meth:`state` gave.

        Raises:
            SnapshotError: it is of another capacity, of other spaces or another number of environments.
        """
        if state["recent"]["count"].shape != (self.num_envs,):
            raise SnapshotError(f"the state is of {len(state['recent']['count'])} environments, not {self.num_envs}")
        self.buffer.load_state_dict(state["buffer"])
        self._recent.set_state(state["recent"])
        self._rng.bit_generator.state = state["rng"]

    def _ends(self, keys: np.ndarray) -> np.ndarray:
        """How transitions ended as they were stored: a new goal that is met ends nothing here."""
        engine = self.buffer.engine
        with engine.lock:
            flags: np.ndarray = engine.store.flags[engine.contents.slots_of(keys)]
        return flags & np.uint8(CODE)

    def _pack(self, envs: np.ndarray) -> None:
        self.buffer.add(self._recent.take(envs))


class _Recent:
    """The newest steps of each environment, ``[num_envs, width]``, those of one environment one behind the other.

    Args:
        spec: of the rows.
        num_envs, width: of the store.
        together: whether all environments have as many steps there, always.

    Attributes:
        count: ``[num_envs] int64``, how many there are of each.
    """

    def __init__(self, spec: StepSpec, num_envs: int, width: int, together: bool) -> None:
        self._envs = np.arange(num_envs)
        self._together = together

        def column(field: Any) -> np.ndarray:
            return np.zeros((num_envs, width, *field.shape), field.dtype)

        self._parts: dict[str, Any] = {
            "observation": nest.map_structure(column, spec.observation),
            "action": nest.map_structure(column, spec.action),
            "reward": nest.map_structure(column, spec.reward),
            "next_observation": nest.map_structure(column, spec.observation),
            "is_done": np.zeros((num_envs, width), np.uint8),
            "goes_on": np.zeros((num_envs, width), np.bool_),
        }
        self.count = np.zeros(num_envs, np.int64)
        self._begun = np.zeros(num_envs, np.bool_)
        """Whether the first step there is goes on with an episode that was taken."""

    @property
    def is_full(self) -> bool:
        return bool(self.count.max() == self._width)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for _, column in nest.flatten(self._parts))

    @property
    def _width(self) -> int:
        return int(self._parts["is_done"].shape[1])

    def _at(self, steps: int) -> tuple[Any, Any]:
        """Where the step to come of each environment goes, and so many steps from there."""
        if self._together:
            return slice(None), int(self.count[0]) + steps
        return self._envs, self.count + steps

    def put(
        self, observation: Nest, action: Nest, reward: np.ndarray, next_observation: Nest, codes: np.ndarray
    ) -> None:
        parts, here, last = self._parts, self._at(0), self._at(-1)
        same = _same(nest.map_structure(lambda column: column[last], parts["next_observation"]), observation)
        parts["goes_on"][last] = (self.count > 0) & same & (parts["is_done"][last] == CONTINUE)
        given = {"observation": observation, "action": action, "reward": reward, "next_observation": next_observation}
        for name, values in {**given, "is_done": codes}.items():
            nest.map_structure(lambda column, value: _set(column, here, value), parts[name], values)
        parts["goes_on"][here] = False
        self.count += 1

    def grow(self) -> None:
        """Have room for twice as many steps."""
        self._parts = nest.map_structure(lambda column: np.concatenate([column, np.zeros_like(column)], 1), self._parts)

    def cut(self) -> None:
        """The newest step of each environment was its episode's last."""
        last = self.count - 1
        codes = self._parts["is_done"]
        goes_on = (last >= 0) & (codes[self._envs, last] == CONTINUE)
        codes[self._envs[goes_on], last[goes_on]] = TRUNCATED
        self._begun[last < 0] = False

    def take(self, envs: np.ndarray) -> EpisodeBatch:
        """All steps of these environments, each of which has as many as the others; they are gone then."""
        count = int(self.count[envs[0]])

        def column(values: np.ndarray) -> np.ndarray:
            some = values[envs, :count]
            return some.reshape(-1, *some.shape[2:])

        parts = nest.map_structure(column, self._parts)
        begins = np.ones((len(envs), count), np.bool_)
        begins[:, 0] = ~self._begun[envs]
        goes_on = parts.pop("goes_on")
        self._begun[envs] = self._parts["is_done"][envs, count - 1] == CONTINUE
        self.count[envs] = 0
        return packed(Transition(discount=None, **parts), goes_on, begins.reshape(-1))

    def draw(self, rng: np.random.Generator, size: int, n_step: int, gamma: float) -> Transition:
        """Transitions ``[size]``, over up to `n_step` steps; `discount` is not made."""
        edges = np.cumsum(self.count)
        chosen = rng.integers(edges[-1], size=size)
        env = np.searchsorted(edges, chosen, side="right")
        first = last = chosen - (edges - self.count)[env]
        parts = self._parts
        reward, steps = parts["reward"][env, first], np.ones(size, np.int32)
        alive = np.ones(size, np.bool_)
        for i in range(1, n_step):
            alive = alive & parts["goes_on"][env, last]
            last = last + alive
            reward = reward + np.where(alive, gamma**i * parts["reward"][env, last], 0).astype(reward.dtype)
            steps += alive
        at = {
            name: nest.map_structure(lambda column: column[env, first], parts[name])
            for name in ("observation", "action")
        }
        after = nest.map_structure(lambda column: column[env, last], parts["next_observation"])
        return Transition(
            **at,
            reward=reward,
            discount=None,
            next_observation=after,
            is_done=parts["is_done"][env, last],
            steps=steps,
        )

    def clear(self) -> None:
        self.count[:] = 0
        self._begun[:] = False

    def state(self) -> dict[str, Any]:
        return {
            "parts": nest.map_structure(np.copy, self._parts),
            "count": self.count.copy(),
            "begun": self._begun.copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._parts = nest.map_structure(np.copy, state["parts"])
        self.count, self._begun = state["count"].copy(), state["begun"].copy()


def _set(column: np.ndarray, at: Any, value: Any) -> None:
    column[at] = value


def _put(to: np.ndarray, of: np.ndarray, count: int) -> None:
    to[:count] = of


def _same(one: Nest, other: Nest) -> np.ndarray:
    """``[N] bool``, where all leaves ``[N, ...]`` are equal."""
    equal: Any = True
    for (_, mine), (_, theirs) in zip(nest.flatten(one), nest.flatten(other), strict=True):
        here = mine == theirs
        equal = equal & here.reshape(len(here), -1).all(1)
    return np.asarray(equal)
