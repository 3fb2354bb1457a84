"""Converts pictures as files into a folder, and kills itself at a given write; run by test_pictures.py."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf.files.column_file import ColumnFile


def main(source: str, target: str, kill_at: int) -> None:
    """`kill_at` counts writes of blocks; 0 for none."""
    conversion: Any = importlib.import_module("rlds2buf.pipeline.conversion")
    conversion.CHECKPOINT_SECONDS, conversion.BLOCK_ROWS = 0.0, 1  # a block for each episode
    append, written = ColumnFile.append, 0

    def counted(self: Any, rows: np.ndarray) -> None:
        nonlocal written
        written += 1
        append(self, rows)
        if written == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    ColumnFile.append = counted  # type: ignore[method-assign]
    rlds2buf.convert(
        rlds2buf.open_source(source, images="encoded"), target, to="buffer", on_invalid="repair", resume=True
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
