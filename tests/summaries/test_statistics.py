"""The statistics of datasets, against all their episodes looked at one by one."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import Episode, EpisodeBatch, EpisodeError, SpecMismatch, Statistics
from rlds2buf.codecs.images import decode
from rlds2buf.numbers.accumulators import Spool
from rlds2buf.pipeline.measuring import Measure, PictureSample
from tests.data import DATA
from tests.formats.lerobot.by_hand import columns_of, write_v2, write_v3
from tests.made import BOTH, MADE
from tests.reference.numbers import of_episodes

RIGHT = ("count", "min", "max", "q01", "q10", "q50", "q90", "q99")


def assert_right(found: Statistics, expected: dict[str, dict[str, np.ndarray]]) -> None:
    numbers = {name: field for name, field in found.fields.items() if not field.is_picture}
    assert numbers.keys() == expected.keys()
    for name, field in numbers.items():
        for key in RIGHT:
            values = np.broadcast_to(expected[name][key], field.mean.shape)
            np.testing.assert_array_equal(getattr(field, key), values, err_msg=f"{name} {key}")
        scale = np.maximum(np.abs(field.min.astype(np.float64)), np.abs(field.max.astype(np.float64)))
        for key in ("mean", "std"):
            error = np.abs(getattr(field, key) - expected[name][key])
            assert (error <= 1e-11 * (scale + 1e-30)).all(), f"{name} {key}"


def assert_same(one: Statistics, other: Statistics) -> None:
    """To the last bit."""
    mine, theirs = one.to_json(), other.to_json()
    assert {**mine, "source": "", "format": ""} == {**theirs, "source": "", "format": ""}


@BOTH
@pytest.mark.parametrize(
    "name",
    [
        "d4rl/hopper_medium-v2.hdf5",
        "rlds/d4rl_mujoco_hopper/v2-medium/1.2.0",
        "rlds/robomimic_ph/lift_ph_low_dim/1.0.1",
        "minari/pendulum/random-v0",
        "minari/dummy-dict/test-v0",
    ],
)
def test_of_each_format(name: str, sets: Path) -> None:
    found = rlds2buf.statistics(sets / name)
    with rlds2buf.open_source(sets / name) as source:
        episodes = list(source)
    assert_right(found, of_episodes(episodes))
    assert (found.episodes, found.steps) == (len(episodes), sum(map(len, episodes)))
    assert found.transitions == found.steps - found.episodes


def episodes(seed: int, count: int = 9) -> list[Episode]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        rows = int(rng.integers(1, 40))
        last = {"is_last": np.arange(rows) == rows - 1}
        made.append(
            Episode(
                observation={"q": rng.standard_normal((rows, 3)).astype(np.float32), "on": rng.random(rows) < 0.5},
                action=rng.integers(-3, 9, (rows, 2)),
                reward=rng.standard_normal(rows),
                extras={"note": np.array([b"a"] * rows, object), "level": rng.integers(0, 200, rows).astype(np.uint8)},
                **last,
                metadata=[{}, {"placeholder_final_row": True}, {"real_final_action": True}][(i + seed) % 3],
            )
        )
    return made


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), keep=st.booleans(), memory=st.sampled_from([0, 300, 1 << 30]))
def test_final_rows_count_where_they_are_real(seed: int, keep: bool, memory: int) -> None:
    made = episodes(seed)
    how = {"final_transition": "keep" if keep else "drop", "memory": memory}
    found = rlds2buf.statistics(made, **how)
    expected = of_episodes(made, final_is_real=keep)
    if all(len(one) == 1 for one in made):
        return
    if found["action"].count.all() and found["observation/q"].count.all():
        assert_right(found, expected)
    assert found.transitions == int(found["action"].count.max())
    assert found.left_out == {"extras/note": "text"}


def test_parts_and_blocks_do_not_matter(tmp_path: Path) -> None:
    made = episodes(3, 60)
    rlds2buf.convert(made, tmp_path / "whole", to="rlds")
    with rlds2buf.open_source(tmp_path / "whole") as source:
        kept = list(source)
    expected = rlds2buf.statistics(kept)
    assert_same(rlds2buf.statistics(tmp_path / "whole"), expected)
    assert_same(rlds2buf.statistics(tmp_path / "whole", memory=0), expected)
    joined = rlds2buf.open_mixture([kept[:13], kept[13:]], source_column=False)
    assert_same(rlds2buf.statistics(joined), expected)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 30), max_size=4), memory=st.sampled_from([0, 1 << 20]))
def test_parts_that_are_joined_are_the_whole(seed: int, cuts: list[int], memory: int) -> None:
    made = episodes(seed, 30)
    source = rlds2buf.open_source(made)
    edges = [0, *sorted(cuts), len(made)]
    with contextlib.ExitStack() as stack:
        parts = []
        for start, stop in itertools.pairwise(edges):
            part = Measure(source.spec, stack.enter_context(Spool(memory)))
            for batch in source.read_batches(start, stop, rows=17):
                assert isinstance(batch, EpisodeBatch)
                part.add(batch)
            parts.append(part)
        for part in parts[1:]:
            parts[0].join(part)
        assert_same(parts[0].statistics(source), rlds2buf.statistics(source))
        other = Measure(rlds2buf.spec_of(Episode(action=np.zeros(3))), stack.enter_context(Spool()))
        with pytest.raises(ValueError, match="different fields"):
            other.join(parts[0])


def test_of_what_a_filter_keeps() -> None:
    made = episodes(5, 20)
    found = rlds2buf.statistics(made, min_length=15, drop=["extras/level"])
    assert_right(found, of_episodes([one.replace(extras={}) for one in made if len(one) >= 15]))


class TestPictures:
    @pytest.fixture
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many pictures each call decodes."""
        calls: list[int] = []
        real = decode.decode_frames

        def counting(files: Any, *more: Any) -> Any:
            calls.append(len(files))
            return real(files, *more)

        for place in (
            "rlds2buf.pipeline.measuring",
            "rlds2buf.codecs.images.pool",
            "rlds2buf.formats.tf_example.columns",
        ):
            monkeypatch.setattr(f"{place}.decode_frames", counting, raising=False)
        return calls

    @BOTH
    def test_are_told_by_a_sample(self, sets: Path) -> None:
        path = sets / "rlds/bridge_dataset/1.0.0"
        every = rlds2buf.statistics(path, picture_sample="all")
        pictures = [name for name, field in every.fields.items() if field.is_picture]
        assert pictures and all(every[name].count.tolist() == [every.steps] * 3 for name in pictures)
        with rlds2buf.open_source(path) as source:
            frames = np.concatenate([episode.observation["image_0"] for episode in source]).reshape(-1, 3)
        found = every["observation/image_0"]
        np.testing.assert_array_equal(found.q99, np.quantile(frames, 0.99, axis=0) / 255)
        np.testing.assert_allclose(found.mean, frames.mean(0) / 255, rtol=1e-9)
        some = rlds2buf.statistics(path, picture_sample=20)
        assert some["observation/image_0"].count.tolist() == [20] * 3
        assert not {"observation/image_0"} & rlds2buf.statistics(path, picture_sample=0).fields.keys()
        numbers = [name for name in every.fields if name not in pictures]
        assert every.only(numbers).to_json() == some.only(numbers).to_json()

    def test_are_not_decoded_for_the_numbers(self, counted: list[int]) -> None:
        path = MADE / "rlds/bridge_dataset/1.0.0"
        for options in ({}, {"where": "length > 0"}, {"drop": ["reward"]}, {"sample": 0.5}):
            found = rlds2buf.statistics(path, picture_sample=0, **options)
            assert found["action"].count.all() and not counted
        found = rlds2buf.statistics(path, picture_sample=10)
        assert sum(counted) == 10 * sum(field.is_picture for field in found.fields.values())

    def test_decoded_ones_in_any_order_of_axes(self) -> None:
        rng = np.random.default_rng(0)
        frames = rng.integers(0, 256, (30, 12, 10, 3)).astype(np.uint8)
        one = Episode(observation={"last": frames, "first": np.moveaxis(frames, -1, 1).copy(), "gray": frames[..., 0]})
        found = rlds2buf.statistics([one], picture_sample="all")
        for key in (*RIGHT, "mean", "std"):
            expected = getattr(found["observation/last"], key)
            np.testing.assert_array_equal(getattr(found["observation/first"], key), expected)
            np.testing.assert_array_equal(getattr(found["observation/gray"], key), expected[:1])
        np.testing.assert_allclose(found["observation/last"].std, frames.std(axis=(0, 1, 2)) / 255)

    @pytest.mark.parametrize(("frames", "found"), [(1, 1), (7, 7), (25, 25), (64, 64), (90, 90), (91, 90), (1000, 90)])
    def test_as_many_as_asked_for_if_there_are(self, frames: int, found: int) -> None:
        sample = PictureSample.of(np.arange(9), np.full(9, 10), frames)
        rows = [row for rows in sample.rows for row in rows.tolist()]
        assert len(rows) == found and len(sample.episodes) == len(sample.rows) == min(9, -(-frames // 10))
        assert all(len(set(part.tolist())) == len(part) and part.max() < 10 for part in sample.rows)

    def test_frames_of_videos(self, tmp_path: Path) -> None:
        write_v3(tmp_path / "set")
        found = rlds2buf.statistics(tmp_path / "set", picture_sample="all")
        with rlds2buf.open_source(tmp_path / "set") as source:
            frames = np.concatenate([episode.observation["images"]["top"] for episode in source])
        top = found["observation/images/top"]
        assert top.is_picture and top.count.tolist() == [len(frames)] * 3
        np.testing.assert_allclose(top.mean, frames.mean(axis=(0, 1, 2)) / 255)
        np.testing.assert_array_equal(top.q50, np.quantile(frames.reshape(-1, 3), 0.5, axis=0) / 255)
        few = rlds2buf.statistics(tmp_path / "set", picture_sample=3)
        assert few["observation/images/wrist"].count.tolist() == [3, 3, 3]

    def test_made_up_frames_are_not_looked_at(self) -> None:
        frames = np.full((3, 8, 8, 3), 255, np.uint8)
        frames[-1] = 0
        made = Episode(observation=frames, metadata={"placeholder_final_row": True})
        found = rlds2buf.statistics([made, made], picture_sample="all")["observation"]
        assert found.min.tolist() == [1, 1, 1] and found.count.tolist() == [4, 4, 4]


class TestWrong:
    def test_what_is_not_finite_is_named(self) -> None:
        made = episodes(0)
        made[4].action = made[4].action.astype(np.float64)
        made = [one.replace(action=one.action.astype(np.float64)) for one in made]
        made[4].reward[:-1][-1:] = np.inf
        row = len(made[4]) - 2
        with pytest.raises(
            EpisodeError, match=rf"episode 4, step {row}, reward: .*has NaN or infinity; allow_nonfinite"
        ):
            rlds2buf.statistics(made)
        found = rlds2buf.statistics(made, allow_nonfinite=True)
        assert np.isfinite(found["reward"].max).all()
        assert int(found["reward"].count) == int(found["action"].count.max()) - 1

    def test_padding_may_be_nan(self) -> None:
        made = Episode(observation=np.zeros(4), action=np.array([1.0, 2.0, 3.0, np.nan]))
        assert rlds2buf.statistics([made])["action"].mean.tolist() == 2.0

    def test_episodes_that_differ(self) -> None:
        made = [Episode(action=np.zeros((3, 2))), Episode(action=np.zeros((3, 4)))]
        with pytest.raises(SpecMismatch, match="action"):
            rlds2buf.statistics(made)

    def test_episodes_that_can_not_be_read(self) -> None:
        steps = [{"observation": 1.0, "action": 2.0}, {"observation": 3.0, "action": 0.0}]
        given_ = [steps, [], steps]
        with pytest.raises(EpisodeError, match=r"episode 1.*on_invalid='skip' leaves such episodes out"):
            rlds2buf.statistics(given_)
        found = rlds2buf.statistics(given_, on_invalid="skip")
        assert found.episodes == 2 and "1 episodes could not be read" in found.warnings[-1]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"picture_sample": -1}, "picture_sample must not be negative"),
            ({"final_transition": "x"}, "final_transition must be one of drop, keep"),
            ({"on_invalid": "repair"}, "on_invalid must be one of raise, skip"),
            ({"memory": -1}, "memory must not be negative"),
        ],
    )
    def test_arguments(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            rlds2buf.statistics([Episode(action=np.zeros(3))], **options)
        with rlds2buf.open_source([Episode(action=np.zeros(3))]) as source:
            with pytest.raises(ValueError, match="are for a path"):
                rlds2buf.statistics(source, split="train")

    def test_an_endless_mixture(self) -> None:
        mixture = rlds2buf.open_mixture([episodes(0), episodes(1)], weights=[1, 1], stop="never")
        with pytest.raises(ValueError, match="has no statistics"):
            rlds2buf.statistics(mixture)


def test_fields_by_name_and_printed() -> None:
    found = rlds2buf.statistics(episodes(0))
    assert found["level"] is found["extras/level"] and "action" in found and len(found) == len(list(found))
    with pytest.raises(KeyError, match="'extras/note': text"):
        found["extras/note"]
    assert "observation/q   float32[3] from -" in repr(found)


@pytest.mark.parametrize("shape", [(20_000,), (200, 100)])
def test_fields_too_wide_to_be_listed_are_named(shape: tuple[int, ...]) -> None:
    found = rlds2buf.statistics([Episode(observation=np.zeros((2, *shape), np.float32), action=np.zeros(2))])
    assert found.left_out == {"observation": "20,000 numbers a step are too many to be listed"}


class TestLeRobot:
    """Every row's action is real there, the last one's too."""

    @pytest.mark.parametrize("name", ["lerobot/so101_v3_no_video", "lerobot/g1_v21"])
    def test_real_ones(self, name: str) -> None:
        how: dict[str, Any] = {"drop": ["observation/images"]}
        found = rlds2buf.statistics(DATA / name, **how)
        with rlds2buf.open_source(DATA / name, **how) as source:
            assert_right(found, of_episodes(list(source)))
        assert (found["action"].count == found.steps).all() and found.transitions == found.steps

    @pytest.mark.parametrize("write", [write_v3, write_v2])
    def test_made_ones(self, write: Any, tmp_path: Path) -> None:
        write(tmp_path / "set", cameras=())
        found = rlds2buf.statistics(tmp_path / "set")
        parts = [part["action"] for part in columns_of()]
        assert found.episodes == len(parts) and (found["action"].count == sum(map(len, parts))).all()
        np.testing.assert_array_equal(
            found["action"].q90, np.quantile(np.concatenate(parts).astype(float), 0.9, axis=0)
        )
