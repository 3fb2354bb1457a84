"""TF-Agents' own observers, pushed for in bulk: items and state as TF-Agents' util gives them, on a real server."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rlds2buf.rlds_to_reverb import observers as own
from rlds2buf.rlds_to_reverb.api import convert_rlds_to_trajectories, create_trajectory_data_spec, push_rlds_to_reverb
from tests.full.quiet import reverb, reverb_utils, tensor_spec, tf, tf_agents_rlds_to_reverb
from tests.full.rlds_data import columns, dataset
from tests.full.test_rlds_to_reverb_push import assert_same_items, items

PUSHES = {"theirs": tf_agents_rlds_to_reverb.push_rlds_to_reverb, "ours": push_rlds_to_reverb}
KINDS = {
    "trajectory": reverb_utils.ReverbAddTrajectoryObserver,
    "across": reverb_utils.ReverbTrajectorySequenceObserver,
    "episode": reverb_utils.ReverbAddEpisodeObserver,
}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("trajectory", dict(sequence_length=1)),
    ("trajectory", dict(sequence_length=2, priority=3)),
    ("trajectory", dict(sequence_length=40, stride_length=5)),
    ("trajectory", dict(sequence_length=9, pad_end_of_episodes=True)),
    ("trajectory", dict(sequence_length=9, stride_length=4, pad_end_of_episodes=True, tile_end_of_episodes=True)),
    ("across", dict(sequence_length=2)),
    ("across", dict(sequence_length=11, stride_length=3)),
    ("across", dict(sequence_length=30, stride_length=7, pad_end_of_episodes=True)),
    ("episode", dict(max_sequence_length=2000)),
    ("episode", dict(max_sequence_length=10, bypass_partial_episodes=True)),
]

FEW = [SETTINGS[i] for i in (1, 4, 5, 7, 8, 9)]


def signature() -> Any:
    return tensor_spec.add_outer_dim(create_trajectory_data_spec(dataset([columns(2)])))


def table(name: str, limiter: Any = None) -> Any:
    """A table out of which items come in the order in which they went in, once each."""
    fifo = reverb.selectors.Fifo
    limiter = limiter or reverb.rate_limiters.MinSize(1)
    return reverb.Table(name, fifo(), fifo(), 100_000, limiter, max_times_sampled=1, signature=signature())


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    tables = [table(name) for name in ("theirs", "ours", "theirs-too", "ours-too")]
    tables += [table(f"{side}-queue", reverb.rate_limiters.Queue(30)) for side in PUSHES]
    server = reverb.Server(tables)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server: Any) -> Any:
    return server.localhost_client()


@pytest.fixture
def only_bulk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once called: an observer that is called is an error."""

    def refuse(*args: object) -> None:
        raise AssertionError("the observer was called")

    def begin() -> None:
        for kind in ("trajectory", "across", "episode"):
            monkeypatch.setattr(KINDS[kind], "__call__", refuse)

    return begin


def episodes(lengths: list[int], start: int = 0) -> list[dict[str, Any]]:
    """Episodes of these lengths, every other one truncated; no two steps look alike."""
    out = []
    for number, rows in enumerate(lengths):
        terminal = (np.arange(rows) == rows - 1) & (number % 2 == 0)
        out.append(columns(rows, start, is_terminal=terminal))
        start += rows
    return out


LENGTHS = [3, 1, 1, 11, 8, 9, 10, 60, 1, 2, 31]


def state(observer: Any) -> dict[str, Any]:
    """What an observer knows of the steps it has seen."""
    held = {name: value for name, value in vars(observer).items() if name in ("_cached_steps", "_overflow_episode")}
    last = vars(observer).get("_last_trajectory")
    return {**held, "last": None if last is None else [np.asarray(leaf).tolist() for leaf in tf.nest.flatten(last)]}


