"""Logs in every format: the shared suite, and cuts against a row-by-row reading."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, SourceFormatError, SourceNotFound, convert, open_source, transitions, validate
from rlds2buf.io.source import Source
from tests.contracts.source import MakeSource, SourceContract, assert_same_episode
from tests.formats.step_log.files import FORMATS, write
from tests.reference import step_log as naive

COUNT = 40


def log(count: int = COUNT, **more: Any) -> dict[str, Any]:
    """Columns of a log: observation t is [t + 0.5, -t], action t % 3, reward t / 4."""
    number = np.arange(count)
    return {"obs": np.stack([number + 0.5, -number], 1), "action": number % 3, "reward": number / 4, **more}


def flags(count: int, rows: list[int]) -> np.ndarray:
    return np.isin(np.arange(count), rows).astype(np.int64)


def gym(count: int = COUNT, terminated: list[int] = [9, 20], truncated: list[int] = [14, 39]) -> dict[str, Any]:  # noqa: B006
    return log(count, terminated=flags(count, terminated), truncated=flags(count, truncated))


@pytest.fixture(params=FORMATS)
def suffix(request: pytest.FixtureRequest) -> str:
    return f".{request.param}"


class TestContract(SourceContract):
    @pytest.fixture
    def path(self, tmp_path: Path, suffix: str) -> Path:
        return write(tmp_path / f"log{suffix}", gym())

    @pytest.fixture
    def make_source(self, path: Path) -> MakeSource:
        return lambda: open_source(path)

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], Any]:
        return lambda: write(path, {**gym(), "reward": np.arange(COUNT) / 2})


class TestContractInSmallBlocks(TestContract):
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Blocks of a few rows, so that episodes go over several."""
        from rlds2buf.formats.step_log import npz_log, text_blocks
        from rlds2buf.formats.step_log import parquet_log as step_log_parquet

        monkeypatch.setattr(npz_log, "BLOCK_BYTES", 100)
        monkeypatch.setattr(step_log_parquet, "_ROWS", 3)
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 100)


def assert_as_naive(source: Source, expected: list[list[naive.Row]]) -> None:
    found = list(source)
    assert [episode.num_steps for episode in found] == [len(rows) for rows in expected]
    assert source.num_episodes == len(expected) and source.num_steps == sum(map(len, expected))
    for episode, rows in zip(found, expected, strict=True):
        for name in ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal"):
            np.testing.assert_array_equal(getattr(episode, name), [row[name] for row in rows], name)


def rows_of(columns: dict[str, Any]) -> list[naive.Row]:
    renamed = {{"obs": "observation", "next_obs": "next_observation"}.get(name, name): c for name, c in columns.items()}
    return [{name: column[t] for name, column in renamed.items()} for t in range(len(columns["action"]))]


@st.composite
def logs(draw: st.DrawFn) -> tuple[dict[str, Any], bool]:
    """A log's columns, and whether its rows are RLDS's."""
    count = draw(st.integers(1, 30))
    bits = st.lists(st.booleans(), min_size=count, max_size=count).map(lambda found: np.array(found, np.int64))
    final_rows = draw(st.booleans())
    columns = log(count)
    kinds = [("is_last",)] if final_rows else [("terminated",), ("terminated", "truncated"), ("done", "truncated"), ()]
    chosen = list(draw(st.sampled_from(kinds)))
    if final_rows and draw(st.booleans()):
        chosen.append("is_terminal")
    if draw(st.booleans()) or not chosen:
        chosen.append("is_first")
    columns.update({name: draw(bits) for name in chosen})
    if draw(st.booleans()):
        columns["episode"] = np.cumsum(draw(bits))
    if not final_rows and draw(st.booleans()):
        columns["next_obs"] = columns["obs"] + 100
    return columns, final_rows


