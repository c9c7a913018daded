"""Documents as HTML, by templates that escape all text: a self-contained page, or parts of the page of `headrace ui`.

A page of its own holds no script and fetches nothing: its own policy forbids both. It is readable light and dark, wide
and narrow. On the page of `headrace ui` every figure is a button that opens what is known of it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup

from headrace.insight.render import plain_text
from headrace.insight.render.document import Cell, Document, shown

_HERE = Path(__file__).parent


class Source(NamedTuple):
    """Where figures come from: the command that prints them as JSON, and how each is computed, by name."""

    command: str
    formulas: dict[str, str]


@functools.cache
def environment(*folders: Path) -> jinja2.Environment:
    """Returns what makes HTML of templates: of those of documents, and of those in other folders."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_HERE / "templates", *folders]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    words = ("number", "spread", "confidence", "moment", "duration", "quantity")
    made.filters |= {name: getattr(plain_text, name) for name in words}
    made.filters |= {"upper_first": upper_first, "figure_title": plain_text.title, "figure_cell": shown}
    made.filters["as_cell"] = lambda text: text if isinstance(text, Cell) else Cell(text)
    made.tests["block"] = lambda block, kind: type(block).__name__ == kind
    return made


def upper_first(text: str) -> str:
    """Returns words as they begin a heading: CPU stays as it is."""
    return text[:1].upper() + text[1:]


def page(name: str, document: Document) -> str:
    """Returns a whole page with a title."""
    style = Markup((_HERE / "report.css").read_text(encoding="utf-8"))
    return environment().get_template("page.html").render(name=name, document=document, style=style)
