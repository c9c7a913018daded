"""`headrace run`."""

from __future__ import annotations

import logging

import click

from headrace.cli.options import Outputs, engine_option, job_options, set_option, with_job_options


@click.command("run", short_help="Run a job and follow it.")
@click.argument("job", type=click.Path())
@set_option
@engine_option
@job_options
@click.option("-q", "--quiet", is_flag=True, help="Show only how the run ends.")
@click.option("-d", "--detach", is_flag=True, help="Start the run, print its id and return; the run continues.")
def command(
    job: str,
    overrides: tuple[str, ...],
    engine: str,
    role: str | None,
    region: str | None,
    output: Outputs,
    quiet: bool,
    detach: bool,
) -> int:
    """Run the job file JOB, by default on this machine; follow its logs and progress to the end.

    JOB may also be a CreateTrainingJob request as JSON; `headrace plan` lists
    what has no effect here.

    Ctrl-C stops the job with time to save; a second Ctrl-C kills it. If this command is killed, a job of the local
    engine is stopped too, unless it was detached: then it continues without this command, the shell and the terminal,
    as the jobs of every other engine do.

    Exit codes: 0 Completed, 1 Failed, 2 the job cannot start (nothing was started), 4 stopped because its budget was
    used up, 130 stopped.

    \b
    Examples:
      headrace run job.yaml
      headrace run job.yaml --set hyperparameters.epochs=3 --set job_name=try-3
      headrace run job.yaml --quiet --output json
      headrace run job.yaml --engine sagemaker --role ARN --output s3://bucket/prefix --region eu-west-1
      run=$(headrace run job.yaml --detach) && headrace logs $run -f && headrace wait $run
    """
    if region is not None and engine != "sagemaker":
        raise click.BadParameter(f"the {engine} engine has no regions", param_hint="--region")
    try:
        from headrace import engines
        from headrace.cli.follow import follow
        from headrace.cli.options import echo_json
        from headrace.cli.views.run_screen import RunScreen, fetch_line, outcome
        from headrace.cli.views.terminal import Terminal
        from headrace.home import settings_file
        from headrace.job import load_job

        loaded = load_job(job, with_job_options(overrides, engine, role, region, output))
        if settings_file().exists():
            from headrace.cli.user_settings import apply_settings

            apply_settings()
        handle = engines.start(loaded, engine, detach=True) if detach else None
    except KeyboardInterrupt:
        click.echo("headrace: stopped by Ctrl-C before the run began", err=True)
        raise
    record = loaded.record.uri if loaded.record is not None else ""
    if handle is not None:
        click.echo(handle.isolation, err=True)
        if record:
            click.echo(fetch_line(record, handle.id), err=True)
        if output.format == "json":
            echo_json({"run_id": handle.id, "run_dir": str(handle.paths.root), "status": handle.status})
        else:
            click.echo(handle.id)
        return 0
    verbose = logging.getLogger("headrace").isEnabledFor(logging.INFO)
    screen = RunScreen(Terminal.standard(err=output.format == "json"), quiet=quiet, verbose=verbose, record=record)
    handle = follow(lambda: engines.start(loaded, engine), screen)
    code = handle.exit_code
    screen.end(handle.run, loaded.hint_after)
    if output.format == "json":
        echo_json(outcome(handle.run, 1 if code is None else code))
    return 1 if code is None else code
