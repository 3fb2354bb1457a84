"""What views and buffers hand out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core import shown
from rlds2buf.core.frameworks import converter
from rlds2buf.core.nest import Nest
from rlds2buf.core.row_flags import TERMINATED, TRUNCATED

__all__ = ["MultiAgentSample", "Sample", "SampleInfo", "StepPairs", "Trajectory", "Transition", "Windows"]


class Transition(NamedTuple):
    """B transitions inside episodes; every field has a leading axis ``[B]``.

    For a horizon of n steps (n = 1 unless asked otherwise) the k = ``steps`` rewards actually
    summed stop at the first end of an episode, at the newest stored row, and at n::

        reward             = sum over i < k of  gamma**i * d_0 * ... * d_{i-1} * r_i
        discount           = gamma**(k-1) * d_0 * ... * d_{k-1}      0 into a terminal state
        bootstrap_discount = gamma * discount

    with d the logged discounts (1 where the data have none).  So a learner's target is
    ``reward + bootstrap_discount * V(next_observation)`` for every n, right also where the horizon
    was cut short.

    Attributes:
        observation, action: nests of ``[B, ...]``.
        reward: ``[B]``, in the dtype of the data; n-step sums of float16 are float32, of integers float64.
        discount: ``[B]`` in [0, 1]; for n = 1 the logged one, 0 on the transition into a terminal row.
        next_observation: nest of ``[B, ...]``.
        extras: name to nest of ``[B, ...]``, of the first step.
        is_done: ``[B] uint8``: 0 goes on, 1 terminated, 2 truncated, at the transition's end.
        steps: ``[B] int32``, at least 1.
        bootstrap_discount: ``[B]`` float.
    """

    observation: Nest
    action: Nest
    reward: Any
    discount: Any
    next_observation: Nest
    extras: dict[str, Nest] = {}  # noqa: RUF012 - a NamedTuple default, never mutated
    is_done: Any = None
    steps: Any = None
    bootstrap_discount: Any = None

    def __repr__(self) -> str:
        return shown.batch(self)

    def to(self, to: str, *, device: Any = None, pin_memory: bool = False) -> Transition:
        """As tensors of a framework: see :meth:`Sample.to`."""
        moved: Transition = converter(to, device=device, pin_memory=pin_memory)(self)
        return moved

    @property
    def terminated(self) -> np.ndarray:
        """``[B] bool``: the environment ended the episode; do not bootstrap."""
        return np.asarray(self.is_done == TERMINATED)

    @property
    def truncated(self) -> np.ndarray:
        """``[B] bool``: the episode was cut; bootstrap."""
        return np.asarray(self.is_done == TRUNCATED)


class Trajectory(NamedTuple):
    """B windows of T consecutive steps of one episode each; leading axes ``[B, T]``.

    Positions past the end of the episode are zero and False in `mask`.

    Sequences sampled with burn-in have ``T = burn_in + sequence_length``: their own steps start at
    position `burn_in` in every row, and the earlier steps of the episode stand right before them.
    Where the episode has fewer, the first positions are zero.  Earlier steps are False in `mask`,
    for they are no data to learn from, and True in `burn_in`: a recurrent network is run over
    ``mask | burn_in``, starting with `initial_state` at the first of them, and trained on `mask`.

    Attributes:
        observation, action, reward, discount: nests of ``[B, T, ...]``.
        is_first, is_last, is_terminal: ``[B, T] bool``, the rows' own flags.
        extras: name to nest of ``[B, T, ...]``.
        mask: ``[B, T] bool``, True on real steps.
        next_observation: nest of ``[B, T, ...]`` where each step is a transition (sampled
            sequences), None where it is a row (:func:`rlds2buf.windows`).
        is_done: ``[B, T] uint8`` beside `next_observation`: 0 goes on, 1 terminated, 2 truncated.
        burn_in: ``[B, T] bool``, True on earlier steps; None unless asked for.
        initial_state: name to nest of ``[B, ...]``, the recurrent state in which the first real
            step (of `mask` or `burn_in`) was taken, or zeros; None unless asked for.
    """

    observation: Nest
    action: Nest
    reward: Any
    discount: Any
    is_first: Any
    is_last: Any
    is_terminal: Any
    extras: dict[str, Nest]
    mask: Any
    next_observation: Nest = None
    is_done: Any = None
    burn_in: Any = None
    initial_state: dict[str, Nest] | None = None

    def __repr__(self) -> str:
        return shown.batch(self)

    def to(self, to: str, *, device: Any = None, pin_memory: bool = False) -> Trajectory:
        """As tensors of a framework: see :meth:`Sample.to`."""
        moved: Trajectory = converter(to, device=device, pin_memory=pin_memory)(self)
        return moved


class Windows(NamedTuple):
    """B drawn transitions, of which some fields come as windows: what stood at K steps around each.

    A field that was named in `offsets` (or by `stack` or `context`) has an axis K behind B, one
    position for each of its offsets, in the order in which these were given; each field has its own K.
    Position k is the step ``offsets[k]`` steps behind the drawn one (before it, if below 0) of the
    same episode.  Where the episode, its source, or what is stored of it has no such step, the
    nearest one stands there, or zeros if that was asked for, and `is_pad` is True.  What was not
    named is as a :class:`Transition` has it, without the axis K.

    Observations may reach one step further than the last transition: to the observation that it
    led to, if that was recorded.  Offsets of `next_observation` count from what the transition leads
    to (of n steps, the last of them), so its offset 0 is ``Transition.next_observation``, and its -1
    the observation before that.

    Attributes:
        observation, action, reward, discount, extras: nests of ``[B, K, ...]``, or ``[B, ...]``;
            named rewards and discounts are those of single steps, others of the n steps.
        next_observation: likewise; None unless it was named.
        is_done: ``[B] uint8``, as :class:`Transition` has it, or ``[B, K]`` of single steps.
        steps: ``[B] int32``, how many of n steps count.
        bootstrap_discount: ``[B]`` float, of the n steps.
        is_pad: name, as it was given, to ``[B, K] bool``: True where there is no such step.
        return_to_go: ``[B, K]`` float, the sum of the rewards from each step to the end of its
            episode, or of what is stored of it, not discounted; None unless it was named.
        time_step: ``[B, K] int64``, steps since the first stored one of the episode, 0 for that; None
            unless it was named.
    """

    observation: Nest
    action: Nest
    reward: Any
    discount: Any
    next_observation: Nest = None
    extras: dict[str, Nest] = {}  # noqa: RUF012 - a NamedTuple default, never mutated
    is_done: Any = None
    steps: Any = None
    bootstrap_discount: Any = None
    is_pad: dict[str, Any] = {}  # noqa: RUF012 - likewise
    return_to_go: Any = None
    time_step: Any = None

    def __repr__(self) -> str:
        return shown.batch(self)

    def to(self, to: str, *, device: Any = None, pin_memory: bool = False) -> Windows:
        """As tensors of a framework: see :meth:`Sample.to`."""
        moved: Windows = converter(to, device=device, pin_memory=pin_memory)(self)
        return moved

    @property
    def terminated(self) -> np.ndarray:
        """Where `is_done` says that the environment ended the episode; do not bootstrap."""
        return np.asarray(self.is_done == TERMINATED)

    @property
    def truncated(self) -> np.ndarray:
        """Where `is_done` says that the episode was cut; bootstrap."""
        return np.asarray(self.is_done == TRUNCATED)


class StepPairs(NamedTuple):
    """Rows t with the type of row t+1 of the flattened data, as TF-Agents' Trajectory has them.

    All fields have a leading axis ``[B]``; step types are int32: 0 first, 1 mid, 2 last.
    """

    step_type: Any
    observation: Nest
    action: Nest
    policy_info: Nest
    next_step_type: Any
    reward: Any
    discount: Any

    def __repr__(self) -> str:
        return shown.batch(self)


class SampleInfo(NamedTuple):
    """Where each of the B sampled items came from.

    Attributes:
        key: ``[B] uint64``, stable ids for ``update_priorities``.
        probability: ``[B] float64``, the chance of each draw to pick this item.
        priority: ``[B] float64``, raw (before the exponent); 1 for uniform sampling.
        weight: ``[B] float64``, importance weights; 1 for uniform sampling.
        table_size: how many items could have been sampled.
    """

    key: np.ndarray
    probability: np.ndarray
    priority: np.ndarray
    weight: np.ndarray
    table_size: int

    def __repr__(self) -> str:
        return shown.batch(self)

    def to(self, to: str, *, device: Any = None, pin_memory: bool = False) -> SampleInfo:
        """As tensors of a framework: see :meth:`Sample.to`."""
        moved: SampleInfo = converter(to, device=device, pin_memory=pin_memory)(self)
        return moved


class Sample(NamedTuple):
    """A batch: `data` (:class:`Transition`, :class:`Trajectory` or :class:`Windows`) and `info`."""

    data: Any
    info: SampleInfo

    def __repr__(self) -> str:
        return shown.batch(self)

    def to(self, to: str, *, device: Any = None, pin_memory: bool = False) -> Sample:
        """The same batch as tensors of a framework, which borrow the arrays' memory where they can.

        Args:
            to: ``"torch"``, ``"jax"``, ``"tf"`` or ``"numpy"`` (as it is).
            device: where tensors go: what ``torch.device`` takes; a device of JAX's, or its name
                (``"cpu"``, ``"gpu:1"``); what ``tf.device`` takes.
            pin_memory: for ``"torch"``: put them into page-locked memory, if there is CUDA. (To a GPU
                they go by way of it in any case.)

        Returns:
            Nests as they are, of tensors; strings, and what is no array, stay. PyTorch gets wide unsigned
            integers (keys) as int64; JAX without 64-bit types gets 32-bit ones, and uint64 stays an array.

        Raises:
            MissingDependency: the framework is not installed.
            ValueError: there is no such framework or device.

        >>> from rlds2buf import Episode, make_circular, spec_of
        >>> ep = Episode(observation=np.arange(5.0), action=np.zeros(5), reward=np.ones(5))
        >>> buffer = make_circular(spec_of(ep), 100, seed=0)
        >>> keys = buffer.add(ep)
        >>> buffer.sample(4).to("numpy").data.reward.tolist()  # or "torch", device="cuda"
        [1.0, 1.0, 1.0, 1.0]
        """
        moved: Sample = converter(to, device=device, pin_memory=pin_memory)(self)
        return moved


class MultiAgentSample(dict[str, Sample]):
    """A batch of several policies: policy id to :class:`Sample`; policies without data are absent.

    Attributes:
        num_new: policy id to how many of its items, the first ones, are new ones that no batch had
            before; empty unless the buffer mixes new with replayed items.
        num_slots: of lockstep replay: how many time slots were drawn; else None.
        slot: of lockstep replay: policy id to ``[rows] int64``, the time slot of each row, from 0 to
            ``num_slots - 1``; rows of different policies with the same number belong together.
        agent_index: of lockstep replay: policy id to ``[rows] int64``.
    """

    def __init__(self, samples: Mapping[str, Sample] | None = None) -> None:
        super().__init__(samples or {})
        self.num_new: dict[str, int] = {}
        self.num_slots: int | None = None
        self.slot: dict[str, np.ndarray] = {}
        self.agent_index: dict[str, np.ndarray] = {}

    def __repr__(self) -> str:
        return shown.batch(self)

    def to(self, to: str, *, device: Any = None, pin_memory: bool = False) -> MultiAgentSample:
        """As tensors of a framework: see :meth:`Sample.to`; `slot` and `agent_index` too."""
        return self.converted(converter(to, device=device, pin_memory=pin_memory))

    def converted(self, convert: Callable[[Any], Any]) -> MultiAgentSample:
        """With its nests of arrays turned into what this function makes of them."""
        out = MultiAgentSample({name: convert(sample) for name, sample in self.items()})
        out.num_new, out.num_slots = self.num_new, self.num_slots
        out.slot, out.agent_index = convert(self.slot), convert(self.agent_index)
        return out
