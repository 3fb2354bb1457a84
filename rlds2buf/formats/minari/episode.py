"""One of Minari's episodes, whatever file it lay in, turned into RLDS's rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.images.claims import check_pixels
from rlds2buf.codecs.images.pillow import DamagedImage, plain_jpegs
from rlds2buf.codecs.images.resize import resize_frames
from rlds2buf.codecs.images.stored_image import StoredImage
from rlds2buf.core import nest
from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.row_flags import OPEN_TAIL
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import EpisodeError, SpecMismatch
from rlds2buf.formats.minari.spaces import is_image
from rlds2buf.io.padding import padded

__all__ = ["BatchParts", "EpisodeParts", "Proof", "build_batch", "build_episode"]


@dataclasses.dataclass(frozen=True)
class EpisodeParts:
    """What a file holds of one episode of T steps; a part that is not there is None.

    Attributes:
        name: the episode's name in the file, for messages.
        observations: nest of arrays ``[T + 1, ...]``.
        actions: nest of arrays ``[T, ...]``.
        rewards, terminations, truncations: arrays ``[T]``.
        infos: dict of nests of arrays ``[T, ...]`` or ``[T + 1, ...]``, and of single values ``[]``.
        metadata: the episode's id, seed, options, statistics.

    Pictures are either arrays of pixels, or the JPEG files: ``[T] object`` of bytes or of ``uint8``
    arrays, or ``[T, bytes] uint8`` where all are equally long.
    """

    name: str
    observations: nest.Nest
    actions: nest.Nest
    rewards: Any
    terminations: Any
    truncations: Any
    infos: nest.Nest
    metadata: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class BatchParts:
    """What a file holds of E episodes of one layout, whose lengths are as they should be, in M rows together.

    An episode of T steps has T + 1 rows; what it has T of, has anything in the last one.

    Attributes:
        index: ``[E] int64``, their numbers.
        lengths: ``[E] int64``, T + 1.
        observations, actions: nests of arrays ``[M, ...]``, pictures as they are to be.
        rewards, terminations, truncations: ``[M]``.
        infos: dict of nests of arrays ``[M, ...]``.
        short: the paths of those infos that have T values.
        facts: the metadata of each, single infos included.
    """

    index: np.ndarray
    lengths: np.ndarray
    observations: nest.Nest
    actions: nest.Nest
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    infos: dict[str, nest.Nest]
    short: Collection[nest.Path]
    facts: Sequence[Mapping[str, Any]]

    def __len__(self) -> int:
        return len(self.index)


Proof = Callable[[int, EpisodeParts, BatchParts], bool]
"""Whether an episode, of a number, is the same made of the parts read alone and of those read with others."""


def build_batch(parts: BatchParts, source: str) -> EpisodeBatch:
    """As :func:`build_episode` makes each of them; the columns become the batch's own."""
    stops = np.cumsum(parts.lengths)
    starts, ends = stops - parts.lengths, stops - 1

    def padded(column: np.ndarray) -> np.ndarray:
        column[ends] = b"" if column.dtype == object else 0
        return column

    ended, cut = (_one_row_on(column, starts) for column in (parts.terminations, parts.truncations))
    is_last = ended | cut
    facts = _with_open_tails(parts.facts, ~is_last[ends])
    is_last[ends] = True
    is_first = np.zeros(len(is_last), np.bool_)
    is_first[starts] = True
    discount = np.ones(len(is_last), np.float32)
    discount[ended] = 0
    discount[:-1][ended[1:]] = 0
    for path in parts.short:
        padded(nest.get(parts.infos, path))
    return EpisodeBatch(
        Episode(
            observation=parts.observations,
            action=nest.map_structure(padded, parts.actions),
            reward=padded(parts.rewards),
            discount=discount,
            is_first=is_first,
            is_last=is_last,
            is_terminal=ended,
            extras={"infos": parts.infos} if parts.infos else {},
            source=source,
            index=int(parts.index[0]),
        ),
        starts,
        index=parts.index,
        metadata=facts,
    )


