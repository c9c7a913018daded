"""`headrace plan`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option, region_option, set_option


@click.command("plan", short_help="Show what a job would run where; starts nothing.")
@click.argument("job", type=click.Path())
@set_option
@region_option
@output_option
def command(job: str, overrides: tuple[str, ...], region: str | None, output: str) -> None:
    """Show groups, hosts, addresses, limits, programs, channels and ports of the job file JOB. Starts nothing.

    The list price of an hour is shown too, and the most that the job may cost.

    JOB is a job file, or a CreateTrainingJob request as JSON. Keys that have no effect on this machine are listed.

    \b
    Examples:
      headrace plan job.yaml
      headrace plan job.yaml --set hyperparameters.epochs=3 --output json
      headrace plan request.json --set source_dir=code --set inputs.train.path=data
    """
    from headrace import engines
    from headrace.cli.options import echo_json
    from headrace.cli.views.plan_document import view
    from headrace.job import load_job

    loaded = load_job(job, list(overrides))
    planned = engines.plan(loaded)
    shown = view(loaded, planned.plan, planned.limits, region)
    if output == "json":
        echo_json(shown)
    else:
        from headrace.cli.views.cost_tables import show_projection
        from headrace.cli.views.plan_tables import show_plan

        show_plan(shown)
        show_projection(shown.cost)
