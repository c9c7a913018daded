"""From a job to a CreateTrainingJob request. Pure: nothing is uploaded, nothing is sent."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel

from headrace.job.model import path_types
from headrace.job.model.channels import TrainingInput
from headrace.job.model.hyperparameters import decode, encode
from headrace.job.problems.finding import Finding, Path
from headrace.job.rules.raw_access import each_group_alone
from headrace.job.sagemaker.field_map import (
    ALGORITHM,
    ARGUMENTS,
    CHANNEL,
    CHANNELS,
    ENTRYPOINT,
    HYPERPARAMETERS,
    LISTS,
    PREFERENCES,
    VALUES,
    put,
)
from headrace.sagemaker_parameters import GROUPS, PROGRAM, STRATEGIES, SUBMIT_DIRECTORY

if TYPE_CHECKING:
    from headrace.job.job import Job

# Keys of a job that a request has no member for, and what becomes of them.
_BEYOND = {
    "dependencies": "they travel inside the uploaded code",
    "requirements": "a container installs requirements.txt of the code",
    "data_service": "headrace's agents start it",
    "completion": "headrace's agents decide it",
    "hyperparameters_as": "headrace's agents start the program",
    "budget": "headrace's agents stop the job",
    "earlier_output": "headrace's engines look before the start",
    "keep": "headrace's agents put it into the output",
    "record": "headrace's engines store it",
    "framework_version": "it chooses an image; the request names the image",
    "py_version": "it chooses an image; the request names the image",
    "code_location": "it says where the code is uploaded",
    "engines": "options of engines",
}
_GROUP_BEYOND = ("entry_point", "environment", "hyperparameters", "requirements", "depends_on", "ready")


def write_request(job: Job, submit_directory: str) -> dict[str, object]:
    """Returns the request. What the job keeps of a request that it was made of is in it again. See `Job.to_request`."""
    built: dict[str, object] = {}
    for target, source in VALUES:
        value = _explicit(job, source)
        if value is not None and value not in ((), {}):
            put(built, target, _plain(value))
    put(built, (ALGORITHM, "TrainingInputMode"), job.input_mode)
    put(built, ("StoppingCondition", "MaxRuntimeInSeconds"), job.max_run)
    for target, key, members in LISTS:
        items = getattr(job, key)
        if items:
            put(built, target, [{theirs: getattr(item, ours) for theirs, ours in members} for item in items])
    extras = copy.deepcopy(cast("dict[str, object]", job.request_extras))
    _write_command(job, built, extras)
    texts = _texts(job, submit_directory, _mapping(extras.pop(HYPERPARAMETERS, None)))
    channels = _write_channels(job, extras.pop(CHANNELS, None))
    _drop_preferences(built, extras)
    result = _merged(extras, built)
    if texts:
        result[HYPERPARAMETERS] = texts
    if channels:
        result[CHANNELS] = channels
    return result


def unfit(job: Job, submit_directory: str) -> Iterator[Finding]:
    """Yields what keeps a job from being a request."""
    hint = "upload the code and give its s3:// URI: to_request(submit_directory=...)"
    if job.role is None:
        yield Finding(("role",), "is required in a request", hint="give the ARN of the role under which the job runs")
    if job.output_path is None:
        yield Finding(("output_path",), "is required in a request", hint="give an s3:// URI")
    elif not path_types.is_remote(job.output_path):
        yield Finding(("output_path",), "must be an s3:// URI in a request", repr(job.output_path))
    if job.checkpoint_s3_uri is not None and not path_types.is_remote(job.checkpoint_s3_uri):
        yield Finding(("checkpoint_s3_uri",), "must be an s3:// URI in a request", repr(job.checkpoint_s3_uri))
    if job.image_uri is None and not _mapping(job.request_extras.get(ALGORITHM)).get("AlgorithmName"):
        yield Finding(("image_uri",), "is required in a request", hint="give the container image to run")
    code = submit_directory or job.source_dir
    if code and not path_types.is_remote(code) and not code.startswith("/opt/ml/"):
        yield Finding(("source_dir",), "must be an s3:// URI in a request", repr(code), hint)
    for name, channel in job.inputs.items():
        if not channel.is_remote:
            yield Finding(("inputs", name, "s3_data"), "must be an s3:// URI in a request", repr(channel.s3_data))


def beyond_request(job: Job) -> dict[str, str]:
    """Returns the keys that a request has no member for, each with what becomes of it."""
    found = {key: why for key, why in _BEYOND.items() if key in job.model_fields_set and getattr(job, key)}
    for index, group in enumerate(job.instance_groups):
        for key in _GROUP_BEYOND:
            if getattr(group, key):
                found[f"instance_groups[{index}].{key}"] = "headrace's agents apply it"
    for world in job.distributions:
        if world.elastic:
            found["distribution.torch_distributed.elastic"] = "headrace's agents start torchrun"
        if world.kind == "torch_distributed" and world.processes_per_host:
            found["distribution.torch_distributed.processes_per_host"] = "a container starts one process a GPU"
    return found


def channel_member(name: str, channel: TrainingInput) -> dict[str, object]:
    """Returns a channel as an item of the request."""
    item: dict[str, object] = {"ChannelName": name}
    for target, source in CHANNEL:
        value = _explicit(channel, source)
        if value not in (None, ()):
            put(item, target, _plain(value))
    put(item, ("DataSource", "S3DataSource", "S3DataType"), channel.s3_data_type)
    return item


def _explicit(part: object, path: Path) -> object:
    """Returns a value of a job, or of a part of it, that was given; None for a default."""
    for step in path:
        if not isinstance(part, BaseModel) or step not in part.model_fields_set:
            return None
        part = getattr(part, str(step))
    return part


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _write_command(job: Job, built: dict[str, object], extras: dict[str, object]) -> None:
    """Divides the command as the request did that the job was made of; otherwise all of it is the entrypoint."""
    kept = _mapping(extras.get(ALGORITHM))
    arguments = kept.get(ARGUMENTS[1])
    command = list(job.command)
    if not command:
        return
    count = len(arguments) if isinstance(arguments, list) else 0
    if count and len(command) > count and command[-count:] == arguments:
        command = command[:-count]
    else:
        kept.pop(ARGUMENTS[1], None)
        command, more = command[:100], command[100:]
        if more:
            put(built, ARGUMENTS, more)
    put(built, ENTRYPOINT, command)


def _drop_preferences(built: dict[str, object], extras: dict[str, object]) -> None:
    """The instances of a list of preferences are not named a second time."""
    preferences = _mapping(extras.get(PREFERENCES[0])).get(PREFERENCES[1])
    if isinstance(preferences, list):
        for key in ("InstanceType", "InstanceCount"):
            _mapping(built.get(PREFERENCES[0])).pop(key, None)


def _texts(job: Job, submit_directory: str, raw: Mapping[str, object]) -> dict[str, str]:
    texts = {name: encode(value, raw.get(name)) for name, value in job.hyperparameters.items()}
    reserved: dict[str, object] = {}
    program = job.in_code(job.entry_point) if submit_directory else job.entry_point
    if program and job.environment.get("SAGEMAKER_PROGRAM") != program:
        reserved[PROGRAM] = program
    code = submit_directory or job.source_dir
    if code and job.environment.get("SAGEMAKER_SUBMIT_DIRECTORY") != code:
        reserved[SUBMIT_DIRECTORY] = code
    written = decode(str(raw.get(SUBMIT_DIRECTORY, "")))
    if isinstance(written, str) and code and path_types.local_form(written) == code:
        reserved[SUBMIT_DIRECTORY] = written
    reserved |= _strategies(job)
    texts |= {name: encode(value, raw.get(name)) for name, value in reserved.items()}
    return texts | job.reserved_texts


def _strategies(job: Job) -> dict[str, object]:
    if not job.distribution:
        return {}
    world = job.distribution[0]
    result: dict[str, object] = {}
    for name, path in STRATEGIES.items():
        value = _explicit(world, path)
        if value is not None:
            result[name] = _plain(value)
    if world.horovod is not None and "mpi" not in world.model_fields_set:
        for name, path in STRATEGIES.items():
            value = _explicit(world, ("horovod", *path[1:])) if path[0] == "mpi" else None
            if value is not None:
                result[name] = value
    if world.instance_groups and not each_group_alone(job.to_data()):
        result[GROUPS] = list(world.instance_groups)
    return result


def _write_channels(job: Job, kept: object) -> list[object]:
    built = {name: channel_member(name, channel) for name, channel in job.inputs.items()}
    result: list[object] = []
    for item in cast("list[dict[str, object]]", kept if isinstance(kept, list) else []):
        name = str(item.get("ChannelName"))
        if name in built:
            held = _mapping(item.get("DataSource"))
            keep = item if not held or "S3DataSource" in held else {}
            result.append(_merged(keep, built.pop(name)))
        elif len(item) > 1:
            result.append(item)
    return [*result, *built.values()]


def _merged(under: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping) and key != "Environment"
        result[key] = (
            _merged(cast("Mapping[str, object]", below), cast("Mapping[str, object]", value)) if both else value
        )
    return result


def _mapping(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
