"""Every episode of a dataset, checked, and its files and metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlds2buf.check.report import MAX_DETAILS, Checker, ValidationReport, issue_of
from rlds2buf.core.arguments import integer
from rlds2buf.core.issue import ERROR, Issue
from rlds2buf.errors import EpisodeError
from rlds2buf.io.blocks import gathered
from rlds2buf.io.source import Source
from rlds2buf.pipeline.findings import Findings
from rlds2buf.pipeline.opening import open_source
from rlds2buf.pipeline.reading import blocks, jobs_for

__all__ = ["validate"]


def validate(
    source: Any,
    *,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    allow_nonfinite: bool = False,
    max_details: int = MAX_DETAILS,
    jobs: int = 1,
    split: str | None = None,
    format: str | None = None,
    **options: Any,
) -> ValidationReport:
    """Check every episode of a source, its files and its metadata against the rules of :mod:`rlds2buf.check.rules`.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes, which is then closed again.
        limit: look at no more than this many episodes, those included that a filter leaves out.
        progress: called after every episode with the episodes and steps so far.
        allow_nonfinite: accept NaN and infinity.
        max_details: findings kept per rule; all are counted.
        jobs: as of :func:`rlds2buf.convert`.
        split, format, options: for :func:`rlds2buf.open_source`, if `source` is not a Source.

    Returns:
        ValidationReport; its `ok` says whether there are no errors.

    Raises:
        SourceError: there is no dataset that can be read, or the files are damaged, so that nothing
            behind that point can be.
        ValueError, TypeError: `limit` is negative, or options were given for a Source that is open.

    >>> from rlds2buf.core.episode import Episode
    >>> flags = {"is_first": [True, False], "is_last": [False, False], "is_terminal": [False, False]}
    >>> report = validate([Episode(observation=[1.0, 2.0], **flags)])
    >>> report.ok, report.issues[0].message, dict(report.counts)
    (False, 'episode does not end in is_last', {'last-missing': 1})
    """
    if limit is not None:
        limit = integer("limit", limit, 0)
    if not isinstance(source, Source):
        with open_source(source, split=split, format=format, **options) as opened:
            return _validated(opened, limit, progress, allow_nonfinite, max_details, jobs)
    if split is not None or format is not None or options:
        raise ValueError("split, format and further options are for a path, not for an opened source")
    return _validated(source, limit, progress, allow_nonfinite, max_details, jobs)


def _validated(
    source: Source,
    limit: int | None,
    progress: Callable[[int, int], None] | None,
    allow_nonfinite: bool,
    max_details: int,
    jobs: int,
) -> ValidationReport:
    source = source.as_episodes()
    report = ValidationReport(source.name, max_details=max_details)
    findings = Findings(source.findings())
    checker = Checker(source.spec, allow_nonfinite=allow_nonfinite)
    told = progress if progress is not None else lambda episodes, steps: None
    for item, left_out in gathered(blocks(source, 0, limit, jobs=jobs_for(source, jobs))):
        report.filtered.update(str(issue_of(one).rule) for one in left_out)
        if item is None:
            continue
        if isinstance(item, EpisodeError):
            report.episodes += 1
            _count(report, findings.beside(issue_of(item)))
            told(report.episodes, report.steps)
            continue
        for issues in findings.joined(item, checker.check_batch(item)).values():
            _count(report, issues)
        for steps in item.lengths.tolist() if progress is not None else ():
            report.episodes += 1
            report.steps += steps
            told(report.episodes, report.steps)
        if progress is None:
            report.episodes += len(item)
            report.steps += item.num_steps
    for issue in findings.of_dataset:
        report.add(issue)
    return report


def _count(report: ValidationReport, issues: list[Issue]) -> None:
    """The findings on one episode."""
    for issue in issues:
        report.add(issue)
    report.rejected += any(issue.severity == ERROR for issue in issues)
