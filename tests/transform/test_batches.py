"""Whole batches through a transformation, against their episodes one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, spec_of
from rlds2buf.core.hashing import unit_interval
from rlds2buf.errors import EpisodeError, FilteredOut
from rlds2buf.transform.alignment import realign, shift_reward
from rlds2buf.transform.facts import episode_return, episode_returns
from rlds2buf.transform.transformation import Transformation
from tests.reference.facts import faults

Outcome = tuple[str, Any]


def episodes(lengths: list[int], seed: int, *, flags: bool = True, broken: float = 0.0) -> list[Episode]:
    """Every kind of column; some values are too large for a float32 where `broken` says so."""
    rng = np.random.default_rng(seed)
    made = []
    for index, rows in enumerate(lengths):
        words = np.empty(rows, object)
        words[:] = [b"w%d" % t for t in range(rows)]
        terminal = np.zeros(rows, np.bool_)
        terminal[-1] = rng.random() < 0.5
        discount = np.ones(rows, np.float32)
        if terminal[-1] and rows > 1 and rng.random() < 0.5:
            discount[-2] = 0
        velocity = rng.normal(size=(rows, 3))
        if rng.random() < broken:
            velocity[rng.integers(rows), 1] = 1e300
        first, last = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        first[0] = last[-1] = True
        made.append(
            Episode(
                observation={"q": rng.normal(size=(rows, 2)), "v": velocity, "word": words},
                action=(rng.integers(0, 200, rows), rng.normal(size=(rows, 2)).astype(np.float16)),
                reward=np.round(rng.normal(size=rows) * 10) / 10 if seed % 2 else rng.random(rows).astype(np.float32),
                discount=discount,
                extras={"note": rng.integers(-3, 3, rows).astype(np.int16), "empty": np.zeros((rows, 0))},
                metadata={"task": {"id": int(rng.integers(3))}, **({"good": True} if rng.random() < 0.5 else {})},
                source="made",
                index=index,
                **({"is_first": first, "is_last": last, "is_terminal": terminal} if flags else {}),
            )
        )
    return made


def same(one: Any, other: Any) -> None:
    """Two episodes, or two errors, to the bit."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, EpisodeError):
        assert (str(one), one.rule, one.episode, one.step, one.path) == (
            str(other), other.rule, other.episode, other.step, other.path,
        )  # fmt: skip
        return
    assert (one.index, one.metadata, one.derived, one.source) == (
        other.index,
        other.metadata,
        other.derived,
        other.source,
    )
    columns, others = dict(one.flatten()), dict(other.flatten())
    assert columns.keys() == others.keys()
    for path, column in columns.items():
        assert column.dtype == others[path].dtype and column.shape == others[path].shape, path
        if column.dtype == object:
            assert column.tolist() == others[path].tolist(), path
        else:
            assert column.tobytes() == others[path].tobytes(), path


def one_by_one(given: list[Episode], change: Transformation, how: dict[str, Any]) -> Iterator[Any]:
    """What becomes of each episode, with filters and lots as they are written down."""
    for episode in given:
        number = episode.index
        assert number is not None
        in_val = unit_interval(how["seed"], number) < how.get("val_fraction", 0)
        if "val_fraction" in how and in_val != (how["part"] == "val"):
            left_out = "filter-part", f"it is in the other part than {how['part']!r}"
        elif "sample" in how and not unit_interval(how["seed"], number, "sample") < how["sample"]:
            left_out = "filter-sample", f"it is not in the sample of {how['sample']}"
        else:
            try:
                changed = change.change(episode)
            except EpisodeError as error:
                yield error
                continue
            found = next(faults(changed, episode, **how), None)
            if found is None:
                yield changed
                continue
            left_out = found
        yield FilteredOut(left_out[1], source="made", episode=number, rule=left_out[0])


def _is_odd(episode: Episode) -> bool:
    return len(episode) % 2 == 1


OPTIONS = st.fixed_dictionaries(
    {"seed": st.integers(0, 3)},
    optional={
        "map": st.sampled_from([
            {"observation": ["observation/q", "observation/v"]},
            {"extras/r": "reward", "is_terminal": "is_last"},
            {"observation/say": "observation/word", "reward": "extras/note"},
        ]),
        "drop": st.sampled_from(["action/0", ["note", "is_first"], "observation/word"]),
        "float32": st.booleans(),
        "cast": st.sampled_from([{"action/0": "int8"}, {"action": "float64"}, {"reward": "float16"}]),
        "alignment": st.sampled_from(["sar", "ars", "rsa"]),
        "reward_shift": st.integers(0, 3),
        "min_return": st.sampled_from([0.0, 0.5, 3.0]),
        "max_return": st.sampled_from([4.0, 9.5]),
        "min_length": st.integers(0, 9),
        "max_length": st.integers(9, 50),
        "where": st.sampled_from([
            "return > 0.5 or length < 5", "end == 'terminated' and metadata/task/id != 2", "metadata/good",
            "any(observation/q > 1.5) and max(observation/q) > mean(observation/q)", "sum(reward) == return",
            "min(discount) == 0 or all(discount)", "index in [1, 3, 5] or max(empty) == none", _is_odd,
        ]),
        "sample": st.sampled_from([0.3, 0.9]),
        "val_fraction": st.sampled_from([0.3, 0.7]),
        "part": st.just("val"),
    },
)  # fmt: skip


