"""Episodes of all that an RLDS folder can hold, and folders of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlds2buf import (
    Episode,
    FieldSpec,
    StepSpec,
    spec_of,
)
from rlds2buf.formats.rlds.sink import RldsDirSink
from tests.contracts.sink import PROVENANCE


def write(episodes: list[Episode], target: Path, spec: StepSpec | None = None, **options: Any) -> RldsDirSink:
    sink = RldsDirSink(target, **options)
    sink.expect(len(episodes))
    sink.open(spec or spec_of(episodes[0]), PROVENANCE)
    for one in episodes:
        assert sink.write(one) == 1
    sink.commit()
    return sink


def anything() -> Episode:
    """Fields of every kind, two rows."""

    def column(*cells: Any) -> np.ndarray:
        out = np.empty(len(cells), object)
        for i, cell in enumerate(cells):
            out[i] = cell
        return out

    return Episode(
        observation={
            "pair": (np.array([[1.5], [np.nan]], np.float16), {"in": np.array([1, 2**64 - 1], np.uint64)}),
            "pixels": np.arange(2 * 32 * 40 * 3).reshape(2, 32, 40, 3).astype(np.uint8),
            "deep": np.arange(2 * 32 * 32).reshape(2, 32, 32, 1).astype(np.uint16),
            "map": (np.arange(2 * 40 * 40) % 251).reshape(2, 40, 40).astype(np.int16),
            "none": np.zeros((2, 0, 3), np.float32),
        },
        action=(np.array([-1, 300], np.int32), np.array([True, False])),
        reward=np.array([0.1, 1e300]),
        discount=None,
        is_terminal=np.array([False, True]),
        extras={
            "text": column(b"one", b"\xff\x00"),
            "same": column(b"again", b"again"),
            "tokens": np.array([[b"a", b"bc"], [b"", b"d"]], object),
            "words": column(np.array([b"a", b"b"], object), np.array([], object)),
            "points": column(np.zeros((2, 3), np.float32), np.ones((0, 3), np.float32)),
            "grids": column(np.zeros((2, 1), np.int64), np.ones((1, 3), np.int64)),
            "counts": column(np.array([2**32 - 1], np.uint32), np.array([1, 2], np.uint32)),
            "frames": column(np.full((4, 5, 3), 7, np.uint8), np.full((6, 2, 3), 255, np.uint8)),
            "wave": np.array([[1 + 2j], [3 - 1j]]),
            "wide": np.full((2, 1100), 2**32 - 1, np.uint32),
            "step": np.array([-(2**63), 2**63 - 1]),
            "tiny": np.array([-128, 127], np.int8),
        },
        metadata={
            "id": 7,
            "name": "run",
            "raw": b"\xff",
            "ratio": 1 / 3,
            "flag": True,
            "weights": {"w": np.eye(3, dtype=np.float32), "b": np.array([0.1])},
            "pair": ("x", (1, 2.5)),
            "tags": ["a", "bc"],
            "sizes": [1, 2, 3],
            "none": np.zeros((0, 2), np.int32),
            "words": np.array([b"a", b"bc"], object),
        },
        index=0,
    )


SPEC_OF_ANYTHING = spec_of(anything())
ANY = StepSpec(
    **{name: getattr(SPEC_OF_ANYTHING, name) for name in ("observation", "reward", "discount")},
    action=(FieldSpec((), np.int32, low=-5, high=float("inf")), FieldSpec((), np.bool_)),
    extras={
        **SPEC_OF_ANYTHING.extras,
        "words": FieldSpec((None,), object),
        "points": FieldSpec((None, 3), np.float32),
        "frames": FieldSpec((None, None, 3), np.uint8),
        "grids": FieldSpec((None, None), np.int64),
        "counts": FieldSpec((None,), np.uint32, values=(1, 2, 2**32 - 1)),
    },
)
