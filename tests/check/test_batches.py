"""Whole batches are checked as their episodes one after the other are: screened at once, explained one by one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlds2buf import Episode, FieldSpec, StepSpec, open_source, spec_of
from rlds2buf.check import continuity, report
from rlds2buf.check.continuity import ContinuityCheck
from rlds2buf.check.report import Checker, Issue
from rlds2buf.check.rules import ERROR, RULES
from rlds2buf.core.episode_batch import EpisodeBatch, FactColumns
from tests.check.episodes import flags, good
from tests.check.test_any_episode import DTYPES
from tests.made import BOTH

MARKED = {"placeholder_final_row": True}


def one_by_one(episodes: Sequence[Episode], spec: StepSpec | None = None, **options: Any) -> list[list[Issue]]:
    checker = Checker(spec, **options)
    return [checker.check(episode) for episode in episodes]


def in_batches(
    batches: Sequence[EpisodeBatch | Episode], spec: StepSpec | None = None, **options: Any
) -> list[list[Issue]]:
    """What is found in batches, and in single episodes between them, episode by episode."""
    checker = Checker(spec, **options)
    found: list[list[Issue]] = []
    for item in batches:
        if isinstance(item, Episode):
            found.append(checker.check(item))
            continue
        issues = checker.check_batch(item)
        assert list(issues) == sorted(issues) and all(issues.values())
        found += [issues.get(i, []) for i in range(len(item))]
    return found


def cut(episodes: Sequence[Episode], borders: Sequence[int], single: bool = False) -> list[EpisodeBatch | Episode]:
    """Episodes of one layout in batches that end at the borders; one alone is left as it is if `single`."""
    edges = sorted({0, len(episodes), *(border % len(episodes) for border in borders)})
    parts = [list(episodes[a:b]) for a, b in itertools.pairwise(edges)]
    return [part[0] if single and len(part) == 1 else EpisodeBatch.of(part) for part in parts]


def agree(episodes: Sequence[Episode], borders: Sequence[int] = (), single: bool = False, **options: Any) -> list:
    """Assert that batches and single episodes have the same findings, and errors alone likewise; gives them."""
    expected = one_by_one(episodes, **options)
    assert in_batches(cut(episodes, borders, single), **options) == expected
    errors = [[issue for issue in issues if issue.severity == ERROR] for issues in expected]
    assert in_batches(cut(episodes, borders, single), warnings=False, **options) == errors
    assert one_by_one(episodes, warnings=False, **options) == errors
    return expected


def test_a_batch_has_the_findings_of_its_episodes():
    reward = np.zeros(25, np.float32)
    reward[3] = np.nan
    episodes = [good(seed=1), good(25, seed=2, reward=reward), good(1, seed=3), good(seed=4)]
    found = Checker(None).check_batch(EpisodeBatch.of(episodes))
    assert {i: [issue.rule for issue in issues] for i, issues in found.items()} == {1: ["nonfinite"], 2: ["one-step"]}
    agree(episodes)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_every_flag_pattern_up_to_five_rows(length):
    patterns = np.array(list(itertools.product([False, True], repeat=3 * length))).reshape(-1, 3, length)
    count = len(patterns)
    first, last, terminal = patterns.transpose(1, 0, 2).reshape(3, -1)
    rows = Episode(observation=np.zeros(first.size, np.int8), is_first=first, is_last=last, is_terminal=terminal)
    batch = EpisodeBatch(rows, np.arange(count) * length, index=np.arange(count))
    expected = one_by_one(list(batch))
    assert in_batches([batch]) == expected
    assert sum(not issues for issues in expected) == (0 if length == 1 else 2)
    accepted = [i for i, issues in enumerate(expected) if all(issue.severity != ERROR for issue in issues)]
    assert len(accepted) == 2, "the two good patterns, and no broken episode, pass"


@settings(max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 10**9), st.sampled_from([0.0, 0.02, 0.5]))
def test_longer_flag_patterns(lengths, seed, share):
    rng = np.random.default_rng(seed)
    episodes = []
    for rows in lengths:
        columns = flags(rows, "terminated" if rng.integers(2) else "truncated")
        episodes.append(
            Episode(
                observation=np.zeros(rows, np.int8),
                **{name: column ^ (rng.random(rows) < share) for name, column in columns.items()},
            )
        )
    agree(episodes, rng.integers(0, 9, 2).tolist(), single=True)


# What may be wrong with an episode: each takes a generator, its columns and the last episode's, and changes them.
def _nan(rng, ep, _):
    column = ep[rng.choice(["observation", "action", "reward", "discount"])]
    column.reshape(-1)[rng.integers(column.size)] = rng.choice([np.nan, np.inf, -np.inf])


def _nan_padding(rng, ep, _):
    ep[rng.choice(["action", "reward", "discount"])][-1] = rng.choice([np.nan, np.inf])


def _discount(rng, ep, _):
    ep["discount"][rng.integers(len(ep["discount"]))] = rng.choice([-0.5, 1.5, 0.5])


def _discount_padding(rng, ep, _):
    ep["discount"][-1] = 7


def _kept_discount(rng, ep, _):
    ep["discount"][-2:] = 1


def _final_reward(rng, ep, _):
    ep["reward"][-1] = 3


def _out_of_limits(rng, ep, _):
    column = ep[rng.choice(["observation", "action"])]
    column.reshape(-1)[rng.integers(column.size)] = rng.choice([-1e6, 1e6])


def _out_of_values(rng, ep, _):
    ep["extras"]["kind"][rng.integers(len(ep["reward"]))] = 9


def _flag(rng, ep, _):
    column = ep[rng.choice(["is_first", "is_last", "is_terminal"])]
    at = rng.choice([0, -1, rng.integers(len(column))])
    column[at] = ~column[at]


def _jump(rng, ep, _):
    rows = ep["observation"]
    at = rng.integers(len(rows))
    rows[at:] += rows[0] - rows[at] + rng.normal(size=rows.shape[1]).astype(rows.dtype) * 0.1


def _crash(rng, ep, _):
    ep["observation"][rng.integers(len(ep["reward"])) :] += 60


def _flip(rng, ep, _):
    ep["observation"][rng.integers(len(ep["reward"])) :, 0] += 1e4


def _zeros(rng, ep, _):
    ep["observation"][-1] = 0


def _all_zeros(rng, ep, _):
    ep["observation"][:] = 0


def _still(rng, ep, _):
    ep["observation"][:, rng.integers(3) :] = rng.integers(3)


def _huge(rng, ep, _):
    rows = ep["observation"]
    rows[rng.integers(len(rows))] *= np.finfo(rows.dtype).max / np.float32(rng.choice([1e3, 1e6]))


def _tiny(rng, ep, _):
    ep["observation"][:, rng.integers(2) :] *= np.finfo(ep["observation"].dtype).tiny / 100


def _same_end(rng, ep, before):
    if before is not None:
        ep["observation"][-1] = before["observation"][-1]


def _goes_on(rng, ep, before):
    if before is not None:
        ep["observation"] += before["observation"][-1] - ep["observation"][0] + rng.normal() * 0.5


def _marked(rng, ep, _):
    ep["metadata"] = dict(MARKED)


def _placeholder(rng, ep, _):
    ep["metadata"] = dict(MARKED)
    ep["observation"][-1] = 0


DAMAGES: list[Callable] = [
    _nan,
    _nan_padding,
    _discount,
    _discount_padding,
    _kept_discount,
    _final_reward,
    _out_of_limits,
    _out_of_values,
    _flag,
    _jump,
    _crash,
    _flip,
    _zeros,
    _all_zeros,
    _still,
    _huge,
    _tiny,
    _same_end,
    _goes_on,
    _marked,
    _placeholder,
]


def columns_of(rng: np.random.Generator, rows: int, dims: int, dtype: str) -> dict[str, Any]:
    """A good episode's columns."""
    end = "terminated" if rng.integers(2) else "truncated"
    walk = np.cumsum(rng.normal(size=(rows, dims)) + rng.choice([0, 2]), axis=0) + 30 * rng.normal(size=dims)
    fields = {
        "observation": walk.astype(dtype),
        "action": rng.normal(size=(rows, 2)).astype(np.float32),
        "reward": rng.normal(size=rows).astype(np.float32),
        "discount": np.ones(rows, np.float32),
        "extras": {"kind": rng.integers(0, 4, rows)},
        "metadata": {},
        **flags(rows, end),
    }
    fields["reward"][-1] = 0
    if end == "terminated":
        fields["discount"][-2:] = 0
    return fields


