"""What people hold in their hands: dicts of arrays, lists of them, lists of paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rlds2buf
from rlds2buf import SourceFormatError, open_source
from rlds2buf.formats.step_log import arrays_log
from rlds2buf.io.source import Source
from tests.contracts.source import SourceContract

ROWS = 12


def d4rl() -> dict[str, Any]:
    """D4RL's columns, as ``get_dataset()`` gives them: two episodes, one terminated, one timed out."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "actions": rng.normal(size=(ROWS, 2)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminals": np.arange(ROWS) == 4,
        "timeouts": np.arange(ROWS) == ROWS - 1,
        "infos/qpos": rng.normal(size=(ROWS, 4)),
    }


def qlearning() -> dict[str, Any]:
    """As ``qlearning_dataset()``: next observations, and no flag where the time limit cut row 8."""
    data = d4rl()
    after = np.roll(data["observations"], -1, axis=0)
    after[[4, 8, ROWS - 1]] += 100
    del data["timeouts"], data["infos/qpos"]
    return {**data, "next_observations": after}


def trajectories() -> list[dict[str, Any]]:
    return [
        {"obs": {"q": np.full((n, 2), n, np.float32), "note": ["a"] * n}, "act": list(range(n)), "rew": np.ones(n)}
        for n in (2, 5, 3)
    ]


class TestContract(SourceContract):
    """As of every source."""

    @pytest.fixture(params=[d4rl, qlearning, trajectories])
    def data(self, request: pytest.FixtureRequest) -> Any:
        return request.param()

    @pytest.fixture
    def make_source(self, data: Any) -> Callable[[], Source]:
        return lambda: open_source(data)

    @pytest.fixture
    def change(self, data: Any) -> Callable[[], None]:
        rewards = data["rewards"] if isinstance(data, dict) else data[1]["rew"]
        return lambda: rewards.__setitem__(1, 77)


def same(one: rlds2buf.Episode, other: rlds2buf.Episode) -> None:
    for (path, column), (there, values) in zip(one.flatten(), other.flatten(), strict=True):
        assert path == there and column.dtype == values.dtype
        np.testing.assert_array_equal(column, values)
    assert one.end == other.end


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("make", [d4rl, qlearning])
def test_a_dict_is_read_as_the_file_of_the_same_arrays(make: Any, nested: bool, tmp_path: Path) -> None:
    data = make()
    if "timeouts" not in data:  # the file has no other way to say it
        flags = {"timeouts": np.isin(np.arange(ROWS), [8, ROWS - 1])}
    else:
        flags = {}
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, values in {**data, **flags}.items():
            file[name] = values
    if nested and "infos/qpos" in data:
        data["infos"] = {"qpos": data.pop("infos/qpos")}
    given = open_source(data)
    assert given.format == "arrays"
    for one, other in zip(given, open_source(tmp_path / "a.hdf5"), strict=True):
        same(one, other)


def test_episodes_without_a_flag_for_time_limits_are_not_joined() -> None:
    source = open_source(qlearning())
    assert [episode.num_transitions for episode in source] == [5, 4, 3]
    assert [episode.end for episode in source] == ["terminated", "truncated", "truncated"]
    assert any("cut where the next row is not the next observation" in text for text in source.warnings())


def test_each_dict_of_a_list_is_an_episode() -> None:
    source = open_source(trajectories())
    assert [episode.num_steps for episode in source] == [2, 5, 3]
    (first, *_) = source
    assert first.observation["q"].tolist() == [[2.0, 2.0]] * 2 and first.observation["note"].tolist() == [b"a"] * 2
    longer = [{**entry, "obs": np.zeros((len(entry["act"]) + 1, 2))} for entry in trajectories()]
    assert [episode.num_transitions for episode in open_source(longer)] == [2, 5, 3]


def test_single_values_and_metadata_are_of_the_episodes() -> None:
    (episode, _) = open_source({**d4rl(), "metadata/algorithm": "SAC", "seed": 3})
    assert episode.metadata["algorithm"] == "SAC" and episode.metadata["seed"] == 3


def test_a_dict_goes_into_a_buffer() -> None:
    source = open_source(d4rl(), float32=True)
    buffer = rlds2buf.make_circular(source.spec, 100)
    report = rlds2buf.convert(source, buffer)
    assert report.items == len(buffer) == ROWS - 1  # the time-out's last action has no successor


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"actions": np.zeros((ROWS - 2, 2))}, f"`actions` has {ROWS - 2} rows, where most have {ROWS}"),
        ({"extra": np.zeros(3)}, "`extra` has 3 rows"),
        ({"extra": np.array([object()] * ROWS)}, "`extra` holds neither numbers nor text"),
        ({"observations": [[1.0], [1.0, 2.0]] * 6}, "`observations` holds neither numbers nor text"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SourceFormatError, match=says):
        open_source({**d4rl(), **change})


def test_entries_that_are_none() -> None:
    with pytest.raises(TypeError, match="entry 1 should be a dict of arrays, as the first entry is, got int"):
        open_source([trajectories()[0], 3])
    with pytest.raises(TypeError, match="an Episode, a list of step dicts or a dict of arrays, got dict"):
        open_source([{"observation": [0.0, 1.0], "reward": 1.0}])  # a step, not in a list of its own


def test_several_paths_of_one_format_are_read_one_after_another(tmp_path: Path) -> None:
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.hdf5", "w") as file:
            for name, values in d4rl().items():
                file[name] = values + number if name == "observations" else values
    paths = [tmp_path / f"{number}.hdf5" for number in (2, 0, 1)]
    source = open_source([str(paths[0]), *paths[1:]], map={"reward": "reward"})
    assert source.spec == open_source(paths[0]).spec and source.num_episodes == 6
    for one, other in zip(source, [e for path in paths for e in open_source(path)], strict=True):
        same(one, other)
    np.savez(tmp_path / "log.npz", **{name: values for name, values in d4rl().items() if "/" not in name})
    with pytest.raises(ValueError, match=r"2\.hdf5 is d4rl and .*log\.npz is npz; open_mixture takes sources of any"):
        open_source([paths[0], tmp_path / "log.npz"])
    with pytest.raises(rlds2buf.SourceNotFound):
        open_source([paths[0], tmp_path / "none.hdf5"])


@pytest.mark.parametrize("block_bytes", [1, 100, 1000, 1 << 20])
@pytest.mark.parametrize("more", [0, 1])
def test_short_entries_are_read_several_at_a_time(monkeypatch: pytest.MonkeyPatch, block_bytes: int, more: int) -> None:
    """With a last observation more or without, numbers of two types, and texts of several widths."""
    monkeypatch.setattr(arrays_log, "BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(0)
    entries = [
        {
            "obs": rng.normal(size=(n + more, 2)).astype(np.float32 if i % 2 else np.float64),
            "act": rng.integers(0, 9, n),
            "task": [f"{i * 10**n}"] * n,
            "truncated": np.arange(n) == n - 1,
            "metadata": {"number": i},
        }
        for i, n in enumerate(rng.integers(1, 50, 40).tolist())
    ]
    source = open_source(entries)
    for low in (0, 7, 39):
        for entry, found in zip(entries[low:], source.read(low), strict=True):
            assert isinstance(found, rlds2buf.Episode) and found.metadata == {"number": found.index}
            steps = len(entry["act"])
            assert found.observation.dtype == np.float64 and len(found) == steps + more
            np.testing.assert_array_equal(found.observation, entry["obs"])
            np.testing.assert_array_equal(found.action[:steps], entry["act"])
            assert found.extras["task"].tolist() == [text.encode() for text in entry["task"]] + [b""] * more
