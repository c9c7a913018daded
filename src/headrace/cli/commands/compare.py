"""`headrace compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import document_options

if TYPE_CHECKING:
    from headrace.insight.render.document import Document

_BESIDE = 2
"""Runs whose figures stand in columns, where there is room; of more the rows would be wider than any terminal."""


@click.command("compare", short_help="Two or more runs side by side; as text, JSON, Markdown or HTML with charts.")
@click.argument("runs", metavar="RUN_A RUN_B...", nargs=-1, required=True)
@document_options
def command(runs: tuple[str, ...], output: str, file: str | None) -> None:
    """Compare runs: time to train, step time, samples/s, data wait, CPU per group, and what they cost.

    Beside each figure stand the spread of its per-second values (10th to 90th percentile), the ratio to the first
    run, and whether that is more than the noise of the steps.

    \b
    Examples:
      headrace compare homogeneous heterogeneous
      headrace compare RUN_A RUN_B RUN_C --output json
      headrace compare RUN_A RUN_B --output html --file compare.html
    """
    from headrace import insight
    from headrace.cli.options import deliver, open_run
    from headrace.cli.views.table import Columns
    from headrace.insight.figures.columns import read_columns
    from headrace.insight.render.run_documents import (
        compared_table,
        comparison_document,
        comparison_tables,
        stacked_tables,
    )

    opened = [open_run(run) for run in runs]
    metrics = [read_columns(run) for run in opened]
    reports = [insight.report(run, columns) for run, columns in zip(opened, metrics, strict=True)]
    found = insight.compare(reports)

    def document(width: int) -> Document:
        if output == "html":
            from headrace.insight.render.svg import compared_charts
            from headrace.insight.timeseries.charts import report_charts

            lines = list(map(report_charts, reports, metrics))
            return comparison_document(found, [compared_table(found)], compared_charts(found, lines))
        tables = comparison_tables(found)
        beside = output != "text" or (len(runs) <= _BESIDE and Columns(tables[1]).fits(width))
        return comparison_document(found, tables if beside else stacked_tables(found))

    deliver(found, output, file, document, title=", ".join(run.run_id for run in found.runs))
