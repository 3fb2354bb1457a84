"""rlds_pairs.json: what episodes become, and what is refused where; TF-Agents 0.19's own output beside it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from rlds2buf import Episode, convert, errors, spec_of, step_pairs, transitions, validate
from rlds2buf.core import nest
from tests.check.episodes import Listed
from tests.data import GOLDEN

TABLE = json.loads((GOLDEN / "rlds_pairs.json").read_text())
CASES = {case["name"]: case for case in TABLE["cases"]}
GOOD = [name for name, case in CASES.items() if "error" not in case["recommended"]]
BAD = [name for name, case in CASES.items() if "error" in case["recommended"]]

NAN = "NaN reward"
"""The one bad case with good flags: an option allows it."""


def column(value):
    if isinstance(value, dict):
        return {key: column(child) for key, child in value.items()}
    dtype = bool if np.asarray(value).dtype == bool else np.float32
    return np.array(value, dtype)


def episodes_of(case) -> list[Episode]:
    return [
        Episode(**{name: column(value) for name, value in fields.items()}, source=case["name"], index=i)
        for i, fields in enumerate(case["episodes"])
    ]


def test_the_table_is_the_one_these_tests_were_written_for():
    assert (len(GOOD), len(BAD)) == (7, 8)
    assert set(TABLE) == {"topic", "note", "cases", "spec_errors", "tuple_observation", "float_nan_note"}


@pytest.mark.parametrize("name", GOOD)
def test_good_episodes_are_valid_and_give_the_recommended_transitions(name):
    case = CASES[name]
    episodes = episodes_of(case)
    report = validate(Listed(episodes))
    assert report.ok, str(report)
    assert report.counts["one-step"] == sum(ep.num_steps == 1 for ep in episodes)
    rows = []
    for batch in map(transitions, episodes):
        for t in range(len(batch.reward)):
            rows.append(
                {
                    "observation": nest.map_structure(lambda c, t=t: c[t].tolist(), batch.observation),
                    "action": batch.action[t].tolist(),
                    "reward": float(batch.reward[t]),
                    "discount": float(batch.discount[t]),
                    "next_observation": nest.map_structure(lambda c, t=t: c[t].tolist(), batch.next_observation),
                    "terminated": bool(batch.terminated[t]),
                    "truncated": bool(batch.truncated[t]),
                }
            )
    recommended = case["recommended"]
    if "transitions" in recommended:
        assert rows == recommended["transitions"]
    else:  # the nested case lists the rows themselves
        assert [row["observation"] for row in rows] == recommended["observations"][:-1]
        assert [row["next_observation"] for row in rows] == recommended["observations"][1:]
    if recommended.get("report") == "1 episode with no transition":
        assert report.counts["one-step"] == 1 and rows == []
    if "dropped_last_reward" in recommended:
        (issue,) = [i for i in report.issues if i.rule == "final-reward"]
        assert f"{recommended['dropped_last_reward']:g}" in issue.message and issue.step == 2


@pytest.mark.parametrize("name", BAD)
def test_bad_episodes_are_refused_with_episode_and_step(name):
    case = CASES[name]
    episode, step, message = re.fullmatch(r"episode (\d+) step (\d+): (.*)", case["recommended"]["error"]).groups()
    message = message.removesuffix(" (option to allow)")
    report = validate(Listed(episodes_of(case)))
    assert not report.ok
    first = next(issue for issue in report.issues if issue.severity == "error")
    assert (first.episode, first.step) == (int(episode), int(step))
    assert first.message.startswith(message)
    with pytest.raises(errors.EpisodeError) as caught:
        convert(Listed(episodes_of(case)), [])
    error = caught.value
    assert (error.source, error.episode, error.step) == (name, int(episode), int(step))
    assert isinstance(error, errors.BoundaryError) == (name != NAN)


def test_the_option_allows_what_is_not_finite():
    source = Listed(episodes_of(CASES[NAN]))
    assert validate(source, allow_nonfinite=True).ok
    kept: list[Episode] = []
    assert convert(source, kept, allow_nonfinite=True).episodes == 1
    assert np.isnan(kept[0].reward[0])


def test_only_the_bad_episode_is_left_out():
    kept: list[Episode] = []
    report = convert(
        Listed(episodes_of(CASES["unfinished first-only episode then a good one"])), kept, on_invalid="skip"
    )
    assert (report.read, report.episodes, dict(report.rejected)) == (2, 1, {"last-missing": 1})
    assert kept[0].index == 1


@pytest.mark.parametrize("name", [*GOOD, NAN])
def test_step_pairs_with_the_discount_on_the_boundary_are_tf_agents_own(name):
    case = CASES[name]
    pairs = step_pairs(episodes_of(case), terminal_discount="boundary")
    assert len(pairs.reward) == len(case["peer"])
    for t, frame in enumerate(case["peer"]):
        assert pairs.step_type[t] == frame["step_type"]
        assert pairs.next_step_type[t] == frame["next_step_type"]
        reward = np.nan if frame["reward"] is None else frame["reward"]
        np.testing.assert_array_equal(pairs.reward[t], np.float32(reward))
        np.testing.assert_array_equal(pairs.discount[t], np.float32(frame["discount"]))
        np.testing.assert_array_equal(pairs.action[t], np.float32(frame["action"]))
        for (_, ours), (_, theirs) in zip(
            nest.flatten(pairs.observation), nest.flatten(frame["observation"]), strict=True
        ):
            # TF-Agents gives every leaf of a nested observation as the pair of both rows.
            current = theirs[0] if isinstance(case["episodes"][0]["observation"], dict) else theirs
            np.testing.assert_array_equal(ours[t], np.float32(current))


@pytest.mark.parametrize("mode", ["transition", "boundary"])
@pytest.mark.parametrize("name", GOOD)
def test_where_the_discount_of_a_terminal_episode_is_zero(name, mode):
    episodes = episodes_of(CASES[name])
    pairs = step_pairs(episodes, terminal_discount=mode)
    logged = np.concatenate([ep.discount for ep in episodes])
    terminal = np.concatenate([ep.is_terminal for ep in episodes])
    into = np.append(terminal[1:] & ~np.concatenate([ep.is_first for ep in episodes])[1:], False)
    expected = np.where(into if mode == "transition" else terminal, 0, logged)
    np.testing.assert_array_equal(pairs.discount, expected)


def test_tuple_observations_are_split_leaf_by_leaf():
    # TF-Agents makes the pair of the first component "current" and that of the second "next".
    episode = Episode(
        observation=(np.arange(3.0)[:, None], 10 + np.arange(3.0)[:, None]),
        action=np.zeros(3),
        reward=np.zeros(3),
        is_terminal=[False, False, True],
    )
    batch = transitions(episode)
    assert [leaf.ravel().tolist() for leaf in batch.observation] == [[0, 1], [10, 11]]
    assert [leaf.ravel().tolist() for leaf in batch.next_observation] == [[1, 2], [11, 12]]
    assert [leaf.ravel().tolist() for leaf in step_pairs(episode).observation] == [[0, 1, 2], [10, 11, 12]]


def test_a_float64_discount_is_taken_and_not_a_type_error():
    wide = Episode(observation=np.zeros(2), action=np.zeros(2), reward=np.zeros(2), discount=np.ones(2, np.float64))
    assert validate(Listed([wide])).ok
    assert step_pairs(wide).discount.dtype == np.float32
    assert transitions(wide).discount.dtype == np.float64


def test_a_source_with_a_spec_and_no_episodes_is_valid_and_empty():
    one = Episode(observation=np.zeros(2))
    report = validate(Listed([], spec_of(one)))
    assert (report.ok, report.episodes, report.steps) == (True, 0, 0)
    kept: list[Episode] = []
    assert convert(Listed([], spec_of(one)), kept).read == 0
    assert kept == []
