"""What is done to SRC on its way, from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import rlds2buf
from rlds2buf.cli.command import SectionOption, spread
from rlds2buf.cli.main import cli
from rlds2buf.cli.source_options import OPTIONS
from tests.cli.run import run, start
from tests.data import ROOT
from tests.made import MADE

HOPPER = MADE / "d4rl/hopper_medium-v2.hdf5"
RANDOM = MADE / "d4rl/hopper_random-v1.hdf5"
CARTPOLE = MADE / "minari/cartpole/random-v0"
BRIDGE = MADE / "rlds/bridge_dataset"
Capture = pytest.CaptureFixture[str]
COMMANDS = ("inspect", "stats", "validate", "convert", "push", "serve")


def fields(capsys: Capture, *arguments: object) -> dict[str, Any]:
    result = run(capsys, "inspect", *arguments, "--json")
    assert result.code == 0, result.err
    return dict(result.json["fields"])


class TestHelp:
    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_command_has_them_in_sections(self, name: str, capsys: Capture) -> None:
        out = run(capsys, name, "--help").out
        assert out.index("Options:") < out.index("Fields of SRC:") < out.index("Episodes of SRC:")
        for option in OPTIONS:
            assert option.opts[0] in out[out.index(f"{option.section}:") :]
        assert "--split" in out[: out.index("Fields of SRC:")]

    def test_every_option_is_of_every_command(self) -> None:
        for name in COMMANDS:
            held = [option for option in cli.commands[name].params if isinstance(option, SectionOption)]
            assert [option.name for option in held if option.section != "Reading SRC"] == [it.name for it in OPTIONS]


class TestFields:
    def test_map_takes_several_at_once_and_again(self, capsys: Capture) -> None:
        how = ["--map", "extras/r=reward", "observation=extras/infos/q*", "--drop", "infos/action_log_probs"]
        found = fields(capsys, HOPPER, *how, "--map", "action=action,discount", "--float32")
        assert found["observation"] == {"shape": [12], "dtype": "float32"}
        assert found["action"] == {"shape": [4], "dtype": "float32"} and found["extras/r"]["dtype"] == "float32"
        assert not {"reward", "discount", "extras/infos/qpos", "extras/infos/action_log_probs"} & found.keys()

    def test_the_columns_of_a_log(self, tmp_path: Path, capsys: Capture) -> None:
        path = tmp_path / "log.csv"
        rows = [f"{t // 4},{t},{-t},{0.5 * t},{t % 2},{int(t % 4 == 3)},7" for t in range(8)]
        path.write_text("\n".join(["run,p10,p9,gain,move,over,junk", *rows]) + "\n")
        how = ["--map", "observation=p*", "reward=gain", "action=move", "terminated=over", "episode=run"]
        assert fields(capsys, path, *how)["observation"] == {"shape": [2], "dtype": "int64"}
        done = run(capsys, "convert", path, tmp_path / "b", *how, "--drop", "junk", "--float32", "--min-return", 5)
        assert done.code == 0 and "filter-min-return  1" in done.out
        items = rlds2buf.load_buffer(tmp_path / "b").all()
        assert items.observation.tolist() == [[-t, t] for t in range(4, 8)]
        assert items.reward.dtype == np.float32 and items.reward.tolist() == [2, 2.5, 3, 3.5]

    def test_what_follows_a_value_is_not_always_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert spread(["a", "--map", "x=y", "b", "c=d"], ["--map"]) == ["a", "--map", "x=y", "b", "c=d"]
        assert spread(["--map=x=y", "z=w", "-O", "c=d"], ["--map"]) == ["--map=x=y", "--map", "z=w", "-O", "c=d"]
        assert spread(["--map", "x=y", "--", "z=w"], ["--map"]) == ["--map", "x=y", "--", "z=w"]
        assert spread(["--map"], ["--map"]) == ["--map"]
        monkeypatch.chdir(tmp_path)
        Path("run=3").mkdir()
        assert spread(["--map", "x=y", "run=3"], ["--map"]) == ["--map", "x=y", "run=3"]

    def test_cast_and_drop(self, capsys: Capture) -> None:
        found = fields(capsys, CARTPOLE, "--cast", "action=int32", "reward=float64", "--drop", "discount")
        assert found["action"]["dtype"] == "int32" and found["reward"]["dtype"] == "float64"
        assert "discount" not in found
        assert "extras" not in str(fields(capsys, HOPPER, "--drop", "extras").keys())

    def test_a_value_that_does_not_fit_is_invalid_data(self, tmp_path: Path, capsys: Capture) -> None:
        result = run(capsys, "convert", HOPPER, tmp_path / "b", "--cast", "reward=int64", "--json")
        assert result.code == 1 and not list(tmp_path.iterdir())
        found = result.json
        assert (found["rule"], found["episode"], found["step"], found["path"]) == ("cast", 0, 0, "reward")

    def test_alignment_and_reward_shift(self, tmp_path: Path, capsys: Capture) -> None:
        with h5py.File(HOPPER) as file:
            rewards, actions = file["rewards"][:], file["actions"][:]
        for number, (how, reward, action) in enumerate(
            [
                (["--alignment", "ars"], rewards[1], actions[1]),
                (["--alignment", "rsa"], rewards[1], actions[0]),
                (["--reward-shift", "2"], rewards[2], actions[0]),
                (["--reward-shift", "2", "--alignment", "ars"], rewards[3], actions[1]),
                (["--alignment", "sar"], rewards[0], actions[0]),
            ]
        ):
            assert run(capsys, "convert", HOPPER, tmp_path / str(number), *how).code == 0
            items = rlds2buf.load_buffer(tmp_path / str(number)).all()
            assert items.reward[0] == reward and np.array_equal(items.action[0], action)


class TestEpisodes:
    @pytest.mark.parametrize(
        ("how", "kept", "rules"),
        [
            (["--min-length", 450], 1, {"filter-min-length": 1}),
            (["--max-length", 450], 1, {"filter-max-length": 1}),
            (["--min-return", 1450], 1, {"filter-min-return": 1}),
            (["--max-return", 1450], 1, {"filter-max-return": 1}),
            (["--where", "end == 'terminated' and index < 1"], 1, {"filter-where": 1}),
            (["--sample", 1], 1, {"filter-sample": 1}),
            (["--sample", "1.0"], 2, {}),
            (["--val-fraction", 0.5], 1, {"filter-part": 1}),
            (["--val-fraction", 0.5, "--part", "val"], 1, {"filter-part": 1}),
        ],
    )
    def test_what_is_left_out_is_counted(
        self, how: list[object], kept: int, rules: dict[str, int], tmp_path: Path, capsys: Capture
    ) -> None:
        found = run(capsys, "convert", HOPPER, tmp_path / "b", *how, "--json").json
        assert (found["read"], found["written"], found["rejected"], found["issues"]) == (2, kept, rules, [])
        shown = run(capsys, "inspect", HOPPER, *how, "--json").json
        assert (shown["episodes"], shown["filtered"], shown["unreadable"]) == (kept, rules, 0)
        checked = run(capsys, "validate", HOPPER, *how, "--json")
        assert checked.code == 0 and checked.json["filtered"] == rules and checked.json["episodes"] == kept

    def test_in_words(self, tmp_path: Path, capsys: Capture) -> None:
        how = ["--min-length", 450]
        assert "filter-min-length  1" in run(capsys, "convert", HOPPER, tmp_path / "b", *how).out
        assert "left out           1 by filter-min-length" in run(capsys, "inspect", HOPPER, *how).out
        assert "1 episode left out: filter-min-length 1" in run(capsys, "validate", HOPPER, *how).out

    def test_nothing_is_left(self, tmp_path: Path, capsys: Capture) -> None:
        result = run(capsys, "convert", HOPPER, tmp_path / "b", "--min-length", 9999, "--json")
        assert result.code == 1 and not list(tmp_path.iterdir())
        assert result.json["report"]["rejected"] == {"filter-min-length": 2}
        assert "nothing was written: all 2 episodes were left out (filter-min-length 2)" in result.err

    def test_train_and_val_are_the_whole(self, capsys: Capture) -> None:
        how = ["--val-fraction", "0.4", "--seed", "7", "--json"]
        train, val = (run(capsys, "inspect", CARTPOLE, *how, "--part", part).json for part in ("train", "val"))
        assert train["episodes"] + val["episodes"] == 8 and val["episodes"] > 0
        assert train["steps"] + val["steps"] == run(capsys, "inspect", CARTPOLE, "--json").json["steps"]

    def test_the_seed_chooses(self, capsys: Capture) -> None:
        found = {run(capsys, "inspect", CARTPOLE, "--sample", 3, "--seed", n, "--json").json["steps"] for n in range(5)}
        assert len(found) > 1


class TestSeveral:
    def test_behind_each_other(self, tmp_path: Path, capsys: Capture) -> None:
        found = run(capsys, "convert", HOPPER, tmp_path / "b", "--with", RANDOM, "--float32", "--json")
        assert found.code == 0, found.err
        assert found.json["episodes"] == 4 and " + " in found.json["source"]
        ids = rlds2buf.load_buffer(tmp_path / "b").all().extras["source_id"]
        assert np.unique(ids).tolist() == [0, 1] and (np.diff(ids) >= 0).all()

    def test_by_weight(self, tmp_path: Path, capsys: Capture) -> None:
        how = ["-O", "max_episode_steps=10", "--float32", "--with", f"{RANDOM}=0.5", "--weight", 2, "--seed", 4]
        assert run(capsys, "convert", HOPPER, tmp_path / "b", *how).code == 0
        ids = rlds2buf.load_buffer(tmp_path / "b").all().extras["source_id"]
        assert np.unique(ids).tolist() == [0, 1] and (np.diff(ids) < 0).any()
        assert run(capsys, "inspect", HOPPER, *how, "--json").json["format"] == "mixture"
        assert run(capsys, "validate", HOPPER, *how).code == 0

    def test_what_is_done_is_done_to_each(self, capsys: Capture) -> None:
        how = ["--with", RANDOM, "--min-length", 25, "--drop", "infos", "--json"]
        found = run(capsys, "inspect", HOPPER, *how).json
        assert found["episodes"] == 3 and found["filtered"] == {"filter-min-length": 1}

    def test_data_that_differ(self, capsys: Capture, tmp_path: Path) -> None:
        result = run(capsys, "convert", HOPPER, tmp_path / "b", "--with", CARTPOLE)
        assert result.code == 1 and "--map" in result.err and str(CARTPOLE) in result.err


class TestUsage:
    @pytest.mark.parametrize(
        ("how", "says"),
        [
            (["--map", "observation"], "expected FIELD=SOURCE, got 'observation'"),
            (["--map", "a=reward", "a=action"], "'a' is given twice; fields are joined with commas"),
            (["--map", "observation=obs_*"], "map: no field 'obs_*'"),
            (["--map", "observation=actions"], "is it 'action'"),
            (["--drop", "rewards"], "drop: no field 'rewards'; is it 'reward'"),
            (["--cast", "reward"], "expected FIELD=TYPE"),
            (["--cast", "reward=float31"], "'float31' for 'reward' is no numpy type"),
            (["--alignment", "sra"], "'sra' is not one of"),
            (["--reward-shift", "-1"], "-1 is not in the range"),
            (["--sample", "some"], "expected a fraction or a number of episodes"),
            (["--sample", "3"], "there are only 2 episodes"),
            (["--sample", "1.5"], "above 0 and at most 1"),
            (["--part", "val"], "needs val_fraction"),
            (["--val-fraction", "2"], "between 0 and 1"),
            (["--min-length", "5", "--max-length", "4"], "no episode would be left"),
            (["--where", "lenght > 3"], "unknown name 'lenght'; is it 'length'? (at character 1 of"),
            (["--where", "any(obs)"], "no field 'obs'"),
            (["--drop", "reward", "--min-return", "1"], "need a reward of one number a step; there is none"),
            (["--images", "encoded"], "a D4RL HDF5 file takes no option 'images'"),
            (["--resize", "64"], "a D4RL HDF5 file takes no option 'resize'"),
            (["--resize", "64x"], "expected N or HEIGHTxWIDTH"),
            (["--weight", "2"], "--weight is for a mixture"),
            (["--weight", "2", "--with", str(RANDOM)], "either every dataset has a weight"),
            (["--with", f"{RANDOM}=2"], "either every dataset has a weight"),
            (["--weight", "0", "--with", f"{RANDOM}=2"], "must be a positive number"),
            (["--float32", "-O", "float32=true"], "float32 is given twice, by -O and by --float32"),
        ],
    )
    def test_wrong_use(self, how: list[str], says: str, tmp_path: Path, capsys: Capture) -> None:
        result = run(capsys, "convert", HOPPER, tmp_path / "b", *how)
        assert result.code == 2 and says in result.err
        assert not list(tmp_path.iterdir())

    def test_a_value_that_is_missing(self, capsys: Capture) -> None:
        result = run(capsys, "inspect", HOPPER, "--map")
        assert result.code == 2 and "--map" in result.err


def test_a_killed_run_goes_on_with_the_same_choices_only(tmp_path: Path, capsys: Capture) -> None:
    """A run with other choices is refused, and what there is stays for one with the same."""
    path, out = tmp_path / "data.hdf5", tmp_path / "b"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        count = 100_000
        file["observations"] = rng.normal(size=(count, 3)).astype(np.float32)
        file["actions"] = rng.normal(size=(count, 1)).astype(np.float32)
        file["rewards"] = rng.normal(size=count).astype(np.float32)
        file["terminals"] = np.arange(count) % 20 == 19
        file["timeouts"] = np.zeros(count, bool)
    how = ["--map", "extras/r=reward", "--where", "index != 5", "--sample", "0.5"]
    code = (
        "import importlib, os, signal, sys\n"
        "importlib.import_module('rlds2buf.pipeline.conversion').CHECKPOINT_SECONDS = 0.0\n"
        "from rlds2buf.formats.buffer.sink import BufferFolderSink as B\n"
        "plain = B.write_batch\n"
        "def write_batch(self, batch):\n"
        "    if batch.index[-1] > 3000: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return plain(self, batch)\n"
        "B.write_batch = write_batch\n"
        "from rlds2buf.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, "convert", path, out, *how, "--resume"],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -9 and not out.exists()
    other = run(capsys, "convert", path, out, "--map", "extras/x=reward", *how[2:], "--resume")
    assert other.code == 5, other.err
    found = run(capsys, "convert", path, out, *how, "--resume", "--json").json
    whole = run(capsys, "convert", path, tmp_path / "whole", *how, "--json").json
    assert found["resumed"] > 100
    for name in ("read", "episodes", "steps", "items", "rejected"):
        assert found[name] == whole[name]
    one, other_one = rlds2buf.load_buffer(out).all(), rlds2buf.load_buffer(tmp_path / "whole").all()
    assert np.array_equal(one.extras["r"], other_one.extras["r"])
    assert np.array_equal(one.observation, other_one.observation)


def test_several_processes_read_where_they_are_asked_for(tmp_path: Path, capsys: Capture) -> None:
    reports = []
    for jobs in ("1", "2"):
        found = run(capsys, "convert", HOPPER, tmp_path / jobs, "--jobs", jobs, "--json").json
        reports.append({name: found[name] for name in ("read", "episodes", "steps", "items")})
        assert run(capsys, "validate", HOPPER, "--jobs", jobs).code == 0
    assert reports[0] == reports[1]
    assert run(capsys, "convert", HOPPER, tmp_path / "none", "--jobs", "0").code == 2


def test_help_stays_quick() -> None:
    process = start("convert", "--help")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and not err and "--val-fraction" in out
