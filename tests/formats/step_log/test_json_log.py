"""Logs in JSON Lines: steps, episodes, and lines that are not as they should be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2buf import SourceFormatError, open_source
from rlds2buf.formats.step_log import text_blocks
from rlds2buf.formats.step_log.json_log import StepLogJsonSource


@pytest.fixture(autouse=True, scope="module", params=[1 << 30, 0], ids=["python", "pyarrow"])
def reader(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything by Python's own modules, and by pyarrow as far as it goes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "ARROW_BYTES", request.param)
        yield


def make(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def step(**more: Any) -> dict[str, Any]:
    return {"obs": [0.5, 1.0], "action": 1, "reward": 1, "terminated": False, **more}


class TestSteps:
    def test_nested_values_and_types(self, tmp_path: Path) -> None:
        lines = [
            {
                "obs": {"arm": [[i, 2], [3, 4]], "light": i % 2 == 0},
                "action": [0.5, i],
                "reward": 1 if i else 0.5,
                "note": "a" if i else None,
                "cost": None if i == 1 else 2,
                "terminated": i == 2,
            }
            for i in range(3)
        ]
        source = open_source(make(tmp_path / "a.jsonl", *lines))
        (episode,) = source
        assert str(source.spec.observation["arm"]) == "int64[2, 2]"
        assert episode.observation["light"].tolist() == [True, False, True, False]
        assert episode.reward.tolist() == [0.5, 1, 1, 0] and episode.action.dtype == np.float64
        assert episode.extras["note"].tolist() == [b"", b"a", b"a", b""]
        np.testing.assert_array_equal(episode.extras["cost"], [2, np.nan, 2, 0])

    def test_types_are_those_of_the_whole_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 100)
        lines = [step(reward=0.25 if i == 40 else i, truncated=i % 10 == 9) for i in range(50)]
        found = list(open_source(make(tmp_path / "a.jsonl", *lines)))
        assert [e.num_steps for e in found] == [10] * 5
        assert all(e.reward.dtype == np.float64 for e in found) and found[4].reward[0] == 0.25

    def test_empty_objects_and_blank_lines(self, tmp_path: Path) -> None:
        lines = [step(info={}), "", step(info={}, terminated=True)]
        (episode,) = open_source(make(tmp_path / "a.jsonl", *lines))
        assert episode.num_steps == 3 and episode.extras == {}

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"obs": [0, 1], ', r"line 3, column \d+: no JSON"),
            ("[1, 2]", "line 3: a line should be an object, it is list"),
            ("{}", "line 3: a line should be an object, it is an empty object"),
            (step(obs=[1.0]), r"line 3: `obs` is a list of shape \[1\], where the first is a list of shape \[2\]"),
            (step(obs=[1.0, [2.0]]), r"line 3: `obs` is a ragged list"),
            (step(obs={"x": 1}), "line 3: `obs` is an object"),
            (step(reward="1"), "`reward` is a number, where others are text"),
            (step(reward=[1]), "line 3: `reward` is a list of shape"),
            (step(action=[]), "line 3: `action` is a list of shape"),
            (step(extra=1), "line 3: `extra` is not in the first step"),
            ({"obs": [1, 2]}, "line 3: `action` is missing"),
            ("[" * 100_000, "line 3: "),
            (step(action=10**30), "line 3: `action` is a number beyond 64 bits"),
            ("1" * 5000, "line 3: "),
        ],
    )
    def test_the_line_is_named(self, tmp_path: Path, line: Any, message: str) -> None:
        path = make(tmp_path / "a.jsonl", step(), step(), line, step(terminated=True))
        with pytest.raises(SourceFormatError, match=message) as caught:
            list(open_source(path))
        assert str(path) in str(caught.value)

    def test_a_difference_between_blocks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 200)
        lines = [step(obs=[1.0] if i == 60 else [1.0, 2.0]) for i in range(100)]
        with pytest.raises(SourceFormatError, match=r"line 6\d( on)?: `obs` is"):
            open_source(make(tmp_path / "a.jsonl", *lines))

    def test_a_line_without_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A line may be long, but not so that it fills the memory."""
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
        monkeypatch.setattr(text_blocks, "_LONGEST_LINE", 100_000)
        path = make(tmp_path / "a.jsonl", step(note="x" * 90_000), step(note="y", terminated=True))
        (episode,) = open_source(path)
        assert [len(note) for note in episode.extras["note"]] == [90_000, 1, 0]
        with pytest.raises(SourceFormatError, match="line 2: longer than 100,000 bytes"):
            open_source(make(path, step(note=""), step(note="x" * 200_000)))

    def test_an_empty_file(self, tmp_path: Path) -> None:
        with pytest.raises(SourceFormatError, match="the log is empty"):
            open_source(make(tmp_path / "a.jsonl", "", " "))

    def test_a_file_cut_in_a_line(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.jsonl", *[step() for _ in range(9)], step(terminated=True))
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(SourceFormatError, match="line 10, column"):
            open_source(path)


def episode(steps: int, seed: int = 0, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.normal(size=(steps, 2)).tolist(),
        "actions": rng.integers(3, size=steps).tolist(),
        "rewards": rng.normal(size=steps).tolist(),
        **more,
    }


class TestEpisodes:
    def test_a_line_each(self, tmp_path: Path) -> None:
        made = [episode(3 + i, i, terminated=i % 2 == 0, number=i) for i in range(4)]
        source = open_source(make(tmp_path / "a.jsonl", *made))
        assert (source.num_episodes, source.num_steps) == (4, 3 + 4 + 5 + 6 + 2)
        for i, found in enumerate(source):
            assert found.end == ("terminated" if i % 2 == 0 else "truncated")
            assert found.metadata["number"] == i
            assert found.observation[: 3 + i].tolist() == made[i]["observations"]
            assert found.reward[: 3 + i].tolist() == made[i]["rewards"]

    def test_with_the_last_observation(self, tmp_path: Path) -> None:
        made = [episode(4, i, truncated=True) for i in range(3)]
        for one in made:
            one["observations"].append([9.0, 9.0])
        for found, one in zip(open_source(make(tmp_path / "a.jsonl", *made)), made, strict=True):
            assert found.observation.tolist() == one["observations"] and found.end == "truncated"
            assert found.reward.tolist() == [*one["rewards"], 0] and found.metadata == {}

    def test_without_flags(self, tmp_path: Path) -> None:
        source = open_source(make(tmp_path / "a.jsonl", episode(3), episode(4)))
        assert [(e.num_steps, e.end, e.metadata) for e in source] == [
            (3, "truncated", {"open_tail": True}),
            (4, "truncated", {"open_tail": True}),
        ]

    def test_lists_of_flags(self, tmp_path: Path) -> None:
        made = episode(4, terminals=[0, 0, 0, 1], timeouts=[0, 1, 0, 0])
        assert [e.num_steps for e in open_source(make(tmp_path / "a.jsonl", made))] == [2, 3]

    def test_nested_columns(self, tmp_path: Path) -> None:
        made = {**episode(3), "observations": {"arm": [[1, 2]] * 3, "text": ["a", "b", "c"]}, "info": {"task": "lift"}}
        (found,) = open_source(make(tmp_path / "a.jsonl", made))
        assert found.observation["text"].tolist() == [b"a", b"b", b"c"] and found.metadata["info/task"] == "lift"

    def test_steps_below_a_key(self, tmp_path: Path) -> None:
        lines = [{"steps": [step(), step(terminated=True)], "task": f"t{i}"} for i in range(3)]
        found = list(open_source(make(tmp_path / "a.jsonl", *lines)))
        assert [e.metadata["task"] for e in found] == ["t0", "t1", "t2"] and all(e.num_steps == 3 for e in found)

    def test_the_layout_can_be_said(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.jsonl", {"x": [[1, 2], [3, 4]], "u": [0, 1], "g": [0.5, 1]})
        columns = {"observation": "x", "action": "u", "reward": "g"}
        for source in (
            StepLogJsonSource(path, columns=columns),
            StepLogJsonSource(path, columns=columns, layout="episodes"),
        ):
            (found,) = source
            assert found.observation.tolist() == [[1, 2], [3, 4]]
        with pytest.raises(SourceFormatError, match="reward: `g` should hold one number a row"):
            StepLogJsonSource(path, columns=columns, layout="steps")
        with pytest.raises(ValueError, match="layout must be one of steps, episodes"):
            StepLogJsonSource(path, layout="rows")

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (episode(3, actions=[0, 1]), "line 2: `actions` has 2 entries, but others have 3"),
            (episode(0), "line 2: `rewards` has no steps"),
            ({**episode(3), "cost": [1, 2, 3]}, "line 2 on: `cost` is not in the lines before"),
            ({**episode(3), "observations": [[1.0]] * 3}, r"line 2 on: `observations` is float64\[1\], but before"),
            ({**episode(3), "observations": [[1.0, 2.0]] * 4}, "`observations` has one row more .* some lines only"),
            (
                {**episode(3), "observations": [[1.0, 2.0], [1.0], [2.0, 3.0]]},
                "line 2: `observations` is a list of shape",
            ),
            ({"steps": []}, "line 2: `steps` is empty"),
        ],
    )
    def test_the_line_is_named(self, tmp_path: Path, bad: Any, message: str) -> None:
        with pytest.raises(SourceFormatError, match=message):
            open_source(make(tmp_path / "a.jsonl", episode(4), bad, episode(4)))

    def test_flags_that_cut_where_the_observation_goes_on(self, tmp_path: Path) -> None:
        made = episode(4, terminals=[0, 1, 0, 1])
        made["observations"].append([9.0, 9.0])
        with pytest.raises(SourceFormatError, match="flags cut 1 of them into 2"):
            list(open_source(make(tmp_path / "a.jsonl", made)))
