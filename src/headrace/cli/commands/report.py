"""`headrace report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import document_options

if TYPE_CHECKING:
    from headrace.insight.render.document import Document


@click.command("report", short_help="What limits a run, its figures and what it costs; as text, JSON, Markdown, HTML.")
@click.argument("run")
@document_options
def command(run: str, output: str, file: str | None) -> None:
    """Show what limits RUN, a run id or a job name (its newest run), and its figures.

    Each figure has its unit, its window and its formula; the JSON output holds all three. The first second of every
    loader is left out as warm-up.

    \b
    Examples:
      headrace report my-job
      headrace report my-job --output json
      headrace report my-job --output html --file my-job.html
    """
    from headrace import insight
    from headrace.cli.options import deliver, open_run
    from headrace.insight.figures.columns import read_columns
    from headrace.insight.render.run_documents import report_document

    opened = open_run(run)
    columns = read_columns(opened)
    found = insight.report(opened, columns)

    def document(width: int) -> Document:
        if output != "html":
            return report_document(found)
        from headrace.insight.render.svg import run_charts
        from headrace.insight.timeseries.charts import report_charts

        return report_document(found, run_charts(found, report_charts(found, columns)))

    deliver(found, output, file, document, title=found.run_id)
