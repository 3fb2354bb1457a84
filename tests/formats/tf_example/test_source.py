"""Raw tf.Example records: with whole episodes in a record, and with a step in each."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rlds2buf import Episode, EpisodeError, SourceFormatError, SourceNotFound, SpecMismatch, open_source
from rlds2buf.errors import Rlds2bufError
from rlds2buf.formats.rlds.source import RldsDirSource
from rlds2buf.formats.tf_example.feature_map import PRESETS, read_spec
from rlds2buf.formats.tf_example.source import TfExampleSource
from tests.contracts.source import MakeSource, SourceContract
from tests.data import DATA
from tests.formats.reverb.messages import example
from tests.formats.tf_example.records import STEP, step_record, step_records, write
from tests.made import BOTH

EPISODE = {
    "observation/position": {"key": "pos", "shape": [2]},
    "observation/text": "words",
    "action": "act",
    "reward": "rew",
    "is_terminal": "done",
    "metadata/seed": "seed",
}


def episode_record(number: int, steps: int) -> bytes:
    done = [0] * (steps - 1) + [number % 2]
    return example(
        {
            "pos": ("float", [x for t in range(steps) for x in (number, t)]),
            "words": ("bytes", [f"{number}.{t}".encode() for t in range(steps)]),
            "act": ("int64", [-t for t in range(steps)]),
            "rew": ("float", [0.5] * steps),
            "done": ("int64", done),
            "seed": ("int64", [number + 40]),
        }
    )


class TestEpisodeContract(SourceContract):
    @pytest.fixture(params=[False, True], ids=["plain", "gzip"])
    def folder(self, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
        for shard in range(3):
            records = [episode_record(i, 2 + i % 3) for i in range(3 * shard, 3 * shard + 3)]
            write(tmp_path / f"raw/train-{shard:05d}-of-00003", records, request.param)
        return tmp_path / "raw"

    @pytest.fixture
    def make_source(self, folder: Path) -> MakeSource:  # type: ignore[override]
        return lambda: TfExampleSource(folder, features=EPISODE)

    @pytest.fixture
    def change(self, folder: Path) -> Callable[[], None]:
        return lambda: write(folder / "train-00001-of-00003", [episode_record(9, 3)]) and None


class TestStepContract(SourceContract):
    @pytest.fixture(params=["terminal", "id", "next"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        for shard in range(2):
            records = [
                step_record(i, t, 4, after=("float", [i, t + 1.0])) for i in range(3) for t in range(2 + i % 2, 4)
            ]
            write(tmp_path / f"raw/{shard}.tfrecord", records)
        return tmp_path / "raw"

    @pytest.fixture
    def make_source(self, path: Path, kind: str) -> MakeSource:  # type: ignore[override]
        features: dict[str, Any] = {**STEP, "next_observation": {"key": "after"}} if kind == "next" else dict(STEP)
        more: dict[str, Any] = {"episode_id": "id"} if kind == "id" else {}
        return lambda: open_source(path, format="tf-example", features=features, record="step", **more)

    @pytest.fixture
    def change(self, path: Path) -> Callable[[], None]:
        return lambda: write(path / "1.tfrecord", step_records([2])) and None


class TestEpisodeRecords:
    def test_values(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.tfrecord", [episode_record(i, i + 2) for i in range(3)])
        source = open_source(path, format="tf-example", features=EPISODE)
        assert source.num_episodes == 3 and source.num_steps is None
        assert str(source.spec.observation["position"]) == "float32[2]" and source.spec.discount is None
        for number, episode in enumerate(source):
            assert episode.num_steps == number + 2 and episode.discount is None
            assert episode.observation["position"].tolist() == [[number, t] for t in range(number + 2)]
            assert episode.observation["text"].tolist() == [f"{number}.{t}".encode() for t in range(number + 2)]
            assert episode.action.tolist() == [-t for t in range(number + 2)]
            assert episode.end == ("terminated" if number % 2 else "truncated")
            assert episode.metadata == {"seed": number + 40} and type(episode.metadata["seed"]) is int

    def test_shapes_that_are_not_given_are_found(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", [episode_record(0, 3), episode_record(1, 5)])
        source = TfExampleSource(path, features={"observation": "pos", "action": "act", "reward": "rew"})
        assert str(source.spec.observation) == "float32[2]" and str(source.spec.action) == "int64[]"
        assert [episode.observation.shape for episode in source] == [(3, 2), (5, 2)]

    def test_dtypes(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", [episode_record(0, 3)])
        features = {
            "observation": {"key": "pos", "dtype": "float64", "shape": [2, 1]},
            "action": {"key": "act", "dtype": "int8"},
            "reward": "rew",
            "flag": {"key": "done", "dtype": "bool"},
        }
        (episode,) = TfExampleSource(path, features=features)
        assert episode.observation.dtype == np.float64 and episode.observation.shape == (3, 2, 1)
        assert episode.action.dtype == np.int8 and episode.extras["flag"].dtype == np.bool_

    @pytest.mark.parametrize("whole", [False, True])
    def test_raw_bytes(self, tmp_path: Path, whole: bool) -> None:
        values = np.arange(24, dtype=">i2").reshape(4, 3, 2).astype("<i2")
        strings = [values.tobytes()] if whole else [row.tobytes() for row in values]
        path = write(tmp_path / "a", [example({"x": ("bytes", strings), "r": ("float", [0.0] * 4)})])
        features = {"observation": {"key": "x", "dtype": "int16", "shape": [3, 2], "encoding": "bytes"}, "reward": "r"}
        (episode,) = TfExampleSource(path, features=features)
        assert episode.observation.dtype == np.int16
        np.testing.assert_array_equal(episode.observation, values)

    def test_pictures(self, tmp_path: Path) -> None:
        frames = np.random.default_rng(0).integers(0, 255, (3, 6, 5, 1), np.uint8)
        files = []
        for pixels in frames:
            stream = io.BytesIO()
            Image.fromarray(pixels[:, :, 0]).save(stream, format="PNG")
            files.append(stream.getvalue())
        path = write(tmp_path / "a", [example({"x": ("bytes", files), "r": ("float", [0.0] * 3)})])
        features = {"observation": {"key": "x", "shape": [6, 5, 1], "encoding": "image"}, "reward": "r"}
        source = TfExampleSource(path, features=features)
        (episode,) = source
        np.testing.assert_array_equal(episode.observation, frames)
        encoded = source.encoded()
        assert encoded.encoded() is encoded and encoded.spec.observation.image == source.spec.observation
        (other,) = encoded
        assert other.observation.tolist() == files and encoded.fingerprint() != source.fingerprint()
        source.spec.check(episode)
        encoded.spec.check(other)
        small = TfExampleSource(path, features=features, resize=3)
        (episode,) = small
        small.spec.check(episode)
        assert episode.observation.shape == (3, 3, 3, 1) and small.encoded() is small
        assert small.fingerprint() != source.fingerprint()
        with pytest.raises(ValueError, match="can't be resized"):
            TfExampleSource(path, features=features, resize=3, images="encoded")
        wrong = {**features, "observation": {**features["observation"], "shape": [6, 6, 1]}}  # type: ignore[dict-item]
        with pytest.raises(EpisodeError, match=r"episode 0, step 0, observation: a picture of \[6, 5, 1\]"):
            list(TfExampleSource(path, features=wrong))

    @pytest.mark.parametrize("kind", ["episode", "step"])
    def test_a_damaged_picture_spoils_its_episode_only(self, tmp_path: Path, kind: str) -> None:
        stream = io.BytesIO()
        Image.fromarray(np.zeros((6, 5), np.uint8)).save(stream, format="PNG")
        good = stream.getvalue()
        files = [[good] * 3, [good, good, good[:40]], [good] * 3]
        if kind == "episode":
            records = [example({"x": ("bytes", row), "last": ("int64", [0, 0, 1])}) for row in files]
        else:
            records = [
                example({"x": ("bytes", [file]), "last": ("int64", [int(t == 2)])})
                for row in files
                for t, file in enumerate(row)
            ]
        features = {"observation": {"key": "x", "shape": [6, 5, 1], "encoding": "image"}, "is_last": "last"}
        source = TfExampleSource(write(tmp_path / "a", records), features=features, record=kind)
        one, error, other = source.read()
        assert isinstance(one, Episode) and isinstance(other, Episode) and (one.index, other.index) == (0, 2)
        assert isinstance(error, EpisodeError)
        assert (error.episode, error.step, error.path, error.rule) == (1, 2, "observation", "unreadable")

    def test_ragged_columns_leave_the_others(self, tmp_path: Path) -> None:
        odd = example({"x": ("float", [1, 2, 3]), "r": ("float", [0, 0])})
        good = example({"x": ("float", [1, 2]), "r": ("float", [0, 0])})
        source = TfExampleSource(write(tmp_path / "a", [good, odd, good]), features={"observation": "x", "reward": "r"})
        one, error, other = source.read()
        assert isinstance(one, Episode) and isinstance(other, Episode)
        assert isinstance(error, SpecMismatch) and (error.episode, error.rule) == (1, "ragged-columns")

    @BOTH
    def test_a_record_of_tfds(self, sets: Any) -> None:
        """An RLDS shard, its features named by hand, gives what its features.json gives."""
        (shard,) = (sets / "rlds/rlu_control_suite/cartpole_swingup/1.0.0").glob("*.tfrecord*")
        rlds = RldsDirSource(shard.parent)
        features = {
            **{
                name: f"steps/{name}" for name in ("action", "reward", "discount", "is_first", "is_last", "is_terminal")
            },
            "metadata/episode_id": "episode_id",
            "metadata/timestamp": "timestamp",
        }
        source = TfExampleSource(shard, features=features)
        assert source.num_episodes == rlds.num_episodes
        for one, other in zip(source, rlds, strict=True):
            for name in ("reward", "discount", "is_first", "is_last", "is_terminal"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
            np.testing.assert_array_equal(one.action, other.action.reshape(one.action.shape))
            assert one.metadata == other.metadata


class TestStepRecords:
    @pytest.mark.parametrize("more", [{}, {"episode_id": "id"}])
    def test_values(self, tmp_path: Path, more: dict[str, Any]) -> None:
        path = write(tmp_path / "a.tfrecord", step_records([3, 1, 4]))
        source = TfExampleSource(path, features=STEP, record="step", **more)
        assert source.num_episodes is None
        episodes = list(source)
        assert [episode.num_steps for episode in episodes] == [3, 1, 4]
        for number, episode in enumerate(episodes):
            assert episode.observation.tolist() == [[number, t] for t in range(episode.num_steps)]
            assert episode.end == "terminated" and "open_tail" not in episode.metadata

    def test_many_records(self, tmp_path: Path) -> None:
        """More than are looked at at once."""
        lengths = [700, 1, 2000, 324, 5]
        path = write(tmp_path / "a.tfrecord", step_records(lengths))
        assert [e.num_steps for e in TfExampleSource(path, features=STEP, record="step")] == lengths

    @given(data=st.data())
    @settings(max_examples=40, deadline=None)
    def test_numbers_in_any_encoding(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        """Packed and unpacked, of every size: read together, or one by one where they must be."""
        count = data.draw(st.integers(1, 5))
        size = data.draw(st.sampled_from([1, 2, 40]))
        rows = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-(2**62), 2**62, (count, size))
        rows >>= data.draw(st.integers(0, 62))
        records = [
            example(
                {
                    "i": ("int64", row.tolist()),
                    "f": ("float", (row / 2**62).astype(np.float32).tolist()),
                    "last": ("int64", [int(t == count - 1)]),
                },
                packed=data.draw(st.booleans()),
            )
            for t, row in enumerate(rows)
        ]
        features = {
            "observation": {"key": "i", "shape": [size]},
            "action": {"key": "f", "shape": [size]},
            "is_last": "last",
        }
        path = write(tmp_path_factory.mktemp("raw") / "a", records)
        (episode,) = TfExampleSource(path, features=features, record="step")
        np.testing.assert_array_equal(episode.observation, rows)
        np.testing.assert_array_equal(episode.action, (rows / 2**62).astype(np.float32))

    @pytest.mark.parametrize("wrong", [[], [1.0], [1.0, 2.0, 3.0, 4.0]])
    @pytest.mark.parametrize("kind", ["float", "int64"])
    def test_a_record_with_more_or_less_values(self, tmp_path: Path, kind: str, wrong: list[float]) -> None:
        values = [[1.0, 2.0], wrong, [1.0, 2.0, 3.0, 4.0][: 4 - len(wrong)]]
        records = [
            example({"x": (kind, [v if kind == "float" else int(v) for v in row]), "last": ("int64", [int(t == 2)])})
            for t, row in enumerate(values)
        ]
        features = {"observation": {"key": "x", "shape": [2]}, "is_last": "last"}
        with pytest.raises(SourceFormatError, match=r"observation: (a record of one step holds|1 values are no whole)"):
            list(TfExampleSource(write(tmp_path / "a", records), features=features, record="step"))

    def test_an_open_end(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.tfrecord", step_records([3, 4])[:-1])
        first, last = TfExampleSource(path, features=STEP, record="step")
        assert last.num_steps == 3 and last.end == "truncated" and last.metadata == {"open_tail": True}
        assert first.metadata == {}

    def test_ids_cut_where_no_flag_does(self, tmp_path: Path) -> None:
        records = [step_record(i, t, 99) for i in (5, 6, 5) for t in range(2)]
        features = {key: value for key, value in STEP.items() if key != "is_terminal"}
        source = TfExampleSource(write(tmp_path / "a", records), features=features, record="step", episode_id="id")
        assert [episode.num_steps for episode in source] == [2, 2, 2]
        assert [episode.derived >= {"is_terminal"} for episode in source] == [True] * 3

    def test_transitions_get_their_last_observation(self, tmp_path: Path) -> None:
        records = [
            step_record(i, t, 3, after=("float", [i, t + 1.0]), disc=("float", [1.0 - (t == 2)]))
            for i in range(2)
            for t in range(3)
        ]
        features = {**STEP, "next_observation": {"key": "after", "shape": [2]}, "discount": "disc"}
        episodes = list(TfExampleSource(write(tmp_path / "a", records), features=features, record="step"))
        assert len(episodes) == 2
        for number, episode in enumerate(episodes):
            assert episode.observation.tolist() == [[number, t] for t in range(4)]
            assert episode.action.tolist() == [0, -1, -2, 0] and episode.reward.tolist() == [0, 0.5, 1.0, 0]
            assert episode.is_terminal.tolist() == [False] * 3 + [True]
            assert episode.is_first.sum() == episode.is_last.sum() == 1 and episode.end == "terminated"
            assert episode.discount.tolist() == [1, 1, 0, 0]

    @given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), ids=st.booleans(), tail=st.booleans())
    @settings(max_examples=25, deadline=None)
    def test_any_lengths(
        self, tmp_path_factory: pytest.TempPathFactory, lengths: list[int], ids: bool, tail: bool
    ) -> None:
        records = step_records(lengths)
        if tail and lengths[-1] > 1:
            del records[-1]
            lengths = [*lengths[:-1], lengths[-1] - 1]
        path = write(tmp_path_factory.mktemp("raw") / "a", records)
        source = TfExampleSource(path, features=STEP, record="step", episode_id="id" if ids else None)
        found = list(source)
        assert [episode.num_steps for episode in found] == lengths
        assert [int(e.observation[0, 0]) for e in found] == list(range(len(lengths)))


class TestPresets:
    def test_names(self) -> None:
        assert set(PRESETS) == {"rlu-atari", "rlu-control-suite", "rlu-locomotion"}
        for name in PRESETS:
            assert read_spec(name).fields

    def test_control_suite(self, tmp_path: Path) -> None:
        """dm_env's alignment: a row's reward and discount came with its observation."""
        record = example(
            {
                "observation/position": ("float", range(12)),
                "observation/velocity": ("float", range(4)),
                "action": ("float", [0.5, 0.25, 0.125, 9]),
                "reward": ("float", [0, 1, 2, 3]),
                "discount": ("float", [1, 1, 1, 0]),
                "step_type": ("float", [0, 1, 1, 2]),
                "episode_id": ("int64", [7]),
                "timestamp": ("int64", [70]),
            }
        )
        path = write(tmp_path / "train-00000-of-00100", [record], compress=True)
        (episode,) = open_source(path, format="tf-example", features="rlu-control-suite")
        assert list(episode.observation) == ["position", "velocity"]
        assert episode.observation["position"].shape == (4, 3) and episode.observation["velocity"].shape == (4,)
        assert episode.reward.tolist() == [1, 2, 3, 0] and episode.discount.tolist() == [1, 1, 0, 0]
        assert episode.end == "terminated" and episode.metadata == {"episode_id": 7, "timestamp": 70}


class TestRefusals:
    def test_without_features_it_says_what_there_is(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.tfrecord", [episode_record(0, 2)])
        with pytest.raises(
            ValueError, match=r"features= is needed.*holds act \(int64\), done \(int64\), pos \(float\)"
        ):
            open_source(path, format="tf-example")

    @pytest.mark.parametrize(
        ("features", "message"),
        [
            ({"observation": {"key": "pos", "size": 3}}, "observation: unknown entry 'size'"),
            ({"observation": {"key": "pos", "encoding": "zip"}}, "encoding must be one of none, bytes, image"),
            ({"observation": {"key": "pos", "encoding": "bytes"}}, "encoded as bytes need a dtype"),
            ({"observation": {"key": "pos", "encoding": "image"}}, "an image needs its shape"),
            ({"observation": {"key": "pos", "dtype": "float99"}}, "unknown dtype 'float99'"),
            ({"observation": {"key": "pos", "dtype": "complex64"}}, "values of complex64"),
            ({"observation": {"key": "pos", "shape": 3}}, "shape should be a list"),
            ({"observation": {"key": "pos", "shape": [-3]}}, r"the shape \[-3\] is not read"),
            ({"observation": "pos", "observation/x": "pos"}, "observation/x is below another field"),
            ({"reward/x": "rew"}, "'reward/x' is no path"),
            ({"a//b": "rew"}, "'a//b' is no path"),
            ({"observation/*": "pos", "reward": "rew"}, "a \\* at the end of the path"),
            ({"features": {"reward": "rew"}, "shift": ["action"]}, "shift: 'action' is none of"),
            ({"metadata/x": "seed"}, "there is no field of a step"),
            ({"observation": "pos"}, "nothing tells how many steps"),
            ({"next_observation": "pos", "reward": "rew"}, "next_observation is for records of one step"),
        ],
    )
    def test_wrong_features(self, tmp_path: Path, features: dict[str, Any], message: str) -> None:
        path = write(tmp_path / "a", [episode_record(0, 2)])
        with pytest.raises(ValueError, match=message):
            TfExampleSource(path, features=features)

    @pytest.mark.parametrize("features", [{}, 3, [1], {"observation": 3}])
    def test_features_of_another_type(self, tmp_path: Path, features: Any) -> None:
        with pytest.raises(TypeError, match="features"):
            TfExampleSource(write(tmp_path / "a", [episode_record(0, 2)]), features=features)

    @pytest.mark.parametrize(
        ("features", "message"),
        [
            ({"observation": "nope", "reward": "rew"}, "observation: the record has no 'nope'; it holds act"),
            ({"observation": {"key": "pos", "shape": [3]}, "reward": "rew"}, r"4 values are no whole number of rows"),
            ({"observation": {"key": "pos", "dtype": "string"}, "reward": "rew"}, "holds float values, not bytes"),
            ({"observation": {"key": "words", "dtype": "int8"}, "reward": "rew"}, "holds bytes values, not int64"),
        ],
    )
    def test_features_that_the_record_does_not_have(
        self, tmp_path: Path, features: dict[str, Any], message: str
    ) -> None:
        path = write(tmp_path / "a", [episode_record(0, 2)])
        with pytest.raises(SourceFormatError, match=message):
            list(TfExampleSource(path, features=features))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"record": "shard"}, "record must be one of episode, step"),
            ({"images": "raw"}, "images must be one of decoded, encoded"),
            ({"episode_id": "id"}, "episode_id is for records of one step"),
        ],
    )
    def test_wrong_options(self, tmp_path: Path, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            TfExampleSource(write(tmp_path / "a", [episode_record(0, 2)]), features=EPISODE, **options)

    def test_steps_without_an_end(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="something that tells where an episode ends"):
            TfExampleSource(write(tmp_path / "a", step_records([2])), features={"observation": "pos"}, record="step")

    def test_next_observation_of_another_structure(self, tmp_path: Path) -> None:
        features = {**STEP, "next_observation/x": "pos"}
        with pytest.raises(ValueError, match="next_observation and observation differ"):
            TfExampleSource(write(tmp_path / "a", step_records([2])), features=features, record="step")

    def test_a_file_of_features(self, tmp_path: Path) -> None:
        path = write(tmp_path / "raw/a", [episode_record(0, 2)])
        told = tmp_path / "features.json"
        told.write_text(json.dumps(EPISODE))
        assert TfExampleSource(path, features=told).spec == TfExampleSource(path, features=EPISODE).spec
        told.write_text("{")
        with pytest.raises(SourceFormatError, match="not readable as JSON"):
            TfExampleSource(path, features=told)
        with pytest.raises(SourceNotFound, match=r"no such file of features, nor one of rlu-"):
            TfExampleSource(path, features=str(tmp_path / "none"))

    def test_files(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound, match="no files there"):
            TfExampleSource(tmp_path / "*.tfrecord", features=EPISODE)
        (tmp_path / "notes").write_text("these are some notes, nothing else")
        with pytest.raises(SourceFormatError, match="no TFRecord file, saw a text file"):
            TfExampleSource(tmp_path, features=EPISODE)
        write(tmp_path / "empty", [])
        with pytest.raises(SourceFormatError, match="no records in 1 files"):
            TfExampleSource(tmp_path / "empty", features=EPISODE)
        write(tmp_path / "a-1.tfrecord", [episode_record(1, 2)])
        write(tmp_path / "a-0.tfrecord", [episode_record(0, 2)])
        found = list(TfExampleSource(tmp_path / "a-*.tfrecord", features=EPISODE))
        assert [episode.metadata["seed"] for episode in found] == [40, 41]

    @pytest.mark.parametrize("name", ["some.tfrecord", "x.tfrecord-00000-of-00001", "data"])
    def test_looking_tells_of_this_format(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / name, [episode_record(0, 2)])
        with pytest.raises(SourceFormatError, match='format="tf-example" with features='):
            open_source(path)

    def test_transition_records_of_tf_agents_stay_refused(self) -> None:
        with pytest.raises(SourceFormatError, match="TF-Agents' own transition records"):
            open_source(DATA / "negative/antmaze-medium-play-v0_0.tfrecord")


@pytest.mark.parametrize(("compress", "kind"), list(itertools.product([False, True], ["episode", "step"])))
def test_damage(tmp_path: Path, compress: bool, kind: str) -> None:
    """Cut short, or with bytes changed: a typed error, or the data as they were."""
    records = [episode_record(i, 3) for i in range(4)] if kind == "episode" else step_records([3, 4])
    path = write(tmp_path / "a", records, compress)
    features = EPISODE if kind == "episode" else STEP
    wanted = [e.action.tolist() for e in TfExampleSource(path, features=features, record=kind)]
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(120):
        data = bytearray(whole)
        if trial % 2:
            del data[int(rng.integers(len(data))) :]
        else:
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            found = [e.action.tolist() for e in TfExampleSource(path, features=features, record=kind)]
        except Rlds2bufError:
            refused += 1
        else:
            # A file that was cut between two records says nothing of it.
            flat = [t for actions in wanted for t in actions]
            assert [t for actions in found for t in actions] == flat[: sum(map(len, found))]
    assert refused > 90


def test_hostile_records(tmp_path: Path) -> None:
    """Whole frames around any bytes."""
    rng = np.random.default_rng(1)
    good = episode_record(0, 3)
    for trial in range(200):
        data = bytearray(good)
        for _ in range(1 + trial % 4):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        path = write(tmp_path / "a", [good, bytes(data)])
        try:
            found = list(TfExampleSource(path, features=EPISODE).read())
        except SourceFormatError:
            continue
        assert len(found) == 2
