"""Which episodes are left out, and by which rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf import Episode, FieldSpec, StepSpec
from rlds2buf.check.rules import RULES
from rlds2buf.core.hashing import unit_interval
from rlds2buf.transform.filters import Filters
from rlds2buf.transform.subset import Subset
from rlds2buf.transform.tree import tree_of

LIMITS = st.none() | st.integers(-3, 6)
LENGTHS = st.none() | st.integers(0, 6)


def episode(length: int, total: float) -> Episode:
    reward = np.full(length, total)
    reward[1:-1] = 0  # the last one is padding
    return Episode(reward=reward, index=2)


def _rule(found: tuple[str, str] | None) -> str | None:
    return None if found is None else found[0]


class TestFilters:
    @given(LIMITS, LIMITS, LENGTHS, LENGTHS, st.integers(2, 6), st.sampled_from([-3.0, 0.5, 4.0, np.nan]))
    def test_limits_are_inclusive(
        self, low: int | None, high: int | None, short: int | None, long: int | None, length: int, total: float
    ) -> None:
        limits: dict[str, Any] = {"min_return": low, "max_return": high, "min_length": short, "max_length": long}
        if (low is not None and high is not None and low > high) or (
            short is not None and long is not None and short > long
        ):
            with pytest.raises(ValueError, match="no episode would be left"):
                Filters(**limits)
            return
        expected = None
        if short is not None and length < short:
            expected = "filter-min-length"
        elif long is not None and length > long:
            expected = "filter-max-length"
        elif low is not None and not total >= low:
            expected = "filter-min-return"
        elif high is not None and not total <= high:
            expected = "filter-max-return"
        filters = Filters(**limits)
        assert _rule(filters.fault(episode(length, total))) == expected
        assert filters.describe() == {name: limit for name, limit in limits.items() if limit is not None}
        assert bool(filters) == bool(filters.describe())

    @pytest.mark.parametrize("limits", [{"min_length": -5}, {"max_length": -1}, {"min_return": np.nan}])
    def test_limits_that_mean_nothing_are_refused(self, limits: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(limits))):
            Filters(**limits)

    def test_the_reason_is_said(self) -> None:
        assert Filters(min_return=5).fault(episode(3, 2.25)) == ("filter-min-return", "the return 2.25 is below 5")
        assert Filters(max_length=2).fault(episode(3, 2)) == ("filter-max-length", "the length 3 is above 2")
        assert Filters(where="length > 9").fault(episode(3, 2)) == ("filter-where", "not where length > 9")
        assert _says(Filters(where=_is_long)) == "tests.transform.test_filters._is_long says no"

    def test_every_rule_is_in_the_table(self) -> None:
        names = {"filter-min-return", "filter-max-return", "filter-min-length", "filter-max-length", "filter-where"}
        assert names | {"filter-sample", "filter-part"} == {name for name in RULES if name.startswith("filter-")}
        assert {RULES[name].severity for name in names} == {"filter"}

    def test_a_return_needs_a_reward(self) -> None:
        for reward in (None, FieldSpec((2,), np.dtype(np.float32))):
            with pytest.raises(ValueError, match="need a reward of one number a step"):
                Filters(min_return=1).check(tree_of(StepSpec(reward=reward)), {})
        Filters(min_length=1).check(tree_of(StepSpec(reward=None)), {})

    def test_neither_text_nor_a_function(self) -> None:
        with pytest.raises(TypeError, match="an expression or a function, got int"):
            Filters(where=3)  # type: ignore[arg-type]

    def test_a_function_is_known_by_its_code_and_what_it_closes_over(self) -> None:
        names = [
            Filters(where=function).describe()["where"]
            for function in (longer(3), longer(3), longer(4), lambda ep: True, lambda ep: ep is None)
        ]
        assert names[0] == names[1] and len(set(names)) == 4
        assert Filters(where=_Callable()).describe()["where"].endswith("_Callable")


def longer(than: int) -> Callable[[Episode], bool]:
    return lambda ep: len(ep) > than


def _is_long(ep: Episode) -> bool:
    return len(ep) > 9


def _says(filters: Filters) -> str:
    found = filters.fault(episode(3, 2))
    assert found is not None
    return found[1]


class _Callable:
    def __call__(self, ep: Episode) -> bool:
        return True


def kept(count: int, **how: Any) -> list[int]:
    subset = Subset(num_episodes=count, **how)
    return [index for index in range(count) if subset.fault(index) is None]


class TestSubset:
    @given(st.integers(1, 60), st.integers(1, 60), st.integers(-3, 3))
    def test_exactly_so_many_and_the_lowest_numbers(self, count: int, wanted: int, seed: int) -> None:
        if wanted > count:
            with pytest.raises(ValueError, match=f"there are only {count} episodes"):
                kept(count, sample=wanted, seed=seed)
            return
        by_lot = sorted(range(count), key=lambda index: unit_interval(seed, index, "sample"))
        assert kept(count, sample=wanted, seed=seed) == sorted(by_lot[:wanted])

    @given(st.floats(0, 1, exclude_min=True), st.integers(0, 5))
    def test_a_fraction_is_by_each_index_alone(self, fraction: float, seed: int) -> None:
        expected = [index for index in range(200) if unit_interval(seed, index, "sample") < fraction]
        assert kept(200, sample=fraction, seed=seed) == expected
        subset = Subset(sample=fraction, seed=seed)  # of an unknown number
        assert [index for index in reversed(range(200)) if subset.fault(index) is None][::-1] == expected

    def test_train_and_val_are_the_whole_and_apart(self) -> None:
        train = kept(1000, val_fraction=0.2, seed=1)
        val = kept(1000, val_fraction=0.2, part="val", seed=1)
        assert train == kept(1000, val_fraction=0.2, part="train", seed=1)
        assert sorted(train + val) == list(range(1000)) and 150 < len(val) < 250
        assert val == [index for index in range(1000) if unit_interval(1, index) < 0.2]
        assert val != kept(1000, val_fraction=0.2, part="val", seed=2)

    def test_a_sample_is_split_as_the_whole_is(self) -> None:
        sample = set(kept(2000, sample=0.5))
        val = set(kept(2000, val_fraction=0.5, part="val"))
        assert set(kept(2000, sample=0.5, val_fraction=0.5, part="val")) == sample & val
        assert 400 < len(sample & val) < 600  # independent: a quarter

    def test_nothing_asked_for(self) -> None:
        assert not Subset() and Subset().describe() == {} and kept(5) == list(range(5))
        assert Subset(sample=np.int64(3), num_episodes=9, seed=4).describe() == {"sample": 3, "seed": 4}

    @pytest.mark.parametrize(
        ("how", "says"),
        [
            ({"sample": 0}, "at least 1 episode"),
            ({"sample": 0.0}, "above 0 and at most 1"),
            ({"sample": 1.5}, "above 0 and at most 1"),
            ({"sample": float("nan")}, "above 0"),
            ({"sample": True}, "fraction .float. or a number"),
            ({"sample": "all"}, "fraction .float. or a number"),
            ({"sample": 5}, "not known; give a fraction"),
            ({"val_fraction": 1.0}, "between 0 and 1"),
            ({"val_fraction": 0.1, "part": "test"}, "'train' or 'val'"),
            ({"part": "val"}, "needs val_fraction"),
        ],
    )
    def test_out_of_range(self, how: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            Subset(**how)
