"""What is left of a damaged LeRobot dataset, and that nothing is taken that is not proven."""

from __future__ import annotations

import hashlib
import random
import shutil

import numpy as np
import pytest

from rlds2buf import convert, errors, open_source, validate
from tests.cli.run import run
from tests.formats.lerobot.by_hand import (
    DATA_V2,
    DATA_V3,
    EPISODES,
    LENGTHS,
    TOP,
    VIDEO,
    WRIST,
    change_json,
    change_lines,
    change_rows,
    columns_of,
    number_of,
    without_footer,
    write_data,
    write_v2,
    write_v3,
    write_video,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    return {"v3": write_v3(folder / "v3"), "v2": write_v2(folder / "v2")}


@pytest.fixture
def v3(good, tmp_path):
    return shutil.copytree(good["v3"], tmp_path / "v3")


@pytest.fixture
def v2(good, tmp_path):
    return shutil.copytree(good["v2"], tmp_path / "v2")


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


def mended(path, **options):
    """The numbers of the episodes that are left, what was said, and their rows and frames, which must be right."""
    before = digest(path)
    with open_source(path, repair=True, **options) as source:
        notes = [note for note in source.warnings() if not note.startswith("no end flags")]
        numbers = []
        for episode in source:
            state = np.asarray(episode.observation["state"])
            ((number, part),) = [
                (i, one) for i, one in enumerate(columns_of()) if np.array_equal(one["observation.state"], state)
            ]
            numbers.append(number)
            for camera in (TOP, WRIST) if "images" in episode.observation else ():
                shown = episode.observation["images"][camera.rpartition(".")[2]]
                right = [number_of(camera, number, row) for row in range(len(part["index"]))]
                assert np.abs(np.asarray(shown).mean(axis=(1, 2, 3)) - right).max() < 3
    assert digest(path) == before
    return numbers, notes


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_a_good_set_is_read_as_it_is(good, version):
    numbers, notes = mended(good[version])
    assert numbers == [0, 1, 2, 3] and notes == []


def test_metadata_without_footer_are_made_of_the_rows(v3):
    """As a recording is that was killed before it was finalized."""
    without_footer(v3 / EPISODES)
    with pytest.raises(errors.SourceFormatError, match="without its footer"):
        open_source(v3)
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2, 3]
    assert f"{v3 / EPISODES}: a Parquet file without its footer" in notes[0]
    assert notes[1] == "episodes 0 to 3: not in the metadata, and whole in the data"


def test_metadata_that_are_not_there(v3):
    shutil.rmtree(v3 / "meta/episodes")
    (v3 / "meta/stats.json").unlink()
    assert mended(v3)[0] == [0, 1, 2, 3]


def test_episodes_behind_those_that_the_metadata_know(v3):
    change_rows(v3 / EPISODES, lambda rows: rows.__delitem__(slice(2, None)))
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2, 3] and notes[0] == "episodes 2 to 3: not in the metadata, and whole in the data"


def test_row_groups_of_a_data_file_without_footer(v3):
    path = v3 / DATA_V3.format(chunk=0, file=1)
    without_footer(path)
    assert validate(v3).rejected == 2
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2, 3]
    assert notes == [f"{path}: its footer was never written; row groups that are whole are read without it"]


def test_row_groups_without_any_file_that_tells_how(v3):
    for file in (0, 1):
        without_footer(v3 / DATA_V3.format(chunk=0, file=file))
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2, 3] and len(notes) == 2


def test_a_row_group_that_was_not_finished(v3):
    path = v3 / DATA_V3.format(chunk=0, file=1)
    without_footer(path)
    path.write_bytes(path.read_bytes()[:-7])
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2] and notes[1] == "lost is episode 3, of which the metadata tell"


@pytest.mark.parametrize("what", [b"PAR1", b"PAR1" + bytes(range(256)) * 8, b"version https://git-lfs"])
def test_a_data_file_of_which_nothing_is_proven_loses_its_episodes(v3, what):
    (v3 / DATA_V3.format(chunk=0, file=1)).write_bytes(what)
    numbers, notes = mended(v3)
    assert numbers == [0, 1]
    assert "its episodes are lost" in notes[0] and "file-001.parquet" in notes[0]
    assert notes[1] == "lost are episodes 2 to 3, of which the metadata tell"


