"""What LeRobot's training loop takes, over any robot data that we read."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf.adapters.parcels import Frame, Items, as_tensors, item_of
from rlds2buf.buffers.buffer import Buffer
from rlds2buf.buffers.disk.manifest import is_buffer
from rlds2buf.buffers.factories import make_circular
from rlds2buf.buffers.loading import load_buffer
from rlds2buf.buffers.read.held_episodes import held_episodes
from rlds2buf.core import nest
from rlds2buf.core.arguments import guess, integer
from rlds2buf.core.fields import FLAG_FIELDS
from rlds2buf.core.row_flags import CODE, FINAL_ROW
from rlds2buf.core.sample import Transition
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import MissingDependency, ReplayError, SpecMismatch
from rlds2buf.formats.lerobot.names import INDEX_FEATURES, feature_name
from rlds2buf.numbers.pictures import channel_axis
from rlds2buf.pipeline.opening import open_source
from rlds2buf.summaries.forms import as_form
from rlds2buf.summaries.statistics_of import statistics

try:
    import torch
    from torch.utils import data
except ImportError as cause:
    raise MissingDependency("rlds2buf.adapters.lerobot needs PyTorch: pip install torch") from cause

__all__ = ["Dataset", "Metadata"]

_FPS = 10


class Dataset(data.Dataset):
    """Frames as ``lerobot.datasets.LeRobotDataset`` gives them, gathered for a whole batch at once.

    It stands where lerobot's own does: a policy's features come from ``dataset.meta.features``, its normalisation
    from ``dataset.meta.stats``, and ``DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2)`` (or
    lerobot's ``EpisodeAwareSampler``) gives its batches.  An item is a dict of tensors: features by their dotted names,
    pictures float32 ``[C, H, W]`` in [0, 1], other floats float32, integers int64; ``timestamp``,
    ``frame_index``, ``episode_index``, ``index``, ``task_index`` and the text ``task``.

    Names of features are those of :mod:`rlds2buf.formats.lerobot.names`: ``observation/state`` is
    ``observation.state``, a picture ``observation/top`` is ``observation.images.top``.

    Args:
        source: a path (of a LeRobot dataset, a saved buffer, an RLDS folder...), an open Source, a list of episodes, or
            a Buffer of whole episodes. What is no buffer is read into memory, pictures as the files that they are.
        delta_timestamps: name of a feature to seconds around each frame, as ``[-0.1, 0.0]``; it has an axis for
            them then, clamped to the frame's episode, and ``NAME_is_pad`` says where it was.
        fps: frames a second; what the data say, or 10, unless given.
        episodes: which ones (numbers from 0); all unless given.
        image_transforms: called with each picture feature's tensor ``[..., C, H, W]`` of one frame.
        meta: what `meta` is to be, such as lerobot's own ``LeRobotDatasetMetadata``; made from the data unless given.
        task: the text of every frame, where the data have none called so.
        final_rows: whether an episode's last row is a frame, with an action of its own, as in LeRobot's datasets; in
            RLDS and others it is only what the last action led to. None: as the source has it.
        return_uint8: leave pictures uint8.
        tolerance_s: how far a delta may be from a whole number of frames.

    Attributes:
        meta: `features`, `stats`, `fps`, `camera_keys`, `episodes`, `tasks` and the other things that training reads.

    Raises:
        ValueError: a delta is no number of frames, or for a feature that is not there; the message says which.
        SourceNotFound, SourceFormatError, EpisodeError, SnapshotError: the data can't be read.
        ReplayError: a buffer of single transitions, which has no episodes.
        MissingDependency: PyTorch is not installed.

    >>> from rlds2buf import Episode
    >>> ep = Episode(observation={"state": np.arange(8.0).reshape(4, 2)}, action=np.arange(4.0)[:, None])
    >>> dataset = Dataset([ep], fps=10, delta_timestamps={"action": [0.0, 0.1]}, task="push")
    >>> frame = dataset[2]
    >>> frame["observation.state"].tolist(), frame["action"].tolist(), frame["action_is_pad"].tolist(), frame["task"]
    ([4.0, 5.0], [[2.0], [2.0]], [False, True], 'push')
    >>> batch = next(iter(data.DataLoader(dataset, batch_size=3)))
    >>> tuple(batch["action"].shape), dataset.meta.features["action"]["shape"], dataset.num_frames
    ((3, 2, 1), (1,), 3)
    """

    def __init__(
        self,
        source: Any,
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        fps: float | None = None,
        episodes: Sequence[int] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        meta: Any = None,
        task: str | None = None,
        final_rows: bool | None = None,
        return_uint8: bool = False,
        tolerance_s: float = 1e-4,
    ) -> None:
        self._rows = _Rows(source, final_rows)
        rows = self._rows
        self.episodes = None if episodes is None else [integer("episodes", number, 0) for number in episodes]
        rows.choose(self.episodes)
        rate = rows.facts.get("fps") if fps is None else fps
        self.fps: Any = _FPS if rate is None else rate
        self.image_transforms = image_transforms
        self._task = str(rows.facts.get("task", "")) if task is None else task
        self._scale = not return_uint8
        self.meta = Metadata(rows, self.fps, self._task) if meta is None else meta
        self.delta_timestamps = delta_timestamps
        self._deltas = {
            name: self._frames_of(name, seconds, tolerance_s) for name, seconds in (delta_timestamps or {}).items()
        }
        """As ``[K] int64``."""

    @property
    def num_frames(self) -> int:
        """Of the episodes chosen."""
        return len(self)

    @property
    def num_episodes(self) -> int:
        """How many are chosen."""
        return len(self._rows.chosen)

    @property
    def features(self) -> Any:
        """As ``meta.features``."""
        return self.meta.features

    def __len__(self) -> int:
        return int(self._rows.frames[-1])

    def __getitem__(self, index: int) -> Frame:
        """One frame."""
        index = integer("index", index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} frames, and no number {index}")
        frame: Frame = item_of(as_tensors(self._batch(np.array([index % len(self)]))), 0)
        return self._transformed(frame)

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Several frames, which PyTorch's ``default_collate`` makes a batch of."""
        batch = self._batch(np.asarray(indices))
        if self.image_transforms is None:
            return Items(batch, len(indices))
        # Each frame by itself: transforms may be random.
        items = Items(batch, len(indices))
        return [self._transformed(items[i]) for i in range(len(items))]

    def __repr__(self) -> str:
        return f"<Dataset: {self.num_episodes:,} episodes, {self.num_frames:,} frames at {self.fps} a second>"

    def _frames_of(self, name: str, seconds: Sequence[float], tolerance: float) -> np.ndarray:
        if name not in self._rows.fields:
            raise ValueError(f"delta_timestamps: there is no feature {name!r}; {guess(name, tuple(self._rows.fields))}")
        wanted = np.asarray(seconds, np.float64)
        frames = np.rint(wanted * self.fps)
        if wanted.ndim != 1 or not wanted.size or (np.abs(frames / self.fps - wanted) > tolerance).any():
            raise ValueError(
                f"delta_timestamps of {name!r} must be multiples of 1/{self.fps} seconds, got {wanted.tolist()}"
            )
        longest = int(self._rows.lengths.max(initial=0))
        if (np.abs(frames) >= longest).all():
            raise ValueError(
                f"delta_timestamps of {name!r} reach beyond every episode, of which the longest has {longest} frames"
            )
        return frames.astype(np.int64)

    def _batch(self, indices: np.ndarray) -> Frame:
        rows = self._rows
        place, number = rows.places(indices)
        episode, frame = rows.chosen[number], place - rows.starts[number]
        batch = Frame()
        drawn: dict[str, np.ndarray] = {}
        for name in rows.fields:
            deltas = self._deltas.get(name)
            if deltas is None:
                drawn[name] = place
                continue
            at, start, last = place[:, None] + deltas, rows.starts[number][:, None], (rows.ends[number] - 1)[:, None]
            drawn[name] = np.clip(at, start, last)
            batch[f"{name}_is_pad"] = (at < start) | (at > last)
        for name, values in rows.values(drawn).items():
            batch[name] = self._plain(values, name)
        batch.update(frame_index=frame, episode_index=episode, index=rows.offsets[episode] + frame)
        if "timestamp" not in rows.fields:
            batch["timestamp"] = (frame / self.fps).astype(np.float32)
        if "task" not in rows.fields:
            batch["task"] = [self._task] * len(indices)
            batch.setdefault("task_index", np.zeros(len(indices), np.int64))
        elif "task_index" not in rows.fields:
            batch["task_index"] = np.array([self.meta.tasks[text] for text in batch["task"]], np.int64)
        return batch

    def _plain(self, values: np.ndarray, name: str) -> Any:
        """A column as lerobot hands it out."""
        if name in self._rows.pictures:
            return self._pixels(values, name)
        if values.dtype == np.dtype(object):
            return [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in values.tolist()]
        if values.dtype.kind == "f":
            return values.astype(np.float32, copy=False)
        return values.astype(np.int64, copy=False) if values.dtype.kind in "iu" else values

    def _pixels(self, values: np.ndarray, name: str) -> Any:
        if values.dtype == np.dtype(object):
            raise SpecMismatch("pictures of different sizes make no batch: resize them first", path=name, rule="spec")
        channels_last = values if self._rows.pictures[name] == -1 else np.moveaxis(values, -3, -1)
        pixels = torch.from_numpy(np.ascontiguousarray(channels_last)).movedim(-1, -3)
        if not self._scale or pixels.dtype != torch.uint8:
            return pixels.contiguous()
        return pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)

    def _transformed(self, frame: Frame) -> Frame:
        if self.image_transforms is not None:
            for name in self._rows.pictures:
                frame[name] = self.image_transforms(frame[name])
        return frame


