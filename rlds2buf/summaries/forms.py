"""The files of statistics that training programs read.

===========  ================================  ==================================================================
form         file                              holds
===========  ================================  ==================================================================
``lerobot``  ``meta/stats.json``               ten numbers of each feature; of pictures ``[C, 1, 1]``
``openpi``   ``norm_stats.json``               mean, std, q01 and q99 of ``state`` and ``actions``
``octo``     ``dataset_statistics.json``       mean, std, max, min, p99 and p01 of ``action`` and ``proprio``
``openvla``  ``dataset_statistics.json``       the same as q01 and q99, under the dataset's name, and which
                                               dimensions of the action are normalised (``mask``)
===========  ================================  ==================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from rlds2buf.core.arguments import choice
from rlds2buf.formats.lerobot.names import INDEX_FEATURES, feature_name
from rlds2buf.numbers.by_episode import KEYS
from rlds2buf.numbers.dataset_numbers import FieldStatistics, Statistics
from rlds2buf.numbers.normalizing import field_and_part

__all__ = ["FORMS", "as_form"]

_STATES: Final = ("state", "proprio")
"""How the robot's own state is called in datasets."""

_OPENPI: Final = {name: name for name in ("mean", "std", "q01", "q99")}
_OPENVLA: Final = {name: name for name in ("mean", "std", "max", "min", "q01", "q99")}
_OCTO: Final = {"mean": "mean", "std": "std", "max": "max", "min": "min", "p99": "q99", "p01": "q01"}


def as_form(
    stats: Statistics,
    form: str,
    *,
    state: Sequence[str] = (),
    action: Sequence[str] = (),
    mask: str | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Statistics as a training program reads them, as plain JSON values.

    Args:
        stats: of the dataset.
        form: ``"lerobot"``, ``"openpi"``, ``"octo"`` or ``"openvla"``.
        state: the fields that are the robot's state, joined in this order; by default the observation, where that is
            one field of numbers, or its field called ``state`` or ``proprio``, or its only one.
        action: those of the action; by default all of it.
        mask: for OpenVLA, which dimensions of the action are normalised, as ``"action[:-1]"`` (the gripper's is left
            alone then); by default all.
        name: for OpenVLA, the dataset's name; by default the folder's or file's that it was read from.

    Raises:
        ValueError: a field that is not there, one without a finite value, or the state is not told by names.

    >>> import rlds2buf
    >>> episode = rlds2buf.Episode(observation=np.zeros((3, 2)), action=np.array([[1.0], [3.0], [0.0]]))
    >>> as_form(rlds2buf.statistics([episode]), "octo")["action"]["mean"]
    [2.0]
    """
    choice("for", form, tuple(FORMS))
    if mask is not None and form != "openvla":
        raise ValueError(f"mask: {form} has none")
    if form == "lerobot":
        return _lerobot(stats)
    actions = _joined(stats, action or _all_under(stats, "action"), "action")
    states = _state(stats, state, must=form == "openpi")
    if form == "openpi":
        parts = {"state": states, "actions": actions}
        return {"norm_stats": {part: _told(found, _OPENPI) for part, found in parts.items()}}
    names = _OCTO if form == "octo" else _OPENVLA
    found: dict[str, Any] = {"action": _told(actions, names)}
    if form == "openvla":
        found["action"]["mask"] = _mask(actions, mask)
    if states:
        found["proprio"] = _told(states, names)
    found.update(num_transitions=stats.transitions, num_trajectories=stats.episodes)
    return found if form == "octo" else {name or _name_of(stats.source): found}


FORMS: Final[Mapping[str, str]] = {
    "lerobot": "stats.json",
    "openpi": "norm_stats.json",
    "octo": "dataset_statistics.json",
    "openvla": "dataset_statistics.json",
}
"""What the file of each form is called."""


def _lerobot(stats: Statistics) -> dict[str, Any]:
    """Ten numbers by feature; a field of one number a step has one dimension there, and a picture three."""
    found: dict[str, Any] = {}
    for path in sorted(stats.fields):
        field = stats.fields[path]
        _refuse_nothing(path, field)
        parts = tuple(path.split("/"))
        name = feature_name(parts, taken=found, picture=field.is_picture)
        if stats.format == "lerobot" and parts[0] == "extras" and ".".join(parts[1:]) in INDEX_FEATURES:
            name = ".".join(parts[1:])  # its own: no other feature may be called so
        found[name] = {key: _of_feature(field, key) for key in KEYS}
    return found


def _of_feature(field: FieldStatistics, key: str) -> Any:
    values = np.asarray(getattr(field, key))
    if key == "count":
        return [int(values.max(initial=0))]
    if field.is_picture:
        return np.broadcast_to(values.reshape(-1, 1, 1), (max(3, len(values)), 1, 1)).tolist()
    values = values.astype(np.uint8) if values.dtype == np.bool_ else values
    return np.atleast_1d(values).tolist()


def _state(stats: Statistics, given: Sequence[str], must: bool) -> dict[str, np.ndarray]:
    if given:
        return _joined(stats, given, "state")
    numbers = [name for name in _all_under(stats, "observation") if not stats.fields[name].is_picture]
    named = [name for name in numbers if name.rsplit("/", 1)[-1] in _STATES]
    chosen = numbers if len(numbers) == 1 else named
    if len(chosen) == 1:
        return _joined(stats, chosen, "state")
    if not numbers and not must:
        return {}
    there = ", ".join(numbers) or "no numbers in the observation"
    raise ValueError(f"state: say which fields are the robot's state; there are {there}")


def _all_under(stats: Statistics, top: str) -> list[str]:
    return [name for name in stats.fields if name == top or name.startswith(f"{top}/")]


def _joined(stats: Statistics, names: Sequence[str], what: str) -> dict[str, np.ndarray]:
    """The numbers of some fields, each flattened, one behind the other."""
    if not names:
        raise ValueError(f"{what}: the data have no numbers of that name")
    fields = []
    for name in names:
        try:
            fields.append(stats[name])
        except KeyError as cause:
            raise ValueError(f"{what}: {cause.args[0]}") from cause
        _refuse_nothing(name, fields[-1])
    return {key: np.concatenate([np.ravel(getattr(field, key)).astype(np.float64) for field in fields]) for key in KEYS}


def _told(found: Mapping[str, np.ndarray], names: Mapping[str, str]) -> dict[str, Any]:
    return {theirs: found[ours].tolist() for theirs, ours in names.items()}


def _mask(actions: Mapping[str, np.ndarray], mask: str | None) -> list[bool]:
    chosen = np.ones(len(actions["mean"]), np.bool_)
    if mask is not None:
        name, part = field_and_part(mask)
        if name != "action" or part is None:
            raise ValueError(f"mask: expected the dimensions that are normalised, as in action[:-1], got {mask!r}")
        chosen[:] = False
        try:
            chosen[part] = True
        except IndexError as cause:
            raise ValueError(f"mask: the action has {len(chosen)} dimensions, none is {part}") from cause
    return chosen.tolist()


def _refuse_nothing(name: str, field: FieldStatistics) -> None:
    if field.mean.size and not field.count.all():
        raise ValueError(f"{name} has a dimension without a finite value, which has no statistics")


def _name_of(source: str) -> str:
    """``.../bridge_dataset/1.0.0 [train]`` is ``bridge_dataset``."""
    path = PurePath(source.partition(" [")[0])
    parts = [part for part in path.parts if part != os.sep and not part[:1].isdecimal()]
    return PurePath(parts[-1]).stem if parts else "dataset"
