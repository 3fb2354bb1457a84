"""No test waits without an end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data import ROOT

# The campaign is no test: it runs for as long as it is told, and has a clock for each of its cases.
FILES = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.parent.name != "campaign"]


def endless(code: str) -> Iterator[str]:
    """Calls that wait for a process or thread without a time limit; loops that sleep without looking at a clock."""
    for node in ast.walk(ast.parse(code)):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.While) else ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            limited = bool(node.args) or any(word.arg == "timeout" for word in node.keywords)
            if node.func.attr in ("communicate", "wait", "join") and not limited:
                yield f"line {node.lineno}: {text}"
            if text.startswith(("subprocess.run(", "subprocess.check_")) and "timeout=" not in text:
                yield f"line {node.lineno}: {text}"
        if isinstance(node, ast.While) and "sleep(" in text and "monotonic(" not in text:
            yield f"line {node.lineno}: {text}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "tests")))
def test_every_wait_has_an_end(path: Path) -> None:
    assert list(endless(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    [
        "process.communicate()",
        "os.wait()",
        "thread.join()",
        "subprocess.run(['true'], check=True)",
        "while not client.is_there():\n    time.sleep(0.02)",
    ],
)
def test_what_has_none_is_found(code: str) -> None:
    assert len(list(endless(code))) == 1