class Metadata:
    """What lerobot's training reads of a dataset, by the names of its ``LeRobotDatasetMetadata``.

    Attributes:
        features: name to ``{"dtype", "shape", "names"}``.
        fps, robot_type: as the data say, or as given.
        camera_keys, image_keys, video_keys: names of pictures; of videos there are none, for frames are held.
        total_frames, total_episodes: of all episodes.
        tasks: text to number.
    """

    def __init__(self, rows: _Rows, fps: Any, task: str) -> None:
        self._rows = rows
        self.repo_id, self.root = "rlds2buf", None
        self.fps = fps
        self.robot_type = rows.facts.get("robot_type")
        self.features = {name: rows.feature(name) for name in rows.fields}
        for name in INDEX_FEATURES:
            dtype = "float32" if name == "timestamp" else "int64"
            self.features[name] = {"dtype": dtype, "shape": (1,), "names": None}
        self.features.pop("task", None)
        self.image_keys = list(rows.pictures)
        self.video_keys: list[str] = []
        self.camera_keys = list(self.image_keys)
        self.total_frames, self.total_episodes = int(rows.offsets[-1]), len(rows.offsets) - 1
        self.episodes = _Episodes(rows.offsets)
        self.tasks = {text: number for number, text in enumerate(rows.tasks() or [task])}
        self.total_tasks = len(self.tasks)
        self.info = {"fps": fps, "features": self.features, "robot_type": self.robot_type}

    @property
    def stats(self) -> dict[str, dict[str, np.ndarray]]:
        """Name to min, max, mean, std, count and quantiles, of all episodes; of pictures ``[C, 1, 1]``. Found once."""
        if not hasattr(self, "_stats"):
            self._stats = self._rows.stats()
        return self._stats

    @property
    def names(self) -> dict[str, Any]:
        """Of the numbers of each feature."""
        return {name: feature["names"] for name, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each feature."""
        return {name: tuple(feature["shape"]) for name, feature in self.features.items()}


@dataclasses.dataclass(frozen=True)
class _Episodes:
    """A table of episodes: by the name of a column, or by number."""

    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, key: Any) -> Any:
        columns = {
            "episode_index": range(len(self)),
            "dataset_from_index": self.offsets[:-1].tolist(),
            "dataset_to_index": self.offsets[1:].tolist(),
            "length": np.diff(self.offsets).tolist(),
        }
        if isinstance(key, str):
            return list(columns[key])
        return {name: column[key] for name, column in columns.items()}

    def __iter__(self) -> Iterator[dict[str, int]]:
        return (self[number] for number in range(len(self)))


class _Rows:
    """The rows of whole episodes, which a buffer holds, as frames.

    Attributes:
        fields: name of a feature to its path.
        pictures: names of pictures to where their channels are, -1 or -3.
        facts: what is known of the dataset.
        offsets: ``[E + 1] int64``: frames before each episode, of all of them.
        chosen: ``[C] int64``: the numbers of the episodes that there are.
        starts, ends, lengths: ``[C] int64``: of their frames, counted by rows from the oldest.
        frames: ``[C + 1] int64``: frames before each of them.
    """

    def __init__(self, source: Any, final_rows: bool | None) -> None:
        buffer, self.facts, is_lerobot = _opened(source)
        self.buffer = buffer
        self._given = None if isinstance(source, Buffer) or buffer.engine.origin is not None else source
        store = buffer.engine.store
        if store.num_own or store.links is not None or store.keys is not None:
            raise ReplayError("a buffer of single transitions has no episodes, whose frames a dataset is of")
        slots = store.slots_from(store.oldest, store.num_rows)
        final = np.flatnonzero((store.flags[slots] & CODE) == FINAL_ROW)
        self._final_rows = is_lerobot if final_rows is None else final_rows
        begins = np.concatenate([[0], final[:-1] + 1]).astype(np.int64)[: len(final)]
        stops = final + int(self._final_rows)
        self._begins, self._stops = begins, np.maximum(stops, begins)
        self.offsets = np.concatenate([[0], np.cumsum(self._stops - begins)]).astype(np.int64)
        self.pictures: dict[str, int] = {}
        self.fields: dict[str, nest.Path] = {}
        for path, field in store.spec.fields():
            if path[0] not in FLAG_FIELDS:
                self._name(path, field, is_lerobot)
        self._places = {path: i for i, path in enumerate(store.paths)}

    def _name(self, path: nest.Path, field: FieldSpec, is_lerobot: bool) -> None:
        axis = _channels(field)
        own = path[0] == "extras" and ".".join(map(str, path[1:]))
        if own == "task" and field.is_string:
            name = "task"
        elif is_lerobot and own in INDEX_FEATURES:
            name = str(own)
        else:
            text = field.is_string and axis is None
            name = feature_name(path, taken=self.fields, picture=axis is not None, text=text)
        self.fields[name] = path
        if axis is not None:
            self.pictures[name] = axis

    def choose(self, episodes: Sequence[int] | None) -> None:
        """Have only the frames of these episodes.

        Raises:
            ValueError: there is no such episode.
        """
        count = len(self.offsets) - 1
        chosen = np.arange(count) if episodes is None else np.asarray(sorted(set(episodes)), np.int64)
        if len(chosen) and chosen[-1] >= count:
            raise ValueError(f"episodes: there are {count}, and no number {chosen[-1]}")
        self.chosen = chosen
        self.starts, self.ends = self._begins[chosen], self._stops[chosen]
        self.lengths = self.ends - self.starts
        self.frames = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    def places(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows ``[B]`` of frames ``[B]``, counted from the oldest, and which of the chosen episodes they are of."""
        if len(indices) and not (0 <= indices.min() and indices.max() < self.frames[-1]):
            raise IndexError(f"there are {self.frames[-1]} frames, and no number {indices.max()}")
        number = np.searchsorted(self.frames, indices, side="right") - 1
        return self.starts[number] + indices - self.frames[number], number

    def stored(self, drawn: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Columns at rows ``[B]`` or ``[B, K]``, pictures as they are kept."""
        engine = self.buffer.engine
        found: dict[str, np.ndarray] = {}
        with engine.lock:
            store = engine.store
            store.require_whole()
            for name, places in drawn.items():
                i = self._places[self.fields[name]]
                column = store.columns[i][store.slot_of(store.oldest + places.reshape(-1))]
                if i in store.vocabularies:
                    column = store.vocabularies[i].decode(column)
                found[name] = column.reshape(*places.shape, *column.shape[1:])
        return found

    def values(self, drawn: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All columns at rows ``[B]`` or ``[B, K]``, pictures decoded, each file once."""
        parts = self.stored(drawn)
        nests = {
            top: _nest({self.fields[name][1:]: leaf for name, leaf in parts.items() if self.fields[name][0] == top})
            for top in _TOPS
        }
        unpacked = self.buffer.engine.reader.unpack(Transition(next_observation=None, **nests))
        return {name: nest.get(getattr(unpacked, str(self.fields[name][0])), self.fields[name][1:]) for name in parts}

    def feature(self, name: str) -> dict[str, Any]:
        """How lerobot describes it."""
        path = self.fields[name]
        field = self.buffer.engine.store.fields[self._places[path]]
        if name in self.pictures:
            seen = field if field.image is None else field.image
            shape = tuple(n or 0 for n in seen.shape)
            shape = (*shape, 1) if len(shape) == 2 else shape
            if self.pictures[name] == -3:
                shape = (*shape[1:], shape[0])
            return {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
        dtype = "string" if field.is_string else str(field.dtype)
        return {"dtype": dtype, "shape": tuple(n or 0 for n in field.shape) or (1,), "names": self._names(name, field)}

    def _names(self, name: str, field: FieldSpec) -> Any:
        known = self.facts.get("names")
        return known.get(name) if isinstance(known, dict) else None

    def tasks(self) -> list[str]:
        """Texts of tasks, in the order in which they come."""
        if "task" not in self.fields:
            return []
        column = self.stored({"task": np.concatenate([self._begins, self._stops - 1])})["task"]
        return list(dict.fromkeys(text.decode("utf-8", "replace") for text in column.tolist()))

    def stats(self) -> dict[str, dict[str, np.ndarray]]:
        """Of every feature, as lerobot's ``meta/stats.json`` has them."""
        found = as_form(statistics(self._source()), "lerobot")
        return {
            name: {key: np.asarray(value) for key, value in numbers.items()}
            for name, numbers in found.items()
            if name in self.fields or name in INDEX_FEATURES
        }

    def _source(self) -> Any:
        """The same data, for a pass over all of them."""
        if self._given is not None:
            return self._given
        engine = self.buffer.engine
        if engine.origin is not None:
            return engine.origin
        with engine.lock:
            held = held_episodes(engine.reader)
        return [] if held is None else list(held)


_TOPS = ("observation", "action", "reward", "discount", "extras")


def _opened(source: Any) -> tuple[Buffer, dict[str, Any], bool]:
    """A buffer of the rows, what is known of the dataset, and whether it is one of LeRobot's."""
    if isinstance(source, str | os.PathLike) and is_buffer(Path(source)):
        source = load_buffer(source, expect=Buffer)
    if isinstance(source, Buffer):
        known = source.provenance.get("dataset")
        facts = dict(known) if isinstance(known, dict) else {}
        return source, facts, facts.get("features") is not None
    opened = open_source(source)
    encoded = opened.encoded()
    batches = list(encoded.batches())
    buffer = make_circular(encoded.spec, max(1, sum(batch.num_steps for batch in batches)))
    while batches:
        buffer.add(batches.pop(0))
    return buffer, opened.facts(), opened.format == "lerobot"


def _channels(field: FieldSpec) -> int | None:
    """Where a picture's channels are; None for what is none."""
    axis = channel_axis(field)
    return axis if axis in (-1, -3) else None


def _nest(leaves: Mapping[nest.Path, Any]) -> Any:
    """Leaves by their paths as nested dicts; of one with an empty path the leaf itself."""
    if () in leaves:
        return leaves[()]
    made: dict[Any, Any] = {}
    for path, leaf in leaves.items():
        here = made
        for part in path[:-1]:
            here = here.setdefault(part, {})
        here[path[-1]] = leaf
    return made
