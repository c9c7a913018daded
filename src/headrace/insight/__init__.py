"""What runs mean: the report of one, the comparison of several. Pure functions of what `headrace.runs` reads.

figures            a run's metrics as columns, the quantities computed from them, and numbers with window and spread
performance_model  how long a step takes on given hosts; `advise` and `doctor` use it
timeseries         the same over time, as charts of a few hundred points
cost               seconds of instances become money
verdicts           what limits a job
reports            a run judged, several runs compared, the life of every host
advise             how many data hosts of which type
doctor             the same for a script that is not a job: here, on other hosts, or not at all
render             reports as sheets, Markdown and HTML
run_cache          what the page knows of the runs, read once

Names are imported when they are first used: what shows a plan needs its cost, and none of the figures of a run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_EXPORTS = {
    "FORMULAS": "figures.figure",
    "Comparison": "reports.comparison",
    "CostReport": "cost.cost_report",
    "Figure": "figures.figure",
    "Projection": "cost.projection",
    "Report": "reports.run_report",
    "Verdict": "verdicts.decide",
    "VerdictName": "verdicts.thresholds",
    "Window": "figures.figure",
    "advised": "advise.advisor",
    "compare": "reports.comparison",
    "cost_report": "cost.cost_report",
    "project": "cost.projection",
    "report": "reports.run_report",
}

__all__ = [
    "FORMULAS",
    "Comparison",
    "CostReport",
    "Figure",
    "Projection",
    "Report",
    "Verdict",
    "VerdictName",
    "Window",
    "advised",
    "compare",
    "cost_report",
    "project",
    "report",
]

if TYPE_CHECKING:
    from headrace.insight.advise.advisor import advised
    from headrace.insight.cost.cost_report import CostReport, cost_report
    from headrace.insight.cost.projection import Projection, project
    from headrace.insight.figures.figure import FORMULAS, Figure, Window
    from headrace.insight.reports.comparison import Comparison, compare
    from headrace.insight.reports.run_report import Report, report
    from headrace.insight.verdicts.decide import Verdict
    from headrace.insight.verdicts.thresholds import VerdictName


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
