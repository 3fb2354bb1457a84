"""What batches, reports, buffers and specs look like when printed."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, EpisodeBatch, FieldSpec, StepSpec
from rlds2buf.core import nest
from rlds2buf.core.sample import Sample, SampleInfo, Transition
from rlds2buf.formats.reverb.table_sink import ServerCount
from rlds2buf.pipeline.conversion import ConvertReport
from rlds2buf.reverb.push import PushReport

EPISODE = Episode(
    observation={"q": np.zeros((5, 3), np.float32), "note": np.array([b"a"] * 5, object)},
    action=np.zeros(5, np.int64),
    reward=np.ones(5, np.float32),
    index=4,
)
SPEC = rlds2buf.spec_of(EPISODE)


def filled(**options: Any) -> Any:
    buffer = rlds2buf.make_circular(SPEC, 100, seed=0, **options)
    buffer.add(EPISODE)
    return buffer


def test_a_sample_says_shapes_and_types() -> None:
    text = """\
Sample
  data: Transition
    observation/note       string[8]
    observation/q          float32[8, 3]
    action                 int64[8]
    reward                 float32[8]
    discount               float32[8]
    next_observation/note  string[8]
    next_observation/q     float32[8, 3]
    is_done                uint8[8]
    steps                  int32[8]
    bootstrap_discount     float32[8]
  info: SampleInfo
    key                    uint64[8]
    probability            float64[8]
    priority               float64[8]
    weight                 float64[8]
    table_size             4"""
    batch = filled().sample(8)
    assert repr(batch) == str(batch) == text


def test_parts_of_a_sample() -> None:
    data, info = filled().sample(8, sequence_length=2)
    assert repr(data).splitlines()[:3] == [
        "Trajectory",
        "  observation/note       string[8, 2]",
        "  observation/q          float32[8, 2, 3]",
    ]
    assert repr(info).splitlines()[1] == "  key          uint64[8]"
    pairs = rlds2buf.step_pairs([EPISODE.replace(discount=np.ones(5, np.float32))])
    assert repr(pairs).splitlines()[:2] == ["StepPairs", "  step_type         int32[5]"]
    wanted = rlds2buf.item_spec(StepSpec(FieldSpec((2,), np.float32), FieldSpec((), np.int64)))
    assert "  action              FieldSpec(int64[])" in repr(wanted).splitlines()


def test_named_tuples_stay_named_tuples() -> None:
    batch = filled().sample(4)
    data, info = batch
    assert isinstance(batch, tuple) and isinstance(data, Transition) and isinstance(info, SampleInfo)
    assert data._asdict().keys() == set(Transition._fields) and data[2] is data.reward
    assert data == data._replace(reward=data.reward) and Sample(*batch) == batch
    for again in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert isinstance(again, Sample) and again.info.key.tolist() == info.key.tolist()
    doubled = nest.map_structure(lambda leaf: leaf if np.ndim(leaf) == 0 else leaf[:2], batch)
    assert isinstance(doubled.data, Transition) and len(doubled.data.reward) == 2


def test_what_holds_several_policies() -> None:
    buffer = rlds2buf.make_multi_agent({"ant": (SPEC, {}), "bee": (SPEC, {})}, seed=0)
    buffer.add({"ant": EPISODE})
    lines = repr(buffer).splitlines()
    assert lines[:2] == ["<MultiAgentBuffer: independent, items by policy: ant: 4, bee: 0>", "  ant"]
    assert lines[3] == "    observation/q     float32[3]"
    assert repr(buffer.sample(3)).splitlines()[:3] == ["MultiAgentSample", "  ant: Sample", "    data: Transition"]


def test_buffers() -> None:
    assert (
        repr(filled())
        == """\
