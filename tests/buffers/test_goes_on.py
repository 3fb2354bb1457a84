"""A buffer and a copy of its state, or its files, go on alike from any moment on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlds2buf
from tests.buffers.one_of_each import MAKERS, change


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(3))
def test_copies_of_the_state(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    buffer = MAKERS[kind](seed)
    for step in range(60):
        change(buffer, kind, rng, 100 * step)
        if not len(buffer):
            continue
        other = MAKERS[kind](99)
        other.load_state_dict(buffer.state_dict())
        other.check_valid()
        for options in ({}, {"n_step": 2}, {"replace": False}):
            size = 9 if options != {"replace": False} else 1
            mine, theirs = buffer.sample(size, **options), other.sample(size, **options)
            assert mine.info.key.tolist() == theirs.info.key.tolist()
            np.testing.assert_allclose(mine.info.weight, theirs.info.weight, rtol=1e-12)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("writable", [False, True])
def test_loaded_from_files(tmp_path: Path, kind: str, writable: bool) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        buffer = MAKERS[kind](seed)
        for step in range(8):
            change(buffer, kind, rng, 100 * step)
        buffer.save(tmp_path / f"saved-{seed}")
        loaded = rlds2buf.load_buffer(tmp_path / f"saved-{seed}", writable=writable)
        loaded.check_valid()
        again = np.random.default_rng(seed + 50)
        for step in range(8, 20):
            state = again.bit_generator.state
            change(buffer, kind, again, 100 * step)
            again.bit_generator.state = state
            change(loaded, kind, again, 100 * step)
            loaded.check_valid()
            assert loaded.keys().tolist() == buffer.keys().tolist()
            if len(buffer):
                assert loaded.sample(5).info.key.tolist() == buffer.sample(5).info.key.tolist()