SPEC = {
    "action": FieldSpec((2,), np.float32, low=-1e4, high=[1e4, 1e4]),
    "extras": {"kind": FieldSpec((), np.int64, values=(0, 1, 2, 3))},
}


LENGTHS = [1, 2, 3, 6, 19, 20, 21, 40, 40, 90]


def damaged_episodes(seed: int) -> tuple[list[Episode], StepSpec | None]:
    """Episodes of one layout, some damaged, and the spec that they should have."""
    rng = np.random.default_rng(seed)
    dims, dtype = int(rng.integers(1, 6)), rng.choice(["float32", "float64", "float16"])
    lengths = rng.choice(LENGTHS, rng.integers(1, 10))
    if rng.random() < 0.3:
        lengths[:] = lengths[0]
    kinds = rng.permutation(np.arange(len(DAMAGES)))[: rng.integers(1, 4)]
    chance = rng.choice([0.2, 0.7])
    index, known = int(rng.integers(5)), rng.random() < 0.5
    before, episodes = None, []
    with np.errstate(all="ignore"):
        for rows in lengths.tolist():
            fields = columns_of(rng, rows, dims, dtype)
            for kind in kinds:
                if rng.random() < chance:
                    DAMAGES[kind](rng, fields, before)
            episodes.append(Episode(**fields, source="damaged", index=index if known else None))
            index += 1 + int(rng.random() < 0.1)
            before = fields
    observation = FieldSpec((dims,), np.dtype(dtype), low=-1e4, high=1e4)
    return episodes, StepSpec(observation=observation, **SPEC) if rng.random() < 0.5 else None