class TestAgainstTheTwin:
    @settings(max_examples=300, deadline=None)
    @given(logs(), st.sampled_from([1, 7, 20]))
    def test_random_logs(self, made: tuple[dict[str, Any], bool], rows: int) -> None:
        columns, final_rows = made
        expected = naive.episodes(rows_of(columns), final_rows=final_rows)
        with tempfile.TemporaryDirectory() as folder:
            source = open_source(write(Path(folder) / "log.npz", columns))
            assert_as_naive(source, expected)
            for one, other in zip((e for b in source.read_batches(rows=rows) for e in b), source, strict=True):
                assert isinstance(one, Episode)
                assert_same_episode(one, other)

    @settings(max_examples=25, deadline=None)
    @given(logs())
    def test_every_format_gives_the_same(self, made: tuple[dict[str, Any], bool]) -> None:
        columns, final_rows = made
        expected = naive.episodes(rows_of(columns), final_rows=final_rows)
        with tempfile.TemporaryDirectory() as folder:
            sources = [open_source(write(Path(folder) / f"log.{name}", columns)) for name in FORMATS]
            for source in sources:
                assert_as_naive(source, expected)
                for one, other in zip(source, sources[0], strict=True):
                    assert_same_episode(one, other)


class TestEnds:
    def test_a_step_log_by_hand(self, tmp_path: Path, suffix: str) -> None:
        found = list(open_source(write(tmp_path / f"log{suffix}", gym(7, [2], [4]))))
        assert [(e.num_steps, e.end) for e in found] == [(4, "terminated"), (2, "truncated"), (2, "truncated")]
        assert [e.metadata for e in found] == [{"placeholder_final_row": True}, {}, {"open_tail": True}]
        assert found[0].reward.tolist() == [0, 0.25, 0.5, 0] and found[0].discount.tolist() == [1, 1, 0, 0]
        assert transitions(found[1]).reward.tolist() == [0.75]

    def test_next_observations_end_every_episode(self, tmp_path: Path, suffix: str) -> None:
        columns = {**gym(6, [2], [5]), "next_obs": log(6)["obs"] + 50}
        first, second = open_source(write(tmp_path / f"log{suffix}", columns))
        assert first.observation.tolist() == [[0.5, 0], [1.5, -1], [2.5, -2], [52.5, 48]]
        assert second.observation[-1].tolist() == [55.5, 45] and second.end == "truncated"
        assert "next_obs" not in first.extras and first.metadata == second.metadata == {}

    def test_ids_cut_alone(self, tmp_path: Path) -> None:
        columns = {**gym(8, [1, 3], []), "run": np.repeat([7, 3, 9], [4, 2, 2])}
        source = open_source(write(tmp_path / "log.csv", columns), columns={"episode": "run"})
        assert [(e.num_steps, e.end) for e in source] == [(5, "terminated"), (2, "truncated"), (2, "truncated")]
        assert next(iter(source)).is_terminal.tolist() == [False, False, True, False, True]
        assert [issue.rule for issue in validate(source).issues if issue.severity == "error"] == ["terminal-inside"]
        assert source.details()["episodes_by"] == "episode"

    def test_ids_of_text(self, tmp_path: Path) -> None:
        columns = log(5, episode_id=["a", "a", "b", "b", "b"])
        assert [e.num_steps for e in open_source(write(tmp_path / "log.jsonl", columns))] == [2, 3]

    def test_interleaved_rows_are_refused(self, tmp_path: Path, suffix: str) -> None:
        columns = log(6, episode=[0, 1, 0, 1, 0, 1])
        source = open_source(write(tmp_path / f"log{suffix}", columns))
        with pytest.raises(SourceFormatError, match=r"episode 0 again, .* interleaved"):
            list(source)

    def test_an_id_may_come_back_after_an_end(self, tmp_path: Path) -> None:
        columns = {**gym(6, [1, 3], [5]), "episode": [0, 0, 1, 1, 0, 0]}
        assert open_source(write(tmp_path / "log.npz", columns)).num_episodes == 3

    def test_first_rows_alone(self, tmp_path: Path) -> None:
        columns = log(7, episode_starts=[1, 0, 0, 1, 0, 1, 0])
        source = open_source(write(tmp_path / "log.npz", columns))
        assert [(e.num_steps, e.end) for e in source] == [(3, "truncated"), (2, "truncated"), (2, "truncated")]
        assert all("is_terminal" in e.derived for e in source)
        assert source.details()["warnings"][0] == "no end flags: every episode is taken as truncated"

    def test_rlds_rows(self, tmp_path: Path, suffix: str) -> None:
        columns = log(6, is_first=flags(6, [0, 3]), is_last=flags(6, [2, 5]), is_terminal=flags(6, [2]))
        first, second = open_source(write(tmp_path / f"log{suffix}", columns))
        assert (first.num_steps, first.end, second.num_steps, second.end) == (3, "terminated", 3, "truncated")
        assert first.discount.tolist() == [1, 0, 0] and second.discount.tolist() == [1, 1, 1]
        assert first.metadata == second.metadata == {}

    def test_rlds_names_for_steps(self, tmp_path: Path) -> None:
        columns = log(6, is_last=flags(6, [2, 5]), is_terminal=flags(6, [2]))
        source = open_source(write(tmp_path / "log.npz", columns), final_rows=False)
        assert [(e.num_steps, e.end) for e in source] == [(4, "terminated"), (3, "truncated")]

    def test_a_limit(self, tmp_path: Path) -> None:
        source = open_source(write(tmp_path / "log.npz", log(7)), max_episode_steps=3)
        assert [e.num_steps for e in source] == [3, 3, 1]

    def test_a_discount_of_the_logs_own(self, tmp_path: Path) -> None:
        columns = {**gym(4, [3], []), "discount": [0.9, 0.9, 0.9, 0.0]}
        (episode,) = open_source(write(tmp_path / "log.npz", columns))
        assert episode.discount.tolist() == [0.9, 0.9, 0.9, 0.0, 0.0] and episode.discount.dtype == np.float64

    def test_nothing_tells(self, tmp_path: Path, suffix: str) -> None:
        source = open_source(write(tmp_path / f"log{suffix}", log(4)))
        with pytest.raises(SourceFormatError, match="nothing tells where episodes end"):
            list(source)

    def test_done_is_ambiguous(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"log{suffix}", log(4, dones=flags(4, [3])))
        with pytest.raises(SourceFormatError, match=r"`dones` does not say .*'terminated': 'dones'"):
            open_source(path)
        (episode,) = open_source(path, columns={"terminated": "dones"})
        assert episode.end == "terminated"
        (episode,) = open_source(path, columns={"truncated": "dones"})
        assert episode.end == "truncated"

    def test_done_beside_truncated(self, tmp_path: Path) -> None:
        columns = log(6, done=flags(6, [2, 5]), truncated=flags(6, [5]))
        source = open_source(write(tmp_path / "log.npz", columns))
        assert [e.end for e in source] == ["terminated", "truncated"]

    def test_done_beside_terminated_is_an_extra(self, tmp_path: Path) -> None:
        source = open_source(write(tmp_path / "log.npz", {**gym(6, [2], [5]), "done": flags(6, [2, 5])}))
        assert [e.num_steps for e in source] == [4, 3] and list(source.spec.extras) == ["done"]

    @pytest.mark.parametrize("value", [2, -1, 0.5])
    def test_a_flag_that_is_none(self, tmp_path: Path, suffix: str, value: float) -> None:
        columns = log(6, terminated=[0, 0, 0, value, 0, 1])
        source = open_source(write(tmp_path / f"log{suffix}", columns))
        place = {".csv": "line 5", ".jsonl": "line 4"}.get(suffix, "row 3")
        with pytest.raises(SourceFormatError, match=rf"{place}: `terminated` is a flag, so 0 or 1, got {value}"):
            list(source)


