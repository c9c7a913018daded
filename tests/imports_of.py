"""Which module of a package imports which: read from the source, nothing is executed.

An import counts wherever it stands, also inside a function. A string that names a module counts too, because
`importlib.import_module("headrace.x")`, `python -m headrace.x` and tables of lazy exports are imports. Imports under
`if TYPE_CHECKING:` are left out on request: they are never executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """An import: the name that is imported, where it stands, and whether it is for type checkers only."""

    name: str
    line: int
    type_only: bool


def module_name(path: Path, package: Path) -> str:
    """The dotted name of a file; a package's `__init__.py` has the package's name."""
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(package: Path) -> dict[str, Path]:
    """Every module of a package, by its dotted name."""
    return {module_name(path, package): path for path in sorted(package.rglob("*.py"))}


def imports_in(path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    """Everything that a file imports. Of `from package import x`, x itself where it is a module of the package."""
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), False)]
    while waiting:
        node, hidden = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, hidden) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(full if full in modules else node.module or "", node.lineno, hidden)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and "." in node.value and node.value in modules:
                yield Import(node.value, node.lineno, hidden)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += [(inner, True) for inner in node.body]
            waiting += [(inner, hidden) for inner in node.orelse]
        else:
            waiting += [(inner, hidden) for inner in ast.iter_child_nodes(node)]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, largest first (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1 or node in graph.get(node, ()):
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)
