"""A grid for AWS Batch as files: what is sent, what it needs, and what to do with it. The same grid, the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.cloud.image_files import PLATFORM, content_tag
from headrace.cloud.stack_template import StackTemplate
from headrace.grid.batch.batch_names import BatchNames, batch_names
from headrace.grid.batch.batch_requests import (
    EXITS,
    Request,
    image_definition,
    job_definition,
    submit_copies,
    submit_job,
)
from headrace.grid.batch.batch_roles import roles_stack
from headrace.grid.batch.freeze_grid import freeze_grid
from headrace.grid.batch.grid_bundle import GRID, bundle_tag, read_frozen_grid
from headrace.grid.batch_options import BatchOptions
from headrace.grid.load_grid import Grid
from headrace.grid.plan_grid import GridPlan

BUNDLE, IMAGE = "bundle", "image"
DEFINITION, SUBMISSION, ROLES, README = "job-definition.json", "submit-job.json", "roles.yaml", "README.md"
COPYING = "submit-copies.json"
_ELSEWHERE = ("limits", "retry", "budget", "deadline", "early_stop")
"""Parts of a grid's file that a controller heeds, which there is none of here."""


@dataclass(frozen=True)
class BatchExport:
    """A grid for AWS Batch.

    Attributes:
        names: of everything.
        lines: number of lines.
        bundle: files that the children read, by name.
        image: definition of their image, by name of the file; empty when the user names an image.
        roles: stack of their roles; None when the user names both.
        definition: the RegisterJobDefinition request.
        submission: the SubmitJob request.
        copying: the SubmitJob request of the job that makes copies, before which no child begins; None without copies.
        unheeded: parts of the grid's file that count for `headrace grid run` only.
    """

    names: BatchNames
    lines: int
    bundle: Mapping[str, bytes]
    image: Mapping[str, bytes]
    roles: StackTemplate | None
    definition: Request
    submission: Request
    copying: Request | None
    unheeded: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What of the grid's file has no effect on AWS Batch, in words; empty when all has."""
        if not self.unheeded:
            return ""
        return (
            f"{', '.join(self.unheeded)} of the grid's file: no effect on AWS Batch, where each line runs by itself. A "
            "job's own `budget`, `retry` and `engines.sagemaker.retry` count; the compute environment limits how many "
            "children run at once"
        )

    @property
    def files(self) -> dict[str, bytes]:
        """All of it, by name."""
        found = {f"{BUNDLE}/{name}": content for name, content in self.bundle.items()}
        found |= {f"{IMAGE}/{name}": content for name, content in self.image.items()}
        found |= {ROLES: self.roles.text.encode()} if self.roles is not None else {}
        requests = ((DEFINITION, self.definition), (COPYING, self.copying), (SUBMISSION, self.submission))
        for name, request in requests:
            if request is not None:
                found[name] = (json.dumps(request, indent=2) + "\n").encode()
        return {**found, README: _readme(self).encode()}


def export_batch(
    grid: Grid, options: BatchOptions, plan: GridPlan, wheel: tuple[str, bytes], region: str
) -> BatchExport:
    """Freezes a grid, and makes all that AWS Batch needs to run it.

    Args:
        grid: as it was read.
        options: what the user says of AWS Batch.
        plan: where its lines run.
        wheel: name and content of headrace's wheel, for the image.
        region: of the queue.

    Raises:
        JobInvalid, UsageError: it cannot run there.
        OSError, StorageError: code that cannot be read.
    """
    frozen = freeze_grid(grid, plan)
    image = {} if options.image else image_definition(options.base, wheel)
    tag = bundle_tag(frozen.files)
    names = batch_names(grid.file.name, tag, options, region, frozen.planned, content_tag(image))
    array = read_frozen_grid(frozen.files[GRID], GRID).array
    return BatchExport(
        names=names,
        lines=len(plan.lines),
        bundle=frozen.files,
        image=image,
        roles=roles_stack(names, options, frozen.planned, frozen.copies),
        definition=job_definition(names, options),
        submission=submit_job(names, options, array, len(plan.lines)),
        copying=submit_copies(names, options) if frozen.copies else None,
        unheeded=tuple(part for part in _ELSEWHERE if part in grid.file.model_fields_set),
    )


def _readme(export: BatchExport) -> str:
    names, children = export.names, f"an array job of {export.lines} children" if export.lines > 1 else "one job"
    region = f"--region {names.region}"
    steps = []
    if export.roles is not None:
        steps.append(
            f"The roles of the children. Change `{ROLES}` as you like, and leave the names.\n\n"
            f"       aws cloudformation create-stack {region} --stack-name {names.definition}-roles \\\n"
            f"         --template-body file://{ROLES} --capabilities {' '.join(export.roles.capabilities)}"
        )
    if export.image:
        registry, _, rest = names.image.partition("/")
        steps.append(
            "The image of the children, once for every version of headrace.\n\n"
            f"       aws ecr create-repository {region} --repository-name {rest.partition(':')[0]}\n"
            f"       aws ecr get-login-password {region} | docker login --username AWS --password-stdin {registry}\n"
            f"       docker build --platform {PLATFORM} --tag {names.image} {IMAGE}\n"
            f"       docker push {names.image}"
        )
    submit = f"       aws batch submit-job {region} --cli-input-json file://{SUBMISSION}"
    if export.copying is not None:
        copying = f"aws batch submit-job {region} --cli-input-json file://{COPYING} --query jobId --output text"
        submit = f"       COPIES=$({copying})\n{submit} --depends-on jobId=$COPIES"
    steps += [
        f"The lines, their jobs and their code.\n\n       aws s3 cp --recursive {BUNDLE} {names.bundle}/",
        f"The job definition and {'the jobs: first the copies of data' if export.copying else 'the job'}.\n\n"
        f"       aws batch register-job-definition {region} --cli-input-json file://{DEFINITION}\n{submit}",
    ]
    numbered = "\n\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    note = f"\nNot here: {export.note}.\n" if export.note else ""
    exits = "\n".join(f"| {code} | {words} |" for code, words in EXITS.items())
    return f"""\
# {names.grid} on AWS Batch

{export.lines} lines: {children} in the queue `{names.queue}`, {names.region}.

{numbered}

`headrace grid submit` does the last two steps, and finds what was submitted before.

Child N runs line N + 1 of the array file: `headrace grid step --index N`. It starts the line's training job, or adopts
the one that an earlier attempt has started, prints its log, and exits as it ended.

| exit code | |
|---|---|
{exits}
{note}"""
