"""Goals in hindsight, while sampling and on request (Andrychowicz et al. 2017)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.buffers.read.reader import Reader, discounted
from rlds2buf.buffers.read.view import View
from rlds2buf.buffers.read.windows import WindowReader
from rlds2buf.buffers.rows.episode_index import Episodes
from rlds2buf.buffers.rows.row_store import RowStore
from rlds2buf.buffers.select.samplers import item_slots
from rlds2buf.core import nest
from rlds2buf.core.arguments import integer
from rlds2buf.core.row_flags import CONTINUE, TERMINATED
from rlds2buf.core.sample import Transition, Windows
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import NotEnoughItems
from rlds2buf.kernels.goals import judge, judge_numpy, put
from rlds2buf.kernels.runs import EPISODE, FINAL, FUTURE
from rlds2buf.views.goals import Goal, GoalMap, resolve_goals
from rlds2buf.views.hindsight import (
    BatchFn,
    check_strategy,
    draw_picks,
    evaluate,
    one_by_one,
    put_goals,
    relabel,
)

__all__ = ["Drawn", "Hindsight"]

_CODES = {"final": FINAL, "episode": EPISODE, "future": FUTURE}
_COMPILED = "?bhilqBHILQfd"
"""Characters of the dtypes that compiled code knows."""

_log = logging.getLogger(__name__)


class Drawn(NamedTuple):
    """What was read for a batch that is to get new goals; private copies, so the rest needs no lock.

    Attributes:
        rows: one-step transitions ``[B * n]``, those of one path side by side.
        reached: values ``[B * n, k]`` for each goal.
        chosen: ``[B * n] bool``, which of them get new goals.
        steps: ``[B] int32``, how many of each path's n count; None for n = 1.
        hindsight: what puts them in: how it was set up when they were drawn.
        view: of the batch.
        windows: ``[B * n]``, around each of `rows`, if the view has any.
    """

    rows: Transition
    reached: list[np.ndarray]
    chosen: np.ndarray
    steps: np.ndarray | None
    hindsight: Hindsight
    view: View
    windows: Windows | None = None


class Hindsight:
    """The view that gives drawn transitions goals which their episode reached later.

    Made before there is a store, so that a wrong argument leaves nothing behind; :meth:`bind` gives
    it the rows, which it never changes.  Nor does it change itself: :meth:`changed` gives another one.

    Args:
        spec: of the rows.
        goals: conditions, all replaced at once; as GoalMaps or their JSON forms.
        reward_fn, done_fn: of batches ``(observation, action, next_observation)``, giving ``[B]``.
        strategy: ``"final"``, ``"episode"`` or ``"future"``.
        num_goals: new goals for each stored one.
        include_current: whether ``"future"`` may pick what the transition itself reached.
        vectorized: False if the functions take single transitions.
        while_sampling: whether sampled transitions get new goals.

    Attributes:
        maps: the goals.
        given: `reward_fn` and `done_fn` as they were given.

    Raises:
        ValueError: goals, strategy or number don't fit; or the rewards are not one number per step.
        TypeError: a switch is neither True nor False, or goals are none.
    """

    def __init__(
        self,
        spec: StepSpec,
        goals: GoalMap | Sequence[GoalMap | Mapping[str, Any]],
        reward_fn: Callable[..., Any],
        done_fn: Callable[..., Any],
        *,
        strategy: str = "final",
        num_goals: int = 4,
        include_current: bool = True,
        vectorized: bool = True,
        while_sampling: bool = True,
    ) -> None:
        check_strategy(strategy, num_goals)
        self.spec = spec
        self.maps = goal_maps(goals)
        self.goals = resolve_goals(self.maps, spec.observation)
        _check_reward(spec)
        for name, function in (("reward_fn", reward_fn), ("done_fn", done_fn)):
            if not callable(function):
                raise ValueError(f"{name} must be a function, got {function!r}")
        switches = {
            "include_current": include_current,
            "vectorized": vectorized,
            "while_sampling": while_sampling,
        }
        for name, switch in switches.items():
            if not isinstance(switch, bool | np.bool_):
                raise TypeError(f"{name} must be True or False, got {switch!r}")
        self.given = {"reward_fn": reward_fn, "done_fn": done_fn}
        if not vectorized:
            reward_fn, done_fn = one_by_one(reward_fn, "reward_fn"), one_by_one(done_fn, "done_fn")
        self.reward_fn: BatchFn = reward_fn
        self.done_fn: BatchFn = done_fn
        self.strategy, self.num_goals, self.include_current = strategy, int(num_goals), bool(include_current)
        self.vectorized, self.while_sampling = bool(vectorized), bool(while_sampling)

    def changed(self, **changes: Any) -> Hindsight:
        """One of the same rows with another argument.

        Raises:
            ValueError, TypeError: as where one is made.
        """
        options = {**self.options(), "goals": self.maps, **self.given, **changes}
        other = Hindsight(self.spec, **options)
        if self.vectorized:
            other._warn_of_slowness()
        other.bind(self._store, self.episodes)
        return other

    def bind(self, store: RowStore, episodes: Episodes | None = None) -> None:
        """Take the rows to read from, and an index of their episodes if there is one."""
        if episodes is None:
            self._warn_of_slowness()
        self._store = store
        self._reader = Reader(store)
        self._windows = WindowReader(self._reader)
        self.episodes = Episodes(store) if episodes is None else episodes
        paths = [store.paths[i][1:] for i in store.observation]
        achieved = [paths.index(goal.achieved.path) for goal in self.goals]
        self._desired = [paths.index(goal.desired.path) for goal in self.goals]
        self._leaves = tuple(sorted(set(achieved)))
        self._achieved = [self._leaves.index(i) for i in achieved]
        dtypes = [store.fields[i].dtype for i in store.observation]
        self._starts = [
            _start(goal, {dtypes[i], dtypes[paths.index(goal.desired.path)]})
            for goal, i in zip(self.goals, achieved, strict=True)
        ]
        fields = (store.spec.reward, store.spec.discount)
        self._compiled = all(field is None or field.dtype.char in _COMPILED for field in fields)

    def _warn_of_slowness(self) -> None:
        if not self.vectorized:
            _log.warning(
                "reward_fn and done_fn are called once for every transition (vectorized=False); "
                "functions of whole batches are many times faster"
            )

    @property
    def ratio(self) -> float:
        """The chance of a sampled transition to get a new goal."""
        return self.num_goals / (self.num_goals + 1)

    def options(self) -> dict[str, Any]:
        """How it was made, as plain JSON values; the functions can't be among them."""
        return {
            "goals": [goal.to_json() for goal in self.maps],
            "strategy": self.strategy,
            "num_goals": self.num_goals,
            "include_current": self.include_current,
            "vectorized": self.vectorized,
            "while_sampling": self.while_sampling,
        }

    def read(
        self,
        slots: np.ndarray,
        view: View,
        uniforms: np.ndarray,
        waiting: Mapping[int, int],
        horizons: np.ndarray | None = None,
    ) -> Drawn:
        """Read what a batch needs.

        Args:
            slots: ``[B] int64``, drawn.
            view: of the batch.
            uniforms: ``[2, B] float64`` in [0, 1), which picks go by; there may be more rows.
            waiting: the newest transition of each source that goes on (see buffers/contents/contents.py).
            horizons: ``[B] int64``, of how many steps each is at most, in place of the view's.

        Raises:
            ValueError: the view is one of sequences or whole items, or has windows of what is judged anew.
        """
        if view.sequence_length is not None or view.whole:
            raise ValueError(
                "hindsight goals can't be put into sequences: each would end where its new goal is met; "
                "use n_step, or get(keys, sequence_length=...) for sequences as they are stored"
            )
        self.episodes.update(waiting.values())
        code = _CODES[self.strategy]
        picks, chosen, room = self.episodes.pick(slots, uniforms[:2], self.ratio, code, self.include_current)
        n = view.longest
        steps = None
        if n > 1:
            path, steps = self._reader.chains(slots, n, horizons)
            # Whether a placeholder meets a goal nobody knows: a path with a new goal stops before it.
            steps = np.where(chosen, np.minimum(steps, room), steps).astype(np.int32)
            slots, picks, chosen = path.reshape(-1), picks.repeat(n), chosen.repeat(n)
        rows, leaves = self._reader.with_outcomes(slots, picks, self._leaves, view.gamma)
        reached = [goal.achieved.read(leaves[i]) for goal, i in zip(self.goals, self._achieved, strict=True)]
        windows = None
        if view.windows is not None:
            self._windows.layout(view.windows).refuse_judged()
            windows = self._windows.read(slots, view.windows, waiting)
        return Drawn(rows, reached, chosen, steps, self, view, windows)

    def finish(self, drawn: Drawn, gamma: float) -> Transition | Windows:
        """Put the new goals in and judge the transitions by them; calls the functions."""
        judged = self._judged(drawn, gamma)
        offsets, windows = drawn.view.windows, drawn.windows
        if offsets is None or windows is None:
            return judged
        for leaf, goal, values in zip(self._desired, self.goals, drawn.reached, strict=True):
            self._windows.put(windows, offsets, leaf, goal.desired, values, drawn.chosen)
        return _around(windows, judged)

    def _judged(self, drawn: Drawn, gamma: float) -> Transition:
        """The transitions with their new goals, rewards and ends."""
        rows, reached, chosen = drawn[:3]
        for goal, start, values in zip(self.goals, self._starts, reached, strict=True):
            if start < 0:
                put_goals(rows, [goal], [values], chosen)
                continue
            path, shape = goal.desired.path, (len(chosen), goal.desired.width)
            before, after = nest.get(rows.observation, path), nest.get(rows.next_observation, path)
            put(before.reshape(shape), after.reshape(shape), start, values, chosen)
        rewards, met = evaluate(rows, self.reward_fn, self.done_fn)
        settle = judge if self._compiled else judge_numpy
        settle(chosen, rewards, met, gamma, rows.reward, rows.is_done, rows.discount, rows.bootstrap_discount)
        return rows if drawn.steps is None else _joined(rows, drawn.steps, gamma)

    def trajectory(self, num_steps: int, source_id: int | None, waiting: Mapping[int, int], gamma: float) -> Transition:
        """The last `num_steps` transitions of an episode, as stored.

        Raises:
            ValueError: `num_steps` is below 1, or reaches back beyond the episode's start.
            NotEnoughItems: fewer are held.
        """
        num_steps = integer("num_steps", num_steps, 1)
        slots = item_slots(self._store)
        if source_id is not None:
            source = self._store.source
            slots = slots[(np.zeros(len(slots)) if source is None else source[slots]) == source_id]
        if num_steps > len(slots):
            what = "" if source_id is None else f" of source {source_id}"
            raise NotEnoughItems(f"the buffer holds {len(slots)} transitions{what}, {num_steps} were asked for")
        self.episodes.update(waiting.values())
        newest = int(self._store.key_of(slots[-1:])[0])
        keys, real = self.episodes.run_of(newest)
        if num_steps > len(keys):
            raise ValueError(
                f"the last {num_steps} transitions span the end of an episode: the newest one has {len(keys)}"
            )
        kept = keys[len(keys) - num_steps : real]
        # Pictures stay files: what comes of this is to be added again.
        rows: Transition = self._reader.unpack(self._reader.transitions(self._store.slot_of(kept), gamma), False)
        return rows

    def generate(self, trajectory: Transition, picks: np.ndarray, gamma: float) -> Transition:
        """New transitions of a trajectory; see :func:`rlds2buf.views.hindsight.relabel`."""
        return relabel(trajectory, picks, self.maps, self.reward_fn, self.done_fn, gamma=gamma)

    def draw_picks(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Picks for a trajectory of `count` steps."""
        return draw_picks(count, self.strategy, self.num_goals, rng, include_current=self.include_current)


def goal_maps(goals: Any) -> list[GoalMap]:
    """Goals as they may be given, or as they were saved.

    Raises:
        TypeError: they are none.
    """
    if isinstance(goals, GoalMap):
        return [goals]
    if isinstance(goals, str | Mapping) or not isinstance(goals, Iterable):
        raise TypeError(f"goals is a list of GoalMap(achieved, desired), got {goals!r}")
    return [_goal_map(goal) for goal in goals]


def _goal_map(goal: Any) -> GoalMap:
    """A GoalMap; a pair (achieved, desired) will do."""
    if isinstance(goal, GoalMap):
        return goal
    if isinstance(goal, Mapping) and {"achieved", "desired"} == set(goal):
        saved = [isinstance(place, list) and len(place) == 2 for place in goal.values()]
        return GoalMap.from_json(goal) if all(saved) else GoalMap(**goal)
    if isinstance(goal, tuple | list) and len(goal) == 2:
        return GoalMap(*goal)
    raise TypeError(
        f"each of goals is a GoalMap(achieved, desired), such as GoalMap('achieved_goal', 'desired_goal'), got {goal!r}"
    )


def _start(goal: Goal, dtypes: set[np.dtype]) -> int:
    """Where a goal's neighbouring elements start; -1 where they are no neighbours or of a rare dtype."""
    elements = goal.desired.elements
    if isinstance(elements, np.ndarray) or any(dtype.char not in _COMPILED for dtype in dtypes):
        return -1
    return 0 if elements is None else elements.start


def _check_reward(spec: StepSpec) -> None:
    if not isinstance(spec.reward, FieldSpec) or spec.reward.shape != ():
        raise ValueError("hindsight needs data with one reward per step, for reward_fn gives one")


def _around(windows: Windows, judged: Transition) -> Windows:
    """Windows ``[B * n]`` of paths as those of the transitions ``[B]`` that these became."""
    names = ("reward", "discount", "is_done", "steps", "bootstrap_discount")
    judgements = {name: getattr(judged, name) for name in names}
    size = len(judged.steps)
    if len(windows.steps) == size:
        return windows._replace(**judgements)
    first = np.arange(size) * (len(windows.steps) // size)
    last = first + judged.steps - 1

    def start(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else column[first]

    same = {name: nest.map_structure(start, getattr(windows, name)) for name in ("observation", "action", "extras")}
    following = nest.map_structure(lambda column: None if column is None else column[last], windows.next_observation)
    pads = {name: pad[last if name.startswith("next_") else first] for name, pad in windows.is_pad.items()}
    time_step = start(windows.time_step)
    return Windows(**same, **judgements, next_observation=following, is_pad=pads, time_step=time_step)


def _joined(rows: Transition, steps: np.ndarray, gamma: float) -> Transition:
    """n-step transitions of one-step ones, each path ending where its goal is met.

    Args:
        rows: ``[B * n]``, those of one path side by side.
        steps: ``[B] int32``, how many of the n count at most.
        gamma: discount per step.
    """
    shape = len(steps), len(rows.is_done) // max(len(steps), 1)
    codes = rows.is_done.reshape(shape)
    ends = (codes != CONTINUE) & (np.arange(shape[1]) < steps[:, None])
    steps = np.where(ends.any(1), ends.argmax(1) + 1, steps).astype(np.int32)
    first = np.arange(shape[0]) * shape[1]
    last = first + steps - 1
    discount = rows.discount.reshape(shape).astype(np.float64)
    reward, product = discounted(rows.reward.reshape(shape).copy(), discount, steps, gamma)
    is_done = rows.is_done[last]
    product *= is_done != TERMINATED

    def start(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else column[first]

    return Transition(
        observation=nest.map_structure(start, rows.observation),
        action=nest.map_structure(start, rows.action),
        reward=reward,
        discount=product.astype(rows.discount.dtype),
        next_observation=nest.map_structure(lambda column: column[last], rows.next_observation),
        extras=nest.map_structure(start, rows.extras),
        is_done=is_done,
        steps=steps,
        bootstrap_discount=(product * gamma).astype(np.float32),
    )
