"""D4RL files as they are written: keys, alignment, what is refused and what is listed as lost."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, SinkError, SnapshotError, SnapshotExists, SpecMismatch, convert, open_source, spec_of
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.d4rl.sink import D4rlHdf5Sink
from rlds2buf.io.column_spool import BLOCK_BYTES
from rlds2buf.io.sink import Sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.data import ROOT
from tests.differences import assert_only_lost


class Counting(D4rlHdf5Sink):
    """Of a nested observation only the count, which an array holds."""

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        super().open(StepSpec(**{**vars_of(spec), "observation": spec.observation["count"]}), provenance)

    def write(self, episode: Episode) -> int:
        return super().write(episode.replace(observation=episode.observation["count"]))


def vars_of(spec: StepSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ("observation", "action", "reward", "discount", "extras")}


class TestContract(SinkContract):
    # An episode of one row has no transition, so this format leaves it out: see below.
    episodes: ClassVar = SinkContract.episodes

    def make(self, folder: Path) -> Sink:
        return Counting(folder / "file.hdf5")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "file.hdf5").exists():
            return None
        source = open_source(folder / "file.hdf5", format="d4rl")
        return [int(n) for ep in source for n in np.asarray(ep.observation)[:-1]]


def make(rows: int, start: int = 0, end: str = "terminated", **changes: Any) -> Episode:
    """An episode whose values a D4RL file can hold, all of them: padding is zeros, discounts are the usual ones."""
    number = np.arange(start, start + rows)
    padded = np.where(np.arange(rows) < rows - 1, number + 1, 0)
    discount = np.ones(rows, np.float32)
    if end == "terminated":
        discount[-2:] = 0
    last = np.arange(rows) == rows - 1
    episode = Episode(
        observation=np.stack([number, -number], 1).astype(np.float32),
        action=padded.astype(np.int16)[:, None],
        reward=padded * 0.5,
        discount=discount,
        is_first=np.arange(rows) == 0,
        is_last=last if end != "open" else np.zeros(rows, bool),
        is_terminal=last if end == "terminated" else np.zeros(rows, bool),
        metadata={"algorithm": "random", "weights": {"fc0": np.arange(6.0).reshape(2, 3)}},
    )
    return episode.replace(**changes)


def texts(rows: int) -> np.ndarray:
    column = np.array([b"text %d" % t for t in range(rows)], object)
    column[-1] = b""
    return column


def write(path: Path, episodes: list[Episode], **options: Any) -> Mapping[str, str]:
    sink = D4rlHdf5Sink(path, **options)
    sink.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        assert sink.write(episode) == episode.num_transitions
    sink.commit()
    return sink.lost()


def test_is_a_table_as_d4rl_has_it(tmp_path: Path) -> None:
    episodes = [make(4), make(3, 100, "truncated"), make(2, 200)]
    assert write(tmp_path / "a.hdf5", episodes) == {}
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert set(file) == {
            *("observations", "next_observations", "actions", "rewards", "terminals", "timeouts", "metadata")
        }
        row = 0
        for ep in episodes:
            for t in range(ep.num_transitions):
                np.testing.assert_array_equal(file["observations"][row], ep.observation[t])
                np.testing.assert_array_equal(file["next_observations"][row], ep.observation[t + 1])
                np.testing.assert_array_equal(file["actions"][row], ep.action[t])
                assert file["rewards"][row] == ep.reward[t]
                assert file["terminals"][row] == ep.is_terminal[t + 1]
                assert file["timeouts"][row] == (ep.is_last[t + 1] and not ep.is_terminal[t + 1])
                row += 1
        assert len(file["rewards"]) == row
        dtypes = {name: file[name].dtype for name in ("observations", "actions", "rewards", "terminals", "timeouts")}
        assert dtypes == {
            "observations": np.float32,
            "actions": np.int16,
            "rewards": np.float64,
            "terminals": np.bool_,
            "timeouts": np.bool_,
        }
        assert file["metadata/algorithm"][()] == b"random"
        assert json.loads(file.attrs["rlds2buf"]) == PROVENANCE
    assert_only_lost(episodes, open_source(tmp_path / "a.hdf5"), {})


def test_blocks_meet_without_a_seam(tmp_path: Path) -> None:
    """Columns longer than what is copied at a time, with episodes across the borders."""
    wide = BLOCK_BYTES // 8 // 50
    episodes = [
        make(rows, 1000 * i, observation=np.random.default_rng(i).normal(size=(rows, wide)))
        for i, rows in enumerate([40, 9, 2, 61, 49, 51, 100])
    ]
    assert write(tmp_path / "a.hdf5", episodes) == {}
    assert_only_lost(episodes, open_source(tmp_path / "a.hdf5"), {})


def test_extras_have_their_places(tmp_path: Path) -> None:
    zeros = np.zeros((5, 2), np.uint64)
    high = zeros.copy()
    high[:4] = np.iinfo(np.uint64).max
    extras = {
        "infos": {"qpos": zeros + 0.0, "deep": {"high": high}},
        "cost": zeros[:, 0].astype(np.float16),
        "note": texts(5),
        "timeouts": zeros,
        "group": {"a": zeros, "b": (zeros, zeros)},
        "flag": zeros[:, 0] > 0,
        "wave": zeros[:, 0] * 1j,
    }
    lost = write(tmp_path / "a.hdf5", [make(5, extras=extras)])
    assert lost == {
        "extras/timeouts": "it is read back as extras/infos/timeouts",
        "extras/group/a": "it is read back as extras/infos/group/a",
        "extras/group/b/0": "it is read back as extras/infos/group/b/0",
        "extras/group/b/1": "it is read back as extras/infos/group/b/1",
    }
    assert_only_lost([make(5, extras=extras)], open_source(tmp_path / "a.hdf5"), lost)


def test_what_has_no_place_is_listed(tmp_path: Path) -> None:
    ragged = np.empty(4, object)
    ragged[:] = [np.zeros(t) for t in range(4)]
    one, zeros = make(4), np.zeros(4)
    changed = one.replace(
        discount=np.full(4, 0.5),
        action=one.action + 1,
        reward=one.reward[:, None] + 1,
        extras={"a": zeros + 1, "infos": {"x": {"y": zeros}}, "x": {"y": zeros}, "b/c": zeros, "ragged": ragged},
        metadata={"same": 1, "other": 1, "thing": object(), "none": None, "empty": {}},
    )
    sink = D4rlHdf5Sink(tmp_path / "a.hdf5")
    spec = spec_of(changed)
    sink.open(StepSpec(**{**vars_of(spec), "extras": {**spec.extras, "ragged": FieldSpec((None,), float)}}), PROVENANCE)
    sink.write(changed)
    sink.write(changed.replace(metadata={**changed.metadata, "other": 2}))
    sink.commit()
    lost = dict(sink.lost())
    assert lost.pop("metadata/other").startswith("it differs")
    assert lost.pop("metadata/thing").startswith("its value is a object")
    assert lost.pop("metadata/empty") == "it has nothing in it"
    assert lost.pop("extras/x/y") == "another field is infos/x/y in the file already"
    assert lost.pop("extras/b/c").startswith("its name")
    assert lost.pop("extras/ragged").startswith("its length varies")
    assert lost.pop("discount").startswith("the format has none")
    assert lost.pop("reward").startswith("it is read back without its axis of length 1; the last row")
    assert all(lost.pop(name).startswith("the last row") for name in ("action", "extras/a"))
    assert not lost
    back = list(open_source(tmp_path / "a.hdf5"))
    assert back[0].metadata == {"same": 1, "none": None}


def test_episodes_of_one_row_and_open_ends(tmp_path: Path) -> None:
    episodes = [make(1), make(3, end="open"), make(1), make(2)]
    lost = write(tmp_path / "a.hdf5", episodes)
    assert lost["episodes"] == "2 have one row only, so no transition: left out"
    assert "time-out" in lost["is_last"]
    assert [ep.end for ep in open_source(tmp_path / "a.hdf5")] == ["truncated", "terminated"]
    assert_only_lost(episodes, open_source(tmp_path / "a.hdf5"), lost)


def test_without_next_observations(tmp_path: Path) -> None:
    lost = write(tmp_path / "a.hdf5", [make(4), make(3, end="truncated")], next_observations=False)
    assert lost == {"observation": "next_observations=False: the last one of each episode is left out"}
    back = list(open_source(tmp_path / "a.hdf5"))
    assert [ep.num_steps for ep in back] == [4, 2]
    assert back[0].metadata["placeholder_final_row"]
    with pytest.raises(TypeError, match="next_observations"):
        D4rlHdf5Sink("x", next_observations="no")  # type: ignore[arg-type]


def test_no_reward_is_zeros(tmp_path: Path) -> None:
    lost = write(tmp_path / "a.hdf5", [make(4, reward=None)])
    assert list(lost) == ["reward"]
    assert not next(iter(open_source(tmp_path / "a.hdf5"))).reward.any()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observation": {"a": np.zeros(4), "b": (np.zeros(4),)}}, "map={'observation': 'observation/a'}"),
        ({"action": (np.zeros(4), np.zeros(4))}, "nested .action/0, action/1."),
        ({"action": None}, "have no action"),
        ({"observation": {}}, "have no observation"),
        ({"reward": np.zeros((4, 2))}, "one number a step"),
        ({"reward": texts(4)}, "one number a step"),
        ({"reward": {"a": np.zeros(4)}}, "one number a step"),
    ],
)
def test_refuses_what_it_can_not_hold_before_anything_is_made(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    sink = D4rlHdf5Sink(tmp_path / "a.hdf5")
    with pytest.raises(SinkError, match=says):
        sink.open(spec_of(make(4, **changes)), PROVENANCE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (FieldSpec((), object, image=FieldSpec((8, 8, 3), np.uint8)), "takes them decoded"),
        (FieldSpec((None, 3), np.float32), "length varies"),
    ],
)
def test_refuses_observations_that_are_no_rows(tmp_path: Path, field: FieldSpec, says: str) -> None:
    sink = D4rlHdf5Sink(tmp_path / "a.hdf5")
    with pytest.raises(SinkError, match=says):
        sink.open(StepSpec(observation=field, action=FieldSpec((), np.int64)), PROVENANCE)


def test_text_with_zero_bytes_is_refused_and_named(tmp_path: Path) -> None:
    good = make(4, extras={"note": texts(4)})
    bad = texts(4)
    bad[2] = b"a\0b"
    sink = D4rlHdf5Sink(tmp_path / "a.hdf5")
    sink.open(spec_of(good), PROVENANCE)
    sink.write(good)
    with pytest.raises(SpecMismatch, match="step 2, extras/note: a text with zero bytes"):
        sink.write(make(4, extras={"note": bad}))
    sink.write(good)
    sink.commit()
    assert_only_lost([good, good], open_source(tmp_path / "a.hdf5"), sink.lost())


def test_overwrites_hdf5_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    path.write_text("my notes")
    for overwrite in (False, True):
        with pytest.raises(SnapshotExists):
            write(path, [make(4)], overwrite=overwrite)
    assert path.read_text() == "my notes"
    path.unlink()
    write(path, [make(4)])
    with pytest.raises(SnapshotExists):
        write(path, [make(3)])
    write(path, [make(3)], overwrite=True)
    assert [ep.num_steps for ep in open_source(path)] == [3]
    assert [file.name for file in tmp_path.iterdir()] == ["a.hdf5"]


def test_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    extras = {"extras": {"note": texts(5)}}
    episodes = [make(5, 10, **extras), make(5, 20, "truncated", **extras), make(1, extras={"note": texts(1)})]
    episodes += [make(5, 30, metadata={"algorithm": "other"}, discount=np.zeros(5, np.float32), **extras)]
    expected = write(tmp_path / "whole.hdf5", episodes)
    first = D4rlHdf5Sink(tmp_path / "a.hdf5", resume=True)
    first.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes[:3]:
        first.write(episode)
    first.checkpoint({"read": 3})
    first.write(episodes[0])  # behind the checkpoint: not there when going on
    first.abort()
    for options in ({"next_observations": False}, {}):
        other = D4rlHdf5Sink(tmp_path / "a.hdf5", resume=True, **options)
        with pytest.raises(SnapshotError, match="another source or other options"):
            other.open(spec_of(episodes[0]), PROVENANCE if options else {**PROVENANCE, "fingerprint": "2"})
    second = D4rlHdf5Sink(tmp_path / "a.hdf5", resume=True)
    second.open(spec_of(episodes[0]), PROVENANCE)
    assert second.resumed() == {"read": 3}
    second.write(episodes[3])
    second.commit()
    assert second.lost() == expected and {"episodes", "discount", "metadata/algorithm"} <= set(expected)
    assert (tmp_path / "a.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()
    assert {file.name for file in tmp_path.iterdir()} == {"a.hdf5", "whole.hdf5"}


FULL = """
import resource, signal, sys
import numpy as np
from rlds2buf import Episode, SinkError, convert
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # it would be cut short
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
rows = 4000
episode = Episode(observation=np.zeros((rows, 30)), action=np.zeros(rows), reward=np.zeros(rows), discount=None)
try:
    convert([episode, episode], sys.argv[1], to="d4rl")
