"""`headrace feed bench`."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import sys
from typing import TYPE_CHECKING

import click

from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.measuring.windows import Summary

FIGURES = (
    "batches/s and GB/s are medians over the rounds, [low .. high] their range; CPU s/GB counts all processes;\n"
    "x torch is the median of the ratios within a round; a small memcpy stays in the CPU's cache"
)


@click.command("bench", short_help="Measure the feed here, beside torch's DataLoader and the machine's limits.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Windows for each contender.")
@click.option("--seconds", type=click.FloatRange(0.05), default=1.0, show_default=True, help="Length of a window.")
@click.option("--shape", "chosen", multiple=True, help="Only batches of this shape, e.g. '19 MB'; may be repeated.")
@click.option(
    "--output", type=click.Choice(["text", "json", "csv"]), default="text", help="csv: the windows, one a line."
)
def command(rounds: int, seconds: float, chosen: tuple[str, ...], output: str) -> None:
    """Measure how fast batches arrive: over shared memory, over TCP on loopback, from torch's DataLoader.

    It takes about a minute and needs only torch. The rows "limit" show what the machine can do, without a loader.
    Look at the ratios: other load on the machine slows all rows.

    \b
    Examples:
      headrace feed bench
      headrace feed bench --rounds 10 --shape '19 MB' --output csv > windows.csv
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("the feed's loader needs torch, which is not installed", hint="pip install torch")
    from headrace.cli.options import echo_json
    from headrace.cli.views.terminal import Terminal
    from headrace.measuring.windows import SHAPES, machine, measure, summarise

    unknown = sorted(set(chosen) - {shape.name for shape in SHAPES})
    if unknown:
        raise UsageError(f"no shape {unknown[0]!r}", hint=f"one of {', '.join(repr(shape.name) for shape in SHAPES)}")
    facts = machine()
    terminal = Terminal.standard(err=True)
    try:
        windows = measure(
            [shape for shape in SHAPES if not chosen or shape.name in chosen], rounds, seconds, terminal.below
        )
    finally:
        terminal.below("")
        terminal.flush()
    if output == "json":
        summaries = [dataclasses.asdict(summary) for summary in summarise(windows)]
        echo_json(
            {"machine": facts, "summary": summaries, "windows": [dataclasses.asdict(window) for window in windows]}
        )
    elif output == "csv":
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(field.name for field in dataclasses.fields(windows[0]))
        lines.writerows(dataclasses.astuple(window) for window in windows)
    else:
        _show(summarise(windows), facts)


def _show(summaries: list[Summary], facts: dict[str, object]) -> None:
    from headrace.cli.views.table import show
    from headrace.insight.render.document import document, section, sentences, table

    measured = ("batches/s", "[low .. high]", "GB/s", "CPU s/GB", "x torch")
    rows = (
        (
            each.shape,
            each.contender,
            f"{each.batches_per_second:.1f}",
            f"[{each.low:.1f} .. {each.high:.1f}]",
            f"{each.gigabytes_per_second:.3f}",
            f"{each.cpu_seconds_per_gb:.3f}",
            "" if each.against_torch is None else f"{each.against_torch:.2f}",
        )
        for each in summaries
    )
    facts_line = ", ".join(f"{name} {value}" for name, value in facts.items())
    show(
        document(
            section(table(("batch", "contender", *measured), rows, measured)),
            section(*sentences((FIGURES, facts_line))),
        )
    )
