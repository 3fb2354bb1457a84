"""Findings, the checker that makes them, and the report that counts them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2buf.check.batch_columns import BatchColumns
from rlds2buf.check.boundaries import boundary_faults, boundary_suspects
from rlds2buf.check.continuity import ContinuityCheck
from rlds2buf.check.rules import NOT_IN_SPEC, RULES, Fault
from rlds2buf.check.values import (
    Columns,
    discount_faults,
    discount_suspects,
    final_reward_faults,
    final_reward_suspects,
    limit_faults,
    limit_suspects,
    nonfinite_faults,
    nonfinite_suspects,
    one_step_faults,
    one_step_suspects,
)
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.issue import ERROR, FILTER, WARNING, Issue
from rlds2buf.core.limits import Limits
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.errors import EpisodeError, FilteredOut

__all__ = ["Checker", "Issue", "ValidationReport", "issue_of"]

MAX_DETAILS = 20
"""Findings kept per rule."""
LINES = 5
"""Of these, how many a report prints."""


def issue_of(error: EpisodeError) -> Issue:
    """The finding that an episode which could not be built amounts to.

    >>> issue_of(EpisodeError("cut short", episode=4)).rule
    'unreadable'
    """
    rule = error.rule or "unreadable"
    severity = FILTER if isinstance(error, FilteredOut) else ERROR
    kind = RULES[rule].error if rule in RULES else EpisodeError
    return Issue(rule, severity, error.episode, error.step, error.path, error.message, error.source, kind)


@dataclasses.dataclass(frozen=True)
class _Rule:
    """Rules in both forms: which episodes of a batch might break them, and what is wrong with one."""

    suspects: Callable[[BatchColumns], np.ndarray]
    faults: Callable[[Episode, Columns], list[Fault]]


class Checker:
    """Checks episodes, one after the other or in batches, in the dataset's order.

    It remembers the end of the episode before (for the rules on neighbours) and what it has said
    once for the whole dataset, so use one per pass.

    Args:
        spec: what the episodes should look like, usually ``source.spec``; None takes the first one's.
        allow_nonfinite: accept NaN and infinity.
        warnings: False looks for errors only, in a fraction of the time.

    >>> ep = Episode(observation=np.array([0.0, np.nan]), is_terminal=[False, True])
    >>> [(issue.rule, issue.step) for issue in Checker(None).check(ep)]
    [('nonfinite', 1)]
    """

    def __init__(self, spec: StepSpec | None, *, allow_nonfinite: bool = False, warnings: bool = True) -> None:
        self._warnings = warnings
        self._expected = None if spec is None else dict(spec.fields())
        allowed = {path: Limits.of(field) for path, field in (self._expected or {}).items()}
        self._limits = {path: limits for path, limits in allowed.items() if limits is not None}
        self._accepted: list[Any] | None = None
        self._continuity = ContinuityCheck()
        self._said_no_terminal = False
        self._rules = self._chosen_rules(allow_nonfinite)

    def check(self, episode: Episode) -> list[Issue]:
        """The findings on this episode: at most one per rule and field, fields first, then flags, then values."""
        columns = list(episode.flatten())
        faults = self._spec_faults(columns)
        for rule in self._applicable(faults):
            faults += rule.faults(episode, columns)
        if self._warnings:
            faults += self._continuity.faults(episode)
        return self._issues(episode, faults)

    def check_batch(self, batch: EpisodeBatch) -> dict[int, list[Issue]]:
        """The findings on the episodes of a batch, the same that :meth:`check` has on one after the other.

        All episodes are screened at once, and only what looks suspicious is explained, one by one.

        Returns:
            Position in the batch to findings, in order; only of episodes that have any.

        >>> good, bad = Episode(observation=np.zeros(3)), Episode(observation=np.array([0.0, np.nan]))
        >>> found = Checker(None).check_batch(EpisodeBatch.of([good, bad, good]))
        >>> {position: [issue.rule for issue in issues] for position, issues in found.items()}
        {0: ['no-is-terminal'], 1: ['nonfinite']}
        """
        block = BatchColumns(batch)
        spec_faults = self._spec_faults(block.columns)  # the same for all, as their columns are
        rules = self._applicable(spec_faults)
        suspects = np.stack([rule.suspects(block) for rule in rules], axis=1)
        neighbours = self._continuity.suspects(block) if self._warnings else block.none()
        found = {}
        following = 0  # the first episode that the rules on neighbours have not seen
        for i, episode in block.episodes(bool(spec_faults) | neighbours | suspects.any(axis=1)):
            columns = list(episode.flatten())
            faults = list(spec_faults)
            for rule, suspected in zip(rules, suspects[i].tolist(), strict=True):
                if suspected:
                    faults += rule.faults(episode, columns)
            if neighbours[i]:
                if following < i:
                    self._continuity.pass_over(block.episode(i - 1))
                faults += self._continuity.faults(episode)
                following = i + 1
            issues = self._issues(episode, faults)
            if issues:
                found[i] = issues
        if self._warnings and following < len(batch):
            self._continuity.pass_over(block.episode(len(batch) - 1))
        return found

    def _chosen_rules(self, allow_nonfinite: bool) -> list[_Rule]:
        """In the order of their findings; that on limits, which needs columns as the spec has them, is the last."""
        every = self._warnings
        boundary = _Rule(
            boundary_suspects,
            lambda episode, _: boundary_faults(episode.is_first, episode.is_last, episode.is_terminal),
        )
        nonfinite = _Rule(
            lambda block: nonfinite_suspects(block, padding=every), lambda _, columns: nonfinite_faults(columns)
        )
        one_step = _Rule(one_step_suspects, lambda episode, _: one_step_faults(episode))
        terminal = _Rule(self._terminal_suspects, lambda episode, _: self._terminal_faults(episode))
        discount = _Rule(
            lambda block: discount_suspects(block, warnings=every), lambda episode, _: discount_faults(episode)
        )
        reward = _Rule(final_reward_suspects, lambda episode, _: final_reward_faults(episode))
        limits = _Rule(
            lambda block: limit_suspects(block, self._limits),
            lambda episode, columns: limit_faults(episode, columns, self._limits),
        )
        chosen = [boundary] if allow_nonfinite else [boundary, nonfinite]
        return [*chosen, one_step, terminal, discount, reward, limits] if every else [*chosen, discount]

    def _applicable(self, spec_faults: list[Fault]) -> list[_Rule]:
        return self._rules[:-1] if spec_faults and self._warnings else self._rules

    def _issues(self, episode: Episode, faults: list[Fault]) -> list[Issue]:
        rules = [(fault, RULES[fault.rule]) for fault in faults]
        return [
            Issue(
                rule.id,
                rule.severity,
                episode.index,
                fault.step,
                fault.path,
                fault.message,
                episode.source,
                rule.error,
            )
            for fault, rule in rules
            if self._warnings or rule.severity == ERROR
        ]

    def _spec_faults(self, columns: list[tuple[nest.Path, Any]]) -> list[Fault]:
        # Episodes of one source nearly always look like the one before, so compare with that first.
        found = [(path, column.shape[1:], column.dtype) for path, column in columns]
        if found == self._accepted:
            return []
        if self._expected is None:
            self._expected = {path: FieldSpec(shape, dtype) for path, shape, dtype in found}
        faults = []
        for path, shape, dtype in found:
            field = self._expected.get(path)
            if field is None:
                faults.append(Fault("spec", NOT_IN_SPEC, path=nest.path_name(path)))
            elif not field.accepts(shape, dtype):
                message = f"expected {field}, got {FieldSpec(shape, dtype)}"
                faults.append(Fault("spec", message, path=nest.path_name(path)))
        present = {path for path, _, _ in found}
        for path, field in self._expected.items():
            if path not in present:
                message = f"the field is missing, expected {field}"
                faults.append(Fault("spec", message, path=nest.path_name(path)))
        if not faults:
            self._accepted = found
        return faults

    def _terminal_suspects(self, block: BatchColumns) -> np.ndarray:
        found = block.none()
        found[0] = not self._said_no_terminal and "is_terminal" in block.batch.derived
        return found

    def _terminal_faults(self, episode: Episode) -> list[Fault]:
        if self._said_no_terminal or "is_terminal" not in episode.derived:
            return []
        self._said_no_terminal = True
        message = "the data have no is_terminal: every end is taken as a truncation"
        return [Fault("no-is-terminal", message, path="is_terminal")]


@dataclasses.dataclass
class ValidationReport:
    """What is wrong with a dataset.

    Attributes:
        source: its name.
        episodes: how many were looked at, those included that could not be built, but not those filtered out.
        steps: rows of the episodes that could be built.
        rejected: episodes with at least one error.
        issues: the findings in the order met, at most `max_details` per rule.
        counts: all findings by rule, also those beyond `max_details`.
        filtered: episodes that a filter left out, by rule; they are not looked at.
        severities: of each rule that was broken.
    """

    source: str
    episodes: int = 0
    steps: int = 0
    rejected: int = 0
    issues: list[Issue] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    max_details: int = MAX_DETAILS
    filtered: Counter[str] = dataclasses.field(default_factory=Counter)
    severities: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings are allowed."""
        return self.rejected == 0 and self.count(ERROR) == 0

    def add(self, issue: Issue) -> None:
        """Count a finding, and keep it unless its rule has enough of them."""
        self.counts[issue.rule] += 1
        self.severities.setdefault(issue.rule, issue.severity)
        if self.counts[issue.rule] <= self.max_details:
            self.issues.append(issue)

    def count(self, severity: str) -> int:
        """How many findings there are of a severity, ``"error"`` or ``"warning"``."""
        return sum(n for rule, n in self.counts.items() if self.severities[rule] == severity)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "source": self.source,
            "ok": self.ok,
            "episodes": self.episodes,
            "steps": self.steps,
            "rejected": self.rejected,
            "errors": self.count(ERROR),
            "warnings": self.count(WARNING),
            "counts": dict(self.counts),
            "filtered": dict(self.filtered),
            "issues": [issue.to_json() for issue in self.issues],
        }

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        verdict = "valid" if self.ok else "not valid"
        lines = [
            f"{self.source}: {verdict}. {_many(self.episodes, 'episode')}, {_many(self.steps, 'step')}: "
            f"{_many(self.count(ERROR), 'error')} in {_many(self.rejected, 'episode')}, "
            f"{_many(self.count(WARNING), 'warning')}"
        ]
        if self.filtered:
            by_rule = ", ".join(f"{rule} {count:,}" for rule, count in self.filtered.most_common())
            lines.append(f"{_many(self.filtered.total(), 'episode')} left out: {by_rule}")
        order = [rule for rule in RULES if rule in self.counts] + [r for r in self.counts if r not in RULES]
        for rule in order:
            shown = [issue for issue in self.issues if issue.rule == rule][:LINES]
            lines.append(f"{self.severities[rule]} {rule} ({self.counts[rule]})")
            lines += [f"  {_place(issue, self.source)}{issue.message}" for issue in shown]
            if self.counts[rule] > len(shown):
                lines.append(f"  and {self.counts[rule] - len(shown)} more")
        return "\n".join(lines)


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _place(issue: Issue, source: str) -> str:
    # A file inside the dataset's folder by its name alone; a split may follow the folder's name.
    folder = source.split(" [")[0]
    where = [] if issue.source in (None, source, folder) else [str(issue.source).removeprefix(folder + "/")]
    if issue.episode is not None:
        where.append(f"episode {issue.episode}")
    if issue.step is not None:
        where.append(f"step {issue.step}")
    if issue.path is not None:
        where.append(issue.path)
    return f"{', '.join(where)}: " if where else ""
