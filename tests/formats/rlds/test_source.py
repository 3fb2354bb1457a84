from __future__ import annotations

import json
import shutil
import zlib

import numpy as np
import pytest

import rlds2buf
from rlds2buf.codecs.tfrecord.frames import read_records
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import EmptyEpisode, SourceFormatError, SourceNotFound, SpecMismatch
from rlds2buf.formats.rlds.source import RldsDirSource
from tests.contracts.source import SourceContract
from tests.data import RLDS
from tests.formats.rlds.folder import STEPS, episode, features_dict, rlds, sequence, tensor, write_folder
from tests.made import BOTH, MADE
from tests.reference.example import decode_example

LENGTHS = [3, 1, 4, 2, 5]
EPISODES = [episode(i, n) for i, n in enumerate(LENGTHS)]
TEXT = {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}


@pytest.fixture
def folder(tmp_path):
    shards = {"train": [EPISODES[:2], [], EPISODES[2:]], "test": [EPISODES[:1]]}
    return write_folder(tmp_path / "toy" / "1.0.0", shards)


def numbers(source, *args):
    return [int(ep.observation[0, 0]) for ep in source.read(*args)]


def only(tmp_path, record, features):
    """The one episode of a dataset of that record."""
    (ep,) = RldsDirSource(write_folder(tmp_path / "d" / "1.0.0", {"train": [[record]]}, features))
    return ep


class TestContract(SourceContract):
    @pytest.fixture
    def make_source(self, folder):
        return lambda: RldsDirSource(folder)

    @pytest.fixture
    def change(self, folder):
        shard = folder / "toy-train.tfrecord-00002-of-00003"
        return lambda: shard.write_bytes(shard.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize("name", ["bridge_dataset", "d4rl_mujoco_hopper/v2-medium", "robomimic_ph"])
class TestContractOnStandIns(SourceContract):
    @pytest.fixture
    def make_source(self, name):
        return lambda: RldsDirSource(MADE / f"rlds/{name}", split="train[:3]" if name == "bridge_dataset" else None)

    test_fingerprint_changes_with_the_content = None  # these files stay as they are


def test_columns(folder):
    source = RldsDirSource(folder)
    ep = list(source)[2]
    assert ep.observation.tolist() == [[2, 0], [2, 1], [2, 2], [2, 3]]
    assert ep.action.tolist() == [0, -1, -2, -3]
    assert ep.is_first.tolist() == [True, False, False, False]
    assert [column.dtype.name for _, column in ep.flatten()] == ["float32", "int64", "float32", "float32"] + [
        "bool"
    ] * 3
    assert (ep.index, ep.source) == (2, str(folder / "toy-train.tfrecord-00002-of-00003"))
    assert source.spec.observation == FieldSpec((2,), np.float32)
    source.spec.check(ep)


def test_columns_belong_to_the_caller(folder):
    ep = next(iter(RldsDirSource(folder)))
    for _, column in ep.flatten():
        assert column.flags.writeable and column.flags.aligned


def test_counts_and_details(folder):
    source = RldsDirSource(folder)
    assert (source.num_episodes, source.num_steps) == (5, None)
    assert [ep.num_steps for ep in source] == LENGTHS
    details = json.loads(json.dumps(source.details()))
    assert details["splits"]["train"] == {"episodes": 5, "shards": 3, "bytes": 1}
    assert details["features"]["steps"]["sequence"]["observation"] == "float32[2]"
    assert details["version"] == "1.0.0" and details["config"] == ""


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (None, [0, 1, 2, 3, 4]),
        ("train[1:4]", [1, 2, 3]),
        ("train[-2:]", [3, 4]),
        ("train[:40%]", [0, 1]),
        ("train[2shard]", [2, 3, 4]),
        ("test+train[:1]", [0, 0]),
        ("train[3:]+train[:2]", [3, 4, 0, 1]),
        ("all", [0, 1, 2, 3, 4, 0]),
    ],
)
def test_splits(folder, split, expected):
    source = RldsDirSource(folder, split=split)
    assert source.num_episodes == len(expected)
    assert numbers(source) == expected
    assert [ep.index for ep in source] == list(range(len(expected)))
    for start in range(len(expected) + 1):
        for stop in (*range(start, len(expected) + 2), None):
            assert numbers(source, start, stop) == expected[start:stop]


