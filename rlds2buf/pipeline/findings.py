"""What a source says of its files and metadata, put to the episodes that it concerns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.issue import WARNING, Issue

__all__ = ["Findings"]

_SAID = 5
"""Warnings of one rule that are said in full."""


class Findings:
    """The findings of :meth:`~rlds2buf.io.source.Source.findings`.

    Args:
        issues: in any order.

    Attributes:
        of_dataset: those that concern no single episode.

    >>> absent = Issue("absent-files", "warning", None, None, None, "not there: b.bin", "set")
    >>> late = Issue("unreadable", "error", 3, None, None, "its rows are those of another", "set")
    >>> findings = Findings([late, absent])
    >>> findings.warnings(), [issue.episode for issue in findings.beside(late)]
    (['set: not there: b.bin'], [3])
    """

    def __init__(self, issues: Iterable[Issue]) -> None:
        self.of_dataset: list[Issue] = []
        self._of_episodes: dict[int, list[Issue]] = {}
        for issue in issues:
            if issue.episode is None:
                self.of_dataset.append(issue)
            else:
                self._of_episodes.setdefault(issue.episode, []).append(issue)
        self._numbers = np.array(sorted(self._of_episodes), np.int64)

    def joined(self, batch: EpisodeBatch, found: Mapping[int, list[Issue]]) -> dict[int, list[Issue]]:
        """With what else was found in the episodes of a batch.

        Args:
            batch: its `index` tells which they are.
            found: position in the batch to findings, behind which these come.

        Returns:
            Position to findings, ascending.
        """
        if not len(self._numbers) or batch.index is None:
            return dict(found)
        both = dict(found)
        for position in np.flatnonzero(np.isin(batch.index, self._numbers)).tolist():
            both[position] = [*found.get(position, ()), *self._of_episodes[int(batch.index[position])]]
        return dict(sorted(both.items()))

    def beside(self, refusal: Issue) -> list[Issue]:
        """That an episode can't be read, and what else is wrong with it: nothing is said twice."""
        said = (refusal.rule, refusal.path)
        others = [] if refusal.episode is None else self._of_episodes.get(refusal.episode, [])
        return [refusal, *(issue for issue in others if (issue.rule, issue.path) != said)]

    def warnings(self) -> list[str]:
        """Those that are no errors as sentences, a few of each rule."""
        by_rule: dict[str, list[str]] = {}
        for issue in [*self.of_dataset, *(issue for issues in self._of_episodes.values() for issue in issues)]:
            if issue.severity == WARNING:
                by_rule.setdefault(issue.rule, []).append(str(issue.error()))
        texts = []
        for rule, said in by_rule.items():
            texts += said[:_SAID]
            texts += [f"and {len(said) - _SAID:,} more of the kind {rule}"] if len(said) > _SAID else []
        return texts
