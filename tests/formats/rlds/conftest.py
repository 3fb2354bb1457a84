"""Small datasets are read as large ones are: by blocks, and not record by record."""

from __future__ import annotations

import pytest

from rlds2buf.codecs.tfrecord.record_table import Walker


@pytest.fixture(autouse=True)
def as_if_much_had_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walker, "is_worth_it", lambda records: True)
