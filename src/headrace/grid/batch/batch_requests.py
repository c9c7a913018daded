"""The job definition and the submission of a grid, as the API of AWS Batch takes them. Pure."""

from __future__ import annotations

from typing import Any

from headrace.grid.batch.batch_image import ARRAY_VARIABLE, COMMAND, LINE_VARIABLE
from headrace.grid.batch.batch_names import BatchNames
from headrace.grid.batch.retry_rules import retry_strategy
from headrace.grid.batch_options import BatchOptions

Request = dict[str, Any]
TAG = "headrace-grid"
"""Tag of definitions and jobs; its value is the grid's name."""


def job_definition(names: BatchNames, options: BatchOptions) -> Request:
    """Returns the RegisterJobDefinition request."""
    container: Request = {
        "image": names.image,
        "command": [COMMAND],
        "jobRoleArn": names.job_role,
        "executionRoleArn": names.execution_role,
        "resourceRequirements": [
            {"type": "VCPU", "value": str(options.vcpus)},
            {"type": "MEMORY", "value": str(options.memory)},
        ],
    }
    if options.environment:
        variables = sorted(options.environment.items())
        container["environment"] = [{"name": name, "value": value} for name, value in variables]
    if options.platform == "fargate":
        container["networkConfiguration"] = {"assignPublicIp": "ENABLED" if options.public_ip else "DISABLED"}
    return {
        "jobDefinitionName": names.definition,
        "type": "container",
        "platformCapabilities": [options.platform.upper()],
        "containerProperties": container,
        "retryStrategy": retry_strategy(options.attempts),
        **_timeout(options),
        "propagateTags": True,
        "tags": {TAG: names.grid},
    }


def submit_job(names: BatchNames, options: BatchOptions, array: str, lines: int) -> Request:
    """Returns the SubmitJob request.

    Args:
        names: of the grid.
        options: what the user says.
        array: name of the array file.
        lines: number of lines; one line is a job that is no array.
    """
    environment = [{"name": ARRAY_VARIABLE, "value": f"{names.bundle}/{array}"}]
    if lines == 1:
        environment.append({"name": LINE_VARIABLE, "value": "0"})
    return {
        "jobName": names.job,
        "jobQueue": names.queue,
        "jobDefinition": names.definition,
        **({"arrayProperties": {"size": lines}} if lines > 1 else {}),
        "containerOverrides": {"environment": environment},
        "retryStrategy": retry_strategy(options.attempts),
        **_timeout(options),
        "propagateTags": True,
        "tags": {TAG: names.grid},
    }


def submit_copies(names: BatchNames, options: BatchOptions) -> Request:
    """Returns the SubmitJob request of the job that makes the copies. An array job that waits for it depends on it.

    Args:
        names: of the grid.
        options: what the user says.
    """
    return {
        "jobName": names.copies,
        "jobQueue": names.queue,
        "jobDefinition": names.definition,
        "containerOverrides": {"command": ["headrace", "grid", "copy", "--bundle", names.bundle]},
        "retryStrategy": retry_strategy(options.attempts),
        "propagateTags": True,
        "tags": {TAG: names.grid},
    }


def _timeout(options: BatchOptions) -> Request:
    return {} if options.timeout is None else {"timeout": {"attemptDurationSeconds": round(options.timeout)}}
