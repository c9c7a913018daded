"""A grid as SageMaker service jobs of AWS Batch: Batch itself creates the training jobs, and no container waits.

A service job holds a CreateTrainingJob request. The job's image starts the program, with the code of the bundle, as
SageMaker's own SDK would have it: headrace's agents are not there, and there is no record of the run. What only they
can do is refused. A queue for service jobs is in one region, so every region of the grid needs one. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.errors import JobInvalid, Problem, UsageError
from headrace.grid.batch.batch_names import BatchNames
from headrace.grid.batch.batch_requests import TAG, Request
from headrace.grid.batch.grid_bundle import GRID, JOBS, FrozenGrid, FrozenLine, read_frozen_grid, read_jobs
from headrace.grid.batch_options import BatchOptions
from headrace.job import Job
from headrace.job.model.path_types import is_remote

KIND = "SAGEMAKER_TRAINING"
MAX_PAYLOAD = 10 << 10
"""Bytes of the request in a service job."""
_FAULT = "Received status from SageMaker: InternalServerError*"
_WITHOUT_EFFECT = frozenset(
    ("dependencies", "requirements", "record", "framework_version", "py_version", "code_location", "engines")
)
"""Keys of a job that no request holds, and that change nothing where the image starts the program."""
_TOKEN_CHARACTERS = 64


class ServiceJob(NamedTuple):
    """A line as a service job.

    Attributes:
        region: of its queue and of the training job.
        request: the SubmitServiceJob request.
    """

    region: str
    request: Request


def service_jobs(
    bundle: Mapping[str, bytes], names: BatchNames, options: BatchOptions, images: tuple[str, ...]
) -> tuple[ServiceJob, ...]:
    """Returns the service jobs of all lines, in their order. The same bundle gives the same ones, tokens included.

    Args:
        bundle: files of the bundle, by name.
        names: of the grid.
        options: what the user says.
        images: URI of each line's image.

    Raises:
        JobInvalid: with all lines that no request can hold, or whose request is too large.
        UsageError: a region without a queue.
    """
    grid = read_frozen_grid(bundle[GRID], GRID)
    for region in dict.fromkeys(line.region for line in grid.lines):
        if region not in options.service_queues:
            hint = f"batch: {{service_queues: {{{region}: NAME}}}}; each is a queue of the type {KIND}"
            raise UsageError(f"no queue for service jobs is named for {region}", hint=hint)
    found: list[ServiceJob] = []
    problems: list[Problem] = []
    for line, data, image in zip(grid.lines, read_jobs(bundle[JOBS]), images, strict=True):
        job = Job(base_path=Path(), **{**data, "image_uri": image})
        wrong = list(_lost(job, line))
        payload = b""
        if not wrong:
            try:
                place = job.source_dir if is_remote(job.source_dir) else f"{names.bundle}/{job.source_dir}"
                made = job.to_request(place if job.source_dir else "")
                payload = json.dumps(made, separators=(",", ":")).encode()
            except JobInvalid as error:
                wrong += (Problem(each.field, each.message, each.value, line.place) for each in error.problems)
        if len(payload) > MAX_PAYLOAD:
            message = f"its request must have at most {MAX_PAYLOAD} bytes"
            wrong.append(Problem("line", message, str(len(payload)), line.place))
        problems += wrong
        if not wrong:
            found.append(ServiceJob(line.region, _request(grid, line, payload.decode(), options, names.tag)))
    if problems:
        raise JobInvalid(tuple(problems))
    return tuple(found)


def _lost(job: Job, line: FrozenLine) -> Iterator[Problem]:
    for key, becomes in job.beyond_request().items():
        named = key == "requirements" and job.requirements != "requirements.txt"
        if key not in _WITHOUT_EFFECT or named:
            hint = "submit the grid as an array job, whose children start headrace's agents"
            yield Problem(key, f"has no place in a service job: {becomes}", "", line.place, 0, hint)


def _request(grid: FrozenGrid, line: FrozenLine, payload: str, options: BatchOptions, tag: str) -> Request:
    token = hashlib.sha256(f"{tag} {line.key} {payload}".encode()).hexdigest()[:_TOKEN_CHARACTERS]
    rules = [{"onStatusReason": _FAULT, "action": "RETRY"}, {"onStatusReason": "*", "action": "EXIT"}]
    timeout = {} if options.timeout is None else {"timeoutConfig": {"attemptDurationSeconds": round(options.timeout)}}
    return {
        "jobName": line.job_name,
        "jobQueue": options.service_queues[line.region],
        "serviceJobType": KIND,
        "serviceRequestPayload": payload,
        "retryStrategy": {"attempts": options.attempts, "evaluateOnExit": rules},
        **timeout,
        "tags": {TAG: grid.name},
        "clientToken": token,
    }
