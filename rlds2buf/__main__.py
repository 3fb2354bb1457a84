"""``python -m rlds2buf``."""

from __future__ import annotations

import sys

from rlds2buf.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
