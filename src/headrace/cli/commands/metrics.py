"""`headrace metrics`, and `headrace export`, which writes the same into other tools."""

from __future__ import annotations

import click

from headrace.cli.options import output_option


@click.command("metrics", short_help="Show what a run did over time: step time, data wait, CPU, bytes/s ...")
@click.argument("run")
@click.option(
    "--points", type=click.IntRange(1, 2000), default=400, show_default=True, help="Maximum number of values a line."
)
@click.option("--start", type=float, metavar="SECONDS", help="Show values from this time on, seconds since the epoch.")
@click.option("--end", type=float, metavar="SECONDS", help="Show values until this time, seconds since the epoch.")
@output_option
def command(run: str, points: int, start: float | None, end: float | None, output: str) -> None:
    """Show the metrics of RUN, a run id or a job name (its newest run), over time.

    Seconds are summed into buckets, so that a long run shows as quickly as a short one; --output json has every
    value with its minimum and maximum, and the formula. The page of `headrace ui` draws it.

    \b
    Examples:
      headrace metrics my-job
      headrace metrics my-job --points 1000 --output json
    """
    from headrace.cli.options import answer, ask_engines
    from headrace.cli.views.timeseries_tables import metrics_document
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
    from headrace.cli.options import echo_json, open_run
    from headrace.insight.export import export as write

    what, where = write(open_run(run), to, into, project)
    if output == "json":
        echo_json({"run_id": what.run_id, "to": to, "series": len(what.series), "points": what.points, "where": where})
    else:
        click.echo(f"{what.run_id}: {what.points:,} values of {len(what.series)} series; {where}")
