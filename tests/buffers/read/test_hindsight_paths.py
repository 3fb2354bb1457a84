"""Goals in hindsight along n-step paths, across sources, and where a final row was not recorded; by the naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2buf import Transition
from tests.buffers.goals import WANTED, assert_relabelled, done_fn, reward_fn, wanted_of
from tests.buffers.rows.both import Both, operations, perform
from tests.reference import runs as reference
from tests.reference.hindsight import relabel
from tests.reference.replay import ListReplay


def picked_by(both: Both, batch: Transition, serials: list[int], strategy: str, current: bool) -> list[int | None]:
    """Which transition each goal came from, told by the goal; every one is allowed."""
    twin = both.twin
    reached = {twin.transition(serial)["next_observation"]["state"][1]: serial for serial in twin.keys()}
    chains = {serial: chain for chain in reference.runs(twin) for serial in chain}
    picked: list[int | None] = []
    for serial, goal in zip(serials, wanted_of(batch).tolist(), strict=True):
        if goal == WANTED:
            picked.append(None)
            continue
        picked.append(reached[goal])
        assert picked[-1] in reference.picks(chains[serial], serial, strategy, current, both.unrecorded)
    return picked


def path(twin: ListReplay, serial: int, pick: int | None, n: int, gamma: float, unrecorded: set[int]) -> dict[str, Any]:
    """The n-step transition from a serial on, every step of it with the goal that the pick reached."""
    reward, product, steps = 0.0, 1.0, 0
    at: int | None = twin._position(serial)
    first = None
    while at is not None and steps < n:
        row = twin.rows[at]
        if pick is not None and row.serial in unrecorded:
            break
        stored = twin.transition(row.serial)
        step = {"obs": stored["observation"], "next_obs": stored["next_observation"], **stored}
        if pick is not None:
            pair = [step, {**step, "next_obs": twin.transition(pick)["next_observation"]}]
            step = relabel(pair, [(("state", [1, 2]), ("goal", [0, 1]))], [[1], []], reward_fn, done_fn)[0]
        first = first or step
        discount = stored["discount"]
        if step["is_done"] == 1:
            discount = 0.0
        elif stored["is_done"] == 1:
            discount = 1.0
        reward += product * step["reward"]
        whole = product * discount
        product = whole * gamma
        steps += 1
        last = step
        if step["is_done"]:
            break
        at = twin._after(at)
    assert first is not None
    return {
        "observation": first["obs"],
        "next_observation": last["next_obs"],
        "action": first["action"],
        "reward": reward,
        "discount": whole,
        "bootstrap_discount": whole * gamma,
        "is_done": last["is_done"],
        "steps": steps,
    }


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(20, 60),
    operations(),
    st.sampled_from(["final", "episode", "future"]),
    st.booleans(),
    st.integers(1, 5),
    st.sampled_from([1.0, 0.5, 0.0]),
)
def test_paths_equal_the_twin(
    capacity: int, history: list[tuple[Any, ...]], strategy: str, current: bool, n: int, gamma: float
) -> None:
    both = Both(capacity, strategy=strategy, include_current=current, num_goals=1)
    for operation in history:
        perform(both, operation)
    both.add_steps([0, 0, 0, 2])
    twin = both.twin
    before = both.buffer.all()
    batch = both.buffer.sample(60, n_step=n, gamma=gamma)
    serials = [both.serial[key] for key in batch.info.key.tolist()]
    picked = picked_by(both, batch.data, serials, strategy, current)
    if n == 1:
        assert_relabelled(batch.data, twin, serials, picked, gamma)
    for i, (serial, pick) in enumerate(zip(serials, picked, strict=True)):
        expected = path(twin, serial, pick, n, gamma, both.unrecorded)
        for side in ("observation", "next_observation"):
            for name in ("state", "goal"):
                np.testing.assert_array_equal(getattr(batch.data, side)[name][i], expected[side][name])
        for name in ("action", "steps", "is_done"):
            assert getattr(batch.data, name)[i] == expected[name], name
        for name in ("reward", "discount", "bootstrap_discount"):
            np.testing.assert_allclose(getattr(batch.data, name)[i], expected[name], rtol=1e-6, err_msg=name)
    after = both.buffer.all()
    for name in ("state", "goal"):
        np.testing.assert_array_equal(after.observation[name], before.observation[name])
        np.testing.assert_array_equal(after.next_observation[name], before.next_observation[name])


def test_a_path_ends_where_its_goal_is_met() -> None:
    both = Both(20, strategy="final", num_goals=10**6)  # practically every one gets a goal
    both.add_episode(5, "truncated")
    batch = both.buffer.sample(200, n_step=3, gamma=0.5)
    start = batch.data.action.astype(int)
    assert set(start.tolist()) == {0, 1, 2, 3}
    assert batch.data.steps.tolist() == np.minimum(3, 4 - start).tolist()
    assert batch.data.is_done.tolist() == np.where(start >= 1, 1, 0).tolist()
    np.testing.assert_allclose(batch.data.bootstrap_discount, np.where(start >= 1, 0, 0.9**3 * 0.5**3), rtol=1e-6)


def test_sequences_are_refused_and_stored_ones_are_not() -> None:
    both = Both(20)
    both.add_episode(6)
    with pytest.raises(ValueError, match="sequences"):
        both.buffer.sample(3, sequence_length=2)
    assert both.buffer.get(both.buffer.keys(), sequence_length=3).mask.shape == (5, 3)
    assert both.buffer.get(both.buffer.keys(), n_step=2).steps.tolist() == [2, 2, 2, 2, 1]
    both = Both(20, while_sampling=False)
    both.add_episode(6)
    assert both.buffer.sample(3, sequence_length=2).data.mask.shape == (3, 2)


# -- final rows that were not recorded --------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["final", "episode", "future"])
@pytest.mark.parametrize("rows", [2, 3, 6])
def test_a_placeholder_is_never_reached(strategy: str, rows: int, tmp_path: Any) -> None:
    both = Both(40, strategy=strategy, num_goals=3)
    both.add_episode(4)
    both.add_episode(rows, placeholder=True)
    both.add_episode(5, "truncated")
    last = max(both.unrecorded)
    from rlds2buf import load_buffer

    both.buffer.save(tmp_path / "saved")
    loaded = load_buffer(tmp_path / "saved", reward_fn=reward_fn, done_fn=done_fn)
    for buffer in (both.buffer, loaded):
        batch = buffer.sample(600)
        serials = [both.serial[key] for key in batch.info.key.tolist()]
        picked = picked_by(both, batch.data, serials, strategy, True)  # checks them
        assert last in serials
        assert all(pick is None for serial, pick in zip(serials, picked, strict=True) if serial == last)
        assert (batch.data.reward[[serial == last for serial in serials]] == -5.0).all()
        others = [pick for serial, pick in zip(serials, picked, strict=True) if serial != last]
        assert 0.6 < np.mean([pick is not None for pick in others]) < 0.9


def test_hindsight_of_an_episode_with_a_placeholder() -> None:
    both = Both(40, strategy="final", while_sampling=False)
    both.add_episode(5, placeholder=True)
    new = both.buffer.generate_hindsight(4)
    assert new.action.tolist() == [0, 1, 2]  # not the transition into the placeholder
    assert new.observation["goal"].tolist() == [[3.0, 3.5]] * 3
    assert both.buffer.generate_hindsight(2).action.tolist() == [2]
    assert len(both.buffer.generate_hindsight(1).reward) == 0
    assert len(both.buffer.add(both.buffer.generate_hindsight(1))) == 0
    both.add_episode(3)
    with pytest.raises(ValueError, match=r"the last 3 .*has 2"):
        both.buffer.generate_hindsight(3)


# -- new transitions beside the old ------------------------------------------------------------------


def test_transitions_that_stand_alone_follow_nothing() -> None:
    both = Both(100, strategy="future", num_goals=2, while_sampling=False)
    both.add_steps([0, 0, 0])
    new = both.buffer.generate_hindsight(3)
    keys = both.buffer.add(new, consecutive=False)
    assert both.buffer.get(keys, n_step=5).steps.tolist() == [1] * 6
    both.add_steps([0, 2])  # the episode goes on where it was
    stored = both.buffer.get([0, 1, 2], n_step=9)
    assert stored.steps.tolist() == [5, 4, 3] and stored.is_done.tolist() == [2, 2, 2]
    assert len(both.buffer.generate_hindsight(5).reward) == 10  # over the ones added between
    with pytest.raises(ValueError, match=r"the last 6 .*has 5"):
        both.buffer.generate_hindsight(6)
    batch = both.buffer.sample(50, n_step=3)
    assert batch.data.steps.max() == 3  # without goals put in, any view


def test_one_source_of_several() -> None:
    both = Both(100, strategy="final")
    for _ in range(3):
        both.add_steps([0, 0], [1, 2])
    both.add_steps([1], 1)
    new = both.buffer.generate_hindsight(3, source_id=2)
    assert new.action.tolist() == [1, 3, 5] and new.observation["goal"][:, 0].tolist() == [500005.0] * 3
    assert both.buffer.generate_hindsight(4).action.tolist() == [0, 2, 4, 6]  # the newest one's source
    for source_id, count in ((2, 4), (7, 1)):
        from rlds2buf import NotEnoughItems

        with pytest.raises(NotEnoughItems, match=f"source {source_id}"):
            both.buffer.generate_hindsight(count, source_id=source_id)
