"""What somebody is told who uses the commands for the first time: the way out, in the words of the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import rlds2buf
from rlds2buf.cli import convert as convert_command
from rlds2buf.cli import wording
from rlds2buf.cli.main import cli
from rlds2buf.formats.registry import BUILT_IN, source_options
from rlds2buf.formats.rlds.sink import RldsDirSink
from rlds2buf.pipeline.conversion import ConvertReport
from tests.cli.run import run

Capture = pytest.CaptureFixture[str]

LOG = """episode,t,obs_x,obs_y,act,rew,terminated,truncated
0,0,0.0,1.0,1,1.0,0,0
0,1,0.5,1.5,0,1.0,1,0
1,0,0.1,1.1,1,1.0,0,0
1,1,0.2,1.2,0,1.0,0,1
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


class TestLogs:
    def test_a_log_without_an_observation_says_what_to_type(self, log: Path, capsys: Capture) -> None:
        result = run(capsys, "convert", log, log.parent / "out")
        assert result.code == 3 and not (log.parent / "out").exists()
        assert "no column is called as an observation usually is" in result.err
        typed = re.search(r"--map (\S+=\S+)", result.err)
        assert typed is not None and typed[1] == "observation=obs_*"
        assert run(capsys, "convert", log, log.parent / "out", "--map", typed[1]).code == 0
        assert rlds2buf.load_buffer(log.parent / "out").all().observation.shape[1:] == (2,)

    def test_an_action_that_is_not_there_is_dropped(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "log.csv").write_text("obs_0,motor_1,motor_2,reward,terminated\n0,1,1,1,0\n1,1,1,1,1\n")
        result = run(capsys, "inspect", tmp_path / "log.csv")
        assert result.code == 3 and "as an action usually is" in result.err and "--drop action says" in result.err
        found = run(capsys, "inspect", tmp_path / "log.csv", "--drop", "action", "--json").json
        assert "action" not in found["fields"] and "extras/motor_1" in found["fields"]
        mapped = run(capsys, "inspect", tmp_path / "log.csv", "--map", "action=motor_*", "--json").json
        assert mapped["fields"]["action"]["shape"] == [2]
        gone = run(
            capsys, "inspect", tmp_path / "log.csv", "--map", "action=motor_*", "--drop", "action", "--json"
        ).json
        assert "action" not in gone["fields"] and "extras/motor_1" not in gone["fields"]

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("observatoin", "observation"),
            ("rewrad", "reward"),
            ("acton", "action"),
            ("actoins", "action"),
            ("terminatd", "terminated"),
            ("epsiode", "episode"),
            ("observtion/arm", "observation/arm"),
        ],
    )
    def test_a_field_that_is_nearly_one_is_refused(self, wrong: str, right: str, log: Path, capsys: Capture) -> None:
        result = run(capsys, "inspect", log, "--map", "observation=obs_*", f"{wrong}=rew")
        assert result.code == 2
        assert f"--map: '{wrong}' is no field; is it '{right}'? (an extra is 'extras/{wrong}')" in result.err
        assert run(capsys, "inspect", log, "--map", "observation=obs_*", f"extras/{wrong}=rew").code == 0

    @pytest.mark.parametrize("own", ["reward_scale", "my_action", "observation2", "status", "note", "distance"])
    def test_names_of_ones_own_are_extras(self, own: str, log: Path, capsys: Capture) -> None:
        found = run(capsys, "inspect", log, "--map", "observation=obs_*", f"{own}=rew", "--json").json
        assert f"extras/{own}" in found["fields"]

    @pytest.mark.parametrize("name", ["episode", "episode_id", "eps_id"])
    def test_a_field_by_any_of_its_names(self, name: str, tmp_path: Path, capsys: Capture) -> None:
        path = tmp_path / "noflag.csv"
        path.write_text("run,obs,act,rew\n0,1,1,1\n0,2,1,1\n1,3,1,1\n1,4,1,1\n1,5,1,1\n")
        told = run(capsys, "inspect", path)
        assert told.code == 3 and "--map episode=run" in told.err and "columns=" not in told.err
        found = run(capsys, "inspect", path, "--map", f"{name}=run", "--json").json
        assert found["episodes"] == 2 and found["details"]["episodes_by"] == "episode"

    def test_another_name_beside_the_fields_own_is_an_extra(self) -> None:
        from rlds2buf.core.spec import FieldSpec
        from rlds2buf.formats.step_log.column_map import ColumnMap

        number = FieldSpec((), np.dtype(float))
        columns = dict.fromkeys(("x", "y"), number)
        found = ColumnMap(columns, {"observation": "x", "state": "y"})
        assert found.fields["extras"]["state"].names == ("y",)
        assert ColumnMap(columns, {"state/q": "y"}).fields["observation"]["q"].names == ("y",)


def episode(**changes: Any) -> rlds2buf.Episode:
    fields: dict[str, Any] = {
        "observation": np.array([1.0, 2.0, 3.0]),
        "action": np.zeros(3),
        "reward": np.ones(3),
        "is_terminal": [False, False, True],
    }
    return rlds2buf.Episode(**{**fields, **changes})


BAD = {
    "flags": ({"is_terminal": [True, False, True]}, "--on-invalid repair mends such flags, --on-invalid skip"),
    "nan": ({"observation": np.array([1.0, np.nan, 3.0])}, "--allow-nonfinite accepts such values, --on-invalid skip"),
    "discount": ({"discount": np.array([2.0, 1.0, 0.0])}, "; --on-invalid skip leaves such episodes out"),
}


