"""Minari datasets as they are written: what Minari itself reads from them is what was written."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari import namespace

from rlds2buf import Episode, SinkError, SnapshotError, SnapshotExists, SpecMismatch, convert, open_source, spec_of
from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.formats.minari.sink import MinariDirSink
from rlds2buf.formats.minari.spaces import TextRange, space_json, space_specs
from rlds2buf.io.sink import Sink
from rlds2buf.pipeline.opening import open_sink
from tests.contracts.sink import PROVENANCE, SinkContract
from tests.differences import assert_only_lost

pytestmark = pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")  # gymnasium, of single numbers
ADDED = {"metadata/id", "metadata/total_steps"}


class TestContract(SinkContract):
    def make(self, folder: Path) -> Sink:
        return MinariDirSink(folder / "set-v0")

    def held(self, sink: Any, folder: Path) -> list[int] | None:
        if not (folder / "set-v0").exists():
            return None
        return [int(n) for ep in open_source(folder / "set-v0") for n in np.asarray(ep.observation["count"])[:-1]]


def make(rows: int, start: int = 0, end: str = "terminated", **changes: Any) -> Episode:
    """An episode whose values a Minari dataset can hold, all of them."""
    number = np.arange(start, start + rows)
    padded = np.where(np.arange(rows) < rows - 1, number + 1, 0)
    discount = np.ones(rows, np.float32)
    if end == "terminated" and rows > 1:
        discount[-2:] = 0
    last = np.arange(rows) == rows - 1
    episode = Episode(
        observation={"state": np.stack([number, -number], 1).astype(np.float32), "pair": (number, number * 0.5)},
        action=padded,
        reward=padded * 0.25,
        discount=discount,
        is_first=np.arange(rows) == 0,
        is_last=last if end != "open" else np.zeros(rows, bool),
        is_terminal=last if end == "terminated" else np.zeros(rows, bool),
        extras={"infos": {"speed": number * 2.0, "deep": {"count": number.astype(np.int8)}}},
        metadata={"seed": 7 + start, "options": {"goal": {"x": 1.5}, "name": "left"}, "who": b"me"},
    )
    return episode.replace(**changes)


def text_column(*texts: bytes) -> np.ndarray:
    column = np.empty(len(texts), object)
    column[:] = texts
    return column


def write(path: Path, episodes: list[Episode], spec: StepSpec | None = None, **options: Any) -> Mapping[str, str]:
    sink = MinariDirSink(path, **options)
    sink.open(spec or spec_of(episodes[0]), PROVENANCE)
    for episode in episodes:
        assert sink.write(episode) == episode.num_transitions
    sink.commit()
    return sink.lost()


def with_spec(episode: Episode, **changes: Any) -> StepSpec:
    spec = spec_of(episode)
    names = ("observation", "action", "reward", "discount", "extras")
    return StepSpec(**{**{name: getattr(spec, name) for name in names}, **changes})


def assert_same_nest(ours: Any, theirs: Any, rows: int) -> None:
    """The first rows of our columns are Minari's."""
    if isinstance(ours, dict):
        assert set(ours) == set(theirs)
        for key, child in ours.items():
            assert_same_nest(child, theirs[key], rows)
    elif isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same_nest(one, other, rows)
    elif ours.dtype == object:
        assert [text.decode() for text in ours[:rows]] == list(theirs)
    else:
        assert theirs.dtype == ours.dtype and len(theirs) == rows
        np.testing.assert_array_equal(ours[:rows], theirs)


def assert_minari_reads(folder: Path, episodes: list[Episode]) -> minari.MinariDataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's advice on spaces
        dataset = minari.MinariDataset(folder / "data")
        found = list(dataset.iterate_episodes())
    assert dataset.total_episodes == len(found) == len(episodes)
    assert dataset.total_steps == sum(ep.num_transitions for ep in episodes)
    for index, (ours, theirs) in enumerate(zip(episodes, found, strict=True)):
        steps = ours.num_transitions
        assert theirs.id == index
        assert_same_nest(ours.observation, theirs.observations, steps + 1)
        assert_same_nest(ours.action, theirs.actions, steps)
        assert_same_nest(ours.reward, theirs.rewards, steps)
        assert_same_nest(ours.is_terminal[1:], theirs.terminations, steps)
        assert_same_nest(ours.is_last[1:] & ~ours.is_terminal[1:], theirs.truncations, steps)
        if "infos" in ours.extras and "text" not in ours.extras["infos"]:
            assert_same_nest(ours.extras["infos"], theirs.infos, steps + 1)
        for t in range(steps + 1):
            here = nest.map_structure(lambda c, t=t: c[t].decode() if c.dtype == object else c[t], ours.observation)
            assert dataset.observation_space.contains(here)
    return dataset


