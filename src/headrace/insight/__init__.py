"""What runs mean: the report of one, the comparison of several. Pure functions of what `headrace.runs` reads."""

from headrace.insight.advise import Advised, advised
from headrace.insight.comparison import Cell, ComparedRun, Comparison, Row, compare
from headrace.insight.costs import CostReport, EpochCost, GroupCost, HostCost, cost_report
from headrace.insight.figures import FORMULAS, WARM_UP_RECORDS, Confidence, Figure, Spread, Window
from headrace.insight.groups import GroupReport, HostReport
from headrace.insight.loaders import LoaderReport
from headrace.insight.projection import PlannedCost, Projection, project
from headrace.insight.reporting import ProgramReport, Report, report
from headrace.insight.thresholds import VerdictName
from headrace.insight.values import ValueReport
from headrace.insight.verdict import Verdict, verdict
from headrace.insight.witnesses import RankTimes, Silence, Supply, Usage, VerdictInputs
from headrace.insight.workers import WorkersReport

__all__ = [
    "FORMULAS",
    "WARM_UP_RECORDS",
    "Advised",
    "Cell",
    "ComparedRun",
    "Comparison",
    "Confidence",
    "CostReport",
    "EpochCost",
    "Figure",
    "GroupCost",
    "GroupReport",
    "HostCost",
    "HostReport",
    "LoaderReport",
    "PlannedCost",
    "ProgramReport",
    "Projection",
    "RankTimes",
    "Report",
    "Row",
    "Silence",
    "Spread",
    "Supply",
    "Usage",
    "ValueReport",
    "Verdict",
    "VerdictInputs",
    "VerdictName",
    "Window",
    "WorkersReport",
    "advised",
    "compare",
    "cost_report",
    "project",
    "report",
    "verdict",
]
