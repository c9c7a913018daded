"""`headrace plan`."""

from __future__ import annotations

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
    from headrace.engines.submission import Submission
    from headrace.job import Job


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
def command(
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
    from headrace.cli.views.plan_document import view
    from headrace.cli.views.plan_tables import plan_document
    from headrace.engines.planning.code_size import code_notes
    from headrace.engines.planning.engine_job import EngineJob
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
    from headrace.cli.options import echo_json
    from headrace.engines.documents import write_documents
    from headrace.errors import EngineRefused

    documents = engines.render(job, engine)
    try:
        files = write_documents(documents, folder)
    except ValueError as error:
        hint = "the page own-engine of the docs says what an engine renders: relative paths in the folder, each once"
        raise EngineRefused(f"what the engine {engine!r} renders cannot be written: {error}", hint) from error
    if output == "json":
        named = zip(documents, files, strict=True)
        echo_json({"engine": engine, "documents": [{"name": one.name, "file": str(file)} for one, file in named]})
    else:
        for file in files:
            click.echo(file)
