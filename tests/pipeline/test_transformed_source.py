"""Episodes mapped, cast, aligned, filtered and sampled, whatever the format."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import Episode, EpisodeBatch, EpisodeError, FilteredOut, SnapshotError, SpecMismatch, convert, open_source
from rlds2buf.core import nest
from rlds2buf.core.hashing import unit_interval
from rlds2buf.formats.d4rl.source import D4rlHdf5Source
from rlds2buf.formats.memory.source import MemorySource
from rlds2buf.io.format import Format
from rlds2buf.io.source import Source
from rlds2buf.pipeline.transformed_source import TransformedSource
from rlds2buf.transform.facts import episode_return
from rlds2buf.transform.transformation import Transformation
from tests.contracts.source import MakeSource, SourceContract, assert_same_episode, assert_same_item
from tests.made import BOTH, MADE

HOPPER = MADE / "d4rl/hopper_medium-v2.hdf5"
CARTPOLE = MADE / "minari/cartpole/random-v0"
BRIDGE = MADE / "rlds/bridge_dataset"


def steps(count: int, reward: float = 1.0) -> list[dict[str, Any]]:
    return [
        {
            "observation": {"q": np.full(2, t, np.float64), "word": b"x" * t, "v": float(-t)},
            "action": (np.int64(t), np.float64(t)),
            "reward": reward,
            "is_terminal": t == count - 1,
            "note": t,
        }
        for t in range(count)
    ]


class TestContractMapped(SourceContract):
    HOW: ClassVar[dict[str, Any]] = {
        "map": {"observation": ["observation/q", "observation/v"], "extras/say/word": "observation/word"},
        "drop": ["action/1"],
        "cast": {"note": "int8"},
        "float32": True,
        "alignment": "ars",
    }

    @pytest.fixture
    def data(self) -> list[Any]:
        return [steps(4), steps(2), steps(7), steps(1)]

    @pytest.fixture
    def make_source(self, data: list[Any]) -> MakeSource:  # type: ignore[override]
        return lambda: open_source(data, **self.HOW)

    @pytest.fixture
    def change(self, data: list[Any]) -> Callable[[], None]:
        return lambda: data[1][1].update(reward=9.0)


class TestContractFiltered(TestContractMapped):
    HOW: ClassVar[dict[str, Any]] = {"min_length": 2, "where": "index != 2"}

    def test_some_are_left_out(self, source: Source) -> None:
        kinds = [type(item).__name__ for item in source.read()]
        assert kinds == ["Episode", "Episode", "FilteredOut", "FilteredOut"]
        assert source.num_episodes is None and source.num_steps is None


class TestContractSampledFirstOneLeftOut(TestContractMapped):
    HOW: ClassVar[dict[str, Any]] = {"sample": 2, "seed": 2, "drop": "note"}

    def test_the_first_is_left_out(self, source: Source) -> None:
        assert [item.rule for item in source.read() if isinstance(item, FilteredOut)] == ["filter-sample"] * 2
        assert isinstance(next(source.read()), FilteredOut)


class TestContractFile(SourceContract):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "hopper.hdf5"
        path.write_bytes(HOPPER.read_bytes())
        return path

    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:  # type: ignore[override]
        return lambda: open_source(path, max_episode_steps=100, map={"extras/r": "reward"}, where="length > 60")

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], None]:
        def write() -> None:
            import h5py

            with h5py.File(path, "a") as file:
                file["rewards"][3] = 99

        return write


class TestContractSampledRecords(SourceContract):
    """RLDS folders pass over the records that are not wanted."""

    HOW: ClassVar[dict[str, Any]] = {"sample": 9, "seed": 1, "drop": "observation/image_[123]"}

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(BRIDGE, tmp_path / "bridge"))

    @pytest.fixture
    def make_source(self, folder: Path) -> MakeSource:  # type: ignore[override]
        return lambda: open_source(folder, **self.HOW)

    @pytest.fixture
    def change(self, folder: Path) -> Callable[[], None]:
        def write() -> None:
            path = next(folder.rglob("*.tfrecord*"))
            path.write_bytes(path.read_bytes()[:-1] + b"!")

        return write

    def test_every_record_has_its_place(self, source: Source) -> None:
        items = list(source.read())
        assert [item.index if isinstance(item, Episode) else item.episode for item in items] == list(range(25))
        chosen = sorted(sorted(range(25), key=lambda index: unit_interval(1, index, "sample"))[:9])
        assert [item.index for item in items if isinstance(item, Episode)] == chosen

    def test_the_others_are_not_read(self, source: Source) -> None:
        plain = list(open_source(BRIDGE))
        taken = list(source)
        for episode in taken:
            own = plain[episode.index or 0]
            assert np.array_equal(episode.observation["image_0"], own.observation["image_0"])
            assert episode.observation.keys() == {"image_0", "state"}
        assert isinstance(source, TransformedSource)
        read = [item.index for item in source._reading.read() if isinstance(item, Episode)]
        assert read == [episode.index for episode in taken] and len(read) == 9

    def test_from_the_middle(self, source: Source) -> None:
        everything = list(source.read())
        for start in range(25):
            for stop in (None, start, start + 1, start + 4, 25, 40):
                part = list(source.read(start, stop))
                assert len(part) == len(everything[start:stop])
                for one, other in zip(part, everything[start:stop], strict=True):
                    assert_same_item(one, other)


class TestNotLookedAt:
    def test_fields_that_come_in_for_nothing_are_known(self) -> None:
        spec = open_source(BRIDGE).spec
        unused = {
            name: Transformation(spec, **how).unused
            for name, how in {
                "dropped": {"drop": ["observation/image_[12]", "reward", "is_terminal"]},
                "replaced": {"map": {"observation": "observation/state"}},
                "asked for": {"drop": ["reward", "action"], "where": "max(reward) < 1"},
                "moved": {"map": {"extras/a": "action"}},
            }.items()
        }
        images = [f"observation/image_{number}" for number in range(4)]
        assert unused["dropped"] == [*images[1:3], "reward"]
        assert unused["replaced"] == images and unused["asked for"] == ["action"] and unused["moved"] == []

    def test_a_dropped_field_can_still_be_asked_for(self) -> None:
        sums = [ep.action[:-1].sum(dtype=np.float64).item() for ep in open_source(BRIDGE)]
        limit = sorted(sums)[12]
        kept = list(open_source(BRIDGE, drop=["observation", "action"], where=f"sum(action) > {limit}"))
        assert [ep.index for ep in kept] == [index for index, total in enumerate(sums) if total > limit]
        assert len(kept) == 12 and kept[0].action is None

    def test_damaged_pictures_that_are_dropped_spoil_nothing(self, tmp_path: Path) -> None:
        folder = shutil.copytree(BRIDGE, tmp_path / "bridge")
        path = next(folder.rglob("*.tfrecord*"))
        path.write_bytes(path.read_bytes().replace(b"\xff\xd8\xff", b"\xff\xff\xff"))
        with pytest.raises(EpisodeError, match="damaged"):
            list(open_source(folder, check_crc=False, drop="observation/image_1"))
        found = list(open_source(folder, check_crc=False, map={"observation": "observation/state"}))
        assert [ep.observation.shape for ep in found] == [(10, 7)] * 25


class TestOpening:
    def test_every_format_takes_the_options(self) -> None:
        for path, how in (
            (HOPPER, {"drop": "infos"}),
            (CARTPOLE, {"cast": {"action": "int32"}}),
            (BRIDGE, {"drop": "observation/image*"}),
        ):
            with open_source(path, **how) as source, open_source(path) as plain:
                assert isinstance(source, TransformedSource)
                assert (source.format, source.name) == (plain.format, plain.name)
                assert source.num_episodes == plain.num_episodes and source.num_steps == plain.num_steps
                assert source.details()["transformation"] == source.transformation != {}
                for episode in source:
                    source.spec.check(episode)

    def test_an_open_source_is_wrapped_and_closed(self) -> None:
        class Closing(MemorySource):
            closed = False

            def close(self) -> None:
                self.closed = True

        inner = Closing([steps(3)])
        with open_source(inner, float32=True) as source:
            assert source.spec.observation["v"].dtype == np.float32 and not inner.closed
        assert inner.closed
        with pytest.raises(ValueError, match="open already"):
            open_source(inner, float32=True, split="train")
        assert open_source(inner) is inner
        assert open_source(inner, float32=False, drop=[], map={}, seed=3) is inner

    def test_what_is_opened_in_vain_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed = []
        monkeypatch.setattr(MemorySource, "close", lambda self: closed.append(self))
        with pytest.raises(ValueError, match="no field 'obs'"):
            open_source([steps(2)], drop="obs")
        assert len(closed) == 1

    def test_a_log_s_columns_are_named_by_map(self) -> None:
        from rlds2buf.pipeline.opening import _changes

        log = Format("log", "a log", takes=["columns"])
        options: dict[str, Any] = {"map": {"reward": "r"}, "drop": ["note"]}
        assert _changes(log, options) == {"drop": ["note"]} and options == {"columns": {"reward": "r"}}
        both: dict[str, Any] = {"map": {"reward": "extras/r"}, "columns": {"extras/r": "r"}}
        assert _changes(log, both) == {"map": {"reward": "extras/r"}} and both == {"columns": {"extras/r": "r"}}

    def test_formats_without_columns_do_not_take_them(self) -> None:
        with pytest.raises(TypeError, match="no option 'columns'"):
            open_source(HOPPER, columns={"reward": "rewards"})


class TestAgainstTheReader:
    @BOTH
    @pytest.mark.parametrize("name", ["hopper_medium-v2", "hopper_random-v1", "door-human-v0", "antmaze-umaze-v0"])
    @pytest.mark.parametrize("shift", [1, 2, 500])
    def test_reward_shift_is_d4rl_s_own(self, sets: Any, name: str, shift: int) -> None:
        path = sets / f"d4rl/{name}.hdf5"
        own = D4rlHdf5Source(path, reward_shift=shift)
        for one, other in zip(own, TransformedSource(D4rlHdf5Source(path), reward_shift=shift), strict=True):
            assert_same_episode(one, other)
        passed = open_source(path, reward_shift=shift)
        assert isinstance(passed, D4rlHdf5Source) and passed.fingerprint() == own.fingerprint()
        both = open_source(path, reward_shift=shift, drop="action")
        assert isinstance(both, TransformedSource) and both.transformation == {"drop": ["action"]}
        mapped = open_source(path, reward_shift=shift, map={"reward": ["reward"]})
        for one, other in zip(own, mapped, strict=True):
            assert_same_episode(one, other)

    def test_batches_are_those_of_the_episodes(self) -> None:
        for how in ({"drop": "infos", "map": {"extras/r": "reward"}}, {"min_length": 450}, {"alignment": "ars"}):
            with open_source(HOPPER, **how) as source:  # type: ignore[arg-type]
                batched = [episode for batch in source.batches(600) for episode in batch]
                for one, other in zip(source, batched, strict=True):
                    for (path, column), (same, twin) in zip(one.flatten(), other.flatten(), strict=True):
                        assert path == same and np.array_equal(column, twin), nest.path_name(path)

    def test_a_value_that_does_not_fit_is_named_in_a_batch_too(self) -> None:
        data = [steps(3), steps(3)]
        data[1][2]["observation"]["v"] = 1e300
        source = open_source(data, float32=True)
        with pytest.raises(EpisodeError, match=r"episode 1, step 2, observation/v: 1e\+300 does not fit into float32"):
            list(source.batches())
        found = list(source.read())
        assert isinstance(found[0], Episode) and isinstance(found[1], EpisodeError) and found[1].rule == "cast"

    def test_pictures_are_moved_as_the_files_they_are(self) -> None:
        with open_source(BRIDGE, map={"extras/cam": "observation/image_0"}, float32=True) as source:
            encoded = source.encoded()
            plain = next(iter(open_source(BRIDGE).encoded()))
            assert isinstance(encoded, TransformedSource) and encoded.transformation == source.transformation
            episode = next(iter(encoded))
            assert episode.extras["cam"].tolist() == plain.observation["image_0"].tolist()
            assert episode.extras["cam"][0][:2] == b"\xff\xd8"
            assert encoded.spec.extras["cam"].image is not None

    def test_pixels_that_are_cast_are_decoded(self) -> None:
        with open_source(BRIDGE, cast={"observation/image_0": "float32"}) as source:
            assert source.encoded() is source
            assert next(iter(source)).observation["image_0"].dtype == np.float32

    def test_nothing_is_encoded_in_memory(self) -> None:
        source = open_source([steps(2)], float32=True)
        assert source.encoded() is source


class Mixed(Source):
    """Episodes of given lengths and rewards; None for one that can't be built."""

    format = "mixed"
    name = "mixed"

    def __init__(self, kinds: list[tuple[int, float] | None]) -> None:
        self.kinds = kinds
        self.plain = MemorySource([steps(*(kind or (1, 0))) for kind in kinds])

    @property
    def spec(self) -> rlds2buf.StepSpec:
        return MemorySource([steps(1)]).spec

    @property
    def num_episodes(self) -> int:
        return len(self.kinds)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        for index, item in enumerate(self.plain.read(start, stop), start):
            yield item if self.kinds[index] else SpecMismatch("torn", source="mixed", episode=index, rule="spec")


