"""What a type checker and an editor see of the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import rlds2buf
from tests.data import ROOT, needed

STUB = ROOT / "rlds2buf" / "__init__.pyi"

PROGRAM = """
import numpy as np
import rlds2buf

with rlds2buf.open_source("hopper.hdf5") as source:
    reveal_type(source)
    for episode in source:
        reveal_type(episode)
    for block in source.batches():
        reveal_type(block)
    reveal_type(rlds2buf.validate(source))
    buffer = rlds2buf.make_prioritized(source.spec, 1000)
    reveal_type(rlds2buf.convert(source, buffer))
reveal_type(buffer)
batch = buffer.sample(256, n_step=3)
reveal_type(batch)
reveal_type(batch.info)
reveal_type(buffer.update_priorities(batch.info.key, [1.0]))
reveal_type(batch.info.key)
reveal_type(rlds2buf.load_buffer("hopper"))
reveal_type(rlds2buf.load_buffer("ants", expect=rlds2buf.MultiAgentBuffer).sample(8))
reveal_type(rlds2buf.load_buffer("rollout", expect=rlds2buf.OnPolicyBuffer))
for ready in buffer.batches(256):
    reveal_type(ready)
    target: np.ndarray = ready.data.reward + ready.data.bootstrap_discount * ready.info.weight
for tensors in buffer.batches(256, to="torch"):
    reveal_type(tensors)
wrong: int = buffer.sample("many")
"""

REVEALED = [
    "rlds2buf.io.source.Source",
    "rlds2buf.core.episode.Episode",
    "rlds2buf.core.episode_batch.EpisodeBatch",
    "rlds2buf.check.report.ValidationReport",
    "rlds2buf.pipeline.conversion.ConvertReport",
    "rlds2buf.buffers.buffer.Buffer",
    "fallback=rlds2buf.core.sample.Sample]",
    "fallback=rlds2buf.core.sample.SampleInfo]",
    "numpy.ndarray[",
    "numpy.ndarray[",
    "rlds2buf.buffers.buffer.Buffer",
    "rlds2buf.core.sample.MultiAgentSample",
    "rlds2buf.buffers.vectorized.on_policy.OnPolicyBuffer",
    "fallback=rlds2buf.core.sample.Sample]",
    "Any",
]


def test_the_stub_has_what_the_lazy_table_has() -> None:
    found = {}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and all(alias.asname == alias.name for alias in node.names)
            for alias in node.names:
                own = node.module == "rlds2buf"
                found[alias.name] = alias.name if own else str(node.module).removeprefix("rlds2buf.")
    assert found.pop("__version__") == "version"
    assert found == rlds2buf._HOME


def test_a_users_program_sees_the_real_types(tmp_path: Path) -> None:
    needed("mypy")  # in the environment that lints
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    how = ["--strict", "--config-file=", f"--cache-dir={ROOT / '.cache' / 'mypy'}", "--python-version=3.10"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *how, program], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    # mypy's cache tells what it found in the same text before under the name that had then.
    lines = [line for line in done.stdout.splitlines() if line.partition(":")[0].endswith(program.name)]
    revealed = [line.partition("Revealed type is ")[2] for line in lines if "Revealed type" in line]
    assert len(revealed) == len(REVEALED), done.stdout
    for text, wanted in zip(revealed, REVEALED, strict=True):
        assert wanted in text
    errors = [line.rpartition("[")[2] for line in lines if " error: " in line]
    assert errors == ["assignment]", "arg-type]"], done.stdout


def test_the_marker_is_installed_with_the_package() -> None:
    assert (ROOT / "rlds2buf" / "py.typed").is_file()
    assert '"py.typed"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