except SinkError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("limit", [100_000, 3_000_000])
def test_a_full_disk_is_a_sink_error(tmp_path: Path, limit: int) -> None:
    """While spooling, and while writing the HDF5 file, which is larger than each column."""
    assert resource.RLIMIT_FSIZE and signal.SIGXFSZ
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "a.hdf5"), str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("refused:") and "too large" in done.stdout
    assert not list(tmp_path.iterdir())


PEAK = """
import resource, sys
import numpy as np
from rlds2buf import Episode, convert
from rlds2buf.formats.memory.source import MemorySource

class Made(MemorySource):
    def read(self, start=0, stop=None):
        for index in range(start, int(sys.argv[3])):
            yield self._episodes[0].replace(index=index)

rows = 1000
last = np.arange(rows) == rows - 1
note = np.full(rows, b"a sentence", object)
one = Episode(observation=np.ones((rows, 60)), action=np.zeros(rows), reward=np.zeros(rows), is_last=last,
              is_terminal=last, extras={"infos": {"note": note}})
convert(Made([one]), sys.argv[1], to=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize("kind", ["d4rl", "minari"])
def test_memory_does_not_grow_with_the_data(tmp_path: Path, kind: str) -> None:
    peaks = []
    for count in (20, 160):  # episodes of half a megabyte
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(tmp_path / f"{count}"), kind, str(count)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < 1.1 * peaks[0]


def test_by_name(tmp_path: Path) -> None:
    report = convert([make(4)], str(tmp_path / "a.hdf5"), to="d4rl", sink_options={"next_observations": False})
    assert report.items == 3 and set(report.lost) == {"observation"}
    with pytest.raises(TypeError, match="next_observations"):
        convert([make(4)], str(tmp_path / "b.hdf5"), to="d4rl", sink_options={"name": "x"})
    assert rlds2buf.open_source(tmp_path / "a.hdf5").format == "d4rl"
