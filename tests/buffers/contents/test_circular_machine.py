"""The circular buffer against a list of rows, under random operations."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from tests.buffers.contents.circular_machine import SETTINGS, CircularMachine


class CircularMachineInFiles(CircularMachine):
    in_files = True


def test_in_memory() -> None:
    run_state_machine_as_test(CircularMachine, settings=SETTINGS)


def test_in_files() -> None:
    run_state_machine_as_test(CircularMachineInFiles, settings=settings(SETTINGS, max_examples=30))
