"""What AWS Batch is told of a grid: the image and the exit codes of the children, the job definition, the jobs. Pure.

The image has the layout that wrappers of AWS Batch have had since they were scripts:

    /api/sage_wrapper.sh    what Batch runs
    headrace                and boto3, which the wrapper calls
    /api/home/wheels        what training images may lack, which children would else download one by one

The wrapper becomes the command (`exec`), so that the command gets Batch's signals and its exit code is the child's.
A child exits as its line ended. Batch starts it again only where that says nothing about the line: its machine was
lost, it was killed, or AWS did not answer. The next attempt adopts the training job that is there.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.cloud.image_files import DOCKERFILE
from headrace.grid.batch.batch_names import BatchNames
from headrace.grid.batch_options import BatchOptions

WRAPPER = "sage_wrapper.sh"
COMMAND = f"/api/{WRAPPER}"
ARRAY_VARIABLE = "S3_ARRAY_FILE"
LINE_VARIABLE = "GRID_LINE"
"""Index of the line of a job that is no array: Batch has no array of one child."""
RUNS_VARIABLE = "GRID_RUNS"
"""How often a line may run: once, and once more for each submission of the grid that has failed."""

_DOWNLOAD = (
    "from headrace.engines.planning import library_wheels as all; "
    "[all.downloaded_libraries(each) for each in all.PYTHONS]"
)
_WRAPPER = f"""\
#!/bin/bash
# Runs one line of a grid: the index of the child says which one. Its exit code is that of the line's training job.
set -euo pipefail

if [[ -z "${{{ARRAY_VARIABLE}:-}}" ]]; then
  echo "error: {ARRAY_VARIABLE} is not set: it names the array file in S3" >&2
  exit 2
fi
INDEX="${{AWS_BATCH_JOB_ARRAY_INDEX:-${{{LINE_VARIABLE}:-}}}}"
if [[ -z "$INDEX" ]]; then
  echo "error: this is no array job, and {LINE_VARIABLE} is not set: nothing says which line to run" >&2
  exit 2
fi
exec headrace grid step --index "$INDEX" --bundle "${{{ARRAY_VARIABLE}%/*}}"
"""


def image_definition(base: str, wheel: tuple[str, bytes]) -> dict[str, bytes]:
    """Returns the files of the definition, by name.

    Args:
        base: image to begin with; it has Python, pip and bash.
        wheel: name and content of headrace's wheel.
    """
    name, content = wheel
    place = "/tmp/headrace"
    dockerfile = (
        f"FROM {base}\n\n"
        "### HEADRACE AND BOTO3\n\n"
        f"COPY {json.dumps([name, place + '/'])}\n"
        f'RUN python3 -m pip install --no-cache-dir "{place}/{name}[sagemaker]" \\\n'
        f" && rm -r {place} && headrace --version\n\n"
        "### API SCRIPTS\n\n"
        "RUN mkdir /api\n"
        f"COPY {WRAPPER} /api\n"
        f"RUN chmod +x {COMMAND}\n\n"
        "### WHEELS FOR TRAINING IMAGES\n\n"
        "ENV HEADRACE_HOME=/api/home\n"
        f"RUN python3 -c {json.dumps(_DOWNLOAD)}\n"
    )
    return {name: content, WRAPPER: _WRAPPER.encode(), DOCKERFILE: dockerfile.encode()}


TRY_AGAIN = 75
"""Exit code of a child that could not reach AWS: EX_TEMPFAIL of sysexits.h. Its line goes on, or has not begun."""
STOPPED = 130
"""Exit code of a child that was asked to end: 128 and SIGINT."""
KILLED = 137
"""Exit code of a container that got SIGKILL: also when it used more memory than it has."""

EXITS = {
    0: "the line's job completed",
    1: "the line's job failed",
    2: "the line cannot start: its job, its role or the bundle is wrong",
    4: "the line's job was stopped because its budget was used up",
    TRY_AGAIN: "AWS could not be asked: Batch tries again",
    STOPPED: "the line's job was stopped",
}
"""Exit codes of `headrace grid step`, in words."""

LOST_HOST = "Host EC2*"
"""How Batch's `statusReason` begins after the loss of an instance: ``Host EC2 (instance i-...) terminated.``"""


def retry_strategy(attempts: int) -> dict[str, object]:
    """Returns `retryStrategy` of a job. The first rule that fits counts, and the last one fits always.

    Args:
        attempts: how often Batch starts a child at most.
    """
    rules = [
        {"onStatusReason": LOST_HOST, "action": "RETRY"},
        {"onExitCode": str(TRY_AGAIN), "action": "RETRY"},
        {"onExitCode": str(KILLED), "action": "RETRY"},
        {"onReason": "*", "action": "EXIT"},
    ]
    return {"attempts": attempts, "evaluateOnExit": rules}


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