def test_the_damages_break_every_rule_of_an_episode():
    found = Counter(
        issue.rule for seed in range(400) for issues in one_by_one(*damaged_episodes(seed)) for issue in issues
    )
    assert min(found[rule] for rule in EXHIBITS if rule != "no-is-terminal") >= 5, found


@settings(max_examples=400, deadline=None)
@given(
    st.integers(0, 10**9),
    st.lists(st.integers(0, 8), max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 500, 1500, 8 << 20]),
)
def test_damaged_episodes_have_the_same_findings(seed, borders, single, allow_nonfinite, piece):
    episodes, spec = damaged_episodes(seed)
    with mock.patch.object(continuity, "MAX_BYTES", piece):
        agree(episodes, borders, single, spec=spec, allow_nonfinite=allow_nonfinite)


@st.composite
def odd_batches(draw):
    """Whatever an episode may hold, in several at once."""
    lengths = draw(st.lists(st.integers(1, 3) | st.integers(19, 21), min_size=1, max_size=4))
    rows = sum(lengths)

    def leaf():
        shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=2)))
        if draw(st.integers(0, 9)) == 0:
            return np.full(shape, b"text", object)
        return draw(hnp.arrays(draw(DTYPES), shape))

    def nested():
        kind = draw(st.integers(0, 4))
        return None if not kind else leaf() if kind < 3 else {"a": leaf(), "b": leaf()} if kind == 3 else (leaf(),)

    fields = {name: nested() for name in ("observation", "action", "reward", "discount")}
    fields["extras"] = {"x": leaf()}
    starts = np.cumsum([0, *lengths[:-1]])
    given_flags = {
        name: draw(st.sampled_from(["no", "good", "any"])) for name in ("is_first", "is_last", "is_terminal")
    }
    for name, how in given_flags.items():
        at = starts if name == "is_first" else starts + lengths - 1
        fields[name] = np.isin(np.arange(rows), at) if how != "any" else draw(hnp.arrays(np.bool_, rows))
    count = len(lengths)
    marks = draw(hnp.arrays(np.bool_, count))
    metadata = draw(
        st.none()
        | st.lists(st.sampled_from([{}, MARKED, {"placeholder_final_row": False}]), min_size=count, max_size=count)
        | st.sampled_from([{}, {"task": range(count)}, {"placeholder_final_row": marks}]).map(
            lambda columns: FactColumns(columns, count)
        )
    )
    batch = EpisodeBatch(
        Episode(**fields, source="odd", metadata=draw(st.sampled_from([{}, MARKED]))),
        starts,
        draw(st.none() | hnp.arrays(np.bool_, len(lengths))),
        index=draw(st.none() | st.just(np.arange(len(lengths)))),
        metadata=metadata,
        derived=[name for name, how in given_flags.items() if how == "no"],
    )
    return batch


