"""LeRobot to LeRobot: episodes left out, merged, cast; v2.1 to v3.0 and back.  Videos are copied by their packets."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import av
import numpy as np
import pytest

from rlds2buf import Episode, EpisodeBatch, convert, errors, open_mixture, open_source, validate
from rlds2buf.codecs.video.frame_names import runs
from rlds2buf.formats.lerobot.sink import LeRobotDirSink
from tests.data import DATA
from tests.formats.lerobot.by_hand import (
    LENGTHS,
    TOP,
    VIDEO,
    VIDEO_V2,
    WRIST,
    columns_of,
    frames_of,
    number_of,
    write_v2,
    write_v3,
)

EVEN = (6, 8, 4, 6)
"""Lengths with which every episode begins with a keyframe."""
CAMERAS = ("top", "wrist")


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return {
        "v3": write_v3(folder / "v3", lengths=EVEN),
        "v2": write_v2(folder / "v2", lengths=EVEN),
        "odd": write_v3(folder / "odd", lengths=LENGTHS),
    }


def edited(source, target, **options):
    """Convert, and say what became of the frames: by camera how many episodes were copied, how many encoded again."""
    before = digest(source) if isinstance(source, Path) else None
    report = convert(source, target, to="lerobot", **options)
    if before is not None:
        assert digest(source) == before
    assert validate(target).ok, str(validate(target))
    found = {}
    for camera in CAMERAS:
        told = next((note for note in report.notes if note.startswith(f"observation/images/{camera}: ")), "")
        copied = int(told.partition("the packets of ")[2].partition(" ")[0] or 0)
        again = told.partition("copied, ")[2] if copied else told.partition("all ")[2]
        found[camera] = copied, int(again.partition(" ")[0]) if again[:1].isdigit() else 0
    return report, found


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


def packets(path):
    """The bytes of every packet, in order."""
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def check_episodes(path, numbers, lengths, close=3):
    """That the episodes are those of these numbers, rows and pictures."""
    right = columns_of(lengths)
    with open_source(path) as source:
        episodes = list(source)
    assert len(episodes) == len(numbers)
    for episode, number in zip(episodes, numbers, strict=True):
        np.testing.assert_array_equal(episode.observation["state"], right[number]["observation.state"])
        for camera, shown in episode.observation["images"].items():
            feature = f"observation.images.{camera}"
            told = [number_of(feature, number, row) for row in range(lengths[number])]
            assert np.abs(np.asarray(shown).mean(axis=(1, 2, 3)) - told).max() < close


def test_a_copy_copies_every_packet(sets, tmp_path):
    _, found = edited(sets["v3"], tmp_path / "out")
    assert found == {"top": (4, 0), "wrist": (4, 0)}
    check_episodes(tmp_path / "out", [0, 1, 2, 3], EVEN)
    # Four videos of the wrist, and two of the top, became one each.
    parts = [packets(sets["v3"] / VIDEO.format(camera=WRIST, chunk=0, file=i)) for i in range(4)]
    assert packets(tmp_path / "out" / VIDEO.format(camera=WRIST, chunk=0, file=0)) == [*itertools.chain(*parts)]


def test_episodes_that_are_deleted(sets, tmp_path):
    report, found = edited(sets["v3"], tmp_path / "out", where="length != 8")
    assert report.rejected == {"filter-where": 1} and found == {"top": (3, 0), "wrist": (3, 0)}
    check_episodes(tmp_path / "out", [0, 2, 3], EVEN)
    with open_source(tmp_path / "out") as source:
        assert not list(source.findings())


def test_deleting_a_few_of_many_copies_packets(tmp_path):
    lengths = (4,) * 200
    source = write_v3(tmp_path / "many", lengths=lengths, cameras=(TOP,), per_file=200, per_video={TOP: 200})
    report, found = edited(source, tmp_path / "out", sample=190)
    assert report.episodes == 190 and found["top"] == (190, 0)


def test_where_a_video_must_be_cut_within_packets_it_is_said(sets, tmp_path):
    """The second episode begins with a frame that is no keyframe: LeRobot would not have written that."""
    report, found = edited(sets["odd"], tmp_path / "out")
    assert found == {"top": (3, 1), "wrist": (4, 0)}
    (said,) = [note for note in report.notes if "encoded again" in note and "/top:" in note]
    assert said.endswith("the packets of 3 episodes were copied, 1 were encoded again: frame 5 is no keyframe")
    check_episodes(tmp_path / "out", [0, 1, 2, 3], LENGTHS)
    with open_source(tmp_path / "out") as source:  # of the codec that it was of
        assert not list(source.findings())


def test_a_codec_that_is_asked_for_is_encoded(sets, tmp_path):
    _, found = edited(sets["v3"], tmp_path / "out", sink_options={"codec": "hevc"})
    assert found == {"top": (0, 4), "wrist": (0, 4)}
    with open_source(tmp_path / "out") as source:
        assert not list(source.findings())


def test_samples_splits_and_parts(sets, tmp_path):
    _, found = edited(sets["v3"], tmp_path / "half", sample=0.5, seed=1)
    with open_source(sets["v3"], sample=0.5, seed=1) as source:
        chosen = [episode.index for episode in source]
    assert 0 < len(chosen) < 4 and found["top"] == (len(chosen), 0)
    check_episodes(tmp_path / "half", chosen, EVEN)
    total = 0
    for part in ("train", "val"):
        with open_source(sets["v3"], val_fraction=0.5, part=part, seed=3) as source:
            count = len(list(source))
        if count:
            _, found = edited(sets["v3"], tmp_path / part, val_fraction=0.5, part=part, seed=3)
            assert found["wrist"] == (count, 0)
        total += count
    assert total == 4


def test_merged_sets(sets, tmp_path):
    report, found = edited([sets["v3"], sets["v2"]], tmp_path / "out")
    assert report.episodes == 8 and found == {"top": (8, 0), "wrist": (8, 0)}
    check_episodes(tmp_path / "out", [0, 1, 2, 3] * 2, EVEN)


def test_mixtures(sets, tmp_path):
    mixture = open_mixture([sets["v3"], sets["v2"]], names=["one", "two"], weights=[1.0, 2.0], seed=1)
    _, found = edited(mixture, tmp_path / "out")
    assert found == {"top": (8, 0), "wrist": (8, 0)}
    order = [episode.metadata["source_index"] for episode in mixture]
    check_episodes(tmp_path / "out", order, EVEN)


def test_fields_dropped_and_cast(sets, tmp_path):
    _, found = edited(sets["v3"], tmp_path / "drop", drop=["observation/images/top"])
    assert found == {"top": (0, 0), "wrist": (4, 0)}
    _, found = edited(sets["v3"], tmp_path / "cast", cast={"action": "float64"})
    assert found == {"top": (4, 0), "wrist": (4, 0)}
    with open_source(tmp_path / "cast") as source:
        assert source.spec.action.dtype == np.float64


def test_a_picture_that_is_renamed_is_still_copied(sets, tmp_path):
    with open_source(sets["v3"], map={"observation/images/left": "observation/images/top"}) as source:
        names = [path for path, _ in source.spec.fields()]
        assert ("observation", "images", "left") in names
        report = convert(source, tmp_path / "out", to="lerobot")
    assert any(note.startswith("observation/images/left: the packets of 4") for note in report.notes)


def test_v21_to_v3_and_back(sets, tmp_path):
    _, found = edited(sets["v2"], tmp_path / "v3")
    assert found == {"top": (4, 0), "wrist": (4, 0)}
    _, found = edited(tmp_path / "v3", tmp_path / "v2", sink_options={"version": "2.1"})
    assert found == {"top": (4, 0), "wrist": (4, 0)}
    for camera in (TOP, WRIST):
        for episode in range(4):
            name = VIDEO_V2.format(camera=camera, episode=episode)
            assert packets(tmp_path / "v2" / name) == packets(sets["v2"] / name)
    check_episodes(tmp_path / "v2", [0, 1, 2, 3], EVEN)
    with open_source(sets["v2"]) as one, open_source(tmp_path / "v2") as other:
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first.action, second.action)
            assert first.extras["task"].tolist() == second.extras["task"].tolist()


def test_the_real_set_there_and_back(tmp_path):
    source = DATA / "lerobot/g1_v21"
    report = convert(source, tmp_path / "v3", to="lerobot")
    assert any("the packets of 3 episodes were copied, none was encoded again" in note for note in report.notes)
    convert(tmp_path / "v3", tmp_path / "v2", to="lerobot", sink_options={"version": "2.1"})
    for path in sorted(source.rglob("*.mp4")):
        assert packets(tmp_path / "v2" / path.relative_to(source)) == packets(path)
    for path in (tmp_path / "v3", tmp_path / "v2"):
        with open_source(path, drop=["observation/images"]) as made, open_source(path) as whole:
            assert validate(made).ok and not [str(issue) for issue in whole.findings()]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("how", ["itself", "merged"])
def test_never_in_place(sets, tmp_path, overwrite, how):
    source = write_v3(tmp_path / "set", lengths=EVEN)
    before = digest(source)
    given = source if how == "itself" else [sets["v3"], source]
    with pytest.raises((errors.SinkError, errors.SnapshotExists), match="that is read"):
        convert(given, source, to="lerobot", overwrite=overwrite)
    assert digest(source) == before


# -- frames by name, behind what changes and what joins -------------------------------------------------


def names_of(source):
    """The runs of the frames of the top camera, episode by episode."""
    with source.with_video_frames() as named:
        field = named.spec.observation["images"]["top"]
        assert field.is_video and field.image is not None
        return [
            [(Path(run.path).name, run.first, run.count) for run in runs(episode.observation["images"]["top"])]
            for item in named.read_batches()
            if isinstance(item, EpisodeBatch)
            for episode in item
        ]


def test_frames_by_name_behind_filters(sets):
    every = names_of(open_source(sets["v3"]))
    assert every == [
        [("file-000.mp4", 0, 6)],
        [("file-000.mp4", 6, 8)],
        [("file-000.mp4", 14, 4)],
        [("file-001.mp4", 0, 6)],
    ]
    assert names_of(open_source(sets["v3"], where="length != 8")) == [every[0], *every[2:]]
    assert names_of(open_source(sets["v3"], drop=["action"], float32=True)) == every


def test_pixels_that_are_cast_are_no_names(sets):
    with open_source(sets["v3"], cast={"observation/images/top": "float32"}) as source:
        assert source.with_video_frames() is source
        assert source.spec.observation["images"]["top"].dtype == np.float32


def test_frames_by_name_of_mixtures(sets):
    mixture = open_mixture([sets["v3"], sets["v2"]], names=["one", "two"])
    found = names_of(mixture)
    assert found[:4] == names_of(open_source(sets["v3"])) and found[4] == [("episode_000000.mp4", 0, 6)]


def test_a_mixture_with_a_set_that_has_no_videos_is_decoded(sets):
    with open_source(sets["v3"]) as source:
        episodes = list(source)
    mixture = open_mixture([open_source(sets["v3"]), open_source(episodes)], names=["one", "two"])
    assert mixture.with_video_frames() is mixture


def test_a_sink_that_wants_pixels_gets_them(sets):
    kept = []
    convert(open_source(sets["v3"]), kept)
    shown = np.asarray(kept[1].observation["images"]["top"])
    assert shown.shape == (8, 64, 64, 3)
    assert frames_of(sets["v3"] / VIDEO.format(camera=TOP, chunk=0, file=0))[6] == round(float(shown[0].mean()))


def test_pictures_in_rows_stay_the_files_they_are(tmp_path: Path) -> None:
    """v2.1 to v3.0, back, and merged: not a byte of a picture changes; asked for, they become videos."""
    rng = np.random.default_rng(0)
    made = [
        Episode(
            observation={
                "front": rng.integers(0, 255, (n, 64, 80, 3), np.uint8),
                "state": np.zeros((n, 2), np.float32),
            },
            action=np.ones((n, 2), np.float32),
        )
        for n in (3, 1)
    ]
    convert(made, LeRobotDirSink(tmp_path / "a", fps=10, images="png", version="2.1"))
    convert(tmp_path / "a", tmp_path / "b", to="lerobot")
    convert(tmp_path / "b", tmp_path / "c", to="lerobot", sink_options={"version": "2.1"})
    with open_mixture([tmp_path / "a", tmp_path / "c"]) as source:
        convert(source, tmp_path / "d", to="lerobot")
    with open_source(tmp_path / "a", images="encoded") as source:
        files = [episode.observation["front"].tolist() for episode in source]
    for name, expected in (("b", files), ("c", files), ("d", files * 2)):
        with open_source(tmp_path / name, images="encoded") as source:
            assert [episode.observation["front"].tolist() for episode in source] == expected
    convert(tmp_path / "a", tmp_path / "e", to="lerobot", sink_options={"images": "video", "codec": "h264"})
    assert list((tmp_path / "e").glob("videos/*/*/*.mp4"))
    with open_source(tmp_path / "e") as source:
        assert [episode.observation["front"].shape for episode in source] == [(3, 64, 80, 3), (1, 64, 80, 3)]


@pytest.mark.parametrize("images", ["video", None])
def test_files_from_another_dataset_become_a_video_or_stay(tmp_path: Path, images: str | None) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (3, 64, 80, 3), np.uint8)
    convert([Episode(observation={"front": frames}, action=np.ones((3, 2), np.float32))], tmp_path / "r", to="rlds")
    convert(tmp_path / "r", tmp_path / "a", to="lerobot", images="encoded", sink_options={"fps": 10, "images": images})
    assert bool(list((tmp_path / "a").glob("videos/*/*/*.mp4"))) == (images == "video")
    with open_source(tmp_path / "a") as source:
        (found,) = source
    assert found.observation["front"].shape == frames.shape
    assert images == "video" or np.array_equal(found.observation["front"], frames)
