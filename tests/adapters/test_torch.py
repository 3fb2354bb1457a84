"""Datasets for PyTorch's DataLoader: every item once, whatever the workers, ranks and stops in the middle."""

from __future__ import annotations

import functools
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, default_collate

import rlds2buf
from rlds2buf.adapters.torch import IterableDataset, MapDataset
from rlds2buf.core import nest

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # which torchdata calls
]

LENGTHS = (5, 9, 2, 30, 12)
ITEMS = sum(LENGTHS) - len(LENGTHS)


def episode(start: int, length: int) -> rlds2buf.Episode:
    """Observations that number all rows."""
    numbers = np.arange(start, start + length)
    return rlds2buf.Episode(
        observation={
            "state": np.stack([numbers, -numbers], 1).astype(np.float32),
            "wide": numbers.astype(np.uint32),
            "name": np.array([str(n).encode() for n in numbers], object),
        },
        action=numbers % 2 == 0,
        reward=numbers.astype(np.float32),
        is_terminal=numbers == start + length - 1,
    )


def filled(seed: int = 0) -> rlds2buf.Buffer:
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(episode(0, 2)), 200, seed=seed)
    start = 0
    for length in LENGTHS:
        buffer.add(episode(start, length))
        start += length
    return buffer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    filled().save(tmp_path / "buffer")
    return tmp_path / "buffer"


def seen(batches: Any) -> list[int]:
    """The items of batches, by their rewards."""
    return [int(number) for batch in batches for number in getattr(batch, "data", batch).reward]