class TestWhole:
    def test_into_a_buffer(self, tmp_path: Path, suffix: str) -> None:
        source = open_source(write(tmp_path / f"log{suffix}", {**gym(), "next_obs": log()["obs"] + 1}))
        result = convert(source, [])
        assert (result.episodes, result.steps) == (4, COUNT + 4)

    def test_details(self, tmp_path: Path, suffix: str) -> None:
        source = open_source(write(tmp_path / f"log{suffix}", gym()))
        details = source.details()
        assert (details["rows"], details["terminated"], details["truncated"]) == (COUNT, 2, 2)
        assert details["fields"]["reward"] == ["reward"] and details["fields"]["terminated"] == ["terminated"]
        assert details["warnings"] == [
            "no next observations: the 2 terminal observations are zeros",
            "no next observations: the last action of the 2 truncated episodes starts no transition",
        ]

    def test_extras_and_text(self, tmp_path: Path, suffix: str) -> None:
        columns = {**gym(4, [3], []), "task": ["lift", "lift", "put", "\u00e9"], "cost": [1, 2, 3, 4]}
        (episode,) = open_source(write(tmp_path / f"log{suffix}", columns))
        assert episode.extras["task"].tolist() == [b"lift", b"lift", b"put", "\u00e9".encode(), b""]
        assert episode.extras["cost"].tolist() == [1, 2, 3, 4, 0] and episode.extras["cost"].dtype == np.int64

    def test_the_fingerprint_knows_the_options(self, tmp_path: Path) -> None:
        path = write(tmp_path / "log.npz", gym())
        prints = [
            open_source(path).fingerprint(),
            open_source(path, columns={"reward": None}).fingerprint(),
            open_source(path, max_episode_steps=3).fingerprint(),
        ]
        assert len(set(prints)) == 3

    def test_a_folder(self, tmp_path: Path, suffix: str) -> None:
        """Part 10 comes after part 2; but for Parquet's, no episode goes over from one to the next."""
        (tmp_path / "parts").mkdir()
        for number in (10, 2, 1):
            columns = {**gym(6, [2], []), "part": np.full(6, number)}
            write(tmp_path / "parts" / f"part-{number}{suffix}", columns)
        (tmp_path / "parts" / "_SUCCESS").write_text("")
        found = list(open_source(tmp_path / "parts"))
        parts = [int(e.extras["part"][0]) for e in found]
        lengths = [e.num_steps for e in found]
        if suffix == ".parquet":
            assert (parts, lengths) == ([1, 1, 2, 10], [4, 7, 7, 3])
        else:
            assert (parts, lengths) == ([1, 1, 2, 2, 10, 10], [4, 3] * 3)

    def test_files_that_are_episodes(self, tmp_path: Path) -> None:
        (tmp_path / "runs").mkdir()
        for number in range(12):
            write(tmp_path / "runs" / f"run{number}.npz", log(3 + number))
        source = open_source(tmp_path / "runs")
        assert [e.num_steps for e in source] == list(range(3, 15))

    def test_parts_that_differ(self, tmp_path: Path, suffix: str) -> None:
        (tmp_path / "parts").mkdir()
        write(tmp_path / "parts" / f"1{suffix}", gym())
        write(tmp_path / "parts" / f"2{suffix}", {**gym(), "cost": np.zeros(COUNT)})
        with pytest.raises(SourceFormatError, match=r"2\..*(`cost`|differ)"):
            open_source(tmp_path / "parts")

    def test_nothing_there(self, tmp_path: Path, suffix: str) -> None:
        with pytest.raises(SourceNotFound):
            open_source(tmp_path / f"none{suffix}")
        with pytest.raises(SourceNotFound):
            open_source(tmp_path / f"none{suffix}", format=suffix[1:])

    def test_wrong_options(self, tmp_path: Path) -> None:
        path = write(tmp_path / "log.npz", gym())
        with pytest.raises(ValueError, match="max_episode_steps must be at least 1"):
            open_source(path, max_episode_steps=0)
        with pytest.raises(TypeError, match="columns must be a mapping"):
            open_source(path, columns=["obs"])


