"""What runs mean: the report of one, the comparison of several. Pure functions of what `headrace.runs` reads."""

from headrace.insight.comparison import Cell, ComparedRun, Comparison, Row, compare
from headrace.insight.costs import CostReport, EpochCost, GroupCost, HostCost, cost_report
from headrace.insight.figures import FORMULAS, WARM_UP_RECORDS, Figure, Spread, Window
from headrace.insight.groups import GroupReport
from headrace.insight.loaders import LoaderReport
from headrace.insight.reporting import ProgramReport, Report, report
from headrace.insight.workers import WorkersReport

__all__ = [
    "FORMULAS",
    "WARM_UP_RECORDS",
    "Cell",
    "ComparedRun",
    "Comparison",
    "CostReport",
    "EpochCost",
    "Figure",
    "GroupCost",
    "GroupReport",
    "HostCost",
    "LoaderReport",
    "ProgramReport",
    "Report",
    "Row",
    "Spread",
    "Window",
    "WorkersReport",
    "compare",
    "cost_report",
    "report",
]
