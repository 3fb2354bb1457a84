"""Every rule on the files and metadata of a LeRobot dataset: a good set, broken in exactly that way."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlds2buf import convert, errors, open_source, validate
from rlds2buf.check.rules import RULES
from rlds2buf.pipeline.summary import summarize
from tests.data import DATA
from tests.formats.lerobot import by_hand
from tests.formats.lerobot.by_hand import (
    DATA_V2,
    DATA_V3,
    EPISODES,
    FPS,
    LENGTHS,
    TOP,
    VIDEO,
    VIDEO_V2,
    WRIST,
    as_pointer,
    change_json,
    change_lines,
    change_rows,
    columns_of,
    number_of,
    without_footer,
    write_v2,
    write_v3,
    write_video,
)

FRONT = "observation/images/top"


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


def found(path, *, quick=False, **options):
    with open_source(path, **options) as source:
        issues = list(source.findings(quick=quick))
    assert [issue.severity for issue in issues] == [RULES[issue.rule].severity for issue in issues]
    return issues


def only(path, **options):
    """The one finding."""
    (issue,) = found(path, **options)
    return issue


def places(issues):
    return [(issue.rule, issue.episode, issue.step, issue.path) for issue in issues]


def video(root, file=0, camera=TOP):
    return root / VIDEO.format(camera=camera, chunk=0, file=file)


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_a_good_set_has_none(good, version):
    assert found(good[version]) == []
    assert validate(good[version]).ok


def test_the_real_sets():
    assert found(DATA / "lerobot/g1_v21") == []
    assert found(DATA / "lerobot/so101_v3_no_video", drop=["observation/images"]) == []


# -- counts and indices -----------------------------------------------------------------------------


def test_totals_that_are_not_those_of_the_episodes(v3):
    change_json(v3 / "meta/info.json", lambda info: info.update(total_episodes=5, total_frames=30, total_tasks=9))
    issues = found(v3, quick=True)
    assert places(issues) == [("wrong-counts", None, None, None)] * 3
    assert all(issue.source == str(v3 / "meta/info.json") for issue in issues)
    texts = " ".join(issue.message for issue in issues)
    assert "total_episodes in info.json is 5" in texts and "total_tasks is 9, tasks.parquet has 2" in texts
    report = convert(v3, [])
    assert report.episodes == 4 and sum("total_" in text for text in report.warnings) == 3
    with open_source(v3, drop=["observation/images"]) as source:
        assert sum("total_" in text for text in summarize(source).warnings) == 3


def test_a_split_beyond_the_episodes(v2):
    change_json(v2 / "meta/info.json", lambda info: info.update(splits={"train": "0:9"}))
    assert only(v2).message == "the split 'train' is 0:9, and there are 4 episodes"


def test_rows_that_no_episode_has(v2):
    path = v2 / DATA_V2.format(episode=1)
    change_rows(path, lambda rows: rows.append({**rows[-1], "frame_index": 7}))
    issue = only(v2)
    assert (issue.rule, issue.source) == ("wrong-counts", str(path)) and issue.message.startswith("8 rows, and")


def test_row_ranges_that_overlap(v3):
    def overlap(rows):
        rows[2]["dataset_from_index"] = 9

    change_rows(v3 / EPISODES, overlap)
    issue = only(v3, quick=True)
    assert (issue.rule, issue.episode) == ("wrong-index", 2)
    assert issue.message == (
        "dataset_from_index and dataset_to_index are 9 and 16, its rows are 12 to 16; they overlap the episode before"
    )


def test_row_ranges_that_are_scrambled(v3):
    def scramble(rows):
        for row in rows:
            row["dataset_to_index"] = row["length"]

    change_rows(v3 / EPISODES, scramble)
    assert places(found(v3)) == [("wrong-index", i, None, None) for i in (1, 2, 3)]


def test_the_index_of_rows_that_does_not_go_on(v3):
    def shift(rows):
        for row in rows[4:]:
            row["index"] += 1

    change_rows(v3 / DATA_V3.format(chunk=0, file=1), shift)
    issues = [issue for issue in found(v3) if issue.rule != "wrong-stats"]
    assert places(issues) == [("wrong-index", 3, 0, "index")]
    assert issues[0].message == "index is 17, and it is row 16 of the dataset"


# -- tasks ------------------------------------------------------------------------------------------


def test_tasks_out_of_order(v3):
    change_rows(v3 / "meta/tasks.parquet", lambda rows: rows.reverse())
    issue = only(v3, quick=True)
    assert (issue.rule, issue.source) == ("wrong-tasks", str(v3 / "meta/tasks.parquet"))
    assert issue.message.startswith("row 0 is task 1:")
    with open_source(v3, drop=["observation/images"]) as source:  # we go by the numbers
        texts = [bytes(episode.extras["task"][0]) for episode in source]
    assert texts == [b"task 0", b"task 1"] * 2


def test_tasks_of_an_episode_that_its_rows_do_not_have(v3, v2):
    def other(rows):
        rows[1]["tasks"] = ["task 0"]

    change_rows(v3 / EPISODES, other)
    change_lines(v2 / "meta/episodes.jsonl", other)
    for path in (v3, v2):
        issue = only(path)
        assert (issue.rule, issue.episode) == ("wrong-tasks", 1)
        assert issue.message == "the metadata tell of the tasks 'task 0', its rows have 'task 1'"


# -- statistics -------------------------------------------------------------------------------------


def test_statistics_of_an_episode(v3):
    def wrong(rows):
        rows[2]["stats/action/max"][1] += 0.5
        rows[3]["stats/action/std"][0] += 0.5

    change_rows(v3 / EPISODES, wrong)
    issue = only(v3)
    assert (issue.rule, issue.path, issue.episode) == ("wrong-stats", "action", None)
    assert "of 2 episodes" in issue.message and "the first one is episode 2: max[1] is" in issue.message


def test_statistics_of_the_dataset(v3):
    change_json(v3 / "meta/stats.json", lambda stats: stats["observation.state"]["mean"].__setitem__(0, 3.0))
    issue = only(v3)
    assert (issue.rule, issue.path) == ("wrong-stats", "observation/state")
    assert issue.message.startswith("statistics of the dataset are not those of the rows: mean[0] is 3,")


def test_statistics_of_an_episode_in_v2(v2):
    def wrong(rows):
        rows[0]["stats"]["action"]["count"] = [9]

    change_lines(v2 / "meta/episodes_stats.jsonl", wrong)
    assert "episode 0: count[0] is 9, the rows have 5" in only(v2).message


@pytest.mark.parametrize("axes", ["every number", "the last axis"])
def test_statistics_of_rows_with_several_axes(v3, axes):
    """lerobot takes all but the last axis as more rows."""
    change_json(
        v3 / "meta/info.json",
        lambda info: info["features"].update(grid={"dtype": "float32", "shape": [2, 3], "names": None}),
    )
    for file in (0, 1):
        path = v3 / DATA_V3.format(chunk=0, file=file)
        parts = columns_of()[2 * file : 2 * file + 2]
        kinds = pa.schema([*pq.read_schema(path), pa.field("grid", pa.list_(pa.list_(pa.float32())))])
        tables = [
            by_hand.table(part).append_column(
                kinds.field("grid"),
                pa.array([(np.arange(6) + i).reshape(2, 3).tolist() for i in part["index"]], kinds.field("grid").type),
            )
            for part in parts
        ]
        with pq.ParquetWriter(path, tables[0].schema) as writer:
            for one in tables:
                writer.write_table(one)
    whole = np.concatenate([np.arange(6) + i for i in range(sum(LENGTHS))]).reshape(-1, 2, 3)
    values = whole.reshape(-1, 6 if axes == "every number" else 3)
    ten = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    change_json(v3 / "meta/stats.json", lambda stats: stats.update(grid={key: v.tolist() for key, v in ten.items()}))
    assert found(v3) == []
    change_json(v3 / "meta/stats.json", lambda stats: stats["grid"]["std"].__setitem__(2, 0.0))
    assert only(v3).path == "extras/grid"


def test_no_statistics_at_all(v3, v2):
    (v3 / "meta/stats.json").unlink()
    (v2 / "meta/episodes_stats.jsonl").unlink()
    for path in (v3, v2):
        assert only(path, quick=True).rule == "absent-files"


# -- times ------------------------------------------------------------------------------------------


def jump(rows):
    for row in rows:
        if row["episode_index"] == 1 and row["frame_index"] >= 3:
            row["timestamp"] += 0.04


def test_timestamps_that_jump(v3):
    change_rows(v3 / DATA_V3.format(chunk=0, file=0), jump)
    issues = [issue for issue in found(v3) if issue.rule != "wrong-stats"]
    assert places(issues) == [
        ("uneven-timestamps", 1, 3, "extras/timestamp"),
        ("video-timestamps", 1, 3, FRONT),
        ("video-timestamps", 1, 3, "observation/images/wrist"),
    ]
    assert issues[0].message == "timestamp is 0.34, and row 3 is 0.3 s from the start at 10 fps"
    assert issues[1].message == "the row is at 0.84 s of the video, whose nearest frame is at 0.8 s"
    report = validate(v3)
    assert not report.ok and report.rejected == 1
    without = validate(v3, drop=["observation/images"])
    assert without.ok and without.counts["uneven-timestamps"] == 1


def test_a_tenth_of_a_millisecond_is_no_jump(v3):
    def little(rows):
        rows[3]["timestamp"] += 5e-5

    change_rows(v3 / DATA_V3.format(chunk=0, file=0), little)
    assert {issue.rule for issue in found(v3)} <= {"wrong-stats"}


def test_a_video_of_another_rate(v3):
    values = [number_of(WRIST, 2, row) for row in range(LENGTHS[2])]
    write_video(video(v3, 2, WRIST), values, fps=20)
    issues = found(v3)
    assert places(issues) == [
        ("wrong-info", None, None, "observation/images/wrist"),
        ("video-timestamps", 2, 2, "observation/images/wrist"),
    ]
    assert issues[0].message == "info.json says that fps is 10, of file-002.mp4 it is 20"


# -- videos -----------------------------------------------------------------------------------------


def test_a_video_with_fewer_frames_than_rows(v3):
    path = video(v3)
    write_video(path, [100] * 14)
    issue = next(issue for issue in found(v3) if issue.rule == "video-frames")
    assert (issue.episode, issue.path, issue.source) == (2, FRONT, str(path))
    assert issue.message == "its 4 rows need frames 12 to 15, and the video has 14"
    report = validate(v3)
    assert report.rejected == 1 and not report.ok


def test_a_video_that_goes_on_behind_the_rows(v2):
    """As where an episode was cut out of a longer video, with frames of the next one."""
    path = v2 / VIDEO_V2.format(camera=TOP, episode=1)
    write_video(path, [100] * 9)
    issue = only(v2)
    assert (issue.rule, issue.episode, issue.path) == ("unused-frames", 1, FRONT)
    assert issue.message == "2 of its 9 frames belong to no row, the first one is number 7"


def test_a_codec_other_than_info_json_says(v3):
    change_json(v3 / "meta/info.json", lambda info: info["features"][TOP]["info"].update({"video.codec": "av1"}))
    issue = only(v3)
    assert (issue.rule, issue.path) == ("wrong-info", FRONT)
    assert issue.message == "info.json says that video.codec is av1, of all videos it is h264"


def test_codecs_have_several_names(v3):
    change_json(v3 / "meta/info.json", lambda info: info["features"][TOP]["info"].update({"video.codec": "libx264"}))
    assert found(v3) == []


def test_merged_sets_with_a_wrong_from_timestamp(v3):
    """As sets were merged whose later episodes kept where they had begun in their own videos (lerobot#2627)."""

    def wrong(rows):
        rows[1][f"videos/{TOP}/from_timestamp"] = 0.0
        rows[1][f"videos/{TOP}/to_timestamp"] = 0.7

    change_rows(v3 / EPISODES, wrong)
    issues = found(v3, quick=True)
    assert places(issues) == [("video-overlap", 0, None, FRONT), ("video-overlap", 1, None, FRONT)]
    assert issues[1].message == "from_timestamp is 0, so some of its frames are those of episode 0"
    with pytest.raises(errors.EpisodeError, match=r"file-000.mp4, episode 0, observation/images/top: from_timestamp"):
        convert(v3, [])
    report = convert(v3, [], on_invalid="skip")
    assert report.rejected == {"video-overlap": 2} and report.episodes == 2
    assert convert(v3, [], drop=["observation/images/top"]).episodes == 4


def test_a_from_timestamp_beyond_the_video(v3):
    def wrong(rows):
        rows[2][f"videos/{TOP}/from_timestamp"] += 60
        rows[2][f"videos/{TOP}/to_timestamp"] += 60

    change_rows(v3 / EPISODES, wrong)
    issues = [issue for issue in found(v3) if issue.severity == "error"]
    assert ("video-frames", 2, None, FRONT) in places(issues) and {issue.episode for issue in issues} == {2}


def test_a_to_timestamp_that_is_not_the_end(v3):
    def wrong(rows):
        rows[2][f"videos/{TOP}/to_timestamp"] += 0.3

    change_rows(v3 / EPISODES, wrong)
    issue = only(v3, quick=True)
    assert (issue.rule, issue.episode, issue.path) == ("wrong-index", 2, FRONT)
    assert issue.message == "to_timestamp is 1.9, 7 frames behind from_timestamp, and it has 4 rows"


# -- files ------------------------------------------------------------------------------------------


def test_files_that_no_episode_is_in(v3):
    for name in ("video/front.mp4", "data/chunk-000/file-002.parquet", "images/x/frame_000000.png"):
        (v3 / name).parent.mkdir(parents=True, exist_ok=True)
        (v3 / name).write_bytes(b"?")
    (v3 / ".cache").mkdir()
    (v3 / ".cache/hidden.parquet").write_bytes(b"?")
    (v3 / "notes.txt").write_text("mine")
    issue = only(v3)
    assert issue.rule == "unused-files" and issue.message == (
        "3 files of rows or frames that no episode is in: data/chunk-000/file-002.parquet, images/x/frame_000000.png, "
        "video/front.mp4"
    )


BROKEN = {
    "absent": lambda path: path.unlink(),
    "pointer": as_pointer,
    "no footer": without_footer,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:400]),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_data_file_that_is_none(v3, how):
    """Its episodes can't be read, and say so themselves; the others can."""
    path = v3 / DATA_V3.format(chunk=0, file=1)
    BROKEN[how](path)
    report = validate(v3, drop=["observation/images"])
    assert report.rejected == 2 and [issue.episode for issue in report.issues if issue.severity == "error"] == [2, 3]
    assert all(str(path) in issue.message for issue in report.issues if issue.severity == "error")


