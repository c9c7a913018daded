"""The CreateTrainingJob request of a job: exactly what is sent. Pure.

It is the request that `headrace.job` makes of a job, with three differences. One more input channel, which all groups
have, carries headrace, the code and the secret. The container starts headrace's agent, which starts the job's programs.
The name is the run's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from headrace.errors import JobInvalid
from headrace.job import Job
from headrace.job.problems.finding import Finding
from headrace.job.rules.engine_rules import service_rules
from headrace.job.sagemaker.check import check_request, check_shape, create_training_job
from headrace.job.sagemaker.translation import (
    ALGORITHM,
    ARGUMENTS,
    CHANNELS,
    ENTRYPOINT,
    HYPERPARAMETERS,
    put,
    unfit,
    write_request,
)

Request = dict[str, object]
CHANNEL = "headrace-job"
"""Input channel that carries headrace. Hosts write nothing into it: their own files are in `headrace`, beside it."""
CHANNEL_FOLDER = f"/opt/ml/input/data/{CHANNEL}"
"""Where containers see what carries headrace."""


@dataclass(frozen=True)
class Carrier:
    """What brings headrace into the containers, and what they start.

    Attributes:
        channel_uri: ``s3://`` URI of what becomes the channel: a prefix, or the manifest that names its objects.
        data_type: which of the two it is.
        entrypoint: program and arguments of the container, 1 to 100 texts of 256 characters at most.
        arguments: further arguments; containers get them behind those.
        submit_directory: the job's code as containers see it.
        environment: variables of the container beside the job's.
    """

    channel_uri: str
    entrypoint: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    data_type: Literal["S3Prefix", "ManifestFile"] = "S3Prefix"
    submit_directory: str = f"{CHANNEL_FOLDER}/code"
    environment: Mapping[str, str] = field(default_factory=dict)


def training_request(job: Job, name: str, image: str, carrier: Carrier) -> Request:
    """Returns the request.

    Args:
        job: the job, as it is submitted: its groups have the types that are asked for.
        name: TrainingJobName.
        image: URI of the container image.
        carrier: what brings headrace into the containers.

    Raises:
        JobInvalid: with all that SageMaker refuses, and all that is not in S3.
    """
    named = job.model_copy(update={"job_name": name, "image_uri": image})
    wrong = [*service_rules(job.to_data()), *map(_with_hint, unfit(named, carrier.submit_directory))]
    request = write_request(named, carrier.submit_directory)
    put(request, ENTRYPOINT, list(carrier.entrypoint))
    algorithm = cast("dict[str, object]", request[ALGORITHM])
    algorithm.pop(ARGUMENTS[1], None)
    if carrier.arguments:
        put(request, ARGUMENTS, list(carrier.arguments))
    channels = cast("list[object]", request.get(CHANNELS, []))
    request[CHANNELS] = [*channels, _channel(job, carrier)]
    if carrier.environment:
        own = cast("Mapping[str, str]", request.get("Environment", {}))
        request["Environment"] = {**own, **carrier.environment}
    wrong += [] if wrong else [*check_request(request), *_of_groups(job)]
    if wrong:
        raise JobInvalid(tuple(job.problem(each.path, each.message, seen=each.seen, hint=each.hint) for each in wrong))
    return request


def own_hyperparameters(job: Job) -> dict[str, dict[str, str]]:
    """Returns the hyperparameters that groups have of their own, as the service would carry them, by group.

    The request has those of the job, for all hosts; headrace's channel carries these.
    """
    found = {}
    for group in job.groups:
        texts = job.hyperparameter_texts_of(group.instance_group_name)
        own = {name: texts[name] for name in group.hyperparameters}
        if own:
            found[group.instance_group_name] = own
    return found


def _of_groups(job: Job) -> Iterator[Finding]:
    """What no hyperparameter of the request could be is none of a group either."""
    own = own_hyperparameters(job)
    shape = create_training_job().members[HYPERPARAMETERS]
    for index, group in enumerate(job.groups):
        texts = own.get(group.instance_group_name, {})
        yield from check_shape(texts, shape, ("instance_groups", index, "hyperparameters"))


def _channel(job: Job, carrier: Carrier) -> Request:
    """Returns the channel that carries headrace: a folder, whatever mode the others have."""
    source: dict[str, object] = {
        "S3DataType": carrier.data_type,
        "S3Uri": carrier.channel_uri,
        "S3DataDistributionType": "FullyReplicated",
    }
    if any(channel.instance_groups is not None for channel in job.inputs.values()):
        source["InstanceGroupNames"] = [group.instance_group_name for group in job.groups]
    return {"ChannelName": CHANNEL, "DataSource": {"S3DataSource": source}, "InputMode": "File"}


def _with_hint(finding: Finding) -> Finding:
    if finding.path[0] == "inputs" and not finding.hint:
        hint = "copy it there: aws s3 cp --recursive FOLDER s3://bucket/prefix"
        return Finding(finding.path, finding.message, finding.seen, hint)
    return finding
