"""Numbered episodes and transitions (see numbered.py) with values of any length, which tell their row too."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rlds2buf import Episode
from rlds2buf.core.spec import FieldSpec, StepSpec
from tests.buffers import numbered

__all__ = ["SPEC", "blobs", "episode", "transition"]

PICTURE = FieldSpec((), np.dtype(object), image=FieldSpec((2, 2, 3), np.uint8))

SPEC: StepSpec = dataclasses.replace(
    numbered.SPEC,
    observation={
        **numbered.SPEC.observation,
        "picture": PICTURE,
        "points": FieldSpec((None, 2), np.float32),
        "text": FieldSpec((), np.dtype(object)),
        "two": dataclasses.replace(PICTURE, shape=(2,)),
    },
    extras={**numbered.SPEC.extras, "said": FieldSpec((None,), np.dtype(object))},
)


def blobs(number: int) -> dict[str, Any]:
    """The values of any length of one row; no picture that could be decoded."""
    two = np.empty(2, object)
    two[:] = [b"left%d" % number, b"right" * (number % 4)]
    said = np.empty(number % 3, object)
    said[:] = [b"word%d" % i for i in range(number % 3)]
    return {
        "picture": b"\xff\xd8" + b"%d" % number * (number % 17),
        "points": np.full((number % 5, 2), number, np.float32),
        "text": b"row %d" % (number // 3),
        "two": two,
        "said": said,
    }


def episode(start: int, rows: int, end: str = "terminated", discount: float = 0.9) -> Episode:
    """As :func:`numbered.episode`."""
    plain = numbered.episode(start, rows, end, discount)
    values = [blobs(start + i) for i in range(rows)]

    def column(name: str) -> np.ndarray:
        out = np.empty((rows, 2) if name == "two" else rows, object)
        for i, row in enumerate(values):
            out[i] = row[name]
        return out

    more = {name: column(name) for name in ("picture", "points", "text", "two")}
    return plain.replace(observation={**plain.observation, **more}, extras={**plain.extras, "said": column("said")})


def transition(number: int, is_done: int = 0, discount: float = 0.9) -> dict[str, Any]:
    """As :func:`numbered.transition`."""
    step = numbered.transition(number, is_done, discount)
    here, after = blobs(number), blobs(number + 500_000)
    step["extras"]["said"] = here.pop("said")
    del after["said"]
    step["observation"].update(here)
    step["next_observation"].update(after)
    return step
