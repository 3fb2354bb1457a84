"""Files of statistics, in the forms that training programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, SinkError
from rlds2buf.numbers.by_episode import KEYS
from rlds2buf.summaries.files import write_file
from rlds2buf.summaries.forms import FORMS, as_form
from tests.formats.lerobot.by_hand import write_v3

RNG = np.random.default_rng(0)
ACTION = RNG.standard_normal((50, 7)).astype(np.float32)
STATE = RNG.standard_normal((50, 4))


def made(**fields: Any) -> rlds2buf.Statistics:
    """Of one episode, whose last row's action is padding."""
    return rlds2buf.statistics([Episode(action=ACTION, **fields)], picture_sample="all")


STATS = made(observation={"state": STATE, "other": STATE[:, 0], "image": np.full((50, 16, 16, 1), 51, np.uint8)})


def test_openpi() -> None:
    found = as_form(STATS, "openpi")
    assert list(found) == ["norm_stats"] and list(found["norm_stats"]) == ["state", "actions"]
    for name, values in (("state", STATE), ("actions", ACTION[:-1].astype(np.float64))):
        told = found["norm_stats"][name]
        assert list(told) == ["mean", "std", "q01", "q99"]
        np.testing.assert_allclose(told["mean"], values.mean(0))
        np.testing.assert_allclose(told["std"], values.std(0))
        assert told["q01"] == np.quantile(values, 0.01, axis=0).tolist()
        assert told["q99"] == np.quantile(values, 0.99, axis=0).tolist()


def test_octo() -> None:
    found = as_form(STATS, "octo")
    assert list(found) == ["action", "proprio", "num_transitions", "num_trajectories"]
    assert list(found["action"]) == list(found["proprio"]) == ["mean", "std", "max", "min", "p99", "p01"]
    assert (found["num_transitions"], found["num_trajectories"]) == (49, 1)
    assert found["action"]["max"] == ACTION[:-1].max(0).tolist()
    assert found["proprio"]["p01"] == np.quantile(STATE, 0.01, axis=0).tolist()


def test_openvla() -> None:
    found = as_form(STATS, "openvla", mask="action[:-1]", name="mine")
    assert list(found) == ["mine"]
    told = found["mine"]
    assert list(told["action"]) == ["mean", "std", "max", "min", "q01", "q99", "mask"]
    assert told["action"]["mask"] == [True] * 6 + [False]
    assert list(told["proprio"]) == ["mean", "std", "max", "min", "q01", "q99"]
    assert (told["num_transitions"], told["num_trajectories"]) == (49, 1)
    assert as_form(STATS, "openvla")["memory"]["action"]["mask"] == [True] * 7


@pytest.mark.parametrize(
    ("source", "name"),
    [("/data/bridge/1.0.0 [train]", "bridge"), ("a/hopper.hdf5", "hopper"), ("x", "x"), ("/", "dataset")],
)
def test_the_dataset_s_name(source: str, name: str) -> None:
    import dataclasses

    assert list(as_form(dataclasses.replace(STATS, source=source), "openvla")) == [name]


def test_lerobot() -> None:
    found = as_form(STATS, "lerobot")
    assert set(found) == {"action", "observation.state", "observation.other", "observation.images.image"}
    for name, told in found.items():
        assert list(told) == list(KEYS), name
    assert found["observation.other"]["mean"] == [STATS["observation/other"].mean.item()]
    assert found["action"]["count"] == [49] and found["observation.images.image"]["count"] == [50]
    assert found["observation.images.image"]["mean"] == [[[0.2]]] * 3
    assert found["observation.state"]["q10"] == np.quantile(STATE, 0.1, axis=0).tolist()
    json.dumps(found, allow_nan=False)


