"""What the records of an RLDS folder look like, for a folder that takes them as they are."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlds2buf.errors import SourceError
from rlds2buf.formats.rlds.own_metadata import own_entry

__all__ = ["RecordLayout", "read_record_layout"]


@dataclasses.dataclass(frozen=True)
class RecordLayout:
    """The files beside the shards that say how to read them.

    Attributes:
        features: the text of ``features.json``.
        own: what rlds2buf has noted about fields (tuples, limits, kinds of text) in ``metadata.json``.
    """

    features: str
    own: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Tells one layout from another."""
        text = self.features + json.dumps(self.own, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_record_layout(folder: Path) -> RecordLayout | None:
    """The layout of a version folder; None where further files belong to it (the names of labels).

    Raises:
        SourceError: ``features.json`` can't be read.
    """
    if any(folder.glob("*.labels.txt")):
        return None
    try:
        features = (folder / "features.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise SourceError(f"{folder / 'features.json'}: {cause}") from cause
    return RecordLayout(features, own_entry(folder))
