"""Mending what a record itself tells how to mend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds2buf.check.boundaries import boundary_faults, seams, well_formed
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.fields import FLAG_FIELDS, STEP_FIELDS
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW

__all__ = ["keep_final_transition", "keep_final_transition_batch", "repair", "repair_batch"]


def repair(episode: Episode, *, final_transition: str = "drop") -> tuple[Episode, Counter[str]]:
    """Set the flags from the record's own borders, and count what was changed.

    A record is one episode: its first row becomes the only first one, its last row the only last
    one, and is_terminal stays on the last row only (robomimic sets it on every row where the task
    is solved, Bridge never sets is_last).  Whether the last row is terminal is not touched.

    A record in which a last row is followed by a first one holds several episodes: making one of
    them would invent a transition across a reset.  It is returned as it is, as is everything else
    that the record does not tell: NaN, shapes, dtypes, discounts.  Check the result again.

    Args:
        episode: is not changed.
        final_transition: ``"keep"`` goes on with :func:`keep_final_transition`, if the flags are good then.

    Returns:
        The mended episode (the same object if there was nothing to do; columns that did not change
        are shared), and the number of changed rows by rule (:mod:`rlds2buf.check.rules`).

    Raises:
        ValueError: another `final_transition`.

    >>> ep = Episode(observation=np.zeros(3), is_first=[True, False, False], is_last=[False] * 3,
    ...              is_terminal=[False] * 3)
    >>> mended, changes = repair(ep)
    >>> mended.is_last.tolist(), dict(changes)
    ([False, False, True], {'last-missing': 1})
    """
    if final_transition not in ("drop", "keep"):
        raise ValueError(f"final_transition must be 'drop' or 'keep', got {final_transition!r}")
    mended, changes = _repair_flags(episode)
    if final_transition == "keep" and well_formed(mended.is_first, mended.is_last, mended.is_terminal):
        mended, kept = keep_final_transition(mended)
        changes.update(kept)
    return mended, changes


def keep_final_transition(episode: Episode) -> tuple[Episode, Counter[str]]:
    """Make the last row a step like the others, for data whose last action and reward are real.

    RLDS says that the last row only holds the last observation; some writers log one row per
    action instead, and then a conversion loses the last reward, often the only one.  What can be
    done about it depends on the end:

    - *terminated*: a row of zeros is added behind the last one and takes its is_last and
      is_terminal; the old last row's discount, if any is logged, becomes 0.  A learner does not
      bootstrap from a terminal state, so the zeros are never used as an observation.  Marked
      ``placeholder_final_row`` in the metadata.
    - *truncated* or not flagged: a learner would have to bootstrap from an observation that was
      never logged, so nothing is added; the last action and reward stay padding, and are counted
      as lost.
    - already marked ``placeholder_final_row``: nothing to do.

    Args:
        episode: obeys the grammar (repair it first); is not changed.

    Returns:
        The episode, and ``{"final-transition-kept": 1}`` or ``{"final-transition-lost": 1}``, or an
        empty count for an episode that has a placeholder already.

    >>> ep = Episode(observation=np.ones(2), reward=np.array([0.0, 1.0]), is_terminal=[False, True])
    >>> kept, changes = keep_final_transition(ep)
    >>> kept.observation.tolist(), kept.reward.tolist(), kept.is_terminal.tolist()
    ([1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [False, False, True])
    """
    batch, changes = keep_final_transition_batch(EpisodeBatch.of_one(episode))
    if batch.rows is not episode:
        batch.rows.metadata[PLACEHOLDER_FINAL_ROW] = True
    return batch.rows, changes


def keep_final_transition_batch(batch: EpisodeBatch) -> tuple[EpisodeBatch, Counter[str]]:
    """:func:`keep_final_transition` of every episode of a batch; the rows are added by one copy of each column.

    Args:
        batch: its episodes obey the grammar; is not changed.

    Returns:
        The batch (the same object if there was nothing to add), and the counts of all.
    """
    ends = batch.ends
    marked = np.zeros(len(batch), np.bool_) if batch.placeholder is None else batch.placeholder
    grows = batch.rows.is_terminal[ends] & ~marked
    kept, lost = int(np.count_nonzero(grows)), int(np.count_nonzero(~grows & ~marked))
    changes = Counter({rule: n for rule, n in (("final-transition-kept", kept), ("final-transition-lost", lost)) if n})
    if not kept:
        return batch, changes
    before = np.cumsum(grows) - grows  # so many rows were added before each
    place = np.arange(batch.num_steps) + np.repeat(before, batch.lengths)
    old_last = (ends + before)[grows]
    new_last = old_last + 1
    rows = batch.rows
    fields = {
        name: nest.map_structure(lambda column: _with_zero_rows(column, place, new_last), getattr(rows, name))
        for name in (*STEP_FIELDS, "extras")
    }
    for name in ("is_last", "is_terminal"):
        fields[name][old_last] = False
        fields[name][new_last] = True
    for _, column in nest.flatten(fields["discount"]):
        if column is not None:
            column[old_last] = 0
    grown = Episode(**fields, metadata=rows.metadata, source=rows.source, index=rows.index)
    told: dict[str, Any] = {"index": batch.index, "metadata": batch.metadata, "sources": batch.sources}
    return EpisodeBatch(grown, batch.starts + before, marked | grows, **told), changes


def repair_batch(batch: EpisodeBatch, which: Sequence[int]) -> tuple[EpisodeBatch, dict[int, Counter[str]]]:
    """As :func:`repair`, some episodes of a batch.

    Args:
        batch: is not changed.
        which: their positions in it.

    Returns:
        The batch with the flags of these mended, and for each of them that was changed how many rows, by rule.

    >>> open_end = Episode(observation=np.zeros(2), is_first=[True, False], is_last=[False, False])
    >>> mended, changes = repair_batch(EpisodeBatch.of([open_end, open_end]), [1])
    >>> mended.rows.is_last.tolist(), changes
    ([False, False, False, True], {1: Counter({'last-missing': 1})})
    """
    rows = batch.rows
    flags = {name: getattr(rows, name).copy() for name in FLAG_FIELDS}
    stops = batch.ends + 1
    changes = {}
    for position in which:
        part = slice(int(batch.starts[position]), int(stops[position]))
        episode = Episode(**{name: flag[part] for name, flag in flags.items()})
        mended, changed = _repair_flags(episode)
        if mended is not episode:
            changes[position] = changed
            for name, flag in flags.items():
                flag[part] = getattr(mended, name)
    return batch.with_rows(rows.replace(**flags)), changes


def _repair_flags(episode: Episode) -> tuple[Episode, Counter[str]]:
    flags = (episode.is_first, episode.is_last, episode.is_terminal)
    changes: Counter[str] = Counter()
    if well_formed(*flags) or len(seams(episode.is_first, episode.is_last)):
        return episode, changes
    for fault in boundary_faults(*flags):
        changes[fault.rule] = 1 if fault.rule == "last-missing" else fault.count
    # A terminal last row without is_last breaks terminal-inside too, and is mended by is_last.
    early = int(np.count_nonzero(episode.is_terminal[:-1]))
    changes.pop("terminal-inside", None)
    if early:
        changes["terminal-inside"] = early
    is_first, is_last, is_terminal = (np.zeros(episode.num_steps, np.bool_) for _ in range(3))
    is_first[0] = is_last[-1] = True
    is_terminal[-1] = episode.is_terminal[-1]
    new: dict[str, Any] = {"is_first": is_first, "is_last": is_last}
    if "is_terminal" not in episode.derived:
        new["is_terminal"] = is_terminal
    return episode.replace(**new), changes


def _with_zero_rows(column: np.ndarray | None, place: np.ndarray, added: np.ndarray) -> np.ndarray | None:
    """The column's rows, each at its new place, and zeros (empty text) in the rows added."""
    if column is None:
        return None
    out = np.zeros((len(place) + len(added), *column.shape[1:]), column.dtype)
    if column.dtype == object:
        out[added] = b""
    out[place] = column
    return out
