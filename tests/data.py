"""Where the real datasets lie that some tests read."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
DATA = Path(os.environ.get("RLDS2BUF_TEST_DATA", SHARED / "data"))
GOLDEN = Path(os.environ.get("RLDS2BUF_TEST_GOLDEN", SHARED / "golden"))
