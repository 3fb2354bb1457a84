"""Diffusion Policy's groups: a real one, and made ones of both versions, whole and broken."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from rlds2buf import (
    Episode,
    EpisodeError,
    LimitExceeded,
    MissingDependency,
    SourceError,
    SourceFormatError,
    SourceNotFound,
    open_source,
    validate,
)
from rlds2buf.formats.zarr.source import ZarrSource
from tests.contracts.source import MakeSource, SourceContract
from tests.data import DATA
from tests.formats.zarr.groups import CHUNK, LENGTHS, VERSIONS, array, columns, packed, write

FORMS = [*(f"v{version}" for version in VERSIONS), *(f"v{version}.zip" for version in VERSIONS)]


def made(folder: Path, form: str, **given: Any) -> Path:
    path = write(folder / "set.zarr", version=int(form[1]), **given)
    return packed(path, folder / "set.zarr.zip") if form.endswith("zip") else path


def by_slices(arrays: dict[str, np.ndarray], lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, np.ndarray]]:
    """The naive reader: everything in memory, cut."""
    edges = [0, *np.cumsum(lengths).tolist()]
    return [{name: column[low:high] for name, column in arrays.items()} for low, high in itertools.pairwise(edges)]


def assert_equal(episodes: list[Episode], expected: list[dict[str, np.ndarray]]) -> None:
    for episode, rows in zip(episodes, expected, strict=True):
        assert set(episode.observation) == rows.keys() - {"action", "reward"}
        for name, column in {**episode.observation, "action": episode.action}.items():
            assert column.dtype == rows[name].dtype
            np.testing.assert_array_equal(column, rows[name])
        assert episode.end == "truncated" and episode.derived == {"is_terminal"}
        assert episode.is_first.nonzero()[0].tolist() == [0]
        assert episode.is_last.nonzero()[0].tolist() == [len(episode) - 1]


@pytest.fixture(params=FORMS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return made(tmp_path, request.param)


class TestContract(SourceContract):
    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:
        return lambda: open_source(path)

    @pytest.fixture
    def change(self, path: Path, tmp_path: Path) -> Callable[[], Any]:
        def edit() -> None:
            version = 3 if path.is_dir() and (path / "zarr.json").exists() else 2
            other = write(tmp_path / "other.zarr", columns(seed=1), version=version)
            if path.is_dir():
                shutil.rmtree(path)
                other.rename(path)
            else:
                path.unlink()
                packed(other, path)

        return edit


class TestRealSet:
    """PushT's first four episodes."""

    @pytest.fixture
    def pusht(self) -> Path:
        return DATA / "zarr/pusht_4_episodes.zarr"

    def test_every_value(self, pusht: Path) -> None:
        group = zarr.open_group(str(pusht), mode="r")
        names = ("action", "state", "img", "keypoint", "n_contacts")
        arrays = {name: np.asarray(group[f"data/{name}"][:]) for name in names}
        assert_equal(list(open_source(pusht)), by_slices(arrays, (161, 118, 141, 159)))

    def test_what_is_told(self, pusht: Path) -> None:
        source = open_source(pusht)
        assert (source.format, source.num_episodes, source.num_steps) == ("zarr", 4, 579)
        assert source.details()["arrays"]["data/img"] == [[579, 96, 96, 3], "float32"]
        assert source.details()["warnings"] == [
            "no end flags: every episode is taken as truncated; its last action starts no transition"
        ]
        assert validate(source).ok

    def test_pictures_are_floats_until_they_are_cast(self, pusht: Path) -> None:
        floats = next(iter(open_source(pusht))).observation["img"]
        cast = next(iter(open_source(pusht, cast={"observation/img": "uint8"}))).observation["img"]
        assert floats.dtype == np.float32 and cast.dtype == np.uint8
        np.testing.assert_array_equal(cast, floats)


@pytest.mark.parametrize("seed", range(8))
def test_as_the_naive_reader(tmp_path: Path, seed: int) -> None:
    """Lengths and chunks that meet in any way; from any episode to any other, in blocks of any size."""
    rng = np.random.default_rng(seed)
    lengths = tuple(rng.integers(1, 12, 9).tolist())
    arrays = columns(lengths, seed)
    path = write(tmp_path / "a.zarr", arrays, np.cumsum(lengths), VERSIONS[seed % len(VERSIONS)])
    expected = by_slices(arrays, lengths)
    source = open_source(path)
    for rows in (1, 10, 1 << 14):
        start, stop = sorted(rng.integers(0, 10, 2).tolist())
        found: list[Any] = []
        for batch in source.read_batches(start, stop, rows=rows):
            found.extend(batch)
        assert_equal(found, expected[start:stop])


