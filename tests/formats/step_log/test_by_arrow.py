"""Text that pyarrow reads is what Python's csv and json modules read: the same values, types, counts and messages."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import SourceFormatError
from rlds2buf.codecs.arrow.text import json_table
from rlds2buf.formats.step_log import csv_log, held, json_log, text_blocks
from rlds2buf.formats.step_log.csv_log import CsvTable
from rlds2buf.formats.step_log.json_log import JsonTable
from rlds2buf.formats.step_log.table import Table

WHOLE = ["0", "1", "-7", "007", "-0", "9007199254740993", str(2**63 - 1)]
FLOATS = ["0.5", "-0.0", "1e-7", "1E5", "1.", ".5", "nan", "-inf", "Infinity", "0.1234567890123456789", "2e-324", "-0"]
BOOLS = ["True", "False", "true", "FALSE"]
TEXTS = ["left", "\u00e9", "2020-01-01", '"a,b"', '"a""b"', '"two\nlines"', '""', "0xff", "f(x)"]
ODD = [
    "",
    " ",
    "+1",
    " 1",
    "1\t",
    "0x1F",
    "nan(1)",
    "1_000",
    str(2**63),
    "1e400",
    "\uff11\uff12",
    "\x0b1",
    " True",
    "'1'",
]
BROKEN = ['"x"y', 'a"b', '"', "a\rb", "a\0b", "1,2", "x" * 140_000]


@st.composite
def csv_texts(draw: st.DrawFn) -> str:
    """A table of mostly regular columns, with an odd cell or line here and there."""
    width = draw(st.integers(1, 4))
    columns = [
        draw(st.sampled_from([WHOLE, FLOATS, WHOLE + FLOATS, BOOLS, TEXTS, ["", "1"], [""]])) for _ in range(width)
    ]
    rows = [[draw(st.sampled_from(pool)) for pool in columns] for _ in range(draw(st.integers(0, 12)))]
    for _ in range(draw(st.integers(0, 2)) if rows else 0):
        odd = draw(st.sampled_from(ODD * 2 + BROKEN + TEXTS))
        draw(st.sampled_from(rows))[draw(st.integers(0, width - 1))] = odd
    delimiter = draw(st.sampled_from([",", "\t", ";"]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    names = delimiter.join(f"c{i}" for i in range(width))
    lines = [names, *(delimiter.join(row) for row in rows)]
    for _ in range(draw(st.integers(0, 2))):
        lines.insert(draw(st.integers(1, len(lines))), draw(st.sampled_from(["", "", " ", "1,2,3,4,5"])))
    return end.join(lines) + (end if draw(st.booleans()) else "")


NUMBERS = ["0", "1", "-7", "0.5", "1e5", "-0.0", "9007199254740993"]
ODD_VALUES = [
    "null",
    "NaN",
    "-NaN",
    "Infinity",
    "-Inf",
    "-0",
    str(2**63),
    "1" + "0" * 30,
    "1e400",
    "01",
    "+1",
    "1.",
    ".5",
]
ODD_VALUES += ['"x\\ud800"', '"\x01"', "true", "[1, 2]", "[1]", "[null, 1]", '{"x": 1}', "{}", "[1, [2]]", "0x1", "'x'"]
LAYOUTS: list[list[str]] = [
    NUMBERS,
    ["0", "1", "2"],
    ["0.5", "-1.25", "1e-7"],
    ["true", "false"],
    ['"left"', '"\u00e9"', '"\\u00e9\\n"', '"2020-01-01"', '""'],
    ["[0.5, 1.5]", "[-0.0, 2]", "[1, 2]"],
    ["[[1, 2], [3, 4]]", "[[0.5, 2], [3, 4]]"],
    ["[]"],
    ['["a", "b"]', '["", "c"]'],
    ['{"x": 1, "y": [0.5]}', '{"y": [1], "x": 2}'],
    ["{}"],
    ["null", "1"],
    ["null", '"a"'],
]


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    keys = draw(st.lists(st.sampled_from(["a", "b", "obs", "c/d", "\\u0061b"]), min_size=1, max_size=4, unique=True))
    pools = {key: draw(st.sampled_from(LAYOUTS)) for key in keys}
    rows = [{key: draw(st.sampled_from(pool)) for key, pool in pools.items()} for _ in range(draw(st.integers(0, 12)))]
    for _ in range(draw(st.integers(0, 2)) if rows else 0):
        draw(st.sampled_from(rows))[draw(st.sampled_from([*keys, *keys, "more"]))] = draw(st.sampled_from(ODD_VALUES))
    if rows and draw(st.integers(0, 5)) == 0:
        draw(st.sampled_from(rows)).pop(keys[-1])
    lines = ["{" + ", ".join(f'"{key}": {value}' for key, value in row.items()) + "}" for row in rows]
    for _ in range(draw(st.integers(0, 2))):
        odd = draw(
            st.sampled_from(
                ["", " ", "\t\r", "[1]", "{}", "}{", '{"a": 1}{"a": 2}', '{"a":\n1}', "\xa0", '{"a": 1, "a": 2}']
            )
        )
        lines.insert(draw(st.integers(0, len(lines))), odd)
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return end.join(lines) + (end if draw(st.booleans()) else "")


def told(kind: type[Any], path: Path, arrow_bytes: int, held_bytes: int) -> Any:
    """All that a table says, or the message it is refused with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "ARROW_BYTES", arrow_bytes)
        patch.setattr(held, "HELD_BYTES", held_bytes)
        # What is guessed from the first rows is wrong further down.
        patch.setattr(csv_log, "_SAMPLE", 2)
        patch.setattr(json_log, "_SAMPLE", 2)
        try:
            table: Table = kind(path)
            names = list(table.columns) + list(table.following.values())
            columns = _columns(table, names)
        except SourceFormatError as error:
            return str(error)
    facts = table.columns, table.count, table.borders.tolist(), table.unfit, table.oddities
    notes = [sorted(map(repr, note.items())) for note in table.notes]
    return notes, repr(facts), [table.place(row) for row in range(table.count)], columns