def test_lerobot_s_own_features_keep_their_names(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "set", cameras=())
    found = as_form(rlds2buf.statistics(root), "lerobot")
    recorded = json.loads((root / "meta/stats.json").read_text())
    shared = found.keys() & recorded.keys()
    assert shared == {"action", "observation.state", "timestamp", "task_index"}
    for name in shared:
        for key in KEYS:
            np.testing.assert_allclose(found[name][key], recorded[name][key], rtol=1e-6, err_msg=f"{name} {key}")
    elsewhere = rlds2buf.statistics([Episode(action=ACTION, extras={"timestamp": STATE[:, 0]})])
    assert set(as_form(elsewhere, "lerobot")) == {"action", "source.timestamp"}


def test_fields_are_joined_in_the_order_given() -> None:
    found = as_form(STATS, "openpi", state=["observation/other", "observation/state"])["norm_stats"]["state"]
    expected = np.concatenate([STATE[:, :1], STATE], axis=1)
    assert found["q01"] == np.quantile(expected, 0.01, axis=0).tolist()
    both = rlds2buf.statistics([Episode(action={"b": ACTION, "a": STATE})])
    assert as_form(both, "octo")["action"]["max"] == [*STATE[:-1].max(0), *ACTION[:-1].max(0).tolist()]


class TestTheState:
    @pytest.mark.parametrize(
        "observation",
        [STATE, {"q": STATE}, {"proprio": STATE, "goal": STATE[:, 0]}, {"robot": {"state": STATE}, "t": STATE[:, 0]}],
    )
    def test_is_found(self, observation: Any) -> None:
        found = as_form(made(observation=observation), "openpi")["norm_stats"]["state"]
        assert found["q99"] == np.quantile(STATE, 0.99, axis=0).tolist()

    def test_is_asked_for_where_there_are_several(self) -> None:
        stats = made(observation={"a": STATE, "b": STATE})
        with pytest.raises(ValueError, match=r"state: say which .* there are observation/a, observation/b"):
            as_form(stats, "octo")

    def test_may_be_absent_but_for_openpi(self) -> None:
        assert "proprio" not in as_form(made(), "octo") and "proprio" not in as_form(made(), "openvla")["memory"]
        with pytest.raises(ValueError, match="no numbers in the observation"):
            as_form(made(), "openpi")


@pytest.mark.parametrize(
    ("form", "options", "words"),
    [
        ("pi", {}, "for must be one of lerobot, openpi, octo, openvla"),
        ("octo", {"mask": "action[0]"}, "mask: octo has none"),
        ("openvla", {"mask": "action"}, "mask: expected the dimensions"),
        ("openvla", {"mask": "action[9]"}, "mask: the action has 7 dimensions, none is 9"),
        ("octo", {"action": ["observation/stat"]}, "action: no statistics of 'observation/stat'; is it"),
        ("octo", {"state": ["nothing"]}, "state: no statistics of 'nothing'"),
    ],
)
def test_what_does_not_fit(form: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_form(STATS, form, **options)


def test_data_without_actions_or_finite_values() -> None:
    with pytest.raises(ValueError, match="action: the data have no numbers of that name"):
        as_form(rlds2buf.statistics([Episode(observation=STATE)]), "octo")
    stats = rlds2buf.statistics([Episode(action=np.full((3, 1), np.nan))], allow_nonfinite=True)
    for form in ("octo", "lerobot"):
        with pytest.raises(ValueError, match="action has a dimension without a finite value"):
            as_form(stats, form)


def test_every_form_has_a_file() -> None:
    assert set(FORMS) == {"lerobot", "openpi", "octo", "openvla"}


def test_files_are_written_at_once_and_never_through_links(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    write_file(path, "one")
    with pytest.raises(SinkError, match=r"stats\.json: a file is there already; overwrite=True replaces it"):
        write_file(path, "two")
    write_file(path, "two", overwrite=True)
    assert path.read_text() == "two" and [one.name for one in tmp_path.iterdir()] == ["stats.json"]
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "folder").mkdir()
    for name in ("link", "folder"):
        with pytest.raises(SinkError, match="something that is no plain file is there already"):
            write_file(tmp_path / name, "x", overwrite=True)
    with pytest.raises(SinkError, match="absent"):
        write_file(tmp_path / "absent" / "a.json", "x")
