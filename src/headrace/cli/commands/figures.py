"""`headrace report`, `compare`, `cost`, `advise`, `metrics` and `export`: what a run means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.options import document_options, output_option, region_option

if TYPE_CHECKING:
    from headrace.insight.render.document import Document


@click.command("report", short_help="What limits a run, its figures and what it costs; as text, JSON, Markdown, HTML.")
@click.argument("run")
@document_options
def report(run: str, output: str, file: str | None) -> None:
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
        from headrace.insight.charts import report_charts
        from headrace.insight.render.svg import run_charts

        return report_document(found, run_charts(found, report_charts(found, columns)))

    deliver(found, output, file, document, title=found.run_id)


_BESIDE = 2
"""Runs whose figures stand in columns, where there is room; of more the rows would be wider than any terminal."""


@click.command("compare", short_help="Two or more runs side by side; as text, JSON, Markdown or HTML with charts.")
@click.argument("runs", metavar="RUN_A RUN_B...", nargs=-1, required=True)
@document_options
def compare(runs: tuple[str, ...], output: str, file: str | None) -> None:
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
            from headrace.insight.charts import report_charts
            from headrace.insight.render.svg import compared_charts

            lines = list(map(report_charts, reports, metrics))
            return comparison_document(found, [compared_table(found)], compared_charts(found, lines))
        tables = comparison_tables(found)
        beside = output != "text" or (len(runs) <= _BESIDE and Columns(tables[1]).fits(width))
        return comparison_document(found, tables if beside else stacked_tables(found))

    deliver(found, output, file, document, title=", ".join(run.run_id for run in found.runs))


@click.command("cost", short_help="What a run costs, by group, host, step or epoch, with prices and formulas.")
@click.argument("run")
@click.option(
    "--by",
    type=click.Choice(["group", "host", "step", "epoch"]),
    default="group",
    show_default=True,
    help="What the rows of the table are. The JSON output holds all four.",
)
@region_option
@output_option
def cost(run: str, by: str, region: str | None, output: str) -> None:
    """Show what RUN costs, a run id or a job name (its newest run). It may still be going on.

    The cost is the list price of the instance types that the job names, for the time that was measured; every
    price has its source and date. It also shows what the platform would bill, where no instance is released early.

    \b
    Examples:
      headrace cost my-job
      headrace cost my-job --by step --region eu-west-1
      headrace cost my-job --output json
    """
    from headrace import insight
    from headrace.cli.options import answer, open_run
    from headrace.cli.views.cost_tables import cost_document

    found = open_run(run)
    report = insight.cost_report(found, region=region)
    answer(report, output, lambda: cost_document(report, by, found.id))


def _types(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise click.BadParameter(f"{value!r} names no instance type", context, option)
    return names


@click.command("advise", short_help="How many data hosts of which type would help, and at what price.")
@click.argument("run")
@click.option(
    "--types", metavar="TYPE,...", callback=_types, help="Instance types of data hosts to try.  [default: ml.c5.*]"
)
@click.option(
    "--max-hosts", type=click.IntRange(1, 64), default=8, show_default=True, help="Maximum number of data hosts to try."
)
@region_option
@click.option("--all", "everything", is_flag=True, help="Show all candidates, not only those that stand out.")
@click.option("--verify", is_flag=True, help="Run the best candidate on this machine, and compare.")
@output_option
def advise(
    run: str,
    types: tuple[str, ...] | None,
    max_hosts: int,
    region: str | None,
    everything: bool,
    verify: bool,
    output: str,
) -> int:
    """Say how many data hosts would remove the data wait of RUN, a run id or a job name (its newest run).

    A model (compute, workers, network: the longest decides) predicts the step time of clusters that keep the
    training hosts and add data hosts. What the run did not measure is listed under "assumed". See the page advise
    of the docs.
    Prices are those of --region, else of the job's budget, else of us-east-1.

    --verify runs the advised cluster with the run's own code and data, each host on its own CPUs. If this machine
    has too few CPUs for it, the best one that fits is run.

    \b
    Examples:
      headrace advise my-job
      headrace advise my-job --types ml.c5.9xlarge,ml.m5.4xlarge --max-hosts 4
      headrace advise my-job --verify
    """
    import msgspec

    from headrace.cli.options import answer, open_run
    from headrace.cli.views.cost_tables import advice_document
    from headrace.insight.advise.advisor import DEFAULT_TYPES, advised

    opened = open_run(run)
    found = advised(opened, types=types or DEFAULT_TYPES, max_hosts=max_hosts, region=region)
    if verify:
        from headrace.cli.verify_advice import verify as run_candidate

        proof = run_candidate(opened, found, quiet=output == "json")
        found = msgspec.structs.replace(found, verified=proof)
    answer(found, output, lambda: advice_document(found, everything=everything))
    return 0


@click.command("metrics", short_help="Show what a run did over time: step time, data wait, CPU, bytes/s ...")
@click.argument("run")
@click.option(
    "--points", type=click.IntRange(1, 2000), default=400, show_default=True, help="Maximum number of values a line."
)
@click.option("--start", type=float, metavar="SECONDS", help="Show values from this time on, seconds since the epoch.")
@click.option("--end", type=float, metavar="SECONDS", help="Show values until this time, seconds since the epoch.")
@output_option
def metrics(run: str, points: int, start: float | None, end: float | None, output: str) -> None:
    """Show the metrics of RUN, a run id or a job name (its newest run), over time.

    Seconds are summed into buckets, so that a long run shows as quickly as a short one; --output json has every
    value with its minimum and maximum, and the formula. The page of `headrace ui` draws it.

    \b
    Examples:
      headrace metrics my-job
      headrace metrics my-job --points 1000 --output json
    """
    from headrace.cli.options import answer, ask_engines
    from headrace.cli.views.run_tables import metrics_document
    from headrace.insight.run_cache import RunIndex
    from headrace.runs import Run

    found = RunIndex(Run.open(run).paths, ask_engines()).metrics(start, end, points)
    answer(found, output, lambda: metrics_document(found))


@click.command("export", short_help="Write a run into TensorBoard, MLflow or Weights & Biases.")
@click.argument("run")
@click.option(
    "--to", type=click.Choice(["tensorboard", "mlflow", "wandb"]), required=True, help="What it is written into."
)
@click.option(
    "--into",
    metavar="DIR|URI",
    help="Folder of TensorBoard's logs or W&B's files; address of MLflow's server or folder.  "
    "[default: ./tensorboard, $MLFLOW_TRACKING_URI, $WANDB_DIR]",
)
@click.option(
    "--project",
    metavar="NAME",
    help="W&B's project, MLflow's experiment.  [default: $WANDB_PROJECT, $MLFLOW_EXPERIMENT_NAME, else the job's name]",
)
@output_option
def export(run: str, to: str, into: str | None, project: str | None, output: str) -> None:
    """Write RUN, a run id or a job name (its newest run), into what you use already, by its own library.

    Written are hyperparameters, what `headrace.log` and metric definitions found, by step, the charts of `headrace
    metrics`, by seconds, and the figures of `headrace report`. Another export takes the place of the one before.

    \b
    Examples:
      headrace export my-job --to tensorboard --into logs
      headrace export my-job --to mlflow --project digits
      WANDB_MODE=offline headrace export my-job --to wandb
    """
    from headrace.cli.options import open_run, say
    from headrace.insight.export import export as write

    what, where = write(open_run(run), to, into, project)
    value = {"run_id": what.run_id, "to": to, "series": len(what.series), "points": what.points, "where": where}
    say(value, output, f"{what.run_id}: {what.points:,} values of {len(what.series)} series; {where}")
