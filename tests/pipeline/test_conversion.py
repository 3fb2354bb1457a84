"""source -> check -> sink: what is written, what is left out, and what is left behind when it fails."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds2buf
from rlds2buf import (
    BoundaryError,
    Episode,
    EpisodeBatch,
    EpisodeError,
    SnapshotError,
    SnapshotExists,
    SourceError,
    SourceFormatError,
    SourceNotFound,
    make_circular,
    open_source,
)
from rlds2buf.core.spec import StepSpec
from rlds2buf.formats.memory.sink import MemorySink
from rlds2buf.io.source import Source
from rlds2buf.pipeline.conversion import ConvertReport, convert
from tests.buffers.numbered import SPEC, episode
from tests.contracts.sink import numbers
from tests.data import ROOT
from tests.made import MADE

GOOD = [episode(0, 6), episode(100, 4, end="truncated"), episode(200, 9)]
OPEN = episode(300, 5, end="open")
NAN = episode(400, 3).replace(reward=np.array([0.0, np.nan, 0.0]))


class Damaged(Source):
    """Yields its items, each episode as a batch of its own, then finds the rest damaged."""

    format = "damaged"
    name = "damaged"

    def __init__(self, items: list[Episode | EpisodeError], error: BaseException) -> None:
        self.items = items
        self.error = error
        self.closed = False

    @property
    def spec(self) -> StepSpec:
        return SPEC

    def read_batches(
        self, start: int = 0, stop: int | None = None, **sizes: Any
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        for item in self.items[start:stop]:
            yield EpisodeBatch.of_one(item) if isinstance(item, Episode) else item
        if stop is None:
            raise self.error

    def close(self) -> None:
        self.closed = True


def books(report: ConvertReport) -> tuple[int, int, dict[str, int]]:
    report.check()
    return report.read, report.written, dict(report.rejected)


class TestCounts:
    def test_every_episode_is_written(self) -> None:
        taken: list[Episode] = []
        report = convert(GOOD, taken)
        assert books(report) == (3, 3, {})
        assert numbers(taken) == numbers(GOOD)
        assert report.episodes == 3 and report.steps == 6 + 4 + 9 and report.items == 3
        assert report.seconds > 0 and report.resumed == 0 and not report.repaired

    def test_items_of_a_buffer_are_transitions(self) -> None:
        buffer = make_circular(SPEC, 100)
        report = rlds2buf.convert(GOOD, buffer)
        assert report.items == len(buffer) == 5 + 3 + 8
        assert buffer.all().observation["count"].tolist() == numbers(GOOD)

    def test_an_empty_source(self) -> None:
        assert books(convert(_Items([]), [])) == (0, 0, {})

    def test_json_is_complete(self) -> None:
        report = convert([*GOOD, OPEN], [], on_invalid="skip").to_json()
        assert report["read"] == 4 and report["written"] == report["episodes"] == 3
        assert report["rejected"] == {"last-missing": 1}
        assert report["issues"][0]["episode"] == 3

    @given(
        st.lists(st.sampled_from(["good", "open", "nan", "glued", "error"]), max_size=12),
        st.sampled_from(["skip", "repair"]),
    )
    def test_read_is_written_plus_rejected(self, kinds: list[str], on_invalid: str) -> None:
        flags = {"is_first": np.array([1, 0, 1, 0], bool), "is_last": np.array([0, 1, 0, 1], bool)}
        glued = episode(0, 4).replace(**flags)
        make = {"good": GOOD[0], "open": OPEN, "nan": NAN, "glued": glued, "error": EpisodeError("cut short")}
        taken: list[Episode] = []
        items = [make[kind] for kind in kinds]
        count = Counter(kinds)
        if kinds and not count["good"] and not (on_invalid == "repair" and count["open"]):
            with pytest.raises(EpisodeError, match="nothing was written") as caught:
                convert(_Items(items), taken, on_invalid=on_invalid)
            report = caught.value.report
        else:
            report = convert(_Items(items), taken, on_invalid=on_invalid)
        expected = {"nonfinite": count["nan"], "last-inside": count["glued"], "unreadable": count["error"]}
        if on_invalid == "skip":
            expected["last-missing"] = count["open"]
        assert books(report) == (len(kinds), len(taken), {rule: n for rule, n in expected.items() if n})
        assert report.repaired == (Counter({"last-missing": count["open"]}) if on_invalid == "repair" else Counter())


class _Items(Damaged):
    """Yields its items and is done."""

    def __init__(self, items: list[Episode | EpisodeError]) -> None:
        super().__init__(items, StopIteration())

    def read_batches(
        self, start: int = 0, stop: int | None = None, **sizes: Any
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        yield from super().read_batches(start, len(self.items) if stop is None else stop)


class TestInvalid:
    def test_raise_names_the_place_and_keeps_the_report(self) -> None:
        taken: list[Episode] = [GOOD[2]]
        with pytest.raises(BoundaryError, match="episode 1, step 4, is_last") as caught:
            convert([GOOD[0], OPEN], taken)
        assert caught.value.rule == "last-missing"
        assert books(caught.value.report) == (1, 1, {})
        assert taken == [GOOD[2]]

    def test_skip_leaves_it_out_and_says_so(self) -> None:
        taken: list[Episode] = []
        report = convert([GOOD[0], OPEN, NAN, GOOD[1]], taken, on_invalid="skip")
        assert books(report) == (4, 2, {"last-missing": 1, "nonfinite": 1})
        assert numbers(taken) == numbers([GOOD[0], GOOD[1]])
        assert [(issue.rule, issue.episode, issue.step) for issue in report.issues] == [
            ("last-missing", 1, 4),
            ("nonfinite", 2, 1),
        ]

    def test_repair_mends_flags_and_counts_rows(self) -> None:
        taken: list[Episode] = []
        early = GOOD[0].replace(is_terminal=np.array([0, 1, 1, 0, 0, 1], bool))
        report = convert([early, OPEN, NAN], taken, on_invalid="repair")
        assert books(report) == (3, 2, {"nonfinite": 1})
        assert report.repaired == {"terminal-inside": 2, "last-missing": 1}
        assert [ep.end for ep in taken] == ["terminated", "truncated"]

    def test_what_the_sink_refuses_is_refused_too(self) -> None:
        buffer = make_circular(SPEC, 5)
        report = convert(GOOD, buffer, on_invalid="skip")
        assert books(report) == (3, 1, {report.issues[0].rule: 2})
        with pytest.raises(EpisodeError):
            convert(GOOD, make_circular(SPEC, 5))

    def test_nonfinite_can_be_allowed(self) -> None:
        assert books(convert([NAN], [], allow_nonfinite=True)) == (1, 1, {})

    def test_few_findings_are_kept_but_all_counted(self) -> None:
        report = convert([OPEN] * 50 + GOOD, [], on_invalid="skip")
        assert report.rejected == {"last-missing": 50} and len(report.issues) == 20

    @pytest.mark.parametrize("kind", ["list", "buffer", "folder"])
    def test_an_output_of_nothing_is_no_output(self, kind: str, tmp_path: Path) -> None:
        taken: list[Episode] = []
        sinks: dict[str, Any] = {"list": taken, "buffer": make_circular(SPEC, 9)}
        sink = sinks.get(kind, tmp_path / "out")
        with pytest.raises(EpisodeError, match=r"all 2 episodes were left out \(last-missing 2\)") as caught:
            convert([OPEN, OPEN], sink, on_invalid="skip")
        assert books(caught.value.report) == (2, 0, {"last-missing": 2})
        assert not taken and not list(tmp_path.iterdir())

    @pytest.mark.parametrize("wrong", [{"on_invalid": "ignore"}, {"final_transition": "both"}, {"to": "csv"}])
    def test_unknown_options(self, wrong: dict[str, str]) -> None:
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be one of"):
            convert([], "never-made", **wrong)  # type: ignore[arg-type]
        assert not Path("never-made").exists()

    def test_how_to_open_is_for_what_is_not_open_yet(self) -> None:
        with rlds2buf.open_source(GOOD) as source, pytest.raises(ValueError, match="opened source"):
            convert(source, [], split="train")


class TestFinalTransition:
    def test_keep_adds_a_row_behind_a_terminal_one(self) -> None:
        taken: list[Episode] = []
        report = convert([GOOD[0], GOOD[1]], taken, final_transition="keep")
        assert [ep.num_steps for ep in taken] == [7, 4]
        assert taken[0].reward[5] == GOOD[0].reward[5]
        assert report.repaired == {"final-transition-kept": 1, "final-transition-lost": 1}
        assert report.steps == 11


class TestFailure:
    @pytest.mark.parametrize("error", [SourceFormatError("shard 3: CRC"), KeyboardInterrupt(), RuntimeError("bug")])
    def test_nothing_is_left_and_the_report_comes_along(self, tmp_path: Path, error: BaseException) -> None:
        taken: list[Episode] = []
        buffer = make_circular(SPEC, 100)
        for sink in (taken, buffer, tmp_path / "out"):
            with pytest.raises(type(error)) as caught:
                convert(Damaged([*GOOD, OPEN], error), sink, on_invalid="skip")
            assert caught.value is error
            assert books(caught.value.report) == (4, 3, {"last-missing": 1})
        assert taken == [] and len(buffer) == 0
        assert list(tmp_path.iterdir()) == []

    def test_an_opened_source_stays_the_callers(self) -> None:
        source = Damaged(GOOD, SourceError("gone"))
        with pytest.raises(SourceError):
            convert(source, [])
        assert not source.closed

    def test_a_source_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound):
            convert(tmp_path / "none.hdf5", tmp_path / "out")
        assert list(tmp_path.iterdir()) == []

    def test_a_failing_sink_is_aborted(self) -> None:
        class Full(MemorySink):
            aborted = 0

            def write_batch(self, batch: EpisodeBatch) -> int:
                if len(self.episodes) == 2:
                    raise rlds2buf.SinkError("no space left on device")
                return super().write_batch(batch)

            def abort(self) -> None:
                self.aborted += 1
                super().abort()

        sink = Full()
        with pytest.raises(rlds2buf.SinkError) as caught:
            convert(_Items(GOOD), sink, on_invalid="skip")
        assert sink.aborted == 1 and sink.episodes == []
        assert books(caught.value.report) == (2, 2, {})


class TestFolder:
    def test_a_buffer_folder_holds_every_transition(self, tmp_path: Path) -> None:
        report = convert(GOOD, tmp_path / "out")
        loaded = rlds2buf.load_buffer(tmp_path / "out")
        assert loaded.all().observation["count"].tolist() == numbers(GOOD)
        assert report.items == len(loaded)
        assert loaded.provenance["options"]["on_invalid"] == "raise"
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_a_target_that_is_there_stays(self, tmp_path: Path) -> None:
        convert(GOOD[:1], tmp_path / "out")
        with pytest.raises(SnapshotExists):
            convert(GOOD, tmp_path / "out")
        assert len(rlds2buf.load_buffer(tmp_path / "out")) == 5
        convert(GOOD, tmp_path / "out", overwrite=True)
        assert len(rlds2buf.load_buffer(tmp_path / "out")) == 16

    def test_a_failed_overwrite_leaves_the_old_one(self, tmp_path: Path) -> None:
        convert(GOOD[:1], tmp_path / "out")
        with pytest.raises(SourceError):
            convert(Damaged(GOOD, SourceError("gone")), tmp_path / "out", overwrite=True)
        assert len(rlds2buf.load_buffer(tmp_path / "out")) == 5
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


class Watched(Damaged):
    """Remembers where it was read from."""

    def __init__(self, items: list[Episode | EpisodeError], error: BaseException) -> None:
        super().__init__(items, error)
        self.starts: list[tuple[int, int | None]] = []

    def read_batches(
        self, start: int = 0, stop: int | None = None, **sizes: Any
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        self.starts.append((start, stop))
        yield from super().read_batches(start, stop)


class TestResume:
    @pytest.fixture(autouse=True)
    def checkpoint_after_every_episode(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules["rlds2buf.pipeline.conversion"], "CHECKPOINT_SECONDS", 0.0)

    def interrupt(self, folder: Path, **options: Any) -> None:
        with pytest.raises(KeyboardInterrupt):
            convert(
                Damaged([GOOD[0], OPEN, GOOD[1]], KeyboardInterrupt()),
                folder,
                resume=True,
                on_invalid="skip",
                **options,
            )

    def test_goes_on_without_redoing(self, tmp_path: Path) -> None:
        self.interrupt(tmp_path / "out")
        assert not (tmp_path / "out").exists()
        whole = Watched([GOOD[0], OPEN, GOOD[1], NAN, GOOD[2]], KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt) as caught:
            convert(whole, tmp_path / "out", resume=True, on_invalid="skip")
        assert books(caught.value.report) == (5, 3, {"last-missing": 1, "nonfinite": 1})
        assert whole.starts == [(3, None)]
        report = convert(_Items(whole.items), tmp_path / "out", resume=True, on_invalid="skip")
        assert report.resumed == report.read == 5 and report.items == 16
        assert rlds2buf.load_buffer(tmp_path / "out").all().observation["count"].tolist() == numbers(GOOD)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_refuses_other_options_and_other_data(self, tmp_path: Path) -> None:
        self.interrupt(tmp_path / "out")
        with pytest.raises(SnapshotError, match="another source or other options"):
            convert(_Items(GOOD), tmp_path / "out", resume=True, on_invalid="repair")
        with pytest.raises(SnapshotError, match="another source or other options"):
            convert(GOOD, tmp_path / "out", resume=True, on_invalid="skip")
        report = convert(_Items([GOOD[0], OPEN, GOOD[1]]), tmp_path / "out", resume=True, on_invalid="skip")
        assert report.resumed == 3

    def test_starts_from_the_beginning_where_there_is_nothing(self, tmp_path: Path) -> None:
        report = convert(GOOD, tmp_path / "out", resume=True)
        assert report.resumed == 0 and report.items == 16

    def test_after_a_kill(self, tmp_path: Path) -> None:
        path = MADE / "d4rl/hopper_medium-v2.hdf5"
        code = """