@settings(max_examples=300, deadline=None)
@given(st.lists(odd_batches(), min_size=1, max_size=3), st.booleans())
def test_whatever_batches_hold_has_the_same_findings(batches, allow_nonfinite):
    episodes = [episode for batch in batches for episode in batch]
    for spec in (None, spec_of(episodes[-1])):
        options = {"spec": spec, "allow_nonfinite": allow_nonfinite}
        assert in_batches(batches, **options) == one_by_one(episodes, **options)


def _returned(walk: np.ndarray, size: float) -> list[np.ndarray]:
    """An episode that goes back by a share of the way it came."""
    half = len(walk) // 2
    rows = walk.copy()
    rows[half:] -= size * (walk[half - 1] - walk[0])
    return [walk, rows]


def _continued(walk: np.ndarray, size: float) -> list[np.ndarray]:
    """An episode, and another one that starts that far from its end."""
    return [walk, walk - walk[0] + walk[-1] + size]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule, made", [("jump", _returned), ("no-reset", _continued)])
def test_at_the_threshold_a_screen_misses_nothing(dtype, rule, made):
    """A finding begins where a number is met to the last digit; the screen sums in another order."""
    met = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        walk = np.cumsum(rng.normal(size=(int(rng.integers(20, 400)), 7)) + 1, axis=0)

        def episodes(size, walk=walk):
            return [Episode(observation=rows.astype(dtype), **flags(len(rows))) for rows in made(walk, size)]

        def holds(size, episodes=episodes):
            return any(issue.rule == rule for issues in one_by_one(episodes(size)) for issue in issues)

        low, high = 0.0, 1.0 if rule == "jump" else 100.0
        at_low = holds(low)
        if holds(high) == at_low:
            continue
        met += 1
        for _ in range(55):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) == at_low else (low, middle)
        for size in (low, high):
            agree([*episodes(size), *episodes(size)])
    assert met >= 5


def walk(rows: int, seed: int, drift: float = 2.0) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).normal(size=(rows, 4)) + drift, axis=0)


def at(column: np.ndarray, row: int, value: Any) -> np.ndarray:
    column = column.copy()
    column[row] = value
    return column


