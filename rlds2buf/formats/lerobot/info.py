"""meta/info.json of a LeRobot dataset: its version, rate, templates of paths and features."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlds2buf.core.dtypes import parse_dtype
from rlds2buf.core.entries import Entries
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import SourceError, SourceFormatError
from rlds2buf.formats.lerobot.files import check_file, filled
from rlds2buf.formats.lerobot.format import INFO, VERSIONS

__all__ = ["Feature", "Info", "read_info", "read_json"]

_PATHS: Final = {
    2: (
        "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    ),
    3: (
        "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    ),
}
_MOST_CHANNELS: Final = 4


@dataclasses.dataclass(frozen=True)
class Feature:
    """One of info.json's features.

    Attributes:
        name: dotted, as its column or its camera is called.
        dtype: as it says: a numpy name, ``"image"``, ``"video"``, ``"string"`` or ``"language"``.
        shape: as it says; ``(1,)`` is one number a row.
        names: of the axes of a picture, or of the numbers of a vector; whatever it says, or None.
        info: what it says of a video.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_video(self) -> bool:
        """Whether its frames are in videos, and not in a column."""
        return self.dtype == "video"

    @property
    def is_picture(self) -> bool:
        """Whether it is one of pictures, in videos or in a column."""
        return self.dtype in ("image", "video")

    @property
    def is_text(self) -> bool:
        """Whether it holds a text a row."""
        return self.dtype == "string"

    @property
    def is_known(self) -> bool:
        """Whether it is of a kind that makes a column of steps."""
        return self.is_picture or self.is_text or _number(self.dtype) is not None

    @property
    def is_one_number(self) -> bool:
        """Whether it holds a number a row."""
        return self.shape == (1,) and not self.is_text and _number(self.dtype) is not None

    @property
    def is_depth(self) -> bool:
        """Whether its pictures are depths."""
        told = (self.info.get("is_depth_map"), self.info.get("video.is_depth_map"))
        return any(value is True for value in told)

    @functools.cached_property
    def spec(self) -> FieldSpec:
        """One row: a number for shape ``(1,)``; of a picture its pixels, height first."""
        if self.is_text:
            return FieldSpec((), np.dtype(object))
        if self.is_picture:
            shape = self._height_first()
            return (
                FieldSpec((*shape[:2], 1), np.dtype(np.uint16))
                if self.is_depth
                else FieldSpec(shape, np.dtype(np.uint8))
            )
        number = _number(self.dtype)
        assert number is not None
        return FieldSpec(() if self.shape == (1,) else self.shape, number)

    def _height_first(self) -> tuple[int, ...]:
        """The pixels' shape, whichever way round it is given: names say it, where they fit what can be."""
        if len(self.shape) == 2:
            return (*self.shape, 1)
        first = str(self.names[0]) if isinstance(self.names, list | tuple) and self.names else ""
        channels_first = first.startswith("channel")
        if self.shape[2] > _MOST_CHANNELS >= self.shape[0]:
            channels_first = True
        elif self.shape[0] > _MOST_CHANNELS >= self.shape[2]:
            channels_first = False
        return (*self.shape[1:], self.shape[0]) if channels_first else self.shape


@dataclasses.dataclass(frozen=True)
class Info:
    """What info.json says of a dataset.

    Attributes:
        root: the dataset's folder.
        version: ``"v2.0"``, ``"v2.1"`` or ``"v3.0"``.
        fps: rows a second, above 0.
        features: by name, in its order.
        total_episodes, total_frames: as it says; None where it does not.
        chunks_size: files (v2.x: episodes) of a chunk.
        data_path, video_path: templates.
        robot_type: or None.
        splits: name to ``"0:50"``.
        values: all of it.
    """

    root: Path
    version: str
    fps: float
    features: Mapping[str, Feature]
    total_episodes: int | None
    total_frames: int | None
    chunks_size: int
    data_path: str
    video_path: str
    robot_type: str | None
    splits: Mapping[str, str]
    values: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """Its file, for messages."""
        return self.root / INFO

    @property
    def is_v3(self) -> bool:
        """Whether files hold many episodes."""
        return self.version.startswith("v3")

    @property
    def cameras(self) -> dict[str, Feature]:
        """The features that are videos."""
        return {name: feature for name, feature in self.features.items() if feature.is_video}

    def data_file(self, **places: int) -> Path:
        """Of a chunk and file (v2.x: of an episode and its chunk)."""
        return self.root / filled(self.data_path, **places)

    def video_file(self, camera: str, **places: int) -> Path:
        """Likewise, of a camera."""
        return self.root / filled(self.video_path, video_key=camera, **places)


