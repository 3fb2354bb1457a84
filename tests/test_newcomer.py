"""Mistakes that a newcomer makes, and what he is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf import FieldSpec, GoalMap, SpecMismatch, StepSpec

SPEC = StepSpec(observation=FieldSpec((), np.float64), action=FieldSpec((), np.int64))
STEP: dict[str, Any] = {"observation": 0.0, "action": 0, "reward": 1.0, "next_observation": 1.0}


@pytest.mark.parametrize("name", ["done", "dones", "terminal", "is_terminal", "info"])
def test_a_transition_with_another_name_for_its_end_is_refused(name: str) -> None:
    buffer = rlds2buf.make_circular(SPEC, 10)
    for data in ({**STEP, name: True}, [{**STEP, name: True}]):
        for call in (buffer.add, buffer.check):
            with pytest.raises(SpecMismatch, match=r"no such field.*terminated") as caught:
                call(data)
            assert caught.value.path == name
    assert len(buffer) == 0


def test_a_transition_as_sampled_goes_in_again() -> None:
    buffer = rlds2buf.make_circular(SPEC, 10, seed=0)
    buffer.add({**STEP, "terminated": True})
    buffer.add(buffer.sample(3).data)
    assert buffer.all().is_done.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["done", "dones", "terminal", "terminals"])
def test_steps_with_another_name_for_their_end_are_refused(name: str) -> None:
    steps = [{"observation": 0.0, name: i == 2} for i in range(3)]
    with pytest.raises(SpecMismatch, match="is_terminal"):
        list(rlds2buf.open_source([steps]))
    named = [{**step, "is_terminal": i == 2} for i, step in enumerate(steps)]
    (episode,) = rlds2buf.open_source([named])
    assert episode.end == "terminated" and name in episode.extras


@pytest.mark.parametrize("make", [rlds2buf.make_circular, rlds2buf.make_prioritized, rlds2buf.make_reservoir])
def test_what_buffers_are_made_of(make: Any) -> None:
    for wrong in ("4", (1, 2), rlds2buf.open_source([[{"observation": 0.0}]])):
        with pytest.raises(TypeError, match="spec must be a StepSpec"):
            make(wrong, 10)


EPISODE = rlds2buf.Episode(observation=np.arange(5.0), action=np.zeros(5, np.int64), reward=np.ones(5))
WHOLE = rlds2buf.spec_of(EPISODE)


def filled() -> Any:
    buffer = rlds2buf.make_circular(WHOLE, 10, seed=0)
    buffer.add(EPISODE)
    return buffer


COUNTS: dict[str, Callable[[Any], object]] = {
    "make_circular capacity": lambda n: rlds2buf.make_circular(SPEC, n),
    "make_prioritized capacity": lambda n: rlds2buf.make_prioritized(SPEC, n),
    "make_reservoir capacity": lambda n: rlds2buf.make_reservoir(SPEC, n),
    "make_circular item_length": lambda n: rlds2buf.make_circular(SPEC, 9, storage_unit="sequences", item_length=n),
    "make_circular n_step": lambda n: rlds2buf.make_circular(SPEC, 9, view={"n_step": n}),
    "make_on_policy size": lambda n: rlds2buf.make_on_policy(SPEC, n),
    "make_on_policy num_envs": lambda n: rlds2buf.make_on_policy(SPEC, 9, num_envs=n),
    "make_cost_replay size": lambda n: rlds2buf.make_cost_replay(SPEC, n),
    "make_cost_replay batch_size": lambda n: rlds2buf.make_cost_replay(SPEC, 9, batch_size=n),
    "sample batch_size": lambda n: filled().sample(n),
    "sample n_step": lambda n: filled().sample(2, n_step=n),
    "sample sequence_length": lambda n: filled().sample(2, sequence_length=n),
    "sample burn_in": lambda n: filled().sample(2, sequence_length=2, burn_in=n),
    "sample_many count": lambda n: filled().sample_many(n, 2),
    "batches batch_size": lambda n: next(filled().batches(n, prefetch=0)),
    "batches prefetch": lambda n: filled().batches(2, prefetch=n).close(),
    "batches together": lambda n: next(filled().batches(2, together=n, prefetch=0)),
    "resize capacity": lambda n: filled().resize(n),
    "multi-agent batch_size": lambda n: rlds2buf.make_multi_agent({"ant": filled()}).sample(n),
    "multi-agent num_shards": lambda n: rlds2buf.make_multi_agent({"ant": filled()}, num_shards=n),
    "windows length": lambda n: rlds2buf.windows(EPISODE, n),
    "windows stride": lambda n: rlds2buf.windows(EPISODE, 2, stride=n),
    "transitions n_step": lambda n: rlds2buf.transitions(EPISODE, n_step=n),
    "sample_min_n_steps num_steps": lambda n: rlds2buf.sample_min_n_steps(filled(), n, sequence_length=2),
}


@pytest.mark.parametrize("what", COUNTS)
@pytest.mark.parametrize("wrong", [2.0, np.float32(2), "2", True, np.True_, [2]], ids=repr)
def test_counts_are_integers(what: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"{what.split()[-1]} must be an integer, got") as caught:
        COUNTS[what](wrong)
    assert type(wrong).__name__ in str(caught.value)


@pytest.mark.parametrize("what", COUNTS)
@pytest.mark.parametrize("right", [2, np.int64(2), np.uint8(2)], ids=repr)
def test_counts_of_numpy_are_integers(what: str, right: Any) -> None:
    COUNTS[what](right)


@pytest.mark.parametrize("what", COUNTS)
def test_counts_out_of_range(what: str) -> None:
    with pytest.raises(ValueError, match=f"{what.split()[-1]} must (be at least 1|not be negative), got -1"):
        COUNTS[what](-1)


@pytest.mark.parametrize("wrong", ["0.9", None, [0.9]])
def test_gamma_is_a_number(wrong: Any) -> None:
    with pytest.raises(TypeError, match="gamma must be a number"):
        rlds2buf.transitions(EPISODE, gamma=wrong)


@pytest.mark.parametrize("name", ["size", "max_size", "buffer_size", "maxlen", "capacty"])
@pytest.mark.parametrize("make", [rlds2buf.make_circular, rlds2buf.make_prioritized, rlds2buf.make_reservoir])
def test_another_name_of_the_capacity(make: Any, name: str) -> None:
    with pytest.raises(TypeError, match=rf"{make.__name__}\(\) takes no '{name}'; did you mean capacity\?"):
        make(SPEC, **{name: 10})


def test_options_of_drawing_are_not_those_of_the_factory() -> None:
    with pytest.raises(TypeError, match=r"did you mean view=\{'n_step': \.\.\.\}, or n_step= of sample\(\)"):
        rlds2buf.make_circular(SPEC, 10, n_step=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"view has no option 'n_steps'; did you mean n_step\?"):
        rlds2buf.make_circular(SPEC, 10, view={"n_steps": 3})
    with pytest.raises(TypeError, match="view is a mapping"):
        rlds2buf.make_circular(SPEC, 10, view="transitions")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"no argument 'nstep'; did you mean n_step\?"):
        filled().batches(2, nstep=3)


def test_a_dataset_is_no_episode() -> None:
    buffer = rlds2buf.make_circular(WHOLE, 10)
    with rlds2buf.open_source([EPISODE]) as source:
        with pytest.raises(TypeError, match=r"rlds2buf\.convert\(source, buffer\).*for batch in source\.batches\(\)"):
            buffer.add(source)
        for batch in source.batches():  # as it says
            buffer.add(batch)
    assert len(buffer) == 4
    for path in ("hopper.hdf5", Path("hopper.hdf5")):
        with pytest.raises(TypeError, match=r"rlds2buf\.convert\('hopper\.hdf5', buffer\)"):
            buffer.add(path)
    with pytest.raises(TypeError, match=r"buffer\.add\(list\(data\)\)"):
        buffer.add(iter([EPISODE]))
    with pytest.raises(TypeError, match=r"buffer\.add\(other\.all\(\)\)"):
        buffer.add(filled())
    assert len(buffer) == 4


def test_a_dataset_is_no_saved_buffer(tmp_path: Path) -> None:
    (tmp_path / "a.hdf5").write_bytes(b"")
    with pytest.raises(rlds2buf.SnapshotCorrupt, match=r"a file, .* by rlds2buf\.convert\(path, folder\)"):
        rlds2buf.load_buffer(tmp_path / "a.hdf5")


@pytest.mark.parametrize("wrong", ["a.hdf5", Path("a.hdf5"), None, rlds2buf.open_source([EPISODE])], ids=str)
def test_a_mixture_is_of_several(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"a mixture is of a list of sources, such as \[path, other_path\]"):
        rlds2buf.open_mixture(wrong)


def test_what_can_not_be_read_at_all() -> None:
    if not Path("/proc/self/mem").exists():  # Linux has it: it opens, and its first byte can't be read
        return
    with pytest.raises(rlds2buf.SourceError, match="can't be opened"):
        rlds2buf.open_source("/proc/self/mem")


def test_batches_of_no_framework() -> None:
    with pytest.raises(ValueError, match="to must be one of numpy, torch, tf, jax, got 'cupy'"):
        filled().batches(2, to="cupy")


@pytest.mark.parametrize("name", ["torch", "tf", "jax"])
def test_batches_of_a_framework_that_is_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}[name]
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not there
    with pytest.raises(rlds2buf.MissingDependency, match=f"pip install {package}"):
        filled().batches(2, to=name)


def test_item_spec_of_a_view_by_any_of_its_names() -> None:
    assert rlds2buf.item_spec(WHOLE, "transition") == rlds2buf.item_spec(WHOLE, "transitions")
    assert (
        rlds2buf.item_spec(WHOLE, "pair")
        == rlds2buf.item_spec(WHOLE, "step_pairs")
        == rlds2buf.item_spec(WHOLE, "pairs")
    )
    assert rlds2buf.item_spec(WHOLE, "window", length=3) == rlds2buf.item_spec(WHOLE, "windows", length=3)
    with pytest.raises(ValueError, match="view must be one of transitions, pairs, windows, got 'rows'"):
        rlds2buf.item_spec(WHOLE, "rows")
    with pytest.raises(TypeError, match="StepSpec"):
        rlds2buf.item_spec(EPISODE)  # type: ignore[arg-type]


GOALS = StepSpec(
    observation={"achieved": FieldSpec((2,), np.float32), "desired": FieldSpec((2,), np.float32)},
    action=FieldSpec((), np.int64),
    reward=FieldSpec((), np.float32),
)


def met(observation: Any, action: Any, after: Any) -> Any:
    return (after["achieved"] == after["desired"]).all(1)


@pytest.mark.parametrize(
    "goals",
    [
        GoalMap("achieved", "desired"),
        [GoalMap("achieved", "desired")],
        [("achieved", "desired")],
        (["achieved", "desired"],),
        [{"achieved": "achieved", "desired": "desired"}],
        [(("achieved", [1]), ("desired", [1]))],
    ],
    ids=str,
)
def test_goals_as_they_may_be_given(goals: Any) -> None:
    buffer = rlds2buf.make_hindsight(GOALS, 10, goals=goals, reward_fn=met, done_fn=met)
    assert repr(buffer).splitlines()[0] == "<Buffer: hindsight, 0 transitions, capacity 10 rows>"


@pytest.mark.parametrize(
    "goals", ["achieved", ["achieved", "desired"], {"achieved": "desired"}, None, [None], [()]], ids=str
)
def test_goals_that_are_none(goals: Any) -> None:
    with pytest.raises(TypeError, match=r"GoalMap\(achieved, desired\)"):
        rlds2buf.make_hindsight(GOALS, 10, goals=goals, reward_fn=met, done_fn=met)


@pytest.mark.parametrize("name", ["reward_fn", "done_fn"])
def test_functions_are_functions(name: str) -> None:
    functions = {"reward_fn": met, "done_fn": met, name: "sparse"}
    with pytest.raises(ValueError, match=f"{name} must be a function, got 'sparse'"):
        rlds2buf.make_hindsight(GOALS, 10, goals=[GoalMap("achieved", "desired")], **functions)  # type: ignore[arg-type]


def test_policies_are_a_mapping() -> None:
    for wrong in ([filled()], filled(), None):
        with pytest.raises(TypeError, match="policies is a mapping of policy id to buffer"):
            rlds2buf.make_multi_agent(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"policy 'ant' needs a buffer.*'capacity': 1000.*got StepSpec"):
        rlds2buf.make_multi_agent({"ant": SPEC})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"options of policy 'ant' are a mapping.*got 10"):
        rlds2buf.make_multi_agent({"ant": (SPEC, 10)})  # type: ignore[dict-item]


def test_what_a_buffer_looks_like() -> None:
    assert repr(filled()).splitlines()[0] == "<Buffer: circular, 4 transitions, capacity 10 rows>"
    whole = rlds2buf.make_prioritized(WHOLE, 2_000, capacity_unit="episodes", storage_unit="episodes")
    whole.add(EPISODE)
    assert repr(whole).splitlines()[0] == "<Buffer: prioritized, 1 episodes, capacity 2,000 episodes>"
    both = rlds2buf.make_multi_agent({"ant": filled(), "bee": rlds2buf.make_circular(WHOLE, 10)})
    assert repr(both).splitlines()[0] == "<MultiAgentBuffer: independent, items by policy: ant: 4, bee: 0>"
