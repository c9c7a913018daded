"""Reads what the runs of a grid's lines measured and cost."""

from __future__ import annotations

import msgspec

from headrace.errors import RunNotFound
from headrace.grid.report.line_result import RunFigures
from headrace.insight.cost.cost_report import cost_report
from headrace.runs import Run
from headrace.runs.describe import newest_values


def run_figures(run_id: str) -> RunFigures | None:
    """Returns the figures of a run of this machine; None when it has no record here, or none that can be read."""
    try:
        run = Run.open(run_id)
        metrics = {name: second.last for name, second in newest_values(run).items()}
        return RunFigures(metrics, cost_report(run).total.value)
    except (RunNotFound, OSError, msgspec.DecodeError):
        return None
