"""torchrl: batches and whole buffers as TensorDicts, and a dataset that ``load_dataset`` knows.

Importing this module registers the prefix ``rlds2buf`` with torchrl:
``load_dataset("rlds2buf:hopper-buffer", batch_size=256)``, where a path of any dataset may stand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.adapters.held import all_episodes
from rlds2buf.core import nest
from rlds2buf.core.frameworks import converter
from rlds2buf.core.row_flags import CONTINUE, TERMINATED, TRUNCATED
from rlds2buf.core.sample import Sample, SampleInfo, Trajectory, Transition
from rlds2buf.errors import MissingDependency, SpecMismatch
from rlds2buf.views.transitions import transitions

try:
    from tensordict import TensorDict
    from torchrl.data import TensorStorage
    from torchrl.data.datasets import register_dataset
    from torchrl.data.datasets.common import BaseDatasetExperienceReplay
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.torchrl needs torchrl 0.13 or later: pip install torchrl") from cause

__all__ = ["ExperienceReplay", "to_tensordict"]


def to_tensordict(data: Any, *, device: Any = None) -> Any:
    """A batch, or all that a buffer or a dataset holds, as torchrl's transitions (TED).

    Source: https://docs.pytorch.org/rl/main/reference/data_datasets.html, "TED format".

    ==============================  ==========================================================
    entry                           of a Transition ``[B]`` (of a Trajectory ``[B, T]``)
    ==============================  ==========================================================
    ``observation``, ``action``     as they are; a nest is a nested TensorDict, parts of a tuple
                                    have their numbers as names
    ``("next", "observation")``     `next_observation`
    ``("next", "reward")``          `reward` ``[B, 1]``
    ``("next", "terminated")``,     `is_done` ``[B, 1] bool``; ``("next", "done")`` is either
    ``("next", "truncated")``
    ``terminated``, ``truncated``,  False ``[B, 1]``: no transition starts at an end
    ``done``
    ``discount``                    `discount` ``[B, 1]``; 0 into terminal states
    ``steps_to_next_obs``           `steps` ``[B, 1]``, by which torchrl's estimators bootstrap
    ``mask``                        of a Trajectory
    extras                          by their own names
    ``key``, ``_weight``            of a Sample: for ``update_priorities``, and importance weights
    ``episode``                     of a buffer or dataset: the number of the episode ``[N]``
    ==============================  ==========================================================

    Args:
        data: a :class:`~rlds2buf.Sample`, Transition or Trajectory, whose memory is borrowed, not copied, as far as
            PyTorch has its dtypes; or a Buffer or what :func:`rlds2buf.open_source` opens, whose transitions
            are copied once, episode by episode.
        device: where tensors go; the CPU unless given.

    Returns:
        TensorDict.

    Raises:
        SpecMismatch: there is text in it, or arrays of varying shape; or an extra has another entry's name.

    >>> import numpy as np
    >>> from rlds2buf import Episode
    >>> from rlds2buf.adapters.torchrl import to_tensordict
    >>> ep = Episode(observation=np.zeros((5, 3), np.float32), action=np.zeros((5, 1), np.float32), reward=np.ones(5))
    >>> to_tensordict([ep])["next", "reward"].shape
    torch.Size([4, 1])
    """
    info: SampleInfo | None = None
    number = None
    if isinstance(data, Sample):
        data, info = data.data, data.info
    if not isinstance(data, Transition | Trajectory):
        batch = all_episodes(data)
        number = np.repeat(np.arange(len(batch)), batch.lengths - 1)
        data = transitions(batch)
    if data.next_observation is None:
        raise SpecMismatch("rows are no transitions: sample with sequence_length", path="next_observation", rule="spec")
    shape = data.is_done.shape
    entries = _entries(data)
    if info is not None:
        spread = (..., *[None] * (len(shape) - 1))  # every step of a sequence has its sequence's
        entries["key"] = np.broadcast_to(info.key[spread], shape)
        entries["_weight"] = np.broadcast_to(info.weight.astype(np.float32)[spread], shape)
    if number is not None:
        entries["episode"] = number
    return TensorDict(converter("torch", device=device)(_nested(entries, ())), batch_size=list(shape), device=device)


class ExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of any format that we read, as torchrl's replay buffer; what ``load_dataset("rlds2buf:PATH")`` makes.

    Everything is read at once into memory, as :func:`to_tensordict` has it.

    Args:
        dataset_id: the path, or a :class:`~rlds2buf.Buffer`.
        batch_size: of ``sample()``.
        options: for torchrl's ``TensorDictReplayBuffer``: `sampler`, `transform`, `prefetch`, `collate_fn`.

    Raises:
        SourceError: there is no such dataset.
        SpecMismatch: as for :func:`to_tensordict`.
    """

    def __init__(self, dataset_id: Any, *, batch_size: int | None = None, **options: Any) -> None:
        self.dataset_id = dataset_id
        storage = TensorStorage(to_tensordict(dataset_id))
        if batch_size is not None:
            options["batch_size"] = batch_size
        super().__init__(storage=storage, **options)

    @property
    def data_path(self) -> Path:
        """Where the data are."""
        if isinstance(self.dataset_id, str | os.PathLike):
            return Path(self.dataset_id)
        raise AttributeError("the data were given in memory and have no path")

    @property
    def data_path_root(self) -> Path:
        """Likewise."""
        return self.data_path

    def _is_downloaded(self) -> bool:
        return True


def _entries(data: Transition | Trajectory) -> dict[str, Any]:
    done = data.is_done

    def never() -> np.ndarray:
        return np.zeros((*done.shape, 1), np.bool_)

    entries: dict[str, Any] = {
        "observation": data.observation,
        "action": data.action,
        "discount": data.discount[..., None],
        "terminated": never(),
        "truncated": never(),
        "done": never(),
        "next": {
            "observation": data.next_observation,
            "reward": _single(data.reward, done),
            "terminated": (done == TERMINATED)[..., None],
            "truncated": (done == TRUNCATED)[..., None],
            "done": (done != CONTINUE)[..., None],
        },
    }
    if isinstance(data, Trajectory):
        entries["mask"] = data.mask
    elif data.steps is not None:
        entries["steps_to_next_obs"] = data.steps[:, None]
    for name, column in data.extras.items():
        if name in (*entries, "key", "_weight", "episode"):
            raise SpecMismatch("torchrl has another entry of this name", path=f"extras/{name}", rule="spec")
        entries[name] = column
    return entries


def _single(reward: Any, done: np.ndarray) -> Any:
    """Rewards with the axis of length 1 that torchrl has."""
    return reward[..., None] if isinstance(reward, np.ndarray) and reward.ndim == done.ndim else reward


def _nested(entries: Any, path: nest.Path) -> Any:
    """Dicts all the way down, without what is missing."""
    if isinstance(entries, tuple):
        entries = {str(i): part for i, part in enumerate(entries)}
    if isinstance(entries, Mapping):
        return {str(name): _nested(part, (*path, name)) for name, part in entries.items() if part is not None}
    if entries.dtype == object:
        what = "text and arrays of varying shape have no place in a TensorDict: convert the data without this field"
        raise SpecMismatch(what, path=nest.path_name(path), rule="spec")
    return entries


register_dataset("rlds2buf", "rlds2buf.adapters.torchrl:ExperienceReplay", replace=True)
