"""Logs in CSV: what cells become, and files that are not as they should be."""

from __future__ import annotations

import csv
import io
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import SourceFormatError, open_source
from rlds2buf.formats.step_log import held, text_blocks
from rlds2buf.formats.step_log.csv_cells import Kind, parse, widen
from rlds2buf.formats.step_log.csv_log import StepLogCsvSource

HEADER = "obs_0,obs_1,action,reward,terminated,truncated\n"


@pytest.fixture(autouse=True, scope="module", params=[1 << 30, 0], ids=["python", "pyarrow"])
def reader(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything by Python's own modules, and by pyarrow as far as it goes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "ARROW_BYTES", request.param)
        yield


def make(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


class TestCells:
    @pytest.mark.parametrize(
        ("cells", "kind", "values"),
        [
            (["1", "-2"], Kind.INT, [1, -2]),
            (["1", "0.5"], Kind.FLOAT, [1.0, 0.5]),
            (["1", ""], Kind.FLOAT, [1.0, np.nan]),
            (["", ""], Kind.BLANK, [np.nan, np.nan]),
            (["nan", "-inf"], Kind.FLOAT, [np.nan, -np.inf]),
            (["True", "False"], Kind.BOOL, [True, False]),
            (["True", "1"], Kind.TEXT, [b"True", b"1"]),
            (["1", "left"], Kind.TEXT, [b"1", b"left"]),
            (["1_000", "2"], Kind.TEXT, [b"1_000", b"2"]),
            ([str(2**63), "1"], Kind.FLOAT, [2.0**63, 1.0]),
            (["\u00e9"], Kind.TEXT, ["\u00e9".encode()]),
        ],
    )
    def test_kinds(self, cells: list[str], kind: Kind, values: list[Any]) -> None:
        assert widen(Kind.NONE, cells) is kind
        one_by_one = Kind.NONE
        for cell in cells:
            one_by_one = widen(one_by_one, [cell])
        assert one_by_one is kind
        found = parse(kind, cells)
        assert found.dtype == kind.dtype
        np.testing.assert_array_equal(found, np.array(values, found.dtype))

    def test_the_whole_file_decides(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A number far down makes the column float64 from the start."""
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 64)
        rows = [f"{i},0,1,{'0.5' if i == 90 else 1},0,{int(i == 99)}" for i in range(100)]
        (episode,) = open_source(make(tmp_path / "a.csv", HEADER + "\n".join(rows)))
        assert episode.reward.dtype == np.float64 and episode.reward[90] == 0.5
        assert episode.observation.dtype == np.int64 and episode.observation[:, 0].tolist() == list(range(100))

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8"))
            ),
            min_size=1,
            max_size=20,
        ),
        st.sampled_from([8, 64, 1 << 20]),
        st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    )
    def test_what_the_csv_module_writes(self, rows: list[tuple[float, int, str]], block: int, quoting: Any) -> None:
        rows = [(number, whole, text.replace("\0", "")) for number, whole, text in rows]
        out = io.StringIO(newline="")
        writer = csv.writer(out, quoting=quoting)
        writer.writerow(["obs", "action", "note", "truncated"])
        writer.writerows([(*row, "1") for row in rows])
        before = text_blocks.BLOCK_BYTES
        with tempfile.TemporaryDirectory() as folder:
            try:
                text_blocks.BLOCK_BYTES = block
                found = list(open_source(make(Path(folder) / "a.csv", out.getvalue())))
            finally:
                text_blocks.BLOCK_BYTES = before
        assert [float(e.observation[0]) for e in found] == [number for number, _, _ in rows]
        assert [int(e.action[0]) for e in found] == [whole for _, whole, _ in rows]
        notes = [e.extras["note"][0] for e in found]
        texts = [text for _, _, text in rows]
        if any(isinstance(note, bytes) for note in notes):
            assert notes == [text.encode() for text in texts]


class TestLayouts:
    @pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
    def test_delimiters(self, tmp_path: Path, delimiter: str) -> None:
        text = (HEADER + "0.5,1,0,1,0,0\n1.5,2,1,1,1,0\n").replace(",", delimiter)
        path = make(tmp_path / "a.csv", text)
        for source in (open_source(path), StepLogCsvSource(path, delimiter=delimiter)):
            (episode,) = source
            assert episode.observation.tolist() == [[0.5, 1], [1.5, 2], [0, 0]]

    @pytest.mark.parametrize("ending", ["\n", "\r\n"])
    @pytest.mark.parametrize("last", [True, False])
    def test_line_ends_blank_lines_and_a_byte_order_mark(self, tmp_path: Path, ending: str, last: bool) -> None:
        text = ending.join([HEADER.strip(), "0,1,0,1,0,0", "", "1,2,1,1,1,0"]) + (ending if last else "")
        (episode,) = open_source(make(tmp_path / "a.csv", b"\xef\xbb\xbf" + text.encode()))
        assert episode.observation.tolist() == [[0, 1], [1, 2], [0, 0]]

    def test_blank_lines_first_and_no_rows(self, tmp_path: Path) -> None:
        (episode,) = open_source(make(tmp_path / "a.csv", "\n\nobs,act,truncated\n0.5,1,1\n"))
        assert episode.observation.tolist() == [0.5]
        source = open_source(make(tmp_path / "b.csv", "obs,act,truncated\n"))
        assert source.num_episodes == source.num_steps == 0 and list(source) == []

    def test_what_pandas_writes(self, tmp_path: Path) -> None:
        """An index without a name, and True and False."""
        text = ",obs,act,rew,terminated,truncated\n0,0.5,1,1.0,False,False\n1,0.75,0,,True,False\n"
        source = open_source(make(tmp_path / "a.csv", text))
        (episode,) = source
        assert episode.end == "terminated" and np.isnan(episode.reward[1])
        assert source.details()["ignored"] == {"": "has no name"}

    def test_a_map_as_the_command_line_gives_it(self, tmp_path: Path) -> None:
        text = "x,y,torque,cost,over\n1,2,0.5,3,0\n4,5,0.25,6,1\n"
        path = make(tmp_path / "a.csv", text)
        source = open_source(
            path, map={"observation": ["x", "y"], "action": "torque", "reward": "cost", "truncated": "over"}
        )
        (episode,) = source
        assert episode.observation.tolist() == [[1, 2], [4, 5]] and episode.reward.tolist() == [3, 6]


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "an empty file"),
            ("\n\r\n", "no header, only blank lines"),
            (HEADER + "1,2,3,4,0,0\n1,2,3\n", "a.csv, line 3: 3 cells, but the header has 6"),
            (HEADER + "1,2,3,4,0,0,9\n", "a.csv, line 2: 7 cells, but the header has 6"),
            (HEADER + '"1\n\n",2,3,4,0,0\n1\n', "a.csv, line 5: 1 cells"),
            (
                HEADER + "1,2,3,x,0,0\n",
                r"column `reward` should hold numbers, it holds string\[\] \(line 2: 'x'",
            ),
            (HEADER + "1,2,3,4,0,0\n1,2,3,4,,0\n", r"line 3: `terminated` is a flag, so 0 or 1, got nan"),
            ("obs,obs\n1,2\n", "line 1: two columns are called 'obs'"),
            (HEADER + '1,2,3,4,0,"0\n' + "1,2,3,4,0,0\n" * 9, "line 2|unexpected end"),
            (HEADER + '1,2,3,4,0,"0"1\n', "line 2: "),
            ((HEADER + "1,2,3,4,0,0\n").encode() + b"\xff,2,3,4,0,0\n", "line 3: not UTF-8"),
            ("just a text\nof two lines\n", "no column is called as an observation"),
        ],
    )
    def test_the_line_is_named(self, tmp_path: Path, text: str | bytes, message: str) -> None:
        path = make(tmp_path / "a.csv", text)
        with pytest.raises(SourceFormatError, match=message) as caught:
            list(open_source(path))
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize(
        ("cells", "odd"),
        [
            (("True", "False", "0"), "line 4: '0' is neither True nor False"),
            (("0", "1.5", "True"), "line 4: 'True' is no number"),
        ],
    )
    def test_cells_that_each_fit_but_not_together(self, tmp_path: Path, cells: tuple[str, ...], odd: str) -> None:
        rows = "".join(f"1,2,3,{cell},0\n" for cell in cells)
        path = make(tmp_path / "a.csv", "obs_0,action,reward,terminated,truncated\n" + rows)
        with pytest.raises(SourceFormatError, match=odd):
            list(open_source(path))

    def test_a_column_of_text_far_down(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 64)
        rows = "".join(f"1,2,3,{'oops' if i == 77 else i},0,0\n" for i in range(100))
        with pytest.raises(SourceFormatError, match="line 79: 'oops' is no number"):
            open_source(make(tmp_path / "a.csv", HEADER + rows))

    def test_a_quote_that_never_closes_does_not_fill_the_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(text_blocks, "_MOST_QUOTED", 1 << 16)
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1 << 12)
        path = make(tmp_path / "a.csv", HEADER + '1,2,3,4,0,"' + "1,2,3,4,0,0\n" * 20_000)
        with pytest.raises(SourceFormatError, match="a quoted part that does not end"):
            open_source(path)

    def test_a_file_that_changes_under_way(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a.csv", HEADER + "1,2,3,4,0,1\n" * 10)
        source = open_source(path)
        make(path, HEADER + "1,2,3,4,0,1\n" * 5)
        with pytest.raises(SourceFormatError, match="while it was read"):
            list(source)
        make(path, HEADER + "1,2,x,4,0,1\n" * 10)
        with pytest.raises(SourceFormatError, match="did the file change"):
            list(source)

    def test_a_wrong_delimiter(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="one character"):
            StepLogCsvSource(tmp_path / "a.csv", delimiter="::")


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr(held, "HELD_BYTES", 1 << 13)

    def peak(episodes: int) -> int:
        rows = "".join(f"{i}.5,2,3,4,0,{int(i == 49)}\n" for i in range(50))
        path = make(tmp_path / f"{episodes}.csv", HEADER + rows * episodes)
        tracemalloc.start()
        assert sum(len(batch) for batch in open_source(path).batches(1000)) == episodes
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(400) < 1.5 * peak(50)
