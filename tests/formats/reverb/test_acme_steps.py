from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, EpisodeError, spec_of
from rlds2buf.core import nest
from rlds2buf.formats.reverb.patterns.acme_steps import (
    END_OF_EPISODE,
    AcmeEpisodePattern,
    AcmeSequencePattern,
    StepItem,
)
from rlds2buf.formats.reverb.patterns.make import make_pattern
from tests.formats.reverb.numbered import numbered
from tests.reference.acme_adders import acme_episodes, acme_sequences


def steps_of(pattern, lengths):
    """Per episode, its items as lists of (episode, row); zeros are row -1."""
    laid = pattern.lay(EpisodeBatch.of([numbered(number, rows) for number, rows in enumerate(lengths)]))
    observed = laid.tensors[0]
    assert all(0 <= row < rows for row, rows in zip(laid.rows, np.repeat(lengths, laid.counts), strict=True))
    span = laid.spans[0]
    assert (np.diff(span.starts) >= 0).all() and (np.diff(span.stops) >= 0).all()
    items = [
        [(number, -1) if value == 0 else divmod(int(value) - 1, 100) for value in observed[start:stop]]
        for number, start, stop in zip(laid.of, *span, strict=True)
    ]
    edges = laid.first_items()
    for i, count in enumerate(laid.counts.tolist()):
        assert len(set(laid.numbers[edges[i] : edges[i + 1]].tolist())) == count
    return [items[edges[i] : edges[i + 1]] for i in range(len(lengths))]


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    length=st.integers(1, 6),
    data=st.data(),
    end=st.sampled_from(END_OF_EPISODE),
)
def test_sequences_are_acmes(lengths, length, data, end):
    period = data.draw(st.integers(1, length))
    assert steps_of(AcmeSequencePattern(length, period, end=end), lengths) == acme_sequences(
        lengths, length, period, end
    )


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6), length=st.integers(1, 3), over=st.integers(1, 4))
def test_of_far_apart_sequences_those_of_zeros_only_are_left_out(lengths, length, over):
    theirs = acme_sequences(lengths, length, length + over, "zero_pad")
    some = [[item for item in items if any(row >= 0 for _, row in item)] for items in theirs]
    assert steps_of(AcmeSequencePattern(length, length + over), lengths) == some


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_episodes_are_acmes(lengths):
    assert steps_of(AcmeEpisodePattern(), lengths) == acme_episodes(lengths)


def test_a_step_s_values():
    ep = numbered(0, 4, "terminated").replace(
        action=np.arange(1, 5), reward=np.arange(1.0, 5), extras={"note": np.array([b"a", b"b", b"c", b"d"], object)}
    )
    item = AcmeEpisodePattern(("note",)).lay(ep).items()
    assert type(item) is StepItem
    assert item.observation.tolist() == [[1, 2, 3, 4]]
    assert item.action.tolist() == [[1, 2, 3, 0]] and item.reward.tolist() == [[1, 2, 3, 0]]
    assert item.discount.tolist() == [[1, 1, 0, 0]] and item.discount.dtype == np.float32
    assert item.start_of_episode.tolist() == [[True, False, False, False]]
    assert item.extras["note"].tolist() == [[b"a", b"b", b"c", b""]]
    assert ep.action[-1] == 4  # not written over


def test_a_time_out_keeps_its_discount():
    item = AcmeEpisodePattern().lay(numbered(0, 3)).items()
    assert item.discount.tolist() == [[1, 1, 0]]


PATTERNS = [*(AcmeSequencePattern(3, 2, end=end, extras=("note",)) for end in END_OF_EPISODE), AcmeEpisodePattern()]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_signature_columns_and_items_agree_with_the_tensors(pattern):
    given = [numbered(i, n) for i, n in enumerate([6, 1, 2, 9])]
    for ep in (ep.replace(extras={"note": np.arange(float(ep.num_steps))}) for ep in given):
        fields = [field for _, field in nest.flatten(tuple(pattern.signature(spec_of(ep))))]
        laid = pattern.lay(ep)
        assert len(fields) == len(pattern.columns(spec_of(ep))) == len(laid.tensors)
        for tensor, field, items in zip(laid.tensors, fields, nest.flatten(tuple(laid.items())), strict=True):
            assert len(items[1]) == len(laid.numbers)
            for start, stop, item in zip(*laid.spans[0], items[1], strict=True):
                assert np.array_equal(tensor[start:stop], item)
                assert field.accepts(tensor[start:stop].shape, tensor.dtype)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(kind="acme-sequence", sequence_length=0), "sequence_length must be at least 1"),
        (dict(kind="acme-sequence", stride=0), "stride must be at least 1"),
        (dict(kind="acme-sequence", end_of_episode="continue"), "end_of_episode must be one of zero_pad"),
    ],
)
def test_arguments_out_of_range(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_pattern(**arguments)


def test_an_extra_field_that_is_not_there():
    pattern = AcmeEpisodePattern(("x",))
    with pytest.raises(ValueError, match="no extra field 'x'"):
        pattern.signature(spec_of(numbered(0, 3)))
    with pytest.raises(EpisodeError, match="extras/x"):
        pattern.lay(numbered(0, 3))


def test_an_episode_without_actions_is_named():
    with pytest.raises(EpisodeError, match="action"):
        AcmeEpisodePattern().lay(Episode(observation=np.zeros(3), reward=np.zeros(3), index=7))
