"""Reports and comparisons for people: sheets of plain cells, Markdown, and one self-contained HTML page. Pure.

Nothing is computed here: every number shown is a field of the report or of the comparison, which `--output json` holds;
the pages also draw charts, which `headrace.insight.timeseries.summary` makes.
"""

from headrace.insight.render.html import comparison_page, report_page
from headrace.insight.render.markdown import comparison_markdown, report_markdown
from headrace.insight.render.tables import Sheet, comparison_sheets, report_sheets, stacked_sheets

__all__ = [
    "Sheet",
    "comparison_markdown",
    "comparison_page",
    "comparison_sheets",
    "report_markdown",
    "report_page",
    "report_sheets",
    "stacked_sheets",
]
