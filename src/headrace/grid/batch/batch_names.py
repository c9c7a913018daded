"""What everything of a grid is called in an account of AWS: its queue, definition, jobs, roles, image, bundle. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.catalog.aws_facts import partition_of, registry_of
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob
from headrace.errors import UsageError
from headrace.grid.batch_options import BatchOptions
from headrace.job.model.field_types import cut_name

REPOSITORY = "headrace-grid"
"""Of the image, in ECR."""
_ROLE = re.compile(r"arn:[a-z-]+:iam::(?P<account>[0-9]{12}):role/")
_LONGEST_BEGINNING = 36
"""What every name of a grid's training jobs begins with is not longer: names are cut where they would be too long."""
_LONGEST_ROLE = 40
"""Characters of a grid's name in the name of a role, which has 64 with its ending."""


@dataclass(frozen=True)
class BatchNames:
    """See the module.

    Attributes:
        grid: the grid's name.
        tag: of its bundle.
        region: of the queue.
        account: number of the account.
        queue: job queue, by name or ARN.
        image: URI of the children's image.
        bundles: ``s3://`` prefix of the bundles.
        job_role, execution_role: ARNs.
    """

    grid: str
    tag: str
    region: str
    account: str
    queue: str
    image: str
    bundles: str
    job_role: str
    execution_role: str

    @property
    def partition(self) -> str:
        """Partition of AWS."""
        return partition_of(self.region)

    @property
    def definition(self) -> str:
        """Name of the job definition."""
        return f"headrace-{self.grid}"

    @property
    def job(self) -> str:
        """Name of the array job: the same for the same bundle."""
        return f"{self.grid}-{self.tag}"

    @property
    def copies(self) -> str:
        """Name of the job that makes the copies which the array job waits for."""
        return f"{self.job}-copies"

    @property
    def bundle(self) -> str:
        """``s3://`` URI of the bundle, without a slash at its end."""
        return f"{self.bundles}/{self.job}"

    @property
    def beginning(self) -> str:
        """What names of the grid's training jobs and runs begin with, and those of few others do."""
        return f"{self.grid}-" if len(self.grid) < _LONGEST_BEGINNING else self.grid[:_LONGEST_BEGINNING]


def batch_names(
    grid: str, tag: str, options: BatchOptions, region: str, planned: Sequence[SageMakerJob], image_tag: str
) -> BatchNames:
    """Returns the names.

    Args:
        grid: the grid's name.
        tag: of its bundle.
        options: what the user says.
        region: of the queue.
        planned: the lines' jobs.
        image_tag: of the image that the exported definition makes.

    Raises:
        UsageError: something must be said that nobody said.
    """
    for name, value, hint in (
        ("queue", options.queue, "queue: NAME; `aws batch describe-job-queues` lists them"),
        ("bundle", options.bundle, "bundle: s3://my-bucket/grids, where children read their lines"),
    ):
        if not value:
            raise UsageError(f"batch.{name} is missing in the grid's file", hint=f"batch: {{{hint}}}")
    account = options.account or _account(planned)
    roles = f"arn:{partition_of(region)}:iam::{account}:role/{cut_name(grid, _LONGEST_ROLE)}"
    return BatchNames(
        grid=grid,
        tag=tag,
        region=region,
        account=account,
        queue=options.queue or "",
        image=options.image or f"{registry_of(account, region)}/{REPOSITORY}:{image_tag}",
        bundles=options.bundle or "",
        job_role=options.job_role or f"{roles}-batch-job",
        execution_role=options.execution_role or f"{roles}-batch-execution",
    )


def _account(planned: Sequence[SageMakerJob]) -> str:
    """Returns the account of the jobs' role: a service takes no role of another one."""
    found = {match["account"] for each in planned if (match := _ROLE.match(each.job.role or ""))}
    if len(found) != 1:
        seen = ", ".join(sorted(found)) or "none"
        hint = "batch: {account: '123456789012'}"
        raise UsageError(f"the account cannot be told from the roles of the jobs: they name {seen}", hint=hint)
    return found.pop()