def test_minari_reads_what_was_written(tmp_path: Path) -> None:
    episodes = [make(rows, 100 * i, "terminated" if i % 2 else "truncated") for i, rows in enumerate([4, 2, 9] * 4)]
    assert write(tmp_path / "set", episodes) == {}
    dataset = assert_minari_reads(tmp_path / "set", episodes)
    told = list(dataset.storage.get_episode_metadata(range(12)))
    assert told[3]["seed"] == 307 and told[3]["options"] == {"goal": {"x": 1.5}, "name": "left"}
    assert [facts["id"] for facts in told] == list(range(12))
    assert_only_lost(episodes, open_source(tmp_path / "set"), {}, added=ADDED)


def test_load_dataset_finds_it_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write(tmp_path / "hopper" / "me dium-v3", [make(4)])
    write(tmp_path / "hopper" / "expert-v3", [make(4)], author="me", author_email="me@example.com", description="d")
    assert minari.load_dataset("hopper/expert-v3").id == "hopper/expert-v3"
    assert minari.MinariDataset(tmp_path / "hopper" / "me dium-v3" / "data").id == "hopper/me_dium-v3"
    (tmp_path / "hopper" / "me dium-v3").rename(tmp_path / "hopper" / "me_dium-v3")
    found = minari.list_local_datasets()
    assert set(found) == {"hopper/expert-v3", "hopper/me_dium-v3"}
    assert found["hopper/expert-v3"]["author"] == ["me"] and found["hopper/expert-v3"]["dataset_size"] >= 0
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    write(tmp_path / "other", [make(4)])
    assert minari.MinariDataset(tmp_path / "other" / "data").id == "other-v0"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_environment_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "set-v0", [make(4)], env_spec=gymnasium.spec("CartPole-v1").to_json())
    spec = minari.MinariDataset(tmp_path / "set-v0" / "data").env_spec
    assert spec is not None and spec.id == "CartPole-v1"
    for wrong in ("CartPole-v1", "[]", "{}"):
        with pytest.raises(ValueError, match="env_spec"):
            MinariDirSink("x-v0", env_spec=wrong)


@pytest.mark.parametrize("name", ["a b-v0", "a-v", "/a-v0", "a//b-v0", "a", ""])
def test_ids_that_minari_would_not_take(name: str) -> None:
    with pytest.raises(ValueError, match="dataset_id must be like"):
        MinariDirSink("x", dataset_id=name)


def test_pictures_stay_as_they_are(tmp_path: Path) -> None:
    """Minari would store them as JPEG, which changes pixels."""
    rng = np.random.default_rng(0)
    color = rng.integers(0, 256, (3, 40, 36, 3), np.uint8)
    grey = rng.integers(0, 256, (3, 64, 32), np.uint8)
    episode = make(3, observation={"color": color, "grey": grey, "small": color[:, :8, :8]})
    assert write(tmp_path / "set", [episode]) == {}
    if "0.5.4" in minari.supported_dataset_versions:
        assert_minari_reads(tmp_path / "set", [episode])
    else:  # older ones take every picture for a JPEG, so they are told that it isn't for them
        with pytest.raises(ValueError, match="does not support the dataset generated by Minari"):
            minari.MinariDataset(tmp_path / "set" / "data")
    assert_only_lost([episode], open_source(tmp_path / "set"), {}, added=ADDED)


