"""OGBench's files: as its generators write them, against its own loader's rules, and written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2buf import (
    Episode,
    LimitExceeded,
    SinkError,
    SnapshotExists,
    SourceError,
    SourceFormatError,
    SourceNotFound,
    open_source,
    spec_of,
    transitions,
    validate,
)
from rlds2buf.formats.ogbench.sink import OgbenchSink
from rlds2buf.formats.ogbench.source import OgbenchSource
from rlds2buf.io.sink import Sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.contracts.source import MakeSource, SourceContract
from tests.differences import assert_only_lost

LENGTHS = (4, 7, 1, 3)


def columns(lengths: tuple[int, ...] = LENGTHS, seed: int = 0, **changes: Any) -> dict[str, np.ndarray]:
    """As generate_manipspace.py's train set."""
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    terminals = np.zeros(count, bool)
    terminals[np.cumsum(lengths, dtype=int) - 1] = True
    made = {
        "observations": rng.normal(size=(count, 5)).astype(np.float32),
        "actions": rng.normal(size=(count, 2)).astype(np.float32),
        "terminals": terminals,
        "qpos": rng.normal(size=(count, 3)).astype(np.float32),
        "qvel": rng.normal(size=(count, 3)).astype(np.float32),
        "button_states": rng.integers(0, 2, (count, 4)),
    }
    return {name: column for name, column in {**made, **changes}.items() if column is not None}


def write(path: Path, **given: Any) -> Path:
    np.savez_compressed(path, **columns(**given))
    return path


def load_dataset(path: Path) -> dict[str, np.ndarray]:
    """What OGBench's own load_dataset gives (ogbench/utils.py, compact_dataset=False), row by row."""
    with np.load(path) as file:
        table = {name: file[name] for name in ("observations", "actions", "terminals")}
    found: dict[str, list[Any]] = {"observations": [], "actions": [], "next_observations": [], "terminals": []}
    for row, is_last in enumerate(table["terminals"]):
        if not is_last:
            found["observations"].append(table["observations"][row])
            found["actions"].append(table["actions"][row])
            found["next_observations"].append(table["observations"][row + 1])
            found["terminals"].append(table["terminals"][row + 1])
    return {name: np.array(rows) for name, rows in found.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "scene-play-v0.npz")


