"""Datasets that the real lerobot wrote, each made when a test first asks for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lerobot import sets

Made = Callable[[str], Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # What lerobot and those it imports warn of is theirs to mend.
            for category in ("Deprecation", "PendingDeprecation", "Future", "Runtime", "User", "Resource"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}Warning"), append=False)


@pytest.fixture(scope="session", autouse=True)
def cache() -> Iterator[None]:
    """Where lerobot keeps what it opens goes again; processes of pytest-xdist end without what was registered."""
    yield
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder of the set of a name in :data:`tests.lerobot.sets.SETS`; nobody may change it."""
    folder = tmp_path_factory.mktemp("lerobot")

    def get(name: str) -> Path:
        return folder / name if (folder / name).exists() else sets.make(name, folder)

    return get
