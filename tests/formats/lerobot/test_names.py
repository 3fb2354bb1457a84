"""Names of features: none that LeRobot takes for something else, no two alike."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.formats.lerobot.names import INDEX_FEATURES, feature_name, path_of

PARTS = st.sampled_from(["image", "state", "task", "index", "a", "observation", "action", "next.done", "images", "a/b"])
PATHS = st.one_of(
    st.tuples(st.sampled_from(["observation", "action", "reward", "discount"])),
    st.tuples(st.sampled_from(["observation", "action", "extras"]), PARTS | st.integers(0, 3)),
    st.tuples(st.sampled_from(["observation", "action", "extras"]), PARTS, PARTS),
    st.tuples(st.just("extras"), st.text(min_size=1, max_size=5)),
)


@given(st.lists(st.tuples(PATHS, st.sampled_from(["picture", "text", "number"])), unique_by=lambda one: one[0]))
def test_names(fields: list[tuple[Any, str]]) -> None:
    taken: dict[str, Any] = {}
    for path, kind in fields:
        name = feature_name(path, taken=taken, picture=kind == "picture", text=kind == "text")
        assert name not in taken and "/" not in name and name
        taken[name] = path
        assert name not in (*INDEX_FEATURES, "task", "next.done", "next.truncated")
        assert kind == "picture" or "image" not in name.lower()
        assert name.startswith("observation") <= (path[0] == "observation" and kind != "text")
        assert name.startswith("action") <= (path[0] == "action" and kind != "text")


@given(st.text(max_size=12) | st.sampled_from(["observation", "observation.a", "a..b", "."]))
def test_every_name_is_read_as_a_path(name: str) -> None:
    path = path_of(name)
    assert path and all(isinstance(part, str) for part in path)
    assert path == ("reward",) or ".".join(path).removeprefix("extras.") == name.removeprefix("extras.")


def test_a_name_that_is_taken() -> None:
    taken = ["observation.state", "source.observation.state"]
    assert feature_name(("observation", "state"), taken=taken) == "source.observation.state.2"


def test_both_ways() -> None:
    for path, picture in (
        (("observation", "images", "top"), True),
        (("observation", "state"), False),
        (("action",), False),
        (("reward",), False),
        (("discount",), False),
        (("is_first",), False),
        (("extras", "gripper", "force"), False),
    ):
        assert path_of(feature_name(path, picture=picture)) == path
