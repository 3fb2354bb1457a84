"""Paths of step fields and names of LeRobot features, both ways.

LeRobot takes a feature for a policy's input or output by its name, and for a picture by the letters ``image`` in it,
so a field's name decides what is done with it:

==========================================  ==================================
a field                                     is the feature
==========================================  ==================================
``observation``                             ``observation.state``
``observation/arm/joints``                  ``observation.arm.joints``
a picture ``observation/top``               ``observation.images.top``
text ``observation/note``                   ``note``
``action``                                  ``action``
``reward``, ``discount``                    ``next.reward``, ``discount``
``is_first``, ``is_last``, ``is_terminal``  the same
``extras/info/cost``                        ``info.cost``
==========================================  ==================================

What would meet another feature, or mean something else to LeRobot, is ``source.NAME``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator
from typing import Final

from rlds2buf.core import nest
from rlds2buf.core.fields import FLAG_FIELDS

__all__ = [
    "ACTION",
    "DONE",
    "INDEX_FEATURES",
    "OBSERVATION",
    "PICTURES",
    "REWARD",
    "STATE",
    "TRUNCATED",
    "feature_name",
    "path_of",
]

ACTION: Final = "action"
OBSERVATION: Final = "observation"
STATE: Final = "observation.state"
PICTURES: Final = "observation.images."
REWARD: Final = "next.reward"
DONE: Final = "next.done"
TRUNCATED: Final = "next.truncated"

INDEX_FEATURES: Final = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""What every LeRobot dataset has beside its own features."""

_RESERVED: Final = frozenset((*INDEX_FEATURES, "task", "subtask", DONE, TRUNCATED))
_POLICY: Final = (OBSERVATION, ACTION)
"""How names begin that LeRobot reads a meaning into."""

_OWN_NAMES: Final = ("reward", REWARD, "discount", *FLAG_FIELDS)

_UNFIT: Final = re.compile(r"[^\w.+@~ -]")


def feature_name(path: nest.Path, *, taken: Collection[str] = (), picture: bool = False, text: bool = False) -> str:
    """The feature that a field of a step becomes.

    Args:
        path: of the field, as :meth:`~rlds2buf.core.spec.StepSpec.fields` gives it.
        taken: names of other features.
        picture: whether it is a picture.
        text: whether it is no number.

    >>> feature_name(("observation", "arm", 0)), feature_name(("observation", "image"), picture=True)
    ('observation.arm.0', 'observation.images.image')
    >>> feature_name(("extras", "task")), feature_name(("observation", "note"), text=True)
    ('source.task', 'note')
    >>> feature_name(("extras", "image_size")), feature_name(("extras", "next", "success"))
    ('img_size', 'next.success')
    """
    name = _wanted(path, picture, text)
    if not picture:
        name = re.sub("image", "img", name, flags=re.IGNORECASE)
    if name and name not in taken and not _misleads(name, path, text):
        return name
    other = f"source.{name or 'field'}"
    return next(free for free in _numbered(other) if free not in taken)


def path_of(name: str) -> nest.Path:
    """The field that a feature of anybody's dataset is read as.

    >>> path_of("observation.images.top"), path_of("next.reward"), path_of("gripper.force")
    (('observation', 'images', 'top'), ('reward',), ('extras', 'gripper', 'force'))
    """
    parts = tuple(name.split("."))
    if name == REWARD:
        return ("reward",)
    if name in (ACTION, "discount", *FLAG_FIELDS) or (parts[0] == OBSERVATION and len(parts) > 1 and all(parts)):
        return parts
    return ("extras", *parts) if all(parts) else ("extras", name)


def _numbered(name: str) -> Iterator[str]:
    """A name, and the same with numbers behind it."""
    yield name
    for number in itertools.count(2):
        yield f"{name}.{number}"


def _wanted(path: nest.Path, picture: bool, text: bool) -> str:
    """A field's name, whether or not it is free."""
    names = [_UNFIT.sub("_", str(part)) for part in path]
    rest = names[1:]
    if path[0] == "extras":
        return ".".join(rest)
    if path[0] == "reward":
        return ".".join((REWARD, *rest))
    if path[0] != OBSERVATION:
        return ".".join(names)
    if picture:
        return PICTURES + (".".join(rest[1:] if rest[0] == "images" and len(rest) > 1 else rest) if rest else "image")
    if text:
        return ".".join(rest)
    return ".".join((OBSERVATION, *rest)) if rest else STATE


def _misleads(name: str, path: nest.Path, text: bool) -> bool:
    """Whether LeRobot would take a name for something that the field is not."""
    if name in _RESERVED:
        return True
    if path[0] in (OBSERVATION, ACTION) and not text:
        return name.split(".")[0] != path[0]
    if path[0] in _OWN_NAMES:
        return False
    return name.startswith(_POLICY) or name in _OWN_NAMES
