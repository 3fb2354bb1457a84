"""Hindsight: transitions as if what was reached later had been the goal (Andrychowicz et al. 2017).

https://arxiv.org/abs/1707.01495
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.sample import Transition
from rlds2buf.kernels.goals import judge_numpy
from rlds2buf.views.goals import Goal, GoalMap, resolve_goals

__all__ = [
    "STRATEGIES",
    "BatchFn",
    "check_strategy",
    "draw_picks",
    "evaluate",
    "one_by_one",
    "put_goals",
    "relabel",
]

STRATEGIES = ("final", "episode", "future")

BatchFn = Callable[[nest.Nest, nest.Nest, nest.Nest], Any]
"""``f(observation, action, next_observation)`` of nests ``[B, ...]``, giving ``[B]``."""


def draw_picks(
    count: int, strategy: str, num_goals: int, rng: np.random.Generator, *, include_current: bool = True
) -> np.ndarray:
    """Draw for each step of a trajectory the steps whose outcome becomes its goal.

    Step k's outcome is its next observation, so k = t is what step t itself brought about.

    Args:
        count: N, steps of the trajectory.
        strategy: ``"final"``: the last step; ``"episode"``: any steps; ``"future"``: steps k >= t.
        num_goals: M, drawn per step with replacement; ``"final"`` has only one.
        rng: of the draws.
        include_current: whether ``"future"`` may pick k = t, an immediate success; the last step
            has no other choice.

    Returns:
        ``[N, M] int64`` (``[N, 1]`` for ``"final"``).

    Raises:
        ValueError: an argument is out of range.

    >>> draw_picks(3, "final", 4, np.random.default_rng(0)).tolist()
    [[2], [2], [2]]
    """
    check_strategy(strategy, num_goals)
    if strategy == "final":
        return np.full((count, 1), count - 1, np.int64)
    first = np.zeros(count, np.int64)
    if strategy == "future":
        first = np.arange(count)
        if not include_current:
            first = np.minimum(first + 1, max(count - 1, 0))
    return rng.integers(first[:, None], count, (count, num_goals))


def check_strategy(strategy: str, num_goals: int) -> None:
    """Raise ValueError unless these are a known strategy and a number of goals."""
    choice("strategy", strategy, STRATEGIES)
    if isinstance(num_goals, bool) or not isinstance(num_goals, int | np.integer) or num_goals < 1:
        raise ValueError(f"num_goals must be a whole number from 1 up, got {num_goals!r}")


def relabel(
    transition: Transition,
    picks: npt.ArrayLike,
    goals: Iterable[GoalMap],
    reward_fn: BatchFn,
    done_fn: BatchFn,
    *,
    gamma: float = 1.0,
) -> Transition:
    """New transitions of a trajectory under goals that it reached.

    Transition t with pick k is a copy of step t in which the desired elements, in the observation
    and in the next one, are what the achieved elements of step k's next observation were.  Reward
    and end are computed anew by the two functions.  Where the new goal is met, `is_done` is 1 and
    the discount 0; where it isn't, a step that terminated goes on (0, discount 1) and a step that was
    cut stays cut (2).  Everything else, and the trajectory itself, stays as it is.

    Args:
        transition: N consecutive one-step transitions of one episode.
        picks: ``[N, M]`` (or ``[N]``) integers in [0, N), as :func:`draw_picks` gives them.
        goals: conditions, all replaced from the same pick.
        reward_fn: rewards ``[B]`` of a batch of transitions.
        done_fn: whether each of them ``[B]`` reached its goal.
        gamma: discount per step, for `bootstrap_discount`.

    Returns:
        Transition ``[N * M]``, in the order of steps and then of their picks.

    Raises:
        ValueError: picks are out of range, goals don't fit the observation, a function's result has
            the wrong shape, or a transition has more than one step.

    >>> from rlds2buf import Episode, transitions
    >>> walk = np.array([[0.0, 9.0], [1.0, 9.0], [2.0, 9.0]])  # place, goal
    >>> step = transitions(Episode(observation=walk, action=np.zeros(3), reward=np.zeros(3), discount=np.ones(3)))
    >>> met = lambda observation, action, after: after[:, 0] == after[:, 1]
    >>> new = relabel(step, [[1], [1]], [GoalMap(((), [0]), ((), [1]))], met, met)
    >>> new.next_observation.tolist(), new.reward.tolist(), new.is_done.tolist()
    ([[1.0, 2.0], [2.0, 2.0]], [0.0, 1.0], [0, 1])
    """
    chosen = np.asarray(picks)
    count = len(np.asarray(transition.is_done))
    if chosen.ndim == 1:
        chosen = chosen[:, None]
    if chosen.ndim != 2 or len(chosen) != count or chosen.dtype.kind not in "iu":
        raise ValueError(f"picks must be integers [{count}, M], got {chosen.dtype}{list(np.shape(picks))}")
    if chosen.size and not (0 <= int(chosen.min()) and int(chosen.max()) < count):
        raise ValueError(f"picks must be in [0, {count}), got {int(chosen.min())} to {int(chosen.max())}")
    if transition.steps is not None and np.any(np.asarray(transition.steps) != 1):
        raise ValueError("hindsight goals are put into one-step transitions, and these have more steps")
    found = resolve_goals(goals, transition.observation)
    after = transition.next_observation
    reached = [
        np.ascontiguousarray(goal.achieved.read(nest.get(after, goal.achieved.path))[chosen.reshape(-1)])
        for goal in found
    ]
    steps = np.repeat(np.arange(count), chosen.shape[1])
    copies: dict[str, Any] = {
        name: None if part is None else nest.map_structure(lambda leaf: _taken(leaf, steps), part)
        for name, part in transition._asdict().items()
    }
    for name in ("discount", "bootstrap_discount"):
        if copies[name] is None:
            copies[name] = np.ones(len(steps), np.float32) * (1 if name == "discount" else gamma)
    new, everyone = Transition(**copies), np.ones(len(steps), np.bool_)
    put_goals(new, found, reached, everyone)
    rewards, met = evaluate(new, reward_fn, done_fn)
    judge_numpy(everyone, rewards, met, gamma, new.reward, new.is_done, new.discount, new.bootstrap_discount)
    return new


def put_goals(batch: Transition, goals: Sequence[Goal], reached: Sequence[np.ndarray], chosen: np.ndarray) -> None:
    """Write new goals into both observations of transitions, in place.

    Args:
        batch: B one-step transitions whose arrays are contiguous and nobody else's.
        goals: where goals are.
        reached: values ``[B, n]`` of each goal.
        chosen: ``[B] bool``, which transitions get them.
    """
    for goal, values in zip(goals, reached, strict=True):
        for side in (batch.observation, batch.next_observation):
            goal.desired.write(nest.get(side, goal.desired.path), values, chosen)


def evaluate(batch: Transition, reward_fn: BatchFn, done_fn: BatchFn) -> tuple[np.ndarray, np.ndarray]:
    """Ask the two functions about a batch: rewards ``[B]`` in the data's dtype, and which goals are met ``[B] bool``.

    They see the whole batch, so that its size is always the same; what they say of transitions that
    keep their goal is to be passed over.

    Raises:
        ValueError: a function's result has the wrong shape or dtype.
    """
    arguments = batch.observation, batch.action, batch.next_observation
    size, dtype = len(batch.reward), batch.reward.dtype
    rewards = _result(reward_fn(*arguments), size, "reward_fn")
    if rewards.dtype != dtype:
        if not np.can_cast(rewards.dtype, dtype, "same_kind"):
            raise ValueError(f"reward_fn gives {rewards.dtype}, and the data's rewards are {dtype}")
        rewards = rewards.astype(dtype)
    met = _result(done_fn(*arguments), size, "done_fn")
    return rewards, met if met.dtype == np.bool_ else met != 0


def one_by_one(function: Callable[..., Any], name: str) -> BatchFn:
    """A function of single transitions as one of batches: convenient, and many times slower."""

    def batched(observation: nest.Nest, action: nest.Nest, next_observation: nest.Nest) -> np.ndarray:
        arguments = (observation, action, next_observation)
        size = len(next(leaf for _, leaf in nest.flatten(observation)))
        results = []
        for i in range(size):
            row = nest.map_structure(lambda leaf, i=i: None if leaf is None else leaf[i], arguments)
            result = np.asarray(function(*row))
            if result.size != 1:
                raise ValueError(f"{name} must give one number per transition, got shape {list(result.shape)}")
            results.append(result.reshape(()))
        return np.array(results) if results else np.zeros(0)

    return batched


def _result(values: Any, size: int, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != (size,) or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must give {size} numbers, got {array.dtype}{list(array.shape)}")
    return array


def _taken(leaf: Any, steps: np.ndarray) -> Any:
    return None if leaf is None else np.ascontiguousarray(np.asarray(leaf)[steps])
