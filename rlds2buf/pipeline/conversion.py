"""The main job: source -> check -> sink, a block of episodes at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.check.repair import keep_final_transition_batch, repair_batch
from rlds2buf.check.report import Checker, issue_of
from rlds2buf.check.rules import NOT_IN_SPEC, way_out
from rlds2buf.core import shown
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.issue import ERROR, Issue
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, FilteredOut, tell
from rlds2buf.io.blocks import gathered
from rlds2buf.io.sink import Sink
from rlds2buf.io.source import LANES, Source
from rlds2buf.numbers.accumulators import Spool
from rlds2buf.numbers.dataset_numbers import Statistics
from rlds2buf.numbers.normalizing import as_statistics
from rlds2buf.pipeline.findings import Findings
from rlds2buf.pipeline.measuring import MeasuringSink, without_pictures
from rlds2buf.pipeline.opening import open_sink, open_source
from rlds2buf.pipeline.progress import Tracked
from rlds2buf.pipeline.reading import jobs_for
from rlds2buf.transform.normalizing import Normalizing, fields_to_normalize
from rlds2buf.version import __version__

__all__ = ["ConvertReport", "convert"]

ON_INVALID = ("raise", "skip", "repair")
FINAL_TRANSITION = ("drop", "keep")
MAX_ISSUES = 20
CHECKPOINT_SECONDS = 5.0
BLOCK_ROWS, BLOCK_BYTES = 1 << 14, 1 << 24
"""Of a block; memory of that size is used again, where that of larger ones (from 32 MiB on) is mapped anew."""


@dataclasses.dataclass
class ConvertReport:
    """What became of the episodes of a conversion; ``read == episodes + rejected episodes``, always.

    Attributes:
        source, sink: their names.
        read: episodes looked at.
        episodes: episodes written.
        steps: rows written.
        items: what they became in the sink: transitions of a buffer, episodes of a list.
        rejected: episodes that were left out, by the first rule that each breaks.
        repaired: rows that were changed, by rule; with ``final_transition="keep"`` also episodes by
            ``final-transition-kept`` and ``final-transition-lost``.  The latter also counts, without it, episodes whose
            last action is known to be real, where the sink holds transitions only.
        lost: what the output's format can't hold of the data: field to the reason.
        issues: the first findings that episodes were left out for.
        warnings: what should be known of the source before its data are used, of weights that only order them, and
            of what earlier runs had left at the target.
        notes: what should be known of the output: where it is, if not at the path given, and its id.
        seconds: of this run, without opening source and sink.
        resumed: episodes of `read` that an earlier run had dealt with; they are in the counts.
    """

    source: str
    sink: str
    read: int = 0
    episodes: int = 0
    steps: int = 0
    items: int = 0
    rejected: Counter[str] = dataclasses.field(default_factory=Counter)
    repaired: Counter[str] = dataclasses.field(default_factory=Counter)
    issues: list[Issue] = dataclasses.field(default_factory=list)
    lost: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    resumed: int = 0
    warnings: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        rows = [
            ("  episodes", f"{self.episodes:,} of {self.read:,} read"),
            ("  steps", f"{self.steps:,}"),
            ("  items", f"{self.items:,}"),
            ("  seconds", f"{self.seconds:.3g}"),
        ]
        if self.resumed:
            rows.append(("  resumed", f"{self.resumed:,} episodes were there already"))
        for title, found in (("left out", self.rejected), ("changed", self.repaired)):
            if found:
                by_rule = ", ".join(f"{rule} {count:,}" for rule, count in found.most_common())
                rows.append((f"  {title}", by_rule))
        if self.lost:
            rows.append(("  not held", ", ".join(self.lost)))
        return shown.aligned(f"{self.source} -> {self.sink}", rows)

    @property
    def written(self) -> int:
        """The same as `episodes`."""
        return self.episodes

    @property
    def steps_per_second(self) -> float:
        """Rows written by second of this run; 0 before any time has passed, or after resuming."""
        return 0.0 if self.resumed or not self.seconds else self.steps / self.seconds

    def leave_out(self, rule: str) -> None:
        """Count one episode as read and left out."""
        self.read += 1
        self.rejected[rule] += 1

    def reject(self, issue: Issue) -> None:
        """Count one episode as read and left out, and keep the finding."""
        self.leave_out(issue.rule)
        if len(self.issues) < MAX_ISSUES:
            self.issues.append(issue)

    def accept(self, batch: EpisodeBatch, items: int) -> None:
        """Count episodes as read and written."""
        self.read += len(batch)
        self.episodes += len(batch)
        self.steps += batch.num_steps
        self.items += items

    def check(self) -> None:
        """Assert that no episode has been lost from the books."""
        assert self.read == self.episodes + sum(self.rejected.values()), self

    def counts(self) -> dict[str, Any]:
        """The counts as plain JSON values; :meth:`go_on_from` reads them back."""
        return {
            "read": self.read,
            "episodes": self.episodes,
            "steps": self.steps,
            "items": self.items,
            "rejected": dict(self.rejected),
            "repaired": dict(self.repaired),
        }

    def go_on_from(self, counts: Mapping[str, Any]) -> None:
        """Take over the counts of an unfinished run."""
        for name in ("read", "episodes", "steps", "items"):
            setattr(self, name, int(counts[name]))
        self.rejected = Counter(counts["rejected"])
        self.repaired = Counter(counts["repaired"])
        self.resumed = self.read

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "source": self.source,
            "sink": self.sink,
            **self.counts(),
            "written": self.episodes,
            "issues": [issue.to_json() for issue in self.issues],
            "lost": self.lost,
            "seconds": self.seconds,
            "resumed": self.resumed,
            "warnings": self.warnings,
            "notes": self.notes,
        }


def convert(
    source: Any,
    sink: Any,
    *,
    to: str | None = None,
    on_invalid: str = "raise",
    final_transition: str = "drop",
    allow_nonfinite: bool = False,
    add: Sequence[str] = (),
    gamma: float = 0.99,
    progress: bool = False,
    jobs: int = 1,
    overwrite: bool = False,
    resume: bool = False,
    sink_options: Mapping[str, Any] | None = None,
    normalize: Mapping[str, str] | None = None,
    normalize_stats: Any = None,
    split: str | None = None,
    format: str | None = None,
    **options: Any,
) -> ConvertReport:
    """Read every episode of a dataset, check it, and write it.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        sink: a Sink; a buffer, which the episodes are added to; a list, which they are appended
            to; or a path.
        to: what is written at a path: ``"buffer"``, a folder that :func:`rlds2buf.load_buffer` opens;
            ``"rlds"``, a folder that TFDS and :func:`rlds2buf.open_source` open; ``"minari"``, one that
            Minari opens; ``"lerobot"``, one that LeRobot opens; ``"d4rl"``, an HDF5 file with D4RL's keys;
            ``"reverb-checkpoint"``, from which a Reverb server starts; or an installed plug-in's format.
            None: what the path's suffix means (``.hdf5`` is ``"d4rl"``), or else ``"buffer"``.
        on_invalid: what becomes of an episode with errors (:mod:`rlds2buf.check.rules`):
            ``"raise"`` stops, ``"skip"`` leaves it out, ``"repair"`` mends its flags from the
            record's own borders, and leaves it out if errors remain.  All is counted.  What is wrong with the
            dataset's files or metadata as a whole is among the report's warnings, or stops the conversion where
            what is read could not be trusted; ``"repair"`` opens a path as :func:`rlds2buf.open_source` does with
            ``repair=True``.
        final_transition: ``"keep"`` where the last row's action and reward are real, not padding
            (:func:`rlds2buf.check.repair.keep_final_transition`).
        allow_nonfinite: accept NaN and infinity.
        add: returns to write as extra columns: any of ``"return_to_go"``, ``"discounted_return"``,
            ``"cost_to_go"`` and ``"discounted_cost"`` (:func:`rlds2buf.returns.annotate`).
        gamma: discount per step of the discounted ones.
        progress: show a bar on standard error, if that is a terminal.
        jobs: how many processes read a dataset that is given by its path.  What is written is the same.  On two cores
            one was the fastest for every dataset measured, since blocks are read faster than they are handed over
            (pictures and logs use all cores in one process); more may pay with many cores and much to decompress.
        overwrite: for a path: replace what is there, once the new one is whole.
        resume: for a path: continue an earlier conversion of the same source with the same
            options that was killed, and keep what there is if this one fails.
        sink_options: for a path: options of what is written there, as ``rlds2buf formats NAME`` lists them
            (``{"name": "hopper"}`` of an RLDS folder).
        normalize: field to ``"q01_q99"``, ``"mean_std"`` or ``"min_max"`` (:mod:`rlds2buf.numbers.normalizing`): it is
            written on that scale, and its statistics are kept in the output's provenance; ``{"action[:-1]":
            "q01_q99"}`` leaves the last dimension as it is.  The statistics are those of the episodes that will be
            written, which are read once more for them.
        normalize_stats: for `normalize`: statistics that were taken elsewhere, as :func:`rlds2buf.normalize` takes
            them, and no more reading.
        split, format, options: for :func:`rlds2buf.open_source`, if `source` is not a Source.

    Returns:
        ConvertReport.

    Raises:
        EpisodeError: an episode has errors, and `on_invalid` is ``"raise"``; or there are episodes, and
            none of them is left to write.
        SourceError: the source can't be read.
        SinkError, SnapshotError: the sink can't be written; SnapshotExists if it is there already.
        ValueError: an unknown option, or a path that is an address or has the suffix of files that are not written.

        Each of them has the ConvertReport so far as its attribute ``report``.  What was written is
        taken back: no folder is left that looks whole, a list is as it was, and a buffer that was
        empty is empty again (a buffer that was not keeps the episodes added).

    >>> import numpy as np
    >>> from rlds2buf import Episode
    >>> good = Episode(observation=np.arange(3), is_terminal=[False, False, True])
    >>> bad = Episode(observation=np.arange(3), is_terminal=[False, True, False])
    >>> episodes = []
    >>> report = convert([good, bad], episodes, on_invalid="skip")
    >>> report.read, report.episodes, dict(report.rejected)
    (2, 1, {'terminal-inside': 1})
    """
    _one_of("on_invalid", on_invalid, ON_INVALID)
    _one_of("final_transition", final_transition, FINAL_TRANSITION)
    _check_names(options)
    with contextlib.ExitStack() as stack:
        if not isinstance(source, Source):
            repair = on_invalid == "repair"
            source = stack.enter_context(open_source(source, split=split, format=format, repair=repair, **options))
        elif split is not None or format is not None or options:
            given = [*(["split"] if split is not None else []), *(["format"] if format is not None else []), *options]
            raise ValueError(f"{', '.join(given)}: for opening a path, not for an opened source")
        if source.is_endless:
            raise ValueError(f"{source.name}: a mixture without end (stop='never') can't be written")
        source = source.as_episodes()
        sink = open_sink(sink, to=to, overwrite=overwrite, resume=resume, **(sink_options or {}))
        choices = {
            "on_invalid": on_invalid,
            "final_transition": final_transition,
            "allow_nonfinite": allow_nonfinite,
            **({"add": [add] if isinstance(add, str) else list(add), "gamma": gamma} if add else {}),
        }
        if normalize:
            choices.update(_normalization(source, choices, normalize, normalize_stats, progress))
        elif normalize_stats is not None:
            raise ValueError("normalize_stats: say with normalize={'action': 'q01_q99'} which fields they are for")
        source = _for_sink(source, sink, choices)
        conversion = _Conversion(source, sink, choices, jobs_for(source, jobs))
        conversion.run(progress)
        return conversion.report


class _Conversion:
    """One run: the choices, where it stands, and what it does with each block of episodes."""

    def __init__(
        self, source: Source, sink: Sink, choices: Mapping[str, Any], jobs: int, label: str = "convert"
    ) -> None:
        self.jobs = jobs
        self.label = label
        self.source = source
        self.sink = sink
        self.choices = choices
        self.checker = Checker(source.spec, allow_nonfinite=choices["allow_nonfinite"], warnings=False)
        self.report = ConvertReport(source.name, sink.name)

    def run(self, progress: bool) -> None:
        started = time.perf_counter()
        try:
            self._findings = self._looked_at_files()
            spec, self._change = _changes(self.source.spec, self.choices)
            self.sink.expect(self.source.num_episodes, source_ids=self.source.source_ids)
            self.sink.open(spec, self._provenance())
            self.report.warnings = [*self.source.warnings(), *self._findings.warnings(), *self.sink.found]
            started = time.perf_counter()  # a sink loads its libraries when it is opened
            self._go_on()
            with contextlib.closing(self._blocks(progress)) as blocks:
                saved = time.monotonic()
                for item, left_out in gathered(blocks, BLOCK_ROWS, BLOCK_BYTES):
                    self._take(item, left_out)
                    if time.monotonic() - saved > CHECKPOINT_SECONDS:
                        self.sink.checkpoint(self.report.counts())
                        saved = time.monotonic()
            self.report.check()
            self._refuse_nothing()
            self.sink.flush()
            self.sink.commit()
            self.report.lost = dict(self.sink.lost())
            self.report.notes = [*self.sink.notes, *self._said_of_last_actions()]
        except BaseException as error:
            self.report.check()
            tell(error, report=self.report)
            self.sink.abort()
            raise
        finally:
            self.report.seconds = time.perf_counter() - started

    def _looked_at_files(self) -> Findings:
        """What the source finds in its files and metadata; an error that concerns no single episode ends it here."""
        findings = Findings(self.source.findings(quick=True))
        for issue in findings.of_dataset:
            if issue.severity == ERROR:
                raise issue.error()
        return findings

    def _said_of_last_actions(self) -> Iterator[str]:
        """How many were real and start no transition, where nothing was said about them."""
        lost = self.report.repaired["final-transition-lost"]
        if lost and self.choices["final_transition"] == "drop":
            yield (
                f"the last action of {lost:,} episodes is real, but what came of it was not recorded, so no transition "
                "starts there; final_transition='keep' (--final-transition keep) keeps those of terminal ends"
            )

    def _provenance(self) -> dict[str, Any]:
        facts = self.source.facts()
        return {
            **({"dataset": facts} if facts else {}),
            "source": self.source.name,
            "format": self.source.format,
            **({"fingerprint": self.source.fingerprint()} if self.sink.keeps_provenance else {}),
            "options": {**self.choices, **self.source.transformation},
            "rlds2buf": __version__,
        }

    def _blocks(self, progress: bool) -> Any:
        source = Tracked(self.source, self.label, enabled=progress, jobs=self.jobs)
        return source.read_batches(self.report.read, rows=BLOCK_ROWS, bytes=BLOCK_BYTES)

    def _go_on(self) -> None:
        counts = self.sink.resumed()
        if counts is not None:
            self.report.go_on_from(counts)

    def _take(self, item: EpisodeBatch | EpisodeError | None, left_out: list[FilteredOut]) -> None:
        try:
            if isinstance(item, EpisodeError):
                self._refuse(issue_of(item), item)
            elif item is not None:
                self._take_batch(item)
        except EpisodeError as error:
            number = error.episode
            self._leave_out([one for one in left_out if number is not None and (one.episode or 0) < number])
            raise
        self._leave_out(left_out)

    def _leave_out(self, filtered: list[FilteredOut]) -> None:
        for one in filtered:
            self.report.leave_out(issue_of(one).rule)

    def _take_batch(self, batch: EpisodeBatch) -> None:
        """Write what is right or can be mended, in runs, and refuse the episodes between them."""
        faults = _first_errors(self.checker.check_batch(batch))
        changes: dict[int, Counter[str]] = {}
        if faults and self.choices["on_invalid"] == "repair":
            batch, changes = repair_batch(batch, list(faults))
            suspects = list(faults)
            left = _first_errors(self.checker.check_batch(batch.take(suspects)))
            faults = {suspects[i]: fault for i, fault in left.items()}
        faults = _first_errors(self._findings.joined(batch, {i: [fault] for i, fault in faults.items()}))
        start = 0
        for position, fault in faults.items():
            self._write(batch, start, position, changes)
            self._refuse(fault)
            start = position + 1
        self._write(batch, start, len(batch), changes)

    def _write(self, batch: EpisodeBatch, start: int, stop: int, changes: Mapping[int, Counter[str]]) -> None:
        """Write some episodes of a batch; one that the sink refuses is left out, and the others follow."""
        most = stop - start
        while start < stop:
            part = finished = batch.take(slice(start, min(start + most, stop)))
            refusal: EpisodeError | None = None
            written = len(part)
            try:
                finished = self._finished(part)
                items = self.sink.write_batch(finished)
                most *= 2
            except EpisodeError as error:
                refusal = error
                written, items = error.written
                most = 1  # where one is refused, others will be: no writing of long runs again and again
            if written:
                self.report.accept(finished.take(slice(0, written)), items)
                self._count_changes(part.take(slice(0, written)), start, changes)
            start += written
            if refusal is not None:
                self._refuse(issue_of(refusal), refusal)
                start += 1

    def _finished(self, batch: EpisodeBatch) -> EpisodeBatch:
        """With the rows and columns added that were asked for, and on the scale that was."""
        if self.choices["final_transition"] == "keep":
            batch, _ = keep_final_transition_batch(batch)
        return self._change(batch)

    def _count_changes(self, batch: EpisodeBatch, start: int, changes: Mapping[int, Counter[str]]) -> None:
        """Of episodes that are written, from position `start` on."""
        for position in range(start, start + len(batch)) if changes else ():
            self.report.repaired.update(changes.get(position, {}))
        if self.choices["final_transition"] == "keep":
            found = keep_final_transition_batch(batch)[1]
            if self.sink.holds_last_actions:
                cut = batch.real_last_actions & ~batch.rows.is_terminal[batch.ends]
                found["final-transition-lost"] -= int(np.count_nonzero(cut))
            self.report.repaired.update(+found)
        elif not self.sink.holds_last_actions and (lost := int(np.count_nonzero(batch.real_last_actions))):
            self.report.repaired["final-transition-lost"] += lost

    def _refuse(self, issue: Issue, error: EpisodeError | None = None) -> None:
        if self.choices["on_invalid"] == "raise":
            error = error if error is not None else issue.error()
            surplus = issue.rule == "spec" and issue.message.startswith(NOT_IN_SPEC)
            advice = (error.advice, way_out(issue.rule, issue.path if surplus else None))
            error.advice = "; ".join(filter(None, advice))
            raise error
        self.report.reject(issue)

    def _refuse_nothing(self) -> None:
        """An output of no episodes, where there were some, would only look like one."""
        if self.report.episodes or not self.report.read:
            return
        rules = ", ".join(f"{rule} {count:,}" for rule, count in self.report.rejected.most_common())
        message = f"nothing was written: all {self.report.read:,} episodes were left out ({rules})"
        raise EpisodeError(message, source=self.report.source)


Change = Callable[[EpisodeBatch], EpisodeBatch]


def _changes(spec: StepSpec, choices: Mapping[str, Any]) -> tuple[StepSpec, Change]:
    """The spec of what is written, and what makes that of what is read."""
    spec, annotate = _annotation(spec, choices)
    if "normalize" not in choices:
        return spec, annotate
    statistics = Statistics.from_json(choices["normalize_statistics"])
    normalizing = Normalizing(spec, choices["normalize"], statistics)
    return normalizing.spec, lambda batch: normalizing.apply(annotate(batch))


def _annotation(spec: StepSpec, choices: Mapping[str, Any]) -> tuple[StepSpec, Change]:
    """The spec with the columns that were asked for, and what adds them."""
    if "add" not in choices:
        return spec, lambda batch: batch
    from rlds2buf.returns.annotate import annotate_batch, annotated_spec

    how = {"add": choices["add"], "gamma": choices["gamma"]}
    return annotated_spec(spec, add=how["add"]), lambda batch: annotate_batch(batch, **how)


def _normalization(
    source: Source, choices: Mapping[str, Any], wanted: Mapping[str, str], given: Any, progress: bool
) -> dict[str, Any]:
    """What is normalised and by which numbers, for the choices; these are taken first, unless they are given."""
    spec, _ = _annotation(source.spec, choices)
    names = list(fields_to_normalize(spec, wanted))
    if given is not None:
        return Normalizing(spec, wanted, as_statistics(given)).description
    with Spool() as spool:
        sink = MeasuringSink(spool, names, allow_nonfinite=choices["allow_nonfinite"])
        _Conversion(without_pictures(source), sink, choices, 1, "statistics").run(progress)
        return Normalizing(spec, wanted, sink.statistics(source)).description


def _first_errors(findings: Mapping[int, list[Issue]]) -> dict[int, Issue]:
    """Of the episodes that have errors, by position in their batch, ascending."""
    errors = ((i, next((issue for issue in issues if issue.severity == ERROR), None)) for i, issues in findings.items())
    return {i: issue for i, issue in errors if issue is not None}


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _for_sink(source: Source, sink: Sink, choices: Mapping[str, Any]) -> Source:
    """The source with its pictures, or its whole records, in the form that the sink would rather have."""
    lanes = {"encoded": sink.takes_encoded_images, "with_video_frames": sink.takes_video_frames}
    for lane in (name for name, is_wanted in lanes.items() if is_wanted):
        found: Source = LANES[lane](source)
        if found is not source and source.recipe is not None:
            found.recipe = (*source.recipe[:2], (*source.recipe[2], lane))
        source = found
    changes = {"add", "normalize"} & choices.keys()
    unchanged = choices["on_invalid"] != "repair" and choices["final_transition"] == "drop" and not changes
    offer = source.with_records() if unchanged and sink.takes_encoded_images else None
    if offer is not None and sink.adopt(offer[1]):
        offer[0].recipe = None
        return offer[0]
    return source


def _check_names(options: Mapping[str, Any]) -> None:
    """A misspelt option of :func:`convert` itself is no option of the source's."""
    own = [name for name, it in inspect.signature(convert).parameters.items() if it.kind is it.KEYWORD_ONLY]
    for name in options:
        near = difflib.get_close_matches(name, own, n=1, cutoff=0.8)
        if near:
            raise TypeError(f"convert() has no option {name!r}; did you mean {near[0]}?")
