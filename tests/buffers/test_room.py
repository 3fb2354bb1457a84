"""Sizes that no memory has room for, and sizes that mean nothing, are refused before anything is reserved for them."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2buf
from rlds2buf.core.room import free_bytes, require_room
from tests.cli.run import run
from tests.data import ROOT

EPISODE = rlds2buf.Episode(
    observation=np.zeros((9, 3), np.float32), action=np.zeros(9, np.int64), reward=np.ones(9), discount=np.ones(9)
)
SPEC = rlds2buf.spec_of(EPISODE)
MAKERS = ["make_circular", "make_prioritized", "make_reservoir"]


def filled(**options: Any) -> Any:
    buffer = rlds2buf.make_circular(SPEC, 100, seed=0, **options)
    buffer.add(EPISODE)
    return buffer


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_of_nothing(maker: str, capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        getattr(rlds2buf, maker)(SPEC, capacity)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("capacity", [10**13, 10**18, 10**30])
def test_a_capacity_beyond_memory(maker: str, capacity: int) -> None:
    with pytest.raises(rlds2buf.TooLarge, match=r"capacity: [\d,]+ rows would take [\d,]+ bytes of memory"):
        getattr(rlds2buf, maker)(SPEC, capacity)


@pytest.mark.parametrize("size", [10**13, 10**30])
def test_a_size_beyond_memory(size: int) -> None:
    for maker in ("make_on_policy", "make_cost_replay"):
        with pytest.raises(rlds2buf.TooLarge, match=r"size: [\d,]+ rows would take [\d,]+ bytes of memory"):
            getattr(rlds2buf, maker)(SPEC, size)


def test_a_resize_beyond_memory_changes_nothing() -> None:
    buffer = filled()
    before = buffer.all()
    with pytest.raises(rlds2buf.TooLarge, match="capacity"):
        buffer.resize(10**13)
    np.testing.assert_array_equal(buffer.all().observation, before.observation)
    buffer.check_valid()
    assert len(buffer.add(EPISODE)) == 8 and buffer.capacity == 100


@pytest.mark.parametrize(
    ("batch_size", "view", "name"),
    [
        (10**12, {}, "batch_size"),
        (256, {"sequence_length": 10**9}, "sequence_length"),
        (10**12, {"sequence_length": 2}, "batch_size"),
        (1, {"sequence_length": 1, "burn_in": 10**12}, "sequence_length"),
        (256, {"n_step": 10**14}, "n_step"),
        (256, {"n_step": 10**30}, "n_step"),
    ],
)
def test_a_batch_beyond_memory(batch_size: int, view: dict[str, Any], name: str) -> None:
    buffer = filled()
    words = rf"{name}: [\d,]+ items of [\d,]+ steps each would take [\d,]+ bytes of memory"
    with pytest.raises(rlds2buf.TooLarge, match=words):
        buffer.sample(batch_size, **view)
    with pytest.raises(rlds2buf.TooLarge, match="bytes"):
        buffer.sample_many(2, batch_size, **view)
    if batch_size < 1000:
        with pytest.raises(rlds2buf.TooLarge, match=name):
            buffer.get(np.repeat(buffer.keys()[:1], batch_size), **view)
    assert buffer.stats()["sampled"] == 0


def test_long_sequences_that_fit_are_padded() -> None:
    batch = filled().sample(2, sequence_length=5000)
    assert batch.data.mask.shape == (2, 5000) and batch.data.mask.sum() <= 16


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (["--sequence-length", 10_000_000_000], "--sequence-length"),
        (["-n", 10**12], "--batch-size"),
        (["--n-step", 10**14], "--n-step"),
        (["-n", 10**40], "--batch-size"),
    ],
)
def test_on_the_command_line_it_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[Any], option: str
) -> None:
    filled().save(tmp_path / "buffer")
    found = run(capsys, "sample", tmp_path / "buffer", *given)
    assert found.code == 2
    assert option in found.err and "bytes of memory" in found.err


def test_memory_that_is_free() -> None:
    free = free_bytes()
    assert free is not None and 1 << 20 < free < 1 << 50
    require_room(1 << 20, "little")
    with pytest.raises(rlds2buf.TooLarge, match="much would take"):
        require_room(free * 4, "much")


def test_a_limit_of_the_process_counts() -> None:
    limit = 3 << 30
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {hard}))\n"
        "from rlds2buf.core.room import free_bytes\n"
        f"assert free_bytes() <= {limit}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
