"""`headrace advise`."""

from __future__ import annotations

import click

from headrace.cli.options import output_option, region_option


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
def command(
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
    from headrace.cli.views.advise_tables import advice_document
    from headrace.insight.advise.advisor import DEFAULT_TYPES, advised

    opened = open_run(run)
    found = advised(opened, types=types or DEFAULT_TYPES, max_hosts=max_hosts, region=region)
    if verify:
        from headrace.cli.verify_advice import verify as run_candidate

        proof = run_candidate(opened, found, quiet=output == "json")
        found = msgspec.structs.replace(found, verified=proof)
    answer(found, output, lambda: advice_document(found, everything=everything))
    return 0