@pytest.mark.parametrize("dtype", "?bBhHiIlLefd")
def test_every_type_of_number(tmp_path: Path, dtype: str) -> None:
    kind = np.dtype(dtype)
    ends = {"b": [0, 1]}.get(kind.kind) or (
        [-np.inf, 1.5] if kind.kind == "f" else [np.iinfo(kind).min, np.iinfo(kind).max]
    )
    column = np.array([[ends[0], 1], [ends[1], 0], [1, 1]], kind)
    padded = column.copy()
    padded[-1] = 0
    episode = make(3, observation=column, action=padded, reward=padded[:, 0], extras={"infos": {"x": column}})
    assert write(tmp_path / "set", [episode]) == {}
    assert_minari_reads(tmp_path / "set", [episode])
    assert_only_lost([episode], open_source(tmp_path / "set"), {}, added=ADDED)


def test_texts(tmp_path: Path) -> None:
    words = text_column(b"go left", "größer".encode(), b"")
    episode = make(3, observation={"order": words}, action=words, extras={"infos": {"text": words}})
    other = make(2, observation={"order": words[:2]}, action=words[1:], extras={"infos": {"text": words[:2]}})
    assert write(tmp_path / "set", [episode, other]) == {}
    dataset = assert_minari_reads(tmp_path / "set", [episode, other])
    space = dataset.observation_space["order"]
    assert isinstance(space, spaces.Text) and space.max_length == 7
    assert set(space.characters) == set("go leftgrößer")
    assert_only_lost([episode, other], open_source(tmp_path / "set"), {}, added=ADDED)


@pytest.mark.parametrize("bad", [b"a\0b", b"\xff\xfe"])
def test_text_that_minari_can_not_read_is_refused(tmp_path: Path, bad: bytes) -> None:
    good = make(3, action=text_column(b"a", b"b", b""))
    sink = MinariDirSink(tmp_path / "set")
    sink.open(spec_of(good), PROVENANCE)
    sink.write(good)
    with pytest.raises(SpecMismatch, match="step 1, action: a text"):
        sink.write(good.replace(action=text_column(b"a", bad, b"")))
    sink.commit()
    assert_minari_reads(tmp_path / "set", [good])


SPECS = {
    "discrete": FieldSpec((), np.int64, values=(-2, -1, 0, 1)),
    "large discrete": FieldSpec((), np.int64, low=0, high=999),
    "small box": FieldSpec((), np.int64, low=0, high=9),
    "unlike values": FieldSpec((), np.int32, values=(1, 5)),
    "multi-binary": FieldSpec((3,), np.int8, values=(0, 1)),
    "multi-binary-2": FieldSpec((3, 2), np.int8, values=(0, 1)),
    "limits": FieldSpec((2,), np.float32, low=[-1.5, -np.inf], high=4.0),
    "nothing": FieldSpec((2, 0), np.float64),
    "number": FieldSpec((), np.float64),
    "unsigned": FieldSpec((2,), np.uint64, low=0, high=2**64 - 1),
    "flag": FieldSpec((2,), np.bool_),
    "text": FieldSpec((), object),
    "nested": {"a": (FieldSpec((1,), np.float32, low=0.0), FieldSpec((), object)), "b": FieldSpec((), np.float16)},
}


@pytest.mark.parametrize("name", sorted(SPECS))
def test_spaces(name: str) -> None:
    """Minari makes a space of it, writes that as it was, and we read the spec back."""
    texts = TextRange("abc", 3)
    told = json.dumps(space_json(SPECS[name], lambda path: texts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        space = minari.serialization.deserialize_space(told)
    assert json.loads(minari.serialization.serialize_space(space)) == json.loads(told)
    again = space_specs(told)
    assert nest.same_structure(again, SPECS[name])
    if name not in ("unlike values", "flag"):  # an integer of a Box always has limits
        assert again == SPECS[name]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, np.array([1, np.inf], np.float32), (2,), np.float32),
        spaces.Box(-np.inf, np.inf, (), np.float64),
        spaces.Box(0, 255, (8, 8, 3), np.uint8),
        spaces.Box(-3, 9, (2,), np.int64),
        spaces.Discrete(5, start=-2),
        spaces.Discrete(1000),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiDiscrete([[3, 4], [1, 2]]),
        spaces.MultiBinary(3),
        spaces.MultiBinary([2, 3]),
        spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.MultiBinary(2)])}),
    ],
    ids=str,
)
def test_a_space_of_minaris_comes_back_as_it_was(space: spaces.Space) -> None:
    specs = space_specs(minari.serialization.serialize_space(space))
    again = space_json(specs, lambda path: TextRange())
    assert minari.serialization.deserialize_space(json.dumps(again)) == space


