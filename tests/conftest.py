"""What is collected where: tests/full needs TensorFlow and Reverb, tests/torch PyTorch, tests/jax JAX, tests/lerobot
lerobot (which part of the tests runs in which environment is said in parts.py). And for every test: data that are
made, a time-out, and skips that are counted."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.data import NO_DATA, NO_RESOURCE, SKIPS

# A busy machine is no failure.  The examples are the same in every run, so that a run which fails has found a
# change; RLDS2BUF_HYPOTHESIS=random looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("RLDS2BUF_HYPOTHESIS", "same"))

TIMEOUT_SECONDS = 600
"""Twice what any test gives a process of its own; one that hangs fails, and the rest goes on."""

collect_ignore_glob = ["plugin/*"]  # a package of its own, which tests install
if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob.append("full/*")
if importlib.util.find_spec("minari") is None:
    collect_ignore_glob.append("formats/minari/test_against_minari.py")
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob.append("torch/*")
if importlib.util.find_spec("jax") is None:
    collect_ignore_glob.append("jax/*")
if importlib.util.find_spec("lerobot") is None:
    collect_ignore_glob.append("lerobot/*")

for library in ("d3rlpy", "flashbax", "grain", "imitation", "tianshou", "torchrl"):
    if importlib.util.find_spec(library) is None:
        collect_ignore_glob.append(f"adapters/test_{library}.py")
for library, name in (("stable_baselines3", "sb3"), ("torch", "torch")):
    if importlib.util.find_spec(library) is None:
        collect_ignore_glob.append(f"adapters/test_{name}.py")
if importlib.util.find_spec("ray") is None:
    collect_ignore_glob.append("adapters/test_rllib.py")


@pytest.fixture(scope="session", autouse=True)
def made_sets() -> Iterator[None]:
    """The datasets of tests.made, if a test that was collected reads them."""
    made = sys.modules.get("tests.made")
    if made is None:
        yield
        return
    made.make()
    yield
    shutil.rmtree(made.MADE)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if fleeting := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"names that differ from process to process, which pytest -n does not take: {fleeting}")
    if config.pluginmanager.hasplugin("timeout") and config.getoption("timeout") is None:
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def reason_of(report: pytest.TestReport) -> str:
    """Why a test was skipped."""
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return told.removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not reason_of(report).startswith(SKIPS):
        report.outcome = "failed"
        report.longrepr = f"skipped: {reason_of(report)!r}; a test is left out for what it names in tests.data only"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [reason_of(report) for report in terminalreporter.stats.get("skipped", [])]
    without_data = sum(reason.startswith(NO_DATA) for reason in reasons)
    if without_data:
        one = without_data == 1
        terminalreporter.write_line(
            f"{without_data} {'test' if one else 'tests'} skipped: {'it reads' if one else 'they read'} real datasets; "
            f"set RLDS2BUF_TEST_DATA=DIR to run {'it' if one else 'them'}"
        )
    lacking = [reason.removeprefix(NO_RESOURCE) for reason in reasons if reason.startswith(NO_RESOURCE)]
    if lacking:
        count = f"{len(lacking)} {'test' if len(lacking) == 1 else 'tests'}"
        terminalreporter.write_line(f"{count} skipped: absent here: {', '.join(sorted(set(lacking)))}")