def test_a_part_of_a_shard_need_not_be_whole(folder):
    shard = folder / "toy-train.tfrecord-00002-of-00003"
    shard.write_bytes(shard.read_bytes()[:-5])
    assert numbers(RldsDirSource(folder, split="train[:4]")) == [0, 1, 2, 3]


def test_the_only_split_is_the_default(tmp_path):
    assert numbers(RldsDirSource(write_folder(tmp_path / "1.0.0", {"eval": [EPISODES[:1]]}))) == [0]
    several = write_folder(tmp_path / "2.0.0", {"a": [[]], "b": [[]]})
    with pytest.raises(SourceNotFound, match="no split named; there are: a, b"):
        RldsDirSource(several)


def test_newest_version_of_the_only_config(tmp_path):
    for version, record in (("1.9.0", EPISODES[0]), ("1.10.0", EPISODES[1]), ("1.2.0", EPISODES[2])):
        write_folder(tmp_path / "toy" / "easy" / version, {"train": [[record]]})
    assert numbers(RldsDirSource(tmp_path / "toy")) == numbers(RldsDirSource(tmp_path / "toy/easy")) == [1]
    assert numbers(RldsDirSource(tmp_path / "toy/easy/1.2.0")) == [2]
    write_folder(tmp_path / "toy" / "hard" / "1.0.0", {"train": [[]]})
    with pytest.raises(SourceNotFound, match="several configs, name one of: easy, hard"):
        RldsDirSource(tmp_path / "toy")


def test_file_names_from_the_template(tmp_path):
    folder = write_folder(tmp_path / "1.0.0", {"train": [EPISODES[:2], EPISODES[2:]]})
    template = "{SPLIT}/part.{SHARD_INDEX}.of.{NUM_SHARDS}.{DATASET}.{FILEFORMAT}"
    (folder / "train").mkdir()
    for i in range(2):
        path = folder / f"toy-train.tfrecord-0000{i}-of-00002"
        path.rename(folder / f"train/part.0000{i}.of.00002.toy.tfrecord")
    edit(folder, "dataset_info.json", lambda info: info["splits"][0].update(filepathTemplate=template))
    assert numbers(RldsDirSource(folder)) == [0, 1, 2, 3, 4]
    edit(folder, "dataset_info.json", lambda info: info["splits"][0].update(filepathTemplate="{WHAT}-{SHARD_INDEX}"))
    with pytest.raises(SourceFormatError, match="unknown parts"):
        RldsDirSource(folder)


def test_lengths_are_counted_where_dataset_info_has_none(folder):
    edit(folder, "dataset_info.json", lambda info: [split.pop("shardLengths") for split in info["splits"]])
    source = RldsDirSource(folder, split="train[1:4]")
    assert numbers(source) == [1, 2, 3]


def test_step_fields_that_are_missing_are_none_and_the_rest_are_extras(tmp_path):
    features = rlds(
        {"observation": {**features_dict({"arm": tensor((2,), "float64")})}, "note": TEXT}, seed=tensor((), "uint8")
    )
    record = {
        "steps/observation/arm": ("float", [1, 2, 3, 4]),
        "steps/note": ("bytes", [b"go", b"stop"]),
        "seed": ("int64", [7]),
        "unknown to features.json": ("int64", [1]),
    }
    ep = only(tmp_path, record, features)
    assert ep.observation["arm"].tolist() == [[1, 2], [3, 4]] and ep.observation["arm"].dtype == np.float64
    assert ep.action is ep.reward is ep.discount is None
    assert ep.derived == {"is_first", "is_last", "is_terminal"}
    assert ep.extras["note"].tolist() == [b"go", b"stop"]
    assert ep.metadata == {"seed": 7} and isinstance(ep.metadata["seed"], np.uint8)
    spec = RldsDirSource(tmp_path / "d").spec
    assert spec.reward is None and spec.action is None
    spec.check(ep)


