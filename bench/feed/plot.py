"""The table as a picture: every figure that has a target, as its share of the target, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.feed.figures import Figure

MET, MISSED = "#2a7f62", "#b5483a"


def share(figure: Figure, value: float) -> float:
    """Returns how many times better than its target a value is; below 1 the target is missed."""
    assert figure.target is not None
    return value / figure.target if figure.better == "more" else figure.target / value


def plot(figures: Sequence[Figure], picture: Path) -> None:
    """Writes the picture (SVG or PNG, by its suffix): median and range of each figure with a target."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [figure for figure in figures if figure.target is not None]
    matplotlib.rcParams["svg.hashsalt"] = "headrace"  # the same data make the same file
    canvas, axes = pyplot.subplots(figsize=(9, 1.2 + 0.28 * len(shown)))
    for line, figure in enumerate(reversed(shown)):
        if not figure.values:
            axes.text(1.0, line, " not measured", color=MISSED, fontsize=8, va="center")
            continue
        middle = share(figure, figure.median)
        ends = [share(figure, value) for value in (min(figure.values), max(figure.values))]
        colour = MET if middle >= 1 else MISSED
        axes.plot([min(ends), max(ends)], [line, line], color=colour, linewidth=2, alpha=0.5)
        axes.plot([middle], [line], "o", color=colour)
    axes.set_yticks(range(len(shown)))
    axes.set_yticklabels([f"{figure.row}: {figure.name}" for figure in reversed(shown)], fontsize=8)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("times better than the target (1 = just met; dot: median, bar: smallest to largest round)")
    axes.grid(axis="x", alpha=0.3)
    canvas.savefig(picture, bbox_inches="tight", metadata={"Date": None} if picture.suffix == ".svg" else None)
    pyplot.close(canvas)
