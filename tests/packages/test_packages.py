"""The wheel and the source distribution: what is in them, and that each does the main job where nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

import rlds2buf
from tests.data import ROOT

BUILD = "import sys, setuptools.build_meta as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"
LOG = """
import h5py, numpy as np
rows = np.arange(40)
with h5py.File("log.hdf5", "w") as file:
    file["observations"] = np.stack([rows, -rows], 1).astype(np.float32)
    file["actions"] = rows[:, None] / np.float32(10)
    file["rewards"] = rows.astype(np.float32)
    file["terminals"] = rows % 10 == 9
    file["timeouts"] = np.zeros(40, bool)
"""


def plain_environment() -> dict[str, str]:
    """Without what would lead Python to this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=plain_environment(), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Environment:
    """A virtual environment of its own; made by uv, which is quick, or by venv and pip."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self._uv = next(
            (path for path in (ROOT / ".venv/tools/bin/uv", shutil.which("uv")) if path and Path(path).exists()), None
        )
        if self._uv is None:
            run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
        else:
            run(self._uv, "venv", "--quiet", "--python", sys.executable, folder, cwd=folder.parent)

    def install(self, package: object) -> None:
        """A package and what it needs; into what is there."""
        python = self.bin / "python"
        if self._uv is None:
            run(python, "-m", "pip", "install", "--quiet", package, cwd=self.folder.parent)
        else:
            run(self._uv, "pip", "install", "--quiet", "--python", python, package, cwd=self.folder.parent)

    def remove(self, name: str) -> None:
        python = self.bin / "python"
        if self._uv is None:
            run(python, "-m", "pip", "uninstall", "--quiet", "--yes", name, cwd=self.folder.parent)
        else:
            run(self._uv, "pip", "uninstall", "--quiet", "--python", python, name, cwd=self.folder.parent)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source distribution of this tree, unpacked too, and the wheel that is built from it alone."""
    folder = tmp_path_factory.mktemp("packages")
    environment = Environment(folder / "build")
    environment.install("setuptools>=77")
    ours = ("rlds2buf", "tests", "scripts", ".ci")
    for name in ours:
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, folder / "tree")

    def build(kind: str, tree: Path) -> Path:
        out = run(environment.bin / "python", "-c", BUILD, f"build_{kind}", folder, cwd=tree)
        return folder / out.splitlines()[-1]

    sdist = build("sdist", folder / "tree")
    with tarfile.open(sdist) as file:
        file.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return {"sdist": sdist, "unpacked": unpacked, "wheel": build("wheel", unpacked)}


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_source_distribution_holds_its_tests_and_they_run(built: dict[str, Path]) -> None:
    tree, unpacked = built["sdist"].parent / "tree", built["unpacked"]
    for folder in ("rlds2buf", "tests", "scripts", ".ci"):
        assert names(tree / folder) == names(unpacked / folder)
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"} <= names(
        unpacked
    )
    assert os.access(unpacked / "scripts/test", os.X_OK)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "tests/buffers/read/test_golden_nstep.py",
            "tests/formats/rlds/test_features.py",
        ],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": str(unpacked), "RLDS2BUF_TEST_DATA": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "set RLDS2BUF_TEST_DATA=DIR to run them" in done.stdout


def test_the_wheel_holds_the_package_and_says_what_it_is(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as file:
        held = set(file.namelist())
        (about,) = (name for name in held if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(file.read(about).decode())
    info = about.removesuffix("METADATA")
    package = {f"rlds2buf/{name}" for name in names(built["sdist"].parent / "tree/rlds2buf")}
    assert {name for name in held if not name.startswith(info)} == package
    assert info + "licenses/LICENSE" in held
    assert told["Version"] == rlds2buf.__version__ and told["License-Expression"] == "Apache-2.0"
    assert told["Keywords"] and not any("License ::" in name for name in told.get_all("Classifier"))
    assert told.get_all("Project-URL") is None and told["Home-page"] is None


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Where there is nothing but what an installation of ours has brought."""
    return Environment(tmp_path_factory.mktemp("bare") / "environment")


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_installed_where_nothing_else_is_it_does_the_main_job(
    kind: str, built: dict[str, Path], bare: Environment, tmp_path: Path
) -> None:
    environment = bare
    environment.install(built[kind])
    command = environment.bin / "rlds2buf"
    run(environment.bin / "python", "-c", LOG, cwd=tmp_path)

    def ours(*arguments: Any) -> Any:
        return json.loads(run(command, *arguments, "--json", cwd=tmp_path))

    report = ours("convert", "log.hdf5", "buffer")
    assert (report["episodes"], report["items"]) == (4, 40)
    batch = ours("sample", "buffer", "-n", "64", "--n-step", "3", "--seed", "0")
    assert batch["batch_size"] == 64 and batch["fields"]["observation"]["type"] == "float32[64, 2]"
    assert batch["fields"]["steps"]["max"] == 3
    where = run(environment.bin / "python", "-c", "import rlds2buf; print(rlds2buf.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.folder)
    environment.remove("rlds2buf")
