"""Submits the lines of a grid as service jobs of AWS Batch: each once, found again by its name, in its own region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.cloud.aws_calls import Aws, call
from headrace.grid.batch.service_jobs import ServiceJob


def submit_service_jobs(
    jobs: Sequence[ServiceJob], aws: Aws, tell: Callable[[str], None], *, dry_run: bool = False
) -> tuple[str, ...]:
    """Submits what was not submitted before. The bundle must be stored.

    Args:
        jobs: of the lines.
        aws: the account.
        tell: takes a line for each thing that happens.
        dry_run: ask, and submit nothing.

    Returns:
        The id of each job, in the order of the lines; empty for one that would be submitted.

    Raises:
        CloudError, UsageError: AWS refused, or did not answer; what was submitted until then is found again.
    """
    found: list[str] = []
    for region, request in jobs:
        batch = aws.client("batch", region)
        there = _submitted(batch, request["jobQueue"], request["jobName"])
        if not there and not dry_run:
            there = str(call(batch, "submit_service_job", **request)["jobId"])
            tell(f"{request['jobName']}: submitted to {request['jobQueue']} in {region}")
        found.append(there)
    return tuple(found)


def _submitted(batch: Any, queue: str, name: str) -> str:
    """Returns the id of the newest service job of a name; empty when there is none."""
    asked = {"jobQueue": queue, "filters": [{"name": "JOB_NAME", "values": [name]}]}
    listed = call(batch, "list_service_jobs", **asked)["jobSummaryList"]  # the newest first, and few have one name
    return next((str(each["jobId"]) for each in listed if each["jobName"] == name), "")