def _columns(table: Table, names: list[str]) -> dict[str, Any]:
    if not names or not table.count:
        return {}
    blocks = [block for _, block in table.blocks(names)]
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in names}
    bits = {name: c.view(np.uint64) if c.dtype == np.float64 else c for name, c in columns.items()}
    return {name: (str(columns[name].dtype), bits[name].tolist()) for name in names}


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "log"


def assert_same(kind: type[Any], path: Path, text: str, block: int, held_bytes: int) -> None:
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK_BYTES", block)
        assert told(kind, path, 0, held_bytes) == told(kind, path, 1 << 30, 0)


BLOCKS = st.sampled_from([16, 100, 1 << 20])
HELD = st.sampled_from([1 << 20, 0])


@settings(max_examples=300, deadline=None)
@given(text=csv_texts(), block=BLOCKS, held_bytes=HELD)
def test_csv(path: Path, text: str, block: int, held_bytes: int) -> None:
    assert_same(CsvTable, path, text, block, held_bytes)


@settings(max_examples=300, deadline=None)
@given(text=json_texts(), block=BLOCKS, held_bytes=HELD)
def test_json(path: Path, text: str, block: int, held_bytes: int) -> None:
    assert_same(JsonTable, path, text, block, held_bytes)


@pytest.mark.parametrize("held_bytes", [1 << 20, 0])
@pytest.mark.parametrize(
    ("cells", "odd"),
    [
        (["1,2", "3,4", "5,6"], '"7"8,9'),
        (["a,2", "b,4", "c,6"], '"7"8,9'),
        (["a,2", "b,4", "c,6"], 'd"e,9'),
        (["a,2", "b,4", "c,6"], '"d" ,9'),
        (["a,2", "b,4", "c,6"], '"d,9'),
        (["a,2", "b,4", "c,6"], '"d\n""e""",9'),
        (["a,2", "b,4", "c,6"], "x" * 140_000 + ",9"),
        (["a,2", "b,4", "c,6"], '"' + "x\n" * 70_000 + '",9'),
        (["a,2", "b,4", "c,6"], '"' + '""\n' * 70_000 + '",9'),
        (["a,2", "b,4", "c,6"], "d\re,9"),
        (["a,2", "b,4", "c,6"], "7,8\r9,10"),
        (["a,2", "b,4", "c,6"], "\0,9"),
        (["a,2", "b,4", "c,6"], "\ufeffd,9"),
        (["1,2", "3,4", "5,6"], "0x1f,9"),
        (["1,2", "3,4", "5,6"], "7,0X1F"),
        (["0.5,a", "1.5,b"], "nan(1),c"),
        (["0.5,a", "1.5,b"], "0.5,f(x)"),
        (["1,a", "2,b"], "-0,c\n0.5,d"),
        (["1,a", "2,b"], ",c\n-0,d"),
        (["1,a", "2,b"], "+3,c"),
        (["True,a", "False,b"], " True,c"),
        (["True,a", "False,b"], ",c"),
        ([",a", ",b"], "1,c"),
        ([",a", ",b"], "True,c"),
    ],
)
def test_csv_that_pyarrow_reads_otherwise(path: Path, cells: list[str], odd: str, held_bytes: int) -> None:
    for end in ("\n", "\r\n"):
        text = end.join(["name,other", *cells * 3, odd, *cells])
        for block in (40, 1 << 20) if len(text) < 1000 else (1 << 20,):
            assert_same(CsvTable, path, text, block, held_bytes)


