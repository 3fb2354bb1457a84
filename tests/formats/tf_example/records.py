"""Files of tf.train.Example records, written by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

from rlds2buf.codecs.tfrecord.frames import frame
from tests.formats.reverb.messages import example

STEP = {"observation": {"key": "pos", "shape": [2]}, "action": "act", "reward": "rew", "is_terminal": "done"}


def step_record(number: int, t: int, steps: int, **more: tuple[str, list]) -> bytes:
    return example(
        {
            "pos": ("float", [number, t]),
            "act": ("int64", [-t]),
            "rew": ("float", [0.5 * t]),
            "done": ("int64", [int(t == steps - 1)]),
            "id": ("int64", [number]),
            **more,
        }
    )


def write(path: Path, records: list[bytes], compress: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(map(frame, records))
    path.write_bytes(gzip.compress(data, mtime=0) if compress else data)
    return path


def step_records(lengths: list[int]) -> list[bytes]:
    return [step_record(i, t, steps) for i, steps in enumerate(lengths) for t in range(steps)]