import os, signal, sys
import rlds2buf.pipeline.conversion
from rlds2buf.formats.d4rl.source import D4rlHdf5Source
sys.modules["rlds2buf.pipeline.conversion"].CHECKPOINT_SECONDS = 0.0
class Killed(D4rlHdf5Source):
    def read_batches(self, start=0, stop=None, **sizes):
        for item in super().read_batches(start, stop, rows=1):
            if item.index[0] == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield item
rlds2buf.convert(Killed(sys.argv[1]), sys.argv[2])
"""
        out = tmp_path / "out"
        done = subprocess.run([sys.executable, "-c", code, str(path), str(out)], cwd=ROOT, timeout=120)
        assert done.returncode == -9
        assert not out.exists()
        with pytest.raises((SourceNotFound, rlds2buf.SnapshotCorrupt)):
            rlds2buf.load_buffer(out)
        report = convert(path, out, resume=True)
        assert report.resumed == 1 and report.read == report.written == 2
        convert(path, tmp_path / "straight")
        one, other = rlds2buf.load_buffer(out).all(), rlds2buf.load_buffer(tmp_path / "straight").all()
        np.testing.assert_array_equal(one.next_observation, other.next_observation)
        np.testing.assert_array_equal(one.is_done, other.is_done)


class TestRealData:
    def test_bridge_needs_its_last_steps_repaired(self) -> None:
        taken: list[Episode] = []
        with pytest.raises(BoundaryError, match="does not end in is_last"):
            convert(MADE / "rlds/bridge_dataset", taken)
        report = convert(MADE / "rlds/bridge_dataset", taken, on_invalid="repair")
        assert books(report) == (25, 25, {})
        assert report.repaired == {"last-missing": 25}
        assert {ep.end for ep in taken} == {"truncated"}

    def test_robomimic_has_early_terminals(self) -> None:
        report = convert(MADE / "rlds/robomimic_ph", [], on_invalid="repair")
        assert report.read == report.written > 0 and report.repaired["terminal-inside"] > 0

    def test_three_formats_of_one_main_job(self, tmp_path: Path) -> None:
        expected = {"d4rl/hopper_medium-v2.hdf5": 911, "rlds/d4rl_mujoco_hopper/v2-medium": 911}
        for name, transitions in expected.items():
            out = tmp_path / name.replace("/", "-")
            assert convert(MADE / name, out, to="buffer").items == len(rlds2buf.load_buffer(out)) == transitions
        out = tmp_path / "minari"
        report = convert(MADE / "minari/cartpole/random-v0", out)
        assert report.items == len(rlds2buf.load_buffer(out)) == report.steps - report.episodes > 0

    def test_splits_and_their_syntax(self) -> None:
        taken: list[Episode] = []
        convert(MADE / "rlds/d4rl_mujoco_hopper/v2-medium", taken, split="train[1:]")
        assert [ep.num_transitions for ep in taken] == [441]


def test_a_misspelt_option_is_no_option_of_the_source(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean on_invalid"):
        convert([GOOD[0]], tmp_path / "out", on_invald="skip")
    with open_source([GOOD[0]]) as source, pytest.raises(ValueError, match="split: for opening a path"):
        convert(source, [], split="train")
    with pytest.raises(SourceNotFound, match="empty name"):
        open_source("")


def test_a_field_that_the_buffer_does_not_know_can_be_dropped() -> None:
    episode = Episode(
        observation=np.zeros((3, 2), np.float32), action=np.zeros(3, np.int64), reward=np.ones(3), discount=np.ones(3)
    )
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(episode.replace(discount=None)), 10)
    with pytest.raises(rlds2buf.SpecMismatch) as caught:
        rlds2buf.convert([episode], buffer)
    assert caught.value.advice == "drop=['discount'] leaves the field out"
    assert rlds2buf.convert([episode], buffer, drop=["discount"]).episodes == 1