def exhibits() -> dict[str, list[Episode]]:
    """By rule: three episodes, of which the one in the middle breaks it (or the first, where that can't be else)."""
    sides = [good(25, "terminated", seed=1, index=0), good(25, "terminated", seed=2, index=2)]
    plain = good(25, "terminated", seed=3)
    changes: dict[str, dict[str, Any]] = {
        "first-missing": {"is_first": np.zeros(25, bool)},
        "first-inside": {"is_first": at(plain.is_first, 3, True)},
        "last-inside": {"is_last": at(plain.is_last, 3, True)},
        "last-missing": {"is_last": np.zeros(25, bool)},
        "terminal-inside": {"is_terminal": at(plain.is_terminal, 3, True)},
        "nonfinite": {"action": at(plain.action, 3, np.nan)},
        "padding-values": {"action": at(plain.action, -1, np.nan)},
        "discount-range": {"discount": at(plain.discount, 3, 2)},
        "terminal-discount": {"discount": at(plain.discount, -2, 1)},
        "final-reward": {"reward": at(plain.reward, -1, 1)},
        "out-of-range": {"action": at(plain.action, 3, 1e6)},
        "jump": {"observation": np.concatenate([walk(15, 1), walk(10, 2)]).astype(np.float32)[:, [0, 1, 2, 3, 0]]},
    }
    shown = {}
    for rule, changed in changes.items():
        shown[rule] = [sides[0], good(25, "terminated", seed=3, index=1, **changed), sides[1]]
    shown["one-step"] = [sides[0], good(1, seed=3, index=1), sides[1]]
    whole = np.cumsum(np.ones((60, 4)), axis=0)
    shown["no-reset"] = [
        Episode(observation=rows, **flags(len(rows)), index=i)
        for i, rows in enumerate([whole[:30], whole[30:], walk(20, 5)])
    ]
    one, two, three = walk(30, 6), walk(40, 7), walk(20, 8)
    two[-1] = one[-1]
    shown["same-final-observation"] = [Episode(observation=rows, **flags(len(rows))) for rows in (one, two, three)]
    one, two, three = walk(8, 9) + 50, walk(9, 10) + 50, walk(9, 11)
    two[-2] = one[-2]  # so that the same zeros are not the same final observation, which has a rule of its own
    one[-1] = two[-1] = 0
    shown["zero-final-observation"] = [Episode(observation=rows, **flags(len(rows))) for rows in (one, two, three)]
    logged = flags(20)
    del logged["is_terminal"]
    shown["no-is-terminal"] = [Episode(observation=walk(20, seed), **logged) for seed in (1, 2)]
    return shown


LIMITED = StepSpec(observation=FieldSpec((5,), np.float32), action=FieldSpec((2,), np.float32, low=-10, high=10))
EXHIBITS = exhibits()


def screened(rule: str) -> dict[int, list[str]]:
    """What a batch of the rule's exhibits is found to break, with an ordinary batch before it."""
    checker = Checker(LIMITED if rule == "out-of-range" else None)
    checker.check_batch(
        EpisodeBatch.of(EXHIBITS[rule][-1:] * 2 if rule != "no-is-terminal" else [good(), good(seed=1)])
    )
    found = checker.check_batch(EpisodeBatch.of(EXHIBITS[rule]))
    return {i: [issue.rule for issue in issues] for i, issues in found.items()}


@pytest.mark.parametrize("rule", EXHIBITS)
def test_a_rule_that_one_episode_breaks_is_found_in_a_batch(rule):
    found = screened(rule)
    assert rule in found[0 if rule == "no-is-terminal" else 1]
    assert sum(rule in rules for rules in found.values()) == 1


def test_every_rule_that_a_checker_finds_has_an_exhibit():
    of_episodes = {rule.id for rule in RULES.values() if rule.severity != "filter" and not rule.of_files}
    elsewhere = {"unreadable", "ragged-columns", "empty-episode", "missing-field", "longer-than-capacity", "no-episode"}
    assert of_episodes - elsewhere - {"spec", "open-episode", "repeated-step", "cast"} == set(EXHIBITS)


