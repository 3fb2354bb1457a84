"""Minari folders: real ones, what Minari writes here, and damaged ones."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from rlds2buf import Episode, EpisodeError, SourceFormatError, SourceNotFound, SpecMismatch, transitions
from rlds2buf.formats.minari.source import MinariDirSource
from tests.contracts.source import MakeSource, SourceContract
from tests.data import DATA, MINARI
from tests.formats.minari.folder import columns, write
from tests.made import BOTH, MADE

FOLDERS = {name.split("/")[1]: name for name in MINARI}


def copy(name: str, folder: Path) -> Path:
    """A copy of a dataset that a test may change."""
    target = folder / Path(FOLDERS[name]).name
    shutil.copytree(MADE / FOLDERS[name], target)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def edit_metadata(folder: Path, **changes: Any) -> None:
    """Set entries of metadata.json; None removes one."""
    path = folder / "data/metadata.json"
    metadata = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in metadata.items() if value is not None}))


def assert_counts(path: Path, episodes: int, steps: int) -> None:
    source = MinariDirSource(path)
    found = list(source)
    assert len(found) == episodes == source.num_episodes
    assert sum(episode.num_transitions for episode in found) == steps
    assert source.num_steps == steps + episodes


class TestRealFolders:
    """And their stand-ins."""

    @pytest.mark.parametrize(
        ("name", "episodes", "steps"),
        [("blackjack", 20, 30), ("cartpole", 8, 197), ("dummy-dict", 5, 25), ("pendulum", 4, 160)],
    )
    def test_counts(self, name: str, episodes: int, steps: int) -> None:
        assert_counts(DATA / FOLDERS[name], episodes, steps)

    @pytest.mark.parametrize(
        ("name", "episodes"), [("blackjack", 20), ("cartpole", 8), ("dummy-dict", 5), ("pendulum", 4)]
    )
    def test_counts_of_what_minari_writes(self, name: str, episodes: int) -> None:
        told = json.loads((MADE / FOLDERS[name] / "data/metadata.json").read_text())
        assert_counts(MADE / FOLDERS[name], episodes, told["total_steps"])

    @BOTH
    @pytest.mark.parametrize(
        ("name", "end"), [("blackjack", "terminated"), ("cartpole", "terminated"), ("pendulum", "truncated")]
    )
    def test_ends(self, sets: Any, name: str, end: str) -> None:
        for episode in MinariDirSource(sets / FOLDERS[name]):
            assert episode.end == end
            assert episode.is_first.sum() == episode.is_last.sum() == 1
            assert episode.discount.min() == (0 if end == "terminated" else 1)
            assert "open_tail" not in episode.metadata

    @BOTH
    def test_episodes_come_by_number(self, sets: Any) -> None:
        assert [episode.metadata["id"] for episode in MinariDirSource(sets / FOLDERS["blackjack"])] == list(range(20))

    @BOTH
    def test_tuples(self, sets: Any) -> None:
        source = MinariDirSource(sets / FOLDERS["blackjack"])
        assert [field.values[-1] for field in source.spec.observation] == [31, 10, 1]
        for episode in source:
            assert isinstance(episode.observation, tuple) and len(episode.observation) == 3
            assert all(column.dtype == np.int64 for column in episode.observation)

    @BOTH
    def test_dicts_and_infos(self, sets: Any) -> None:
        for episode in MinariDirSource(sets / FOLDERS["dummy-dict"]):
            assert list(episode.observation["component_2"]) == ["subcomponent_1", "subcomponent_2"]
            assert episode.action["component_1"].shape == (6, 1)
            assert not episode.action["component_1"][-1].any()
            assert episode.extras["infos"]["timestep"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
            assert episode.extras["infos"]["component_1"]["next_timestep"].dtype == np.int64
            assert episode.reward.dtype == np.int64

    @BOTH
    def test_infos_can_be_left_out(self, sets: Any) -> None:
        source = MinariDirSource(sets / FOLDERS["dummy-dict"], infos=False)
        assert source.spec.extras == {}
        assert all(episode.extras == {} for episode in source)

    @BOTH
    def test_limits_with_bare_infinity(self, sets: Any) -> None:
        spec = MinariDirSource(sets / FOLDERS["cartpole"]).spec
        assert spec.observation.low == [-4.800000190734863, -np.inf, -0.41887903213500977, -np.inf]
        assert spec.action.values == (0, 1)
        assert spec.reward.dtype == np.float64

    @BOTH
    def test_metadata_and_details(self, sets: Any) -> None:
        source = MinariDirSource(sets / FOLDERS["cartpole"])
        episode = next(iter(source))
        assert episode.metadata["seed"] == 0 and episode.metadata["total_steps"] == episode.num_transitions
        assert type(episode.metadata["seed"]) is int
        details = source.details()
        assert details["dataset_id"] == "cartpole/random-v0" and details["env_id"] == "CartPole-v1"
        assert "observation_space" not in details

    @BOTH
    def test_the_last_reward_reaches_a_learner(self, sets: Any) -> None:
        for episode in MinariDirSource(sets / FOLDERS["cartpole"]):
            assert transitions(episode).reward.tolist() == [1.0] * episode.num_transitions
            assert episode.reward[-1] == 0


@pytest.mark.parametrize("name", sorted(FOLDERS))
class TestContract(SourceContract):
    @pytest.fixture
    def path(self, name: str, tmp_path: Path) -> Path:
        return copy(name, tmp_path)

    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:  # type: ignore[override]
        return lambda: MinariDirSource(path)

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], None]:
        def change() -> None:
            with h5py.File(path / "data/main_data.hdf5", "r+") as file:
                file["episode_1/rewards"][0] += 1

        return change


class TestEnds:
    def test_terminated_wins(self, tmp_path: Path) -> None:
        episode = columns(3)
        episode["truncations"][-1] = True
        (found,) = MinariDirSource(write(tmp_path / "data", [episode]))
        assert found.end == "terminated" and found.discount.tolist() == [1, 1, 0, 0]

    def test_without_a_flag_it_is_truncated_and_marked(self, tmp_path: Path) -> None:
        (found,) = MinariDirSource(write(tmp_path / "data", [columns(3, "")]))
        assert found.end == "truncated" and found.metadata == {"open_tail": True}

    def test_a_flag_in_the_middle_stays_where_it_is(self, tmp_path: Path) -> None:
        episode = columns(4)
        episode["terminations"][1] = True
        (found,) = MinariDirSource(write(tmp_path / "data", [episode]))
        assert found.is_terminal.tolist() == [False, False, True, False, True]
        assert found.is_last.tolist() == [False, False, True, False, True]
        assert found.discount.tolist() == [1, 0, 0, 0, 0]

    def test_an_episode_of_a_reset_only(self, tmp_path: Path) -> None:
        (found,) = MinariDirSource(write(tmp_path / "data", [columns(0, "")]))
        assert (found.num_steps, found.num_transitions) == (1, 0)


class TestOddParts:
    def test_infos_of_every_length(self, tmp_path: Path) -> None:
        infos = {
            "infos/full": np.arange(4),
            "infos/short": np.arange(3) + 7,
            "infos/deep/name": np.array([b"a", b"bb", b""], object),
            "infos/deep/single": 2.5,
            "infos/lone": 3,
        }
        (found,) = MinariDirSource(write(tmp_path / "data", [columns(3, **infos)]))
        assert found.extras["infos"]["full"].tolist() == [0, 1, 2, 3]
        assert found.extras["infos"]["short"].tolist() == [7, 8, 9, 0]
        assert found.extras["infos"]["deep"]["name"].tolist() == [b"a", b"bb", b"", b""]
        assert found.metadata["infos"] == {"lone": 3, "deep": {"single": 2.5}}

    def test_options_come_apart(self, tmp_path: Path) -> None:
        attrs = {"seed": 4, "options/goal/x": 1.5, "options/goal/y": np.arange(2), "note": "text"}
        (found,) = MinariDirSource(write(tmp_path / "data", [columns(2, attrs=attrs)]))
        assert found.metadata["options"]["goal"]["x"] == 1.5
        assert found.metadata["options"]["goal"]["y"].tolist() == [0, 1]
        assert found.metadata["seed"] == 4 and found.metadata["note"] == "text"

    def test_without_spaces_the_file_tells(self, tmp_path: Path) -> None:
        episode = columns(2)
        episode["observations/_index_0"] = np.zeros(3)
        episode["observations/_index_1"] = np.zeros((3, 2), np.int8)
        del episode["observations"]
        source = MinariDirSource(write(tmp_path / "data", [episode]))
        assert [str(field) for field in source.spec.observation] == ["float64[]", "int8[2]"]
        assert source.num_steps is None

    @pytest.mark.parametrize("vary", [False, True])
    def test_pictures(self, tmp_path: Path, vary: bool) -> None:
        """JPEG files of one length lie in one array, of different lengths in rows of their own."""
        rng = np.random.default_rng(0)
        frames = [rng.integers(0, 255, (32, 40, 3), np.uint8) if vary or t == 0 else None for t in range(4)]
        files = []
        for frame in frames:
            stream = io.BytesIO()
            Image.fromarray(frames[0] if frame is None else frame).save(stream, format="JPEG")
            files.append(np.frombuffer(stream.getvalue(), np.uint8))
        assert (len({len(file) for file in files}) > 1) == vary
        folder = write(
            tmp_path / "data",
            [columns(3, observations=None)],
            observation_space=json.dumps(
                {"type": "Box", "dtype": "uint8", "shape": [32, 40, 3], "low": 0, "high": 255}
            ),
        )
        with h5py.File(folder / "main_data.hdf5", "r+") as file:
            dtype = h5py.vlen_dtype(np.uint8) if vary else None
            file["episode_0"].create_dataset(
                "observations", data=files if not vary else None, shape=None if not vary else (4,), dtype=dtype
            )
            if vary:
                for number, data in enumerate(files):
                    file["episode_0/observations"][number] = data
        source = MinariDirSource(folder)
        (found,) = source
        wanted = [np.asarray(Image.open(io.BytesIO(file.tobytes()))) for file in files]
        np.testing.assert_array_equal(found.observation, wanted)
        assert str(source.spec.observation) == "uint8[32, 40, 3]" and source.spec.observation.high == 255
        with h5py.File(folder / "main_data.hdf5", "r+") as file:
            file["episode_0/observations"][2] = files[2] * 0
        (error,) = MinariDirSource(folder).read()
        assert isinstance(error, EpisodeError) and "a picture can't be decoded" in str(error)
        assert (error.episode, error.step, error.path, error.rule) == (0, 2, "observation", "unreadable")


class TestBadFolders:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound, match="nothing is there"):
            MinariDirSource(tmp_path / "none")

    def test_another_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFormatError, match="not a Minari dataset"):
            MinariDirSource(tmp_path)

    @pytest.mark.parametrize("end", ["", "data", "data/main_data.hdf5"])
    def test_no_metadata(self, tmp_path: Path, end: str) -> None:
        folder = copy("cartpole", tmp_path)
        (folder / "data/metadata.json").unlink()
        with pytest.raises(SourceFormatError, match=r"no metadata\.json, which Minari"):
            MinariDirSource(folder / end)

    def test_no_data(self, tmp_path: Path) -> None:
        folder = copy("cartpole", tmp_path)
        (folder / "data/main_data.hdf5").unlink()
        with pytest.raises(SourceNotFound, match=r"main_data\.hdf5: no such file"):
            MinariDirSource(folder)

    def test_another_layout(self, tmp_path: Path) -> None:
        folder = copy("cartpole", tmp_path)
        edit_metadata(folder, data_format="zarr")
        with pytest.raises(SourceFormatError, match="Minari's 'zarr' layout is not read, only hdf5, arrow, parquet"):
            MinariDirSource(folder)

    @pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
    def test_metadata_that_is_no_json_object(self, tmp_path: Path, text: str) -> None:
        folder = copy("cartpole", tmp_path)
        (folder / "data/metadata.json").write_text(text)
        with pytest.raises(SourceFormatError, match=r"metadata\.json: (not readable as JSON|should hold)"):
            MinariDirSource(folder)

    @pytest.mark.parametrize(
        "space", ["{", '{"type": "Sequence"}', '{"type": "Box"}', "3", '{"type": "Dict", "subspaces": 1}']
    )
    def test_a_space_that_can_not_be(self, tmp_path: Path, space: str) -> None:
        folder = copy("cartpole", tmp_path)
        edit_metadata(folder, action_space=space)
        with pytest.raises(SourceFormatError, match=r"metadata\.json: action_space: "):
            MinariDirSource(folder)

    def test_a_space_that_does_not_fit_the_file(self, tmp_path: Path) -> None:
        folder = copy("dummy-dict", tmp_path)
        edit_metadata(folder, observation_space='{"type": "Discrete", "n": 2}')
        with pytest.raises(SourceFormatError, match=r"observation/component_1, .* does not fit"):
            _ = MinariDirSource(folder).spec

    def test_an_episode_is_missing(self, tmp_path: Path) -> None:
        folder = copy("cartpole", tmp_path)
        with h5py.File(folder / "data/main_data.hdf5", "r+") as file:
            del file["episode_3"]
        with pytest.raises(SourceFormatError, match=r"holds 7 episodes, but metadata\.json says 8"):
            MinariDirSource(folder)

    def test_the_file_is_cut_short(self, tmp_path: Path) -> None:
        folder = copy("cartpole", tmp_path)
        path = folder / "data/main_data.hdf5"
        path.write_bytes(path.read_bytes()[:60_000])
        with pytest.raises(SourceFormatError, match="cut short"):
            MinariDirSource(folder)

    @pytest.mark.parametrize(
        ("part", "path", "message"),
        [
            ("observations", "observation", "4 rows; beside 4 rewards there should be 5"),
            ("actions", "action", "3 rows; beside 4 rewards there should be 4"),
            ("terminations", "terminations", "3 rows; beside 4 rewards there should be 4"),
            ("truncations", "truncations", "3 rows; beside 4 rewards there should be 4"),
            ("infos/x", "extras/infos/x", "2 rows; beside 4 rewards there should be 4 or 5"),
        ],
    )
    def test_an_episode_with_a_part_too_short(self, tmp_path: Path, part: str, path: str, message: str) -> None:
        broken = columns(4, **{"infos/x": np.zeros(3)})
        broken[part] = broken[part][:-1]
        source = MinariDirSource(write(tmp_path / "data", [columns(2), broken, columns(3)]))
        good, error, other = source.read()
        assert isinstance(good, Episode) and isinstance(other, Episode)
        assert isinstance(error, SpecMismatch)
        assert (error.episode, error.path, error.rule) == (1, path, "ragged-columns")
        assert error.message == message

    @pytest.mark.parametrize("part", ["observations", "actions", "rewards", "terminations", "truncations"])
    def test_an_episode_without_a_part(self, tmp_path: Path, part: str) -> None:
        source = MinariDirSource(write(tmp_path / "data", [columns(2), columns(2, **{part: None})]))
        with pytest.raises(SpecMismatch, match=f"episode 1, .*: episode_1 has no `{part}`"):
            list(source)

    @pytest.mark.parametrize("part", ["rewards", "terminations", "truncations"])
    @pytest.mark.parametrize("value", [np.zeros((2, 2)), 1.0, np.array([b"a", b"b"])])
    def test_more_or_less_than_one_number_a_step(self, tmp_path: Path, part: str, value: Any) -> None:
        source = MinariDirSource(write(tmp_path / "data", [columns(2, **{part: value})]))
        with pytest.raises(SpecMismatch, match=f"`{part}` should hold one number a step, got "):
            list(source)

    def test_a_shape_that_the_file_can_not_hold(self, tmp_path: Path) -> None:
        """Reading would not end."""
        folder = write(tmp_path / "data", [columns(2)])
        with h5py.File(folder / "main_data.hdf5", "r+") as file:
            del file["episode_0/observations"]
            file["episode_0"].create_dataset("observations", (1 << 50, 2), np.float32, chunks=(4, 2))
        with pytest.raises(SourceFormatError, match=r"claims float32\[1125899906842624, 2\], more than the file"):
            list(MinariDirSource(folder))

    def test_flags_of_another_type(self, tmp_path: Path) -> None:
        episode = columns(2)
        episode.update({name: episode[name].astype(np.float64) for name in ("terminations", "truncations")})
        (found,) = MinariDirSource(write(tmp_path / "data", [episode]))
        assert found.end == "terminated"

    def test_nothing_tells_what_a_step_is(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFormatError, match="no episodes and no spaces"):
            _ = MinariDirSource(write(tmp_path / "data", [])).spec
        with pytest.raises(SpecMismatch):
            _ = MinariDirSource(write(tmp_path / "more/data", [columns(2, rewards=None)])).spec

    def test_no_episodes_but_spaces(self, tmp_path: Path) -> None:
        space = '{"type": "Discrete", "dtype": "int64", "start": 0, "n": 2}'
        source = MinariDirSource(write(tmp_path / "data", [], observation_space=space, action_space=space))
        assert list(source) == [] and source.spec.action.values == (0, 1)


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    folder = copy("cartpole", tmp_path)
    with h5py.File(folder / "data/main_data.hdf5", "a") as file:
        file["episode_0/infos"][b"\xff"] = np.zeros(3)
    with pytest.raises(SourceFormatError, match=r"infos: a name in it is no text: b'\\xff'"):
        list(MinariDirSource(folder))
