"""Which LeRobot feature each field of a step becomes, and what becomes of those that are none.

=============================================  ==================================================================
a field of                                     is written as
=============================================  ==================================================================
bool, integers up to 32 bits, int64, float32,  a feature of that type; a bool of an observation is uint8, so that it
float64                                        is a number to a policy
float16                                        float32
uint8 ``[height, width, 1 or 3]``, and files   a picture, in a video or in the rows; one channel is written as three
of such pictures
one text a step                                a string; or the task
uint64, complex numbers, lists of text,        by row beside the dataset (``meta/rlds2buf_rows.parquet``), where
lengths that vary or are 0, more than five     rlds2buf finds it again and LeRobot does not look
axes, pictures of other kinds
=============================================  ==================================================================

A nested action is joined to one vector; so are the fields that make up the state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.lerobot.names import (
    ACTION,
    DONE,
    INDEX_FEATURES,
    OBSERVATION,
    STATE,
    TRUNCATED,
    feature_name,
)
from rlds2buf.formats.lerobot.own_file import ROWS, TASK, OwnField

__all__ = ["IMAGE", "VIDEO", "Camera", "Numbers", "Plan", "Text", "index_features", "plan_of"]

IMAGE: Final = "image"
VIDEO: Final = "video"

TASK_NAMES: Final = ("language_instruction", "natural_language_instruction", "task", "instruction")
STATE_NAMES: Final = ("state", "proprio")
_MOST_AXES: Final = 5
_LEAST_SIDE: Final = 32
"""Of an array that is taken for a picture."""
_LEAST_VIDEO_SIDE: Final = 64
_INT64_MAX: Final = (1 << 63) - 1
_VECTORS: Final = ("observation", "action")


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A feature of numbers, made of one field, or of several that are joined.

    Attributes:
        name: of the feature.
        dtype: of its numbers.
        shape: of one row; ``()`` for one number.
        fields: what it is made of.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    fields: tuple[OwnField, ...]

    def column(self, rows: Mapping[nest.Path, np.ndarray]) -> np.ndarray:
        """``[M, *shape]`` of the fields' columns ``[M, ...]``.

        Raises:
            OverflowError: a whole number is too large to be joined with others; the message names its field.
        """
        if self.fields[0].part is None:
            return rows[self.fields[0].path].reshape(-1, *self.shape).astype(self.dtype, copy=False)
        count = len(rows[self.fields[0].path])
        out = np.empty((count, math.prod(self.shape)), self.dtype)
        for field in self.fields:
            assert field.part is not None
            column = rows[field.path].reshape(count, -1)
            joined = out[:, slice(*field.part)]
            with np.errstate(invalid="ignore"):
                joined[:] = column
                if column.dtype.kind in "iu" and column.dtype.itemsize == 8 and self.dtype.kind == "f":
                    if (joined.astype(column.dtype) != column).any():
                        raise OverflowError(nest.path_name(field.path))
        return out.reshape(count, *self.shape)


@dataclasses.dataclass(frozen=True)
class Text:
    """A feature that is a text a row; made of one field."""

    name: str
    field: OwnField


@dataclasses.dataclass(frozen=True)
class Camera:
    """A feature of pictures.

    Attributes:
        name: of the feature.
        field: what it is made of.
        kind: IMAGE or VIDEO.
        is_encoded: whether the field's values are files of pictures.
        is_video: whether they are names of frames of videos.
    """

    name: str
    field: OwnField
    kind: str
    is_encoded: bool = False
    is_video: bool = False

    @property
    def is_depth(self) -> bool:
        """Whether it is a video of depths, which can only be copied."""
        return self.field.spec.dtype != np.uint8

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Height, width and channels as LeRobot has them."""
        return (*self.field.spec.shape[:2], 1 if self.is_depth else 3)


