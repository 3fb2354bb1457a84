"""Small work waits for no compiler; what waits says so, once; and draws are the same either way."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2buf.kernels import compiled as module
from rlds2buf.kernels.compiled import Kernel, compiled
from tests.data import ROOT


def run(code: str, folder: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Code in a process that has no machine code on the disk."""
    cache = folder / "cache"
    cache.mkdir(exist_ok=True)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        timeout=300,
        check=False,
        **{"stderr": subprocess.PIPE, **more},
    )
    assert done.returncode == 0, done.stderr
    return done


_COMMANDS = """
import sys
from rlds2buf.cli.main import main
def command(*words):
    try:
        status = main(list(words))
    except SystemExit as ended:
        status = ended.code
    assert not status, (words, status)
command("demo", ".")
command("convert", "cartpole.hdf5", "cartpole-buffer")
command("convert", "cartpole.hdf5", "cartpole", "--to", "rlds")
command("convert", "cartpole", "again")
for more in ([], ["--n-step", "3"], ["--sequence-length", "4"]):
    command("sample", "cartpole-buffer", "-n", "32", "--json", *more)
print("numba" in sys.modules)
"""


def test_a_small_dataset_is_converted_and_sampled_without_numba(tmp_path: Path) -> None:
    assert run(_COMMANDS, tmp_path).stdout.splitlines()[-1] == "False"
    assert not list((tmp_path / "cache").iterdir())


_DRAWS = """
import hashlib, sys
import numpy as np
import rlds2buf.kernels.compiled as compiled
from rlds2buf.core import nest
import rlds2buf
from tests.buffers import goals
from tests.buffers.numbered import SPEC, episode, transitions
digest = hashlib.sha256()
def note(batch):
    for path, column in nest.flatten((batch.data._asdict(), batch.info._asdict())):
        digest.update(repr((path, np.asarray(column).tobytes() if column is not None else None)).encode())
compiled._PATIENCE = compiled._PATIENCE_KEPT = %s
made = [rlds2buf.make_circular(SPEC, 300, seed=1), rlds2buf.make_reservoir(SPEC, 50, seed=1)]
made += [rlds2buf.make_prioritized(SPEC, 300, seed=1, normalise=how) for how in ("batch", "buffer")]
made += [goals.make(300, seed=1, strategy=how) for how in ("final", "episode", "future")] + [goals.make(300, alpha=0.7)]
for buffer in made:
    hindsight = buffer.kind.startswith("hindsight")
    for i in range(30):
        buffer.add((goals.episode if hindsight else episode)(20 * i, 1 + 7 * i %% 19), source_id=i %% 2)
        if not hindsight:
            buffer.add(transitions(1000 + 5 * i, 5), source_id=np.arange(5) %% 3)
        views = [{}, {"n_step": 3}] + ([] if hindsight else [{"sequence_length": 5, "burn_in": 2}])
        for view in views if len(buffer) else []:
            batch = buffer.sample(32, **view)
            note(batch)
            if "prioritized" in buffer.kind:
                buffer.update_priorities(batch.info.key, np.arange(32.0) / 7)
print("numba" in sys.modules, digest.hexdigest())
"""


def test_draws_are_the_same_with_machine_code_and_without(tmp_path: Path) -> None:
    early, late = (run(_DRAWS % how, tmp_path).stdout.split() for how in ("1e9", "0.0"))
    assert (early[0], late[0]) == ("False", "True")
    assert early[1] == late[1]


_FIND = """
import numpy as np
from rlds2buf.kernels.time_slots import find
nothing = np.zeros(0, np.int64)
for _ in range(2):
    find(np.full(16, -1, np.int32), np.zeros((0, 3), np.int64), nothing, nothing, nothing)
"""


def test_a_wait_is_told_once_on_a_terminal(tmp_path: Path) -> None:
    """And nowhere else, nor where machine code is on the disk."""
    assert run("import os\nos.environ['NUMBA_CACHE_DIR'] += '/other'\n" + _FIND, tmp_path).stderr == ""
    told = []
    for _ in range(2):
        terminal, end = pty.openpty()
        run(_FIND, tmp_path, stderr=end)
        os.write(end, b"\n")
        told.append(os.read(terminal, 1000).decode().strip())
        os.close(end), os.close(terminal)
    assert told == ["rlds2buf: compiling, once; this takes a few seconds", ""]


def test_twins_do_the_work_until_they_have_taken_long(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def twin(values: np.ndarray) -> float:
        done.append("twin")
        return float(values.sum())

    @compiled(twin=twin, seconds=lambda values: float(len(values)))
    def total(values):  # type: ignore[no-untyped-def]
        return values.sum()

    monkeypatch.setattr(module, "_PATIENCE", 5.0)
    monkeypatch.setattr(module, "_is_kept", lambda function: False)
    monkeypatch.setattr(Kernel, "spent", 0.0)
    for seconds, expected in ((2, 1), (2, 2), (2, 2), (1, 2)):  # what would be the third one takes too long
        assert total(np.ones(seconds)) == seconds
        assert len(done) == expected
    assert total.machine is not None and Kernel.spent == 4.0


def test_a_kernel_without_a_twin_is_compiled_at_once() -> None:
    @compiled
    def twice(value):  # type: ignore[no-untyped-def]
        return 2 * value

    assert twice.machine is None and twice(4) == 8 and twice.machine is not None
    with pytest.raises(TypeError, match="compiled code"):
        module.Instruction(lambda context, value: None)(1)


def test_work_that_has_another_way_asks_whether_compiling_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    @compiled
    def twice(value):  # type: ignore[no-untyped-def]
        return 2 * value

    monkeypatch.setattr(module, "_PATIENCE", 5.0)
    monkeypatch.setattr(module, "_is_kept", lambda function: False)
    monkeypatch.setattr(Kernel, "spent", 0.0)
    assert [twice.pays(seconds) for seconds in (2.0, 2.0, 2.0, 0.5, 0.5)] == [False, False, True, False, True]
    assert Kernel.spent == 4.5
    twice.compile()
    assert twice.pays(0.0)
