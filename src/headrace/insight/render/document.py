"""What people see, as one tree of typed blocks: headings, sentences, tables of cells, charts, notes. Pure.

Commands and the page of `headrace ui` make documents; `headrace.cli.views.table` writes them on a terminal, `markdown`
as Markdown, `headrace.insight.render.html` as HTML. Nothing is computed here, and no writer knows what a document is
about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.insight.figures.figure import Figure
from headrace.insight.render.plain_text import number, spread


class Cell(str):
    """A text, as a cell of a table. A plain text is a cell too.

    Attributes:
        figure: that it shows.
        path: where the figure stands in the command's JSON, e.g. ``groups[0].cpu``.
        kind: what it is to a style sheet, e.g. ``ratio``.
        strong: a reader should see it first.
        badge: kind and words of a sign before it, and what it means; in HTML.
        below: cells under it, in HTML.
        share: length of a bar below it, 0 to 1, in HTML.
    """

    figure: Figure | None
    path: str
    kind: str
    strong: bool
    badge: tuple[str, ...]
    below: tuple[Cell, ...]
    share: float | None

    def __new__(
        cls,
        text: str,
        figure: Figure | None = None,
        path: str = "",
        *,
        kind: str = "",
        strong: bool = False,
        badge: tuple[str, ...] = ("", ""),
        below: Iterable[Cell] = (),
        share: float | None = None,
    ) -> Cell:
        """Makes a cell."""
        cell = super().__new__(cls, text)
        cell.figure, cell.path, cell.kind, cell.strong = figure, path, kind, strong
        cell.badge, cell.below, cell.share = badge, tuple(below), share
        return cell


def shown(figure: Figure, path: str = "", *, with_spread: bool = False) -> Cell:
    """Returns a figure as a cell. `with_spread`: its spread stands beside it."""
    words = f"{number(figure)} {spread(figure)}".strip() if with_spread else number(figure)
    return Cell(words, figure, path)


@dataclass(frozen=True)
class Heading:
    """What a document is about. `aside`: a terminal leaves it out."""

    text: str
    aside: bool = False


@dataclass(frozen=True)
class Sentence:
    """A line of words.

    Attributes:
        text: the words.
        strong: a reader should see it first.
        detail: it belongs to the sentence before it.
        badge: kind and words of a sign before it, and what it means; in HTML.
        aside: a terminal leaves it out.
    """

    text: str
    strong: bool = False
    detail: bool = False
    badge: tuple[str, ...] = ("", "")
    aside: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells.

    Attributes:
        title: what it shows; a terminal leaves it out.
        columns: their names; none at all for a table without a head.
        rows: cells, one a column.
        right: numbers of the columns that are flush right.
        faults: numbers of the rows that tell of something that went wrong.
        aside: a terminal leaves the table out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    faults: frozenset[int] = frozenset()
    aside: bool = False


def table(
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    right: Iterable[str] = (),
    title: str = "",
    faults: Iterable[int] = (),
) -> Table:
    """Returns a table; the columns named `right` are flush right."""
    names, flush = tuple(columns), set(right)
    sides = frozenset(index for index, name in enumerate(names) if name in flush)
    return Table(title, names, tuple(map(tuple, rows)), sides, frozenset(faults))


@dataclass(frozen=True)
class Chart:
    """A drawing, as an element of HTML; only HTML shows it."""

    markup: str


@dataclass(frozen=True)
class Notes:
    """Notes, each shown once."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Formulas:
    """How figures are computed, by their names; HTML shows them, and where the JSON is."""

    formulas: dict[str, str]
    command: str = ""


@dataclass(frozen=True)
class Section:
    """Blocks that belong together. A terminal puts a blank line between those of a document.

    Attributes:
        blocks: what is in it.
        kind: what it is to a style sheet.
    """

    blocks: tuple[Block, ...]
    kind: str = field(default="")


Block: TypeAlias = Heading | Sentence | Table | Chart | Notes | Formulas | Section
Document: TypeAlias = tuple[Section, ...]


def section(*blocks: Block | None, kind: str = "") -> Section:
    """Returns a section of the blocks that are not None."""
    return Section(tuple(block for block in blocks if block is not None), kind)


def document(*sections: Section | None) -> Document:
    """Returns a document of the sections that hold anything."""
    return tuple(part for part in sections if part is not None and part.blocks)


def notes(lines: Iterable[str]) -> Section:
    """Returns a section of notes, each once; an empty one without any."""
    kept = tuple(dict.fromkeys(lines))
    return section(Notes(kept) if kept else None, kind="notes")


def sentences(lines: Iterable[str]) -> tuple[Sentence, ...]:
    """Returns a sentence for each line."""
    return tuple(Sentence(line) for line in lines)


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
