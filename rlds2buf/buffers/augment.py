"""Pictures of sampled batches resized, cropped and shifted."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from rlds2buf.codecs.images.resize import read_size, resize_frames
from rlds2buf.core import forks, nest
from rlds2buf.core.arguments import integer
from rlds2buf.core.sample import Trajectory
from rlds2buf.kernels.crops import crop_frames

__all__ = ["RandomCrop", "RandomShift", "Resize"]

_Data = TypeVar("_Data", bound=Any)

_OBSERVATIONS: Final = ("observation", "next_observation")
_CHANNELS: Final = (1, 3, 4)


class _OfPictures(abc.ABC):
    """What changes the pictures of a batch and leaves the rest as it is; for ``sample(transform=...)``.

    Args:
        fields: which fields of the batch are pictures, such as ``"observation/camera"``, or several of them; next
            observations are meant with the observations. None: arrays of unsigned integers in the
            observation that have at least three axes beside the batch's and 1, 3 or 4 channels.
        channels_first: whether they are ``[..., channels, height, width]``, not ``[..., height, width, channels]``.
    """

    def __init__(self, fields: str | Sequence[str] | None = None, *, channels_first: bool = False) -> None:
        self._fields = (fields,) if isinstance(fields, str) else None if fields is None else tuple(fields)
        self._channels_first = bool(channels_first)

    def __call__(self, data: _Data) -> _Data:
        """The data of a batch, a Transition or Trajectory or the like, with its pictures changed.

        Raises:
            ValueError: there are no pictures, or not those that were named, or they are too small or of no such type.
        """
        drawn: dict[nest.Path, Any] = {}
        for path, frames in self._pictures(data).items():
            try:
                # The next observations of a sequence are its observations, a step later: they are moved alike.
                same = drawn.get(("observation", *path[1:])) if isinstance(data, Trajectory) else None
                drawn[path] = self._draw(frames) if same is None else same
                changed = self._change(frames, drawn[path])
            except ValueError as cause:
                raise ValueError(f"{nest.path_name(path)}: {cause}") from cause
            part = str(path[0])
            data = data._replace(**{part: nest.replaced(getattr(data, part), path[1:], changed)})
        return data

    def _pictures(self, data: Any) -> dict[nest.Path, np.ndarray]:
        parts = [part for part in data._fields if self._fields is not None or part in _OBSERVATIONS]
        leaves = [leaf for part in parts for leaf in nest.flatten(getattr(data, part), (part,))]
        if self._fields is None:
            found = {path: leaf for path, leaf in leaves if self._is_picture(leaf)}
            if not found:
                raise ValueError("there are no pictures in the observations of this batch: name them with fields=")
            return found
        found = {path: leaf for path, leaf in leaves if any(_is_of(path, field) for field in self._fields)}
        for field in self._fields:
            if not any(_is_of(path, field) for path in found):
                known = ", ".join(nest.path_name(path) for path, leaf in leaves if isinstance(leaf, np.ndarray))
                raise ValueError(f"there is no field {field!r} in this batch; there are {known}")
        return found

    def _is_picture(self, leaf: Any) -> bool:
        if isinstance(leaf, np.ndarray) and leaf.dtype == object and leaf.size:
            first = leaf.reshape(-1)[0]
            return isinstance(first, np.ndarray) and self._is_picture(first[None])
        channels = -3 if self._channels_first else -1
        return (
            isinstance(leaf, np.ndarray)
            and leaf.dtype.kind == "u"
            and leaf.ndim >= 4
            and leaf.shape[channels] in _CHANNELS
        )

    @abc.abstractmethod
    def _draw(self, frames: np.ndarray) -> Any:
        """What happens to each of these ``[B, ...]``; not None."""

    @abc.abstractmethod
    def _change(self, frames: np.ndarray, drawn: Any) -> np.ndarray:
        """Do it, in an array of its own."""


class Resize(_OfPictures):
    """Pictures of another size, by the triangle filter, antialiased (Pillow's ``BILINEAR``).

    Pictures of several sizes, which come as an object array, become one array.

    Args:
        size: one number for a square, or (height, width).
        fields, channels_first: which arrays, as for :class:`RandomShift`.

    Raises:
        ValueError: no such size; when called: there are no such pictures.
        MissingDependency: Pillow is not installed.

    >>> from rlds2buf import Resize, Transition
    >>> batch = Transition(np.zeros((5, 8, 8, 3), np.uint8), None, None, None, np.zeros((5, 8, 8, 3), np.uint8))
    >>> Resize(4)(batch).next_observation.shape
    (5, 4, 4, 3)
    """

    def __init__(
        self, size: int | tuple[int, int], *, fields: str | Sequence[str] | None = None, channels_first: bool = False
    ) -> None:
        super().__init__(fields, channels_first=channels_first)
        self._size = read_size(size)

    def _draw(self, frames: np.ndarray) -> Any:
        return self._size

    def _change(self, frames: np.ndarray, drawn: Any) -> np.ndarray:
        if not self._channels_first:
            return resize_frames(frames, drawn)
        return np.ascontiguousarray(np.moveaxis(resize_frames(np.moveaxis(frames, -3, -1), drawn), -1, -3))


class _Moved(_OfPictures):
    """A rectangle of each picture, from a place that is drawn.

    All pictures of one item in one field (frames of a sequence or a stack) are cut at the same place; each item, each
    field, and the next observation of a transition have places of their own.
    """

    def __init__(self, fields: str | Sequence[str] | None, channels_first: bool, seed: int | None) -> None:
        super().__init__(fields, channels_first=channels_first)
        self._rng = np.random.default_rng(seed)
        self._seed = forks.seed_of(self._rng)
        forks.register(self, _Moved._forked)

    def state_dict(self) -> dict[str, Any]:
        """The state of its draws, as plain values."""
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on drawing as the one did whose :meth:`state_dict` it is."""
        self._rng.bit_generator.state = state["rng"]
        self._seed = forks.seed_of(self._rng)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        forks.register(self, _Moved._forked)

    def _forked(self, number: int) -> None:
        """This is a child now: see core/forks.py."""
        self._seed = forks.fork_seed(self._seed, number)
        self._rng = np.random.default_rng(self._seed)

    def _cut(self, frames: np.ndarray, places: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Rectangles of this size of ``[B, ...]`` pictures, from ``places [2, B] int64`` (top and left) on."""
        if frames.dtype == object:
            raise ValueError("pictures of several sizes can't be cut in one go: give transform=[Resize(...), ...]")
        if frames.ndim < 4:
            raise ValueError(f"pictures have a height, a width and channels beside the batch, got {list(frames.shape)}")
        frames = np.ascontiguousarray(frames)
        lines = frames.shape[-2:] if self._channels_first else frames.shape[-3:-1]
        channels = 1 if self._channels_first else frames.shape[-1]
        pixel = frames.dtype.itemsize * channels
        count = math.prod(frames.shape) // max(1, math.prod(lines) * channels)
        out = np.empty((*frames.shape[: -2 if self._channels_first else -3], *size), np.dtype((np.void, pixel)))
        plain = frames.view(np.uint8).reshape(count, lines[0], lines[1] * pixel)
        tops, lefts = np.repeat(places, count // max(1, len(frames)), axis=1)
        crop_frames(plain, pixel, tops, lefts, out.view(np.uint8).reshape(count, size[0], size[1] * pixel))
        shape = out.shape if self._channels_first else (*out.shape, channels)
        return out.view(frames.dtype).reshape(shape)

    def _lines(self, frames: np.ndarray) -> tuple[int, int]:
        height, width = frames.shape[-2:] if self._channels_first else frames.shape[-3:-1]
        return height, width


class RandomCrop(_Moved):
    """A part of each picture, from a random place (RAD: Laskin et al. 2020, https://arxiv.org/abs/2004.14990).

    All pictures of an item in one field, the frames of a sequence say, are cut alike.

    Args:
        size: of the part: one number for a square, or (height, width).
        fields, channels_first: which arrays, as for :class:`RandomShift`.
        seed: of the places.

    Raises:
        ValueError: no such size; when called: there are no such pictures, or they are smaller.

    >>> from rlds2buf import RandomCrop, Transition
    >>> seen = np.broadcast_to(np.arange(8, dtype=np.uint8)[:, None, None], (2, 8, 8, 1))
    >>> RandomCrop(4, seed=0)(Transition(seen, None, None, None, seen)).observation[:, :, 0, 0].tolist()
    [[4, 5, 6, 7], [3, 4, 5, 6]]
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        fields: str | Sequence[str] | None = None,
        channels_first: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(fields, channels_first, seed)
        self._size = read_size(size)

    def _draw(self, frames: np.ndarray) -> Any:
        if frames.dtype == object or frames.ndim < 4:
            return np.zeros((2, len(frames)), np.int64)  # which is refused
        room = [have - want for have, want in zip(self._lines(frames), self._size, strict=True)]
        if min(room) < 0:
            raise ValueError(f"pictures of {self._lines(frames)} have no part of {self._size}")
        return np.stack([self._rng.integers(0, most + 1, len(frames)) for most in room])

    def _change(self, frames: np.ndarray, drawn: Any) -> np.ndarray:
        return self._cut(frames, drawn, self._size)


class RandomShift(_Moved):
    """Pictures moved by a few pixels, their edges going on where they left (DrQ: Kostrikov et al. 2020,
    https://arxiv.org/abs/2004.13649).

    All pictures of an item in one field, the frames of a sequence say, are moved alike; the next observation of a
    transition by itself, as DrQ's is.

    Args:
        pad: how far at most, up or down and left or right; DrQ's 4 pixels are for pictures of 84 x 84.
        fields: which fields of the batch are pictures, such as ``"observation/camera"``, or several; next observations
            are meant with the observations. None: arrays of unsigned integers in the observation that have at
            least three axes beside the batch's, and 1, 3 or 4 channels.
        channels_first: whether they are ``[..., channels, height, width]``, not ``[..., height, width, channels]``.
        seed: of the distances; ``state_dict`` and ``load_state_dict`` save and restore the draws.

    Raises:
        TypeError, ValueError: `pad` is no number from 0 up; when called: there are no such pictures.

    >>> from rlds2buf import RandomShift, Transition
    >>> seen = np.broadcast_to(np.arange(6, dtype=np.uint8)[:, None, None], (3, 6, 6, 1))
    >>> RandomShift(2, seed=0)(Transition(seen, None, None, None, seen)).observation[:, :, 0, 0].tolist()
    [[2, 3, 4, 5, 5, 5], [1, 2, 3, 4, 5, 5], [0, 1, 2, 3, 4, 5]]
    """

    def __init__(
        self,
        pad: int = 4,
        *,
        fields: str | Sequence[str] | None = None,
        channels_first: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(fields, channels_first, seed)
        self._pad = integer("pad", pad, 0)

    def _draw(self, frames: np.ndarray) -> Any:
        return self._rng.integers(-self._pad, self._pad + 1, (2, len(frames)))

    def _change(self, frames: np.ndarray, drawn: Any) -> np.ndarray:
        return self._cut(frames, drawn, self._lines(frames) if frames.ndim >= 4 else (1, 1))


def _is_of(path: nest.Path, field: str) -> bool:
    """Whether a leaf is of this field, next observations being the observation's."""
    name = nest.path_name(("observation", *path[1:]) if path[0] == "next_observation" else path)
    return name == field or name.startswith(f"{field}/")