NULLS = [
    '{"n": null, "t": "a", "s": "x", "i": 1}',
    '{"n": 0.5, "t": null, "s": "\\"n\\": null", "i": 1}',
    '{"n":null,"t" : "a", "s": "x", "i": 1}',
]


@pytest.mark.parametrize("held_bytes", [1 << 20, 0])
@pytest.mark.parametrize(
    "odd",
    [
        NULLS[0],
        '{"t": "a", "s": "x", "i": 1}',
        '{"t": "a", "s": "x", "i": 1, "n": 0.5, "o": {"n": null}}',
        '{"n": 0.5, "s": "x", "i": 1}',
        '{"n": "a", "t": "a", "s": "x", "i": 1}',
        '{"n": null, "t": "a", "s": "x", "i": null}',
        '{"\\u006e": null, "t": "a", "s": "x", "i": 1}',
        '{"n": 0.5, "t": "a", "s": "null", "i": 1}',
    ],
)
def test_nulls(path: Path, odd: str, held_bytes: int) -> None:
    for lines in ([*NULLS * 4, odd, *NULLS], [line.replace('"x"', "null") for line in NULLS] * 4 + [odd]):
        for block in (100, 1 << 20):
            assert_same(JsonTable, path, "\n".join(lines), block, held_bytes)
    inner = [line[:-1] + ', "o": {"n": 1.5}}' for line in NULLS]
    for last in (odd[:-1] + ', "o": {"n": null}}', odd[:-1] + ', "o": {"n": 2.5}}'):
        assert_same(JsonTable, path, "\n".join([*inner * 4, last]), 1 << 20, held_bytes)


def test_nulls_that_are_told_take_no_other_way() -> None:
    schema = pa.schema([("n", pa.float64()), ("t", pa.string()), ("s", pa.string()), ("i", pa.int64())])
    table = json_table("\n".join(NULLS).encode(), schema)
    assert table.column("n").to_pylist() == [None, 0.5, None] and table.column("t").to_pylist() == ["a", None, "a"]
    assert json_table(b'{"n": 0.5, "t": "a", "i": 1}', schema) is None


STEP = '{"f": 0.5, "i": 1, "l": [0.5, 1], "t": "a", "e": {}, "o": {"x": 1}}'


@pytest.mark.parametrize("held_bytes", [1 << 20, 0])
@pytest.mark.parametrize(
    "odd",
    [
        STEP + STEP,
        STEP + STEP + "\n",
        STEP + STEP + "\n" + STEP.replace(":", ":\n", 1),
        STEP + "\r" + STEP,
        STEP[:-1],
        STEP.replace('"f": 0.5, ', ""),
        STEP.replace(', "e": {}', ""),
        STEP.replace('"x": 1', ""),
        STEP.replace('{"x": 1}', "null"),
        STEP.replace('"e": {}', '"e": {"x": 1}'),
        STEP.replace('"e": {}', '"e": null'),
        STEP.replace("}}", '}, "e": 1}'),
        STEP.replace("0.5,", "null,", 1),
        STEP.replace("0.5,", "-Inf,", 1),
        STEP.replace("0.5,", "-NaN,", 1),
        STEP.replace("0.5,", "NaN,", 1),
        STEP.replace("0.5,", "-Infinity,", 1),
        STEP.replace("0.5,", "-0,", 1),
        STEP.replace("0.5,", "-0.0,", 1),
        STEP.replace("0.5,", f"{2**63},", 1),
        STEP.replace("0.5,", "1" + "0" * 30 + ",", 1),
        STEP.replace("0.5,", "1" + "0" * 400 + ",", 1),
        STEP.replace("0.5,", "1e400,", 1),
        STEP.replace('"i": 1', '"i": 1.5'),
        STEP.replace('"i": 1', '"i": true'),
        STEP.replace('"i": 1', '"i": null'),
        STEP.replace("[0.5, 1]", "[1, 2]"),
        STEP.replace("[0.5, 1]", "[-0, 2.5]"),
        STEP.replace("[0.5, 1]", "[1]"),
        STEP.replace("[0.5, 1]", "[null, 1]"),
        STEP.replace('"a"', '"\\ud800"'),
        STEP.replace('"a"', '"\x01"'),
        STEP.replace('"a"', '"\0"'),
        STEP.replace('"a"', "null"),
        "\ufeff" + STEP,
        "\x0b",
        "\xa0",
    ],
)
def test_json_that_pyarrow_reads_otherwise(path: Path, odd: str, held_bytes: int) -> None:
    for end in ("\n", "\r\n"):
        text = end.join([STEP] * 9 + [odd] + [STEP] * 3)
        for block in (300, 1 << 20):
            assert_same(JsonTable, path, text, block, held_bytes)


