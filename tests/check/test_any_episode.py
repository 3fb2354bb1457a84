"""Whatever an episode holds, the checker answers; what it answers can be printed, stored and raised."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlds2buf import Episode, errors
from rlds2buf.check.repair import repair
from rlds2buf.check.report import Checker, ValidationReport
from rlds2buf.check.rules import RULES

DTYPES = st.sampled_from(
    ["bool", "int8", "uint16", "int64", "float16", "float32", ">f4", "float64", "complex64", "S3", "U2", "M8[s]"]
)


@st.composite
def columns(draw, rows):
    shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=2)))
    if draw(st.integers(0, 9)) == 0:
        return np.full(shape, b"text", object)
    return draw(hnp.arrays(draw(DTYPES), shape))


@st.composite
def odd_episodes(draw):
    rows = draw(st.integers(1, 4) | st.integers(18, 26))
    leaf = columns(rows)
    nested = leaf | st.dictionaries(st.sampled_from("abc"), leaf, max_size=2) | st.tuples(leaf, leaf)
    flag = st.none() | hnp.arrays(np.bool_, rows)
    fields = {name: draw(st.none() | nested) for name in ("observation", "action")}
    fields.update({name: draw(st.none() | leaf) for name in ("reward", "discount")})
    fields.update({name: draw(flag) for name in ("is_first", "is_last", "is_terminal")})
    fields["extras"] = {"x": draw(leaf)}
    fields["metadata"] = draw(st.sampled_from([{}, {"placeholder_final_row": True}, {"placeholder_final_row": False}]))
    return Episode(**fields, source="odd", index=draw(st.none() | st.integers(0, 3)))


@settings(max_examples=200, deadline=None)
@given(st.lists(odd_episodes(), min_size=1, max_size=3), st.booleans())
def test_the_checker_answers_for_any_episodes(episodes, allow_nonfinite):
    checker = Checker(None, allow_nonfinite=allow_nonfinite)
    report = ValidationReport("odd")
    for episode in episodes:
        issues = checker.check(episode)
        for issue in issues:
            report.add(issue)
            assert issue.severity == RULES[issue.rule].severity
            assert issue.step is None or 0 <= issue.step < episode.num_steps
            assert isinstance(issue.error(), errors.EpisodeError)
        places = [(issue.rule, issue.path) for issue in issues]
        assert len(set(places)) == len(places)
        mended, _ = repair(episode, final_transition="keep")
        assert mended.num_steps in (episode.num_steps, episode.num_steps + 1)
    json.dumps(report.to_json())
    assert str(report)
