"""Workers of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import rlds2buf
from tests.buffers.numbered import SPEC, episode


def test_forked_workers_draw_different_batches() -> None:
    class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __init__(self, buffer: Any) -> None:
            self.buffer = buffer

        def __iter__(self) -> Iterator[np.ndarray]:
            for _ in range(20):
                yield self.buffer.sample(16).info.key.astype(np.int64)

    def drawn() -> list[tuple[int, ...]]:
        buffer = rlds2buf.make_circular(SPEC, 2000, seed=0)
        buffer.add(episode(0, 2000))
        loader = torch.utils.data.DataLoader(
            Batches(buffer), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
        )
        return [tuple(batch.tolist()) for _ in range(2) for batch in loader]

    first = drawn()
    assert len(first) == len(set(first)) == 80
    assert drawn() == first
