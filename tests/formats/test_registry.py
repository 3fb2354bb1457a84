"""The registry is what every list of formats comes from: help, tables, options."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rlds2buf
from rlds2buf.formats import registry
from tests.cli.run import run
from tests.data import ROOT

Capture = pytest.CaptureFixture[str]

PAGE = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
READ = {entry.name: entry for entry in registry.BUILT_IN if entry.source is not None}
WRITTEN = [entry.name for entry in registry.BUILT_IN if entry.is_target]


def test_the_table_of_the_page() -> None:
    table = PAGE.partition("| format | `--format` |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]
    assert len(rows) > 5
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row[1])) == sorted(READ)
    assert sorted(name for row in rows for name in re.findall(r"^`([^`]+)`", row[3])) == sorted(WRITTEN)


def test_the_table_of_the_readme() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Formats\n\n")[2]
    both, only_read = ({*re.findall(r"`([^`]+)`", line)} for line in table.splitlines()[2:4])
    assert both == {*WRITTEN} and only_read - {"push"} == READ.keys() - both


def test_the_table_of_open_source() -> None:
    assert rlds2buf.open_source.__doc__ is not None
    rows = re.findall(r" ``([\w.-]+)`` +``(\w+)``$", rlds2buf.open_source.__doc__, flags=re.MULTILINE)
    assert dict(rows) == {name: str(entry.source).partition(":")[2] for name, entry in READ.items()}


def test_extras_are_those_of_the_package() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2]
    for entry in registry.BUILT_IN:
        for extra in entry.extras:
            assert f"\n{extra} = [" in declared


def test_every_option_says_what_it_is() -> None:
    for entry in registry.BUILT_IN:
        known = [*((entry.source and registry.source_options(entry)) or [])]
        known += [*((entry.sink and registry.sink_options(entry)) or [])]
        for option in known:
            assert option.help and option.type, (entry.name, option)
            assert not re.search(r"\b(as there|see :|:class:)", option.help), (entry.name, option)


def test_every_folder_of_a_format_says_what_it_is() -> None:
    rooms = {path.parent.name for path in (ROOT / "rlds2buf" / "formats").glob("*/__init__.py")}
    told = {str(entry.source or entry.sink).split(".")[2] for entry in registry.BUILT_IN}
    assert rooms == told


class TestCommand:
    def test_lists_every_format_and_what_it_needs(self, capsys: Capture) -> None:
        told = run(capsys, "formats", "--json").json
        assert [one["name"] for one in told["formats"]] == [entry.name for entry in registry.BUILT_IN]
        by_name = {one["name"]: one for one in told["formats"]}
        assert by_name["d4rl"]["read"] and by_name["d4rl"]["written"] and not by_name["csv"]["written"]
        assert by_name["parquet"]["extras"] == {"arrow": ""} and told["failed"] == []
        out = run(capsys, "formats").out
        assert re.search(r"(?m)^  d4rl +a D4RL HDF5 file +read, written$", out)
        assert re.search(r"(?m)^  reverb +a Reverb table +read +rlds2buf\[reverb\]$", out)

    def test_lists_the_options_of_a_reader_and_a_writer(self, capsys: Capture) -> None:
        out = run(capsys, "formats", "d4rl").out
        reader, writer = out.split("Options of its writer, -T NAME=VALUE:")
        assert "max_episode_steps: int | None = null" in reader and 'external: str = "refuse"' in reader
        assert "next_observations: bool = true" in writer and "resume" not in out and "budget" not in out
        told = run(capsys, "formats", "d4rl", "--json").json["options"]
        assert {"name": "reward_shift", "type": "int", "default": 0} == {
            key: value for key, value in told["read"][1].items() if key != "help"
        }
        written = run(capsys, "formats", "reverb-checkpoint", "--json").json["options"]["write"]
        names = {option["name"] for option in written}
        assert {"table", "pattern", "sequence_length", "n_step", "max_size", "sampler", "priority"} <= names

    def test_what_it_lists_is_taken(self, capsys: Capture, tmp_path: Path) -> None:
        data = [[{"observation": float(i), "action": 0, "reward": 1.0} for i in range(5)]]
        rlds2buf.convert(data, tmp_path / "a.hdf5")
        for name in WRITTEN:
            listed = run(capsys, "formats", name, "--json").json["options"]["write"]
            given = {one["name"]: one["default"] for one in listed if one["default"] not in (None, [])}
            given |= {"fps": 10} if name == "lerobot" else {}  # which nothing in the data tells
            options = [word for key, value in given.items() for word in ("-T", f"{key}={json.dumps(value)}")]
            result = run(capsys, "convert", tmp_path / "a.hdf5", tmp_path / f"{name}-v0", "--to", name, *options)
            assert result.code == 0, result.err

    def test_an_unknown_name_is_a_usage_error(self, capsys: Capture) -> None:
        result = run(capsys, "formats", "lance")
        assert result.code == 2 and "'d4rl'" in result.err


def test_a_checkpoint_takes_the_same_options_from_python(tmp_path: Path) -> None:
    data = [[{"observation": float(i), "action": 0, "reward": 1.0} for i in range(5)]]
    options = {"pattern": "transition", "n_step": 2, "sampler": "fifo"}
    rlds2buf.convert(data, tmp_path / "a", to="reverb-checkpoint", sink_options={"table": "mine", **options})
    rlds2buf.write_checkpoint(data, tmp_path / "b", "mine", **options)
    for name in ("a", "b"):
        with rlds2buf.open_source(tmp_path / name, table="mine") as source:
            assert [episode.num_steps for episode in source] == [2, 2, 2, 2]
    with pytest.raises(TypeError, match=r"takes no option 'colour'; its options: .*sampler"):
        rlds2buf.convert(data, tmp_path / "other", to="reverb-checkpoint", sink_options={"colour": 1})