class TestDamage:
    @pytest.mark.parametrize("seed", range(25))
    def test_truncated_or_flipped(self, tmp_path: Path, suffix: str, seed: int) -> None:
        path = write(tmp_path / f"log{suffix}", gym())
        rng = np.random.default_rng(seed)
        content = bytearray(path.read_bytes())
        if seed % 3 == 0:
            content = content[: int(rng.integers(len(content)))]
        else:
            for place in rng.integers(0, len(content), 1 + seed % 4):
                content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        try:
            source = open_source(path, format=suffix[1:])
            found = list(source.read())
            source.details()
        except SourceFormatError as error:
            assert str(path) in str(error) or path.name in str(error)
            return
        assert len(found) == source.num_episodes


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_ids_too_large_to_be_told_apart_are_refused(kind: str, tmp_path: Path) -> None:
    """Whole numbers from 2**63 on become floats, of which neighbours are equal: episodes would be joined."""
    for base in (1 << 62, 1 << 63):
        path = tmp_path / f"{base}.{kind}"
        rows = [{"episode_id": base + 3 * (i // 3), "obs": 0.5, "action": 1, "reward": 1.0} for i in range(12)]
        if kind == "csv":
            lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        else:
            lines = [json.dumps(row) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if base < 1 << 63:
            assert len(list(open_source(path))) == 4
        else:
            with pytest.raises(SourceFormatError, match="too large a float"):
                list(open_source(path))
