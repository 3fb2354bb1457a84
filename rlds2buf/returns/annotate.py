"""Returns as extra columns of a logged episode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, SpecMismatch
from rlds2buf.returns.estimators import discounted_return
from rlds2buf.returns.streams import fraction

__all__ = ["COLUMNS", "annotate", "annotate_batch", "annotated_spec"]

COLUMNS: dict[str, tuple[nest.Path, bool]] = {
    "return_to_go": (("reward",), False),
    "discounted_return": (("reward",), True),
    "cost_to_go": (("extras", "cost"), False),
    "discounted_cost": (("extras", "cost"), True),
}
"""What :func:`annotate` can add: from which field, and whether discounted."""


def annotate(
    episode: Episode,
    *,
    add: Sequence[str] = ("return_to_go", "discounted_return"),
    gamma: float = 0.99,
) -> Episode:
    """The episode with returns of its recorded rewards as extra columns.

    ====================  =====================================================================
    name                  row t holds
    ====================  =====================================================================
    return_to_go          the sum of the rewards from t on: what a decision transformer is fed
    discounted_return     the same, each later reward multiplied by `gamma`: the Monte-Carlo return
    cost_to_go            as return_to_go, of ``extras["cost"]``
    discounted_cost       as discounted_return, of ``extras["cost"]``
    ====================  =====================================================================

    Row N-1 holds the last observation and no reward, so its return is 0 whatever padding the
    record has there.  An episode that was cut has the return of what was recorded: nothing is
    added for what might have followed.  Logged discounts are not used.

    Args:
        episode: N rows with rewards ``[N, ...]`` (or costs).
        add: which columns, at least one.
        gamma: discount per step, in [0, 1].

    Returns:
        A new episode that shares all other columns; the added ones are float32 if the rewards are
        (or float16), else float64.

    Raises:
        ValueError: an unknown name, or `gamma` out of range.
        EpisodeError: the episode has no rewards (costs).
        SpecMismatch: they are no real numbers, or an extra of that name is there already.

    Source of the returns-to-go: Chen et al. 2021, https://arxiv.org/abs/2106.01345

    >>> ep = Episode(observation=np.arange(4.0), reward=np.array([1.0, 2.0, 4.0, 99.0]))
    >>> annotate(ep, gamma=0.5).extras["return_to_go"]
    array([7., 6., 4., 0.])
    >>> annotate(ep, gamma=0.5).extras["discounted_return"]
    array([3., 4., 4., 0.])
    """
    return annotate_batch(EpisodeBatch.of_one(episode), add=add, gamma=gamma).rows


def annotate_batch(
    batch: EpisodeBatch,
    *,
    add: Sequence[str] = ("return_to_go", "discounted_return"),
    gamma: float = 0.99,
) -> EpisodeBatch:
    """:func:`annotate` of every episode of a batch.

    Raises:
        ValueError, EpisodeError, SpecMismatch: as :func:`annotate`; an error that names the first episode is true
            of all.
    """
    gamma = fraction("gamma", gamma)
    rows, ends = batch.rows, batch.ends
    extras = dict(rows.extras)
    for name, path, discounted in _wanted(add):
        column = _rewards(batch, path)
        if name in extras:
            raise SpecMismatch("the episode has such a column already", path=f"extras/{name}", **_where(batch))
        # Row N-1 is padding: the sum starts at the last real reward, as if the path were cut behind it.
        cut = np.zeros(column.shape, np.bool_)
        cut[ends] = cut[np.maximum(ends - 1, 0)] = True
        returns = discounted_return(column, gamma=gamma if discounted else 1.0, truncated=cut)
        returns[ends] = 0
        extras[name] = returns
    return batch.with_rows(rows.replace(extras=extras))


def annotated_spec(spec: StepSpec, *, add: Sequence[str] = ("return_to_go", "discounted_return")) -> StepSpec:
    """The spec of :func:`annotate`'s episodes, given that of its arguments.

    Raises:
        ValueError: an unknown name.
        SpecMismatch: the data have no rewards (costs), they are no real numbers, or an extra of
            that name is there already.

    >>> annotated_spec(StepSpec(observation=FieldSpec((3,), np.float32)), add=["return_to_go"]).extras
    {'return_to_go': FieldSpec(float32[])}
    """
    extras = dict(spec.extras)
    fields = dict(spec.fields())
    for name, path, _ in _wanted(add):
        field = fields.get(path)
        if field is None or field.dtype.kind not in "biuf":
            raise SpecMismatch(f"{name} needs a field of real numbers", path=nest.path_name(path), rule="missing-field")
        if name in extras:
            raise SpecMismatch("the data have such a column already", path=f"extras/{name}")
        extras[name] = FieldSpec(field.shape, _dtype(field.dtype))
    parts = {part: getattr(spec, part) for part in ("observation", "action", "reward", "discount")}
    return StepSpec(**parts, extras=extras, is_first=spec.is_first, is_last=spec.is_last, is_terminal=spec.is_terminal)


def _wanted(add: Iterable[str]) -> list[tuple[str, nest.Path, bool]]:
    names = [add] if isinstance(add, str) else list(add)
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"{name!r} can't be added; known: {', '.join(COLUMNS)}")
    return [(name, *COLUMNS[name]) for name in dict.fromkeys(names)]


def _rewards(batch: EpisodeBatch, path: nest.Path) -> np.ndarray:
    try:
        column = nest.get({"reward": batch.rows.reward, "extras": batch.rows.extras}, path)
    except KeyError:
        column = None
    name = nest.path_name(path)
    if column is None:
        raise EpisodeError(
            "the data have no such field, and returns need it", path=name, rule="missing-field", **_where(batch)
        )
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
        raise SpecMismatch("returns need one column of real numbers", path=name, **_where(batch))
    return column


def _dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)


def _where(batch: EpisodeBatch) -> dict[str, Any]:
    return {"source": batch.rows.source, "episode": None if batch.index is None else int(batch.index[0])}
