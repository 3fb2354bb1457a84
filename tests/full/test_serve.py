"""A server that is started from Python: its table, and the checkpoints that it begins with and leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlds2buf
from rlds2buf import SinkError, serve, write_checkpoint
from rlds2buf.formats.reverb.checkpoint_origin import Origin, latest_in
from tests.full.pushed import episodes
from tests.full.quiet import reverb


def stored(folder: Path, name: str, *lengths: int) -> str:
    """A dataset at a path."""
    rlds2buf.convert(episodes(*lengths), folder / name, to="rlds", overwrite=True)
    return str(folder / name)


def test_the_table_has_what_is_asked_for_and_room():
    with serve(episodes(9), sampler="prioritized", remover="lifo", priority_exponent=0.5) as serving:
        info = reverb.Client(serving.address).server_info()["replay"]
        assert (info.current_size, info.max_size) == (8, 1_000_000)
        assert info.sampler_options.prioritized.priority_exponent == 0.5 and info.remover_options.lifo
        assert "0 of at most 1000000 items; 8 items will be pushed" in serving.report.notes[0]
        report = rlds2buf.push(episodes(3, 4), serving.address, "replay")
        assert report.agrees and report.servers[0].removed == 0
    with pytest.raises(ValueError, match="colour"):
        serve(episodes(9), colour="red")


def test_a_table_that_is_smaller_than_the_data_says_so():
    with serve(episodes(9), max_size=5) as serving:
        assert any("remover has dropped 3 items" in note for note in serving.report.notes)
        assert serving.report.agrees


@pytest.mark.parametrize("keeps", [False, True])
def test_a_rate_limiter_does_not_hold_back_what_fills_the_table(tmp_path, keeps):
    checkpoint = str(tmp_path / "keep") if keeps else None
    how = {"samples_per_insert": 4.0, "min_size_to_sample": 2, "error_buffer": 6.0}
    given = episodes(30, 5)
    with serve(given, checkpoint=checkpoint, sequence_length=3, priority=2.0, **how) as serving:
        client = reverb.Client(serving.address)
        info = client.server_info()["replay"]
        assert (info.current_size, info.max_size, info.rate_limiter_info.samples_per_insert) == (31, 1_000_000, 4.0)
        assert serving.report.items == 31 and serving.report.agrees and serving.report.acknowledged == 0
        assert "filled by a checkpoint" in serving.report.notes[0]
        assert next(iter(client.sample("replay", emit_timesteps=False))).info.priority == 2.0
        assert (serving.checkpoint is not None) is keeps
    assert sorted(path.name for path in tmp_path.iterdir()) == (["keep"] if keeps else [])


def test_a_log_that_has_grown_goes_on_from_its_checkpoint(tmp_path):
    keep = str(tmp_path / "keep")
    with serve(stored(tmp_path, "log", 9, 5), checkpoint=keep) as serving:
        assert not any("began with" in note for note in serving.report.notes)
    with serve(stored(tmp_path, "log", 9, 5, 7), checkpoint=keep, max_size=50) as serving:
        notes = "\n".join(serving.report.notes)
        assert "the table began with the checkpoint" in notes and f"12 items of {tmp_path / 'log'}" in notes
        assert "the table has the checkpoint's settings: max_size 1000000, not 50" in notes
        # Reverb keeps the latest checkpoint; a client that asks for one gets a note in it too.
        asked = reverb.Client(serving.address).checkpoint()
        assert Origin.read(Path(asked)) is None
    latest = latest_in(keep)
    assert latest == Path(asked)
    origin = Origin.read(latest)
    assert origin is not None and origin.source == f"{tmp_path / 'log'} [train]"


def test_a_checkpoint_of_other_data_says_whose_it_is(tmp_path):
    keep = tmp_path / "keep"
    log = stored(tmp_path, "log", 9, 5)
    write_checkpoint(log, keep)
    before = sorted(path.name for path in keep.rglob("*"))
    other = stored(tmp_path, "other", 4, 4)
    with pytest.raises(SinkError, match=f"holds 12 items of {log} .*these are other data: {other}") as caught:
        serve(other, checkpoint=str(keep))
    assert f"serve {log} [train] from this one, and push to that server" in str(caught.value)
    with pytest.raises(SinkError, match=r"these are other items: .*length=5"):
        serve(log, checkpoint=str(keep), sequence_length=5)
    assert sorted(path.name for path in keep.rglob("*")) == before
    with serve(log, checkpoint=str(keep)) as serving:
        assert serving.report.already_there == 12


def test_a_checkpoint_without_a_note_is_gone_on_with(tmp_path):
    keep = tmp_path / "keep"
    given = episodes(9, 5)
    # As version 0.1.0 wrote it: as large as its items, and without a note.
    write_checkpoint(given, keep, max_size=12)
    latest = latest_in(keep)
    assert latest is not None
    (latest / "rlds2buf.json").unlink()
    with serve(given, checkpoint=str(keep)) as serving:
        assert serving.report.already_there == 12
        assert any("does not say whose items" in note for note in serving.report.notes)
        assert any("max_size 12, not 1000000" in note for note in serving.report.notes)
    with pytest.raises(SinkError, match="room for 0 more items"):
        (latest_in(keep) / "rlds2buf.json").unlink()  # type: ignore[operator]
        serve(episodes(8, 6), checkpoint=str(keep))


def test_what_reverb_would_remove_is_not_served_from(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"a picture")
    with pytest.raises(SinkError, match=r"something else than Reverb checkpoints, .*\(holiday.jpg\)"):
        serve(episodes(5), checkpoint=str(tmp_path))
    assert (tmp_path / "holiday.jpg").read_bytes() == b"a picture"


def test_the_report_is_json(tmp_path):
    with serve(episodes(5), checkpoint=str(tmp_path / "keep")) as serving:
        assert json.loads(json.dumps(serving.to_json()))["push"]["servers"][0]["others"] == 0
