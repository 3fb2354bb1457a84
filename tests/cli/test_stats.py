"""``rlds2buf stats`` and ``convert --normalize``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rlds2buf
from tests.cli.run import run
from tests.made import MADE

HOPPER = MADE / "d4rl/hopper_medium-v2.hdf5"
BRIDGE = MADE / "rlds/bridge_dataset"
Capture = pytest.CaptureFixture[str]


def actions() -> np.ndarray:
    with rlds2buf.open_source(HOPPER) as source:
        return np.concatenate([episode.action[:-1] for episode in source])


class TestOutput:
    def test_a_table_with_a_row_for_each_dimension(self, capsys: Capture) -> None:
        result = run(capsys, "stats", HOPPER)
        assert result.code == 0 and not result.err
        lines = result.out.splitlines()
        head = next(i for i, line in enumerate(lines) if line == "numbers") + 1
        assert lines[head].split() == "count mean std min q01 q10 q50 q90 q99 max".split()
        row = next(line for line in lines if line.startswith("  action[1]")).split()
        values = actions()[:, 1].astype(np.float64)
        assert row[1] == f"{len(values)}"
        expected = [values.mean(), values.std(), values.min(), *np.quantile(values, [0.01, 0.1, 0.5, 0.9, 0.99])]
        assert row[2:] == [f"{value:.6g}" for value in [*expected, values.max()]]

    def test_wide_fields_are_cut_and_pictures_have_a_table_of_their_own(self, capsys: Capture) -> None:
        out = run(capsys, "stats", BRIDGE, "--picture-sample", 5).out
        assert "and 496 more of extras/language_embedding: --json has them" in out
        assert "extras/language_instruction  text" in out
        pictures = out[out.index("pictures (from 0 to 1, by channel)") :]
        assert "observation/image_0[2]  5 " in pictures and "observation/state" not in pictures

    def test_json_is_what_the_function_gives(self, capsys: Capture, tmp_path: Path) -> None:
        found = run(capsys, "stats", HOPPER, "--json").json
        assert found == json.loads(json.dumps(rlds2buf.statistics(HOPPER).to_json()))
        out = tmp_path / "stats.json"
        result = run(capsys, "stats", HOPPER, "--json", "--out", out)
        assert result.json == found == json.loads(out.read_text())
        assert rlds2buf.normalize(np.zeros(3), out).shape == (3,)

    def test_the_options_of_every_source(self, capsys: Capture) -> None:
        how = ["--where", "length > 450", "--drop", "infos", "--map", "x=reward", "--cast", "action=float64"]
        found = run(capsys, "stats", HOPPER, *how, "--json").json
        expected = rlds2buf.statistics(
            HOPPER, where="length > 450", drop=["infos"], map={"x": "reward"}, cast={"action": "float64"}
        )
        assert found == json.loads(json.dumps(expected.to_json())) and "extras/x" in found["fields"]
        assert 0 < found["episodes"] < run(capsys, "stats", HOPPER, "--json").json["episodes"]
        whole = run(capsys, "stats", HOPPER, "--json").json["fields"]["action"]["count"]
        both = run(capsys, "stats", HOPPER, "--with", HOPPER, "--json").json["fields"]["action"]["count"]
        assert both == [2 * count for count in whole]


class TestForms:
    @pytest.mark.parametrize("form", ["lerobot", "openpi", "octo", "openvla"])
    def test_are_printed_or_written(self, form: str, capsys: Capture, tmp_path: Path) -> None:
        printed = run(capsys, "stats", BRIDGE, "--picture-sample", 3, "--for", form).json
        result = run(capsys, "stats", BRIDGE, "--picture-sample", 3, "--for", form, "--out", tmp_path / "a.json")
        assert result.out == f"{tmp_path / 'a.json'}: written\n"
        assert json.loads((tmp_path / "a.json").read_text()) == printed

    def test_openvla_s_mask_and_names(self, capsys: Capture) -> None:
        how = ["--for", "openvla", "--mask", "action[:-1]", "--name", "mine", "--picture-sample", 0]
        found = run(capsys, "stats", BRIDGE, *how).json["mine"]
        assert found["action"]["mask"] == [True] * 6 + [False] and "proprio" in found
        joined = run(
            capsys, "stats", HOPPER, "--for", "octo", "--state", "observation,infos/qpos", "--action", "reward"
        )
        assert len(joined.json["proprio"]["mean"]) == 17 and len(joined.json["action"]["mean"]) == 1


class TestNormalize:
    def test_writes_normalised_data_that_can_be_brought_back(self, capsys: Capture, tmp_path: Path) -> None:
        how = ["--normalize", "action[:-1]=q01_q99,observation=mean_std", "--normalize", "reward=min_max"]
        result = run(capsys, "convert", HOPPER, tmp_path / "b", *how)
        assert result.code == 0, result.err
        batch = rlds2buf.load_buffer(tmp_path / "b").all()
        np.testing.assert_array_equal(
            batch.action, rlds2buf.normalize(actions(), rlds2buf.statistics(HOPPER), "action[:-1]")
        )
        np.testing.assert_allclose([batch.reward.min(), batch.reward.max()], [-1, 1], atol=1e-6)
        back = rlds2buf.unnormalize(batch.action, tmp_path / "b", "action[:-1]")
        inside = np.abs(batch.action) < 1
        np.testing.assert_allclose(back[inside], actions()[inside], rtol=1e-5, atol=1e-6)

    def test_by_statistics_in_a_file(self, capsys: Capture, tmp_path: Path) -> None:
        run(capsys, "stats", HOPPER, "--json", "--out", tmp_path / "s.json", "--where", "index == 0")
        how = ["--normalize", "action=min_max", "--normalize-stats", tmp_path / "s.json"]
        assert run(capsys, "convert", HOPPER, tmp_path / "b", *how).code == 0
        stats = rlds2buf.statistics(HOPPER, where="index == 0")
        expected = rlds2buf.normalize(actions(), stats, "action", "min_max")
        np.testing.assert_array_equal(rlds2buf.load_buffer(tmp_path / "b").all().action, expected)


class TestWrong:
    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["stats", HOPPER, "--picture-sample", "x"], 2, "expected a number of frames, or all, got 'x'"),
            (["stats", HOPPER, "--state", "a"], 2, "--state, --action, --mask and --name are for --for"),
            (["stats", HOPPER, "--for", "octo", "--state", "nothing"], 2, "--state: no statistics of 'nothing'"),
            (["stats", HOPPER, "--for", "octo", "--mask", "action[0]"], 2, "--mask: octo has none"),
            (["stats", HOPPER, "--memory", "x"], 2, "expected a number of bytes"),
            (["stats", "none"], 3, "none: no such file"),
            (["--normalize", "action"], 2, "expected FIELD=WAY"),
            (["--normalize", "acton=min_max"], 2, "--normalize: no field 'acton'"),
            (["--normalize", "action=best"], 2, "--normalize must be one of q01_q99"),
            (["--normalize", "action[a]=min_max"], 2, "dimensions are chosen as in action[:-1]"),
            (["--normalize-stats", "s"], 2, "--normalize-stats: say with --normalize action=q01_q99"),
            (["--normalize", "action=min_max", "--normalize-stats", "s"], 3, "s: no such file"),
        ],
    )
    def test_is_told(
        self,
        arguments: list[str],
        code: int,
        words: str,
        capsys: Capture,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = run(capsys, *(arguments if arguments[0] == "stats" else ["convert", HOPPER, "b", *arguments]))
        assert result.code == code and words in result.err and not result.out
        assert not list(tmp_path.iterdir())

    def test_what_is_not_finite_is_named(self, capsys: Capture, tmp_path: Path) -> None:
        rows = [{"observation": [1.0], "action": None if i == 2 else 1.0, "terminated": i == 4} for i in range(5)]
        (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
        result = run(capsys, "stats", tmp_path / "log.jsonl")
        assert result.code == 1 and "step 2, action: " in result.err and "--allow-nonfinite leaves such" in result.err
        found = run(capsys, "stats", tmp_path / "log.jsonl", "--allow-nonfinite", "--json").json
        assert found["fields"]["action"]["count"] == 4

    def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(self, capsys: Capture, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text("mine")
        result = run(capsys, "stats", HOPPER, "--out", tmp_path / "a.json")
        assert result.code == 4 and "--overwrite replaces it" in result.err
        assert (tmp_path / "a.json").read_text() == "mine"
        assert run(capsys, "stats", HOPPER, "--out", tmp_path / "a.json", "--overwrite").code == 0
        assert json.loads((tmp_path / "a.json").read_text())["episodes"]