def _one_row_on(flags: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """``[M] bool``: the flags of steps, at the rows that they led to."""
    out = np.empty(len(flags), np.bool_)
    out[1:] = flags[:-1]
    out[starts] = False
    return out


def _with_open_tails(facts: Sequence[Mapping[str, Any]], open_tail: np.ndarray) -> Sequence[Mapping[str, Any]]:
    if not open_tail.any():
        return facts
    return [{**own, OPEN_TAIL: True} if tail else own for own, tail in zip(facts, open_tail.tolist(), strict=True)]


def build_episode(
    parts: EpisodeParts,
    spaces: dict[str, nest.Nest],
    *,
    encoded: bool = False,
    size: tuple[int, int] | None = None,
    source: str,
    index: int,
    budget: Budget = BUDGET,
) -> Episode:
    """The parts as an episode of T + 1 rows.

    Args:
        parts: what the file holds.
        spaces: ``observation`` and ``action`` as nests of FieldSpec, which say what is a picture; or {}.
        encoded: pictures that are files stay files, as bytes.
        size: (height, width) that pixels are resized to, or None.
        source, index: the episode's place, for messages.
        budget: for the episode's pixels.

    Raises:
        LimitExceeded: they take more.
        SpecMismatch: a part is missing, or as long as no part should be.
        EpisodeError: a picture can't be decoded, or differs in size from the others.
    """
    where: dict[str, Any] = {"source": source, "episode": index}
    spec = {"rule": "spec", **where}

    def part(name: str, field: str) -> Any:
        found = getattr(parts, name)
        if found is None:
            raise SpecMismatch(f"{parts.name} has no `{name}`", path=field, **spec)
        return found

    def numbers(name: str, field: str) -> np.ndarray:
        column = part(name, field)
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "biuf":
            got = f"{column.dtype}{list(column.shape)}" if isinstance(column, np.ndarray) else "a group"
            raise SpecMismatch(f"`{name}` should hold one number a step, got {got}", path=field, **spec)
        return column

    def data(name: str, field: str) -> nest.Nest:
        try:
            return _with_pictures(part(name, field), spaces.get(field), encoded, size, Tally(budget))
        except DamagedImage as cause:
            raise EpisodeError(str(cause), step=cause.frame, path=field, rule="unreadable", **where) from cause

    rewards = numbers("rewards", "reward")
    steps = len(rewards)
    ended, cut = (numbers(name, name).astype(np.bool_) for name in ("terminations", "truncations"))
    columns = {"observation": data("observations", "observation"), "action": data("actions", "action")}
    if not isinstance(parts.infos, dict | None):
        raise SpecMismatch("`infos` should be a group of columns, got a dataset", path="extras/infos", **spec)
    extras, single = _split(parts.infos or {})
    checks = {"observation": steps + 1, "action": steps, "reward": steps, "terminations": steps, "truncations": steps}
    for name, want in checks.items():
        found = {"reward": rewards, "terminations": ended, "truncations": cut, **columns}[name]
        _check_length(found, name, (want,), where)
    _check_length(extras, "extras/infos", (steps, steps + 1), where)

    longer = nest.map_structure(lambda column: padded(column, steps + 1), extras)
    flags, open_tail = _flags(ended, cut)
    return Episode(
        observation=columns["observation"],
        action=nest.map_structure(lambda column: padded(column, steps + 1), columns["action"]),
        reward=padded(rewards, steps + 1),
        **flags,
        extras={"infos": longer} if longer else {},
        metadata=parts.metadata | ({"infos": single} if single else {}) | ({OPEN_TAIL: True} if open_tail else {}),
        source=source,
        index=index,
    )


def _flags(ended: np.ndarray, cut: np.ndarray) -> tuple[dict[str, np.ndarray], bool]:
    """RLDS's flags and discount ``[T + 1]``, and whether the end was not flagged."""
    is_terminal = np.concatenate([[False], ended])
    is_last = np.concatenate([[False], ended | cut])
    open_tail = not is_last[-1]
    is_last[-1] = True
    is_first = np.zeros(len(is_last), np.bool_)
    is_first[0] = True
    discount = np.ones(len(is_last), np.float32)
    discount[is_terminal] = 0
    discount[:-1][is_terminal[1:]] = 0
    flags = {"discount": discount, "is_first": is_first, "is_last": is_last, "is_terminal": is_terminal}
    return flags, bool(open_tail)


def _with_pictures(
    columns: nest.Nest, specs: nest.Nest, encoded: bool, size: tuple[int, int] | None, tally: Tally
) -> nest.Nest:
    """Decode the columns that hold JPEG files, or have them as bytes; the rest stay as they are.

    Files of one length may be stored as one array ``[T, bytes]``, files of different lengths as rows
    of their own.
    """
    if specs is None or not nest.same_structure(columns, specs):
        return columns

    def decoded(column: np.ndarray, spec: FieldSpec) -> np.ndarray:
        if not is_image(spec):
            return column
        if column.ndim == 1 or (column.ndim == 2 and len(spec.shape) > 1):
            files = _files(column)
            if encoded:
                return files
            check_pixels(files.tolist(), StoredImage((None, None, (*spec.shape, 1)[2]), spec.dtype), tally)
            column = plain_jpegs(files.tolist())
        return column if size is None else _resized(column, size)

    return nest.map_structure(decoded, columns, specs)


def _resized(frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """``[N, H, W]`` or ``[N, H, W, C]`` of another height and width."""
    if frames.ndim == 3:
        return resize_frames(frames[..., np.newaxis], size)[..., 0]
    return resize_frames(frames, size)


def _files(column: np.ndarray) -> np.ndarray:
    out = np.empty(len(column), object)
    out[:] = [bytes(file) for file in column]
    return out


def _split(infos: nest.Nest) -> tuple[dict[str, nest.Nest], dict[str, Any]]:
    """Info columns, and the single values beside them."""
    columns: dict[str, nest.Nest] = {}
    single: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            inner, inner_single = _split(value)
            columns.update({key: inner} if inner else {})
            single.update({key: inner_single} if inner_single else {})
        elif value is None:
            single[key] = None
        elif value.ndim == 0:
            single[key] = value.item()
        else:
            columns[key] = value
    return columns, single


def _check_length(columns: nest.Nest, name: str, allowed: tuple[int, ...], where: dict[str, Any]) -> None:
    for path, column in nest.flatten(columns, (name,)):
        length = len(column) if column.ndim else 0
        if length not in allowed:
            wanted = " or ".join(str(n) for n in allowed)
            message = f"{length} rows; beside {min(allowed)} rewards there should be {wanted}"
            if name == "observation":
                message = f"{length} rows; beside {allowed[0] - 1} rewards there should be {allowed[0]}"
            raise SpecMismatch(message, path=nest.path_name(path), rule="ragged-columns", **where)
