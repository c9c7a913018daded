"""`headrace init`, `schema`, `plan` and `run`: job files, what they would run where, and running them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import (
    Outputs,
    engine_option,
    job_options,
    priced_region,
    set_option,
    with_job_options,
)

if TYPE_CHECKING:
    from headrace.engines.documents import Submission
    from headrace.job import Job


FILE = "job.yaml"


@click.command("init", short_help="Write a job file beside a script.")
@click.argument("script", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help=f"Replace {FILE} where there is one.")
def init(script: Path, force: bool) -> None:
    """Write job.yaml beside SCRIPT, with comments: its folder, its requirements, its command line options as
    hyperparameters, and data that they name as channels. The script is read, and not run.

    \b
    Examples:
      headrace init train.py
      headrace init trainer/main.py --force
    """
    import shlex

    from headrace.errors import UsageError
    from headrace.job.job_of_script import job_of_script

    text = job_of_script(script)
    file = script.parent / FILE
    try:
        with file.open("w" if force else "x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise UsageError(f"{file} is there already", "--force replaces it") from None
    click.echo(f"wrote {file}; next:")
    for action, what in (("plan", "what would run where; starts nothing"), ("run", "run it on this machine")):
        click.echo(f"  headrace {action} {shlex.quote(str(file))}  # {what}")


@click.command("schema", short_help="Print the JSON Schema of job files.")
@click.option("--request", is_flag=True, help="Print the schema of CreateTrainingJob requests instead.")
def schema(request: bool) -> None:
    """Print the JSON Schema (draft 2020-12) of job files, with every key and what it means.

    \b
    Examples:
      headrace schema > headrace.schema.json
      # first line of a job file, for editors with a YAML language server:
      # yaml-language-server: $schema=headrace.schema.json
    """
    from headrace.cli.options import echo_json
    from headrace.job.json_schema import job_schema, request_schema

    echo_json(request_schema() if request else job_schema())


@click.command("plan", short_help="Show what a job would run where; starts nothing.")
@click.argument("job", type=click.Path())
@set_option
@engine_option
@click.option(
    "--render",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Write what the engine would submit into DIR instead, and list the files; no other file there is overwritten.",
)
@job_options
def plan(
    job: str,
    overrides: tuple[str, ...],
    engine: str,
    role: str | None,
    region: str | None,
    folder: str | None,
    output: Outputs,
) -> None:
    """Show groups, hosts, addresses, limits, programs, channels and ports of the job file JOB. Starts nothing.

    The list price of an hour is shown too, and the most that the job may cost.

    JOB is a job file, or a CreateTrainingJob request as JSON. Keys that have no effect in the engine are listed.

    For SageMaker the request is shown whole, with what is uploaded and what must be allowed; nothing is sent.
    --region names the region whose prices are shown, and with --engine sagemaker where the job runs.

    With --render the documents that the engine submits are written as files: of the local engine the launch plan, from
    which it starts the agents. They hold no secret of the job.

    \b
    Examples:
      headrace plan job.yaml
      headrace plan job.yaml --set hyperparameters.epochs=3 --output json
      headrace plan request.json --set source_dir=code --set inputs.train.path=data
      headrace plan job.yaml --render rendered
      headrace plan job.yaml --engine sagemaker --role ARN --output s3://bucket/prefix --region eu-west-1
    """
    from headrace import engines
    from headrace.cli.options import answer
    from headrace.cli.views.cost_tables import projection_document
    from headrace.cli.views.plan_document import plan_document, view
    from headrace.engines.planning.engine_job import EngineJob
    from headrace.engines.planning.prepare_run import code_notes
    from headrace.job import load_job
    from headrace.log_setup import tell_user
    from headrace.runs import runs_dir

    prices = region if engine == "sagemaker" else priced_region(region)
    loaded = load_job(job, with_job_options(overrides, engine, role, region, output))
    if folder is not None:
        _render(loaded, engine, Path(folder), output.format)
        return
    planned = engines.plan(loaded, engine)
    for note in code_notes(loaded, runs_dir()):
        tell_user(note)
    submission: Submission | None = getattr(planned, "submission", None)
    python, pods = "python", {}
    if isinstance(planned, EngineJob):
        for doubt in planned.doubts():
            tell_user(doubt)
        python, pods = planned.python, {group.name: planned.pod_of(group.name) for group in planned.plan.groups}
    shown = view(loaded, planned.plan, planned.limits, prices, planned.without_effect, submission, python, pods)
    answer(shown, output.format, lambda: (*plan_document(shown), *projection_document(shown.cost)))


def _render(job: Job, engine: str, folder: Path, output: str) -> None:
    """Writes what the engine would submit, and says which files that are."""
    from headrace import engines
    from headrace.cli.options import say
    from headrace.engines.documents import write_documents
    from headrace.errors import EngineRefused

    documents = engines.render(job, engine)
    try:
        files = write_documents(documents, folder)
    except ValueError as error:
        hint = "the page own-engine of the docs says what an engine renders: relative paths in the folder, each once"
        raise EngineRefused(f"what the engine {engine!r} renders cannot be written: {error}", hint) from error
    named = [{"name": one.name, "file": str(file)} for one, file in zip(documents, files, strict=True)]
    say({"engine": engine, "documents": named}, output, *files)


@click.command("run", short_help="Run a job and follow it.")
@click.argument("job", type=click.Path())
@set_option
@engine_option
@job_options
@click.option("-q", "--quiet", is_flag=True, help="Show only how the run ends.")
@click.option("-d", "--detach", is_flag=True, help="Start the run, print its id and return; the run continues.")
def run(
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
        from headrace.cli.options import echo_json, say
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
        value = {"run_id": handle.id, "run_dir": str(handle.paths.root), "status": handle.status}
        say(value, output.format, handle.id)
        return 0
    verbose = logging.getLogger("headrace").isEnabledFor(logging.INFO)
    screen = RunScreen(Terminal.standard(err=output.format == "json"), quiet=quiet, verbose=verbose, record=record)
    handle = follow(lambda: engines.start(loaded, engine), screen)
    code = handle.exit_code
    screen.end(handle.run, loaded.hint_after)
    if output.format == "json":
        echo_json(outcome(handle.run, 1 if code is None else code))
    return 1 if code is None else code
