"""What runs mean: the report of one, the comparison of several. Pure functions of what `headrace.runs` reads.

figures            a run's metrics as columns, the quantities computed from them, and numbers with window and spread
charts             the same over time, a few hundred points
performance_model  how long a step takes on given hosts; `advise` and `doctor_report` use it
billing            seconds of instances become money; `run_cost` of a run
evidence, verdict  what limits a job
run_report         a run judged; `comparison` of several, `timeline` of every host
advise             how many data hosts of which type
doctor_report      the same for a script that is not a job: here, on other hosts, or not at all (`offload_decision`)
render             reports as documents, Markdown and HTML
run_cache          what the page knows of the runs, read once

Names are imported when they are first used: what shows a plan needs its cost, and none of the figures of a run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

_EXPORTS = {
    "FORMULAS": "figures.figure",
    "Comparison": "comparison",
    "CostReport": "run_cost",
    "Figure": "figures.figure",
    "Projection": "billing",
    "Report": "run_report",
    "Verdict": "verdict",
    "VerdictName": "evidence",
    "Window": "figures.figure",
    "advised": "advise.advisor",
    "compare": "comparison",
    "cost_report": "run_cost",
    "project": "billing",
    "report": "run_report",
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
    from headrace.insight.billing import Projection, project
    from headrace.insight.comparison import Comparison, compare
    from headrace.insight.evidence import VerdictName
    from headrace.insight.figures.figure import FORMULAS, Figure, Window
    from headrace.insight.run_cost import CostReport, cost_report
    from headrace.insight.run_report import Report, report
    from headrace.insight.verdict import Verdict


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
