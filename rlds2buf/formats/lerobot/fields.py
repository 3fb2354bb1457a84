"""Where a LeRobot dataset's features go in a step, where no file of ours says it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.entries import Entries
from rlds2buf.core.fields import FLAG_FIELDS, STEP_FIELDS
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceFormatError
from rlds2buf.formats.lerobot.info import Feature, Info, read_json
from rlds2buf.formats.lerobot.names import ACTION, DONE, OBSERVATION, REWARD, TRUNCATED, path_of
from rlds2buf.formats.lerobot.own_file import FEATURE, ROWS, TASK, OwnField, OwnFile

__all__ = ["ENDS", "MODALITY", "Field", "Layout", "layout_of", "layout_of_own"]

ENDS: Final = (DONE, TRUNCATED, *FLAG_FIELDS)
"""Features that tell how episodes begin and end, in the order in which they stand back for the ones behind."""

MODALITY: Final = "meta/modality.json"
"""GR00T's names for parts of vectors."""

_COUNTED: Final = ("frame_index", "episode_index", "index")
_REST: Final = "rest"
_OBSERVED: Final = ("state", "image")
_STATE: Final = {"state": "observation.state", "action": "action"}


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a step.

    Attributes:
        path: where it stands in the step.
        name: the feature that it is of (column or camera); of ROWS the column.
        spec: one row of it, pictures decoded.
        kind: FEATURE; TASK, the text of ``task_index``; or ROWS, a column of ROWS_FILE
            (:mod:`~rlds2buf.formats.lerobot.own_file`).
        columns: which of a vector's numbers it has, ``[k] int64``; None: all there is.
        is_picture: whether it is stored as files of pictures.
        is_video: whether it is stored in videos.
        own: as rlds2buf noted it, where it did.
    """

    path: nest.Path
    name: str
    spec: FieldSpec
    kind: str = FEATURE
    columns: np.ndarray | None = None
    is_picture: bool = False
    is_video: bool = False
    own: OwnField | None = None

    @property
    def is_widened(self) -> bool:
        """Whether rlds2buf made three channels of its one, in files that are not those it came from."""
        own = self.own
        is_ours = self.is_picture and own is not None and own.kind == FEATURE and not own.encoded
        return is_ours and self.spec.shape[2] == 1

    @property
    def stored(self) -> FieldSpec:
        """One row of it as the files have it, decoded."""
        return dataclasses.replace(self.spec, shape=(*self.spec.shape[:2], 3)) if self.is_widened else self.spec


@dataclasses.dataclass(frozen=True)
class Layout:
    """What becomes of the features.

    Attributes:
        fields: of the step, but for the flags.
        ends: which of ENDS there are.
        unfit: feature to why it makes no column.
        notes: what is guessed, each as a sentence.
    """

    fields: Sequence[Field]
    ends: Sequence[str]
    unfit: Mapping[str, str]
    notes: Sequence[str]


def layout_of(info: Info, *, has_tasks: bool, takes_ends: bool = True, modality: bool = True) -> Layout:
    """Where the features go.

    Args:
        info: the dataset's.
        has_tasks: whether there are texts for ``task_index``.
        takes_ends: whether the features that tell of ends are looked at; else they are fields.
        modality: whether vectors are cut as ``meta/modality.json`` says, where there is one.

    Raises:
        SourceFormatError: that file has slices that do not fit.
    """
    known = {name: feature for name, feature in info.features.items() if feature.is_known}
    unfit = {name: f"holds {one.dtype}, which is no column" for name, one in info.features.items() if name not in known}
    ends = [name for name in ENDS if name in known and known[name].is_one_number] if takes_ends else []
    placed, notes = _placed([name for name in known if name not in (*ends, *_COUNTED)], known)
    slices = _slices(info, known) if modality else {}
    fields: list[Field] = []
    for name, path in placed.items():
        parts = slices.get(name)
        if not parts:
            fields.append(_whole(path, known[name]))
            continue
        spec = known[name].spec
        for part, columns in parts.items():
            fields.append(Field((*path, part), name, FieldSpec((len(columns),), spec.dtype), columns=columns))
    if has_tasks and TASK not in known and "task_index" in known and known["task_index"].is_one_number:
        fields.append(Field(("extras", TASK), TASK, FieldSpec((), np.dtype(object)), TASK))
    return Layout(fields, ends, unfit, notes)


def layout_of_own(info: Info, own: OwnFile) -> Layout:
    """The same of a dataset that rlds2buf wrote: every field as it was.

    Raises:
        ValueError: what it notes does not fit the features.
    """
    fields = []
    for field in own.fields:
        where = nest.path_name(field.path)
        if field.path[0] not in (*STEP_FIELDS, "extras") or (field.path[0] in FLAG_FIELDS and len(field.path) > 1):
            raise ValueError(f"{where} is no field of a step")
        numbers = info.features.get("task_index")
        if field.kind == TASK and (numbers is None or not numbers.is_one_number):
            raise ValueError(f"{where} is the task, and there is no task_index")
        if field.kind != FEATURE:
            pixels = field.spec.image if field.kind == ROWS and not field.spec.shape else None
            fields.append(
                Field(field.path, field.name, pixels or field.spec, field.kind, None, pixels is not None, own=field)
            )
            continue
        feature = info.features.get(field.name)
        if feature is None or not feature.is_known:
            raise ValueError(f"{where} is of the feature {field.name}, and there is none")
        columns = None if field.part is None else np.arange(*field.part)
        if not _holds(feature, field):
            raise ValueError(f"{where} is {field.spec}, and the feature {field.name} is {feature.spec}")
        is_video = feature.is_video
        is_picture = feature.is_picture and not is_video
        fields.append(Field(field.path, field.name, field.spec, FEATURE, columns, is_picture, is_video, own=field))
    is_told = any(field.path[0] in FLAG_FIELDS for field in fields)
    return Layout(fields, () if is_told else [name for name in ENDS if name in info.features], {}, ())


def _holds(feature: Feature, field: OwnField) -> bool:
    """Whether a row of the feature can be one of the field."""
    spec, stored = field.spec, feature.spec
    if feature.is_picture:
        return len(spec.shape) == 3 and spec.dtype == stored.dtype
    if feature.is_text or None in spec.shape:
        return feature.is_text and spec.is_string and not spec.shape
    size = math.prod(n or 0 for n in spec.shape)
    held = math.prod(n or 0 for n in stored.shape)
    if field.part is not None:
        return len(stored.shape) <= 1 and field.part[1] <= held and field.part[1] - field.part[0] == size
    return size == held and spec.dtype.kind in "biufc"


def _whole(path: nest.Path, feature: Feature) -> Field:
    is_file = feature.is_picture and not feature.is_video
    return Field(path, feature.name, feature.spec, is_picture=is_file, is_video=feature.is_video)


def _placed(names: Sequence[str], known: Mapping[str, Feature]) -> tuple[dict[str, nest.Path], list[str]]:
    """The path of each feature; no path leads through another's."""
    told = {name: _path(name, known) for name in names}
    notes = []
    if not any(path[0] in (OBSERVATION, ACTION) for path in told.values()):
        guessed = dict(_guessed(names, known))
        if guessed:
            told |= guessed
            as_text = ", ".join(f"{name} as {nest.path_name(path)}" for name, path in guessed.items())
            notes.append(f"no feature is called observation or action; taken are {as_text}")
    placed: dict[str, nest.Path] = {}
    leaves: set[nest.Path] = set()
    for name in sorted(names, key=lambda name: len(told[name])):
        path = told[name]
        for depth in range(1, len(path)):
            if path[:depth] in leaves:  # observation.state, where there is observation.state.gripper too
                path = (*path[: depth - 1], ".".join(map(str, path[depth - 1 :])))
                break
        if len(path) == 1 and path in leaves:
            path = ("extras", *name.split("."))
        placed[name] = path
        leaves.add(path)
    return {name: placed[name] for name in names}, notes