def test_limits_are_kept(tmp_path: Path) -> None:
    episode = make(3, observation=np.zeros((3, 2), np.float32), action=np.zeros(3, np.int64))
    limited = {"observation": SPECS["limits"], "action": SPECS["discrete"]}
    write(tmp_path / "set", [episode], with_spec(episode, **limited))
    dataset = minari.MinariDataset(tmp_path / "set" / "data")
    assert dataset.action_space == spaces.Discrete(4, start=-2)
    assert dataset.observation_space == spaces.Box(np.array([-1.5, -np.inf], np.float32), np.float32(4), (2,))
    with open_source(tmp_path / "set") as source:
        assert source.spec.observation == SPECS["limits"] and source.spec.action == SPECS["discrete"]


def test_what_has_no_place_is_listed(tmp_path: Path) -> None:
    one, number = make(4), np.arange(4.0)
    large = np.zeros(10_000)
    episode = one.replace(
        action=one.action + 1,
        reward=one.reward + 1,
        discount=np.full(4, 0.5),
        extras={"infos": {"a": number, "b": {"c": number}}, "speed": number, "b": {"c": number}, "a/b": number},
        metadata={
            "id": 5,
            "total_steps": 2,
            "large": large,
            "none": None,
            "x/y": 1,
            "thing": [1, "a", None],
            "infos": {"a": 1.0, "single": 2.5, "word": "w", "many": [1, 2]},
            "list": [1, 2],
            "words": ["a", "bb"],
        },
    )
    lost = dict(write(tmp_path / "set", [episode]))
    assert_only_lost([episode], open_source(tmp_path / "set"), lost)
    assert lost.pop("metadata/id").endswith("numbered from 0") and "steps" in lost.pop("metadata/total_steps")
    assert lost.pop("metadata/large").startswith("it has 80,000 bytes")
    assert lost.pop("metadata/none").startswith("it is None")
    assert lost.pop("metadata/infos/a") == "an info of the steps has its name"
    assert lost.pop("extras/speed") == "it is read back as extras/infos/speed"
    assert lost.pop("extras/b/c") == "another field is infos/b/c in the file already"
    assert {path.split("/")[0] for path in lost} == {"action", "reward", "discount", "extras", "metadata"}
    assert set(lost) - {"action", "reward", "discount"} == {
        *("metadata/x/y", "metadata/thing", "metadata/infos/word", "metadata/infos/many", "extras/a/b")
    }


def test_ends_that_minari_has_no_flag_for(tmp_path: Path) -> None:
    episodes = [make(3, end="open")]
    lost = write(tmp_path / "open", episodes)
    assert set(lost) == {"is_last"}
    assert_only_lost(episodes, open_source(tmp_path / "open"), lost, added={*ADDED, "metadata/open_tail"})
    episodes = [make(1), make(4), make(1, end="truncated")]
    lost = write(tmp_path / "short", episodes)
    assert "one row" in lost["is_terminal"]
    assert len(list(minari.MinariDataset(tmp_path / "short" / "data").iterate_episodes())) == 3
    assert [ep.num_steps for ep in open_source(tmp_path / "short")] == [1, 4, 1]


def test_no_reward_is_zeros(tmp_path: Path) -> None:
    assert set(write(tmp_path / "set", [make(4, reward=None)])) == {"reward"}
    assert not next(iter(open_source(tmp_path / "set"))).reward.any()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observation": None}, "have no observation"),
        ({"action": {}}, "have no action"),
        ({"action": np.zeros(4) * 1j}, "complex"),
        ({"action": np.zeros(4, np.longdouble)}, "JSON"),
        ({"observation": {"a": np.full((4, 2), b"", object)}}, "observation/a: it is an array of texts"),
        ({"observation": {"a/b": np.zeros(4)}}, "its name"),
        ({"reward": np.zeros((4, 2))}, "one number a step"),
    ],
)
def test_refuses_what_it_can_not_hold_before_anything_is_made(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    sink = MinariDirSink(tmp_path / "set")
    with pytest.raises(SinkError, match=says):
        sink.open(spec_of(make(4, **changes)), PROVENANCE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (FieldSpec((), object, image=FieldSpec((8, 8, 3), np.uint8)), "takes them decoded"),
        (FieldSpec((None, 3), np.float32), "length varies"),
    ],
)
def test_refuses_observations_that_are_no_rows(tmp_path: Path, field: FieldSpec, says: str) -> None:
    with pytest.raises(SinkError, match=says):
        MinariDirSink(tmp_path / "set").open(StepSpec(observation=field, action=FieldSpec((), np.int64)), PROVENANCE)


