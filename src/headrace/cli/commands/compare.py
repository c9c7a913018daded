"""`headrace compare`."""

from __future__ import annotations

import click

from headrace.cli.options import document_options


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
    from headrace.cli.views.report_tables import show_comparison
    from headrace.insight.figures.columns import read_columns
    from headrace.insight.render.html import comparison_page
    from headrace.insight.render.markdown import comparison_markdown
    from headrace.insight.timeseries.charts import report_charts

    opened = [open_run(run) for run in runs]
    metrics = [read_columns(run) for run in opened]
    reports = [insight.report(run, columns) for run, columns in zip(opened, metrics, strict=True)]

    def page(found: insight.Comparison) -> str:
        return comparison_page(found, list(map(report_charts, reports, metrics)))

    deliver(insight.compare(reports), output, file, text=show_comparison, markdown=comparison_markdown, html=page)
