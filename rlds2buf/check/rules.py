"""The rules that an episode can break, and what :func:`~rlds2buf.check.repair.repair` does about each.

A finding names one rule, and at most one finding per rule, episode and field is made: it names the
first offending step and says how many there are.  *Errors* make the episode unfit (``convert``
raises, skips or repairs); *warnings* are facts that a learner's author should know; *filters* find
nothing wrong, the episode is left out because that was asked for.  The rules down to ``filter-part`` but
for ``spec`` are met where an episode is built or written, not by the checker; the last ones concern the dataset's
files and metadata, and are found by its source (:meth:`~rlds2buf.io.source.Source.findings`).

======================  ========  ==============================================  ===========================
rule                    severity  meaning                                         repair
======================  ========  ==============================================  ===========================
unreadable              error     the episode could not be built                  no
ragged-columns          error     its columns differ in length                    no
empty-episode           error     it has no steps                                 no
spec                    error     a field, shape or dtype differs from the spec   no
missing-field           error     what is made of it needs a field that is not    no
                                  there, or not of that form
longer-than-capacity    error     it does not fit into the buffer                 no
no-episode              error     a single transition where episodes are counted  no
open-episode            error     single transitions that do not end, where an    no
                                  item is a whole episode
repeated-step           error     in lockstep: an agent's step that is there      no
                                  already
cast                    error     a value does not fit into the type that its     no
                                  field was to be cast to
filter-min-return       filter    the return is below ``min_return``              no
filter-max-return       filter    the return is above ``max_return``              no
filter-min-length       filter    fewer rows than ``min_length``                  no
filter-max-length       filter    more rows than ``max_length``                   no
filter-where            filter    ``where`` does not hold                         no
filter-sample           filter    it is not in the sample                         no
filter-part             filter    it is in the other part of the split            no
first-missing           error     it does not start with is_first                 sets the first row
first-inside            error     is_first on a later row                         clears it, unless the row
                                                                                  before it is_last
last-missing            error     it does not end in is_last                      sets the last row
last-inside             error     is_last before the last row                     clears it, unless the row
                                                                                  behind it is_first
terminal-inside         error     is_terminal on a row that is not is_last        clears all but the last row's
nonfinite               error     NaN or infinity                                 no
discount-range          error     a discount outside [0, 1]                       no
one-step                warning   one row, so no transition                       -
no-is-terminal          warning   the data have no is_terminal: every end is      -
                                  taken as a truncation
terminal-discount       warning   the discount of the transition into the         -
                                  terminal row is not 0: whoever reads the raw
                                  column bootstraps through it (views give 0)
final-reward            warning   the last row has a reward, which starts no      ``final_transition="keep"``
                                  transition and never reaches a learner          adds a row behind it
padding-values          warning   NaN, infinity or a discount outside [0, 1] in   -
                                  the last row's action, reward or discount,
                                  which no transition uses
out-of-range            warning   a value outside the limits or the finite set    -
                                  that the spec states for its field
same-final-observation  warning   an episode ends in exactly the observation      -
                                  the previous one ends in
zero-final-observation  warning   the last observation is all zeros, and so is    -
                                  the previous episode's
jump                    warning   between two rows the observation changes as     -
                                  at a reset
no-reset                warning   it starts within an ordinary step of where      -
                                  the previous, truncated one ended
video-frames            error     a video has fewer frames than its episodes have   leaves out what is not proven
                                  rows
video-overlap           error     two episodes claim the same frames of a video     counts the frames, where they
                                                                                    are as many as the rows
video-timestamps        error     no frame of the video is at a row's time          -
absent-files            warning   files that the metadata list are not there,     -
                                  and nothing that is read needs them
unused-files            warning   files that look like part of the dataset, and   -
                                  that the metadata do not list
unused-frames           warning   frames of a video that belong to no row           -
wrong-counts            warning   a count in the metadata is not that of the data   -
wrong-index             warning   where the metadata say that an episode's rows     -
                                  or frames are is not where they are read
wrong-info              warning   a video is not what the metadata say: codec,      -
                                  size, rate
wrong-stats             warning   statistics that are not those of the rows         -
wrong-tasks             warning   tasks out of order, or other ones than the rows   -
                                  have
uneven-timestamps       warning   rows that are not at their number / fps           -
======================  ========  ==============================================  ===========================
"""

from __future__ import annotations

import dataclasses
from typing import Final

from rlds2buf.core.issue import ERROR, FILTER, WARNING
from rlds2buf.errors import BoundaryError, EmptyEpisode, EpisodeError, FilteredOut, SpecMismatch