class TestSource(SourceContract):
    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:
        return lambda: open_source(path)

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], Any]:
        return lambda: write(path, seed=1)

    def test_is_what_its_own_loader_gives(self, path: Path) -> None:
        expected = load_dataset(path)
        found = [transitions(episode) for episode in open_source(path)]
        for mine, theirs in (("observation", "observations"), ("action", "actions")):
            np.testing.assert_array_equal(np.concatenate([getattr(t, mine) for t in found]), expected[theirs])
        following = np.concatenate([t.next_observation for t in found])
        np.testing.assert_array_equal(following, expected["next_observations"])
        lasts = np.concatenate([np.arange(len(t.action)) == len(t.action) - 1 for t in found])
        np.testing.assert_array_equal(lasts, expected["terminals"])
        assert not np.concatenate([t.terminated for t in found]).any()

    def test_every_value(self, path: Path) -> None:
        held, low = columns(), 0
        for length, episode in zip(LENGTHS, open_source(path), strict=True):
            rows = slice(low, low + length)
            low += length
            pairs = {"observations": episode.observation, "actions": episode.action, **episode.extras}
            assert pairs.keys() == held.keys() - {"terminals"}
            for name, column in pairs.items():
                assert column.dtype == held[name].dtype
                np.testing.assert_array_equal(column, held[name][rows])
            assert episode.reward is None and episode.end == "truncated" and episode.derived == {"is_terminal"}
            assert (episode.discount == 1).all() and not episode.metadata

    def test_what_is_told(self, path: Path) -> None:
        source = open_source(path)
        assert (source.format, source.num_episodes, source.num_steps) == ("ogbench", 4, 15)
        assert source.warnings() == ["no rewards, and ends of trajectories are cuts: tasks are told by goals"]
        assert validate(source).ok

    def test_pictures(self, tmp_path: Path) -> None:
        pictures = np.random.default_rng(0).integers(0, 256, (15, 8, 8, 3)).astype(np.uint8)
        source = open_source(write(tmp_path / "visual-cube-v0.npz", observations=pictures))
        np.testing.assert_array_equal(np.concatenate([ep.observation for ep in source]), pictures)

    @pytest.mark.parametrize(
        ("name", "given", "format"),
        [
            ("a.npz", {}, "ogbench"),
            ("a-v0-val.npz", {"qpos": None, "qvel": None, "button_states": None}, "ogbench"),
            ("a.npz", {"qpos": None, "qvel": None, "button_states": None}, "npz"),
            ("a-v0.npz", {"rewards": np.zeros(15)}, "npz"),
        ],
    )
    def test_how_it_is_told(self, tmp_path: Path, name: str, given: dict[str, Any], format: str) -> None:
        assert open_source(write(tmp_path / name, **given)).format == format

    def test_an_open_end(self, tmp_path: Path) -> None:
        terminals = columns()["terminals"].copy()
        terminals[-1] = False
        source = open_source(write(tmp_path / "a-v0.npz", terminals=terminals))
        assert [ep.metadata for ep in source] == [{}, {}, {}, {"open_tail": True}]
        assert "no end flag" in source.warnings()[-1]

    def test_pickles_and_odd_arrays_are_left_out_and_said(self, tmp_path: Path) -> None:
        infos = np.array([{}] * 15, object)
        source = open_source(write(tmp_path / "a-v0.npz", infos=infos, goals=np.zeros((3, 2))))
        assert source.warnings()[1:] == [
            "`infos` holds Python objects, which are pickled and never loaded: left out",
            "`goals` has 3 rows, not 15: left out",
        ]
        assert set(next(iter(source)).extras) == {"qpos", "qvel", "button_states"}

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"terminals": None}, "no `terminals`, which marks the last state of each trajectory; it holds actions, b"),
            ({"actions": np.zeros((9, 2))}, "`actions` has 9 rows, it should have 15"),
            ({"terminals": np.full(15, 0.5)}, "`terminals`, row 0: a flag should be 0 or 1, got 0.5"),
            ({"terminals": np.zeros((15, 2))}, r"`terminals` should hold one number a row, got float64\[15, 2\]"),
            ({"terminals": np.zeros(15, "S3")}, "`terminals` should hold one number a row"),
            ({"observations": np.array(3.0)}, "`observations` is a single value"),
            ({"observations": np.array([None] * 15)}, "`observations` holds Python objects"),
        ],
    )
    def test_wrong_files(self, tmp_path: Path, given: dict[str, Any], message: str) -> None:
        path = write(tmp_path / "a-v0.npz", **given)
        with pytest.raises(SourceFormatError, match=message) as caught:
            open_source(path, format="ogbench")
        assert str(path) in str(caught.value)

    def test_no_rows_at_all(self, tmp_path: Path) -> None:
        source = open_source(write(tmp_path / "a-v0.npz", lengths=()))
        assert (source.num_episodes, source.num_steps, list(source)) == (0, 0, [])

    def test_rewards_are_a_log_of_one_s_own(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a-v0.npz", rewards=np.zeros(15))
        with pytest.raises(SourceFormatError, match=r"have no rewards; format='npz' reads a log"):
            open_source(path, format="ogbench")

    def test_no_such_file(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound):
            OgbenchSource(tmp_path / "none.npz")
        (tmp_path / "a.npz").write_bytes(b"PK\3\4")
        with pytest.raises(SourceFormatError, match=r"no readable \.npz file"):
            OgbenchSource(tmp_path / "a.npz")

    def test_limits(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a-v0.npz", observations=np.zeros((15, 100_000)))
        for limit in (1_000_000, 4_000_000):
            with pytest.raises(LimitExceeded, match="max_bytes"):
                list(open_source(path, max_bytes=limit))

    @pytest.mark.parametrize("seed", range(9))
    def test_damaged(self, path: Path, seed: int) -> None:
        rng = np.random.default_rng(seed)
        content = bytearray(path.read_bytes())
        content = content[: int(rng.integers(len(content)))] if seed % 3 == 0 else content
        for place in rng.integers(0, len(content), 5):
            content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            source = OgbenchSource(path)
            assert len(list(source.read())) == source.num_episodes
        except SourceError as error:
            assert str(path) in str(error)


class Counting(OgbenchSink):
    """Of a nested observation only the count, which an array holds."""

    def open(self, spec: Any, provenance: Mapping[str, Any]) -> None:
        fields = {name: getattr(spec, name) for name in ("action", "reward", "discount", "extras")}
        super().open(type(spec)(**fields, observation=spec.observation["count"]), provenance)

    def write(self, episode: Episode) -> int:
        return super().write(episode.replace(observation=episode.observation["count"]))


class TestSink(SinkContract):
    def make(self, folder: Path) -> Sink:
        return Counting(folder / "file.npz")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "file.npz").exists():
            return None
        return [int(n) for ep in open_source(folder / "file.npz") for n in np.asarray(ep.observation)[:-1]]


def make(rows: int, start: int = 0, **changes: Any) -> Episode:
    number = np.arange(start, start + rows)
    episode = Episode(
        observation=np.stack([number, -number], 1).astype(np.float32),
        action=number.astype(np.int16)[:, None],
        is_first=np.arange(rows) == 0,
        is_last=np.arange(rows) == rows - 1,
        discount=np.ones(rows, np.float32),
        extras={"qpos": number * 0.5},
    )
    return episode.replace(**changes)


def written(path: Path, episodes: list[Episode], **options: Any) -> Mapping[str, str]:
    sink = OgbenchSink(path, **options)
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        sink.write(episode)
    sink.commit()
    return sink.lost()


class TestWriting:
    @pytest.mark.parametrize("compressed", [True, False])
    def test_is_a_file_as_ogbench_has_it(self, tmp_path: Path, compressed: bool) -> None:
        episodes = [make(4), make(1, 10), make(6, 20)]
        assert written(tmp_path / "a.npz", episodes, compressed=compressed) == {}
        with np.load(tmp_path / "a.npz") as file:
            assert set(file) == {"observations", "actions", "terminals", "qpos", "rlds2buf"}
            assert file["terminals"].dtype == np.bool_ and file["terminals"].nonzero()[0].tolist() == [3, 4, 10]
            np.testing.assert_array_equal(file["observations"], np.concatenate([ep.observation for ep in episodes]))
            assert json.loads(str(file["rlds2buf"])) == PROVENANCE
        assert len(load_dataset(tmp_path / "a.npz")["actions"]) == 8
        assert_only_lost(episodes, open_source(tmp_path / "a.npz"), {})

    def test_a_file_comes_back(self, path: Path, tmp_path: Path) -> None:
        before = list(open_source(path))
        assert written(tmp_path / "b.npz", before) == {}
        assert_only_lost(before, open_source(tmp_path / "b.npz"), {})

    def test_what_has_no_place_is_listed(self, tmp_path: Path) -> None:
        rows = np.arange(4)
        texts = np.array([b"a", b"b", b"c", b"d"], object)
        extras = {"qpos": rows, "note": texts, "rewards": rows, "deep": {"x": rows}}
        episode = make(4, extras=extras, reward=rows * 1.0, metadata={"task": 3}, is_terminal=rows == 3)
        lost = dict(written(tmp_path / "a.npz", [episode]))
        assert lost.pop("extras/note").startswith("it is text")
        assert lost.pop("extras/rewards").startswith("its name") and lost.pop("extras/deep/x").startswith("its name")
        assert lost.keys() == {"reward", "metadata/task", "is_terminal"}
        assert_only_lost([episode], open_source(tmp_path / "a.npz"), written(tmp_path / "b.npz", [episode]))

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"observation": {"a": np.zeros(4)}}, "observation is nested"),
            ({"action": None}, "have no action"),
            ({"action": np.array([b""] * 4, object)}, "action: it is text"),
        ],
    )
    def test_refused_before_anything_is_made(self, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
        with pytest.raises(SinkError, match=says):
            OgbenchSink(tmp_path / "a.npz").open(spec_of(make(4, **changes)), PROVENANCE)
        assert not list(tmp_path.iterdir())

    def test_overwrites_such_files_only(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npz"
        np.savez(path, holiday=np.zeros(3))
        for overwrite in (False, True):
            with pytest.raises(SnapshotExists):
                written(path, [make(4)], overwrite=overwrite)
        path.unlink()
        written(path, [make(4)])
        written(path, [make(3)], overwrite=True)
        assert [len(episode) for episode in open_source(path)] == [3]

    def test_goes_on_from_a_checkpoint(self, tmp_path: Path) -> None:
        episodes = [make(5, 10), make(3, 20), make(6, 30)]
        written(tmp_path / "whole.npz", episodes)
        first = OgbenchSink(tmp_path / "a.npz", resume=True)
        first.open(spec_of(episodes[0]), PROVENANCE)
        first.write(episodes[0])
        first.checkpoint({"read": 1})
        first.abort()
        second = OgbenchSink(tmp_path / "a.npz", resume=True)
        second.open(spec_of(episodes[0]), PROVENANCE)
        assert second.resumed() == {"read": 1}
        for episode in episodes[1:]:
            second.write(episode)
        second.commit()
        assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