def test_ragged_sequences(tmp_path):
    features = rlds(
        {
            "observation": sequence(tensor((2,), "float32")),
            "tags": sequence(TEXT),
            "deep": sequence(sequence(tensor((), "int64"))),
            "four": sequence(tensor((), "int8"), length=2),
        },
        goals=sequence(tensor((2,), "float32")),
    )
    record = {
        "steps/observation/ragged_flat_values": ("float", range(6)),
        "steps/observation/ragged_row_lengths_0": ("int64", [1, 0, 2]),
        "steps/tags/ragged_flat_values": ("bytes", [b"a", b"b", b"c"]),
        "steps/tags/ragged_row_lengths_0": ("int64", [1, 1, 1]),
        "steps/deep/ragged_flat_values": ("int64", [1, 2, 3, 4]),
        "steps/deep/ragged_row_lengths_0": ("int64", [1, 2, 0]),
        "steps/deep/ragged_row_lengths_1": ("int64", [1, 0, 3]),
        "steps/four/ragged_flat_values": ("int64", range(6)),
        "steps/four/ragged_row_lengths_0": ("int64", [2, 2, 2]),
        "goals": ("float", range(4)),
    }
    ep = only(tmp_path, record, features)
    assert [row.tolist() for row in ep.observation] == [[[0, 1]], [], [[2, 3], [4, 5]]]
    assert ep.observation[1].shape == (0, 2)
    assert ep.extras["tags"].tolist() == [[b"a"], [b"b"], [b"c"]] and ep.extras["tags"].shape == (3, 1)
    assert [[cell.tolist() for cell in row] for row in ep.extras["deep"]] == [[[1]], [[], [2, 3, 4]], []]
    assert ep.extras["four"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert ep.metadata["goals"].shape == (2, 2)
    source = RldsDirSource(tmp_path / "d")
    assert source.spec.observation == FieldSpec((None, 2), np.float32)
    source.spec.check(ep)


def test_encoded_tensors(tmp_path):
    values = np.arange(6, dtype=">i2").reshape(3, 2)
    little = [row.astype("<i2").tobytes() for row in values]
    brain = np.array([1.0, -2.5, 3e38], np.float32)
    features = rlds(
        {
            "observation": tensor((2,), "int16", "zlib"),
            "action": tensor((2,), "int16", "bytes"),
            "rows": tensor((-1, 2), "int16", "zlib"),
            "any": tensor((-1, -1), "int16", "bytes"),
            "brain": tensor((), "bfloat16", "bytes"),
        }
    )
    record = {
        "steps/observation": ("bytes", [zlib.compress(row) for row in little]),
        "steps/action": ("bytes", little),
        "steps/rows": ("bytes", [zlib.compress(b"".join(little[:i])) for i in range(3)]),
        "steps/any/value": ("bytes", [b"".join(little)] * 3),
        "steps/any/shape": ("int64", [3, 2, 2, 3, 6, 1]),
        "steps/brain": ("bytes", [value.tobytes()[2:] for value in brain]),
    }
    ep = only(tmp_path, record, features)
    assert np.array_equal(ep.observation, values) and ep.observation.dtype == np.int16
    assert np.array_equal(ep.action, values)
    assert [row.shape for row in ep.extras["rows"]] == [(0, 2), (1, 2), (2, 2)]
    assert [cell.tolist() for cell in ep.extras["any"]] == [
        values.reshape(s).tolist() for s in ((3, 2), (2, 3), (6, 1))
    ]
    assert np.allclose(ep.extras["brain"], brain, rtol=0.01) and ep.extras["brain"].dtype == np.float32


@BOTH
@pytest.mark.parametrize("name", RLDS)
def test_datasets_hold_what_the_naive_reader_finds(sets, name):
    path = sets / name / "features.json"
    source = RldsDirSource(path.parent)
    records = [r for file in sorted(path.parent.glob("*.tfrecord*")) for r in read_records(file)]
    for ep, record in zip(source, records, strict=True):
        expected = decode_example(record)
        source.spec.check(ep)
        for field, column in ep.flatten():
            key = "/".join(("steps", *(field[1:] if field[0] == "extras" else field)))
            kind, values = expected.pop(key)
            if kind == "bytes" and column.dtype == object:
                assert column.tolist() == values, key
            elif kind == "bytes" and "image" in key:
                assert len(column) == len(values)  # the pixels are tested in tests/codecs/images
            elif kind == "bytes":
                values = [np.frombuffer(zlib.decompress(value), column.dtype) for value in values]
                assert np.array_equal(column.reshape(len(column), -1), values), key
            else:
                assert np.array_equal(column.ravel(), np.array(values).astype(column.dtype)), key
        assert not [key for key in expected if key.startswith("steps/")]
    assert source.num_episodes == len(records)


# What is wrong with the data


def edit(folder, name, change):
    path = folder / name
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_paths_that_are_no_dataset(tmp_path, folder):
    with pytest.raises(SourceNotFound, match="nope: no such"):
        RldsDirSource(tmp_path / "nope")
    with pytest.raises(SourceFormatError, match="a file, but"):
        RldsDirSource(folder / "features.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceFormatError, match=r"no features\.json"):
        RldsDirSource(tmp_path / "empty")
    (folder / "dataset_info.json").unlink()
    with pytest.raises(SourceNotFound, match=r"dataset_info\.json: no such file"):
        RldsDirSource(folder)


def test_an_unknown_split_lists_the_ones_there_are(folder):
    with pytest.raises(SourceNotFound, match=r"1\.0\.0: no split 'validation'; there are: train, test"):
        RldsDirSource(folder, split="validation")


def test_a_missing_shard_is_named(folder):
    (folder / "toy-train.tfrecord-00002-of-00003").unlink()
    with pytest.raises(SourceNotFound, match=r"toy-train.tfrecord-00002-of-00003"):
        RldsDirSource(folder)
    assert numbers(RldsDirSource(folder, split="train[:2]")) == [0, 1]


def test_an_empty_shard_need_not_be_there(folder):
    (folder / "toy-train.tfrecord-00001-of-00003").unlink()
    assert numbers(RldsDirSource(folder)) == [0, 1, 2, 3, 4]


def test_bridge_lists_a_split_that_is_not_there():
    assert RldsDirSource(MADE / "rlds/bridge_dataset").num_episodes == 25
    with pytest.raises(SourceNotFound, match=r"bridge_dataset-val.tfrecord-00000-of-00001"):
        RldsDirSource(MADE / "rlds/bridge_dataset", split="val")


def test_other_record_formats_are_refused(folder):
    edit(folder, "dataset_info.json", lambda info: info.update(fileFormat="riegeli"))
    with pytest.raises(SourceFormatError, match="riegeli files, which are not read, only tfrecord and array_record"):
        RldsDirSource(folder)


def test_a_truncated_shard_and_a_flipped_byte(folder):
    shard = folder / "toy-train.tfrecord-00002-of-00003"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-5])
    source = RldsDirSource(folder)
    with pytest.raises(SourceFormatError, match=r"00002-of-00003: record 2 at byte .* truncated"):
        list(source)
    flipped = bytearray(whole)
    flipped[100] ^= 1
    shard.write_bytes(flipped)
    with pytest.raises(SourceFormatError, match="00002-of-00003: record 0 at byte 0: the checksum"):
        list(source)
    assert len(list(RldsDirSource(folder, check_crc=False))) == 5


