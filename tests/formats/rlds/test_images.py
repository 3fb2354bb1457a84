"""Pictures of RLDS folders: decoded, or the files as they are."""

from __future__ import annotations

import io
import itertools
import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import rlds2buf
from rlds2buf.codecs.images import decode as decoders
from rlds2buf.codecs.images.pool import DecodePool
from rlds2buf.codecs.images.resize import resize_frames
from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import EpisodeError, SourceError, SourceFormatError
from rlds2buf.formats.rlds import block_reader
from rlds2buf.formats.rlds.source import RldsDirSource
from tests.codecs.images.decoded import decode_images
from tests.contracts.source import SourceContract, assert_same_episode
from tests.formats.rlds.folder import CORE, STEPS, episode, rlds, sequence, write_folder
from tests.made import MADE

BRIDGE = MADE / "rlds/bridge_dataset"
PICTURE = FieldSpec((), object, image=FieldSpec((64, 64, 3), np.uint8))
RNG = np.random.default_rng(11)


def image_feature(height: int, width: int, channels: int = 3) -> dict:
    dims = {"dimensions": [str(n) for n in (height, width, channels)]}
    return {
        "pythonClassName": f"{CORE}.image_feature.Image",
        "image": {"shape": dims, "dtype": "uint8", "encodingFormat": "jpeg"},
    }