@dataclasses.dataclass
class Plan:
    """What is written of a step.

    Attributes:
        numbers, texts, cameras: the features.
        rows: fields that are kept beside the dataset, by row.
        indices: fields that every dataset has anyway.
        task: the field whose text is the task; None if there is none.
        lost: what is not kept as it was: field to the reason.
        notes: sentences on what was decided.
    """

    numbers: list[Numbers] = dataclasses.field(default_factory=list)
    texts: list[Text] = dataclasses.field(default_factory=list)
    cameras: list[Camera] = dataclasses.field(default_factory=list)
    rows: list[OwnField] = dataclasses.field(default_factory=list)
    indices: list[OwnField] = dataclasses.field(default_factory=list)
    task: OwnField | None = None
    lost: dict[str, str] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def fields(self) -> list[OwnField]:
        """All fields that are kept."""
        found = [field for one in self.numbers for field in one.fields]
        found += [text.field for text in self.texts]
        found += [camera.field for camera in self.cameras]
        return [*found, *self.rows, *self.indices, *([self.task] if self.task is not None else [])]

    def features(self, names: Mapping[str, Any], sizes: Mapping[str, Sequence[int]]) -> dict[str, dict[str, Any]]:
        """As ``info.json`` has them.

        Args:
            names: what else is known of a feature's numbers: feature to its names.
            sizes: height and width of the first picture, of those whose size varies.
        """
        found: dict[str, dict[str, Any]] = {}
        for camera in self.cameras:
            shape = [*sizes.get(camera.name, [side or 0 for side in camera.shape[:2]]), camera.shape[2] or 0]
            found[camera.name] = {"dtype": camera.kind, "shape": shape, "names": ["height", "width", "channels"]}
        for one in self.numbers:
            known = names.get(one.name)
            shape = list(one.shape) or [1]
            named = known if isinstance(known, list) and len(known) == shape[0] else None
            found[one.name] = {"dtype": one.dtype.name, "shape": shape, "names": named or _part_names(one)}
        for text in self.texts:
            found[text.name] = {"dtype": "string", "shape": [1], "names": None}
        order = [name for name in (STATE, ACTION) if name in found]
        return {**{name: found[name] for name in order}, **found}


def index_features() -> dict[str, dict[str, Any]]:
    """What every dataset has beside its own."""
    return {
        name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
        for name in INDEX_FEATURES
    }


def plan_of(
    spec: StepSpec,
    *,
    state: Sequence[str] = (),
    task: str | None = None,
    images: str | None = VIDEO,
    omit: Collection[nest.Path] = (),
    indices: bool = False,
) -> Plan:
    """What becomes of each field of a step.

    Args:
        spec: of the episodes.
        state: names of fields that are joined to ``observation.state``; by default a field of the observation that is
            called state or proprio.
        task: the name of a text field that is the task; by default one that is called so.
        images: VIDEO, or IMAGE: what pictures become, where a video can hold them; None: videos, and files in the rows
            where they are files.
        omit: fields that are left out, since they are derived.
        indices: whether fields of the extras that are called as what every dataset has are just that.

    Raises:
        ValueError: there is no field of a name that was given, or it is of another kind.
    """
    fields = {path: _of_any_width(field) for path, field in spec.fields() if path not in omit}
    plan = Plan(task=_task(fields, task), lost=dict(_widths(spec)))
    taken: set[str] = {DONE, TRUNCATED}
    for name in INDEX_FEATURES if indices else ():
        known = fields.get(("extras", name))
        if known is not None and not known.shape and known.dtype.kind in "if":
            plan.indices.append(OwnField(("extras", name), fields.pop(("extras", name)), name=name))
    if plan.task is not None:
        del fields[plan.task.path]
    joined = {STATE: _state(fields, state), ACTION: _action(fields)}
    for name, members in joined.items():
        if members:
            plan.numbers.append(_join(name, members, fields))
            taken.add(name)
            for path in members:
                del fields[path]
    for path, field in fields.items():
        _place(plan, taken, path, field, images)
    if not any(one.name == STATE for one in plan.numbers):
        plan.notes.append(
            "there is no observation.state, which policies such as ACT need: -T state=FIELD,FIELD joins fields to it"
        )
    return plan


