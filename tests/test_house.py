"""How the package hangs together, counted from its code: circles, side doors, attributes of others, names said once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.imports import FILES, OWN, PACKAGE

TOUCHED = {
    "rlds_to_reverb/graph.py ._variant_tensor": "tf.data has no other way to wrap a dataset's graph",
    "files/column_file.py ._mmap": "numpy.memmap has no method that gives its pages back",
}
"""Private attributes of others that are touched, and why."""

FLAGS = {"CODE", "IS_FIRST", "IS_LAST", "IS_TERMINAL", "OWN_NEXT", "BREAK", "NOT_RECORDED", "LINKED", "FINAL_ROW"}
MARKERS = {"placeholder_final_row", "real_final_action", "open_tail"}
HOME = "rlds2buf.core.row_flags"

NAMED_TUPLES = {"_replace", "_fields", "_asdict", "_make"}


def inside(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected groups of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in edges.get(module, ()):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            place = stack.index(module)
            found.append(sorted(stack[place:]))
            del stack[place:]

    for module in edges:
        if module not in index:
            visit(module)
    return [group for group in found if len(group) > 1]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}) == [["a", "b", "c"]]


def test_no_modules_import_each_other_in_a_circle_wherever_the_imports_stand() -> None:
    edges: dict[str, set[str]] = {}
    for one in OWN:
        if one.imported != one.importer:
            edges.setdefault(one.importer, set()).add(one.imported)
    assert len(edges) > 100
    found = circles(edges)
    assert not found, found


def test_nothing_is_asked_of_a_source_or_sink_that_its_class_does_not_declare() -> None:
    wrong = []
    for path in FILES:
        calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call) and node.args]
        for call in calls:
            asked = ast.unparse(call.func) in ("getattr", "hasattr")
            if asked and re.search(r"\b(source|sink)\b", ast.unparse(call.args[0])):
                wrong.append(f"{inside(path)} line {call.lineno}: {ast.unparse(call)}")
    assert not wrong, "\n".join(wrong)


def private_touches(path: Path) -> Iterator[str]:
    """``file ._name`` for each private attribute of something else that the file does not define itself."""
    own = set(_defined(tree_of(path))) | NAMED_TUPLES
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Attribute) or not re.match(r"_[^_]", node.attr) or node.attr in own:
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os", "sys", "np")):
            yield f"{inside(path)} .{node.attr}"


def _defined(tree: ast.Module) -> Iterator[str]:
    """Attributes of self, functions, classes, assigned names, slots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
            if isinstance(node.value, ast.Tuple | ast.List):
                yield from (str(item.value) for item in node.value.elts if isinstance(item, ast.Constant))


def test_private_attributes_are_their_own_file_s() -> None:
    found = {touch for path in FILES for touch in private_touches(path)}
    assert found == TOUCHED.keys() and len(TOUCHED) <= 5, found ^ TOUCHED.keys()


def test_flag_bits_and_markers_are_said_in_one_file() -> None:
    wrong = []
    for path in FILES:
        if inside(path) == "core/row_flags.py":
            continue
        for node in ast.walk(tree_of(path)):
            said = ""
            if isinstance(node, ast.Constant) and node.value in MARKERS:
                said = repr(node.value)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in FLAGS:
                said = node.id
            elif isinstance(node, ast.ImportFrom) and node.module != HOME:
                said = " ".join(alias.name for alias in node.names if alias.name in FLAGS)
            if said:
                wrong.append(f"{inside(path)} line {node.lineno}: {said}; import it from {HOME}")
    assert not wrong, "\n".join(wrong)
