"""What can be done to one field: change its type, flatten and join it with others; for columns and for specs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from rlds2buf.core.dtypes import dtype_name
from rlds2buf.core.episode import Episode
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import EpisodeError, SpecMismatch

__all__ = ["ColumnLeaves", "Leaves", "SpecLeaves"]

_OBJECT = np.dtype(object)


class Leaves(Protocol):
    """The operations; `name` is the field's path, for messages."""

    def cast(self, leaf: Any, dtype: np.dtype, name: str) -> Any:
        """The field with another type.  Values that don't fit are errors, never changed in silence."""

    def join(self, leaves: Sequence[Any], name: str) -> Any:
        """Fields ``[N, ...]`` of one type, each flattened to ``[N, k]``, side by side."""

    def squeeze(self, leaf: Any) -> Any:
        """``[N, 1]`` as ``[N]``."""

    def dtype(self, leaf: Any) -> np.dtype:
        """The field's type."""


class SpecLeaves:
    """Leaves that are FieldSpec.  What is wrong here is wrong with the arguments: ValueError."""

    def cast(self, leaf: FieldSpec, dtype: np.dtype, name: str) -> FieldSpec:
        if leaf.dtype == dtype:
            return leaf
        if leaf.dtype.kind not in "biuf":
            what = "an image file" if leaf.image is not None else "text" if leaf.is_string else str(leaf)
            raise ValueError(f"{name}: {what} can't become {dtype_name(dtype)}")
        if dtype == np.bool_:
            return FieldSpec(leaf.shape, dtype)
        return dataclasses.replace(leaf, dtype=dtype)

    def join(self, leaves: Sequence[FieldSpec], name: str) -> FieldSpec:
        for leaf in leaves:
            if leaf.is_string:
                raise ValueError(
                    f"{name}: text and image files ({leaf}) can't be joined to one column; drop them first"
                )
            if None in leaf.shape:
                raise ValueError(f"{name}: a field of varying length ({leaf}) can't be joined with others")
        if len({leaf.dtype for leaf in leaves}) > 1:
            found = ", ".join(dict.fromkeys(dtype_name(leaf.dtype) for leaf in leaves))
            raise ValueError(f"{name}: fields of different types ({found}) are joined only with a cast of {name!r}")
        sizes = [int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves]  # type: ignore[arg-type]  # no None here
        limits = {side: _limits([getattr(leaf, side) for leaf in leaves], leaves, sizes) for side in ("low", "high")}
        return FieldSpec((sum(sizes),), leaves[0].dtype, **limits)

    def squeeze(self, leaf: FieldSpec) -> FieldSpec:
        return FieldSpec((), leaf.dtype, values=leaf.values) if leaf.shape == (1,) else leaf

    def dtype(self, leaf: FieldSpec) -> np.dtype:
        return leaf.dtype