def test_each_chunk_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.zarr")
    source = ZarrSource(path)
    decoded: list[int] = []
    inner = numcodecs.Blosc.decode
    monkeypatch.setattr(numcodecs.Blosc, "decode", lambda self, *args: decoded.append(1) or inner(self, *args))
    for _ in source.read_batches(rows=1):
        pass
    assert len(decoded) == 4 * -(-sum(LENGTHS) // CHUNK)


class TestFields:
    def test_reward_and_a_single_observation(self, tmp_path: Path) -> None:
        arrays = {name: columns()[name] for name in ("action", "state")}
        arrays["obs"] = arrays.pop("state")
        arrays["reward"] = np.arange(16.0)[:, None]
        first = next(iter(open_source(write(tmp_path / "a.zarr", arrays))))
        assert first.reward.tolist() == [0, 1, 2, 3, 4] and first.discount.tolist() == [1] * 5
        np.testing.assert_array_equal(first.observation, arrays["obs"][:5])

    def test_umi_has_no_action(self, tmp_path: Path) -> None:
        arrays = {f"robot0_{name}": columns()["state"] for name in ("eef_pos", "eef_rot_axis_angle")}
        source = open_source(write(tmp_path / "a.zarr", arrays))
        assert source.spec.action is None and "no data/action (UMI" in source.warnings()[1]
        mapped = open_source(tmp_path / "a.zarr", map={"action": "observation/robot0_eef_pos"})
        np.testing.assert_array_equal(next(iter(mapped)).action, arrays["robot0_eef_pos"][:5])

    def test_groups_nest_and_big_endian_becomes_native(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zarr")
        arm = zarr.open_group(str(path), mode="a")["data"].require_group("arm")
        array(arm, "q", np.arange(16, dtype=">f8"), 2)
        column = next(iter(open_source(path))).observation["arm"]["q"]
        assert column.dtype == np.dtype(np.float64) and column.dtype.isnative and column.tolist() == [0, 1, 2, 3, 4]

    def test_byte_strings(self, tmp_path: Path) -> None:
        arrays = {**columns(), "task": np.array([b"push", b"lift it"] * 8)}
        source = open_source(write(tmp_path / "a.zarr", arrays))
        assert source.spec.observation["task"].is_string
        assert next(iter(source)).observation["task"].tolist()[:2] == [b"push", b"lift it"]

    def test_pickles_are_never_loaded(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zarr")
        told = json.loads((path / "data/state/.zarray").read_text())
        told.update(dtype="|O", filters=[{"id": "pickle", "protocol": 5}], shape=[16], chunks=[4])
        (path / "data/state/.zarray").write_text(json.dumps(told))
        source = open_source(path)
        why = "holds Python objects, which are pickled and never loaded"
        assert source.details()["ignored"] == {"data/state": why}
        assert f"data/state {why}: left out" in source.warnings() and "state" not in source.spec.observation
        assert len(list(source)) == 4


class TestWrong:
    @pytest.mark.parametrize(
        ("ends", "message"),
        [
            ([5, 6, 13, 99], r"data/action has 16 rows, but episode 3 ends at row 99 by meta/episode_ends"),
            ([5, 4, 16], r"episode_ends: episode 1 ends at row 4, and begins at 5"),
            ([5, 5, 16], r"episode_ends: episode 1 ends at row 5, and begins at 5"),
            ([-1, 5], r"episode 0 ends at row -1"),
            (np.array([5.0, 16.0]), r"episode_ends holds float64\[2\]"),
            (np.array([[5, 16]]), r"episode_ends holds int64\[1, 2\]"),
        ],
    )
    def test_ends(self, tmp_path: Path, ends: Any, message: str) -> None:
        with pytest.raises(SourceFormatError, match=message):
            open_source(write(tmp_path / "a.zarr", ends=ends))

    def test_rows_behind_the_last_end_are_said(self, tmp_path: Path) -> None:
        source = open_source(write(tmp_path / "a.zarr", ends=[5, 6, 13]))
        assert "data/action has 3 rows behind the last of meta/episode_ends" in source.warnings()[1]
        assert source.num_steps == 13 == sum(map(len, source))

    def test_no_episodes(self, tmp_path: Path) -> None:
        source = open_source(write(tmp_path / "a.zarr", columns(()), np.zeros(0, np.int64)))
        assert (source.num_episodes, source.num_steps, list(source)) == (0, 0, [])

    @pytest.mark.parametrize("form", FORMS[: len(VERSIONS)])
    def test_a_chunk_that_is_not_there_costs_its_episodes(self, tmp_path: Path, form: str) -> None:
        path = made(tmp_path, form)
        chunk = "data/img/1.0.0.0" if form == "v2" else "data/img/c/1/0/0/0"
        (path / chunk).unlink()
        first, second, third, last = open_source(path).read()
        for index, item in enumerate((first, second, third)):  # rows 4 to 7: the last of episode 0, 1, the first of 2
            assert isinstance(item, EpisodeError) and item.episode == index and item.path == "data/img"
            assert f"data/img, rows 4 to 7: the chunk {chunk} is not there" in str(item)
            assert str(path) in str(item) and "missing_chunks='fill'" in str(item)
        assert isinstance(last, Episode)
        filled = next(iter(open_source(path, missing_chunks="fill"))).observation["img"]
        assert filled[:4].any() and not filled[4].any()

    @pytest.mark.parametrize("form", FORMS[: len(VERSIONS)])
    def test_a_damaged_chunk_costs_its_episodes(self, tmp_path: Path, form: str) -> None:
        path = made(tmp_path, form)
        chunk = path / ("data/state/3.0" if form == "v2" else "data/state/c/3/0")
        chunk.write_bytes(chunk.read_bytes()[:-9])
        why = "the chunk data/state/3.0 is not as long as it says it is" if form == "v2" else "can't be decoded"
        *whole, third, last = open_source(path).read()
        assert all(isinstance(item, Episode) for item in whole)
        for item in (third, last):
            assert isinstance(item, EpisodeError) and f"data/state, rows 12 to 15: {why}" in str(item)

    def test_a_codec_that_is_not_here(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zarr")
        told = json.loads((path / "data/img/.zarray").read_text())
        told["compressor"] = {"id": "sprenger"}
        (path / "data/img/.zarray").write_text(json.dumps(told))
        with pytest.raises(MissingDependency, match=r"data/img is stored with the codec 'sprenger', which is not here"):
            list(open_source(path))

    @pytest.mark.parametrize("text", ["", "[1]", "{}", '{"shape": [4], "chunks": [0], "dtype": "<f4"}', "\0" * 9])
    def test_damaged_metadata(self, tmp_path: Path, text: str) -> None:
        path = write(tmp_path / "a.zarr")
        (path / "data/img/.zarray").write_text(text)
        with pytest.raises(SourceFormatError, match="data/img"):
            open_source(path)

    def test_without_zarr_it_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path / "a.zarr")
        monkeypatch.setitem(sys.modules, "zarr", None)
        with pytest.raises(MissingDependency, match=r"pip install 'rlds2buf\[zarr\]'"):
            open_source(path)

    def test_a_newer_version_than_the_library_reads(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path / "a.zarr", version=VERSIONS[-1])
        monkeypatch.setattr(zarr, "__version__", "2.18.3")
        if VERSIONS[-1] == 2:
            assert list(open_source(path))
            return
        with pytest.raises(MissingDependency, match=r"Zarr version 3, which zarr 2\.18\.3 does not read"):
            open_source(path)

    def test_limits(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zarr", {"action": np.zeros((16, 100_000))})
        for limit, message in ((10_000, "a chunk of data/action"), (4_000_000, "the 7 rows of episode 2")):
            with pytest.raises(LimitExceeded, match=message):
                list(open_source(path, max_bytes=limit))

    @pytest.mark.parametrize("seed", range(10))
    def test_damaged_anywhere(self, tmp_path: Path, seed: int) -> None:
        """Any byte of any file: a typed error, or as many items as ever."""
        path = made(tmp_path, FORMS[seed % len(FORMS)])
        rng = np.random.default_rng(seed)
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in rng.choice(np.array(files, object), min(3, len(files))):
            content = bytearray(file.read_bytes())
            for place in rng.integers(0, len(content), 3):
                content[place] ^= 1 << int(rng.integers(8))
            file.write_bytes(content)
        try:
            source = open_source(path)
            items = list(source.read())
        except SourceError:
            return
        assert len(items) == source.num_episodes


class TestTold:
    def test_other_groups_are_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zarr")
        shutil.rmtree(path / "meta/episode_ends")
        with pytest.raises(SourceFormatError, match=r"a Zarr group without meta/episode_ends.*Diffusion Policy's"):
            open_source(path)
        with pytest.raises(SourceFormatError, match=r"no meta/episode_ends"):
            open_source(path, format="zarr")

    def test_an_archive_of_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        write(tmp_path / "in/set.zarr")
        path = packed(tmp_path / "in", tmp_path / "set.zip")
        with pytest.raises(SourceFormatError, match=r"an archive with a Zarr group in its folder set\.zarr; unpack it"):
            open_source(path)

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound):
            ZarrSource(tmp_path / "none.zarr")
        (tmp_path / "a.zip").write_bytes(b"PK\3\4 and then nothing")
        with pytest.raises(SourceFormatError, match="neither a folder nor a readable zip archive"):
            ZarrSource(tmp_path / "a.zip")

    def test_a_folder_that_two_formats_claim(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.zarr")
        (path / "data/main_data.hdf5").write_bytes(b"")
        with pytest.raises(SourceFormatError, match=r"it may be minari or zarr; format='minari' \(--format\) says"):
            open_source(path)
        assert len(list(open_source(path, format="zarr"))) == 4
