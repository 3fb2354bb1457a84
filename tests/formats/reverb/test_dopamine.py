from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, spec_of
from rlds2buf.core import nest
from rlds2buf.formats.reverb.patterns.dopamine import DopaminePattern, dopamine_table
from rlds2buf.formats.reverb.patterns.make import make_pattern
from tests.formats.reverb.numbered import numbered
from tests.reference.dopamine import replay_elements


def pictures(number, rows, end):
    rng = np.random.default_rng(number)
    return numbered(number, rows, end).replace(
        observation=rng.integers(1, 255, (rows, 2, 3)).astype(np.uint8),
        action=rng.integers(0, 4, rows),
        reward=rng.standard_normal(rows),
    )


@settings(deadline=None)
@given(
    kinds=st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["terminated", "truncated"])), min_size=1, max_size=5),
    stack=st.integers(1, 4),
    n_step=st.integers(1, 4),
    gamma=st.sampled_from([1.0, 0.5]),
)
def test_items_are_the_naive_ones(kinds, stack, n_step, gamma):
    given = [pictures(i, *kind) for i, kind in enumerate(kinds)]
    pattern = DopaminePattern(stack=stack, n_step=n_step, gamma=gamma)
    laid = pattern.lay(EpisodeBatch.of(given))
    columns = pattern.columns(spec_of(given[0]))
    found = []
    for i in range(len(laid.numbers)):
        item = []
        for column in columns:
            rows = laid.tensors[column.tensor][laid.spans[column.span].starts[i] : laid.spans[column.span].stops[i]]
            item.append(rows[0] if column.squeeze else rows)
        found.append(item)
    expected = []
    for ep, (_, end) in zip(given, kinds, strict=True):
        how = dict(terminated=end == "terminated", stack=stack, n_step=n_step, gamma=gamma)
        expected += replay_elements(list(ep.observation), ep.reward, **how)
    assert len(found) == len(expected) == laid.counts.sum()
    for (state, _, reward, following, terminal, last), want in zip(found, expected, strict=True):
        front = want[0] if stack > 1 else want[0][0]
        behind = want[2] if stack > 1 else want[2][0]
        np.testing.assert_array_equal(state, front)
        np.testing.assert_array_equal(following, behind)
        np.testing.assert_allclose(reward, want[1], atol=1e-6)
        assert (terminal, last) == want[3:]


@pytest.mark.parametrize("stack", [1, 3])
def test_signature_columns_and_items_agree_with_the_tensors(stack):
    ep = pictures(0, 7, "terminated").replace(action={"a": np.zeros((7, 2), np.float32), "b": np.arange(7)})
    pattern = DopaminePattern(stack=stack, n_step=2, gamma=0.9)
    fields = [field for _, field in nest.flatten(tuple(pattern.signature(spec_of(ep))))]
    columns, laid = pattern.columns(spec_of(ep)), pattern.lay(ep)
    whole = [leaf for _, leaf in nest.flatten(tuple(laid.items()))]
    assert len(fields) == len(columns) == len(whole)
    for field, column, items in zip(fields, columns, whole, strict=True):
        span = laid.spans[column.span]
        assert len(items) == 6
        for start, stop, item in zip(*span, items, strict=True):
            rows = laid.tensors[column.tensor][start:stop]
            value = rows[0] if column.squeeze else rows
            assert np.array_equal(value, item) and field.accepts(np.shape(value), rows.dtype)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="stack must be at least 1"):
        make_pattern("dopamine", stack=0)
    ep = Episode(observation=np.zeros(3), reward=np.zeros(3))
    with pytest.raises(ValueError, match="have no action"):
        DopaminePattern().signature(spec_of(ep))


def test_tables_sample_as_dopamine_does():
    table = dopamine_table(prioritized=True, min_replay_history=20_000, max_times_sampled=3)
    assert (table.sampler, table.remover, table.max_size) == ("prioritized", "fifo", 1_000_000)
    assert (table.limiter[-1], table.priority_exponent, table.max_times_sampled) == (20_000, 1.0, 3)