class ColumnLeaves:
    """Leaves that are columns of one episode.  What is wrong here is wrong with the data: EpisodeError.

    Args:
        episode: whose columns they are, for messages; or the rows of several.
        unfit: ``[N] bool``, where those rows are marked that a value does not fit in, with no error for them;
            what they become is not to be used.
    """

    def __init__(self, episode: Episode, unfit: np.ndarray | None = None) -> None:
        self._episode = episode
        self._marked = unfit

    def cast(self, leaf: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
        if leaf.dtype == dtype:
            return leaf
        if leaf.dtype == _OBJECT:
            return self._cast_ragged(leaf, dtype, name)
        with np.errstate(all="ignore"):
            cast = leaf.astype(dtype)
        bad = _unfit(leaf, cast)
        if bad is not None and bad.any():
            steps = np.flatnonzero(bad.reshape(len(leaf), -1).any(axis=1))
            if self._marked is not None:
                self._marked[steps] = True
                return cast
            step = int(steps[0])
            value = leaf[step][bad[step]].flat[0] if leaf.ndim > 1 else leaf[step]
            raise self._error(EpisodeError, f"{value} does not fit into {dtype.name}", name, step, "cast")
        return cast

    def join(self, leaves: Sequence[np.ndarray], name: str) -> np.ndarray:
        kinds = {leaf.dtype for leaf in leaves}
        if len(kinds) > 1 or _OBJECT in kinds:
            found = ", ".join(dict.fromkeys(dtype_name(leaf.dtype) for leaf in leaves))
            raise self._error(SpecMismatch, f"can't be joined from columns of {found}", name, None, "spec")
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    def squeeze(self, leaf: np.ndarray) -> np.ndarray:
        return leaf[:, 0] if leaf.ndim == 2 and leaf.shape[1] == 1 else leaf

    def dtype(self, leaf: np.ndarray) -> np.dtype:
        return leaf.dtype

    def _cast_ragged(self, leaf: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
        out = np.empty(len(leaf), object)
        for step, value in enumerate(leaf):
            try:
                out[step] = self._cast_value(value, dtype, name, step)
            except EpisodeError:
                if self._marked is None:
                    raise
                self._marked[step] = True
        return out

    def _cast_value(self, value: Any, dtype: np.dtype, name: str, step: int) -> np.ndarray:
        if not isinstance(value, np.ndarray) or value.dtype == _OBJECT:
            raise self._error(SpecMismatch, f"text can't become {dtype.name}", name, step, "spec")
        with np.errstate(all="ignore"):
            cast = value.astype(dtype)
        bad = _unfit(value, cast)
        if bad is not None and bad.any():
            raise self._error(EpisodeError, f"{value[bad].flat[0]} does not fit into {dtype.name}", name, step, "cast")
        return cast

    def _error(self, kind: type[EpisodeError], message: str, name: str, step: int | None, rule: str) -> EpisodeError:
        place: dict[str, Any] = {"source": self._episode.source, "episode": self._episode.index}
        return kind(message, step=step, path=name, rule=rule, **place)


def _unfit(values: np.ndarray, cast: np.ndarray) -> np.ndarray | None:
    """Which values did not survive the cast; None: all did.

    To bool only 0 and 1 do, to integers whole numbers in range, to floats what does not overflow.
    Rounding to a shorter float is what the cast is for.
    """
    dtype = cast.dtype
    if values.dtype == np.bool_:
        return None
    if dtype == np.bool_:
        return (values != 0) & (values != 1)
    if dtype.kind in "iu":
        return _unfit_integer(values, dtype)
    if dtype.kind == "f" and values.dtype.kind == "f" and dtype.itemsize < values.dtype.itemsize:
        infinite = np.isinf(cast)
        return infinite & np.isfinite(values) if infinite.any() else None
    return None


def _unfit_integer(values: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    if values.dtype.kind == "f":
        # The limits as floats: -2**63 is one, 2**63 - 1 is not, so the upper one is exclusive.
        low, above = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max + 1)
        with np.errstate(invalid="ignore", over="ignore"):  # a limit that float16 can't hold is infinite there
            whole = np.isfinite(values) & (values == np.floor(values))
            return ~(whole & (values >= low) & (values < above))
    own, wanted = np.iinfo(values.dtype), np.iinfo(dtype)
    if own.min >= wanted.min and own.max <= wanted.max:
        return None
    low_side = values < wanted.min if own.min < wanted.min else np.zeros(values.shape, bool)
    return low_side | (values > wanted.max) if own.max > wanted.max else low_side


def _limits(limits: list[Any], leaves: Sequence[FieldSpec], sizes: list[int]) -> Any:
    """Low or high of a joined field: a number where all agree, else a list; None where one lacks it."""
    if any(limit is None for limit in limits):
        return None
    rows = [
        np.broadcast_to(np.asarray(limit, object), leaf.shape).ravel().tolist()  # type: ignore[arg-type]
        for limit, leaf in zip(limits, leaves, strict=True)
    ]
    joined = [value for row in rows for value in row]
    if sizes and len({repr(value) for value in joined}) == 1 and not any(isinstance(limit, list) for limit in limits):
        return joined[0]
    return joined
