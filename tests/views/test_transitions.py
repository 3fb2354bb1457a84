from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, errors, transitions
from rlds2buf.core import nest
from tests.data import GOLDEN
from tests.reference import views as naive
from tests.views.compare import assert_rows, frozen
from tests.views.episodes import episodes

GAMMAS = st.sampled_from([0.0, 0.5, 0.97, 1.0])


def check(episode: Episode, n_step: int, gamma: float) -> None:
    batch = transitions(frozen(episode), n_step=n_step, gamma=gamma)
    rows = naive.transitions(naive.steps_of(episode), n_step, gamma)
    for name in ("observation", "action", "next_observation", "extras", "is_done", "steps"):
        assert_rows(getattr(batch, name), [row[name] for row in rows])
    close = {"rtol": 2e-6, "atol": 2e-6}
    for name in ("reward", "discount", "bootstrap_discount"):
        assert_rows(getattr(batch, name), [row[name] for row in rows], **close)
    assert batch.is_done.dtype == np.uint8
    assert batch.steps.dtype == np.int32
    assert batch.reward.dtype == episode.reward.dtype
    assert batch.bootstrap_discount.dtype == np.float32
    for (_, old), (_, new) in zip(nest.flatten(episode.observation), nest.flatten(batch.observation), strict=True):
        assert old.dtype == new.dtype


@settings(max_examples=200)
@given(episodes(), st.integers(1, 16), GAMMAS)
def test_every_horizon_is_the_one_summed_by_hand(episode, n_step, gamma):
    check(episode, n_step, gamma)


@given(episodes())
def test_one_step_transitions_are_exact_and_share_memory(episode):
    batch = transitions(episode)
    rows = naive.transitions(naive.steps_of(episode), 1, 1.0)
    np.testing.assert_array_equal(batch.reward, episode.reward[:-1])
    assert_rows(batch.discount, [np.asarray(row["discount"]).astype(batch.discount.dtype) for row in rows])
    if episode.num_transitions:
        for _, column in nest.flatten(batch.next_observation):
            assert not column.flags.owndata
        assert np.shares_memory(batch.reward, episode.reward)
    if episode.discount is not None:
        assert not np.shares_memory(batch.discount, episode.discount)


@given(episodes(ends=("terminated", "truncated")), GAMMAS)
def test_the_longest_horizon_from_the_first_row_is_the_return(episode, gamma):
    if episode.num_steps == 1 or episode.reward.ndim > 1:
        return
    batch = transitions(episode, n_step=episode.num_steps, gamma=gamma)
    expected = naive.value(naive.steps_of(episode), gamma, 10.0)
    np.testing.assert_allclose(batch.reward[0] + batch.bootstrap_discount[0] * 10.0, expected, rtol=1e-5, atol=1e-5)


@given(episodes(), st.integers(1, 16), GAMMAS)
def test_no_bootstrap_into_a_terminal_row_and_codes_only_at_the_end(episode, n_step, gamma):
    batch = transitions(episode, n_step=n_step, gamma=gamma)
    assert len(batch.reward) == episode.num_steps - 1
    reaches = np.arange(len(batch.reward)) + batch.steps == episode.num_steps - 1
    assert not batch.is_done[~reaches].any()
    code = {"terminated": 1, "truncated": 2, "open": 0}[episode.end]
    assert (batch.is_done[reaches] == code).all()
    assert (batch.discount[batch.terminated] == 0).all() and (batch.bootstrap_discount[batch.terminated] == 0).all()


def stream_episodes(reward, is_done):
    """The table's stream of transitions as episodes: one more row each, whose observation is the successor."""
    parts, start = [], 0
    for t, code in enumerate(is_done):
        if code or t == len(reward) - 1:
            rows = t - start + 2
            last, terminal = (np.zeros(rows, bool) for _ in range(2))
            last[-1], terminal[-1] = code != 0, code == 1
            first = np.zeros(rows, bool)
            first[0] = True
            episode = Episode(
                observation=np.arange(start, t + 2),
                action=np.zeros(rows),
                reward=np.array([*reward[start : t + 1], 99.0]),
                is_first=first,
                is_last=last,
                is_terminal=terminal,
            )
            parts.append((start, episode))
            start = t + 1
    return parts