__all__ = ["ERROR", "FILTER", "NOT_IN_SPEC", "RULES", "WARNING", "Fault", "Rule", "way_out"]


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule: its id, how bad it is, the error class that stands for it, and whether repair mends it.

    Of files are those that a source finds broken in its files and metadata, not the checker in an episode.
    """

    id: str
    severity: str
    error: type[EpisodeError] = EpisodeError
    repairable: bool = False
    of_files: bool = False


@dataclasses.dataclass(frozen=True)
class Fault:
    """One broken rule inside one episode.

    Attributes:
        rule: a key of `RULES`.
        message: what is wrong, as a sentence without its place.
        step: the first offending row, or None where the whole episode is meant.
        path: the field, for example ``"observation/state"``, or None.
        count: how many rows break the rule.
    """

    rule: str
    message: str
    step: int | None = None
    path: str | None = None
    count: int = 1


RULES: Final[dict[str, Rule]] = {
    rule.id: rule
    for rule in (
        Rule("unreadable", ERROR),
        Rule("ragged-columns", ERROR, SpecMismatch),
        Rule("empty-episode", ERROR, EmptyEpisode),
        Rule("spec", ERROR, SpecMismatch),
        Rule("missing-field", ERROR),
        Rule("longer-than-capacity", ERROR),
        Rule("no-episode", ERROR),
        Rule("open-episode", ERROR),
        Rule("repeated-step", ERROR),
        Rule("cast", ERROR),
        Rule("filter-min-return", FILTER, FilteredOut),
        Rule("filter-max-return", FILTER, FilteredOut),
        Rule("filter-min-length", FILTER, FilteredOut),
        Rule("filter-max-length", FILTER, FilteredOut),
        Rule("filter-where", FILTER, FilteredOut),
        Rule("filter-sample", FILTER, FilteredOut),
        Rule("filter-part", FILTER, FilteredOut),
        Rule("first-missing", ERROR, BoundaryError, repairable=True),
        Rule("first-inside", ERROR, BoundaryError, repairable=True),
        Rule("last-missing", ERROR, BoundaryError, repairable=True),
        Rule("last-inside", ERROR, BoundaryError, repairable=True),
        Rule("terminal-inside", ERROR, BoundaryError, repairable=True),
        Rule("nonfinite", ERROR),
        Rule("discount-range", ERROR),
        Rule("one-step", WARNING),
        Rule("no-is-terminal", WARNING),
        Rule("terminal-discount", WARNING),
        Rule("final-reward", WARNING),
        Rule("padding-values", WARNING),
        Rule("out-of-range", WARNING, SpecMismatch),
        Rule("same-final-observation", WARNING),
        Rule("zero-final-observation", WARNING),
        Rule("jump", WARNING),
        Rule("no-reset", WARNING),
        Rule("video-frames", ERROR, of_files=True),
        Rule("video-overlap", ERROR, of_files=True),
        Rule("video-timestamps", ERROR, of_files=True),
        Rule("absent-files", WARNING, of_files=True),
        Rule("unused-files", WARNING, of_files=True),
        Rule("unused-frames", WARNING, of_files=True),
        Rule("wrong-counts", WARNING, of_files=True),
        Rule("wrong-index", WARNING, of_files=True),
        Rule("wrong-info", WARNING, of_files=True),
        Rule("wrong-stats", WARNING, of_files=True),
        Rule("wrong-tasks", WARNING, of_files=True),
        Rule("uneven-timestamps", WARNING, of_files=True),
    )
}
"""Every rule by id, errors first, in the order in which they are looked for; those of files at the end."""


NOT_IN_SPEC = "the field is not in the spec"
"""What is said of a field that whoever takes the episodes does not know."""


def way_out(rule: str, field: str | None = None) -> str:
    """What somebody can do whose conversion stops at a broken rule; arguments as :func:`rlds2buf.convert` has them.

    Args:
        rule: its id.
        field: one that is not in the spec, if that is it: every episode has it, so skipping helps nobody.

    >>> way_out("spec")
    "on_invalid='skip' leaves such episodes out"
    >>> way_out("spec", "discount")
    "drop=['discount'] leaves the field out"
    """
    if field is not None:
        return f"drop=[{field!r}] leaves the field out"
    skip = "on_invalid='skip' leaves such episodes out"
    if rule == "nonfinite":
        return f"allow_nonfinite=True accepts such values, {skip}"
    if rule in RULES and RULES[rule].repairable:
        return f"on_invalid='repair' mends such flags, {skip}"
    return skip
