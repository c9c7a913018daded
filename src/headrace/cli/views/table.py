"""Consoles, and tables with plain cells: nothing in a cell is markup and nothing is ever cut; and the notes under them.

A table that is wider than the terminal folds its last column between words, when that is enough; else every row becomes
a block of lines, ``name  value``. On a pipe and in a file there is no width, so a row is always one line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from headrace.cli.views.terminal import painted, visible
from headrace.insight.render.document import Cell, Document, Heading, Notes, Section, Sentence, Table

_GAP = 2
_FOLDED = 30  # characters; a narrower column of words is hard to read


NO_LIMIT = 1_000_000
"""Characters a line where there is no terminal: more than any row has."""


class PlainConsole(Console):
    """Shows the control characters of what it prints.

    It raises when the reader is gone: rich would exit with code 1, and headrace has its own code for that.
    """

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Returns what is written: the one place through which everything goes."""
        return super()._render_buffer(
            part if part.control else Segment(visible(part.text), part.style) for part in buffer
        )

    def on_broken_pipe(self) -> None:
        """Raises what `headrace.cli.main` ends by."""
        raise BrokenPipeError


def console(file: TextIO | None = None) -> Console:
    """Returns a console on standard output, or on a file. Outside a terminal nothing is wrapped or cut."""
    screen = file is None and sys.stdout.isatty()
    out = painted(sys.stdout) if file is None else file
    return PlainConsole(file=out, width=None if screen else NO_LIMIT, highlight=False, soft_wrap=not screen)


def show(document: Document, out: Console | None = None) -> None:
    """Prints a document: a blank line between its sections; what is strong is bold. `out`: None for standard output."""
    out = console() if out is None else out
    before = False
    for part in document:
        before = _section(part, out, before) or before


def _section(part: Section, out: Console, before: bool) -> bool:
    """Prints what a terminal shows of a section, and tells whether that is anything. `before`: something was."""
    blocks = [block for block in _blocks_of(part) if not getattr(block, "aside", False)]
    if blocks and before:
        out.print()
    for block in blocks:
        if isinstance(block, Notes):
            for line in block.lines:
                out.print(Text(f"note: {line}"))
        elif isinstance(block, Table):
            out.print(Columns(block))
        else:
            indent = "  " if isinstance(block, Sentence) and block.detail else ""
            bold = isinstance(block, Heading) or block.strong
            for row in Text(block.text, style="bold" if bold else "").wrap(out, out.width - len(indent)):
                row.rstrip()
                out.print(Text(indent) + row)
    return bool(blocks)


def _blocks_of(part: Section) -> Iterator[Heading | Sentence | Table | Notes]:
    for block in part.blocks:
        if isinstance(block, Section):
            yield from _blocks_of(block)
        elif isinstance(block, Heading | Sentence | Table | Notes):
            yield block


class Columns:
    """A table as a console prints it."""

    def __init__(self, table: Table) -> None:
        self.names = table.columns
        self.right = table.right
        self.rows = [
            tuple(_text(cell, "bold red" if index in table.faults else "") for cell in row)
            for index, row in enumerate(table.rows)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        head = [tuple(Text(name, style="bold") for name in self.names)] if self.names else []
        every = [*head, *self.rows]
        if not every:
            return
        widths, narrowest = self._widths(every)
        room = options.max_width - sum(widths[:-1]) - _GAP * (len(widths) - 1)
        if room >= widths[-1]:
            lines = self._lines(every, widths)
        elif room >= narrowest:
            folded = [(*row[:-1], Text("\n").join(row[-1].wrap(console, room))) for row in every]
            lines = self._lines(folded, [*widths[:-1], room])
        else:
            lines = self._blocks(console, options.max_width)
        for line in lines:
            line.no_wrap, line.overflow = True, "ignore"
            yield line

    def _widths(self, every: Sequence[Sequence[Text]]) -> tuple[list[int], int]:
        """Returns the widths of the columns, and how narrow the last one may be, whose cells can be folded."""
        widths = [max(_width(cell) for cell in column) for column in zip_longest(*every, fillvalue=Text())]
        folds = len(widths) - 1 not in self.right
        return widths, max(_FOLDED, *(_word(row[-1]) for row in every)) if folds else widths[-1]

    def fits(self, width: int) -> bool:
        """Tells whether the rows can stand as lines in so many columns of a terminal."""
        every = [tuple(Text(name) for name in self.names), *self.rows]
        widths, narrowest = self._widths(every)
        return sum(widths[:-1]) + _GAP * (len(widths) - 1) + min(widths[-1], narrowest) <= width

    def _lines(self, rows: Iterable[Sequence[Text]], widths: Sequence[int]) -> Iterator[Text]:
        """Yields the rows as they stand side by side."""
        for row in rows:
            for parts in zip_longest(*(cell.split("\n", allow_blank=True) or [Text()] for cell in row)):
                line = Text()
                for index, part in enumerate(parts):
                    shown = part if part is not None else Text()
                    blank = " " * (widths[index] - shown.cell_len)
                    line.append(blank if index in self.right else "").append_text(shown)
                    line.append(("" if index in self.right else blank) + " " * _GAP)
                line.rstrip()
                yield line

    def _blocks(self, console: Console, width: int) -> Iterator[Text]:
        """Yields every row as lines of a name and its value; what has no name stands behind the value before it. A name
        that leaves values too little room stands above its value."""
        names = self.names or ("",) * len(self.rows[0])
        lengths = (cell_len(name) + _GAP for name in names)
        indent = max((length for length in lengths if width - length >= _FOLDED), default=_GAP)
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            for name, value in _named(names, row):
                first = Text().append(name, style="bold")
                if name and cell_len(name) + _GAP > indent:
                    yield from first.wrap(console, width)
                    first = Text()
                for part in value.wrap(console, width - (indent if name else 0)):
                    pad = " " * (indent - first.cell_len) if name else ""
                    line = first.append(pad).append_text(part)
                    line.rstrip()
                    yield line
                    first = Text()


def _named(names: Sequence[str], row: Sequence[Text]) -> list[tuple[str, Text]]:
    """Returns the cells of a row that are not empty, by the names of their columns."""
    found: list[tuple[str, Text]] = []
    for name, cell in zip(names, row, strict=True):
        if not cell.plain:
            continue
        if name or not found:
            found.append((name, Text().append_text(cell)))
        else:
            found[-1][1].append(" " * _GAP).append_text(cell)
    return found


def _width(cell: Text) -> int:
    return max((cell_len(line) for line in cell.plain.split("\n")), default=0)


def _word(cell: Text) -> int:
    return max((cell_len(word) for word in cell.plain.split()), default=0)


def _text(cell: str, style: str) -> Text:
    strong = isinstance(cell, Cell) and cell.strong
    return Text(str(cell), style="bold" if strong else style)
