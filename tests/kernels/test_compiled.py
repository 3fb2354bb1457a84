"""Kernels run where none of numba's usual places can be written; machine code is kept only where that is safe."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data import ROOT, absent

# Root may write everywhere; without its capabilities it is a user like others.
_AS_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
_DISCOUNT = """
import numpy as np
from rlds2buf.kernels.returns import discounted
from rlds2buf.returns import discounted_return
kernel = discounted.compile()
assert discounted_return(np.array([1.0, 2.0]), gamma=0.5).tolist() == [2.0, 2.0]
print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()), kernel.stats.cache_path)
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A folder with a copy of the package and a home, which their user can read and not write."""
    if _AS_USER and shutil.which("setpriv") is None:
        absent("setpriv, without which root can write everywhere")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        package = Path(folder, "site", "rlds2buf")
        shutil.copytree(ROOT / "rlds2buf", package, ignore=shutil.ignore_patterns("__pycache__"))
        Path(folder, "home").mkdir(mode=0o555)
        for path in [package.parent, *package.parent.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield Path(folder)
        for path in [package.parent, *package.parent.rglob("*")]:
            path.chmod(0o755)


@pytest.fixture
def temporary(installed: Path) -> Iterator[Path]:
    """A temporary folder for everybody, as /tmp is."""
    with tempfile.TemporaryDirectory(dir=installed) as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


def _run(installed: Path, temporary: Path, *command: object) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "XDG", "PYTHON"))}
    homeless = {"HOME": str(installed / "home"), "TMPDIR": str(temporary), "PYTHONPATH": str(installed / "site")}
    done = subprocess.run(
        [*_AS_USER, sys.executable, *map(str, command)],
        env={**kept, **homeless, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _cache(temporary: Path) -> Path:
    return temporary / f"rlds2buf-{os.geteuid()}"


def test_machine_code_is_kept_in_a_private_temporary_folder(installed: Path, temporary: Path) -> None:
    first = _run(installed, temporary, "-c", _DISCOUNT).split()
    again = _run(installed, temporary, "-c", _DISCOUNT).split()
    assert (first[:2], again[:2]) == (["0", "1"], ["1", "0"])
    assert Path(again[2]).parent == _cache(temporary)
    assert stat.S_IMODE(_cache(temporary).stat().st_mode) == 0o700
    assert _cache(temporary).stat().st_uid == os.geteuid()


@pytest.mark.parametrize("unsafe", ["open", "link", "file", "parent"])
def test_nothing_is_kept_or_loaded_where_others_could_put_it(installed: Path, temporary: Path, unsafe: str) -> None:
    folder = _cache(temporary)
    if unsafe == "file":
        folder.write_text("")
    elif unsafe == "link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to("elsewhere")
    elif unsafe == "open":
        folder.mkdir()
        folder.chmod(0o770)
    else:
        temporary.chmod(0o777)
    assert _run(installed, temporary, "-c", _DISCOUNT).split() == ["0", "1", "None"]
    assert not [path for path in temporary.rglob("*.nb?")]


def test_a_cache_that_cannot_be_written_to_the_end_or_read_is_none(installed: Path, temporary: Path) -> None:
    full = (
        "import resource, signal, sys; sys.dont_write_bytecode = True; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    )
    full += "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
    assert _run(installed, temporary, "-c", full + _DISCOUNT).split()[:2] == ["0", "1"]
    _run(installed, temporary, "-c", _DISCOUNT)
    kept = list(_cache(temporary).rglob("*.nb?"))
    assert kept
    for file in kept:
        os.truncate(file, file.stat().st_size // 2)
    assert _run(installed, temporary, "-c", _DISCOUNT).split()[:2] == ["0", "1"]


def test_a_dataset_is_converted_and_sampled_without_a_home(installed: Path, temporary: Path) -> None:
    (temporary / "log.csv").write_text(
        "episode,observation,action,reward,terminated\n0,1,0,1,0\n0,2,1,1,0\n0,3,0,1,1\n"
    )
    _run(installed, temporary, "-m", "rlds2buf", "convert", temporary / "log.csv", temporary / "buffer")
    assert "Transition" in _run(installed, temporary, "-m", "rlds2buf", "sample", temporary / "buffer", "-n", 4)