class TestBooks:
    KINDS = st.none() | st.tuples(st.integers(1, 6), st.sampled_from([-1.0, 0.0, 2.0]))

    @given(st.lists(KINDS, max_size=12), st.integers(1, 4), st.floats(-4, 4), st.sampled_from([None, 0.3, 0.8]))
    def test_read_is_written_plus_left_out(
        self, kinds: list[Any], min_length: int, min_return: float, fraction: float | None
    ) -> None:
        how: dict[str, Any] = {"min_length": min_length, "min_return": min_return, "sample": fraction}
        expected: list[str] = []
        for index, kind in enumerate(kinds):
            if fraction is not None and unit_interval(0, index, "sample") >= fraction:
                expected.append("filter-sample")
            elif kind is None:
                expected.append("spec")
            elif kind[0] < min_length:
                expected.append("filter-min-length")
            else:
                short = (kind[0] - 1) * kind[1] < min_return
                expected.append("filter-min-return" if short else "written")
        source = TransformedSource(Mixed(kinds), **how)
        assert [item.rule if isinstance(item, EpisodeError) else "written" for item in source.read()] == expected
        count = Counter(expected)
        written = count.pop("written", 0)
        taken: list[Episode] = []
        if not written and kinds:
            with pytest.raises(EpisodeError, match="nothing was written") as caught:
                convert(source, taken, on_invalid="skip")
            report = caught.value.report
        else:
            report = convert(source, taken, on_invalid="skip")
        report.check()
        assert (report.read, report.written, dict(report.rejected)) == (len(kinds), written, dict(count))
        assert [issue.rule for issue in report.issues] == ["spec"] * count["spec"]
        checked = rlds2buf.validate(source)
        assert checked.filtered == Counter({rule: n for rule, n in count.items() if rule.startswith("filter")})
        assert checked.episodes == len(kinds) - checked.filtered.total() and checked.rejected == count["spec"]

    def test_iterating_passes_over_what_is_left_out_and_stops_at_what_is_torn(self) -> None:
        source = TransformedSource(Mixed([(1, 0.0), (3, 0.0), None]), min_length=2)
        reading = iter(source)
        assert next(reading).index == 1
        with pytest.raises(SpecMismatch, match="torn"):
            next(reading)

    def test_what_is_left_out_is_no_error(self) -> None:
        taken: list[Episode] = []
        report = convert([steps(1), steps(3), steps(5)], taken, min_length=2, where="length < 5")
        assert report.rejected == {"filter-min-length": 1, "filter-where": 1} and len(taken) == 1
        checked = rlds2buf.validate(open_source([steps(1), steps(3)], min_length=2))
        assert checked.ok and "1 episode left out: filter-min-length 1" in str(checked)
        assert checked.to_json()["filtered"] == {"filter-min-length": 1}

    def test_a_function_that_fails_is_not_hidden(self) -> None:
        with pytest.raises(ZeroDivisionError):
            list(open_source([steps(2)], where=lambda episode: 1 / 0))