class TestTheWayOut:
    @pytest.mark.parametrize("kind", BAD)
    def test_of_invalid_episodes(self, kind: str, tmp_path: Path, capsys: Capture) -> None:
        changes, way_out = BAD[kind]
        bad = episode(**changes)
        with pytest.raises(rlds2buf.EpisodeError, match="on_invalid='skip' leaves such episodes out"):
            rlds2buf.convert([bad], [])
        sink = RldsDirSink(tmp_path / "rlds")
        sink.open(rlds2buf.spec_of(bad), {})
        sink.write(bad)
        sink.commit()
        result = run(capsys, "convert", tmp_path / "rlds", tmp_path / "out")
        assert result.code == 1 and way_out in result.err and "on_invalid" not in result.err
        told = run(capsys, "convert", tmp_path / "rlds", tmp_path / "out", "--json").json
        assert told["advice"] in result.err and told["advice"] not in told["error"]

    def test_options_are_spelt_as_options(self, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("obs,act,rew,done\n1,1,1,0\n1,1,1,1\n")
        result = run(capsys, "inspect", tmp_path / "a.csv")
        assert result.code == 3 and "(--map terminated=done)" in result.err and "columns=" not in result.err
        assert "--min-length must" in wording.as_options("min_length must be at least 1")

    @pytest.mark.parametrize("given", ["num_shards=0", "num_shards=x", "val_fraction=2"])
    def test_an_option_of_the_target_is_named_as_it_is_given(self, capsys: Capture, tmp_path: Path, given: str) -> None:
        (tmp_path / "a.csv").write_text("obs,act,rew,done\n1,1,1,0\n1,1,1,1\n")
        result = run(capsys, "convert", tmp_path / "a.csv", tmp_path / "out", "--to", "rlds", "-T", given)
        assert result.code == 2 and f"-T {given.partition('=')[0]} " in result.err

    def test_every_option_that_is_named_is_one(self) -> None:
        known = {
            name: {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
            for name, command in cli.commands.items()
            if isinstance(command, click.Command)
        }
        assert set(wording.SPELT.values()) <= set().union(*known.values())
        for command, names in wording.OWN.items():
            assert {f"--{name.replace('_', '-')}" for name in names} <= known[command]
        taken = {option.name for entry in BUILT_IN if entry.source for option in source_options(entry) or []}
        assert set(wording.READER_OPTIONS) <= taken

    def test_a_report_says_that_it_resumed(self, capsys: Capture) -> None:
        convert_command._print(ConvertReport("a", "b", read=1500, episodes=1500, resumed=1234))
        assert "resumed   behind 1,234 episodes" in capsys.readouterr().out


class TestWarnings:
    def test_convert_repeats_what_inspect_says(self, log: Path, capsys: Capture) -> None:
        options = ["--map", "observation=obs_*"]
        seen = run(capsys, "inspect", log, *options).out
        done = run(capsys, "convert", log, log.parent / "out", *options).out
        for text in (seen, done):
            for line in ("the 1 terminal observations are zeros", "the last action of the 1 truncated episodes"):
                assert text.count(line) == 1
            assert text.splitlines()[1] == "warnings"
        both = run(
            capsys, "convert", log, log.parent / "two", *options, "--with", f"{log}=9", "--weight", "1", "--json"
        )
        told = both.json["warnings"]
        assert len(told) == 5 and sum("weights order and share what is written" in line for line in told) == 1

    def test_losses_for_one_reason_are_one_line(self, tmp_path: Path, capsys: Capture) -> None:
        metadata = {f"fact_{i}": i for i in range(12)}
        rlds2buf.convert([episode(metadata=metadata)], tmp_path / "rlds", to="rlds")
        out = run(capsys, "convert", tmp_path / "rlds", tmp_path / "out").out
        assert out.count("no facts of whole episodes") == 1 and " and 8 more" in out


class TestInspect:
    def test_is_for_people(self, tmp_path: Path, capsys: Capture) -> None:
        pictures = {f"image_{i}": np.zeros((3, 8, 8, 3), np.uint8) for i in (10, 9)}
        data = episode(observation={**pictures, "state": np.zeros((3, 2))}, metadata={"file": "a", "success": True})
        rlds2buf.convert([data], tmp_path / "rlds", to="rlds")
        out = run(capsys, "inspect", tmp_path / "rlds").out
        assert not re.search(r"[{}']|\bTrue\b|\bNone\b|\[\"", out)
        names = re.findall(r"observation/\w+", out.split("details")[0])
        assert names == ["observation/image_9", "observation/image_10", "observation/state"]
        assert re.search(r"(?m)^features\n(  \S+ +\S.*\n)+", out) and re.search(
            r"(?m)^splits\n  train +episodes 1", out
        )

    def test_counts_are_the_files(self, log: Path, capsys: Capture) -> None:
        out = run(capsys, "inspect", log, "--map", "observation=obs_*").out
        assert re.search(r"rows in the file +4\n", out)
        assert re.search(r"transitions +3\n", out) and "5, the final observation of each episode included" in out
        assert len(re.findall(r"1 truncated|truncated +1", out)) == 2  # the warning, and the count
