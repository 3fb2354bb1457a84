"""D4RL files: real ones with every oddity, and made-up ones against a step-by-step reading."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, EpisodeError, SourceError, SourceFormatError, SourceNotFound, transitions
from rlds2buf.formats.d4rl.source import D4rlHdf5Source
from rlds2buf.formats.rlds.source import RldsDirSource
from tests.contracts.source import MakeSource, SourceContract, assert_same_episode
from tests.data import D4RL
from tests.made import BOTH, MADE
from tests.reference import d4rl as naive

#: rows of each episode and how it ends
FACTS = {
    "antmaze-umaze-v0": ([701, 701], ["truncated"] * 2),
    "door-human-v0": ([200, 101], ["truncated", "terminated"]),
    "hopper_medium": ([212, 314], ["terminated"] * 2),
    "hopper_medium-v2": ([471, 442], ["terminated"] * 2),
    "hopper_medium_replay-v1": ([41, 10], ["terminated"] * 2),
    "hopper_random-v1": ([32, 20], ["terminated"] * 2),
    "pen-human-v1": ([200, 200], ["truncated"] * 2),
}


def write(path: Path, **columns: Any) -> Path:
    """A file with these columns; ``__`` in a name stands for a group."""
    with h5py.File(path, "w") as file:
        for name, value in columns.items():
            if value is not None:
                file[name.replace("__", "/")] = value
    return path


def table(count: int, terminals: list[int] = [], timeouts: list[int] | None = None, **more: Any) -> dict[str, Any]:  # noqa: B006
    """Columns of a small file: observation t is [t, -t], action [10 t], reward t."""
    number = np.arange(count, dtype=np.float32)
    columns: dict[str, Any] = {
        "observations": np.stack([number, -number], 1),
        "actions": 10 * number[:, None],
        "rewards": number,
        "terminals": np.isin(np.arange(count), terminals),
    }
    if timeouts is not None:
        columns["timeouts"] = np.isin(np.arange(count), timeouts)
    return {**columns, **more}


def assert_as_naive(source: Iterable[Episode], expected: list[list[naive.Row]]) -> None:
    found = list(source)
    assert [episode.num_steps for episode in found] == [len(rows) for rows in expected]
    for episode, rows in zip(found, expected, strict=True):
        for name in ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal"):
            np.testing.assert_array_equal(getattr(episode, name), [row[name] for row in rows], name)
        for path, column in episode.flatten():
            if path[0] == "extras":
                np.testing.assert_array_equal(column, [row["/".join(map(str, path[1:]))] for row in rows])


class TestRealFiles:
    """And their stand-ins."""

    def test_every_file_is_in_the_table(self) -> None:
        assert {f"d4rl/{name}.hdf5" for name in FACTS} == set(D4RL)

    @BOTH
    @pytest.mark.parametrize("name", FACTS)
    def test_lengths_and_ends(self, sets: Any, name: str) -> None:
        path = sets / f"d4rl/{name}.hdf5"
        episodes = list(D4rlHdf5Source(path))
        lengths, ends = FACTS[name]
        assert [episode.num_steps for episode in episodes] == lengths
        assert [episode.end for episode in episodes] == ends

    @BOTH
    @pytest.mark.parametrize("name", FACTS)
    def test_as_read_step_by_step(self, sets: Any, name: str) -> None:
        path = sets / f"d4rl/{name}.hdf5"
        assert_as_naive(D4rlHdf5Source(path), naive.episodes(naive.read_file(path)))

    @BOTH
    @pytest.mark.parametrize("name", FACTS)
    def test_dtypes_are_the_files(self, sets: Any, name: str) -> None:
        path = sets / f"d4rl/{name}.hdf5"
        columns = naive.read_file(path)
        for episode in D4rlHdf5Source(path):
            assert episode.observation.dtype == columns["observations"].dtype
            assert episode.action.dtype == columns["actions"].dtype
            assert episode.reward.dtype == columns["rewards"].dtype
            assert episode.reward.ndim == 1
            assert episode.discount.dtype == np.float32
            for name, column in episode.extras.get("infos", {}).items():
                assert column.dtype == columns[f"infos/{name}"].dtype

    @BOTH
    @pytest.mark.parametrize("name", FACTS)
    def test_transitions_are_those_of_qlearning_dataset(self, sets: Any, name: str) -> None:
        path = sets / f"d4rl/{name}.hdf5"
        """But for a terminal's successor, which d4rl takes from the next episode, and the file's last row."""
        columns = naive.read_file(path)
        theirs = naive.qlearning_transitions(columns)
        ours = []
        for episode in D4rlHdf5Source(path):
            batch = transitions(episode)
            ours += list(
                zip(
                    batch.observation, batch.action, batch.reward, batch.next_observation, batch.terminated, strict=True
                )
            )
        ends_in_terminal = bool(columns["terminals"][-1])
        next_kept = "next_observations" in columns and not ends_in_terminal
        assert len(ours) == len(theirs) + (ends_in_terminal or next_kept)
        for mine, other in zip(ours, theirs, strict=False):
            np.testing.assert_array_equal(mine[0], other[0])
            np.testing.assert_array_equal(mine[1], other[1])
            assert mine[2] == other[2]
            assert mine[4] == other[4]
            if not mine[4]:
                np.testing.assert_array_equal(mine[3], other[3])

    @BOTH
    @pytest.mark.parametrize("name", ["hopper_medium-v2", "hopper_medium_replay-v1", "hopper_random-v1"])
    def test_an_episodes_own_last_next_observation_ends_it(self, sets: Any, name: str) -> None:
        columns = naive.read_file(sets / f"d4rl/{name}.hdf5")
        ends = np.flatnonzero(columns["terminals"])
        for end, episode in zip(ends, D4rlHdf5Source(sets / f"d4rl/{name}.hdf5"), strict=True):
            np.testing.assert_array_equal(episode.observation[-1], columns["next_observations"][end])
            assert "placeholder_final_row" not in episode.metadata
            assert episode.discount[-3:].tolist() == [1, 0, 0]

    @BOTH
    def test_without_them_a_terminal_gets_a_marked_row_of_zeros(self, sets: Any) -> None:
        for episode in D4rlHdf5Source(sets / "d4rl/hopper_medium.hdf5"):
            assert episode.metadata == {"placeholder_final_row": True}
            assert not episode.observation[-1].any() and not episode.action[-1].any()
            assert transitions(episode).reward[-1] == episode.reward[-2] != 0

    @BOTH
    def test_v0_is_what_tfds_makes_of_it(self, sets: Any) -> None:
        theirs = RldsDirSource(sets / "rlds/d4rl_mujoco_hopper/v0-medium")
        for mine, other in zip(D4rlHdf5Source(sets / "d4rl/hopper_medium.hdf5"), theirs, strict=True):
            assert_same_episode(mine.replace(metadata={}), other.replace(metadata={}))

    @BOTH
    def test_v2_is_what_tfds_makes_of_it_but_for_its_bug(self, sets: Any) -> None:
        source = D4rlHdf5Source(sets / "d4rl/hopper_medium-v2.hdf5")
        theirs = list(RldsDirSource(sets / "rlds/d4rl_mujoco_hopper/v2-medium"))
        mine = list(source)
        assert len(mine) == len(theirs) == 2
        for own, other in zip(mine, theirs, strict=True):
            fields = [episode.rows(0, len(own) - 1).replace(extras={}) for episode in (own, other)]
            assert_same_episode(fields[0], fields[1])
            # TFDS's copy has these as float64 that were rounded to float32 on the way.
            for name in ("action_log_probs", "qpos", "qvel"):
                infos = [episode.extras["infos"][name].astype(np.float32) for episode in (own, other)]
                np.testing.assert_allclose(infos[0], infos[1], rtol=1e-6)
            assert own.metadata["algorithm"] == other.metadata["algorithm"] == b"SAC"
            assert own.metadata["policy"].keys() == other.metadata["policy"].keys()
        np.testing.assert_array_equal(theirs[0].observation[-1], mine[1].observation[-1])
        assert (theirs[0].observation[-1] != mine[0].observation[-1]).any()
        np.testing.assert_array_equal(theirs[1].observation, mine[1].observation)

    @BOTH
    def test_metadata_is_shared_not_copied(self, sets: Any) -> None:
        one, other = D4rlHdf5Source(sets / "d4rl/hopper_medium-v2.hdf5")
        assert one.metadata["policy"]["nonlinearity"] == b"relu"
        assert one.metadata["policy"]["fc0"]["weight"].shape == (256, 11)
        assert one.metadata["policy"]["fc0"]["weight"] is other.metadata["policy"]["fc0"]["weight"]

    @BOTH
    def test_details(self, sets: Any) -> None:
        details = D4rlHdf5Source(sets / "d4rl/hopper_medium-v2.hdf5").details()
        assert details["rows"] == 911
        assert (details["terminated"], details["truncated"], details["open_tail"]) == (2, 0, False)
        assert details["metadata"]["algorithm"] == "SAC"
        assert details["metadata"]["policy"]["fc0"]["weight"] == "float32[256, 11]"
        assert details["warnings"] == details["ignored"] == []
        (warning,) = D4rlHdf5Source(sets / "d4rl/hopper_medium.hdf5").details()["warnings"]
        assert "the 2 terminal observations are zeros" in warning

    @BOTH
    def test_infos_can_be_left_out(self, sets: Any) -> None:
        source = D4rlHdf5Source(sets / "d4rl/pen-human-v1.hdf5", infos=False)
        assert source.spec.extras == {} and next(iter(source)).extras == {}
        assert source.details()["ignored"] == ["infos"]

    @BOTH
    def test_reward_shift_moves_rewards_back_within_an_episode(self, sets: Any) -> None:
        path = sets / "d4rl/antmaze-umaze-v0.hdf5"
        assert_as_naive(D4rlHdf5Source(path, reward_shift=1), naive.episodes(naive.read_file(path), reward_shift=1))


@pytest.mark.parametrize("name", ["hopper_medium-v2", "antmaze-umaze-v0", "hopper_medium"])
class TestContract(SourceContract):
    @pytest.fixture
    def path(self, name: str, tmp_path: Path) -> Path:
        return Path(shutil.copy(MADE / f"d4rl/{name}.hdf5", tmp_path / "data.hdf5"))

    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:  # type: ignore[override]
        return lambda: D4rlHdf5Source(path)

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], None]:
        def change() -> None:
            path.chmod(0o644)
            with h5py.File(path, "r+") as file:
                file["rewards"][3] += 1

        return change


class TestCuts:
    def test_terminal_wins_over_a_time_out(self, tmp_path: Path) -> None:
        (episode,) = D4rlHdf5Source(write(tmp_path / "a", **table(3, [2], [2])))
        assert episode.end == "terminated" and episode.num_transitions == 3

    def test_a_time_out_loses_its_last_transition(self, tmp_path: Path) -> None:
        one, other = D4rlHdf5Source(write(tmp_path / "a", **table(5, [], [2, 4])))
        assert (one.num_transitions, other.num_transitions) == (2, 1)
        assert one.observation[:, 0].tolist() == [0, 1, 2]
        assert one.discount.tolist() == [1, 1, 1]
        assert transitions(one).reward.tolist() == [0, 1]

    def test_with_next_observations_it_does_not(self, tmp_path: Path) -> None:
        following = np.arange(100, 105, dtype=np.float32)[:, None].repeat(2, 1)
        path = write(tmp_path / "a", **table(5, [], [2, 4], next_observations=following))
        one, other = D4rlHdf5Source(path)
        assert one.observation[:, 0].tolist() == [0, 1, 2, 102]
        assert other.observation[:, 0].tolist() == [3, 4, 104]
        assert one.end == other.end == "truncated"
        assert one.discount.tolist() == [1, 1, 1, 1]

    @pytest.mark.parametrize("following", [False, True])
    def test_an_open_tail_is_kept_and_marked(self, tmp_path: Path, following: bool) -> None:
        columns = table(5, [1], [])
        if following:
            columns["next_observations"] = columns["observations"] + 50
        source = D4rlHdf5Source(write(tmp_path / "a", **columns))
        one, tail = source
        assert "open_tail" not in one.metadata
        assert tail.metadata["open_tail"] is True
        assert tail.end == "truncated"
        assert tail.observation[:, 0].tolist() == [2, 3, 4] + [54] * following
        assert source.details()["open_tail"]

    def test_without_time_outs_terminals_decide_and_a_warning_is_given(self, tmp_path: Path) -> None:
        source = D4rlHdf5Source(write(tmp_path / "a", **table(6, [1])))
        assert [episode.num_steps for episode in source] == [3, 4]
        assert any("max_episode_steps" in warning for warning in source.details()["warnings"])

    def test_max_episode_steps_cuts_at_the_limit_counted_from_each_start(self, tmp_path: Path) -> None:
        source = D4rlHdf5Source(write(tmp_path / "a", **table(9, [1])), max_episode_steps=3)
        assert [(e.num_steps, e.end) for e in source] == [
            (3, "terminated"),
            (3, "truncated"),
            (3, "truncated"),
            (1, "truncated"),
        ]
        assert not any("max_episode_steps" in warning for warning in source.details()["warnings"])
        assert source.details()["open_tail"]

    def test_a_tail_as_long_as_the_limit_is_not_open(self, tmp_path: Path) -> None:
        source = D4rlHdf5Source(write(tmp_path / "a", **table(6)), max_episode_steps=3)
        assert not source.details()["open_tail"]
        assert all("open_tail" not in episode.metadata for episode in source)

    @pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "float64", ">f8"])
    @pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
    def test_flags_of_any_type_and_shape(self, tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        columns = table(6, [1], [4])
        for name in ("terminals", "timeouts"):
            columns[name] = columns[name].astype(dtype).reshape(shape)
        columns["rewards"] = columns["rewards"].reshape(shape)
        assert [(e.num_steps, e.end) for e in D4rlHdf5Source(write(tmp_path / "a", **columns))] == [
            (3, "terminated"),
            (3, "truncated"),
            (1, "truncated"),
        ]

    def test_a_file_without_rows_has_no_episodes(self, tmp_path: Path) -> None:
        source = D4rlHdf5Source(write(tmp_path / "a", **table(0, [], [])))
        assert list(source) == [] and source.num_episodes == source.num_steps == 0

    def test_nested_observations_actions_and_further_columns(self, tmp_path: Path) -> None:
        columns = table(4, [3], [])
        image, state = np.arange(48, dtype=np.uint8).reshape(4, 3, 4), columns.pop("observations")
        words = np.array([b"up", b"down", b"", b"left"])
        path = write(
            tmp_path / "a",
            **columns,
            observations__image=image,
            observations__state=state,
            next_observations__image=image + 100,
            next_observations__state=state + 100,
            infos__deep__word=words,
            log_pis=np.arange(4.0),
            notes=np.arange(2),
        )
        source = D4rlHdf5Source(path)
        (episode,) = source
        np.testing.assert_array_equal(episode.observation["image"][-1], image[3] + 100)
        np.testing.assert_array_equal(episode.observation["state"][:-1], state)
        assert episode.extras["infos"]["deep"]["word"].tolist() == [b"up", b"down", b"", b"left", b""]
        assert episode.extras["log_pis"].tolist() == [0, 1, 2, 3, 0]
        assert source.details()["ignored"] == ["notes"]
        source.spec.check(episode)


STORAGE: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": True},
    "gzip": {"compression": "gzip", "shuffle": True},
}


class TestAgainstStepByStep:
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_any_flags_any_storage(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 14), "rows")
        flags = st.lists(st.booleans(), min_size=count, max_size=count)
        columns = table(count)
        columns["terminals"] = np.array(data.draw(flags, "terminals"))
        if data.draw(st.booleans(), "has timeouts"):
            columns["timeouts"] = np.array(data.draw(flags, "timeouts"))
        if data.draw(st.booleans(), "has next"):
            columns["next_observations"] = columns["observations"] + 100
        columns["infos/speed"] = np.arange(count) * 0.5
        order = data.draw(st.sampled_from("<>"), "byte order")
        chunk = data.draw(st.integers(1, count), "chunk")
        options = STORAGE[data.draw(st.sampled_from(sorted(STORAGE)), "storage")]
        limit = data.draw(st.none() | st.integers(1, 6), "limit")
        shift = data.draw(st.sampled_from([0, 0, 1, 3]), "shift")
        path = tmp_path_factory.mktemp("d4rl") / "data.hdf5"
        with h5py.File(path, "w") as file:
            for name, column in columns.items():
                if column.dtype.kind == "f":
                    column = column.astype(column.dtype.newbyteorder(order))
                here = {**options, "chunks": (chunk, *column.shape[1:])} if options else {}
                file.create_dataset(name, data=column, **here)
        source = D4rlHdf5Source(path, max_episode_steps=limit, reward_shift=shift)
        expected = naive.episodes(columns, limit, shift)
        assert_as_naive(source, expected)
        start = data.draw(st.integers(0, count), "start")
        stop = data.draw(st.none() | st.integers(0, count), "stop")
        limits = {
            "rows": data.draw(st.sampled_from([1, 5, 100]), "rows"),
            "bytes": data.draw(st.sampled_from([1, 999])),
        }
        batches = [batch for batch in source.read_batches(start, stop, **limits) if isinstance(batch, EpisodeBatch)]
        assert_as_naive(batches and EpisodeBatch.of(batches), expected[start:stop])
        assert [e.index for batch in batches for e in batch] == list(range(len(expected)))[start:stop]
        assert source.num_steps == sum(episode.num_steps for episode in source)

    @pytest.mark.parametrize("storage", sorted(STORAGE))
    @pytest.mark.parametrize("step", [7, 1000])
    def test_many_blocks(self, tmp_path: Path, storage: str, step: int) -> None:
        """More than a block of rows, and more than a system call's number of pieces."""
        count = 60_000
        rng = np.random.default_rng(step)
        ends = np.arange(step - 1, count, step)
        columns = {
            "observations": rng.standard_normal((count, 11)),
            "actions": rng.standard_normal((count, 3), np.float32),
            "rewards": rng.standard_normal(count),
            "terminals": np.isin(np.arange(count), ends[::2]),
            "timeouts": np.isin(np.arange(count), ends[1::2]),
        }
        path = tmp_path / "data.hdf5"
        with h5py.File(path, "w") as file:
            for name, column in columns.items():
                file.create_dataset(name, data=column, **STORAGE[storage])
        firsts = np.concatenate([[0], ends + 1])
        for number, episode in enumerate(D4rlHdf5Source(path)):
            first = int(firsts[number])
            rows = min(step, count - first)
            assert episode.num_steps == rows + (number % 2 == 0 and rows == step)
            for name, field in [("observations", "observation"), ("actions", "action"), ("rewards", "reward")]:
                np.testing.assert_array_equal(getattr(episode, field)[:rows], columns[name][first : first + rows])
                assert not getattr(episode, field)[rows:].any()

    @pytest.mark.parametrize("compression", [None, "gzip"])
    def test_memory_does_not_grow_with_the_file(self, tmp_path: Path, compression: str | None) -> None:
        def peak(count: int) -> int:
            path = tmp_path / f"{count}.hdf5"
            with h5py.File(path, "w") as file:
                for name, column in table(count, [], list(range(99, count, 100))).items():
                    file.create_dataset(
                        name, data=np.resize(column, (count, *column.shape[1:])), compression=compression
                    )
            source = D4rlHdf5Source(path)
            assert source.num_episodes == count // 100
            tracemalloc.start()
            try:
                for _ in source:
                    pass
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        small, large = peak(200_000), peak(1_600_000)
        assert large < 1.2 * small