def test_overwrites_minari_datasets_only(tmp_path: Path) -> None:
    path = tmp_path / "set"
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(SnapshotExists):
            write(path, [make(4)], overwrite=overwrite)
    assert (path / "notes.txt").read_text() == "mine"
    write(tmp_path / "other", [make(4)])
    with pytest.raises(SnapshotExists):
        write(tmp_path / "other", [make(3)])
    (tmp_path / "other/notes.txt").write_text("mine")
    with pytest.raises(SnapshotExists, match=r"holds notes\.txt, which is not of a Minari dataset"):
        write(tmp_path / "other", [make(3)], overwrite=True)
    (tmp_path / "other/notes.txt").unlink()
    write(tmp_path / "other", [make(3)], overwrite=True)
    assert [ep.num_steps for ep in open_source(tmp_path / "other")] == [3]
    assert {file.name for file in tmp_path.iterdir()} == {"set", "other"}


def test_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    words = text_column(b"\xc3\xb6", b"b", b"cc", b"")
    episodes = [make(4, 10 * i, action=words, discount=np.full(4, i / 2, np.float32)) for i in range(4)]
    expected = write(tmp_path / "whole", episodes, dataset_id="a-v0")
    first = MinariDirSink(tmp_path / "set", dataset_id="a-v0", resume=True)
    first.open(spec_of(episodes[0]), PROVENANCE)
    for episode in episodes[:3]:
        first.write(episode)
    first.checkpoint({"read": 3})
    first.write(episodes[0])  # behind the checkpoint: not there when going on
    first.abort()
    for name, fingerprint in (("b-v0", "1"), ("a-v0", "2")):
        other = MinariDirSink(tmp_path / "set", dataset_id=name, resume=True)
        with pytest.raises(SnapshotError, match="another source or other options"):
            other.open(spec_of(episodes[0]), {**PROVENANCE, "fingerprint": fingerprint})
    second = MinariDirSink(tmp_path / "set", dataset_id="a-v0", resume=True)
    second.open(spec_of(episodes[0]), PROVENANCE)
    assert second.resumed() == {"read": 3}
    second.write(episodes[3])
    second.commit()
    assert second.lost() == expected and "discount" in expected
    for name in ("metadata.json", "main_data.hdf5"):
        assert (tmp_path / "set/data" / name).read_bytes() == (tmp_path / "whole/data" / name).read_bytes()
    assert {file.name for file in tmp_path.iterdir()} == {"set", "whole"}


def test_groups_are_as_minari_has_them(tmp_path: Path) -> None:
    report = convert([make(4)], str(tmp_path / "set-v1"), to="minari", sink_options={"algorithm_name": "random"})
    assert report.items == 3 and not report.lost
    with h5py.File(tmp_path / "set-v1/data/main_data.hdf5") as file:
        assert set(file["episode_0"]) == {
            *("observations", "actions", "rewards", "terminations", "truncations", "infos")
        }
        assert set(file["episode_0/observations/pair"]) == {"_index_0", "_index_1"}
    told = json.loads((tmp_path / "set-v1/data/metadata.json").read_text())
    assert told["dataset_id"] == "set-v1" and told["algorithm_name"] == "random"
    assert told["minari_version"] == "0.5.0" and told["rlds2buf"]["format"] == "memory"


def test_what_was_known_of_the_dataset_travels(tmp_path: Path) -> None:
    env_spec = gymnasium.spec("CartPole-v1").to_json()
    write(tmp_path / "set-v0", [make(4)], env_spec=env_spec, author="me", description="d")
    convert(tmp_path / "set-v0", tmp_path / "rlds", to="rlds")
    convert(tmp_path / "rlds", tmp_path / "records", to="rlds")
    convert(tmp_path / "records", tmp_path / "buffer", float32=True)
    convert(tmp_path / "buffer", tmp_path / "again-v0", to="minari", sink_options={"description": "another"})
    found = minari.MinariDataset(tmp_path / "again-v0" / "data")
    assert found.env_spec == gymnasium.spec("CartPole-v1") and found.id == "again-v0"
    kept = json.loads((tmp_path / "again-v0" / "data" / "metadata.json").read_text())
    assert (kept["author"], kept["description"]) == (["me"], "another")


