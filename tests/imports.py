"""Every import statement of the package, and what a fresh Python loads."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.data import ROOT

PACKAGE = ROOT / "rlds2buf"


@dataclasses.dataclass(frozen=True)
class Import:
    """One import statement: in which module, of which module, on which line, and whether it runs on import."""

    importer: str
    imported: str
    line: int
    at_load: bool

    def __str__(self) -> str:
        return f"{self.importer} line {self.line}: imports {self.imported}"


def imports_of(path: Path) -> Iterator[Import]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    yield from _walk(ast.parse(path.read_text(encoding="utf-8")), module, at_load=True)


def _walk(node: ast.AST, module: str, *, at_load: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, at_load)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module} line {child.lineno}: relative import"
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                yield Import(module, whole if _is_module(whole) else str(child.module), child.lineno, at_load)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _walk(child, module, at_load=False)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, module, at_load=at_load and not inside)


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


FILES = sorted(PACKAGE.rglob("*.py"))
ALL = [found for path in FILES for found in imports_of(path)]
OWN = [found for found in ALL if found.imported.split(".")[0] == "rlds2buf"]


LOADED = """
import json, sys
before = set(sys.modules)
{code}
print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""


def loaded_by(code: str) -> set[str]:
    """The modules that are loaded when this code is run by a Python that has just started."""
    return set(json.loads(run_python("-c", LOADED.format(code=code)).stderr.splitlines()[-1]))


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