def _place(plan: Plan, taken: set[str], path: nest.Path, field: FieldSpec, images: str | None) -> None:
    """Add what becomes of one field."""
    where = nest.path_name(path)
    pixels = _pixels(field)
    why = _why_apart(field, pixels)
    is_text = field.is_string and pixels is None
    name = feature_name(path, taken=taken, picture=pixels is not None, text=is_text)
    taken.add(name)
    if why is not None:
        plan.rows.append(OwnField(path, field, ROWS, name, encoded=field.image is not None))
        plan.notes.append(f"{where} is no feature, since {why}: it is kept by row in meta/rlds2buf_rows.parquet")
    elif pixels is not None:
        is_file = field.image is not None and not field.is_video
        images = images or (IMAGE if is_file else VIDEO)
        fault = _video_fault(pixels) if images == VIDEO and not field.is_video else None
        if fault is not None:
            plan.notes.append(f"{where} becomes pictures in the rows, not a video: {fault}")
        kind = IMAGE if images != VIDEO or fault is not None else VIDEO
        own = OwnField(path, pixels, name=name, encoded=is_file and kind == IMAGE and pixels.shape[2] == 3)
        plan.cameras.append(Camera(name, own, kind, is_file, field.is_video))
    elif is_text:
        plan.texts.append(Text(name, OwnField(path, field, name=name)))
    else:
        plan.numbers.append(_numbers(name, path, field))


def _of_any_width(field: FieldSpec) -> FieldSpec:
    """Texts of fixed width as those of any."""
    return FieldSpec(field.shape, np.dtype(object)) if field.dtype.kind in "SU" else field


def _widths(spec: StepSpec) -> Iterator[tuple[str, str]]:
    """Fields whose texts are of fixed width, and what becomes of that."""
    for path, field in spec.fields():
        if field.dtype.kind in "SU":
            yield nest.path_name(path), f"text of fixed width ({field.dtype.str}) is read back as byte strings"


def _numbers(name: str, path: nest.Path, field: FieldSpec) -> Numbers:
    shape = tuple(n for n in field.shape if n is not None)
    return Numbers(
        name, _feature_dtype(path, field), () if shape == (1,) else shape, (OwnField(path, field, name=name),)
    )


def _feature_dtype(path: nest.Path, field: FieldSpec) -> np.dtype:
    if field.dtype.kind == "b" and path[0] in _VECTORS:
        return np.dtype(np.uint8)
    if field.dtype == np.float16:
        return np.dtype(np.float32)
    return np.dtype(np.int64) if field.dtype == np.uint64 else field.dtype.newbyteorder("=")


def _is_number(field: FieldSpec) -> bool:
    """Whether it may be in a vector."""
    return _pixels(field) is None and field.dtype.kind in "biuf" and _why_apart(field, None) is None


def _why_apart(field: FieldSpec, pixels: FieldSpec | None) -> str | None:
    """Why a field is no feature; None if it is one."""
    if field.image is not None or pixels is not None:
        if field.shape and field.image is not None:
            return "it is a list of pictures"
        return None if pixels is not None else f"LeRobot has no pictures of {field.image}"
    if None in field.shape:
        return "its length varies"
    if 0 in field.shape:
        return "it is empty"
    if field.is_string:
        return "it is a list of texts" if field.shape else None
    if len(field.shape) > _MOST_AXES:
        return f"it has {len(field.shape)} axes"
    if field.dtype == np.uint64 and not (field.high is not None and np.max(field.high) <= _INT64_MAX):
        return "it is uint64, which may not fit into int64"
    if _looks_like_picture(field):
        return f"LeRobot has no pictures of {field}"
    unknown = field.dtype.kind not in "biuf" or (field.dtype.kind == "f" and field.dtype.itemsize > 8)
    return f"LeRobot has no numbers of {field.dtype}" if unknown else None


def _pixels(field: FieldSpec) -> FieldSpec | None:
    """The pixels of a picture that LeRobot can hold; None if it is none."""
    image = field.image
    if image is not None:
        fits = not field.shape and len(image.shape) == 3 and image.shape[2] in (1, 3)
        return image if fits and (image.dtype == np.uint8 or field.is_video) else None
    if field.dtype != np.uint8 or len(field.shape) != 3 or field.shape[2] not in (1, 3):
        return None
    return field if all(side is None or side >= _LEAST_SIDE for side in field.shape[:2]) else None


