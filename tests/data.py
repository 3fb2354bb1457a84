"""Real datasets, made by others, that some tests read; a clone does not have them.

They lie in ``$RLDS2BUF_TEST_DATA``, or in ``shared/data`` beside the clone. A test that asks for one which is absent is
skipped, and the end of the run counts such tests. What a test can make itself it reads from :mod:`tests.made` instead.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
"""Worked examples: input, what the peers do, what we do."""

D4RL = tuple(
    f"d4rl/{name}.hdf5"
    for name in (
        "antmaze-umaze-v0",
        "door-human-v0",
        "hopper_medium-v2",
        "hopper_medium",
        "hopper_medium_replay-v1",
        "hopper_random-v1",
        "pen-human-v1",
    )
)
MINARI = tuple(
    f"minari/{name}-v0" for name in ("blackjack/random", "cartpole/random", "dummy-dict/test", "pendulum/random")
)
RLDS = (
    "rlds/bridge_dataset/1.0.0",
    "rlds/d4rl_mujoco_hopper/v0-medium/1.2.0",
    "rlds/d4rl_mujoco_hopper/v2-medium/1.2.0",
    "rlds/rlu_control_suite/cartpole_swingup/1.0.0",
    "rlds/robomimic_ph/lift_ph_low_dim/1.0.1",
)
TFDS_METADATA = tuple(
    f"tfds_metadata/d4rl_mujoco_hopper/{name}/1.2.0"
    for name in (
        *("v0-expert", "v0-medium", "v0-medium-expert", "v0-mixed", "v0-random"),
        *(
            f"v{n}-{kind}"
            for n in (1, 2)
            for kind in ("expert", "full-replay", "medium", "medium-expert", "medium-replay", "random")
        ),
    )
)
RLLIB = ("rllib/cartpole-v1-rowwise.jsonl", "rllib/cartpole_small.json")

NO_DATA = "absent real dataset: "
NO_RESOURCE = "absent here: "
SKIPS = (NO_DATA, NO_RESOURCE)
"""How the reason of a skip begins; conftest.py makes a failure of any other."""


class RealData:
    """The folder of real datasets: ``DATA / "d4rl/pen-human-v1.hdf5"`` is that file, or skips the test.

    Only while a test runs: which tests there are must not depend on what lies here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def __truediv__(self, name: str) -> Path:
        if "PYTEST_CURRENT_TEST" not in os.environ:
            raise RuntimeError(
                f"{name} is asked for outside of a test; name it there, and ask for it while the test runs"
            )
        if not self.has(name):
            pytest.skip(NO_DATA + name)
        return self._folder / name


def absent(resource: str) -> None:
    """Skip the running test: it needs `resource` (a shell, a system's package), which this machine lacks."""
    pytest.skip(NO_RESOURCE + resource)


def needed(package: str) -> ModuleType:
    """A package that some environments lack, imported; there the running test is skipped."""
    if importlib.util.find_spec(package) is None:
        absent(package)
    return importlib.import_module(package)


def _folder() -> Path:
    told = os.environ.get("RLDS2BUF_TEST_DATA")
    if told and not Path(told).is_dir():
        raise FileNotFoundError(f"RLDS2BUF_TEST_DATA={told}: no such folder")
    return Path(told).resolve() if told else ROOT.parent / "shared" / "data"


DATA = RealData(_folder())