class TestProvenance:
    HOW: ClassVar[dict[str, Any]] = {"map": {"extras/r": "reward"}, "min_length": 300, "sample": 2, "seed": 5}

    def test_it_is_told_with_the_options(self, tmp_path: Path) -> None:
        convert(HOPPER, tmp_path / "b", **self.HOW)
        manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
        options = manifest["provenance"]["options"]
        assert options["map"] == {"extras/r": "reward"} and options["min_length"] == 300
        assert options["sample"] == 2 and options["seed"] == 5 and options["on_invalid"] == "raise"

    def test_every_option_changes_the_fingerprint(self) -> None:
        ways: list[dict[str, Any]] = [
            {},
            self.HOW,
            {"map": {"extras/q": "reward"}},
            {"drop": "reward"},
            {"drop": "action"},
            {"float32": True},
            {"cast": {"reward": "float64"}},
            {"alignment": "rsa"},
            {"alignment": "ars"},
            {"reward_shift": 1},
            {"reward_shift": 2},
            {"sample": 0.5},
            {"sample": 0.5, "seed": 1},
            {"val_fraction": 0.5},
            {"val_fraction": 0.5, "part": "val"},
            {"where": "length > 1"},
            {"where": _long},
            {"min_length": 2},
            {"max_length": 900},
            {"min_return": 0},
            {"max_return": 1e9},
        ]
        prints = [open_source(HOPPER, **how).fingerprint() for how in ways]
        assert len(set(prints)) == len(ways)
        assert prints == [open_source(HOPPER, **how).fingerprint() for how in ways]

    @pytest.mark.parametrize("other", [{"float32": True}, {"map": {"extras/rew": "reward"}}, {"min_length": 3}])
    def test_a_run_with_another_transformation_does_not_go_on(self, other: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            _killed(tmp_path / "b", {"map": {"extras/r": "reward"}})
        with pytest.raises(SnapshotError, match=r"another|other|not the same|differ"):
            convert(HOPPER, tmp_path / "b", resume=True, **other)
        report = convert(HOPPER, tmp_path / "b", resume=True, map={"extras/r": "reward"})
        assert report.resumed == 1 and report.episodes == 2
        assert rlds2buf.load_buffer(tmp_path / "b").spec.extras["r"].dtype == np.float32


def _long(episode: Episode) -> bool:
    return len(episode) > 1


def _killed(path: Path, how: dict[str, Any]) -> None:
    """A conversion that is stopped behind its first episode, which is checkpointed."""
    from rlds2buf.formats.buffer.sink import BufferFolderSink

    class Killed(BufferFolderSink):
        def write_batch(self, batch: EpisodeBatch) -> int:
            first = batch.take(slice(1))
            items = super().write_batch(first)
            self.checkpoint({"read": 1, "episodes": 1, "steps": first.num_steps, "items": items, **_NONE})
            raise KeyboardInterrupt

    convert(HOPPER, Killed(path, resume=True), **how)


_NONE: dict[str, Any] = {"rejected": {}, "repaired": {}}


class TestRealData:
    def test_a_filter_by_return_keeps_those_of_that_return(self) -> None:
        plain = list(open_source(CARTPOLE))
        limit = float(np.median([episode_return(episode) or 0 for episode in plain]))
        kept = list(open_source(CARTPOLE, min_return=limit))
        assert [ep.index for ep in kept] == [ep.index for ep in plain if (episode_return(ep) or 0) >= limit]
        assert 0 < len(kept) < len(plain)

    @pytest.mark.parametrize("to", ["rlds", "buffer"])
    def test_what_is_left_and_changed_is_written(self, to: str, tmp_path: Path) -> None:
        how: dict[str, Any] = {
            "map": {"extras/pole": "observation", "observation": ["action"]},
            "cast": {"observation": "float32", "action": "int8"},
            "min_length": 20,
            "alignment": "rsa",
        }
        with pytest.raises(ValueError, match="cast: no field 'action'"):
            convert(CARTPOLE, tmp_path / "out", to=to, **how)
        del how["cast"]["action"]
        report = convert(CARTPOLE, tmp_path / "out", to=to, **how)
        wanted = list(open_source(CARTPOLE, **how))
        assert report.rejected["filter-min-length"] == 8 - len(wanted) > 0
        found = list(open_source(tmp_path / "out"))
        assert len(found) == len(wanted) > 0
        for one, other in zip(found, wanted, strict=True):
            for (path, column), (same, twin) in zip(one.flatten(), other.flatten(), strict=True):
                assert path == same and column.dtype == twin.dtype and np.array_equal(column, twin)

    def test_train_and_val_are_the_whole(self) -> None:
        parts = [
            {episode.index for episode in open_source(CARTPOLE, val_fraction=0.4, part=part, seed=3)}
            for part in ("train", "val")
        ]
        assert parts[0] | parts[1] == set(range(8)) and not parts[0] & parts[1] and parts[1]

    def test_metadata_of_a_real_dataset(self) -> None:
        where = "'carrot' in metadata/episode_metadata/file_path and metadata/episode_metadata/has_language"
        with open_source(BRIDGE, where=where) as source:
            kept = [episode.index for episode in source]
        with open_source(BRIDGE) as source:
            paths = [episode.metadata["episode_metadata"]["file_path"] for episode in source]
        assert kept == [index for index, path in enumerate(paths) if b"carrot" in path] and len(kept) == 8

    @pytest.mark.parametrize(
        "how",
        [
            {"min_length": 5},
            {"where": "any(observation/image_1 > 0)"},
            {"map": {"extras/arm": "observation/state"}},
            {"map": {"observation/image_1": "observation/image_2"}},
            {"drop": "observation/image_0"},
            {"sample": 0.5, "cast": {"action": "float64"}},
        ],
    )
    def test_fields_that_nobody_looks_at_are_left_out_where_that_changes_nothing_else(
        self, how: dict[str, Any]
    ) -> None:
        with open_source(BRIDGE, **how) as source:
            fewer = source.without(["observation/image_1", "observation/image_2", "extras/arm"])
            left = {nest.path_name(path) for path, _ in fewer.spec.fields()}
            assert "observation/image_1" not in left or "observation/image_1" in how.get("map", {})
            assert "extras/arm" in left or "extras/arm" not in how.get("map", {})
            for one, other in zip(fewer, source, strict=True):
                whole = {nest.path_name(path): column for path, column in other.flatten()}
                assert {nest.path_name(path) for path, _ in one.flatten()} == left and one.index == other.index
                for path, column in one.flatten():
                    np.testing.assert_array_equal(column, whole[nest.path_name(path)])

    def test_a_mixture_leaves_out_what_its_sources_do(self) -> None:
        with rlds2buf.open_mixture([BRIDGE, BRIDGE]) as mixture:
            fewer = mixture.without(["observation/image_1", "extras/source_id"])
            names = {nest.path_name(path) for path, _ in fewer.spec.fields()}
            assert "observation/image_1" not in names and {"observation/image_0", "extras/source_id"} <= names
            for one, other in zip(fewer, mixture, strict=True):
                np.testing.assert_array_equal(one.action, other.action)
                assert one.metadata["source_name"] == other.metadata["source_name"]
