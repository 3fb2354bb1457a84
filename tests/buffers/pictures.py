"""Episodes of small pictures, as files."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from rlds2buf import Episode
from rlds2buf.codecs.images.decode import decode_image
from rlds2buf.core.spec import FieldSpec, StepSpec

__all__ = ["SPEC", "column", "episode", "file", "pixels"]

SPEC = StepSpec(
    observation={
        "image": FieldSpec((), np.dtype(object), image=FieldSpec((8, 6, 3), np.uint8)),
        "state": FieldSpec((2,), np.float32),
    },
    action=FieldSpec((), np.int64),
)


def file(number: int, *, kind: str = "JPEG", size: tuple[int, int] = (8, 6)) -> bytes:
    """A picture of `size` (height, width) unlike the others."""
    values = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(values).save(out, kind)
    return out.getvalue()


def pixels(data: bytes) -> np.ndarray:
    return decode_image(data, 3)


def column(files: list[bytes]) -> np.ndarray:
    out = np.empty(len(files), object)
    out[:] = files
    return out


def episode(start: int, rows: int) -> Episode:
    """Rows numbered from `start`; number i has picture i."""
    number = np.arange(start, start + rows)
    return Episode(
        observation={
            "image": column([file(i) for i in number.tolist()]),
            "state": np.stack([number, -number], 1).astype(np.float32),
        },
        action=number,
        reward=number.astype(np.float32),
        discount=np.ones(rows, np.float32),
        is_terminal=np.arange(rows) == rows - 1,
    )
