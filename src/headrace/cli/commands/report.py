"""`headrace report`."""

from __future__ import annotations

import click

from headrace.cli.options import document_options


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
    from headrace.cli.views.report_tables import show_report
    from headrace.insight.figures.columns import read_columns
    from headrace.insight.render.html import report_page
    from headrace.insight.render.markdown import report_markdown
    from headrace.insight.timeseries.charts import report_charts

    opened = open_run(run)
    columns = read_columns(opened)

    def page(found: insight.Report) -> str:
        return report_page(found, report_charts(found, columns))

    deliver(insight.report(opened, columns), output, file, text=show_report, markdown=report_markdown, html=page)