def file_of(pixels: np.ndarray, format: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()


def files_of(count: int, height: int = 6, width: int = 8) -> list[bytes]:
    return [file_of(RNG.integers(0, 256, (height, width, 3), np.uint8)) for _ in range(count)]


def folder_of(path, features, records, **metadata_features):
    """An RLDS folder of episodes of :data:`STEPS` with these step features more."""
    return write_folder(path / "toy" / "1.0.0", {"train": [records]}, rlds({**STEPS, **features}, **metadata_features))


class TestEncodedContract(SourceContract):
    @pytest.fixture
    def make_source(self):
        return lambda: RldsDirSource(BRIDGE, split="train[:4]", images="encoded")

    test_fingerprint_changes_with_the_content = None  # these files stay as they are


def test_encoded_pictures_are_the_files_untouched():
    (decoded,) = RldsDirSource(BRIDGE, split="train[:1]")
    source = RldsDirSource(BRIDGE, split="train[:1]", images="encoded")
    (encoded,) = source
    assert source.spec.observation["image_0"] == PICTURE
    for i in range(4):
        files = encoded.observation[f"image_{i}"]
        assert files.dtype == object and files.shape == (encoded.num_steps,)
        assert all(isinstance(file, bytes) and file[:3] == b"\xff\xd8\xff" for file in files)
        assert np.array_equal(decode_images(files.tolist(), 3), decoded.observation[f"image_{i}"])
    others = {path: column for path, column in encoded.flatten() if "image_" not in nest.path_name(path)}
    for path, column in others.items():
        assert column.tolist() == dict(decoded.flatten())[path].tolist()


def test_encoded_is_chosen_unless_the_choice_was_made():
    source = RldsDirSource(BRIDGE)
    other = source.encoded()
    assert other.spec.observation["image_2"] == PICTURE
    assert source.spec.observation["image_2"] == FieldSpec((64, 64, 3), np.uint8)
    assert other.name == source.name and other.num_episodes == source.num_episodes
    assert other.fingerprint() != source.fingerprint()
    assert_same_episode(next(iter(other)), next(iter(RldsDirSource(BRIDGE, images="encoded"))))
    for images in ("decoded", "encoded"):
        chosen = RldsDirSource(BRIDGE, images=images)
        assert chosen.encoded() is chosen
    plain = RldsDirSource(MADE / "rlds/robomimic_ph")
    assert plain.encoded() is plain
    with pytest.raises(ValueError, match="images must be one of decoded, encoded, got 'none'"):
        RldsDirSource(BRIDGE, images="none")


def test_encoded_sequences_and_metadata(tmp_path):
    files = files_of(9)
    features = {
        "pair": sequence(image_feature(6, 8), length=2),
        "some": sequence(image_feature(6, 8)),
    }
    record = {
        **episode(0, 3),
        "steps/pair/ragged_flat_values": ("bytes", files[:6]),
        "steps/pair/ragged_row_lengths_0": ("int64", [2, 2, 2]),
        "steps/some/ragged_flat_values": ("bytes", files[6:9]),
        "steps/some/ragged_row_lengths_0": ("int64", [1, 0, 2]),
        "poster": ("bytes", files[:1]),
    }
    folder = folder_of(tmp_path, features, [record], poster=image_feature(6, 8))
    source = RldsDirSource(folder, images="encoded")
    (ep,) = source
    source.spec.check(ep)
    assert ep.extras["pair"].dtype == object and ep.extras["pair"].tolist() == [files[:2], files[2:4], files[4:6]]
    assert [row.tolist() for row in ep.extras["some"]] == [files[6:7], [], files[7:9]]
    assert ep.metadata["poster"] == files[0]
    image = FieldSpec((6, 8, 3), np.uint8)
    assert source.spec.extras["pair"] == FieldSpec((2,), object, image=image)
    assert source.spec.extras["some"] == FieldSpec((None,), object, image=image)


def test_encoded_pictures_pass_the_checks():
    report = rlds2buf.validate(RldsDirSource(BRIDGE, images="encoded"))
    other = rlds2buf.validate(RldsDirSource(BRIDGE))
    assert [(issue.rule, issue.episode, issue.path) for issue in report.issues] == [
        (issue.rule, issue.episode, issue.path) for issue in other.issues
    ]


@pytest.fixture
def cameras(tmp_path):
    """Six episodes with a JPEG of two cameras a step, as a function of what is done to the records first."""

    def make(change=lambda records: None):
        records = []
        for i, length in enumerate([3, 1, 4, 2, 5, 3]):
            pixels = RNG.integers(0, 256, (2 * length, 6, 8, 3), np.uint8)
            files = [file_of(frame, "JPEG") for frame in pixels]
            records.append(
                {
                    **episode(i, length),
                    "steps/near": ("bytes", files[:length]),
                    "steps/far": ("bytes", files[length:]),
                }
            )
        change(records)
        folder = tmp_path / f"cameras{len(list(tmp_path.iterdir()))}"
        return folder_of(folder, {"near": image_feature(6, 8), "far": image_feature(6, 8)}, records)

    return make


def decoding_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rlds2buf-images")]


class TestResizedContract(SourceContract):
    @pytest.fixture
    def make_source(self):
        return lambda: RldsDirSource(BRIDGE, split="train[:4]", resize=(20, 33), image_threads=3)

    test_fingerprint_changes_with_the_content = None  # these files stay as they are


@pytest.mark.parametrize("threads", [None, 1, 2, 5])
def test_any_number_of_threads_gives_the_same(cameras, threads):
    for folder in (BRIDGE, cameras()):
        for one, other in zip(RldsDirSource(folder, image_threads=threads), RldsDirSource(folder), strict=True):
            assert one.index == other.index
            assert_same_episode(one, other)


def test_one_thread_is_the_reading_one_and_none_is_left_behind(cameras):
    folder = cameras()
    reading = iter(RldsDirSource(folder, image_threads=1))
    next(reading)
    assert not decoding_threads()
    reading = RldsDirSource(folder, image_threads=3).read()
    next(reading)
    assert 1 <= len(decoding_threads()) <= 2
    reading.close()
    assert not decoding_threads()
    list(RldsDirSource(folder, image_threads=3))
    assert not decoding_threads()


def test_a_forked_process_reads_on(cameras):
    """Threads do not survive a fork; the child decodes by itself, from where the parent was."""
    folder = cameras()
    reading = RldsDirSource(folder, image_threads=3).read()
    next(reading)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: forking beside threads
        child = os.fork()
    rest = list(itertools.islice(RldsDirSource(folder), 1, None))
    if child == 0:
        try:
            for one, other in zip(reading, rest, strict=True):
                assert_same_episode(one, other)
            os._exit(0)
        finally:
            os._exit(1)
    for one, other in zip(reading, rest, strict=True):
        assert_same_episode(one, other)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if done[0] == 0:
        os.kill(child, signal.SIGKILL)
    assert done == (child, 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_damaged_picture_spoils_its_episode_only(cameras, threads):
    def damage(records):
        records[2]["steps/far"][1][3] = records[2]["steps/far"][1][3][:-40]
        records[4]["steps/near"][1][0] = file_of(np.zeros((8, 6, 3), np.uint8))

    folder = cameras(damage)
    found = list(RldsDirSource(folder, image_threads=threads).read())
    assert [item.index for item in found if isinstance(item, Episode)] == [0, 1, 3, 5]
    two, four = found[2], found[4]
    shard = str(folder / "toy-train.tfrecord-00000-of-00001")
    assert (two.source, two.episode, two.step, two.path, two.rule) == (shard, 2, 3, "extras/far", "unreadable")
    assert "the image is damaged" in str(two)
    assert (four.episode, four.step, four.path) == (4, 0, "extras/near")
    assert "an image of [8, 6, 3] where features.json says [6, 8, 3]" in str(four)
    into: list = []
    report = rlds2buf.convert(RldsDirSource(folder, image_threads=threads), into, on_invalid="skip")
    assert (report.read, report.episodes, report.rejected) == (6, 4, {"unreadable": 2})
    with pytest.raises(EpisodeError, match=r"episode 2, step 3, extras/far"):
        list(RldsDirSource(folder, image_threads=threads))
    assert len(list(RldsDirSource(folder, images="encoded"))) == 6


def test_a_damaged_picture_in_sequences_and_metadata(tmp_path):
    files = files_of(7)
    files[4] = files[4][:20]
    features = {"some": sequence(sequence(image_feature(6, 8)))}
    record = {
        **episode(0, 3),
        # Row 0 has two pictures in two parts, row 1 none at all, row 2 three in one part.
        "steps/some/ragged_flat_values": ("bytes", files[:5]),
        "steps/some/ragged_row_lengths_0": ("int64", [2, 0, 1]),
        "steps/some/ragged_row_lengths_1": ("int64", [1, 1, 3]),
        "poster": ("bytes", files[5:6]),
    }
    folder = folder_of(tmp_path / "a", features, [record], poster=image_feature(6, 8))
    (error,) = RldsDirSource(folder).read()
    assert (error.step, error.path) == (2, "extras/some")
    record["steps/some/ragged_flat_values"] = ("bytes", files[:4] + files[6:])
    record["poster"] = ("bytes", [b"no picture"])
    folder = folder_of(tmp_path / "b", features, [record], poster=image_feature(6, 8))
    (error,) = RldsDirSource(folder).read()
    assert (error.step, error.path) == (None, "poster")


def test_what_breaks_off_is_told_behind_the_episodes_before(cameras):
    folder = cameras()
    shard = folder / "toy-train.tfrecord-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-5])
    reading = RldsDirSource(folder, image_threads=3).read()
    assert [next(reading).index for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(SourceFormatError):
        next(reading)
    assert not decoding_threads()


def test_a_record_without_its_pictures_ends_the_file(cameras):
    folder = cameras(lambda records: records[3].pop("steps/far"))
    reading = RldsDirSource(folder, image_threads=3).read()
    assert [next(reading).index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(SourceFormatError, match=r"record 3 \(episode 3\): steps/far"):
        next(reading)


def test_only_one_block_is_begun_ahead(monkeypatch):
    lengths = [len(episode) for episode in RldsDirSource(BRIDGE, images="encoded")]
    begun = []
    submit = DecodePool.submit

    def counted(pool, files, image):
        begun.append(len(files))
        return submit(pool, files, image)

    monkeypatch.setattr(DecodePool, "submit", counted)
    source = RldsDirSource(BRIDGE, image_threads=2)
    list(source.read_batches())
    assert sum(begun) == 4 * sum(lengths)  # each picture of the four cameras once
    # A step of these pixels is more than a block should have, so each episode is a block of its own.
    monkeypatch.setattr(block_reader, "_PIXEL_BYTES", 1000)
    del begun[:]
    for number, _ in enumerate(source.read()):
        assert number + 1 <= len(begun) // 4 <= number + 2


@pytest.mark.parametrize("size", [32, (16, 48), 100, 64])
def test_resized(size):
    source = RldsDirSource(BRIDGE, split="train[:2]", resize=size)
    height, width = (size, size) if isinstance(size, int) else size
    assert source.spec.observation["image_0"] == FieldSpec((height, width, 3), np.uint8)
    for ep, whole in zip(source, RldsDirSource(BRIDGE, split="train[:2]"), strict=True):
        for name in ("image_0", "image_3"):
            assert ep.observation[name].dtype == np.uint8
            assert np.array_equal(ep.observation[name], resize_frames(whole.observation[name], size))
        assert np.array_equal(ep.observation["state"], whole.observation["state"])
    assert source.fingerprint() != RldsDirSource(BRIDGE, split="train[:2]").fingerprint()
    assert source.encoded() is source


def test_pictures_of_all_sizes_become_one(tmp_path):
    files = [files_of(1, height, width)[0] for height, width in ((4, 9), (8, 8), (30, 2))]
    dims = {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}
    feature = {"pythonClassName": f"{CORE}.image_feature.Image", "image": dims}
    folder = folder_of(tmp_path, {"picture": feature}, [{**episode(0, 3), "steps/picture": ("bytes", files)}])
    for threads in (1, 2):
        (ep,) = RldsDirSource(folder, image_threads=threads)
        assert ep.extras["picture"].dtype == object
        (ep,) = RldsDirSource(folder, resize=5, image_threads=threads)
        assert ep.extras["picture"].shape == (3, 5, 5, 3)
        for frame, file in zip(ep.extras["picture"], files, strict=True):
            assert np.array_equal(frame, resize_frames(decode_images([file], 3)[0], 5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "a size is one whole number"),
        ({"resize": (3, 4, 5)}, "a size is one whole number"),
        ({"resize": 32, "images": "encoded"}, "kept encoded can't be resized"),
        ({"image_threads": 0}, "image_threads must be at least 1"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        RldsDirSource(BRIDGE, **options)


def test_without_fields_their_pictures_are_not_decoded(cameras):
    def damage(records):
        records[2]["steps/far"][1][0] = b"no picture"

    source = RldsDirSource(cameras(damage))
    with pytest.raises(EpisodeError):
        list(source)
    other = source.without(["extras/far", "action"])
    assert [nest.path_name(path) for path, _ in other.spec.fields()] == [
        "observation", "reward", "discount", "is_first", "is_last", "is_terminal", "extras/near"
    ]  # fmt: skip
    for ep in other:
        other.spec.check(ep)
        assert ep.action is None
    assert other.fingerprint() != source.fingerprint()
    assert dict(source.spec.fields()).keys() > dict(other.spec.fields()).keys()
    assert "extras/far" not in [nest.path_name(path) for path, _ in other.encoded().spec.fields()]
    with pytest.raises(ValueError, match="no such field: extras/nothing"):
        source.without(["extras/nothing", "reward"])


def test_without_nests_and_parts_of_them():
    source = RldsDirSource(BRIDGE, split="train[:1]")
    one = source.without(["observation/image_0", "observation/image_3"])
    assert sorted(one.spec.observation) == ["image_1", "image_2", "state"]
    none = source.without(["observation"])
    assert none.spec.observation is None and next(iter(none)).observation is None
    again = source.without([f"observation/{name}" for name in source.spec.observation])
    assert again.spec == none.spec
    with pytest.raises(ValueError, match="no field would be left"):
        source.without({path[0] if path[0] != "extras" else "/".join(path[:2]) for path, _ in source.spec.fields()})


def test_pictures_by_pillow_alone_are_the_same(monkeypatch):
    expected = list(RldsDirSource(BRIDGE, split="train[:2]"))
    monkeypatch.setattr(decoders, "turbo_decoder", lambda: None)
    for one, other in zip(RldsDirSource(BRIDGE, split="train[:2]"), expected, strict=True):
        assert_same_episode(one, other)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    """A dataset with pictures alone, in rows, in metadata; and its shard's bytes."""
    files = [file_of(RNG.integers(0, 256, (6, 8, 3), np.uint8), "JPEG" if i % 2 else "PNG") for i in range(12)]
    features = {"near": image_feature(6, 8), "some": sequence(image_feature(6, 8))}
    record = {
        **episode(0, 3),
        "steps/near": ("bytes", files[:3]),
        "steps/some/ragged_flat_values": ("bytes", files[3:7]),
        "steps/some/ragged_row_lengths_0": ("int64", [1, 0, 3]),
        "poster": ("bytes", files[7:8]),
    }
    folder = folder_of(tmp_path_factory.mktemp("fuzzed"), features, [record] * 3, poster=image_feature(6, 8))
    (shard,) = folder.glob("*.tfrecord-*")
    return folder, shard, shard.read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_anywhere_is_a_typed_error(fuzzed, data):
    folder, shard, whole = fuzzed
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    shard.write_bytes(changed[: data.draw(st.sampled_from([len(changed), len(changed) // 2, len(changed) - 1]))])
    for options in ({"image_threads": 2}, {"image_threads": 1, "resize": 4}, {"images": "encoded"}):
        try:
            for item in RldsDirSource(folder, check_crc=False, **options).read():
                assert isinstance(item, Episode | EpisodeError)
        except SourceError:
            pass