def test_row_groups_of_another_type_than_told_are_not_guessed(v3):
    """A column of float64 where the other file has float32: its dictionary has not the bytes for that."""
    path = v3 / DATA_V3.format(chunk=0, file=1)
    parts = [{**part, "timestamp": part["timestamp"].astype(np.float64)} for part in columns_of()[2:]]
    write_data(path, parts)
    without_footer(path)
    assert mended(v3)[0] == [0, 1]


def test_everything_of_a_killed_recording_at_once(v3):
    without_footer(v3 / DATA_V3.format(chunk=0, file=1))
    without_footer(v3 / EPISODES)
    change_json(v3 / "meta/info.json", lambda info: info.update(total_episodes=2, total_frames=12))
    (v3 / VIDEO.format(camera=WRIST, chunk=0, file=3)).write_bytes(b"")
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2] and any("file-003.mp4" in note and "its frames are lost" in note for note in notes)


def test_a_video_that_was_not_finished_loses_its_episodes(v3):
    path = v3 / VIDEO.format(camera=TOP, chunk=0, file=1)
    path.write_bytes(path.read_bytes()[:200])
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2]
    assert f"{TOP}: nothing proves where the frames of episode 3 are; lost" in notes
    assert mended(v3, drop=["observation/images"])[0] == [0, 1, 2]  # the same set, whatever is read of it


def test_rows_of_a_part_of_an_episode(v3):
    change_rows(v3 / DATA_V3.format(chunk=0, file=1), lambda rows: rows.__delitem__(slice(8, None)))
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2] and notes[0] == "episode 3: not as many rows as the metadata tell of; lost"


def test_rows_that_do_not_begin_an_episode(v3):
    change_rows(v3 / DATA_V3.format(chunk=0, file=0), lambda rows: rows.pop(5))
    numbers, notes = mended(v3)
    assert numbers == [0, 2, 3]
    assert "rows of episode 1 that do not begin with frame_index 0 are lost" in notes[0]


def test_rows_that_are_there_twice(v3):
    shutil.copy(v3 / DATA_V3.format(chunk=0, file=0), v3 / DATA_V3.format(chunk=0, file=2))
    numbers, notes = mended(v3)
    assert numbers == [2, 3] and notes[0] == "the rows of episodes 0 to 1 are there twice; lost"


def test_wrong_timestamps_of_merged_sets_are_put_right_where_the_frames_are_counted(v3):
    def wrong(rows):
        rows[1][f"videos/{TOP}/from_timestamp"] = 0.0

    change_rows(v3 / EPISODES, wrong)
    assert not validate(v3).ok
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2, 3] and notes == [f"{TOP}: from_timestamp of episode 1 is by the frames' count"]


def test_wrong_timestamps_where_frames_are_left_over_are_not_guessed(v3):
    def wrong(rows):
        rows[1][f"videos/{TOP}/from_timestamp"] = 0.0

    change_rows(v3 / EPISODES, wrong)
    values = [number_of(TOP, episode, row) for episode in range(3) for row in range(LENGTHS[episode])]
    write_video(v3 / VIDEO.format(camera=TOP, chunk=0, file=0), [*values, 9, 9])
    numbers, notes = mended(v3)
    assert numbers == [2, 3]
    assert f"{TOP}: nothing proves where the frames of episodes 0 to 1 are; lost" in notes


def test_untold_episodes_are_not_guessed_across_a_video_that_does_not_end_with_one(v3):
    without_footer(v3 / EPISODES)
    write_video(v3 / VIDEO.format(camera=TOP, chunk=0, file=0), [100] * 14)
    assert mended_numbers_without_pictures(v3) == [0, 1]


