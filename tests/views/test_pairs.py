from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, errors, step_pairs
from rlds2buf.core import nest
from tests.reference import views as naive
from tests.views.compare import assert_rows, frozen
from tests.views.episodes import episodes

MODES = ("transition", "boundary")


@st.composite
def datasets(draw):
    """Episodes of one kind: pieces of one long column set, as a dataset has them."""
    whole = draw(episodes(max_rows=20))
    cuts = sorted(draw(st.sets(st.integers(1, whole.num_steps), max_size=5)) | {0, whole.num_steps})
    parts = []
    for start, stop in itertools.pairwise(cuts):
        first, last, terminal = (np.zeros(stop - start, bool) for _ in range(3))
        first[0] = last[-1] = True
        terminal[-1] = draw(st.booleans())
        parts.append(whole.rows(start, stop).replace(is_first=first, is_last=last, is_terminal=terminal))
    return parts


@settings(max_examples=150)
@given(datasets(), st.sampled_from(MODES))
def test_frames_are_those_of_the_flattened_rows(parts, mode):
    pairs = step_pairs([frozen(part) for part in parts], terminal_discount=mode)
    rows = naive.step_pairs([naive.steps_of(part) for part in parts], mode)
    for name in ("step_type", "next_step_type", "observation", "action", "reward"):
        assert_rows(getattr(pairs, name), [row[name] for row in rows])
    assert_rows(pairs.discount, [np.float32(row["discount"]) for row in rows])
    assert pairs.policy_info == ()
    assert (pairs.step_type.dtype, pairs.next_step_type.dtype, pairs.discount.dtype) == (np.int32, np.int32, np.float32)
    assert len(pairs.reward) == sum(part.num_steps for part in parts)


@given(episodes(ends=("terminated", "truncated")))
def test_one_episode_alone_is_the_list_of_it(episode):
    alone, listed = step_pairs(episode), step_pairs(iter([episode]))
    for (_, one), (_, other) in zip(nest.flatten(alone), nest.flatten(listed), strict=True):
        np.testing.assert_array_equal(one, other)


@given(datasets())
def test_a_learner_that_masks_boundary_frames_sees_the_transitions(parts):
    # Without the frames that start on a last row, what is left pairs with the row behind it.
    pairs = step_pairs(parts)
    inside = pairs.step_type != 2
    assert inside.sum() == sum(part.num_transitions for part in parts)
    ends = pairs.next_step_type[inside] == 2
    terminal = np.concatenate([np.append(part.is_terminal[1:], False) for part in parts])[inside]
    assert (pairs.discount[inside][terminal] == 0).all()
    assert ends.sum() == sum(part.num_steps > 1 for part in parts)


def test_what_can_not_be_paired():
    with pytest.raises(ValueError, match="at least one episode"):
        step_pairs([])
    with pytest.raises(ValueError, match="terminal_discount"):
        step_pairs(Episode(observation=np.zeros(2)), terminal_discount="both")
    with pytest.raises(errors.EpisodeError) as caught:
        step_pairs(Episode(observation=np.zeros(2), action=np.zeros(2)))
    assert caught.value.path == "reward"
