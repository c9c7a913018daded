"""What runs mean: the report of one, the comparison of several. Pure functions of what `headrace.runs` reads."""

from headrace.insight.advise import Advised, advised
from headrace.insight.cost.cost_report import CostReport, EpochCost, GroupCost, HostCost, cost_report
from headrace.insight.cost.projection import PlannedCost, Projection, project
from headrace.insight.figures.data_workers import WorkersReport
from headrace.insight.figures.figure import FORMULAS, WARM_UP_RECORDS, Confidence, Figure, Spread, Window
from headrace.insight.figures.instance_groups import GroupReport, HostReport
from headrace.insight.figures.loaders import LoaderReport
from headrace.insight.figures.logged_values import ValueReport
from headrace.insight.reports.comparison import Cell, ComparedRun, Comparison, Row, compare
from headrace.insight.reports.run_report import ProgramReport, Report, report
from headrace.insight.verdicts.decide import Verdict, verdict
from headrace.insight.verdicts.evidence import RankTimes, Silence, Supply, Usage, VerdictInputs
from headrace.insight.verdicts.thresholds import VerdictName

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
