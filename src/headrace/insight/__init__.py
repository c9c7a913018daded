"""What runs mean: the report of one, the comparison of several. Pure functions of what `headrace.runs` reads."""

from headrace.insight.comparison import Cell, ComparedRun, Comparison, Row, compare
from headrace.insight.figures import FORMULAS, WARM_UP_RECORDS, Figure, Spread, Window
from headrace.insight.groups import GroupReport, HostReport
from headrace.insight.loaders import LoaderReport
from headrace.insight.reporting import ProgramReport, Report, report
from headrace.insight.values import ValueReport

__all__ = [
    "FORMULAS",
    "WARM_UP_RECORDS",
    "Cell",
    "ComparedRun",
    "Comparison",
    "Figure",
    "GroupReport",
    "HostReport",
    "LoaderReport",
    "ProgramReport",
    "Report",
    "Row",
    "Spread",
    "ValueReport",
    "Window",
    "compare",
    "report",
]