@pytest.mark.parametrize("how", ["absent", "pointer", "cut", "empty"])
def test_a_video_that_is_none(v3, how):
    path = video(v3, 1, WRIST)
    BROKEN[how](path)
    report = validate(v3)
    assert report.rejected == 1
    (issue,) = [issue for issue in report.issues if issue.severity == "error"]
    assert issue.episode == 1 and str(path) in f"{issue.source} {issue.message}"
    assert validate(v3, drop=["observation/images/wrist"]).ok


# -- what is looked at ------------------------------------------------------------------------------


def test_of_episodes_and_cameras_that_are_not_read_nothing_is_said(v3):
    change_rows(v3 / DATA_V3.format(chunk=0, file=0), jump)
    write_video(video(v3), [100] * 14)
    every = Counter(issue.rule for issue in found(v3))
    assert every["video-frames"] == 1 and every["video-timestamps"] == 2
    dropped = found(v3, drop=[FRONT])
    assert {issue.path for issue in dropped if issue.episode is not None} == {
        "observation/images/wrist",
        "extras/timestamp",
    }
    sampled = found(v3, sample=0.5, seed=1)
    with open_source(v3, sample=0.5, seed=1, drop=["observation/images"]) as source:
        chosen = {episode.index for episode in source}
    assert 0 < len(chosen) < 4 and {issue.episode for issue in sampled} <= {None, *chosen}


