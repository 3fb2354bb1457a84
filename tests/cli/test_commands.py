"""What each command prints and returns when all is well, or when the data are not."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlds2buf
from rlds2buf.cli.main import cli
from rlds2buf.formats.registry import BUILT_IN
from tests.cli.run import run
from tests.made import MADE

HOPPER = MADE / "d4rl/hopper_medium-v2.hdf5"
BRIDGE = MADE / "rlds/bridge_dataset"
CARTPOLE = MADE / "minari/cartpole/random-v0"
Capture = pytest.CaptureFixture[str]


class TestHelp:
    def test_the_group_lists_every_command_and_the_exit_codes(self, capsys: Capture) -> None:
        out = run(capsys, "--help").out
        for name in cli.commands:
            assert name in out
        for code in (
            "0 done",
            "1 the data are invalid",
            "2 usage",
            "3 the source",
            "4 the output",
            "5 a buffer",
            "70 a bug",
            "130 interrupted",
            "143 terminated",
        ):
            assert code in " ".join(out.split())
        assert "optional package" in out
        for entry in BUILT_IN:
            if entry.is_path:
                assert f"  {entry.name} " in out and entry.what in out
        commands = out.partition("Commands:")[2].partition("What SRC may be")[0]
        assert "..." not in commands

    @pytest.mark.parametrize("name", sorted(cli.commands))
    def test_every_command_and_option_has_help(self, name: str, capsys: Capture) -> None:
        result = run(capsys, name, "--help")
        assert result.code == 0 and result.out.startswith(f"Usage: rlds2buf {name}")
        command = cli.commands[name]
        assert command.help and len(command.help) > 30
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or getattr(parameter, "help", None), parameter.name

    def test_version(self, capsys: Capture) -> None:
        assert run(capsys, "--version").out == f"rlds2buf, version {rlds2buf.__version__}\n"


class TestInspect:
    @pytest.mark.parametrize(
        ("path", "format", "episodes", "ends"),
        [
            (HOPPER, "d4rl", 2, {"terminated": 2, "truncated": 0, "open": 0}),
            (BRIDGE, "rlds", 25, {"terminated": 0, "truncated": 0, "open": 25}),
        ],
    )
    def test_json(self, path: Path, format: str, episodes: int, ends: dict[str, int], capsys: Capture) -> None:
        result = run(capsys, "inspect", path, "--json")
        found = result.json
        assert result.code == 0 and result.err == ""
        assert found["format"] == format and found["episodes"] == episodes and found["ends"] == ends
        assert found["steps"] - found["episodes"] == found["transitions"]
        assert found["lengths"]["min"] <= found["lengths"]["median"] <= found["lengths"]["max"]

    def test_returns_are_those_of_the_file(self, capsys: Capture) -> None:
        import h5py

        with h5py.File(HOPPER) as file:
            rewards, terminals = file["rewards"][:], file["terminals"][:]
        first = int(terminals.argmax()) + 1
        sums = [float(rewards[:first].sum(dtype=float)), float(rewards[first:].sum(dtype=float))]
        found = run(capsys, "inspect", HOPPER, "--json").json
        assert found["returns"] == pytest.approx({"min": min(sums), "mean": sum(sums) / 2, "max": max(sums)})
        assert found["fields"]["observation"] == {"shape": [11], "dtype": "float32"}
        assert found["bytes_per_step"] == (11 + 3 + 1 + 1 + 1) * 4 + (6 + 6) * 8 + 3

    def test_text_names_every_field(self, capsys: Capture) -> None:
        out = run(capsys, "inspect", CARTPOLE).out
        for word in ("minari", "observation", "action", "float32[4]", "returns", "terminated", "bytes per step"):
            assert word in out


class TestValidate:
    def test_valid(self, capsys: Capture) -> None:
        result = run(capsys, "validate", HOPPER, "--json")
        assert result.code == 0 and result.json["ok"] is True and result.json["episodes"] == 2
        assert "valid" in run(capsys, "validate", HOPPER).out

    def test_invalid_says_where_and_exits_with_1(self, capsys: Capture) -> None:
        result = run(capsys, "validate", BRIDGE, "--json")
        assert result.code == 1 and result.json["ok"] is False
        issue = result.json["issues"][0]
        assert (issue["rule"], issue["severity"], issue["episode"], issue["step"], issue["path"]) == (
            "last-missing",
            "error",
            0,
            9,
            "is_last",
        )
        text = run(capsys, "validate", BRIDGE)
        assert text.code == 1 and "episode 0, step 9, is_last" in text.out

    def test_warnings_are_allowed(self, capsys: Capture) -> None:
        result = run(capsys, "validate", MADE / "d4rl/door-human-v0.hdf5", "--json")
        assert result.code == 0 and result.json["warnings"] == 2


class TestConvertAndSample:
    @pytest.mark.parametrize(
        ("path", "transitions"),
        [(HOPPER, 911), (MADE / "rlds/d4rl_mujoco_hopper/v2-medium", 911), (CARTPOLE, None)],
        ids=["d4rl", "rlds", "minari"],
    )
    def test_a_dataset_becomes_a_buffer_that_samples(
        self, path: Path, transitions: int | None, tmp_path: Path, capsys: Capture
    ) -> None:
        out = tmp_path / "buffer"
        report = run(capsys, "convert", path, out, "--json")
        assert report.code == 0 and report.err == ""
        found = report.json
        assert found["read"] == found["written"] and found["rejected"] == {}
        assert found["items"] == found["steps"] - found["episodes"]
        assert transitions is None or found["items"] == transitions

        batch = run(capsys, "sample", out, "-n", 32, "--seed", 1, "--json").json
        assert batch["table_size"] == found["items"] and batch["batch_size"] == 32 and len(batch["keys"]) == 32
        assert batch["kind"] == "Transition" and batch["fields"]["observation"]["type"].startswith("float32[32, ")
        assert run(capsys, "sample", out, "-n", 32, "--seed", 1, "--json").json == batch
        assert run(capsys, "sample", out, "-n", 32, "--seed", 2, "--json").json["keys"] != batch["keys"]

    def test_n_step_and_sequences(self, tmp_path: Path, capsys: Capture) -> None:
        out = tmp_path / "buffer"
        assert "911" in run(capsys, "convert", HOPPER, out).out
        steps = run(capsys, "sample", out, "--n-step", 3, "--gamma", 0.5, "--json").json["fields"]
        assert steps["steps"]["max"] == 3 and steps["bootstrap_discount"]["max"] <= 0.5
        sequences = run(capsys, "sample", out, "-n", 4, "--sequence-length", 7, "--json").json
        assert sequences["kind"] == "Trajectory" and sequences["fields"]["mask"]["type"] == "bool[4, 7]"
        text = run(capsys, "sample", out, "-n", 4).out
        assert "observation" in text and "float32[4, 11]" in text

    def test_split(self, tmp_path: Path, capsys: Capture) -> None:
        path = MADE / "rlds/d4rl_mujoco_hopper/v2-medium"
        assert run(capsys, "convert", path, tmp_path / "b", "--split", "train[1:]", "--json").json["items"] == 441

    def test_on_invalid(self, tmp_path: Path, capsys: Capture) -> None:
        nothing = run(capsys, "convert", BRIDGE, tmp_path / "a", "--on-invalid", "skip", "--json")
        skipped = nothing.json["report"]
        assert skipped["read"] == 25 and skipped["written"] == 0 and skipped["rejected"] == {"last-missing": 25}
        assert nothing.code == 1 and not (tmp_path / "a").exists()
        assert "nothing was written: all 25 episodes were left out (last-missing 25)" in nothing.err
        mended = run(capsys, "convert", BRIDGE, tmp_path / "b", "--on-invalid", "repair", "--json").json
        assert mended["written"] == 25 and mended["repaired"] == {"last-missing": 25} and mended["items"] == 225
        text = run(capsys, "convert", BRIDGE, tmp_path / "c", "--on-invalid", "skip")
        assert text.code == 1 and text.out == "" and "last-missing 25" in text.err

    def test_final_transition(self, tmp_path: Path, capsys: Capture) -> None:
        path = MADE / "rlds/robomimic_ph"
        how = ("--on-invalid", "repair", "--json")
        dropped = run(capsys, "convert", path, tmp_path / "a", *how).json
        kept = run(capsys, "convert", path, tmp_path / "b", "--final-transition", "keep", *how).json
        assert kept["items"] == dropped["items"] + kept["repaired"]["final-transition-kept"]
        assert kept["repaired"]["final-transition-kept"] > 0

    def test_overwrite(self, tmp_path: Path, capsys: Capture) -> None:
        out = tmp_path / "buffer"
        run(capsys, "convert", HOPPER, out)
        assert run(capsys, "convert", CARTPOLE, out, "--overwrite").code == 0
        assert rlds2buf.load_buffer(out).spec.observation.shape == (4,)

    def test_options_of_the_format(self, tmp_path: Path, capsys: Capture) -> None:
        plain = run(capsys, "inspect", HOPPER, "-O", "infos=false", "--json").json
        assert not any(name.startswith("extras/infos") for name in plain["fields"])
        cut = run(capsys, "convert", HOPPER, tmp_path / "b", "-O", "max_episode_steps=100", "--json").json
        assert cut["episodes"] > 2