@given(OPTIONS, st.lists(st.integers(1, 50), min_size=1, max_size=14), st.booleans(), st.sampled_from([0.0, 0.2, 1.0]))
def test_a_batch_becomes_what_its_episodes_become(
    how: dict[str, Any], lengths: list[int], flags: bool, broken: float
) -> None:
    if "val_fraction" in how:
        how = {"part": "train", **how}
    elif "part" in how:
        del how["part"]
    given = episodes(lengths, how["seed"], flags=flags, broken=broken)
    try:
        change = Transformation(spec_of(given[0]), **how)
    except ValueError:  # these options don't go together
        return
    cut = len(given) // 2
    batches = [EpisodeBatch.of(part) for part in (given[:cut], given[cut:]) if part]
    found = [item for batch in batches for item in change.take_batch(batch)]
    flat = [one for item in found for one in (item if isinstance(item, EpisodeBatch) else [item])]
    expected = list(one_by_one(given, change, how))
    assert len(flat) == len(expected)
    for one, other in zip(flat, expected, strict=True):
        same(one, other)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=14), st.integers(0, 9))
def test_neighbours_that_are_kept_stay_one_batch(lengths: list[int], seed: int) -> None:
    given = episodes(lengths, seed, broken=0.3)
    change = Transformation(spec_of(given[0]), float32=True, min_length=4)
    kinds = [type(item).__name__ for item in change.take_batch(EpisodeBatch.of(given))]
    assert ("EpisodeBatch", "EpisodeBatch") not in list(itertools.pairwise(kinds))


def test_what_a_function_raises_comes_behind_what_was_kept() -> None:
    def picky(episode: Episode) -> bool:
        if episode.index == 3:
            raise KeyError("no")
        return episode.index != 1

    given = episodes([3] * 6, 0)
    taken = Transformation(spec_of(given[0]), where=picky).take_batch(EpisodeBatch.of(given))
    seen = []
    with pytest.raises(KeyError):
        for item in taken:
            seen.append(item.index.tolist() if isinstance(item, EpisodeBatch) else item.episode)
    assert seen == [[0], 1, [2]]


def test_those_that_a_source_passed_over_have_their_places() -> None:
    given = episodes([2] * 12, 0)
    change = Transformation(spec_of(given[0]), sample=0.4, seed=2)
    wanted = [episode for episode in given if change.wants(episode.index or 0)]
    batch = EpisodeBatch.of(wanted)
    found = list(change.take_batch(batch, 0, "made"))
    places = [n for item in found for n in (item.index.tolist() if isinstance(item, EpisodeBatch) else [item.episode])]
    assert places == list(range((wanted[-1].index or 0) + 1)) and len(wanted) > 1
    whole = list(change.take_batch(EpisodeBatch.of(given), 0, "made"))
    assert [str(item) for item in whole][: len(found)] == [str(item) for item in found]


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=9),
    st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_]),
    st.integers(0, 99),
)
def test_returns_are_summed_to_the_bit(lengths: list[int], dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = [Episode(reward=(rng.normal(size=n) * 10.0 ** rng.integers(-3, 3)).astype(dtype)) for n in lengths]
    expected = [episode_return(episode) for episode in given]
    returns = episode_returns(EpisodeBatch.of(given))
    assert returns is not None and returns.tolist() == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from(["ars", "rsa"]), st.integers(1, 12))
def test_rows_move_within_their_episodes(lengths: list[int], alignment: str, rows: int) -> None:
    given = episodes(lengths, 1)
    ragged = [np.empty(n, object) for n in lengths]
    for column in ragged:
        column[:] = [np.arange(t + 1) for t in range(len(column))]
    given = [one.replace(action={"a": one.action[0], "b": column}) for one, column in zip(given, ragged, strict=True)]
    change = Transformation(spec_of(given[0]), alignment=alignment, reward_shift=rows)
    (batch,) = change.take_batch(EpisodeBatch.of(given))
    assert isinstance(batch, EpisodeBatch)
    for one, origin in zip(batch, given, strict=True):
        other = shift_reward(realign(origin, alignment), rows)
        assert [row.tolist() for row in one.action["b"]] == [row.tolist() for row in other.action["b"]]
        plain = {"action": None}
        same(one.replace(**plain), other.replace(**plain))