@pytest.mark.parametrize("said", [1, 3])
def test_record_counts_are_checked(folder, said):
    edit(folder, "dataset_info.json", lambda info: info["splits"][0].update(shardLengths=[str(said), "0", "3"]))
    problem = "more records than the 1" if said == 1 else "2 records, but dataset_info.json says 3"
    with pytest.raises(SourceFormatError, match=f"00000-of-00003: {problem}"):
        list(RldsDirSource(folder))


@pytest.mark.parametrize(
    ("field", "feature", "message"),
    [
        ("observation", tensor((3,), "float32"), "observation: 8 values are no whole number of"),
        ("observation", tensor((2,), "int32"), "observation: it holds float values, not int64 values"),
        ("reward", tensor((), "float32", "zlib"), "reward: it holds float values, not bytes"),
        ("speed", tensor((), "float32"), "speed: features.json has it, but the record has no 'steps/speed'"),
        ("speed", sequence(tensor((), "float32")), "no 'steps/speed/ragged_flat_values'"),
    ],
)
def test_features_that_do_not_match_the_records(tmp_path, field, feature, message):
    folder = write_folder(tmp_path / "1.0.0", {"train": [[episode(1, 4)]]}, rlds({**STEPS, field: feature}))
    with pytest.raises(SourceFormatError, match=message) as info:
        list(RldsDirSource(folder))
    assert f"00000-of-00001: record 0 (episode 0): steps/{field}: " in str(info.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps/a/ragged_row_lengths_0": ("int64", [1, 1])}, "3 values for rows of 2 together"),
        ({"steps/a/ragged_row_lengths_0": ("int64", [4, -1])}, "a row of length -1"),
        ({"steps/b": ("bytes", [b"1234", b"123"])}, "3 bytes of raw values"),
        ({"steps/c": ("bytes", [b"no zlib", zlib.compress(b"1234")])}, "bad zlib data"),
        ({"steps/c": ("bytes", [zlib.compress(bytes(100)), zlib.compress(b"1234")])}, "5 bytes of raw values"),
        ({"steps/c": ("bytes", [zlib.compress(bytes(4))[:-2], zlib.compress(b"1234")])}, "no end"),
        ({"steps/d/shape": ("int64", [1, 2, 2])}, "2 tensors, but 3 lengths"),
        ({"steps/d/shape": ("int64", [2, 2, 1, 1])}, "4 values do not make the shape|2 values do not make"),
        ({"seed": ("int64", [1, 2])}, "seed: 2 values where one"),
        ({"seed": ("int64", [])}, "seed: 0 values where one"),
        ({"goal": ("float", [1.0])}, "goal: 1 values do not make the shape"),
    ],
)
def test_values_that_do_not_fit(tmp_path, change, message):
    features = rlds(
        {
            "a": sequence(tensor((), "int8")),
            "b": tensor((2,), "int16", "bytes"),
            "c": tensor((2,), "int16", "zlib"),
            "d": tensor((-1, -1), "int16", "bytes"),
        },
        seed=tensor((), "int64"),
        goal=tensor((2,), "float32"),
    )
    record = {
        "steps/a/ragged_flat_values": ("int64", [1, 2, 3]),
        "steps/a/ragged_row_lengths_0": ("int64", [1, 2]),
        "steps/b": ("bytes", [b"1234", b"1234"]),
        "steps/c": ("bytes", [zlib.compress(b"1234")] * 2),
        "steps/d/value": ("bytes", [b"1234", b"1234"]),
        "steps/d/shape": ("int64", [1, 2, 2, 1]),
        "seed": ("int64", [1]),
        "goal": ("float", [1.0, 2.0]),
    }
    assert only(tmp_path, record, features).num_steps == 2
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(SourceFormatError, match=message):
        only(tmp_path, {**record, **change}, features)


