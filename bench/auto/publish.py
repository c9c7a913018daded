"""Raw data of `python -m bench.auto` into docs/benchmark-figures.md: a table and a picture."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from bench.feed.publish import DOCS, put

PICTURE = DOCS / "auto-workers.svg"
AUTO = "auto"
Run = dict[str, Any]


def by_pipeline(runs: list[Run]) -> dict[str, list[Run]]:
    """Returns the runs of each pipeline, in their order."""
    found: dict[str, list[Run]] = {}
    for each in runs:
        found.setdefault(each["pipeline"], []).append(each)
    return found


def speeds(runs: list[Run]) -> dict[Any, list[float]]:
    """Returns rows a second of one pipeline by number of workers, or "auto"."""
    found: dict[Any, list[float]] = {}
    for each in runs:
        found.setdefault(each["workers"], []).append(each["rows_per_second"])
    return found


def best_number(runs: list[Run]) -> int:
    """Returns the number of workers of one pipeline that was best in the median of the whole sweeps."""
    swept = [each for each in runs if each["swept"] and each["workers"] != AUTO]
    medians = {workers: statistics.median(found) for workers, found in speeds(swept).items()}
    return int(max(medians, key=lambda workers: medians[workers]))


def ratios(runs: list[Run]) -> list[float]:
    """Returns "auto" over the best number, in each round of one pipeline."""
    best = best_number(runs)
    of = {(each["round"], each["workers"]): each["rows_per_second"] for each in runs}
    return [of[turn, AUTO] / of[turn, best] for turn, workers in of if workers == AUTO and (turn, best) in of]


def table(runs: list[Run]) -> str:
    """Returns the medians as a Markdown table."""
    lines = [
        "| pipeline | rounds | best number | rows/s | auto, rows/s | auto / best | auto's number | last change, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, those in by_pipeline(runs).items():
        medians = {workers: statistics.median(found) for workers, found in speeds(those).items()}
        auto, best = medians[AUTO], best_number(those)
        own = [each for each in those if each["workers"] == AUTO]
        numbers = ", ".join(str(each["executors"]) for each in own)
        against = ratios(those)
        told = f"{statistics.median(against):.2f} ({min(against):.2f} .. {max(against):.2f})"
        last = max((each["changes"][-1][0] for each in own if each["changes"]), default=0.0)
        lines.append(
            f"| {name} | {len(own)} | {best} | {medians[best]:,.0f} | {auto:,.0f} | {told} | {numbers} | {last:.0f} |"
        )
    return "\n".join(lines)


def plot(runs: list[Run], picture: Path) -> None:
    """Draws for each pipeline rows a second over the number of workers, and the number of "auto" over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "headrace"  # the same data make the same file
    found = by_pipeline(runs)
    canvas, panels = pyplot.subplots(
        len(found), 2, figsize=(9, 2.1 * len(found)), squeeze=False, constrained_layout=True
    )
    for (left, right), (name, those) in zip(panels, found.items(), strict=True):
        swept = {workers: each for workers, each in sorted(speeds(those).items(), key=str) if workers != AUTO}
        numbers = sorted(swept)
        left.plot(numbers, [statistics.median(swept[each]) for each in numbers], "o-", color="#8a8f98", markersize=4)
        for number in numbers:
            left.plot([number] * 2, [min(swept[number]), max(swept[number])], color="#8a8f98", linewidth=1)
        own = [each for each in those if each["workers"] == AUTO]
        left.plot(
            [each["executors"] for each in own], [each["rows_per_second"] for each in own], "D", color="#2a7f62",
            markersize=5,
        )  # fmt: skip
        left.set_xscale("log", base=2)
        left.set_xticks(numbers, [str(each) for each in numbers])
        left.set_ylim(bottom=0)
        left.set_title(f"{name}: rows/s over workers (green: auto)", fontsize=9, loc="left")
        for each in own:
            begins = each["changes"][0][1] if each["changes"] else each["executors"]
            times, steps = [0.0], [begins]
            for seconds, _, executors, _ in each["changes"]:
                times.append(seconds)
                steps.append(executors)
            right.step([*times, each["ended"]], [*steps, steps[-1]], where="post", color="#2a7f62", alpha=0.6)
        right.set_ylim(bottom=0)
        right.set_title(f"{name}: auto's workers over seconds", fontsize=9, loc="left")
    canvas.savefig(picture, metadata={"Date": None})
    pyplot.close(canvas)


def publish(raw: Path) -> None:
    """Writes the block `auto` of docs/benchmark-figures.md and its picture from raw data."""
    runs = [json.loads(line) for line in raw.read_text().splitlines()]
    about, loads = runs[0], [each["load"] for each in runs]
    told = (
        f"Measured on {about['time']} on {about['cpus']} cores, Linux {about['kernel']}, Python {about['python']}. "
        f"Load: {min(loads):.1f} .. {max(loads):.1f}, its own included. "
        f"Raw data: `bench/results/{raw.name}`."
    )
    block = f"{told}\n\n![Rows a second and workers]({PICTURE.name})\n\n{table(runs)}"
    put("auto", block)
    plot(runs, PICTURE)