class TestPlace:
    """Where a dataset goes, so that Minari lists it."""

    def listed(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
        return list(minari.list_local_datasets())

    @pytest.mark.parametrize("told", [False, True])
    def test_a_namespace(self, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if told:
            monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        report = convert([make(4)], tmp_path / "mujoco" / "hop-v0", to="minari")
        assert json.loads((tmp_path / "mujoco" / "namespace_metadata.json").read_text()) == {}
        assert self.listed(tmp_path, monkeypatch) == ["mujoco/hop-v0"]
        assert minari.load_dataset("mujoco/hop-v0").spec.namespace == "mujoco"
        assert namespace.list_local_namespaces() == ["mujoco"]
        assert report.notes == [f"Minari's id is mujoco/hop-v0, where MINARI_DATASETS_PATH is {tmp_path}"]

    def test_namespaces_in_namespaces(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        (tmp_path / "top").mkdir()
        (tmp_path / "top" / "namespace_metadata.json").write_text('{"description": "mine"}')
        convert([make(4)], tmp_path / "top" / "b" / "hop-v0", to="minari")
        monkeypatch.delenv("MINARI_DATASETS_PATH")
        convert([make(4)], tmp_path / "top" / "b" / "hop-v1", to="minari")  # told by the namespaces' own files
        assert self.listed(tmp_path, monkeypatch) == ["top/b/hop-v0", "top/b/hop-v1"]
        assert namespace.get_namespace_metadata("top") == {"description": "mine"}

    def test_no_namespace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        convert([make(4)], tmp_path / "hop-v0", to="minari")
        convert([make(4)], tmp_path / "minari-sets" / "hop-v0", to="minari")
        assert self.listed(tmp_path / "minari-sets", monkeypatch) == ["hop-v0"]
        assert not list(tmp_path.rglob("namespace_metadata.json"))

    def test_a_name_without_a_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        report = convert([make(4)], tmp_path / "hop", to="minari")
        assert report.sink == str(tmp_path / "hop-v0") and not (tmp_path / "hop").exists()
        assert "written as" in report.notes[0] and "end in a version" in report.notes[0]
        assert self.listed(tmp_path, monkeypatch) == ["hop-v0"]
        with pytest.raises(SnapshotExists, match="hop-v0"):
            convert([make(4)], tmp_path / "hop", to="minari")

    def test_an_unfinished_run_of_version_0_1_0_keeps_its_name_and_id(self, tmp_path: Path) -> None:
        target = tmp_path / "new" / "hop"
        sink = MinariDirSink(target, dataset_id="hop-v0", resume=True)  # as it called it, whatever the parent
        sink.open(spec_of(make(4)), {})
        sink.checkpoint({"read": 0})
        sink.abort()
        again = open_sink(target, to="minari", resume=True)
        again.open(spec_of(make(4)), {})
        assert again.resumed() == {"read": 0} and again.name == str(target)
        again.write(make(4))
        again.commit()
        assert (target / "data").is_dir() and "rename it to hop-v0" in again.notes[0]


@pytest.mark.parametrize("to", ["buffer", "rlds", "minari", "d4rl", "reverb-checkpoint"])
def test_an_empty_folder_is_a_fine_target(to: str, tmp_path: Path) -> None:
    target, flat = tmp_path / "set-v0", make(4, observation=np.arange(4))
    target.mkdir()
    report = convert([flat], target, to=to)
    assert report.sink == str(target) and (target.is_file() if to == "d4rl" else any(target.iterdir()))
    link = tmp_path / "link-v0"
    (tmp_path / "empty").mkdir()
    link.symlink_to(tmp_path / "empty")
    if to != "reverb-checkpoint":  # it writes into the folder that is there
        with pytest.raises(SnapshotExists):
            convert([flat], link, to=to)
    with pytest.raises(SnapshotExists):
        convert([flat], target, to=to)