def read_info(root: Path) -> Info:
    """What ``meta/info.json`` in a folder says.

    Raises:
        SourceNotFound: there is none.
        SourceFormatError: it is no JSON, or says what can't be; the message names the entry.
    """
    path = root / INFO
    told = read_json(path)
    try:
        return _info(root, Entries(told))
    except SourceError:
        raise
    except ValueError as cause:
        raise SourceFormatError(f"{path}: {cause}") from cause


def read_json(path: Path) -> Mapping[str, Any]:
    """The object in a file of JSON.

    Raises:
        SourceNotFound, SourceFormatError: as of :func:`~rlds2buf.formats.lerobot.files.check_file`, or it is no such.
    """
    check_file(path)
    try:
        value = parse_json(path.read_bytes())
    except (OSError, ValueError) as cause:
        raise SourceFormatError(f"{path}: not readable as JSON ({cause})") from cause
    if not isinstance(value, dict):
        raise SourceFormatError(f"{path}: should hold a JSON object, it holds a {type(value).__name__}")
    return value


def _info(root: Path, told: Entries) -> Info:
    version = told.text("codebase_version")
    if version not in VERSIONS:
        raise ValueError(f"codebase_version is {version!r}, and only {', '.join(VERSIONS)} are read")
    storage = told.text("storage_format", "parquet")
    if storage != "parquet":
        raise ValueError(f"storage_format is {storage!r}, and only Parquet is read")
    fps = told.number("fps")
    if fps <= 0:
        raise ValueError(f"fps should be above 0, got {fps:g}")
    listed = told.inside("features")
    features = {name: _feature(name, listed.inside(name)) for name in listed.values}
    if not features:
        raise ValueError("features is empty, so nothing tells what a step is")
    data_path, video_path = _PATHS[int(version[1])]
    info = Info(
        root=root,
        version=version,
        fps=fps,
        features=features,
        total_episodes=told.integer("total_episodes", None),
        total_frames=told.integer("total_frames", None),
        chunks_size=told.integer("chunks_size", 1000, least=1),
        data_path=_text(told, "data_path") or data_path,
        video_path=_text(told, "video_path") or video_path,
        robot_type=_text(told, "robot_type"),
        splits={name: str(part) for name, part in told.inside("splits", None).values.items()},
        values=told.values,
    )
    places = {"chunk_index": 0, "file_index": 0} if info.is_v3 else {"episode_chunk": 0, "episode_index": 0}
    for name, template in (("data_path", info.data_path), ("video_path", info.video_path)):
        try:
            filled(template, video_key="camera", **places)
        except ValueError as cause:
            raise ValueError(f"{name}: {cause}") from cause
    return info


def _text(told: Entries, key: str) -> str | None:
    return None if told.values.get(key) is None else told.text(key)


def _feature(name: str, told: Entries) -> Feature:
    if not name or "/" in name or "\0" in name:
        raise ValueError(f"features: {name!r} is no name of a column")
    dtype = told.text("dtype")
    is_picture = dtype in ("image", "video")
    # Of texts the shape means nothing, and some have none.
    shape = (1,) if dtype in ("string", "language") else told.lengths("shape")
    if is_picture and len(shape) not in (2, 3):
        raise ValueError(f"{told.path('shape')} should be height, width and channels, got {list(shape)}")
    video = told.inside("info", None).values if is_picture else {}
    if dtype == "video" and not video:  # early v2.0
        video = told.inside("video_info", None).values
    return Feature(name, dtype, shape or (1,), told.values.get("names"), video)


def _number(dtype: str) -> np.dtype | None:
    """The numpy type that a feature's dtype names; None if it is none of numbers."""
    try:
        found = parse_dtype(dtype)
    except ValueError:
        return None
    return found if found.kind in "biuf" else None
