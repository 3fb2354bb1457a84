"""Workers of a DataLoader, in a process of its own: whoever has imported JAX has threads, and must not fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import rlds2buf
from tests.buffers.numbered import SPEC, episode
from tests.data import ROOT


class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __iter__(self) -> Iterator[np.ndarray]:
        for _ in range(20):
            yield self.buffer.sample(16).info.key.astype(np.int64)


def drawn() -> list[list[int]]:
    """The keys of two passes, by two workers."""
    buffer = rlds2buf.make_circular(SPEC, 2000, seed=0)
    buffer.add(episode(0, 2000))
    loader = torch.utils.data.DataLoader(
        Batches(buffer), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    return [batch.tolist() for _ in range(2) for batch in loader]


def test_forked_workers_draw_different_batches() -> None:
    code = "import json\nfrom tests.torch.test_forks import drawn\nprint(json.dumps([drawn(), drawn()]))"
    how: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, timeout=240, **how)
    assert done.returncode == 0, done.stderr
    first, again = json.loads(done.stdout)
    assert len(first) == len(set(map(tuple, first))) == 80
    assert again == first