def _looks_like_picture(field: FieldSpec) -> bool:
    """Whether it is a picture of a kind that LeRobot has not: depth, four channels."""
    if len(field.shape) != 3 or field.shape[2] not in (1, 3, 4) or field.dtype not in (np.uint8, np.uint16, np.float32):
        return False
    return all(side is not None and side >= _LEAST_SIDE for side in field.shape[:2])


def _video_fault(pixels: FieldSpec) -> str | None:
    """Why a video can't hold such pictures; None if it can."""
    height, width = pixels.shape[:2]
    if height is None or width is None:
        return "their size varies"
    if height % 2 or width % 2:
        return f"{width} x {height} has an odd side"
    if min(height, width) < _LEAST_VIDEO_SIDE:
        return f"{width} x {height} is smaller than {_LEAST_VIDEO_SIDE} pixels"
    return None


def _named(fields: Mapping[nest.Path, FieldSpec], name: str, option: str) -> nest.Path:
    """The path that a user means by a name.

    Raises:
        ValueError: there is none.
    """
    names = {nest.path_name(path): path for path in fields}
    if name not in names:
        raise ValueError(f"{option}={name}: there is no such field; there are: {', '.join(names)}")
    return names[name]


def _task(fields: Mapping[nest.Path, FieldSpec], task: str | None) -> OwnField | None:
    """The field that is the task."""
    if task is not None:
        path = _named(fields, task, "task")
        if not _is_one_text(fields[path]):
            raise ValueError(f"task={task}: it is {fields[path]}, and a task is one text a step")
        return OwnField(path, fields[path], TASK, "task")
    for name in TASK_NAMES:
        for path, field in fields.items():
            if path[-1] == name and _is_one_text(field):
                return OwnField(path, field, TASK, "task")
    return None


def _is_one_text(field: FieldSpec) -> bool:
    return field.is_string and not field.shape and field.image is None


def _state(fields: Mapping[nest.Path, FieldSpec], state: Sequence[str]) -> list[nest.Path]:
    """The fields that make up the state, if they are to be joined, or to be called so."""
    if state:
        paths = [_named(fields, name, "state") for name in state]
        for path in paths:
            if not _is_number(fields[path]) or paths.count(path) > 1:
                why = "it stands twice" if paths.count(path) > 1 else f"it is {fields[path]}, and a state is of numbers"
                raise ValueError(f"state={nest.path_name(path)}: {why}")
        return paths
    own = [path for path in fields if path[0] == OBSERVATION and _is_number(fields[path])]
    for path in own:
        if len(path) == 1 or path == (OBSERVATION, "state"):
            return []  # it is called so anyway
    return next(([path] for name in STATE_NAMES for path in own if path[-1] == name), [])


def _action(fields: Mapping[nest.Path, FieldSpec]) -> list[nest.Path]:
    """The numbers of a nested action."""
    return [path for path, field in fields.items() if path[0] == ACTION and len(path) > 1 and _is_number(field)]


def _join(name: str, paths: Sequence[nest.Path], fields: Mapping[nest.Path, FieldSpec]) -> Numbers:
    """One vector of several fields; a single one that is a vector already is left as it is."""
    first = fields[paths[0]]
    if len(paths) == 1 and len(first.shape) == 1 and first.dtype.kind != "b":
        return _numbers(name, paths[0], first)
    dtype = np.result_type(*(_feature_dtype(path, fields[path]) for path in paths))
    dtype = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    owns, start = [], 0
    for path in paths:
        stop = start + math.prod(n or 0 for n in fields[path].shape)
        owns.append(OwnField(path, fields[path], name=name, part=(start, stop)))
        start = stop
    return Numbers(name, dtype, () if start == 1 else (start,), tuple(owns))


def _part_names(one: Numbers) -> Any:
    """What the numbers of a joined vector are called."""
    if one.fields[0].part is None:
        return None
    names: list[str] = []
    for field in one.fields:
        assert field.part is not None
        size = field.part[1] - field.part[0]
        last = nest.path_name(field.path[1:]) or str(field.path[0])
        names += [last] if size == 1 and not field.spec.shape else [f"{last}.{i}" for i in range(size)]
    return names
