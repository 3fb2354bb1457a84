"""Hindsight buffers that are filled, and what they draw."""

from __future__ import annotations

from typing import Any

from tests.buffers.goals import episode, make, steps


def filled(**options: Any) -> Any:
    buffer = make(60, **options)
    for i in range(8):
        buffer.add(episode(100 * i, 3 + i, "truncated" if i % 2 else "terminated", placeholder=i == 4))
    buffer.add(steps(5000, [0, 0, 0]), source_id=1)
    return buffer


def batches(buffer: Any) -> list[Any]:
    return [buffer.sample(40).data._asdict(), buffer.sample(20, n_step=3, gamma=0.9).data._asdict()]