def test_a_varint_that_never_ends(tmp_path):
    from rlds2buf.codecs.tfrecord.frames import frame
    from tests.formats.reverb import messages

    folder = write_folder(tmp_path / "1.0.0", {"train": [[episode(0, 3)]]})
    entry = messages.delimited(1, b"steps/action") + messages.delimited(
        2, messages.delimited(3, messages.delimited(1, b"\xff" * 30))
    )
    rest = messages.example({k: v for k, v in episode(0, 3).items() if k != "steps/action"})
    (shard,) = folder.glob("*.tfrecord*")
    shard.write_bytes(frame(rest + messages.delimited(1, messages.delimited(1, entry))))
    with pytest.raises(
        SourceFormatError, match=r"record 0 \(episode 0\): steps/action: an integer \(varint\) has no end"
    ):
        list(RldsDirSource(folder))


def test_episodes_that_cannot_be_built_do_not_hide_the_others(tmp_path):
    ragged = {**episode(1, 3), "steps/reward": ("float", [0.0, 0.0])}
    folder = write_folder(tmp_path / "1.0.0", {"train": [[episode(0, 2), episode(5, 0), ragged, episode(3, 2)]]})
    source = RldsDirSource(folder)
    first, empty, uneven, last = source.read()
    assert (first.num_steps, last.num_steps, last.index) == (2, 2, 3)
    assert isinstance(empty, EmptyEpisode) and empty.episode == 1 and "00000-of-00001" in empty.source
    assert isinstance(uneven, SpecMismatch) and (uneven.episode, uneven.path) == (2, "reward")
    with pytest.raises(EmptyEpisode):
        list(source)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("dataset_info.json", "{", "malformed: JSONDecodeError"),
        ("dataset_info.json", "[]", "not a JSON object"),
        ("dataset_info.json", '{"splits": []}', "malformed: KeyError: 'name'"),
        ("dataset_info.json", '{"name": "toy", "splits": [{"name": "a", "shardLengths": ["x"]}]}', "ValueError"),
        ("dataset_info.json", '{"name": "toy", "splits": [{"name": "a", "shardLengths": ["-1"]}]}', "negative"),
        ("dataset_info.json", '{"name": "toy", "fileFormat": "riegeli"}', "riegeli files"),
        ("features.json", "nonsense", "not JSON"),
        ("features.json", json.dumps(features_dict({"image": TEXT})), r"not an RLDS dataset: .*\(found: image\)"),
        ("features.json", json.dumps(rlds({})), "not an RLDS dataset"),
    ],
)
def test_metadata_that_is_malformed(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(SourceFormatError, match=message) as info:
        RldsDirSource(folder)
    assert name in str(info.value)


def test_a_dataset_without_splits(folder):
    (folder / "dataset_info.json").write_text('{"name": "toy"}')
    with pytest.raises(SourceNotFound, match="no split named; there are: none"):
        RldsDirSource(folder)


def test_the_fingerprint_follows_the_data(folder):
    before = RldsDirSource(folder).fingerprint()
    assert before == RldsDirSource(folder).fingerprint()
    assert before != RldsDirSource(folder, split="train[:4]").fingerprint()
    shard = folder / "toy-train.tfrecord-00000-of-00003"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x00")
    assert before != RldsDirSource(folder).fingerprint()


def test_features_are_read_that_are_spelled_the_older_way(tmp_path):
    def older(value):
        if "sequence" in value:
            inner = value["sequence"]
            content = {"feature": older(inner["feature"]), "length": None}
        elif "featuresDict" in value:
            content = {key: older(child) for key, child in value["featuresDict"]["features"].items()}
        else:
            dims = value["tensor"]["shape"].get("dimensions", [])
            content = {"shape": [int(n) for n in dims], "dtype": value["tensor"]["dtype"]}
        return {"type": value["pythonClassName"], "content": content}

    new = only(tmp_path / "new", episode(0, 4), rlds(STEPS))
    old = only(tmp_path / "old", episode(0, 4), older(rlds(STEPS)))
    for (path, one), (_, other) in zip(new.flatten(), old.flatten(), strict=True):
        assert np.array_equal(one, other) and one.dtype == other.dtype, path


@pytest.mark.parametrize("template", ["/etc/{DATASET}", "../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", ".."])
@pytest.mark.parametrize("lengths", [["1"], []])
def test_shards_outside_of_the_folder_are_refused(template, lengths, tmp_path):
    short = rlds2buf.Episode(observation=np.zeros(3), is_terminal=np.arange(3) == 2)
    rlds2buf.convert([short], tmp_path / "set", to="rlds")
    info = tmp_path / "set" / "dataset_info.json"
    content = json.loads(info.read_text())
    content["splits"][0].update(filepathTemplate=template, shardLengths=lengths)
    info.write_text(json.dumps(content))
    with pytest.raises(SourceFormatError, match="names no files in the dataset's folder"):
        rlds2buf.open_source(tmp_path / "set")


def test_a_shard_of_a_name_that_no_system_takes(tmp_path):
    short = rlds2buf.Episode(observation=np.zeros(3), is_terminal=np.arange(3) == 2)
    rlds2buf.convert([short], tmp_path / "set", to="rlds")
    info = tmp_path / "set" / "dataset_info.json"
    content = json.loads(info.read_text())
    content["splits"][0]["filepathTemplate"] = "a" * 5000
    info.write_text(json.dumps(content))
    with pytest.raises(rlds2buf.SourceError, match="too long"):
        rlds2buf.open_source(tmp_path / "set")