<Buffer: circular, 4 transitions, capacity 100 rows>
  observation/note  string[]
  observation/q     float32[3]
  action            int64[]
  reward            float32[]"""
    )
    mixed = rlds2buf.MixedBuffers([filled(), filled()])
    assert repr(mixed).splitlines()[::3] == ["<MixedBuffers: 2 buffers, 8 items>", "  action            int64[]"]
    assert repr(mixed.sample(2).info).splitlines()[-1] == "  source_id    int32[2]"
    pair = (FieldSpec((2,), np.float32, low=-4.8), FieldSpec((), np.int64, values=(0, 1)))
    for made, title in (
        (rlds2buf.make_on_policy(pair, 4), "<OnPolicyBuffer: 0 of 4 steps, 1 environment, gae>"),
        (rlds2buf.make_cost_replay(pair, 4), "<CostReplay: 0 of 4 transitions, 1 environment>"),
    ):
        lines = [" ".join(line.split()) for line in repr(made).splitlines()]
        assert lines[:3] == [title, "observation float32[2], low=-4.8", "action int64[], values=(0, 1)"]


def test_a_rollout() -> None:
    buffer = rlds2buf.make_on_policy((FieldSpec((2,), np.float32), FieldSpec((), np.int64)), 4)
    buffer.store(observation=np.zeros((3, 2)), action=[0, 1, 0], reward=np.ones(3), terminated=[False, False, True])
    lines = repr(buffer.get()).splitlines()
    assert lines[:2] == ["Rollout", "  observation     float32[3, 2]"]
    assert len(lines) == 14


def test_episodes() -> None:
    assert repr([EPISODE]) == "[<Episode 4: 5 steps, truncated>]"
    assert str(EPISODE).splitlines() == [
        "<Episode 4: 5 steps, truncated>",
        "  observation/note  string[5]",
        "  observation/q     float32[5, 3]",
        "  action            int64[5]",
        "  reward            float32[5]",
    ]
    batch = EpisodeBatch.of([EPISODE, EPISODE])
    assert repr(batch) == "<EpisodeBatch: 2 episodes, 10 steps>"
    assert str(batch).splitlines()[2] == "  observation/q     float32[10, 3]"


def test_specs() -> None:
    low = np.arange(100, dtype=np.float32).reshape(10, 10).tolist()
    spec = StepSpec(
        observation={f"camera_{i:02}": FieldSpec((10, 10), np.float32, low=low) for i in range(40)},
        action=FieldSpec((), np.int64, values=tuple(range(256))),
    )
    lines = repr(spec).splitlines()
    assert lines[:2] == ["StepSpec", "  observation/camera_00  float32[10, 10], low=[0.0, ..., 99.0]"]
    assert len(lines) == 25 and lines[-1] == "  and 20 more" and max(map(len, lines)) < 100
    assert repr(spec.action) == "FieldSpec(int64[], values=(0, ..., 255))"
    assert repr(FieldSpec((), np.float32, low=float(np.float32(-4.8)))) == "FieldSpec(float32[], low=-4.8)"


def test_reports() -> None:
    episodes = [EPISODE, Episode(observation=EPISODE.observation, action=EPISODE.action, reward=np.full(5, np.nan))]
    episodes[1].reward = episodes[1].reward.astype(np.float32)
    report = rlds2buf.convert(episodes, [], on_invalid="skip")
    lines = str(report).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["episodes", "steps", "items", "seconds", "left"]
    assert "1 of 2 read" in lines[1] and "nonfinite 1" in lines[-1]
    checked = rlds2buf.validate(episodes)
    assert repr(checked) == str(checked) and "error nonfinite (1)" in repr(checked)


def test_a_push_report() -> None:
    conversion = ConvertReport("a.hdf5", "reverb://localhost:8123/replay", read=3, episodes=3, items=40, seconds=0.5)
    columns = {"observation": "float32[2, 3]"}
    report = PushReport(conversion, "replay", columns, [ServerCount("localhost:8123", 10, 50)], 40, notes=["so"])
    assert (
        str(report)
        == """\
a.hdf5 -> reverb://localhost:8123/replay, table replay
  episodes            3 of 3 read
  items               40, 40 acknowledged in this run
  seconds             0.5
  localhost:8123      10 -> 50 items
  note                so
  column observation  float32[2, 3]"""
    )


@pytest.mark.parametrize("leaf", [None, 3, "text", object(), np.float32(2.5), [1, 2]])
def test_odd_leaves_are_printed_too(leaf: Any) -> None:
    shown = repr(Transition(leaf, leaf, leaf, leaf, leaf))
    assert shown.startswith("Transition") and len(shown.splitlines()) == (1 if leaf is None else 6)
