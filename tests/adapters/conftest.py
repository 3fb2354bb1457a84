"""One thread for PyTorch: with as many as there are cores, small networks wait for one another on a busy machine."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
