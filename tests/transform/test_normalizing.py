"""Fields of episodes brought to one scale, as a column operation and while converting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, EpisodeBatch, EpisodeError, FieldSpec, SnapshotError
from rlds2buf.core.spec import StepSpec
from rlds2buf.transform.normalizing import Normalizing
from tests.made import MADE

RNG = np.random.default_rng(0)


def episodes(count: int = 6, rows: int = 30) -> list[Episode]:
    return [
        Episode(
            observation={"state": RNG.standard_normal((rows, 4)).astype(np.float32) * 9, "on": RNG.random(rows) < 0.5},
            action=(RNG.standard_normal((rows, 3)) * 100).astype(np.int32),
            reward=RNG.standard_normal(rows),
            is_last=np.arange(rows) == rows - 1,
            extras={"note": np.array([b"a"] * rows, object)},
        )
        for _ in range(count)
    ]


GIVEN = episodes()
WANTED = {"action[:-1]": "q01_q99", "observation/state": "mean_std", "reward": "min_max"}


def test_converted_data_are_normalised_by_their_own_statistics() -> None:
    written: list[Episode] = []
    rlds2buf.convert(GIVEN, written, normalize=WANTED)
    stats = rlds2buf.statistics(GIVEN)
    for mine, given in zip(written, GIVEN, strict=True):
        for name, how in WANTED.items():
            column = {"action": "action", "reward": "reward"}.get(name.partition("[")[0])
            before = getattr(given, column) if column else given.observation["state"]
            after = getattr(mine, column) if column else mine.observation["state"]
            np.testing.assert_array_equal(after, rlds2buf.normalize(before, stats, name, how))
        assert mine.action.dtype == np.float32 and mine.reward.dtype == np.float64
        np.testing.assert_array_equal(mine.action[:, -1], given.action[:, -1])
        np.testing.assert_array_equal(mine.observation["on"], given.observation["on"])
    after = np.concatenate([mine.observation["state"] for mine in written])
    np.testing.assert_allclose(after.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(after.std(0), 1, rtol=1e-5)


@pytest.mark.parametrize("to", ["buffer", "rlds", "minari", "d4rl"])
def test_into_any_format(to: str, tmp_path: Path) -> None:
    given = [one.replace(observation=one.observation["state"], extras={}) for one in GIVEN]
    path = tmp_path / ("out-v0" if to != "d4rl" else "out.hdf5")
    rlds2buf.convert(given, path, to=to, normalize={"action": "min_max", "observation": "q01_q99"})
    found = rlds2buf.statistics(path)
    for name in ("action", "observation"):
        np.testing.assert_allclose([found[name].min.min(), found[name].max.max()], [-1, 1], atol=1e-6)
        assert found[name].min.dtype == np.float32


def test_the_statistics_are_those_of_what_is_written() -> None:
    """Of the episodes that are kept, without the final rows' actions, with the columns that are added."""
    bad = GIVEN[0].replace(action=GIVEN[0].action * 1000, is_terminal=np.arange(30) < 30)
    written: list[Episode] = []
    how: dict[str, Any] = {"on_invalid": "skip", "add": "return_to_go"}
    report = rlds2buf.convert([bad, *GIVEN], written, normalize={"action": "min_max", "return_to_go": "min_max"}, **how)
    assert report.rejected and report.episodes == len(GIVEN)
    actions = np.concatenate([one.action[:-1] for one in written])
    assert actions.min() == -1 and actions.max() > 0.99999
    returns = np.concatenate([one.extras["return_to_go"][:-1] for one in written])
    assert returns.min() == -1 and returns.max() > 0.99999


def test_the_last_action_counts_where_it_is_kept() -> None:
    made = Episode(observation=np.zeros(3), action=np.array([0.0, 1.0, 9.0]), is_terminal=[False, False, True])
    written: list[Episode] = []
    rlds2buf.convert([made], written, final_transition="keep", normalize={"action": "min_max"})
    np.testing.assert_allclose(written[0].action[:3], [-1, 2 / 9 - 1, 1], atol=1e-7)


def test_statistics_taken_elsewhere(tmp_path: Path) -> None:
    other = rlds2buf.statistics([GIVEN[0]])
    written: list[Episode] = []
    rlds2buf.convert(GIVEN, written, normalize={"action": "mean_std"}, normalize_stats=other)
    expected = rlds2buf.normalize(GIVEN[3].action, other, "action", "mean_std")
    np.testing.assert_array_equal(written[3].action, expected)


def test_pictures_and_records_go_through(tmp_path: Path) -> None:
    path = MADE / "rlds/bridge_dataset/1.0.0"
    rlds2buf.convert(path, tmp_path / "r", to="rlds", on_invalid="repair", normalize={"action": "q01_q99"})
    with rlds2buf.open_source(path) as before, rlds2buf.open_source(tmp_path / "r") as after:
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one.observation["image_0"], other.observation["image_0"])
            assert np.abs(other.action).max() <= 1 and not np.array_equal(one.action, other.action)