class TestBadFiles:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound, match="no such file"):
            D4rlHdf5Source(tmp_path / "none.hdf5")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError):
            D4rlHdf5Source(tmp_path)

    def test_not_hdf5(self, tmp_path: Path) -> None:
        path = tmp_path / "a.hdf5"
        path.write_bytes(b"observations,actions\n" * 100)
        with pytest.raises(SourceFormatError, match=r"a\.hdf5: not a readable HDF5 file"):
            D4rlHdf5Source(path)

    @pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.999])
    def test_cut_short(self, tmp_path: Path, part: float) -> None:
        whole = (MADE / "d4rl/hopper_medium-v2.hdf5").read_bytes()
        path = tmp_path / "a.hdf5"
        path.write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(SourceFormatError, match="cut short"):
            D4rlHdf5Source(path)

    def test_a_damaged_chunk(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", **table(10, [4, 9], []))
        with h5py.File(path, "r+") as file:
            del file["actions"]
            file.create_dataset("actions", data=np.random.default_rng(0).random((10, 50)), compression="gzip")
            offset = file["actions"].id.get_chunk_info(0).byte_offset
        with open(path, "r+b") as raw:
            raw.seek(offset)
            raw.write(b"\xff" * 64)
        with pytest.raises(SourceFormatError, match="/actions, rows 0 to 9 can't be read"):
            list(D4rlHdf5Source(path))

    @pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals"])
    def test_a_column_is_missing(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / "a", **{**table(4, [3], []), name: None})
        with pytest.raises(SourceFormatError, match=f"needs `{name}`; it holds"):
            D4rlHdf5Source(path)

    @pytest.mark.parametrize("name", ["observations", "actions", "terminals", "timeouts", "infos/qpos"])
    def test_a_column_is_too_short(self, tmp_path: Path, name: str) -> None:
        columns = table(4, [3], [])
        columns["infos/qpos"] = np.zeros((4, 2))
        columns[name] = columns[name][:3]
        with pytest.raises(SourceFormatError, match=f"`{name}` has 3 rows, but `rewards` has 4"):
            D4rlHdf5Source(write(tmp_path / "a", **columns))

    def test_infos_that_do_not_fit_can_be_left_out(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", **table(4, [3], []), infos__qpos=np.zeros((3, 2)))
        with pytest.raises(SourceFormatError, match="infos=False leaves these out"):
            D4rlHdf5Source(path)
        assert len(list(D4rlHdf5Source(path, infos=False))) == 1

    @pytest.mark.parametrize("value", [2.0, -1.0, 0.5, np.nan])
    def test_a_flag_is_neither_0_nor_1(self, tmp_path: Path, value: float) -> None:
        columns = table(4, [3], [])
        columns["timeouts"] = np.array([0, 0, value, 0])
        with pytest.raises(SourceFormatError, match="`timeouts`, row 2: a flag should be 0 or 1"):
            D4rlHdf5Source(write(tmp_path / "a", **columns))

    def test_what_lies_before_damaged_rows_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        with h5py.File(path, "w") as file:
            for name, column in table(400, [], list(range(9, 400, 10))).items():
                file.create_dataset(name, data=column, chunks=(50, *column.shape[1:]), compression="gzip")
            damaged = file["actions"].id.get_chunk_info(5)
        with open(path, "r+b") as raw:
            raw.seek(damaged.byte_offset)
            raw.write(bytes(damaged.size))
        for rows in (1, 30, 1 << 14):
            found: list[Any] = []
            with pytest.raises(SourceFormatError, match=r"actions, rows 250 to 2\d\d can't be read"):
                for batch in D4rlHdf5Source(path).read_batches(rows=rows):
                    found.append(batch)
            assert [len(episode) for batch in found for episode in batch] == [10] * 25

    @pytest.mark.parametrize("name", ["rewards", "terminals", "timeouts"])
    def test_two_numbers_where_one_should_be(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / "a", **{**table(4, [3], []), name: np.zeros((4, 2))})
        with pytest.raises(SourceFormatError, match=f"`{name}` should hold one number a row"):
            D4rlHdf5Source(path)

    def test_a_column_is_a_group_or_a_scalar(self, tmp_path: Path) -> None:
        columns = table(4, [3], [])
        del columns["rewards"]
        with pytest.raises(SourceFormatError, match="`rewards` should be a dataset of rows"):
            D4rlHdf5Source(write(tmp_path / "a", **columns, rewards__a=np.zeros(4)))
        with pytest.raises(SourceFormatError, match="`rewards` should be a dataset of rows"):
            D4rlHdf5Source(write(tmp_path / "b", **columns, rewards=1.0))

    def test_next_observations_of_another_shape(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", **table(4, [3], []), next_observations=np.zeros((4, 3), np.float32))
        with pytest.raises(SourceFormatError, match="next_observations and observations differ"):
            D4rlHdf5Source(path)

    def test_records_are_no_columns(self, tmp_path: Path) -> None:
        record = np.zeros(4, [("a", "f4"), ("b", "i4")])
        with pytest.raises(SourceFormatError, match="no column of steps"):
            D4rlHdf5Source(write(tmp_path / "a", **table(4, [3], []), infos__odd=record))

    def test_a_shape_that_the_file_can_not_hold(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "a", "w") as file:
            for name in ("observations", "actions", "rewards", "terminals"):
                file.create_dataset(name, (1 << 50,), np.float32, chunks=(4,))
        with pytest.raises(SourceFormatError, match="more than the file of"):
            D4rlHdf5Source(tmp_path / "a")

    def test_bytes_flipped_anywhere_give_typed_errors(self, tmp_path: Path) -> None:
        whole = (MADE / "d4rl/hopper_medium_replay-v1.hdf5").read_bytes()
        rng = np.random.default_rng(5)
        refused = 0
        for number in range(150):
            damaged = bytearray(whole)
            for _ in range(int(rng.choice([1, 5, 20]))):
                damaged[rng.integers(rng.choice([4000, len(whole)]))] = rng.integers(256)
            # A new name each time: h5py may keep a file open that it could not close.
            path = tmp_path / f"{number}.hdf5"
            path.write_bytes(damaged)
            try:
                with D4rlHdf5Source(path) as source:
                    source.details()
                    list(source)
            except (SourceError, EpisodeError):
                refused += 1
        assert 30 < refused < 150

    def test_groups_that_contain_themselves(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", **table(4, [3], []), infos__qpos=np.zeros(4))
        with h5py.File(path, "r+") as file:
            file["infos/again"] = file["infos"]
        with pytest.raises(SourceFormatError, match="the same group as"):
            D4rlHdf5Source(path)

    def test_the_file_changed_after_it_was_opened(self, tmp_path: Path) -> None:
        source = D4rlHdf5Source(write(tmp_path / "a", **table(4, [3], [])))
        write(tmp_path / "a", **table(5, [3], []))
        with pytest.raises(SourceFormatError, match="the file changed, from 4 to 5 rows"):
            list(source)

    @pytest.mark.parametrize("options", [{"max_episode_steps": 0}, {"reward_shift": -1}])
    def test_options_out_of_range(self, options: dict[str, int]) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            D4rlHdf5Source(MADE / "d4rl/hopper_medium.hdf5", **options)


def test_a_name_that_is_no_text(tmp_path):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = np.zeros((3, 2)), np.zeros(3)
        file["rewards"], file["terminals"] = np.zeros(3), np.array([False, False, True])
        file[b"\xff"] = np.zeros(3)
    with pytest.raises(SourceFormatError, match=r"a name in it is no text: b'\\xff'"):
        D4rlHdf5Source(path)


def test_next_observations_of_another_kind_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"] = np.zeros((4, 3), np.float32)
        file["next_observations"] = np.zeros((4, 3), np.complex64)
        file["actions"] = np.zeros((4, 2), np.float32)
        file["rewards"] = np.zeros(4, np.float32)
        file["terminals"] = np.array([0, 0, 0, 1], bool)
        file["timeouts"] = np.zeros(4, bool)
    with pytest.raises(SourceFormatError, match="next_observations are complex64 and observations float32"):
        D4rlHdf5Source(tmp_path / "a.hdf5")