EPISODE = (
    '{"obs": [[0.5, 1], [2, 3], [4, 5]], "rewards": [1, 0.5], "terminated": true, "task": "a", "n": 1, "x": 0.5, '
    '"info": {"k": 2, "names": ["u", "v"]}}'
)
PLAIN = [
    EPISODE,
    EPISODE.replace("[1, 0.5]", "[1, 2]").replace("true", "false"),
    EPISODE.replace("[[0.5, 1], [2, 3], [4, 5]]", "[[0.5, 1], [2, 3], [4, 5], [6, 7]]")
    .replace("[1, 0.5]", "[0, 0, 0.5]")
    .replace('["u", "v"]', '["u", "v", "w"]'),
    EPISODE.replace('"x": 0.5', '"x": 21.0').replace('"a"', '"\u00e9 1"'),
    json.dumps(dict(reversed(json.loads(EPISODE).items()))),
]
OTHER = [
    EPISODE.replace('"rewards"', '"reward"'),
    EPISODE.replace("[2, 3], [4, 5]", "[2, 3]"),
    EPISODE.replace("[4, 5]", "[4, 5], [6, 7]"),
    EPISODE.replace("[4, 5]", "[4]"),
    EPISODE.replace("[4, 5]", "[4, null]"),
    EPISODE.replace("[4, 5]", "[4, -0]"),
    EPISODE.replace("[4, 5]", "4"),
    EPISODE.replace("[[0.5, 1], [2, 3], [4, 5]]", "[]"),
    EPISODE.replace("[1, 0.5]", "[]"),
    EPISODE.replace("[1, 0.5]", "[true, false]"),
    EPISODE.replace("[1, 0.5]", "3"),
    EPISODE.replace("true", "1"),
    EPISODE.replace("true", "2"),
    EPISODE.replace("true", "0.0"),
    EPISODE.replace("true", "null"),
    EPISODE.replace("true", "[0, 1]"),
    EPISODE.replace('"x": 0.5', '"x": 21'),
    EPISODE.replace('"x": 0.5', '"x": null'),
    EPISODE.replace('"x": 0.5', '"x": -0'),
    EPISODE.replace('"n": 1', '"n": 1.0'),
    EPISODE.replace('"n": 1', '"n": null'),
    EPISODE.replace('"n": 1', '"n": [1, 2]'),
    EPISODE.replace('"n": 1, ', ""),
    EPISODE.replace('"a"', "null"),
    EPISODE.replace('["u", "v"]', "null"),
    EPISODE.replace('["u", "v"]', '["u", 1]'),
    EPISODE.replace('["u", "v"]', '["u"]'),
    EPISODE.replace('"k": 2', '"k": {}'),
    EPISODE.replace("[[0.5, 1], [2, 3], [4, 5]]", "[[0.5, 1]]").replace("[1, 0.5]", "[]").replace('["u", "v"]', "[]"),
    '{"steps": [{"obs": [0.5, 1], "rewards": 1}], "n": 1}',
    "{}",
    "",
]


@settings(max_examples=300, deadline=None)
@given(
    lines=st.lists(st.sampled_from(PLAIN * 12 + OTHER), max_size=12),
    block=st.sampled_from([300, 1 << 20]),
    held_bytes=HELD,
)
def test_episodes(path: Path, lines: list[str], block: int, held_bytes: int) -> None:
    assert_same(JsonTable, path, "\n".join(lines), block, held_bytes)


@pytest.mark.parametrize("odd", OTHER)
def test_episodes_that_pyarrow_reads_otherwise(path: Path, odd: str) -> None:
    whole = [line.replace("true", "1").replace("false", "0") for line in PLAIN]
    for lines in ([EPISODE] * 4 + [odd] + [EPISODE] * 2, [*PLAIN[:4], odd], [odd] * 4 + PLAIN[:1], [*whole, odd]):
        for block in (300, 1 << 20):
            assert_same(JsonTable, path, "\n".join(lines), block, 1 << 20)


def test_episodes_are_read_by_pyarrow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first few, which tell the types."""
    read: list[int] = []
    by_python = JsonTable._by_python
    monkeypatch.setattr(
        JsonTable, "_by_python", lambda table, block, file: read.append(1) or by_python(table, block, file)
    )
    monkeypatch.setattr(text_blocks, "ARROW_BYTES", 0)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
    path.write_text("\n".join(PLAIN[:4] * 20))
    table = JsonTable(path)
    assert table.count == 180 and len(table.notes) == 80 and len(read) == 1
