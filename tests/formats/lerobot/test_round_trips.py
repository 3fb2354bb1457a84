"""What is written as a LeRobot dataset reads back as it was: fields of every kind, texts, ends, metadata."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rlds2buf import Episode, FieldSpec, StepSpec, convert, open_source, spec_of
from rlds2buf.core import nest
from rlds2buf.core.row_flags import PLACEHOLDER_FINAL_ROW, REAL_FINAL_ACTION
from rlds2buf.formats.lerobot.sink import LeRobotDirSink
from tests.data import DATA
from tests.differences import differences
from tests.formats.lerobot.test_sink import texts

NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64".split()
NAMES = ["state", "proprio", "image", "image_size", "task", "index", "a.b", "a", "next.done", "action", "instruction"]

Make = Any
"""From a number of rows to a column."""


def numbers(dtype: str, shape: tuple[int, ...], most: int) -> st.SearchStrategy[Make]:
    """Of whole numbers up to `most`."""
    kind = np.dtype(dtype)

    def column(seed: int) -> Make:
        def make(rows: int) -> np.ndarray:
            rng = np.random.default_rng(seed + rows)
            if kind.kind in "fc":
                return rng.normal(size=(rows, *shape)).astype(kind)
            high = 1 if kind.kind == "b" else min(most, int(np.iinfo(kind).max))
            return rng.integers(0, high, (rows, *shape), np.uint64, endpoint=True).astype(kind)

        return make

    return st.integers(0, 1 << 20).map(column)


def words(shape: tuple[int, ...], inside: list[bytes]) -> Make:
    def make(rows: int) -> np.ndarray:
        out = np.empty((rows, *shape), object)
        out.reshape(-1)[:] = [inside[i % len(inside)] for i in range(out.size)]
        return out

    return make


def ragged(rows: int) -> np.ndarray:
    return texts([np.arange(3 * (k % 2) + 1, dtype=np.float32) for k in range(rows)])


SHAPES = arrays.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=2)
TEXT = st.lists(st.text(max_size=5).map(lambda text: text.encode()), min_size=1, max_size=3)


def nests(most: int) -> st.SearchStrategy[Make]:
    leaves = st.one_of(
        st.tuples(st.sampled_from(NUMBERS), SHAPES).flatmap(lambda told: numbers(*told, most)),
        TEXT.map(lambda inside: words((), inside)),
        TEXT.map(lambda inside: words((2,), inside)),
        st.just(ragged),
    )
    return st.recursive(
        leaves,
        lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3) | st.tuples(inner, inner),
        max_leaves=5,
    )


METADATA = st.dictionaries(
    st.sampled_from(["seed", "who", "sizes"]),
    st.integers(0, 9) | st.binary(max_size=3) | st.text(max_size=3) | st.just([1, 2]) | st.just(np.eye(2)),
)


def built(make: Any, rows: int) -> Any:
    if isinstance(make, dict):
        return {name: built(child, rows) for name, child in make.items()}
    return tuple(built(child, rows) for child in make) if isinstance(make, tuple) else make(rows)


@st.composite
def datasets(draw: st.DrawFn) -> list[Episode]:
    """Episodes of one spec, whose last actions and rewards may be padding or not."""
    observation, action = draw(nests(1 << 64)), draw(nests(1 << 53))  # an action's numbers may be joined
    extras = draw(st.dictionaries(st.sampled_from(NAMES), nests(1 << 64), max_size=3))
    made = []
    for rows in draw(st.lists(st.integers(2, 6), min_size=1, max_size=3)):
        last = np.arange(rows) == rows - 1
        reward = np.arange(rows, dtype=np.float32)
        reward[-1] = draw(st.sampled_from([0, 3, np.nan]))
        acted = built(action, rows)
        if draw(st.booleans()):
            for column in leaves(acted):
                column[-1] = b"" if column.dtype == object and isinstance(column[0], bytes) else column[-1] * 0
        made.append(
            Episode(
                observation=built(observation, rows),
                action=acted,
                reward=reward,
                discount=np.ones(rows, np.float32),
                is_first=np.arange(rows) == 0,
                is_last=last,
                is_terminal=last & draw(st.booleans()),
                extras=built(extras, rows),
                metadata=draw(METADATA),
            )
        )
    return made


def spec_of_all(made: list[Episode]) -> StepSpec:
    """With lengths that vary told as such."""

    def leaf(field: FieldSpec, column: np.ndarray) -> FieldSpec:
        varies = column.dtype == object and isinstance(column.reshape(-1)[0], np.ndarray)
        return FieldSpec((None,), np.float32) if varies else field

    spec, first = spec_of(made[0]), made[0]
    found = {name: nest.map_structure(leaf, getattr(spec, name), getattr(first, name)) for name in VARYING}
    return dataclasses.replace(spec, **found)


VARYING = ("observation", "action", "extras")


def leaves(value: Any) -> list[np.ndarray]:
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in leaves(child)]
    return [leaf for child in value for leaf in leaves(child)] if isinstance(value, tuple) else [value]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(datasets(), st.sampled_from(["3.0", "2.1"]))
def test_anything_comes_back(made: list[Episode], version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sink = LeRobotDirSink(folder + "/a", fps=10, version=version, images="png")
        sink.open(spec_of_all(made), {})
        for episode in made:
            assert sink.write(episode) == len(episode)
        sink.commit()
        assert not sink.lost()
        with open_source(folder + "/a") as source:
            assert not source.warnings()
            found = list(source)
    assert len(found) == len(made)
    for before, after in zip(made, found, strict=True):
        assert differences(before, after) == (set(), set())


def episodes() -> list[Episode]:
    made = []
    for i, rows in enumerate((4, 1, 9)):
        last = np.arange(rows) == rows - 1
        made.append(
            Episode(
                observation={"image": np.full((rows, 40, 33, 3), i, np.uint8), "state": np.ones((rows, 3), np.float32)},
                action=np.ones((rows, 2), np.float32) * ~last[:, None],
                reward=np.where(last, 5, 1.0),
                discount=np.ones(rows, np.float32),
                is_first=np.arange(rows) == 0,
                is_last=last,
                is_terminal=last & (i == 2),
                extras={"language_instruction": texts([b"push %d" % i] * rows)},
                metadata={"seed": np.int64(i)},
            )
        )
    return made


@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_rlds_to_lerobot_to_rlds(tmp_path: Path, version: str) -> None:
    convert(episodes(), tmp_path / "a", to="rlds")
    options = {"fps": 5, "version": version, "images": "png"}
    report = convert(tmp_path / "a", tmp_path / "b", to="lerobot", sink_options=options)
    assert report.episodes == 3 and not report.lost
    convert(tmp_path / "b", tmp_path / "c", to="rlds")
    with open_source(tmp_path / "a") as one, open_source(tmp_path / "c") as other:
        assert one.spec == other.spec
        for before, after in zip(one, other, strict=True):
            assert differences(before, after) == (set(), set())


def test_marks_of_last_rows_come_back(tmp_path: Path) -> None:
    made = episodes()
    made[0].metadata[REAL_FINAL_ACTION] = True
    made[2].metadata[PLACEHOLDER_FINAL_ROW] = True
    convert(made, tmp_path / "a", to="lerobot", sink_options={"fps": 5, "images": "png"})
    with open_source(tmp_path / "a") as source:
        for before, after in zip(made, source, strict=True):
            assert differences(before, after) == (set(), set())


def test_dropped_last_rows_leave_real_actions(tmp_path: Path) -> None:
    made = [episode for episode in episodes() if len(episode) > 1]
    options = {"fps": 5, "images": "png", "final_row": "drop"}
    convert(made, tmp_path / "a", to="lerobot", sink_options=options)
    with open_source(tmp_path / "a") as source:
        for before, after in zip(made, source, strict=True):
            assert len(after) == len(before) - 1 and after.end == before.end
            assert after.metadata[REAL_FINAL_ACTION]
            assert np.array_equal(after.action, np.asarray(before.action)[:-1])


def test_a_dataset_of_others_keeps_its_features_and_packets(tmp_path: Path) -> None:
    """v2.1 to v3.0 and back: no feature is added, no frame is encoded again, and every number is the same."""
    before = DATA / "lerobot/g1_v21"
    for source, target, version in ((before, "new", "3.0"), (tmp_path / "new", "back", "2.1")):
        report = convert(source, tmp_path / target, to="lerobot", sink_options={"version": version})
        assert not report.lost
        assert any("none was encoded again" in note for note in report.notes)
    features, others = (
        json.loads((path / "meta/info.json").read_text())["features"] for path in (before, tmp_path / "back")
    )
    assert features.keys() == others.keys()
    with open_source(before) as one, open_source(tmp_path / "back") as other:
        assert one.spec == other.spec
        for episode, found in zip(one, other, strict=True):
            assert differences(episode, found) == (set(), set())
            assert episode.derived == found.derived


def test_the_one_task_stays(tmp_path: Path) -> None:
    convert(episodes()[:1], tmp_path / "a", to="lerobot", sink_options={"fps": 5, "images": "png", "task": None})
    convert(tmp_path / "a", tmp_path / "b", to="lerobot", drop=["extras"], sink_options={"images": "png"})
    with open_source(tmp_path / "b") as source:
        assert source.facts()["task"] == "push 0"


def test_texts_of_fixed_width_come_back_as_texts_of_any(tmp_path: Path) -> None:
    """Their dataset is read as it was written, a list of such texts and the task too."""
    one = Episode(
        observation=np.zeros((3, 2), np.float32),
        action=np.zeros((3, 2), np.float32),
        reward=np.arange(3, dtype=np.float32),
        extras={"code": np.array([b"abc"] * 3), "words": np.array([["é", "b"]] * 3), "task": np.array(["lift"] * 3)},
    )
    report = convert([one], LeRobotDirSink(tmp_path / "a", fps=10))
    assert {"extras/code", "extras/words", "extras/task"} <= set(report.lost)
    with open_source(tmp_path / "a") as source:
        assert not source.details()["warnings"]
        (found,) = source
    assert found.observation.tolist() == one.observation.tolist()
    assert found.reward.tolist() == [0, 1, 2]
    assert found.extras["code"].tolist() == [b"abc"] * 3
    assert found.extras["words"].tolist() == [["é".encode(), b"b"]] * 3
    assert found.extras["task"].tolist() == [b"lift"] * 3
