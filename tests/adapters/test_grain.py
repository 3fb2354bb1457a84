"""A buffer as grain's random-access source: shuffled, batched, in worker processes, resumed in the middle."""

from __future__ import annotations

import pickle
import threading
from itertools import chain
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from absl import flags
from grain.sources import RandomAccessDataSource

from rlds2buf import UnknownKey
from rlds2buf.adapters.grain import DataSource
from tests.adapters.logged import circular


def numbers(batch: Any) -> list[int]:
    return np.ravel(batch["observation"][..., 0]).astype(int).tolist()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    circular().save(tmp_path / "saved")
    return tmp_path / "saved"


def test_elements(saved: Path) -> None:
    for source in (DataSource(circular()), DataSource(saved), pickle.loads(pickle.dumps(DataSource(saved)))):
        assert isinstance(source, RandomAccessDataSource) and len(source) == 17
        seen = [source[i] for i in range(len(source))]
        assert [int(one["observation"][0]) for one in seen] == [*range(5), *range(100, 103), 200, *range(300, 308)]
        for one in seen:
            assert one["next_observation"][0] == one["observation"][0] + 1 and one["reward"].shape == ()
        assert source[-1]["is_done"] == 2 and source[4]["is_done"] == 1
        with pytest.raises(IndexError, match="17"):
            source[17]


def test_an_epoch_has_each_once_and_goes_on_where_it_was(saved: Path) -> None:
    def dataset() -> Any:
        return grain.MapDataset.source(DataSource(saved)).shuffle(seed=3).batch(4).to_iter_dataset()

    whole = [numbers(batch) for batch in dataset()]
    assert sorted(chain(*whole)) == sorted([*range(5), *range(100, 103), 200, *range(300, 308)])
    iterator = iter(dataset())
    assert [numbers(next(iterator)) for _ in range(2)] == whole[:2]
    state = iterator.get_state()
    other = iter(dataset())
    other.set_state(state)
    assert [numbers(batch) for batch in other] == whole[2:]


def test_worker_processes_open_it_themselves(saved: Path) -> None:
    flags.FLAGS.mark_as_parsed()  # as absl.app does in a program
    loader = grain.DataLoader(
        data_source=DataSource(saved, sequence_length=2),
        sampler=grain.samplers.IndexSampler(num_records=17, num_epochs=1, shuffle=True, seed=0),
        operations=[grain.transforms.Batch(4)],
        worker_count=2,
    )
    found = [batch for batch in loader]
    assert sum(len(batch["mask"]) for batch in found) == 17
    assert all(batch["observation"].shape[1:] == (2, 2) for batch in found)


def test_threads(saved: Path) -> None:
    source = DataSource(saved)
    wanted = [int(source[i]["observation"][0]) for i in range(17)]
    found: list[list[int]] = []

    def read() -> None:
        found.append([int(source[i]["observation"][0]) for i in range(17)])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [wanted] * 4


def test_says_what_its_elements_depend_on(saved: Path) -> None:
    assert repr(DataSource(saved, n_step=3)) == f"DataSource({str(saved)!r}, n_step=3)"
    assert repr(DataSource(circular())) == "DataSource(circular, 17 items)"


def test_bad_arguments(saved: Path) -> None:
    with pytest.raises(TypeError, match="nonsense"):
        DataSource(saved, nonsense=1)
    buffer = circular()
    source = DataSource(buffer)
    buffer.clear()
    with pytest.raises(UnknownKey, match="has changed"):
        source[0]