EVERY = sorted(seen([filled().all()]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "view", [{}, {"n_step": 3, "gamma": 0.9}, {"sequence_length": 4}, {"offsets": {"action": [0, 1, 2]}}], ids=str
)
def test_a_batch_is_what_get_gives(workers: int, view: dict[str, Any]) -> None:
    buffer = filled()
    dataset = MapDataset(buffer, **view)
    assert len(dataset) == ITEMS
    loader = DataLoader(dataset, batch_size=8, num_workers=workers)
    keys = buffer.keys()
    batches = list(loader)
    assert len(batches) == -(-ITEMS // 8)
    for i, batch in enumerate(batches):
        want = buffer.get(keys[8 * i : 8 * i + 8], **view)
        assert type(batch) is type(want)
        for (path, tensor), (_, array) in zip(nest.flatten(batch), nest.flatten(want), strict=True):
            if array is None:
                assert tensor is None
            elif array.dtype == object:
                assert tensor.tolist() == array.tolist()
            else:
                assert isinstance(tensor, torch.Tensor) and tensor.dtype != torch.uint32, path
                np.testing.assert_array_equal(tensor.numpy(), array)
                tensor += 0 if tensor.dtype != torch.bool else tensor  # it is writable


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_shuffled_every_item_comes_once(saved: Path, workers: int, method: str | None) -> None:
    loader = DataLoader(
        MapDataset(saved), batch_size=7, shuffle=True, num_workers=workers, multiprocessing_context=method
    )
    if method == "spawn":
        assert sorted(seen(loader)) == EVERY
        return
    one, other = seen(loader), seen(loader)
    assert sorted(one) == sorted(other) == EVERY and one != other


def test_single_items_and_collating_of_one_s_own() -> None:
    dataset = MapDataset(filled())
    assert dataset[2].observation["state"].tolist() == [2, -2] and dataset[np.int64(2)].reward == 2
    assert dataset[[1, 2]].reward.tolist() == [1, 2]
    assert default_collate([dataset[1], dataset[2]]).reward.tolist() == [1, 2]
    items = list(dataset.__getitems__([3, 4]))
    assert [float(item.reward) for item in items] == [dataset[3].reward, dataset[4].reward]
    rewards = next(iter(DataLoader(dataset, batch_size=4, collate_fn=_rewards)))
    assert rewards == [0, 1, 2, 3]
    with pytest.raises(IndexError):
        dataset[ITEMS]
    sampler = BatchSampler(SequentialSampler(dataset), 5, drop_last=False)
    for workers in (0, 2):
        loader = DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=workers)
        assert seen(loader) == EVERY


def _rewards(items: Any) -> list[float]:
    return [float(item.reward) for item in items]


def test_items_that_left_are_told() -> None:
    buffer = filled()
    dataset = MapDataset(buffer)
    buffer.clear()
    with pytest.raises(rlds2buf.UnknownKey):
        dataset[0]
    assert len(pickle.loads(pickle.dumps(MapDataset(filled())))[[0, 1]].reward) == 2


def test_large_batches_go_through_shared_memory() -> None:
    rows = 40
    pictures = np.random.default_rng(0).integers(0, 256, (rows, 64, 64, 3), np.uint8)
    data = rlds2buf.Episode(observation=pictures, action=np.zeros(rows), reward=np.arange(rows, dtype=np.float32))
    buffer = rlds2buf.make_circular(rlds2buf.spec_of(data), 100)
    buffer.add(data)
    for batch in DataLoader(MapDataset(buffer), batch_size=16, num_workers=1):
        for i, number in enumerate(batch.reward.int().tolist()):
            np.testing.assert_array_equal(batch.observation[i], pictures[number])


# -- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["epochs", "random"])
def test_the_same_batches_with_any_number_of_workers(order: str) -> None:
    def drawn(workers: int, epoch: int, **options: Any) -> list[list[int]]:
        steps = {"steps": 11} if order == "random" else {}
        dataset = IterableDataset(filled(), 4, order=order, seed=3, **steps)
        dataset.set_epoch(epoch)
        return [seen([batch]) for batch in DataLoader(dataset, batch_size=None, num_workers=workers, **options)]

    want = drawn(0, 0)
    assert len(want) == (11 if order == "random" else -(-ITEMS // 4))
    assert drawn(1, 0) == drawn(3, 0) == want
    assert order == "random" or drawn(1, 0, multiprocessing_context="spawn") == want
    assert drawn(0, 1) == drawn(2, 1) != want
    if order == "epochs":
        assert sorted(number for batch in want for number in batch) == EVERY


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_pass_is_another_epoch(workers: int, options: dict[str, Any]) -> None:
    dataset = IterableDataset(filled(), 4)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, **(options if workers else {}))
    passes = [seen(loader) for _ in range(3)]
    assert all(sorted(one) == EVERY for one in passes) and passes[0] != passes[1] != passes[2] != passes[0]
    dataset.set_epoch(1)
    assert seen(loader) == passes[1]
    assert seen(loader) == passes[2]


def test_a_worker_that_begins_late_takes_the_pass_that_the_others_are_in() -> None:
    dataset = IterableDataset(filled(), 50)  # two batches
    for _ in range(3):
        loader = DataLoader(dataset, batch_size=None, num_workers=2, worker_init_fn=_dawdle)
        assert sorted(seen(loader)) == EVERY


def _dawdle(worker: int) -> None:
    time.sleep(0.5 * worker)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_share_an_epoch(world: int, workers: int) -> None:
    parts = []
    for rank in range(world):
        dataset = IterableDataset(filled(), 4, seed=1, rank=rank, world_size=world)
        parts.append([seen([batch]) for batch in DataLoader(dataset, batch_size=None, num_workers=workers)])
    assert len({len(part) for part in parts}) == 1
    assert sorted(number for part in parts for batch in part for number in batch) == EVERY


@pytest.mark.parametrize("order", ["epochs", "random"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_it_goes_on_in_the_middle(order: str, workers: int) -> None:
    make = functools.partial(IterableDataset, filled(), 4, order=order, **({"steps": 9} if order == "random" else {}))
    whole = [seen([batch]) for batch in make()]
    dataset = make()
    first = []
    for number, batch in enumerate(dataset):
        first.append(seen([batch]))
        if number == 4:
            state = dataset.state_dict()
            break
    assert state == {"version": 1, "epoch": 0, "batch": 5}
    other = make()
    other.load_state_dict(state)
    loader = DataLoader(other, batch_size=None, num_workers=workers)
    assert first + [seen([batch]) for batch in loader] == whole
    assert seen(loader) != seen([filled().all()])  # the next epoch


def test_the_loader_that_keeps_states_itself() -> None:
    from torchdata import stateful_dataloader as stateful

    for workers in (0, 2):
        whole = [seen([batch]) for batch in IterableDataset(filled(), 4)]
        loader = stateful.StatefulDataLoader(IterableDataset(filled(), 4), batch_size=None, num_workers=workers)
        first = []
        for batch in loader:
            first.append(seen([batch]))
            if len(first) == 5:
                state = loader.state_dict()
                break
        other = stateful.StatefulDataLoader(IterableDataset(filled(), 4), batch_size=None, num_workers=workers)
        other.load_state_dict(state)
        assert first + [seen([batch]) for batch in other] == whole


def test_a_state_of_something_else_is_refused() -> None:
    dataset = IterableDataset(filled(), 4)
    for state in ({}, {"epoch": -1, "batch": 0}, {"epoch": 0, "batch": "x"}):
        with pytest.raises(rlds2buf.SnapshotError, match="no state"):
            dataset.load_state_dict(state)


def test_batches_of_batches_are_refused() -> None:
    with pytest.raises(rlds2buf.ReplayError, match="batch_size=None"):
        next(iter(DataLoader(IterableDataset(filled(), 4), batch_size=2)))


@pytest.mark.parametrize("kind", [MapDataset, functools.partial(IterableDataset, batch_size=4)])
def test_workers_that_see_another_buffer_are_told(saved: Path, kind: Any) -> None:
    dataset = kind(saved)
    other = rlds2buf.make_circular(rlds2buf.spec_of(episode(0, 2)), 10)
    other.add(episode(0, 4))
    other.save(saved, overwrite=True)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    if kind is MapDataset:
        loader = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(rlds2buf.SnapshotError, match="was replaced since the dataset was made"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rank": 2, "world_size": 2}, ValueError, "rank must be from 0 to 1"),
        ({"rank": 0}, ValueError, "need each other"),
        ({"order": "sideways"}, ValueError, "order"),
        ({"steps": 3}, ValueError, "steps"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"n_stepp": 3}, TypeError, "n_step"),
        ({"functions": {"reward_fn": print}}, TypeError, "functions"),
    ],
)
def test_wrong_options_are_told_at_once(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        IterableDataset(filled(), **{"batch_size": 4, **options})


def test_what_is_no_buffer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected a Buffer"):
        MapDataset([1, 2])  # type: ignore[arg-type]
    with pytest.raises(rlds2buf.SourceNotFound):
        MapDataset(tmp_path / "nothing")
    with pytest.raises(rlds2buf.NotEnoughItems):
        IterableDataset(rlds2buf.make_circular(rlds2buf.spec_of(episode(0, 2)), 10), 4)
