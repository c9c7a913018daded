"""Raw data into docs/benchmark-figures.md: a table with where we lose, and a picture."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.feed.publish import DOCS, put
from bench.shards.settings import OURS

PICTURE = DOCS / "shards-speed.svg"


class Column:
    """The runs of one contender in one row, a run a round."""

    def __init__(self, runs: list[dict[str, str]]) -> None:
        self.rates = {run["round"]: float(run["samples"]) / float(run["seconds"]) for run in runs}
        self.cpu = {run["round"]: float(run["cpu"]) / float(run["samples"]) * 1e6 for run in runs}
        self.settings = json.loads(runs[-1]["settings"])


def columns(measured: list[dict[str, str]]) -> dict[str, dict[str, Column]]:
    """Returns the runs by row and contender."""
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    for run in measured:
        found.setdefault(run["row"], {}).setdefault(run["contender"], []).append(run)
    return {row: {name: Column(runs) for name, runs in of.items()} for row, of in found.items()}


def ratios(mine: dict[str, float], theirs: dict[str, float]) -> list[float]:
    """Returns the ratios within each round that both ran."""
    return [mine[turn] / theirs[turn] for turn in mine if turn in theirs]


def told(values: list[float]) -> str:
    """Returns the median, and the smallest and the largest."""
    return f"{statistics.median(values):.2f}x ({min(values):.2f} .. {max(values):.2f})"


def table(measured: list[dict[str, str]]) -> str:
    """Returns the table of the page: medians, and ratios within a round."""
    lines = [
        "| row | contender | settings | rounds | samples/s | CPU us a sample | headrace / it | its CPU / headrace |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, of in columns(measured).items():
        ours = next((column for name, column in of.items() if name.startswith(OURS)), None)
        for name, column in of.items():
            numbers = ", ".join(f"{key} {value}" for key, value in column.settings.items())
            rate, cpu = statistics.median(column.rates.values()), statistics.median(column.cpu.values())
            against, more = (
                (ratios(ours.rates, column.rates), ratios(column.cpu, ours.cpu)) if ours is not None else ([], [])
            )
            settings = "as it comes" if name.startswith(OURS) else numbers
            compared = f"{told(against) if against else ''} | {told(more) if more else ''}"
            cost = f"{cpu:,.0f}" if cpu >= 10 else f"{cpu:.2f}"
            who = f"`{row}` | {name.replace('_', ' ')} | {settings} | {len(column.rates)}"
            lines.append(f"| {who} | {rate:,.0f} | {cost} | {compared} |")
    return "\n".join(lines)


def lost(measured: list[dict[str, str]]) -> str:
    """Returns a list of the rows in which a peer was better than every way of ours to read it shuffled."""

    def listed(what: str, value: Callable[[Column], float]) -> str:
        lines = []
        for row, of in columns(measured).items():
            found = {name: value(column) for name, column in of.items() if "in_order" not in name}
            ours = {name: each for name, each in found.items() if name.startswith(OURS)}
            peers = {name: each for name, each in found.items() if name not in ours}
            if ours and peers and max(peers.values()) > max(ours.values()):
                first = max(peers, key=lambda name: peers[name])
                share = max(ours.values()) / peers[first]
                lines.append(f"* `{row}`: {share:.2f}x of {first.replace('_', ' ')}.")
        return "\n".join([f"Where a peer has more samples {what} than headrace (medians):", "", *lines]) if lines else (
            f"In no row did a peer have more samples {what} than headrace (medians)."
        )  # fmt: skip

    rates = listed("a second", lambda column: statistics.median(column.rates.values()))
    return f"{rates}\n\n{listed('a CPU second', lambda column: 1 / statistics.median(column.cpu.values()))}"


def plot(measured: list[dict[str, str]], picture: Path) -> None:
    """Draws samples a second of every contender, a panel a row, with smallest and largest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = columns(measured)
    matplotlib.rcParams["svg.hashsalt"] = "headrace"  # the same data make the same file
    heights = [len(of) for of in found.values()]
    canvas, panels = pyplot.subplots(
        len(found), 1, figsize=(9, sum(heights) * 0.28 + len(heights)), squeeze=False,
        gridspec_kw={"height_ratios": heights}, constrained_layout=True,
    )  # fmt: skip
    for axes, (row, of) in zip(panels[:, 0], found.items(), strict=True):
        for line, (name, column) in enumerate(of.items()):
            rates = list(column.rates.values())
            middle = statistics.median(rates)
            axes.barh(line, middle, color="#2a7f62" if name.startswith(OURS) else "#8a8f98")
            axes.plot([min(rates), max(rates)], [line, line], color="black", linewidth=1)
        axes.set_yticks(range(len(of)), [name.replace("_", " ") for name in of], fontsize=8)
        axes.invert_yaxis()
        axes.set_title(f"{row}: samples/s (median; line: smallest to largest round)", fontsize=9, loc="left")
    canvas.savefig(picture, metadata={"Date": None})
    pyplot.close(canvas)


def surroundings(about: dict[str, Any], raw: Path) -> str:
    """Returns a sentence on where and with what a run was made."""
    versions = ", ".join(f"{name} {version}" for name, version in about["libraries"].items())
    return (
        f"Measured on {about['time']} on {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}, "
        f"{versions}. Load before: {about['load'][0]:.2f}. Raw data: `bench/results/{raw.name}`."
    )


def publish(raw: Path) -> None:
    """Writes the block `shards` of docs/benchmark-figures.md and its picture from raw data and its JSON file."""
    with raw.open() as file:
        measured = list(csv.DictReader(file))
    about = surroundings(json.loads(raw.with_suffix(".json").read_text()), raw)
    block = (
        f"{about}\n\n![Samples a second of every contender]({PICTURE.name})\n\n{table(measured)}\n\n{lost(measured)}"
    )
    put("shards", block)
    plot(measured, PICTURE)