def _path(name: str, known: Mapping[str, Feature]) -> nest.Path:
    path = path_of(name)
    if name == "reward" and REWARD not in known:
        return ("reward",)
    is_number = not known[name].is_text and not known[name].is_picture
    if name.startswith(f"{ACTION}.") and ACTION not in known and "extras" == path[0]:
        return path[1:] if len(path) > 2 else path
    if name == OBSERVATION and not any(other.startswith(f"{OBSERVATION}.") for other in known):
        return (OBSERVATION,)
    if path[0] in ("extras", OBSERVATION) or (is_number and path[0] in (ACTION, "reward", "discount")):
        return path
    return ("extras", *name.split("."))


def _guessed(names: Sequence[str], known: Mapping[str, Feature]) -> Iterator[tuple[str, nest.Path]]:
    """Of datasets whose names are those of openpi: state, image, actions."""
    for name in names:
        if name == "state" or known[name].is_picture:
            yield name, ("observation", *name.split("."))
        elif name == "actions":
            yield name, ("action",)


def _slices(info: Info, known: Mapping[str, Feature]) -> dict[str, dict[str, np.ndarray]]:
    """By feature the parts of its vector, each with the numbers of its columns; what has no name is the rest."""
    path = info.root / MODALITY
    if not path.is_file():
        return {}
    told = Entries(read_json(path))
    found: dict[str, dict[str, np.ndarray]] = {}
    try:
        for group, usual in _STATE.items():
            listed = told.inside(group, None)
            for name in listed.values:
                part = listed.inside(name)
                feature = part.text("original_key", None) or usual
                if feature not in known:
                    raise ValueError(f"{listed.path(name)}: there is no feature {feature!r}")
                spec = known[feature].spec
                start, stop = part.integer("start"), part.integer("end")
                if len(spec.shape) != 1 or spec.is_string or not start < stop <= int(spec.shape[0] or 0):
                    raise ValueError(f"{listed.path(name)}: {start} to {stop} are no columns of {feature}, {spec}")
                found.setdefault(feature, {})[name] = np.arange(start, stop)
    except ValueError as cause:
        raise SourceFormatError(f"{path}: {cause}; -O modality=false reads whole vectors") from cause
    for feature, parts in found.items():
        whole = np.arange(_length(known[feature]))
        rest = np.setdiff1d(whole, np.concatenate(list(parts.values())))
        if len(rest):
            parts[next(name for name in _free_names() if name not in parts)] = rest
    return found


def _length(feature: Feature) -> int:
    return int(feature.spec.shape[0] or 0)


def _free_names() -> Iterator[Any]:
    yield _REST
    number = 2
    while True:
        yield f"{_REST}_{number}"
        number += 1
