"""Between a CreateTrainingJob request and a job, both ways. Pure: nothing is checked, uploaded or sent.

Where the values of a job are in a CreateTrainingJob request: one table, for both directions; and reaching them.

From a CreateTrainingJob request to the data of a job.

What no key of a job holds is kept, at its place, as `request_extras`. Nothing is checked here: `check` and the rules
of the job do that, and a value of the wrong type stays where it was.

From a job to a CreateTrainingJob request. Pure: nothing is uploaded, nothing is sent.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast, get_args

from pydantic import BaseModel

from headrace.job.model import field_types, path_types
from headrace.job.model.field_types import decode, encode, is_reserved
from headrace.job.model.job_topology import each_group_alone
from headrace.job.model.parts import Distribution, TrainingInput
from headrace.job.model.path_types import local_form
from headrace.job.problems.finding import Finding, Path, fitting, value_at
from headrace.sagemaker_parameters import GROUPS, PROGRAM, STRATEGIES, SUBMIT_DIRECTORY

if TYPE_CHECKING:
    from headrace.job.job import Job

ALGORITHM = "AlgorithmSpecification"
CHANNELS = "InputDataConfig"
HYPERPARAMETERS = "HyperParameters"
ENTRYPOINT = (ALGORITHM, "ContainerEntrypoint")
ARGUMENTS = (ALGORITHM, "ContainerArguments")
INSTANCE_GROUPS = ("ResourceConfig", "InstanceGroups")
PREFERENCES = ("ResourceConfig", "InstancePreferences")
METRICS = (ALGORITHM, "MetricDefinitions")
WORLD_GROUPS = (HYPERPARAMETERS, GROUPS)

VALUES: tuple[tuple[Path, Path], ...] = (
    (("TrainingJobName",), ("job_name",)),
    (("RoleArn",), ("role",)),
    ((ALGORITHM, "TrainingImage"), ("image_uri",)),
    ((ALGORITHM, "TrainingInputMode"), ("input_mode",)),
    (("Environment",), ("environment",)),
    (("OutputDataConfig", "S3OutputPath"), ("output_path",)),
    (("OutputDataConfig", "KmsKeyId"), ("output_kms_key",)),
    (("ResourceConfig", "InstanceType"), ("instance_type",)),
    (("ResourceConfig", "InstanceCount"), ("instance_count",)),
    (("ResourceConfig", "VolumeSizeInGB"), ("volume_size",)),
    (("ResourceConfig", "VolumeKmsKeyId"), ("volume_kms_key",)),
    (("ResourceConfig", "KeepAlivePeriodInSeconds"), ("keep_alive_period_in_seconds",)),
    (("ResourceConfig", "TrainingPlanArn"), ("training_plan",)),
    (("VpcConfig", "SecurityGroupIds"), ("security_group_ids",)),
    (("VpcConfig", "Subnets"), ("subnets",)),
    (("StoppingCondition", "MaxRuntimeInSeconds"), ("stopping_condition", "max_run")),
    (("StoppingCondition", "MaxWaitTimeInSeconds"), ("stopping_condition", "max_wait")),
    (("StoppingCondition", "MaxPendingTimeInSeconds"), ("stopping_condition", "max_pending_time")),
    (("RetryStrategy", "MaximumRetryAttempts"), ("retry", "attempts")),
    (("CheckpointConfig", "S3Uri"), ("checkpoint_s3_uri",)),
    (("CheckpointConfig", "LocalPath"), ("checkpoint_local_path",)),
    (("EnableNetworkIsolation",), ("enable_network_isolation",)),
    (("EnableInterContainerTrafficEncryption",), ("encrypt_inter_container_traffic",)),
    (("EnableManagedSpotTraining",), ("use_spot_instances",)),
)
"""Values that are in one place of the request and in one of the job."""

CHANNEL: tuple[tuple[Path, Path], ...] = (
    (("DataSource", "S3DataSource", "S3Uri"), ("s3_data",)),
    (("DataSource", "S3DataSource", "S3DataType"), ("s3_data_type",)),
    (("DataSource", "S3DataSource", "S3DataDistributionType"), ("distribution",)),
    (("DataSource", "S3DataSource", "AttributeNames"), ("attribute_names",)),
    (("DataSource", "S3DataSource", "InstanceGroupNames"), ("instance_groups",)),
    (("InputMode",), ("input_mode",)),
    (("ContentType",), ("content_type",)),
    (("CompressionType",), ("compression",)),
    (("RecordWrapperType",), ("record_wrapping",)),
    (("ShuffleConfig", "Seed"), ("shuffle_config", "seed")),
)
"""Values of a channel: inside an item of InputDataConfig, and inside a `TrainingInput`."""

LISTS: tuple[tuple[Path, str, tuple[tuple[str, str], ...]], ...] = (
    (
        INSTANCE_GROUPS,
        "instance_groups",
        (
            ("InstanceGroupName", "instance_group_name"),
            ("InstanceType", "instance_type"),
            ("InstanceCount", "instance_count"),
        ),
    ),
    (METRICS, "metric_definitions", (("Name", "name"), ("Regex", "regex"))),
    (("Tags",), "tags", (("Key", "key"), ("Value", "value"))),
)
"""Lists of small structures: where in the request, key of the job, and the names of their members in both."""


def put(tree: dict[str, object], path: Path, value: object) -> None:
    """Sets a value, and makes the mappings around it. Nothing is set below a value that is not a mapping."""
    for step in path[:-1]:
        inner = tree.setdefault(str(step), {})
        if not isinstance(inner, dict):
            return
        tree = inner
    tree[str(path[-1])] = value


def take(tree: dict[str, object], path: Path) -> object:
    """Takes a value out, and the mappings around it that this empties."""
    inner = tree[str(path[0])]
    if len(path) == 1:
        return tree.pop(str(path[0]))
    if not isinstance(inner, dict):
        return None
    value = take(inner, path[1:])
    if not inner:
        del tree[str(path[0])]
    return value


_WRITTEN = ("output_path", "checkpoint_s3_uri")
_PLACES = ("s3_data", *_WRITTEN)  # keys whose values the service wants in S3
_DATA_TYPES = get_args(get_args(field_types.DataType)[0])


@dataclass
class Translated:
    """A job that was read from a request.

    Attributes:
        data: keys of a job file and their values.
        names: where in the request each of them was.
    """

    data: dict[str, object] = field(default_factory=dict)
    names: dict[Path, Path] = field(default_factory=dict)


def read_request(request: Mapping[str, object]) -> Translated:
    """Translates a request. The request itself is not changed."""
    rest = copy.deepcopy(dict(request))
    result = Translated()
    _values(rest, result)
    variables = result.data.get("environment")
    for name in variables if isinstance(variables, dict) else ():
        result.names[("environment", name)] = ("Environment", name)
    _lists(rest, result)
    _preferences(rest, result)
    _command(rest, result)
    _channels(rest, result)
    _hyperparameters(rest, result)
    if rest:
        result.data["request_extras"] = rest
    result.names[("request_extras",)] = ()
    return result


def with_places(
    data: Mapping[str, object],
    written: Callable[[str], str],
    source: Callable[[Mapping[str, object]], Mapping[str, object]],
) -> dict[str, object]:
    """Returns a job's data with the places of whoever runs it in place of those that the request names.

    Args:
        data: keys of a job file, read from a request.
        written: returns the place of what a job writes, by its URI.
        source: returns what is another of a channel, e.g. its `s3_data`.
    """
    result = dict(data)
    for key in _WRITTEN:
        if isinstance(uri := result.get(key), str):
            result[key] = written(uri)
    channels = result.get("inputs")
    if isinstance(channels, Mapping):
        result["inputs"] = {name: {**channel, **source(channel)} for name, channel in channels.items()}
    return result


def with_local_places(wrong: Iterable[Finding], read: Translated) -> Iterator[Finding]:
    """Adds how a place on this machine is given to each finding about a place that the service wants in S3."""
    keys = {place: key for key, place in read.names.items() if key[-1] in _PLACES}
    for finding in wrong:
        key = keys.get(finding.path, ())
        text = value_at(read.data, key) if key else None
        local = isinstance(text, str) and text and "://" not in local_form(text)
        yield replace(finding, hint=_local_way(key, str(text))) if local else finding


def _local_way(key: Path, text: str) -> str:
    steps = ("path" if step == "s3_data" else str(step) for step in key)
    name = ".".join(f'"{step}"' if "." in step else step for step in steps)
    argument = shlex.quote(f"{name}={text}")
    return f"the service reads and writes S3; to have it on this machine, add --set {argument}"


def _values(rest: dict[str, object], result: Translated) -> None:
    for source, target in VALUES:
        result.names[target] = source
        value = value_at(rest, source)
        if value not in (None, "", [], {}):
            put(result.data, target, take(rest, source))


def _lists(rest: dict[str, object], result: Translated) -> None:
    for source, key, members in LISTS:
        result.names[(key,)] = source
        items = value_at(rest, source)
        if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
            continue
        if not all(set(item) <= {name for name, _ in members} for item in items):
            continue  # unknown members were found already
        result.data[key] = [{ours: item[theirs] for theirs, ours in members if theirs in item} for item in items]
        for index in range(len(items)):
            result.names[(key, index)] = (*source, index)
            result.names |= {(key, index, ours): (*source, index, theirs) for theirs, ours in members}
        take(rest, source)


def _preferences(rest: dict[str, object], result: Translated) -> None:
    """Of several types that the service would choose from, the job names the first."""
    preferences = value_at(rest, PREFERENCES)
    first = preferences[0] if isinstance(preferences, list) and preferences else None
    if isinstance(first, dict) and not result.data.keys() & {"instance_type", "instance_groups"}:
        for name, key in (("InstanceType", "instance_type"), ("InstanceCount", "instance_count")):
            result.names[(key,)] = (*PREFERENCES, 0, name)
            if first.get(name) is not None:
                result.data.setdefault(key, first[name])


def _command(rest: dict[str, object], result: Translated) -> None:
    entrypoint, arguments = value_at(rest, ENTRYPOINT), value_at(rest, ARGUMENTS)
    result.names[("command",)] = ENTRYPOINT
    if not isinstance(entrypoint, list) or not entrypoint:
        return
    more = arguments if isinstance(arguments, list) else []
    result.data["command"] = [*entrypoint, *more]
    result.names |= {("command", index): (*ENTRYPOINT, index) for index in range(len(entrypoint))}
    result.names |= {("command", len(entrypoint) + index): (*ARGUMENTS, index) for index in range(len(more))}
    take(rest, ENTRYPOINT)  # the arguments stay: they tell where the entrypoint ends


def _channels(rest: dict[str, object], result: Translated) -> None:
    items = rest.get(CHANNELS)
    result.names[("inputs",)] = (CHANNELS,)
    if not isinstance(items, list):
        return
    channels: dict[str, object] = {}
    kept = False
    for index, item in enumerate(items):
        name = item.get("ChannelName") if isinstance(item, dict) else None
        if not isinstance(name, str) or name in channels or not _is_s3(item):
            kept = True
            continue
        channel: dict[str, object] = {}
        result.names[("inputs", name)] = (CHANNELS, index)
        for source, target in CHANNEL:
            place: Path = ("inputs", name, *target)
            result.names[place] = (CHANNELS, index, *source)
            if value_at(item, source) not in (None, []):
                put(channel, target, take(item, source))
        channels[name] = channel
        kept = kept or len(item) > 1
    if channels:
        result.data["inputs"] = channels
    if not kept:
        del rest[CHANNELS]


def _is_s3(item: dict[str, object]) -> bool:
    source = item.get("DataSource")
    if not isinstance(source, dict) or set(source) != {"S3DataSource"} or not isinstance(source["S3DataSource"], dict):
        return False
    return source["S3DataSource"].get("S3DataType") in _DATA_TYPES


def _hyperparameters(rest: dict[str, object], result: Translated) -> None:
    texts = rest.get(HYPERPARAMETERS)
    result.names[("hyperparameters",)] = (HYPERPARAMETERS,)
    result.names[("entry_point",)] = (HYPERPARAMETERS, PROGRAM)
    result.names[("source_dir",)] = (HYPERPARAMETERS, SUBMIT_DIRECTORY)
    result.names[("distribution",)] = (HYPERPARAMETERS,)
    if not isinstance(texts, dict):
        _program_of_environment(result)
        return
    values_found: dict[str, object] = {}
    world: dict[str, object] = {}
    for name, text in list(texts.items()):
        if not isinstance(text, str):
            continue
        value = decode(text)
        where = (HYPERPARAMETERS, name)
        if not is_reserved(name):
            values_found[name] = value
            result.names[("hyperparameters", name)] = where
        elif "command" in result.data:
            continue  # the command runs, whatever the toolkits' hyperparameters say
        elif name == PROGRAM and isinstance(value, str):
            result.data["entry_point"] = value
        elif name == SUBMIT_DIRECTORY and isinstance(value, str):
            result.data["source_dir"] = value
        elif name == GROUPS:
            world["instance_groups"] = value
        elif name in STRATEGIES:
            put(world, STRATEGIES[name], value)
            place: Path = ("distribution", *STRATEGIES[name])
            result.names[place] = where
        else:
            continue
        if json.dumps(value) == text and not (name == SUBMIT_DIRECTORY and local_form(str(value)) != value):
            take(rest, where)  # a job has it in another form: how the request wrote it is kept
    if values_found:
        result.data["hyperparameters"] = values_found
    _distribution(world, result)
    _program_of_environment(result)


def _distribution(world: dict[str, object], result: Translated) -> None:
    """Without named groups every group is a world of its own, as in SageMaker's containers."""
    libraries = world.get("smdistributed")
    if isinstance(libraries, dict) and isinstance(libraries.get("modelparallel"), dict):
        libraries["modelparallel"].setdefault("enabled", True)
    result.names[("distribution", "instance_groups")] = (HYPERPARAMETERS, GROUPS)
    groups = result.data.get("instance_groups")
    if not world:
        return
    if (
        "instance_groups" in world
        or not isinstance(groups, list)
        or len(groups) < 2
        or not fitting(Distribution, world).ways
    ):
        result.data["distribution"] = world
        return
    names = [group.get("instance_group_name") for group in groups]
    result.data["distribution"] = [{**copy.deepcopy(world), "instance_groups": [name]} for name in names]


