#!/usr/bin/env python3
"""Counts code: lines of Python without blanks, comments, docstrings and imports, and files, by room (folder).

    python scripts/code_lines.py src/headrace

Lines in which anything of a statement stands count once; a text over three lines counts three, a docstring none.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str) -> int:
    """Returns how many lines of a module are code."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            text = node.body[0]
            left_out.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - left_out)


def main(root: Path) -> None:
    """Prints a line a room, the largest first, and the sum."""
    lines, files = Counter[str](), Counter[str]()
    for path in sorted(root.rglob("*.py")):
        within = path.relative_to(root).parts
        room = within[0] if len(within) > 1 else "(top)"
        lines[room] += code_lines(path.read_text())
        files[room] += 1
    for room, count in [*lines.most_common(), ("in all", lines.total())]:
        print(f"{room:12} {count:7,} lines {files[room] if room in files else files.total():5,} files")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/headrace"))
