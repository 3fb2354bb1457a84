"""Returns added as columns while converting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, SnapshotError, SpecMismatch
from rlds2buf.returns import annotate
from tests.cli.run import run
from tests.made import MADE

HOPPER = MADE / "d4rl/hopper_medium-v2.hdf5"
NAMES = ["return_to_go", "discounted_return"]


def episodes(count: int = 3) -> list[Episode]:
    rng = np.random.default_rng(0)
    return [
        Episode(
            observation=np.arange(5.0),
            action=np.zeros(5),
            reward=rng.normal(size=5),
            discount=np.ones(5),
            is_last=np.arange(5) == 4,
            extras={"cost": rng.random(5)},
        )
        for _ in range(count)
    ]


def test_into_a_list_and_a_buffer() -> None:
    given = episodes()
    for add in ("return_to_go", ["return_to_go", "discounted_cost"]):
        written: list[Episode] = []
        rlds2buf.convert(given, written, add=add, gamma=0.5)
        for mine, source in zip(written, given, strict=True):
            expected = annotate(source, add=add, gamma=0.5)
            assert sorted(mine.extras) == sorted(expected.extras)
            for name in expected.extras:
                np.testing.assert_array_equal(mine.extras[name], expected.extras[name])
            np.testing.assert_array_equal(mine.reward, source.reward)
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(annotate(given[0])), 100)
    rlds2buf.convert(given, buffer, add=NAMES)
    first = annotate(given[0]).extras["discounted_return"]
    np.testing.assert_array_equal(buffer.all().extras["discounted_return"][:4], first[:4])


def test_real_rewards_in_last_rows() -> None:
    """Where the last row's reward is real, it is part of the return."""
    written: list[Episode] = []
    (source,) = episodes(1)
    source = source.replace(is_terminal=source.is_last)
    rlds2buf.convert([source], written, final_transition="keep", add="return_to_go")
    assert written[0].num_steps == 6 and written[0].extras["return_to_go"][5] == 0
    np.testing.assert_allclose(written[0].extras["return_to_go"][0], source.reward.sum())


def test_what_is_recorded(tmp_path: Path) -> None:
    report = rlds2buf.convert(HOPPER, tmp_path / "hopper", add=NAMES, gamma=0.9)
    buffer = rlds2buf.load_buffer(tmp_path / "hopper")
    assert buffer.provenance["options"]["add"] == NAMES and buffer.provenance["options"]["gamma"] == 0.9
    data = buffer.all()
    assert len(data.reward) == report.items
    ends = np.flatnonzero(data.is_done)
    start = 0
    for end in ends.tolist():
        rewards = data.reward[start : end + 1].astype(np.float64)
        total, discounted = 0.0, 0.0
        for t in range(len(rewards) - 1, -1, -1):
            total, discounted = total + rewards[t], rewards[t] + 0.9 * discounted
            assert data.extras["return_to_go"][start + t] == pytest.approx(total, rel=1e-5)
            assert data.extras["discounted_return"][start + t] == pytest.approx(discounted, rel=1e-5)
        start = end + 1
    assert start == len(data.reward)


def test_resuming_with_other_columns_is_refused(tmp_path: Path) -> None:

    from rlds2buf.pipeline.opening import open_sink

    sink = open_sink(tmp_path / "out", resume=True)
    spec = rlds2buf.spec_of(episodes(1)[0])
    with rlds2buf.open_source(episodes()) as source:
        provenance = {"source": source.name, "fingerprint": source.fingerprint(), "options": {"add": NAMES}}
    sink.open(spec, provenance)
    sink.write(episodes(1)[0])
    sink.checkpoint({"read": 1})
    sink.abort()
    with pytest.raises(SnapshotError, match="other options"):
        rlds2buf.convert(episodes(), tmp_path / "out", resume=True, add="return_to_go")


@pytest.mark.parametrize(
    ("add", "options", "error", "what"),
    [
        ("return", {}, ValueError, "known: return_to_go"),
        ("return_to_go", {"gamma": 1.5}, ValueError, "gamma"),
        (["return_to_go", "cost"], {}, ValueError, "'cost'"),
    ],
)
def test_mistakes(add: Any, options: dict[str, Any], error: type[Exception], what: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=what):
        rlds2buf.convert(episodes(), tmp_path / "out", add=add, **options)
    assert not list(tmp_path.iterdir())


def test_no_rewards() -> None:
    bare = Episode(observation=np.arange(3.0), action=np.zeros(3), is_last=np.arange(3) == 2)
    with pytest.raises(SpecMismatch, match="reward"):
        rlds2buf.convert([bare], [], add="return_to_go")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "return_to_go, discounted_return"
    done = run(capsys, "convert", HOPPER, tmp_path / "out", "--add", names, "--gamma", 0.5, "--json")
    assert done.code == 0 and done.json["episodes"] == 2
    assert rlds2buf.load_buffer(tmp_path / "out").provenance["options"]["add"] == NAMES
    wrong = run(capsys, "convert", HOPPER, tmp_path / "other", "--add", "nonsense")
    assert wrong.code == 2 and "nonsense" in wrong.err
    none = run(capsys, "convert", HOPPER, tmp_path / "other", "--add", "cost_to_go")
    assert none.code == 1 and "cost" in none.err
    assert not (tmp_path / "other").exists()