def test_ten_thousand_tasks(tmp_path):
    path = write_v3(tmp_path / "many", cameras=(), tasks=10_000)
    assert found(path) == []
    change_rows(path / "meta/tasks.parquet", lambda rows: rows.append(rows.pop(0)))
    assert only(path).message.startswith("row 0 is task 1:")


def test_long_episodes_have_times_that_float32_rounds(tmp_path):
    path = write_v3(tmp_path / "long", lengths=(90_000,), cameras=(), per_file=1)
    assert abs(float(np.float32(89_999 / FPS)) - 89_999 / FPS) > 1e-4
    assert found(path) == []


ODD = [None, [], {}, "text", -1, 2.5, 10**400, [[1, 2], [3]], {"min": [1]}, [None], True]


@pytest.mark.parametrize("version", ["v3", "v2"])
def test_metadata_of_any_kind_end_in_findings_or_in_an_error_of_ours(good, tmp_path, version):
    """Entries that info.json and the statistics have, as something else."""
    root = shutil.copytree(good[version], tmp_path / "set")
    names = {"v3": ("meta/info.json", "meta/stats.json"), "v2": ("meta/info.json", "meta/episodes_stats.jsonl")}
    for name in names[version]:
        text = (root / name).read_text()
        rows = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [json.loads(text)]
        for place, (holder, key) in enumerate(list(entries(rows[0]))[::3]):
            kept = holder[key]
            holder[key] = ODD[place % len(ODD)]
            (root / name).write_text("\n".join(map(json.dumps, rows)))
            try:
                with open_source(root) as source:
                    list(source.findings())
            except errors.Rlds2bufError:
                pass
            holder[key] = kept
        (root / name).write_text(text)
    assert found(root) == []


def entries(value):
    """Every entry of dicts in each other."""
    for key in list(value):
        yield value, key
        if isinstance(value[key], dict):
            yield from entries(value[key])


def test_the_sets_by_hand_show_their_rows(good):
    values = by_hand.frames_of(video(good["v3"]))
    expected = [number_of(TOP, episode, row) for episode in range(3) for row in range(LENGTHS[episode])]
    assert max(abs(a - b) for a, b in zip(values, expected, strict=True)) <= 2