SCREENS = {
    "boundary_suspects": ["first-missing", "first-inside", "last-inside", "last-missing", "terminal-inside"],
    "nonfinite_suspects": ["nonfinite", "padding-values"],
    "one_step_suspects": ["one-step"],
    "discount_suspects": ["discount-range", "terminal-discount"],
    "final_reward_suspects": ["final-reward"],
    "limit_suspects": ["out-of-range"],
    "_jump_suspects": ["jump"],
    "_no_reset_suspects": ["no-reset"],
    "_zero_end_suspects": ["zero-final-observation"],
    "_same_end_suspects": ["same-final-observation"],
}


@pytest.mark.parametrize("screen, rule", [(screen, rule) for screen, rules in SCREENS.items() for rule in rules])
def test_without_its_screen_a_rule_is_not_found(screen, rule, monkeypatch):
    """So that the tests above can fail: each screen is what finds its rules, and no other does it by chance."""
    assert any(rule in rules for rules in screened(rule).values())
    room = continuity if screen.startswith("_") else report
    seeing = getattr(room, screen)
    monkeypatch.setattr(room, screen, lambda *args, **options: np.zeros_like(seeing(*args, **options)))
    assert not any(rule in rules for rules in screened(rule).values())
    with pytest.raises(AssertionError):
        agree(EXHIBITS[rule], spec=LIMITED if rule == "out-of-range" else None)


@pytest.mark.parametrize("rule", EXHIBITS)
@pytest.mark.parametrize("borders", [[1], [2], [1, 2], [4], [5]])
def test_a_rule_is_found_wherever_batches_end(rule, borders):
    episodes = EXHIBITS[rule]
    spec = LIMITED if rule == "out-of-range" else None
    found = agree([*episodes, *episodes], borders, spec=spec)
    assert rule in {issue.rule for issues in found for issue in issues}


@pytest.mark.parametrize("rule", ["no-reset", "same-final-observation", "zero-final-observation"])
def test_the_end_of_a_batch_is_what_the_next_one_is_compared_with(rule, monkeypatch):
    one, two, three = EXHIBITS[rule]
    before = good(2, "terminated", observation=np.ones((2, 4)), action=None, reward=None, discount=None)
    episodes = [before, one, two, three]
    assert rule in [issue.rule for issue in agree(episodes, [2])[2]]
    with monkeypatch.context() as patch:
        patch.setattr(ContinuityCheck, "pass_over", lambda check, episode: None)
        with pytest.raises(AssertionError):
            agree(episodes, [2])
    suspects = continuity._suspects
    monkeypatch.setattr(continuity, "_suspects", lambda block, previous: suspects(block, None))
    with pytest.raises(AssertionError):
        agree(episodes, [2])


def test_ordinary_episodes_are_not_explained(monkeypatch):
    """A screen that suspects everything would be right, and of no use."""
    asked = []
    take = EpisodeBatch.take
    monkeypatch.setattr(EpisodeBatch, "take", lambda batch, which: asked.append(which) or take(batch, which))
    rng = np.random.default_rng(0)
    episodes = [good(int(rows), "terminated", seed=i) for i, rows in enumerate(rng.integers(2, 100, 200))]
    assert Checker(None).check_batch(EpisodeBatch.of(episodes)) == {}
    assert asked == [slice(199, 200)], "the last one, whose end the next batch is compared with"
    assert Checker(None, warnings=False).check_batch(EpisodeBatch.of(episodes)) == {}
    assert len(asked) == 1


@BOTH
@pytest.mark.parametrize(
    "path", ["rlds/bridge_dataset", "rlds/robomimic_ph", "rlds/d4rl_mujoco_hopper/v0-medium", "d4rl/door-human-v0.hdf5"]
)
def test_real_episodes_have_the_same_findings(sets, path):
    with open_source(sets / path) as source:
        episodes = list(source)[:40]
        spec = source.spec
    assert any(agree(episodes, [1, 7, 20], spec=spec))