def test_a_conversion_that_normalises_differently_is_not_resumed(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def halting(episode: Episode) -> bool:
        if len(seen) == 9:
            raise Stopped
        seen.append(1)
        return True

    seen: list[int] = []
    with pytest.raises(Stopped):  # in the second pass
        rlds2buf.convert(GIVEN, tmp_path / "b", where=halting, normalize={"action": "min_max"}, resume=True)
    seen[:] = [1] * 10
    with pytest.raises(SnapshotError):
        rlds2buf.convert(GIVEN, tmp_path / "b", where=halting, normalize={"action": "mean_std"}, resume=True)
    rlds2buf.convert(GIVEN, tmp_path / "b", where=halting, normalize={"action": "min_max"}, resume=True)
    assert len(rlds2buf.load_buffer(tmp_path / "b")) == 6 * 29


class TestSpec:
    spec = StepSpec(
        observation={"a": FieldSpec((2,), np.float64, low=-5.0, high=5.0), "n": FieldSpec((), np.int8, values=(0, 1))},
        action=FieldSpec((3,), np.float16, low=-2.0, high=2.0),
        extras={"note": FieldSpec((), object)},
    )
    stats = rlds2buf.statistics(
        [
            Episode(
                observation={"a": RNG.random((5, 2)), "n": np.arange(5, dtype=np.int8)},
                action=RNG.random((5, 3)).astype(np.float16),
                reward=np.arange(5, dtype=np.float32),
            )
        ]
    )

    def test_types_and_limits(self) -> None:
        change = Normalizing(self.spec, {"observation": "min_max", "action[0]": "q01_q99"}, self.stats)
        assert change.spec.observation["a"] == FieldSpec((2,), np.float64, low=-1.0, high=1.0)
        assert change.spec.observation["n"] == FieldSpec((), np.float32, low=-1.0, high=1.0)
        assert change.spec.action == FieldSpec((3,), np.float32) and change.spec.reward == self.spec.reward
        assert change.description["normalize"] == {"observation": "min_max", "action[0]": "q01_q99"}
        assert set(change.description["normalize_statistics"]["fields"]) == {"observation/a", "observation/n", "action"}

    def test_nests_of_tuples(self) -> None:
        made = Episode(observation=(np.arange(4.0), (np.arange(4.0) * 2,)), action=np.zeros(4))
        change = Normalizing(rlds2buf.spec_of(made), {"observation/1": "min_max"}, rlds2buf.statistics([made]))
        rows = change.apply(EpisodeBatch.of_one(made)).rows
        assert rows.observation[0].tolist() == [0, 1, 2, 3]
        np.testing.assert_allclose(rows.observation[1][0], [-1, -1 / 3, 1 / 3, 1])

    @pytest.mark.parametrize(
        ("wanted", "words"),
        [
            ({"acton": "q01_q99"}, "normalize: no field 'acton'; is it 'action'"),
            ({"action": "q1"}, "normalize must be one of q01_q99, mean_std, min_max"),
            ({"note": "q01_q99"}, "'note' holds no numbers to normalise"),
            ({"action": "min_max", "action[0]": "mean_std"}, "'action' is named twice"),
            ({"observation": "min_max", "observation/a": "mean_std"}, "'observation/a' is named twice"),
            ({"observation[0]": "min_max"}, "is several fields; dimensions are chosen of one"),
            ({"action[7]": "min_max"}, "action: there is no dimension 7 among 3"),
            ({"discount": "min_max"}, "normalize: no statistics of 'discount'"),
        ],
    )
    def test_what_does_not_fit(self, wanted: dict[str, str], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            Normalizing(self.spec, wanted, self.stats)

    def test_statistics_of_another_shape(self) -> None:
        other = rlds2buf.statistics([Episode(action=np.zeros((3, 8)))])
        with pytest.raises(ValueError, match=r"action: the statistics are of the shape \[8\], the data float16\[3\]"):
            Normalizing(self.spec, {"action": "min_max"}, other)


class TestWrong:
    def test_arguments(self) -> None:
        with pytest.raises(TypeError, match="normalize: expected a dict"):
            rlds2buf.convert(GIVEN, [], normalize="action")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="normalize_stats: say with normalize="):
            rlds2buf.convert(GIVEN, [], normalize_stats="a.json")
        with pytest.raises(TypeError, match="did you mean normalize"):
            rlds2buf.convert(GIVEN, [], normalise={"action": "min_max"})

    def test_invalid_episodes_stop_the_first_pass_and_nothing_is_written(self, tmp_path: Path) -> None:
        bad = GIVEN[0].replace(is_first=np.ones(30, np.bool_))
        with pytest.raises(EpisodeError, match="episode 1"):
            rlds2buf.convert([GIVEN[0], bad], tmp_path / "b", normalize={"action": "min_max"})
        assert not list(tmp_path.iterdir())

    def test_of_no_episodes(self, tmp_path: Path) -> None:
        with pytest.raises(EpisodeError, match="nothing was written: all 6 episodes were left out"):
            rlds2buf.convert(GIVEN, tmp_path / "b", min_length=1000, normalize={"action": "min_max"})
