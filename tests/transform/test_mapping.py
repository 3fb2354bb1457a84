"""Which field goes where, against steps as flat dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeError, FieldSpec, SpecMismatch, spec_of
from rlds2buf.core import nest
from rlds2buf.transform.transformation import Transformation
from tests.reference.rows import columns_of, map_row, rows_of

ROWS = 3
NAMES = ["observation/q1", "observation/q2", "observation/q10", "observation/arm/q1", "observation/arm/q2"]
EXTRAS = ["extras/q1", "extras/q2", "extras/arm/q1", "extras/note"]


def episode(fields: dict[str, Any], **more: Any) -> Episode:
    """An episode of flat fields: "observation/q" to an array."""
    tree: dict[str, Any] = {}
    for name, column in fields.items():
        *inside, last = name.split("/")
        here = tree
        for part in inside:
            here = here.setdefault(part, {})
        here[last] = column
    return Episode(**tree, source="a", index=4, **more)


def apply(ep: Episode, **how: Any) -> Episode:
    """The transformed episode, which must fit the transformed spec."""
    transformation = Transformation(spec_of(ep), **how)
    out = transformation.change(ep)
    transformation.spec.check(out)
    return out


def flat(ep: Episode) -> dict[str, np.ndarray]:
    return {nest.path_name(path): column for path, column in ep.flatten()}


@st.composite
def _episodes(draw: st.DrawFn) -> Episode:
    fields: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from([*NAMES, *EXTRAS, "action", "reward"]), min_size=5, unique=True)):
        kind = draw(st.sampled_from([np.float32, np.float32, np.int64]))
        shape = draw(st.sampled_from([(), (2,), (1,), (2, 2)])) if name != "reward" else ()
        size = int(np.prod((ROWS, *shape)))
        fields[name] = (np.arange(size) + 100 * len(fields)).reshape(ROWS, *shape).astype(kind)
    return episode(fields)


_SOURCES = st.sampled_from(
    [*NAMES, *EXTRAS, "action", "observation/q*", "observation/*", "extras/*", "observation/arm", "extras/arm", "*/q1"]
)
_TARGETS = st.sampled_from(
    ["observation", "observation/q1", "observation/new/a", "observation/new/b", "action", "action/x", "extras/q1/deep"]
)


class TestAgainstRows:
    @given(
        _episodes(),
        st.dictionaries(
            _TARGETS, st.one_of(_SOURCES, st.lists(_SOURCES, min_size=1, max_size=3)), min_size=1, max_size=3
        ),
        st.lists(st.sampled_from(["observation/q2", "extras/*", "observation/arm", "action", "*/arm/q?"]), max_size=2),
    )
    def test_any_map(self, ep: Episode, map: dict[str, Any], drop: list[str]) -> None:
        have = list(flat(ep))
        assume(all(any(_names(have, name) for name in [given]) for given in drop))
        try:
            expected = columns_of([map_row(row, map, drop) for row in rows_of(ep)])
        except ValueError:
            with pytest.raises(ValueError, match=r"map: |joined|different types|nothing is left"):
                apply(ep, map=map, drop=drop)
            return
        found = flat(apply(ep, map=map, drop=drop))
        for name, column in found.items():
            assert column.dtype == expected[name].dtype
            assert np.array_equal(column, expected[name]), name
        assert {*found} == {*expected, "is_first", "is_last", "is_terminal"}

    @given(_episodes())
    def test_no_map_changes_nothing_and_copies_nothing(self, ep: Episode) -> None:
        out = apply(ep, map={}, drop=[])
        assert out.derived == ep.derived
        for (path, column), (other_path, other) in zip(ep.flatten(), out.flatten(), strict=True):
            assert path == other_path and (column is other or path[0] in ep.derived)


def _names(have: list[str], pattern: str) -> bool:
    from tests.reference.rows import _names as names

    return any(names(pattern, name) for name in have)


STEP = {
    "observation/state": np.arange(6.0).reshape(3, 2),
    "observation/cam/wrist": np.array([b"jpeg"] * 3, object),
    "observation/cam/front": np.zeros((3, 4, 4, 3), np.uint8),
    "action": np.arange(3),
    "reward": np.ones((3, 1)),
    "extras/r": np.array([[1.0], [2.0], [3.0]]),
    "extras/end": np.array([0, 0, 1]),
}


class TestExamples:
    def test_one_field_replaces_the_whole_observation(self) -> None:
        out = apply(episode(STEP), map={"observation": "observation/state"})
        assert np.array_equal(out.observation, STEP["observation/state"])
        assert out.observation is not None and out.extras.keys() == {"r", "end"}

    def test_a_field_moves_and_its_nest_stays(self) -> None:
        out = apply(episode(STEP), map={"extras/photos/wrist": "observation/cam/wrist"})
        assert out.observation.keys() == {"state", "cam"} and out.observation["cam"].keys() == {"front"}
        assert out.extras["photos"]["wrist"].tolist() == [b"jpeg"] * 3

    def test_a_nest_moves_whole_and_an_emptied_nest_is_gone(self) -> None:
        out = apply(episode(STEP), map={"extras/cam": "observation/cam"}, drop=["observation/state"])
        assert out.observation is None and out.extras["cam"].keys() == {"wrist", "front"}

    def test_swapping(self) -> None:
        ep = episode({"action": np.arange(3), "extras/old": np.arange(3) + 10})
        out = apply(ep, map={"action": "extras/old", "extras/old": "action"})
        assert out.action.tolist() == [10, 11, 12] and out.extras["old"].tolist() == [0, 1, 2]

    def test_one_source_for_two_targets(self) -> None:
        out = apply(episode(STEP), map={"observation": "observation/state", "extras/copy": "observation/state"})
        assert out.extras["copy"] is out.observation

    def test_extras_need_no_prefix(self) -> None:
        out = apply(episode(STEP), map={"reward": "r", "label": "action"}, drop=["end"])
        assert out.reward.tolist() == [1, 2, 3] and out.extras["label"].tolist() == [0, 1, 2] and out.action is None

    def test_reward_and_flags_of_one_column_are_vectors(self) -> None:
        out = apply(episode(STEP), map={"reward": ["extras/r"], "is_terminal": "extras/end"})
        assert out.reward.shape == (3,) and out.is_terminal.tolist() == [False, False, True]
        assert out.is_terminal.dtype == np.bool_ and out.derived == {"is_first", "is_last"}

    def test_a_flag_that_is_dropped_is_derived(self) -> None:
        ep = Episode(observation=np.zeros(3), is_first=[True] * 3, is_last=[False] * 3, is_terminal=[False] * 3)
        out = apply(ep, drop=["is_first", "is_last"])
        assert out.derived == {"is_first", "is_last"}
        assert out.is_first.tolist() == [True, False, False] and out.is_last.tolist() == [False, False, True]

    def test_metadata_source_and_index_come_along(self) -> None:
        out = apply(episode(STEP, metadata={"task": 1}), drop=["extras"])
        assert (out.metadata, out.source, out.index, out.extras) == ({"task": 1}, "a", 4, {})


class TestTuples:
    EP = Episode(action=(np.arange(3), np.arange(3) + 10, np.arange(3) + 20))

    def parts(self, **how: Any) -> Any:
        out = apply(self.EP, **how).action
        return tuple(part.tolist()[0] for part in out) if isinstance(out, tuple) else out

    def test_one_part_is_the_whole(self) -> None:
        assert apply(self.EP, map={"action": "action/1"}).action.tolist() == [10, 11, 12]

    def test_a_tuple_that_loses_a_part_closes_up(self) -> None:
        assert self.parts(drop=["action/1"]) == (0, 20)
        assert apply(self.EP, map={"extras/b": "action/0"}).extras["b"].tolist() == [0, 1, 2]

    def test_parts_are_replaced_in_place(self) -> None:
        assert self.parts(map={"action/0": "action/2", "action/2": "action/0"}) == (20, 10, 0)
        assert self.parts(map={"action/1": "action/0", "action/0": "action/1"}) == (10, 0, 20)
        out = apply(self.EP, map={"action/0": "action/1", "action/1": "action/0"}, drop=["action/2"]).action
        assert isinstance(out, tuple) and len(out) == 2

    def test_a_tuple_becomes_a_dict_and_is_joined(self) -> None:
        out = apply(self.EP, map={"action": "action/*"}).action
        assert out[0].tolist() == [0, 10, 20]
        named = apply(self.EP, map={"action/x": "action/0", "action/y": "action/1"}, drop=["action/2"]).action
        assert named.keys() == {"x", "y"}

    def test_no_such_part(self) -> None:
        with pytest.raises(ValueError, match="no field 'action/3'"):
            apply(self.EP, drop=["action/3"])


class TestRefused:
    @pytest.mark.parametrize(
        ("how", "says"),
        [
            ({"map": {"observation": "observation/stat"}}, "no field 'observation/stat'; is it 'observation/state'"),
            ({"map": {"observation": "state"}}, "is it 'observation/state'.*There are: action, "),
            ({"map": {"observation": "joints/*"}}, "no field 'joints/\\*'"),
            ({"map": {"obsrvation": "action"}}, "is it 'observation'.*'extras/obsrvation'"),
            ({"map": {"observation": "action", "observation/x": "extras/r"}}, "overlap"),
            ({"map": {"action/x": "extras/r"}}, "'action/x' can't be inside 'action', which is a field"),
            ({"map": {"observation": "observation/*"}}, "'observation/cam' is a nest; .* 'observation/cam/\\*'"),
            ({"map": {"observation": "observation/cam/*"}}, "text and image files .* can't be joined"),
            ({"map": {"observation": ["observation/state", "action"]}}, "float64, int64.*cast of 'observation'"),
            ({"map": {"observation": "action"}, "drop": ["action"]}, "no field 'action' but what is dropped"),
            ({"drop": ["observation", "action", "reward", "extras"]}, "nothing is left but flags"),
            ({"drop": ["rewards"]}, "drop: no field 'rewards'; is it 'reward'"),
            ({"map": {"observation": []}}, "no field is named"),
            ({"map": {"extras": "action"}}, "'extras' is no name"),
            ({"map": {"observation/": "action"}}, "is no name"),
            ({"map": {"is_last": "observation/state"}}, "is_last must be one bool a step"),
            ({"map": {"is_last": "observation/cam/wrist"}}, "is_last"),
            ({"cast": {"observation/cam/wrist": "float32"}}, "text can't become float32"),
            ({"cast": {"observation/state": "S3"}}, "can become a number"),
            ({"cast": {"observation/state": "float31"}}, "no numpy type"),
            ({"cast": {"state": "float32"}}, "cast: no field 'state'; is it 'observation/state'"),
            ({"alignment": "sra"}, "alignment must be one of sar, ars, rsa"),
            ({"reward_shift": -1}, "must not be negative"),
        ],
    )
    def test_with_what_to_do(self, how: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            Transformation(spec_of(episode(STEP)), **how)

    def test_not_text(self) -> None:
        with pytest.raises(TypeError, match="field names"):
            Transformation(spec_of(episode(STEP)), map={"observation": [1]})  # type: ignore[list-item]

    def test_an_episode_that_lacks_the_field(self) -> None:
        transformation = Transformation(spec_of(episode(STEP)), map={"reward": "extras/r"})
        with pytest.raises(SpecMismatch, match="a, episode 4, extras/r: the field is missing"):
            transformation.change(episode({"action": np.zeros(3)}))

    def test_an_episode_of_other_types(self) -> None:
        transformation = Transformation(spec_of(episode(STEP)), map={"reward": ["extras/r", "reward"]})
        with pytest.raises(SpecMismatch, match="episode 4, reward: can't be joined from columns of float64, float32"):
            transformation.change(episode({**STEP, "reward": np.ones(3, np.float32)}))


class TestCast:
    def test_float32_spares_other_types(self) -> None:
        out = apply(episode({**STEP, "extras/half": np.ones(3, np.float16)}), float32=True)
        types = {name: column.dtype.name for name, column in flat(out).items()}
        assert types["observation/state"] == types["reward"] == types["extras/half"] == "float32"
        assert types["action"] == "int64" and types["observation/cam/front"] == "uint8"
        assert types["observation/cam/wrist"] == "object"

    def test_cast_wins_and_a_nest_means_all_its_fields(self) -> None:
        ep = episode({"observation/a": np.ones(3), "observation/b": np.ones(3, np.int8), "reward": np.ones(3)})
        out = apply(ep, float32=True, cast={"observation": "float64", "observation/b": "int32"})
        assert [c.dtype.name for c in (out.observation["a"], out.observation["b"], out.reward)] == [
            "float64",
            "int32",
            "float32",
        ]

    def test_types_are_cast_before_they_are_joined(self) -> None:
        how: dict[str, Any] = {"map": {"observation": ["observation/state", "action"]}}
        out = apply(episode(STEP), **how, cast={"observation": "float32"})
        assert out.observation.dtype == np.float32 and out.observation[2].tolist() == [4, 5, 2]

    @pytest.mark.parametrize(
        ("values", "dtype", "step", "shown"),
        [
            ([1.0, 1e300, 0.0], "float32", 1, r"1e\+300"),
            ([1.0, 2.0, 70000.0], "float16", 2, "70000"),
            ([1.0, 2.5, 0.0], "int64", 1, "2.5"),
            ([0.0, 1.0, np.nan], "int8", 2, "nan"),
            ([0.0, 2.0**63, 0.0], "int64", 1, "9.22"),
            ([0, 300, 0], "uint8", 1, "300"),
            ([0, -1, 0], "uint64", 1, "-1"),
            ([0, 1, 2], "bool", 2, "2"),
        ],
    )
    def test_what_does_not_fit_is_named(self, values: list[float], dtype: str, step: int, shown: str) -> None:
        ep = episode({"extras/x": np.array(values)})
        transformation = Transformation(spec_of(ep), cast={"x": dtype})
        with pytest.raises(EpisodeError, match=f"a, episode 4, step {step}, extras/x: {shown}.* fit into") as caught:
            transformation.change(ep)
        assert caught.value.rule == "cast"

    @given(
        st.sampled_from("bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()),
        st.sampled_from("bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()),
        st.data(),
    )
    def test_what_is_cast_is_what_python_would_say(self, given: str, wanted: str, data: st.DataObject) -> None:
        numbers = st.one_of(st.integers(-(2**64), 2**64), st.floats(), st.sampled_from([0, 1, 127, 128, 255, 256]))
        with np.errstate(all="ignore"):
            raw = data.draw(st.lists(numbers, min_size=1, max_size=4))
            column = np.array([_as(value, given) for value in raw], given)
        ep = episode({"extras/x": column})
        transformation = Transformation(spec_of(ep), cast={"x": wanted})
        if all(_fits(value, wanted) for value in column.tolist()):
            out = transformation.change(ep).extras["x"]
            assert out.dtype == wanted
            assert np.dtype(wanted).kind == "f" or out.tolist() == column.tolist()
        else:
            with pytest.raises(EpisodeError, match="does not fit"):
                transformation.change(ep)

    def test_infinity_and_nan_stay_what_they_are(self) -> None:
        out = apply(episode({"extras/x": np.array([np.inf, -np.inf, np.nan])}), float32=True)
        assert np.array_equal(out.extras["x"], np.array([np.inf, -np.inf, np.nan], np.float32), equal_nan=True)

    def test_fields_of_varying_length(self) -> None:
        ragged = np.empty(2, object)
        ragged[:] = [np.array([1.0, 2.0]), np.array([3.0])]
        ep = Episode(observation=ragged, source="a", index=4)
        spec = spec_of(Episode(action=np.zeros(2)))
        spec = type(spec)(observation=FieldSpec((None,), np.dtype(np.float64)), reward=None, discount=None)
        transformation = Transformation(spec, float32=True)
        out = transformation.change(ep)
        transformation.spec.check(out)
        assert [part.dtype.name for part in out.observation] == ["float32", "float32"]
        ragged[1][0] = 1e200
        with pytest.raises(EpisodeError, match=r"step 1, observation: 1e\+200 does not fit into float32"):
            transformation.change(ep)
        with pytest.raises(ValueError, match="varying length"):
            Transformation(spec, map={"observation": ["observation"]})


def _as(value: Any, dtype: str) -> Any:
    """Something of this type that is near the value."""
    if dtype == "bool":
        return bool(value)
    if dtype.startswith("float"):
        return np.float64(value).astype(dtype)
    limits = np.iinfo(dtype)
    number = 0 if value != value else int(max(min(value, limits.max), limits.min))
    return max(min(number, limits.max), limits.min)


def _fits(value: Any, dtype: str) -> bool:
    if isinstance(value, bool):
        return True
    if dtype == "bool":
        return bool(value in (0, 1))
    if dtype.startswith("float"):
        if isinstance(value, int):
            return True
        with np.errstate(over="ignore"):
            return not np.isfinite(value) or bool(np.isfinite(np.float64(value).astype(dtype)))
    if not np.isfinite(value) or value != int(value):
        return False
    return bool(np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max)


class TestSpec:
    SPEC = spec_of(episode(STEP))

    def test_limits_are_kept_and_joined(self) -> None:
        f8 = np.dtype(np.float64)
        fields = {
            "a": FieldSpec((2,), f8, low=[0.0, 1.0], high=5.0),
            "b": FieldSpec((), f8, low=-1.0, high=5.0),
            "c": FieldSpec((2, 1), f8),
        }
        spec = type(self.SPEC)(observation=fields, reward=None, discount=None)
        joined = Transformation(spec, map={"observation": ["observation/a", "observation/b"]}).spec.observation
        assert (joined.shape, joined.low, joined.high) == ((3,), [0.0, 1.0, -1.0], 5.0)
        every = Transformation(spec, map={"observation": "observation/*"}, float32=True).spec.observation
        assert every == FieldSpec((5,), np.dtype(np.float32))
        moved = Transformation(spec, map={"action": "observation/a"}).spec
        assert moved.action == fields["a"] and moved.observation.keys() == {"b", "c"}

    def test_pictures_are_moved_with_what_they_hold(self) -> None:
        photo = FieldSpec((), np.dtype(object), image=FieldSpec((8, 8, 3), np.dtype(np.uint8)))
        spec = type(self.SPEC)(observation={"photo": photo}, reward=None, discount=None)
        assert Transformation(spec, map={"extras/cam": "observation/photo"}, float32=True).spec.extras == {"cam": photo}
        with pytest.raises(ValueError, match="an image file can't become uint8"):
            Transformation(spec, cast={"observation/photo": "uint8"})

    def test_the_description_is_what_was_asked_for(self) -> None:
        how: dict[str, Any] = {"map": {"reward": "extras/r"}, "drop": ["action"], "cast": {"extras/end": np.int8}}
        described = Transformation(self.SPEC, **how, float32=True, alignment="rsa", min_length=3, sample=0.5)
        assert described.description == {
            "map": {"reward": "extras/r"},
            "drop": ["action"],
            "float32": True,
            "cast": {"extras/end": "int8"},
            "alignment": "rsa",
            "min_length": 3,
            "sample": 0.5,
            "seed": 0,
        }
        assert Transformation(self.SPEC).description == {}