def both(client: Any, kind: str, settings: dict[str, Any], act: Callable[[Any, Any], None], name: str = "") -> int:
    """Do the same with an observer for either push; items and states have to be the same. How many items there are."""
    states, found = {}, {}
    for side, push in PUSHES.items():
        observer = KINDS[kind](client, f"{side}{name}", **settings)
        act(observer, push)
        observer.flush()
        states[side] = state(observer)
        observer.close()
        found[side] = items(client, f"{side}{name}")
    assert states["ours"] == states["theirs"]
    assert_same_items(found["ours"], found["theirs"])
    return len(found["ours"])


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_the_items_are_theirs_whatever_the_settings(
    client: Any, kind: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = dataset(episodes(LENGTHS))
    found = {}
    for side, push in PUSHES.items():
        observer = KINDS[kind](client, side, **settings)
        assert push(data, observer) == sum(LENGTHS)
        observer.flush()
        found[side] = items(client, side)
    assert found["theirs"]
    assert_same_items(found["ours"], found["theirs"])
    # In pieces of four frames, too.
    monkeypatch.setattr("rlds2buf.rlds_to_reverb.graph.MAX_ROWS", 4)
    monkeypatch.setattr(own, "PIECE", 0)
    push_rlds_to_reverb(data, KINDS[kind](client, "ours", **settings))
    assert_same_items(items(client, "ours"), found["theirs"])


@pytest.mark.parametrize(("kind", "settings"), FEW)
def test_an_observer_goes_on_as_if_it_had_seen_all(client: Any, kind: str, settings: dict[str, Any]) -> None:
    before, between = episodes([5, 4]), episodes([6, 9], 100)
    frames = list(convert_rlds_to_trajectories(dataset(before)))
    later = list(convert_rlds_to_trajectories(dataset(between)))

    def act(observer: Any, push: Any) -> None:
        for frame in frames[:-2]:  # up to the middle of an episode
            observer(frame)
        push(dataset(episodes([3, 30, 1], 1000)), observer)
        for frame in later[:-3]:
            observer(frame)
        push(dataset(episodes([15, 1], 3000)), observer)
        observer.flush()

    both(client, kind, settings, act)


@pytest.mark.parametrize(("kind", "settings"), FEW)
def test_a_broken_step_leaves_items_and_observer_as_with_them(
    client: Any, kind: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlds2buf.rlds_to_reverb.graph.MAX_ROWS", 8)
    given = episodes([3, 90])
    given[1]["is_terminal"][70] = True
    later = list(convert_rlds_to_trajectories(dataset(episodes([12], 5000))))

    def act(observer: Any, push: Any) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Terminal step must be the last"):
            push(dataset(given), observer)
        for frame in later:
            observer(frame)

    both(client, kind, settings, act)


def test_padding_of_what_was_held_at_a_broken_step(client: Any) -> None:
    given = episodes([70])
    given[0]["is_terminal"][65] = True

    def act(observer: Any, push: Any) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError):
            push(dataset(given), observer)
        observer.reset(write_cached_steps=True)

    settings = dict(sequence_length=9, pad_end_of_episodes=True, tile_end_of_episodes=True)
    assert both(client, "trajectory", settings, act) == 65


def test_too_long_an_episode_raises_theirs(client: Any) -> None:
    def act(observer: Any, push: Any) -> None:
        with pytest.raises(ValueError, match="exceeds `max_sequence_length`"):
            push(dataset(episodes([3, 9, 11, 4])), observer)
        observer.reset(write_cached_steps=False)

    assert both(client, "episode", dict(max_sequence_length=10), act) == 2


def test_several_tables_hold_the_same(client: Any) -> None:
    for side, push in PUSHES.items():
        observer = KINDS["trajectory"](client, [side, f"{side}-too"], 3, stride_length=2)
        push(dataset(episodes(LENGTHS)), observer)
        observer.flush()
    found = {name: items(client, name) for name in ("ours", "theirs", "ours-too", "theirs-too")}
    assert len(found["ours"]) > 50
    for name in found:
        assert_same_items(found[name], found["theirs"])


@pytest.mark.parametrize("kind", ["trajectory", "across", "episode"])
def test_the_observer_is_not_called(client: Any, kind: str, only_bulk: Callable[[], None]) -> None:
    only_bulk()
    observer = KINDS[kind](client, "ours", 1000)
    assert push_rlds_to_reverb(dataset(episodes([3, 9])), observer) == 12
    items(client, "ours")


def test_the_table_s_episodes_and_priorities_are_theirs(client: Any) -> None:
    told = {}
    for side, push in PUSHES.items():
        observer = KINDS["trajectory"](client, side, 2, priority=2.5)
        before = client.server_info()[side].num_episodes
        push(dataset(episodes([70, 3, 1, 2])), observer)
        observer.flush()
        info = client.server_info()[side]
        sample = next(iter(client.sample(side, 1, emit_timesteps=False)))
        told[side] = info.num_episodes - before, info.current_size, sample.info.priority
        items(client, side)
    assert told["ours"] == told["theirs"] == (3, 72, 2.5)


def test_behind_a_rate_limiter_the_observer_waits(client: Any) -> None:
    """A table takes 30 items until somebody samples; as their writer does, the push then waits for that."""
    data = dataset(episodes([20, 25, 30]))
    found: dict[str, list[Any]] = {}
    for side, push in PUSHES.items():
        observer = KINDS["trajectory"](client, f"{side}-queue", 2)
        samples = client.sample(f"{side}-queue", 72, emit_timesteps=False)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            drawn = pool.submit(lambda samples=samples: [sample.data for sample in samples])
            assert push(data, observer) == 75
            observer.flush()
            found[side] = drawn.result(timeout=60)
        observer.close()
    assert_same_items(found["ours"], found["theirs"])


def test_what_is_not_as_tf_agents_makes_it_goes_step_by_step(client: Any) -> None:
    class Counting:
        """A client of somebody's own."""

        def __init__(self) -> None:
            self.writers = 0

        def trajectory_writer(self, *args: Any, **kwargs: Any) -> Any:
            self.writers += 1
            return client.trajectory_writer(*args, **kwargs)

        def server_info(self) -> Any:
            return client.server_info()

    mine = Counting()
    observer = KINDS["trajectory"](mine, "ours", 2)
    assert own.settings_of(observer) is None
    assert push_rlds_to_reverb(dataset(episodes([4])), observer) == 4
    observer.flush()
    assert len(items(client, "ours")) == 3 and mine.writers == 1

    class Derived(KINDS["trajectory"]):  # type: ignore[misc]
        pass

    assert not own.is_stock(Derived(client, "ours", 2)) and own.is_stock(KINDS["trajectory"](client, "ours", 2))
    assert own.settings_of(KINDS["trajectory"](client, "ours", 2, stride_length=0)) is None
    closed = KINDS["trajectory"](client, "ours", 2)
    closed.close()
    with pytest.raises(ValueError, match="Could not obtain writer"):
        push_rlds_to_reverb(dataset(episodes([4])), closed)


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf")])
def test_a_priority_that_kills_a_server_is_refused(client: Any, priority: float) -> None:
    observer = KINDS["trajectory"](client, "ours", 2, priority=priority)
    with pytest.raises(ValueError, match="a priority must be finite and not negative"):
        push_rlds_to_reverb(dataset(episodes([4])), observer)
    assert client.server_info()["ours"].current_size == 0
