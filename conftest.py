"""Libraries that buffers are adapted to warn of one another while they are imported; that is no error of ours."""

from __future__ import annotations

import warnings
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    if collector.path.parent.name != "adapters":
        return (yield)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "adapters":
            item.add_marker(pytest.mark.filterwarnings("ignore"))