def _program_of_environment(result: Translated) -> None:
    """SageMaker's containers take the program from variables too."""
    variables = result.data.get("environment")
    if "command" in result.data or not isinstance(variables, dict):
        return
    for variable, key in (("SAGEMAKER_PROGRAM", "entry_point"), ("SAGEMAKER_SUBMIT_DIRECTORY", "source_dir")):
        if key not in result.data and isinstance(variables.get(variable), str) and variables[variable]:
            result.data[key] = variables[variable]
            result.names[(key,)] = ("Environment", variable)


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
    keys = {key: why for key, why in _BEYOND.items() if key in job.model_fields_set and getattr(job, key)}
    for index, group in enumerate(job.instance_groups):
        for key in _GROUP_BEYOND:
            if getattr(group, key):
                keys[f"instance_groups[{index}].{key}"] = "headrace's agents apply it"
    for world in job.distributions:
        if world.elastic:
            keys["distribution.torch_distributed.elastic"] = "headrace's agents start torchrun"
        if world.kind == "torch_distributed" and world.processes_per_host:
            keys["distribution.torch_distributed.processes_per_host"] = "a container starts one process a GPU"
    return keys


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
    by_horovod = world.horovod is not None and "mpi" not in world.model_fields_set
    for name, path in STRATEGIES.items():
        value = _explicit(world, ("horovod", *path[1:]) if by_horovod and path[0] == "mpi" else path)
        if value is not None:
            result[name] = _plain(value)
    if world.instance_groups and not each_group_alone(job):
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
