"""Values on one scale and back, against OpenVLA's formulas written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import Episode, SourceError, Statistics
from rlds2buf.numbers.normalizing import WAYS, field_and_part


def written_out(x: np.ndarray, values: np.ndarray, how: str) -> np.ndarray:
    x, values = x.astype(np.float64), values.astype(np.float64)
    if how == "mean_std":
        scaled = (x - values.mean(0)) / (values.std(0) + 1e-8)
    else:
        ends = {"q01_q99": (0.01, 0.99), "min_max": (0.0, 1.0)}[how]
        low, high = np.quantile(values, ends, axis=0)
        scaled = np.clip(2 * (x - low) / (high - low + 1e-8) - 1, -1, 1)
    return np.where(values.min(0) == values.max(0), 0, scaled)


def of_actions(actions: np.ndarray) -> Statistics:
    """The last row is padding."""
    return rlds2buf.statistics([Episode(action=np.concatenate([actions, actions[:1]]))])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    how=st.sampled_from(WAYS),
    dtype=st.sampled_from(["float32", "float64", "int16", "uint8", "bool"]),
    shape=st.sampled_from([(), (1,), (5,), (2, 3)]),
)
def test_normalised_and_back(seed: int, how: str, dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    actions = (rng.standard_normal((40, *shape)) * 20 + 40).astype(dtype)
    if shape and shape[-1] > 1:
        actions[..., 1] = actions.flat[0]
    stats = of_actions(actions)
    x = (rng.standard_normal((3, 4, *shape)) * 25 + 40).astype(dtype)
    found = rlds2buf.normalize(x, stats, "action", how)
    assert found.dtype == (np.float64 if dtype == "float64" else np.float32) and found.shape == x.shape
    exact = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(found, written_out(x, actions, how), rtol=exact, atol=exact)
    back = rlds2buf.unnormalize(found.astype(np.float64), stats, "action", how)
    constant = actions.min(0) == actions.max(0)
    inside = ~constant & ((np.abs(found) < 1) | (how == "mean_std"))
    np.testing.assert_allclose(back[inside], x.astype(np.float64)[inside], rtol=1e-4, atol=1e-4)
    assert (
        back[np.broadcast_to(constant, back.shape)]
        == np.broadcast_to(actions[0], back.shape)[np.broadcast_to(constant, back.shape)]
    ).all()


@pytest.mark.parametrize(
    ("field", "changed"),
    [("action", [0, 1, 2]), ("action[:-1]", [0, 1]), ("action[1:]", [1, 2]), ("action[2]", [2]), ("action[-2]", [1])],
)
def test_only_some_dimensions(field: str, changed: list[int]) -> None:
    actions = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    stats = of_actions(actions)
    for change in (rlds2buf.normalize, rlds2buf.unnormalize):
        found = change(actions, stats, field, "mean_std")
        assert np.flatnonzero((found != actions).any(axis=0)).tolist() == changed


def test_a_dimension_outside_of_which_values_are_rare_is_cut_to_its_ends() -> None:
    actions = np.zeros((1000, 1))
    actions[0] = 1
    stats = of_actions(actions)
    assert rlds2buf.normalize(np.array([[0.0], [1.0]]), stats).tolist() == [[-1.0], [1.0]]


def test_statistics_from_anywhere(tmp_path: Path) -> None:
    stats = of_actions(np.arange(12.0).reshape(6, 2))
    told = stats.to_json()
    (tmp_path / "stats.json").write_text(json.dumps(told))
    x = [[1.0, 2.0]]
    expected = rlds2buf.normalize(x, stats).tolist()
    kept = {"options": {"normalize": {"action": "q01_q99"}, "normalize_statistics": told}}
    for given_ in (
        told,
        tmp_path / "stats.json",
        str(tmp_path / "stats.json"),
        kept,
        {"rlds2buf": {"provenance": kept}},
    ):
        assert rlds2buf.normalize(x, given_).tolist() == expected
    again = Statistics.from_json(json.loads(json.dumps(told)))
    assert again.to_json() == told and again["action"].min.dtype == np.float64


@pytest.mark.parametrize("how", WAYS)
def test_of_a_converted_dataset_s_folder(how: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    given_ = [Episode(observation=np.zeros(9), action=rng.standard_normal((9, 2)), is_last=np.arange(9) == 8)]
    for to in ("buffer", "rlds", "minari"):
        path = tmp_path / f"{to}-v0"
        rlds2buf.convert(given_, path, to=to, normalize={"action": how})
        found = rlds2buf.normalize(given_[0].action, path, "action", how)
        expected = rlds2buf.normalize(given_[0].action, rlds2buf.statistics(given_), "action", how)
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(SourceError, match=r"nothing there that `rlds2buf convert --normalize` has written"):
        rlds2buf.normalize([0.0], _empty(tmp_path))


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    (folder / "empty" / "metadata.json").write_text("{")
    return folder / "empty"


class TestWrong:
    stats = of_actions(np.arange(12.0).reshape(6, 2))

    @pytest.mark.parametrize(
        ("arguments", "error", "words"),
        [
            ({"field": "acton"}, KeyError, "no statistics of 'acton'; is it 'action'"),
            ({"how": "q1"}, ValueError, "how must be one of q01_q99, mean_std, min_max"),
            ({"x": [1.0, 2.0, 3.0]}, ValueError, r"should end in the shape \[2\] of action, got \[3\]"),
            ({"x": ["a", "b"]}, ValueError, "x should be numbers"),
            ({"field": "action[5]"}, ValueError, r"action\[5\]: there is no dimension 5 among 2"),
            ({"field": "action[:"}, ValueError, "dimensions are chosen as in"),
            ({"field": "action[a:b]"}, ValueError, "dimensions are chosen as in"),
            ({"stats": 3}, ValueError, "stats should be statistics"),
            ({"stats": {"fields": 3}}, ValueError, "fields should be an object"),
            ({"stats": "no-such-file.json"}, SourceError, "no such file"),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            rlds2buf.normalize(**{"x": [1.0, 2.0], "stats": self.stats, **arguments})

    def test_a_file_of_something_else(self, tmp_path: Path) -> None:
        for text in ("{", "[]", '{"source": 3}', '{"source": "a", "episodes": 1, "steps": 1, "transitions": 1}'):
            (tmp_path / "a.json").write_text(text)
            with pytest.raises(SourceError, match=r"a\.json: .*rlds2buf stats SRC --json --out FILE"):
                rlds2buf.normalize([1.0, 2.0], tmp_path / "a.json")

    @pytest.mark.parametrize("value", [None, [1.0], "x", [[1.0, 2.0]], [1.0, "x"]])
    def test_numbers_of_another_shape(self, value: Any) -> None:
        told = self.stats.to_json()
        told["fields"]["action"]["mean"] = value
        with pytest.raises(ValueError, match=r"fields\.action\.mean should be numbers"):
            Statistics.from_json(told)

    def test_nothing_finite(self) -> None:
        stats = rlds2buf.statistics([Episode(action=np.full((3, 1), np.nan))], allow_nonfinite=True)
        with pytest.raises(ValueError, match="action: a dimension has no finite value"):
            rlds2buf.normalize([1.0], stats)

    def test_dimensions_of_a_single_number(self) -> None:
        stats = rlds2buf.statistics([Episode(action=np.arange(3.0))])
        with pytest.raises(ValueError, match="one number a step"):
            rlds2buf.normalize(1.0, stats, "action[:-1]")


def test_parts() -> None:
    assert field_and_part("extras/a[1:3]") == ("extras/a", slice(1, 3))
    assert field_and_part("a[:]") == ("a", slice(None, None)) and field_and_part("a[0]") == ("a", 0)