TABLE = json.loads((GOLDEN / "nstep.json").read_text())


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: f"n{case['n']}-start{case['start']}")
def test_the_worked_examples_of_n_step_horizons(case):
    stream = TABLE["stream"]
    start, episode = [
        part for part in stream_episodes(stream["reward"], stream["is_done"]) if part[0] <= case["start"]
    ][-1]
    batch = transitions(episode, n_step=case["n"], gamma=stream["gamma"])
    t = case["start"] - start
    got = {
        "n": case["n"],
        "start": int(batch.observation[t]),
        "reward": float(batch.reward[t]),
        "steps": int(batch.steps[t]),
        "last": int(batch.next_observation[t]) - 1,
        "is_done": int(batch.is_done[t]),
        "bootstrap_discount": float(batch.bootstrap_discount[t]),
    }
    assert got == case


@pytest.mark.parametrize("case", TABLE["targets_with_V_of_next_10"], ids=lambda case: f"start{case['start']}")
def test_the_worked_targets(case):
    stream = TABLE["stream"]
    start, episode = [
        part for part in stream_episodes(stream["reward"], stream["is_done"]) if part[0] <= case["start"]
    ][-1]
    batch = transitions(episode, n_step=case["n"], gamma=stream["gamma"])
    t = case["start"] - start
    assert batch.reward[t] + batch.bootstrap_discount[t] * 10.0 == case["target"]


def test_a_truncated_end_does_not_spill_where_tf_agents_does():
    # tensorflow/agents issue 939: frames [1, 1, 2, 0] of a cut episode, n = 3, gamma 0.5.
    episode = Episode(
        observation=np.arange(3), action=np.zeros(3), reward=np.array([1.0, 2.0, 4.0]), discount=np.ones(3)
    )
    batch = transitions(episode, n_step=3, gamma=0.5)
    assert (batch.reward[0], batch.discount[0], batch.next_observation[0]) == (2.0, 0.5, 2)


def test_integer_rewards_are_summed_as_floats():
    episode = Episode(observation=np.arange(4), action=np.zeros(4), reward=np.array([1, 1, 1, 0]))
    assert transitions(episode).reward.dtype == np.int64
    batch = transitions(episode, n_step=3, gamma=0.5)
    assert batch.reward.tolist() == [1.75, 1.5, 1.0]


def test_half_precision_is_summed_in_single():
    """Infinite in half precision, with a warning of numpy's."""
    episode = Episode(observation=np.arange(4), action=np.zeros(4), reward=np.full(4, 60_000, np.float16))
    assert transitions(episode).reward.dtype == np.float16
    batch = transitions(episode, n_step=3)
    assert batch.reward.dtype == np.float32 and batch.reward.tolist() == [180_000.0, 120_000.0, 60_000.0]
    assert transitions(episode.rows(0, 2), n_step=3).reward.dtype == np.float32  # of one step too


@pytest.mark.parametrize("options", [{"n_step": 0}, {"n_step": -1}, {"gamma": 1.5}, {"gamma": -0.1}, {"gamma": np.nan}])
def test_horizons_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        transitions(Episode(observation=np.zeros(2), action=np.zeros(2), reward=np.zeros(2)), **options)


@pytest.mark.parametrize("name, n_step", [("observation", 1), ("observation", 3), ("reward", 3)])
def test_a_field_that_the_data_lack_is_named(name, n_step):
    fields = {key: np.zeros(3) for key in ("observation", "action", "reward") if key != name}
    with pytest.raises(errors.EpisodeError) as caught:
        transitions(Episode(**fields, source="somewhere", index=3), n_step=n_step)
    assert (caught.value.path, caught.value.episode, caught.value.source) == (name, 3, "somewhere")


def test_data_without_actions_and_rewards_still_have_transitions():
    batch = transitions(Episode(observation=np.arange(3)))
    assert batch.action is None and batch.reward is None
    assert batch.next_observation.tolist() == [1, 2]


def test_nested_rewards_go_leaf_by_leaf():
    batch = transitions(Episode(observation=np.arange(3), reward={"task": np.arange(3.0), "cost": np.ones(3)}))
    assert {name: leaf.tolist() for name, leaf in batch.reward.items()} == {"task": [0, 1], "cost": [1, 1]}


@pytest.mark.parametrize(
    "fields, n_step, path",
    [
        ({"discount": {"a": np.ones(3)}}, 1, "discount"),
        ({"discount": np.ones((3, 1))}, 2, "discount"),
        ({"reward": {"a": np.ones(3)}}, 2, "reward"),
    ],
)
def test_rewards_and_discounts_that_can_not_be_summed_are_named(fields, n_step, path):
    episode = Episode(**{"observation": np.zeros(3), "reward": np.zeros(3), **fields}, index=1)
    with pytest.raises(errors.EpisodeError) as caught:
        transitions(episode, n_step=n_step)
    assert (caught.value.path, caught.value.episode) == (path, 1)
