"""Documents in Markdown, with the pipe tables that GitHub and most others read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.insight.render.document import Block, Cell, Document, Heading, Notes, Section, Sentence, Table


def markdown(document: Document) -> str:
    """Returns a document as Markdown; charts and formulas are left out."""
    return "\n".join(line for part in document for line in _lines(part)).rstrip("\n") + "\n"


def _lines(block: Block) -> Iterator[str]:
    """Yields the lines of a block, an empty one behind it."""
    if isinstance(block, Section):
        for part in block.blocks:
            yield from _lines(part)
    elif isinstance(block, Heading):
        yield from (f"# {escaped(block.text)}", "")
    elif isinstance(block, Sentence):
        text = escaped(block.text)
        yield from (f"**{text}**" if block.strong else f"* {text}" if block.detail else text, "")
    elif isinstance(block, Table):
        yield from (*_heading(block.title), *_table(block), "")
    elif isinstance(block, Notes):
        yield from (*_heading("notes"), *(f"* {escaped(line)}" for line in block.lines), "")


def _heading(title: str) -> tuple[str, ...]:
    return (f"## {escaped(title.capitalize())}", "") if title else ()


def _table(table: Table) -> Iterator[str]:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    yield line(map(escaped, table.columns))
    yield line("---:" if index in table.right else "---" for index in range(len(table.columns)))
    for row in table.rows:
        yield line(f"**{escaped(c)}**" if isinstance(c, Cell) and c.strong else escaped(c) for c in row)


_SPECIAL = {**{letter: "\\" + letter for letter in "\\`*_[]#|"}, "<": "&lt;", ">": "&gt;", "&": "&amp;", "\n": " "}


def escaped(text: str) -> str:
    """Returns a text as Markdown."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
