"""Which columns of a log become which fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlds2buf import SourceFormatError
from rlds2buf.core.spec import FieldSpec
from rlds2buf.formats.step_log.column_map import FIELD_NAMES, ColumnMap, natural

NUMBER = FieldSpec((), np.dtype(np.float64))
WHOLE = FieldSpec((), np.dtype(np.int64))
TEXT = FieldSpec((), np.dtype(object))


def mapped(names: str | dict[str, FieldSpec], given: dict[str, Any] | None = None, **options: Any) -> ColumnMap:
    columns = dict.fromkeys(names.split(), NUMBER) if isinstance(names, str) else names
    return ColumnMap(columns, given, name="log", **options)


class TestByName:
    @pytest.mark.parametrize(("field", "called"), [(f, name) for f, names in FIELD_NAMES.items() for name in names])
    def test_every_name(self, field: str, called: str) -> None:
        beside = {"observation": "act", "next_observation": "obs", "done": "obs truncated"}.get(field, "obs")
        found = mapped(f"{beside} {called}", final_rows=False)
        everything = {**found.fields, **found.flags, "next_observation": found.following}
        assert everything[field].names == (called,)
        assert found.fields["extras"] == {}

    def test_case_does_not_count_and_the_first_name_wins(self) -> None:
        found = mapped("State OBS Reward")
        assert found.fields["observation"].names == ("OBS",) and found.fields["reward"].names == ("Reward",)
        assert list(found.fields["extras"]) == ["State"]

    @pytest.mark.parametrize("pattern", ["obs_{}", "obs[{}]", "obs.{}", "obs/{}", "obs{}", "obs-{}"])
    def test_numbered(self, pattern: str) -> None:
        names = [pattern.format(i) for i in (10, 0, 2, 1, 9, 8, 7, 3, 4, 5, 6)]
        gather = mapped(" ".join(names)).fields["observation"]
        assert gather.names == tuple(pattern.format(i) for i in range(11))
        assert gather.spec == FieldSpec((11,), np.dtype(np.float64))

    def test_numbers_from_one(self) -> None:
        assert mapped("obs_1 obs_2").fields["observation"].names == ("obs_1", "obs_2")

    def test_a_gap_in_the_numbers(self) -> None:
        with pytest.raises(SourceFormatError, match="columns `obs_0` to `obs_3` lack number 2; name those"):
            mapped("obs_0 obs_1 obs_3")

    def test_nested(self) -> None:
        found = mapped(
            "obs/arm/pos obs/arm/vel obs/light action.x action.y next_obs/light next_obs/arm/pos next_obs/arm/vel"
        )
        observation = found.fields["observation"]
        assert observation["arm"]["pos"].names == ("obs/arm/pos",) and observation["light"].names == ("obs/light",)
        assert found.fields["action"]["y"].names == ("action.y",)
        assert found.following["arm"]["vel"].names == ("next_obs/arm/vel",)

    def test_what_is_left_is_extra(self) -> None:
        found = mapped("obs info/cost info/lives seed")
        assert found.fields["extras"]["info"]["cost"].names == ("info/cost",)
        assert found.fields["extras"]["seed"].names == ("seed",) and found.ignored == []

    def test_names_that_are_taken(self) -> None:
        found = mapped("obs r reward a a/b", {"reward": "r"})
        assert found.ignored == ["reward", "a/b"]

    def test_no_fields_at_all(self) -> None:
        with pytest.raises(SourceFormatError, match=r"no column is called .*columns={'observation': 'obs_\*'"):
            mapped("x y z")


class TestGiven:
    def test_column_glob_list_and_none(self) -> None:
        found = mapped(
            "pos_10 pos_9 r act_x act_y terminated discount",
            {"observation": "pos_*", "reward": "r", "action": ["act_y", "act_x"], "discount": None},
        )
        assert found.fields["observation"].names == ("pos_9", "pos_10")
        assert found.fields["action"].names == ("act_y", "act_x") and found.fields["action"].spec.shape == (2,)
        assert found.fields["discount"] is None and found.ignored == ["discount"]

    def test_a_list_of_one_and_a_name(self) -> None:
        found = mapped("pos act", {"observation": ["pos"], "action": "act"})
        assert found.fields["observation"].spec.shape == (1,) and found.fields["action"].spec.shape == ()

    def test_nested_and_extras(self) -> None:
        found = mapped(
            "p_0 p_1 v_0 c obs",
            {"observation/position": "p_?", "observation/velocity": "v_0", "cost": "c", "extras/raw": "obs"},
        )
        assert found.fields["observation"]["position"].spec.shape == (2,)
        assert found.fields["extras"]["cost"].names == ("c",) and found.fields["extras"]["raw"].names == ("obs",)

    def test_a_group(self) -> None:
        found = mapped("robot/arm robot/grip r", {"observation": "robot"})
        assert sorted(found.fields["observation"]) == ["arm", "grip"]

    def test_side_by_side(self) -> None:
        columns = {"pos": FieldSpec((3,), np.dtype(np.float32)), "n": WHOLE}
        gather = mapped(columns, {"observation": ["pos", "n"]}).fields["observation"]
        assert gather.spec == FieldSpec((4,), np.dtype(np.float64))
        block = {"pos": np.ones((2, 3), np.float32), "n": np.array([7, 8])}
        assert gather.take(block).tolist() == [[1, 1, 1, 7], [1, 1, 1, 8]]

    def test_one_number_in_a_list(self) -> None:
        columns = {"obs": NUMBER, "r": FieldSpec((1,), np.dtype(np.float32))}
        gather = mapped(columns, {"reward": "r"}).fields["reward"]
        assert gather.take({"r": np.ones((3, 1), np.float32)}).shape == (3,)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                {"observation": "obz_*"},
                r"no column `obz_\*` \(for observation\); is it `obs_[12]`\? The columns are: obs",
            ),
            ({"reward": "rewrad"}, r"no column `rewrad` \(for reward\); is it `reward`\?"),
            ({"reward": "zzz"}, r"no column `zzz` \(for reward\); the columns are: obs_1, obs_2, reward, name"),
            ({"reward": "name"}, r"reward: column `name` should hold numbers, it holds string\[\] \(line 7: 'x'"),
            ({"reward": "obs_*"}, r"reward: `obs_1` should hold one number a row, got 2 columns"),
            ({"observation": ["obs_1", "name"]}, r"column `name` holds string\[\], which does not go beside `obs_1`"),
            ({"observation": "pickled"}, r"column `pickled` \(for observation\) holds Python objects"),
            ({"next_observation": "reward"}, r"the next observation has not the observation's shape or names"),
        ],
    )
    def test_what_does_not_fit(self, given: dict[str, Any], message: str) -> None:
        columns = {"obs_1": NUMBER, "obs_2": NUMBER, "reward": NUMBER, "name": TEXT}
        options = {"unfit": {"pickled": "holds Python objects"}, "notes": {"name": "line 7: 'x' is no number"}}
        with pytest.raises(SourceFormatError, match=message):
            mapped(columns, given, **options)

    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            ({"reward": 3}, TypeError, "'reward' should be a column, a glob or a list of them, got 3"),
            ({"observation": []}, TypeError, "should be a column, a glob or a list"),
            ({"observation//x": "obs"}, TypeError, "a field should be a name"),
            ({3: "obs"}, TypeError, "a field should be a name"),
            ({"reward/x": "obs"}, ValueError, "'reward' can't be nested"),
            ({"observation": "obs", "observation/x": "obs"}, ValueError, "'observation/x' goes where another"),
        ],
    )
    def test_what_is_malformed(self, given: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            mapped("obs r", given)


class TestFlags:
    def test_rlds_rows_if_there_is_is_last(self) -> None:
        assert mapped("obs is_last").final_rows and not mapped("obs is_terminal").final_rows
        assert not mapped("obs is_last", final_rows=False).final_rows

    def test_in_rlds_rows_the_rest_is_extra(self) -> None:
        found = mapped("obs next_obs is_last is_terminal terminated truncated done")
        assert set(found.flags) == {"is_last", "is_terminal"} and found.following is None
        assert set(found.fields["extras"]) == {"next_obs", "terminated", "truncated", "done"}

    def test_in_steps_terminated_wins(self) -> None:
        found = mapped("obs terminated is_terminal done")
        assert set(found.flags) == {"terminated"} and list(found.fields["extras"]) == ["done"]
        assert found.ignored == ["is_terminal"]


def test_natural_order_of_anything() -> None:
    names = ["a10", "a9", "a", "b", "10", "9", "", "a9b10", "a9b9", "9" * 6000]
    assert sorted(names, key=natural)[:3] == ["", "9", "10"]
    assert sorted(["a9b10", "a9b9"], key=natural) == ["a9b9", "a9b10"]