def mended_numbers_without_pictures(path):
    with open_source(path, repair=True, drop=["observation/images"]) as source:
        return [int(episode.extras["task_index"][0]) + 2 * (episode.index // 2) for episode in source]


def test_v2_lines_that_were_cut(v2):
    path = v2 / "meta/episodes.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(errors.SourceFormatError, match=r"episodes\.jsonl, line 4"):
        open_source(v2)
    numbers, notes = mended(v2)
    assert numbers == [0, 1, 2, 3] and "episodes.jsonl, line 4" in notes[0]


def test_v2_files_that_are_lost(v2):
    (v2 / DATA_V2.format(episode=1)).write_bytes(b"PAR1")
    (v2 / DATA_V2.format(episode=3)).unlink()
    numbers, notes = mended(v2)
    assert numbers == [0, 2] and notes[-1] == "lost are episodes 1, 3, of which the metadata tell"


def test_v2_episodes_out_of_order_in_the_metadata(v2):
    change_lines(v2 / "meta/episodes.jsonl", lambda rows: rows.reverse())
    assert mended(v2)[0] == [0, 1, 2, 3]


def test_tasks_that_can_not_be_read(v3):
    without_footer(v3 / "meta/tasks.parquet")
    numbers, notes = mended(v3)
    assert numbers == [0, 1, 2, 3] and "the texts of the tasks are lost" in notes[0]


def test_no_episode_left(v3):
    for file in (0, 1):
        (v3 / DATA_V3.format(chunk=0, file=file)).write_bytes(b"PAR1")
    with pytest.raises(errors.SourceFormatError, match=r"no episode is left; .*file-000\.parquet"):
        open_source(v3, repair=True)


def test_rows_that_do_not_say_whose_they_are(v3):
    change_json(v3 / "meta/info.json", lambda info: info["features"].pop("frame_index"))
    with pytest.raises(errors.SourceFormatError, match="no whole numbers episode_index and frame_index"):
        open_source(v3, repair=True)


def test_convert_repairs_a_path(v3, tmp_path, capsys):
    without_footer(v3 / EPISODES)
    before = digest(v3)
    with pytest.raises(errors.SourceFormatError):
        convert(v3, [], drop=["observation/images"])
    kept = []
    report = convert(v3, kept, on_invalid="repair", drop=["observation/images"])
    assert report.episodes == len(kept) == 4 and any("not in the metadata" in text for text in report.warnings)
    out = run(capsys, "convert", v3, tmp_path / "out", "--on-invalid", "repair", "--drop", "observation/images")
    assert out.code == 0 and "not in the metadata, and whole in the data" in out.out
    assert digest(v3) == before


def test_what_is_repaired_is_written_as_a_whole_set(v3, tmp_path):
    without_footer(v3 / EPISODES)
    (v3 / "meta/stats.json").unlink()
    path = v3 / DATA_V3.format(chunk=0, file=1)
    without_footer(path)
    path.write_bytes(path.read_bytes()[:-7])
    change_json(v3 / "meta/info.json", lambda info: info.update(total_episodes=9, total_frames=99))
    before = digest(v3)
    report = convert(v3, tmp_path / "out", to="lerobot", on_invalid="repair")
    assert report.episodes == 3 and any("its footer was never written" in text for text in report.warnings)
    assert digest(v3) == before
    with open_source(tmp_path / "out") as source:
        assert source.num_episodes == 3 and list(source.findings()) == []
    assert mended(tmp_path / "out")[0] == [0, 1, 2] and validate(tmp_path / "out").ok


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("version", ["v3", "v2"])
def test_any_damage_ends_in_what_is_left_or_in_an_error_of_ours(good, tmp_path, version, repair):
    """Bits that flip and files that end anywhere, in every file."""
    root = shutil.copytree(good[version], tmp_path / "set")
    rng = random.Random(7)
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for turn in range(4):
            damaged = bytearray(content)
            for _ in range(3):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged if turn % 2 else content[: rng.randrange(len(content))])
            try:
                with open_source(root, repair=repair, drop=["observation/images"]) as source:
                    assert len(list(source.read_batches())) > 0 and all(source.findings())
            except errors.Rlds2bufError:
                pass
        path.write_bytes(content)


def test_several_processes_repair_alike(v3):
    without_footer(v3 / EPISODES)
    one, two = [], []
    convert(v3, one, on_invalid="repair", drop=["observation/images"])
    convert(v3, two, on_invalid="repair", drop=["observation/images"], jobs=2)
    assert [len(episode) for episode in one] == [len(episode) for episode in two] == list(LENGTHS)


def test_another_format_takes_it_and_has_nothing_to_repair():
    with open_source([[{"observation": 1.0}] * 2], repair=True) as source:
        assert len(list(source)) == 1


def test_more_rows_than_a_part_of_which_is_told(v3):
    """A whole episode more in the data than in the metadata, without its frames."""
    columns = columns_of((*LENGTHS, 5))[4]
    write_data(v3 / DATA_V3.format(chunk=0, file=2), [columns])
    with open_source(v3, repair=True, drop=["observation/images"]) as source:
        assert len(list(source)) == 4
        assert f"{TOP}: nothing proves where the frames of episode 4 are; lost" in source.warnings()
