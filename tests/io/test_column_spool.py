"""Columns on their way: what is read back is what was appended, after a kill too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import SinkError, SnapshotCorrupt
from rlds2buf.core.spec import FieldSpec
from rlds2buf.io import column_spool
from rlds2buf.io.column_spool import ColumnSpool

FIELDS = {
    "number": FieldSpec((), np.int16),
    "wide": FieldSpec((3, 2), np.float64),
    "nothing": FieldSpec((0,), np.float32),
    "text": FieldSpec((), object),
    "texts": FieldSpec((2,), object),
    "no texts": FieldSpec((0,), object),
}


def block(field: FieldSpec, rows: int, rng: np.random.Generator) -> np.ndarray:
    shape = (rows, *(n or 0 for n in field.shape))
    if field.is_string:
        out = np.empty(int(np.prod(shape)), object)
        out[:] = [rng.bytes(int(rng.integers(0, 9))) for _ in range(out.size)]
        return out.reshape(shape)
    return (rng.normal(size=shape) * 1000).astype(field.dtype)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_reads_what_was_appended(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("spool")
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    held: dict[str, list[np.ndarray]] = {name: [block(field, 0, rng)] for name, field in FIELDS.items()}
    synced: tuple[dict[str, Any], dict[str, list[np.ndarray]]] | None = None
    spool = ColumnSpool(folder, FIELDS)
    for step in data.draw(st.lists(st.sampled_from(["append", "sync", "kill", "finish"]), max_size=12)):
        if step == "append":
            names = data.draw(st.sets(st.sampled_from(sorted(FIELDS))))
            rows = {name: block(FIELDS[name], data.draw(st.integers(0, 5)), rng) for name in sorted(names)}
            spool.append(rows)
            for name, values in rows.items():
                held[name].append(values)
        elif step == "sync":
            synced = spool.sync(), {name: list(parts) for name, parts in held.items()}
        else:  # a run that is killed, perhaps at its end, and gone on with
            if step == "finish":
                spool.finish()
            spool.close()
            reached, kept = synced or (None, {name: parts[:1] for name, parts in held.items()})
            held = {name: list(parts) for name, parts in kept.items()}
            spool = ColumnSpool(folder, FIELDS, reached)
    spool.finish()
    for name, column in spool.columns.items():
        expected = np.concatenate(held[name])
        assert column.rows == len(expected)
        edges = sorted(data.draw(st.tuples(*[st.integers(0, len(expected))] * 2)))
        for start, stop in (edges, (0, len(expected))):
            found = column.read(start, stop)
            assert found.dtype == expected.dtype and found.shape == expected[start:stop].shape
            assert found.tolist() == expected[start:stop].tolist()
        blocks = [block(FIELDS[name], 0, rng), *column.blocks()]
        assert np.concatenate(blocks).tolist() == expected.tolist()
    spool.close()
    spool.close()


def test_blocks_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_spool, "BLOCK_BYTES", 100)
    spool = ColumnSpool(tmp_path / "s", {"wide": FIELDS["wide"]})
    rows = np.arange(60.0).reshape(10, 3, 2)
    spool.append({"wide": rows})
    spool.finish()
    blocks = list(spool.columns["wide"].blocks())
    assert [len(part) for part in blocks] == [2] * 5
    assert np.array_equal(np.concatenate(blocks), rows)
    spool.close()


def test_a_journal_that_does_not_fit(tmp_path: Path) -> None:
    spool = ColumnSpool(tmp_path / "s", FIELDS)
    spool.append({"number": np.arange(9, dtype=np.int16)})
    reached = spool.sync()
    spool.close()
    wrong: list[Any] = [{}, {**reached, "number": "x"}, {**reached, "text": [1]}, {**reached, "number": [99, 0]}]
    for journal in wrong:
        with pytest.raises(SnapshotCorrupt):
            ColumnSpool(tmp_path / "s", FIELDS, journal)
    shutil.rmtree(tmp_path / "s")
    with pytest.raises((SinkError, SnapshotCorrupt)):
        ColumnSpool(tmp_path / "s", FIELDS, reached)


def test_no_place_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError):
        ColumnSpool(tmp_path / "file" / "s", FIELDS)
