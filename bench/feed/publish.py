"""Writes a run into the docs: the table, where we lose, and the picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.feed.figures import Figure, markdown
from bench.feed.plot import plot

DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURE = "![Every target and how far it was met](feed-speed.svg)"
BEGIN, END = "<!-- from the raw data: {} -->", "<!-- end of it -->"


def between(text: str, name: str, block: str) -> str:
    """Returns a page with what stands between the marks of a block replaced.

    Raises:
        ValueError: the page has no such marks.
    """
    begin = BEGIN.format(name)
    head, mark, rest = text.partition(begin)
    _, end, tail = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"no block {begin!r} with its end {END!r}")
    return f"{head}{begin}\n\n{block}\n\n{END}{tail}"


def put(name: str, block: str) -> None:
    """Writes a block of the page of figures."""
    path = DOCS / "benchmark-figures.md"
    path.write_text(between(path.read_text(), name, block))


def surroundings(raw: Path) -> str:
    """Returns a sentence on where and with what a run was made."""
    last = json.loads(raw.with_suffix(".json").read_text())[-1]
    versions = ", ".join(f"{name} {version}" for name, version in last["packages"].items() if version)
    return (
        f"Measured on {last['time'][:10]} at {last['headrace']}, on {last['usable_cores']} cores "
        f"({last['processor']}), Linux {last['kernel']}, Python {last['python']}, {versions}. "
        f"Load before: {last['load_before']:.2f}. "
        f"Raw data: `bench/results/{raw.name}`."
    )


def publish(raw: Mapping[Path, Sequence[str]], figures: Sequence[Figure]) -> None:
    """Writes figures into docs/benchmark-figures.md, and draws docs/feed-speed.svg.

    Args:
        raw: files of raw data, and the rows that are taken from each.
        figures: of these rows.
    """
    told = "\n\n".join(
        f"Rows {', '.join(rows)}: {surroundings(file)}" if len(raw) > 1 else surroundings(file)
        for file, rows in raw.items()
    )
    lost = [figure for figure in figures if figure.lost]
    put("table", f"{told}\n\n{PICTURE}\n\n{markdown(figures)}")
    put("losses", markdown(lost) if lost else "None in this run.")
    plot(figures, DOCS / "feed-speed.svg")
