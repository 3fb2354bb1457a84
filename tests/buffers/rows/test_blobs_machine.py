"""Values of any length in the circular buffer against a list of rows, under random operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from rlds2buf.buffers.rows import blob_segments as live_blobs
from rlds2buf.buffers.rows import vocabulary
from tests.buffers import numbered_blobs
from tests.buffers.contents.circular_machine import SETTINGS, CircularMachine


class BlobMachine(CircularMachine):
    spec = numbered_blobs.SPEC
    episode = staticmethod(numbered_blobs.episode)
    transition = staticmethod(numbered_blobs.transition)
    view = {"decode": False}  # noqa: RUF012 - never changed


class BlobMachineInFiles(BlobMachine):
    in_files = True


@pytest.mark.parametrize("limit", [3, 1 << 16], ids=["texts-row-by-row", "texts-numbered"])
def test_in_memory(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MAX_STRINGS", limit)
    monkeypatch.setattr(vocabulary, "_MANIFEST_STRINGS", limit)
    run_state_machine_as_test(BlobMachine, settings=settings(SETTINGS, max_examples=25))


@pytest.mark.parametrize("limit", [3, 1 << 16], ids=["texts-row-by-row", "texts-numbered"])
def test_in_files(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MAX_STRINGS", limit)
    monkeypatch.setattr(vocabulary, "_MANIFEST_STRINGS", limit)
    monkeypatch.setattr(live_blobs, "SEGMENT_BYTES", 200)
    run_state_machine_as_test(BlobMachineInFiles, settings=settings(SETTINGS, max_examples=15))
