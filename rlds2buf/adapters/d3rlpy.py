"""d3rlpy 2: its own replay buffer filled from ours, and one of its interface whose mini-batches are our samples.

>>> import numpy as np
>>> from rlds2buf import Episode
>>> from rlds2buf.adapters.d3rlpy import to_d3rlpy
>>> ep = Episode(observation=np.zeros((5, 3), np.float32), action=np.zeros((5, 1), np.float32),
...              reward=np.ones(5), is_terminal=np.arange(5) == 4)
>>> to_d3rlpy([ep, ep]).transition_count
8
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from rlds2buf.adapters.held import all_episodes, as_buffer, one_array, spec_of_data
from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.read.held_episodes import following_rows, runs
from rlds2buf.core.arguments import fraction, integer
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW
from rlds2buf.core.sample import Transition
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import MissingDependency, SpecMismatch, UnknownKey

try:
    import d3rlpy.dataset as theirs
    from d3rlpy.constants import ActionSpace
    from d3rlpy.dataset.io import dump as dump_episodes
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.d3rlpy needs d3rlpy 2: pip install d3rlpy") from cause

__all__ = ["ReplayBuffer", "to_d3rlpy"]

_NAME = "d3rlpy"


def to_d3rlpy(
    data: Any, *, action_space: Any = None, action_size: int | None = None, **options: Any
) -> theirs.ReplayBuffer:
    """d3rlpy's own replay buffer with everything that a buffer or a dataset holds.

    Source: https://github.com/takuseno/d3rlpy, ``d3rlpy/dataset``, version 2.8.

    =====================  =====================================================================
    an episode of N rows   d3rlpy's ``Episode``
    =====================  =====================================================================
    that terminated        N - 1 rows, `terminated`: the last one's successor is zeros there
    that was cut           N rows: the last one is the successor of the one before, no more
    whose final row was    N - 1 rows, so one transition less; but for those that terminated
    not recorded
    =====================  =====================================================================

    Rewards become float32; actions and rewards that are one number a step get the axis that d3rlpy wants, other
    dtypes stay. A tuple of observations stays one. Discounts and extras have no place. Integer actions are
    discrete: 0 up to the largest one, of the field's limits if it has some, else of the data.

    Args:
        data: a :class:`~rlds2buf.Buffer`, or what :func:`rlds2buf.open_source` opens.
        action_space: a ``d3rlpy.ActionSpace``, in place of what the actions' dtype says.
        action_size: how many discrete actions there are, or how many numbers a continuous one has.
        options: for ``d3rlpy.dataset.ReplayBuffer``: `transition_picker`, `trajectory_slicer`, for example.

    Returns:
        A ``d3rlpy.dataset.ReplayBuffer`` over an ``InfiniteBuffer``; its arrays are copies.

    Raises:
        SpecMismatch: observations or actions are nested, text, or of varying shape; or there is no reward.
        NotEnoughItems: there is no transition.
    """
    batch = all_episodes(data)
    episodes = _episodes(batch)
    spec = spec_of_data(data)
    space, size = _actions(episodes[0].actions, spec, action_space, action_size)
    if size is None:
        size = int(max(int(episode.actions.max()) for episode in episodes)) + 1
    one = episodes[0]
    given = {
        "observation_signature": one.observation_signature,
        "action_signature": one.action_signature,
        "reward_signature": one.reward_signature,
        "action_space": space,
        "action_size": size,
        **options,
    }
    return theirs.ReplayBuffer(theirs.InfiniteBuffer(), episodes=episodes, **given)


class ReplayBuffer(theirs.ReplayBufferBase):
    """A replay buffer of d3rlpy's interface over one of ours, for ``fit`` and ``fit_online``.

    Mini-batches are what ``buffer.sample`` draws: with its seed, its priorities, goals in hindsight, from a folder
    on the disk; d3rlpy has no place for importance weights. In place of d3rlpy's zeros, the next observation of a
    transition that terminates is the one that was stored; no target looks at it.

    Args:
        buffer: a :class:`~rlds2buf.Buffer` of single transitions, or the path of a saved one.
        n_step: horizon; as d3rlpy's ``MultiStepTransitionPicker``, which `gamma` must agree with, and the
            algorithm's own.
        gamma: discount per step within `n_step`.
        action_space, action_size: as for :func:`to_d3rlpy`.
        options: for ``buffer.sample``: `source_id`, `beta`, for example.

    Raises:
        SpecMismatch: as for :func:`to_d3rlpy`.
        TypeError: it is no buffer.
        ValueError: `n_step` or `gamma` is out of range.

    >>> import numpy as np
    >>> from rlds2buf import Episode, make_circular, spec_of
    >>> from rlds2buf.adapters.d3rlpy import ReplayBuffer
    >>> ep = Episode(observation=np.zeros((5, 3), np.float32), action=np.zeros((5, 1), np.float32),
    ...              reward=np.ones(5), is_terminal=np.arange(5) == 4)
    >>> buffer = make_circular(spec_of(ep), 100, seed=0)
    >>> keys = buffer.add(ep)
    >>> batch = ReplayBuffer(buffer).sample_transition_batch(32)
    >>> batch.observations.shape, batch.rewards.shape
    ((32, 3), (32, 1))
    """

    def __init__(
        self,
        buffer: Buffer | str | os.PathLike[str],
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        action_space: Any = None,
        action_size: int | None = None,
        **options: Any,
    ) -> None:
        self.source = as_buffer(buffer)
        self._n_step, self._gamma = integer("n_step", n_step, 1), fraction("gamma", gamma)
        self._options = {**options, "n_step": self._n_step, "gamma": self._gamma}
        self.source.engine.request(**self._options)  # refuses what there is not
        spec = self.source.spec
        self._action = _place(spec, "action")
        self._reward = _place(spec, "reward")
        self._info = self._describe(spec, action_space, action_size)
        self._pending: list[tuple[Any, Any, Any]] = []
        self._known: _Known | None = None

    # -- what d3rlpy learns from -------------------------------------------------------------------

    def sample_transition_batch(self, batch_size: int) -> theirs.TransitionMiniBatch:
        """B transitions as float32, ``[B, ...]``; rewards, terminals and intervals ``[B, 1]``.

        Raises:
            NotEnoughItems: the buffer is empty.
        """
        engine = self.source.engine
        with engine.lock:
            sample = self.source.sample(batch_size, **self._options)
            data = sample.data
            if not isinstance(data, Transition):
                raise TypeError(f"d3rlpy learns from single transitions, and this buffer's items are {_kind(data)}")
            next_actions = self._next_actions(engine.contents.slots_of(sample.info.key), data.steps)
        terminals = np.asarray(data.is_done == 1, np.float32)[:, None]
        batch = theirs.TransitionMiniBatch(
            observations=_observed(data.observation, np.float32),
            actions=_wide(data.action).astype(np.float32, copy=False),
            rewards=np.asarray(data.reward, np.float32).reshape(-1, 1),
            next_observations=_observed(data.next_observation, np.float32),
            next_actions=next_actions.astype(np.float32, copy=False),
            terminals=terminals,
            intervals=np.asarray(data.steps, np.float32)[:, None],
            transitions=_Transitions(self, sample.info.key, data, next_actions),
        )
        return batch

    def sample_transition(self) -> theirs.Transition:
        """A transition, of the data's own dtypes."""
        return self.sample_transition_batch(1).transitions[0]

    def sample_trajectory(self, length: int) -> theirs.PartialTrajectory:
        """The steps up to a transition that is drawn, as d3rlpy's slicer cuts them."""
        return self._trajectories(1, length)[0]

    def sample_trajectory_batch(self, batch_size: int, length: int) -> theirs.TrajectoryMiniBatch:
        """B of them, for decision transformers."""
        return theirs.TrajectoryMiniBatch.from_partial_trajectories(self._trajectories(batch_size, length))

    # -- what comes in -----------------------------------------------------------------------------

    def append(self, observation: Any, action: Any, reward: Any) -> None:
        """Take a step; it is stored when :meth:`clip_episode` says how its episode ends."""
        self._pending.append((observation, action, reward))

    def clip_episode(self, terminated: bool) -> None:
        """Store the steps taken as an episode: of n of them n transitions if it terminated, else n - 1."""
        steps, self._pending = self._pending, []
        if not steps:
            return
        observations, actions, rewards = zip(*steps, strict=True)
        parts = isinstance(observations[0], list | tuple)
        seen = [np.stack(part) for part in zip(*observations, strict=True)] if parts else np.stack(observations)
        self._add(seen, np.asarray(actions), np.asarray(rewards), bool(terminated))

    def append_episode(self, episode: Any) -> None:
        """Store one of d3rlpy's episodes."""
        self._add(episode.observations, episode.actions, episode.rewards, bool(episode.terminated))

    # -- what it holds -----------------------------------------------------------------------------

    @property
    def episodes(self) -> Sequence[Any]:
        """What is held as d3rlpy's episodes, copied; the same ones until the buffer changes."""
        known = self._current()
        if known.episodes is None:
            known = self._known = known._replace(episodes=_episodes(all_episodes(self.source)))
        assert known.episodes is not None
        return known.episodes

    @property
    def buffer(self) -> Any:
        """What is held as a buffer of d3rlpy's, copied."""
        return to_d3rlpy(self.source).buffer

    @property
    def transition_count(self) -> int:
        """How many transitions are held."""
        return len(self.source)

    @property
    def transition_picker(self) -> Any:
        """What would pick the same transitions of :attr:`episodes`."""
        if self._n_step > 1:
            return theirs.MultiStepTransitionPicker(self._n_step, self._gamma)
        return theirs.BasicTransitionPicker()

    @property
    def trajectory_slicer(self) -> Any:
        """What cuts trajectories."""
        return theirs.BasicTrajectorySlicer()

    @property
    def dataset_info(self) -> Any:
        """Shapes and dtypes, and what kind of actions there are."""
        return self._info

    def size(self) -> int:
        """How many episodes are held."""
        return len(self.episodes)

    def dump(self, f: BinaryIO) -> None:
        """Write what is held as a file of d3rlpy's own format."""
        dump_episodes(self.episodes, f)

    @classmethod
    def from_episode_generator(cls, episode_generator: Any, buffer: Any, *args: Any, **options: Any) -> Any:
        """d3rlpy's own buffer, as its class makes it."""
        return theirs.ReplayBuffer.from_episode_generator(episode_generator, buffer, *args, **options)

    @classmethod
    def load(cls, f: BinaryIO, buffer: Any, *args: Any, **options: Any) -> Any:
        """d3rlpy's own buffer from one of its files; ``load_buffer`` and ``convert`` make ours of such a file."""
        return theirs.ReplayBuffer.load(f, buffer, *args, **options)

    # -- inside ------------------------------------------------------------------------------------

    def _describe(self, spec: StepSpec, action_space: Any, action_size: int | None) -> Any:
        action = self._action[1]
        space, size = _actions(_wide(_example(action)), spec, action_space, action_size)
        if size is None:
            if not len(self.source):
                raise ValueError("how many actions there are can't be told from an empty buffer: give action_size")
            size = int(np.asarray(self.source.all().action).max()) + 1
        observed = spec.observation if isinstance(spec.observation, tuple) else (spec.observation,)
        for number, field in enumerate(observed):
            one_array(_example(field), f"observation/{number}" if len(observed) > 1 else "observation", _NAME)
        return theirs.DatasetInfo(
            observation_signature=theirs.Signature(
                dtype=[field.dtype for field in observed], shape=[field.shape or (1,) for field in observed]
            ),
            action_signature=theirs.Signature(dtype=[action.dtype], shape=[action.shape or (1,)]),
            reward_signature=theirs.Signature(dtype=[np.dtype(np.float32)], shape=[(1,)]),
            action_space=space,
            action_size=size,
        )

    def _next_actions(self, slots: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """The actions ``[B, ...]`` behind the last of each transition's steps; zeros where there is none."""
        engine = self.source.engine
        if self._n_step > 1:
            slots = engine.reader.chains(slots, self._n_step)[0][:, -1]
        following, held = following_rows(engine.store, slots)
        actions = engine.store.columns[self._action[0]][following]
        actions[~held] = 0
        return _wide(actions)

    def _trajectories(self, count: int, length: int) -> list[Any]:
        keys = self.source.sample(count, **self._options).info.key
        episodes, known = self.episodes, self._current()
        edges = np.append(0, np.cumsum([episode.transition_count for episode in episodes]))
        if edges[-1] != len(known.rewards):
            raise SpecMismatch(
                "some episodes' final rows were not recorded, and their last steps have no place in d3rlpy's episodes: "
                "train on transitions, or convert the data with their final observations",
                rule="spec",
            )
        places = known.places(keys)
        which = np.searchsorted(edges, places, "right") - 1
        slicer = self.trajectory_slicer
        return [
            slicer(episodes[number], int(place - edges[number]), length)
            for number, place in zip(which.tolist(), places.tolist(), strict=True)
        ]

    def _add(self, observations: Any, actions: np.ndarray, rewards: np.ndarray, terminated: bool) -> None:
        spec, count = self.source.spec, len(actions)
        if count + terminated < 2:
            return  # it has no transition
        parts = observations if isinstance(observations, list | tuple) else (observations,)
        fields = spec.observation if isinstance(spec.observation, tuple) else (spec.observation,)

        def column(rows: Any, field: FieldSpec) -> np.ndarray:
            values = np.asarray(rows).astype(field.dtype, copy=False).reshape(count, *field.shape)
            return np.concatenate([values, np.zeros_like(values[:1])]) if terminated else values

        seen = tuple(column(rows, field) for rows, field in zip(parts, fields, strict=True))
        last = np.arange(count + terminated) == count + terminated - 1
        ones = np.ones(count + terminated)
        self.source.add(
            Episode(
                observation=seen if isinstance(spec.observation, tuple) else seen[0],
                action=column(actions, self._action[1]),
                reward=column(rewards, self._reward[1]),
                discount=None if spec.discount is None else ones.astype(spec.discount.dtype),
                is_last=last,
                is_terminal=last & terminated,
                metadata={PLACEHOLDER_FINAL_ROW: True} if terminated else {},
            )
        )

    def _current(self) -> _Known:
        """The order of what is held, found out anew when the buffer has changed."""
        engine = self.source.engine
        with engine.lock:
            state = engine.contents.added, engine.contents.evicted, len(self.source)
            if self._known is None or self._known.state != state:
                slots, begins = runs(engine.store)
                keys = engine.contents.keys_of(slots)
                rewards = np.asarray(engine.store.columns[self._reward[0]][slots], np.float32).reshape(-1, 1)
                order = np.argsort(keys)
                stops = np.append(np.flatnonzero(begins)[1:], len(slots))
                self._known = _Known(state, keys[order], order, rewards, stops)
            return self._known

    def rewards_to_go(self, key: int) -> np.ndarray:
        """Rewards ``[T, 1] float32`` of a transition and of all behind it in its episode, for Cal-QL.

        Raises:
            UnknownKey: it has left the buffer.
        """
        known = self._current()
        place = int(known.places(np.array([key], np.uint64))[0])
        return known.rewards[place : known.stops[np.searchsorted(known.stops, place, "right")]]


class _Known(NamedTuple):
    """What is held, in order of its episodes, as long as the buffer is in this `state`.

    Attributes:
        state: counts that change when rows come or leave.
        keys: ``[N] uint64``, ascending.
        order: ``[N] int64``, the place of each of them.
        rewards: ``[N, 1] float32``, by place.
        stops: ``[E] int64``, behind the last place of each episode.
        episodes: d3rlpy's, if they were asked for.
    """

    state: tuple[int, int, int]
    keys: np.ndarray
    order: np.ndarray
    rewards: np.ndarray
    stops: np.ndarray
    episodes: list[Any] | None = None

    def places(self, keys: np.ndarray) -> np.ndarray:
        """Where items ``keys [B] uint64`` stand."""
        if not np.isin(keys, self.keys).all():
            raise UnknownKey("a transition of this mini-batch has left the buffer")
        return self.order[np.searchsorted(self.keys, keys)]


class _Transitions(Sequence[Any]):
    """The transitions of a mini-batch one by one, of the data's own dtypes, each made when it is looked at."""

    def __init__(self, owner: ReplayBuffer, keys: np.ndarray, data: Transition, next_actions: np.ndarray) -> None:
        self._owner, self._keys, self._data, self._next_actions = owner, keys, data, next_actions

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        data = self._data
        i = range(len(self))[i]
        return theirs.Transition(
            observation=_row(_observed(data.observation), i),
            action=_wide(data.action)[i],
            reward=np.asarray(data.reward[i], np.float32).reshape(1),
            next_observation=_row(_observed(data.next_observation), i),
            next_action=self._next_actions[i],
            terminal=float(data.is_done[i] == 1),
            interval=int(data.steps[i]),
            rewards_to_go=self._owner.rewards_to_go(int(self._keys[i])),
        )


def _episodes(batch: EpisodeBatch) -> list[Any]:
    """d3rlpy's episodes, whose arrays are views of the batch's."""
    rows = batch.rows
    observed = rows.observation if isinstance(rows.observation, tuple) else (rows.observation,)
    names = [f"observation/{i}" for i in range(len(observed))] if len(observed) > 1 else ["observation"]
    seen = [_wide(one_array(column, name, _NAME)) for column, name in zip(observed, names, strict=True)]
    actions = _wide(one_array(rows.action, "action", _NAME))
    rewards = one_array(rows.reward, "reward", _NAME)
    if rewards.size != len(rewards):
        raise SpecMismatch("d3rlpy takes one reward a step", path="reward", rule="spec")
    rewards = rewards.astype(np.float32, copy=False).reshape(-1, 1)
    ends = batch.ends + 1
    terminated = rows.is_terminal[batch.ends]
    kept = ends - (terminated if batch.placeholder is None else terminated | batch.placeholder)
    made = []
    for start, stop, over in zip(batch.starts.tolist(), kept.tolist(), terminated.tolist(), strict=True):
        parts = [column[start:stop] for column in seen]
        made.append(
            theirs.Episode(
                observations=parts if isinstance(rows.observation, tuple) else parts[0],
                actions=actions[start:stop],
                rewards=rewards[start:stop],
                terminated=over,
            )
        )
    return made


def _actions(actions: np.ndarray, spec: StepSpec | None, space: Any, size: int | None) -> tuple[Any, int | None]:
    """Which kind of actions there are, and how many; None where the data have to tell."""
    if space is None:
        space = ActionSpace.DISCRETE if actions.dtype.kind in "biu" else ActionSpace.CONTINUOUS
    if size is not None:
        return space, integer("action_size", size, 1)
    if space == ActionSpace.CONTINUOUS:
        return space, actions.shape[1]
    field = None if spec is None else spec.action
    high = field.high if isinstance(field, FieldSpec) else None
    return space, None if high is None else int(np.max(high)) + 1


def _place(spec: StepSpec, name: str) -> tuple[int, FieldSpec]:
    """Which column of a buffer a field is."""
    field = getattr(spec, name)
    one_array(_example(field), name, _NAME)
    columns = [path for path, _ in spec.fields() if path[0] not in ("is_first", "is_last", "is_terminal")]
    return columns.index((name,)), field


def _example(field: Any) -> Any:
    """No rows of a field that is one array of numbers; else what tells why it is none."""
    if not isinstance(field, FieldSpec) or field.is_string or None in field.shape:
        return field
    shape: Any = field.shape
    return np.zeros((0, *shape), field.dtype)


def _observed(observation: Any, dtype: Any = None) -> Any:
    """Observations as d3rlpy has them: an array, or a list of the parts of a tuple."""
    if isinstance(observation, tuple):
        return [_observed(part, dtype) for part in observation]
    wide = _wide(observation)
    return wide if dtype is None else wide.astype(dtype, copy=False)


def _row(observed: Any, i: int) -> Any:
    return [part[i] for part in observed] if isinstance(observed, list) else observed[i]


def _wide(column: np.ndarray) -> np.ndarray:
    """With an axis behind the first one at least."""
    return column[:, None] if column.ndim == 1 else column


def _kind(data: Any) -> str:
    return type(data).__name__.lower() + "s"
