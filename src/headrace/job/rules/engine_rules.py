"""What an engine refuses of a job that is valid: rules of one place, not of jobs.

The engines whose hosts are the user's own run more than SageMaker does (a distribution over several groups, several
distributions) and less (no program that an image brings, no libraries of the service).

Values of a job that have no effect in an engine. `headrace plan` lists them; none is dropped in silence.

What the SageMaker engine refuses of a job beyond what the service's own request does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel

from headrace.catalog import instance_types
from headrace.catalog.aws_facts import why_no_bucket
from headrace.catalog.prices import DEFAULT_REGION
from headrace.job.model import path_types
from headrace.job.problems.finding import Finding, Path, examine, field_text, show
from headrace.job.rules.raw_access import (
    Data,
    as_list,
    as_names,
    each_group_alone,
    enabled,
    entry_points,
    group_names,
    mapping,
    pick,
    worlds,
)
from headrace.sagemaker_parameters import HOMOGENEOUS

_INSTEAD = {
    "smdistributed.dataparallel": (
        "use torch_distributed: {enabled: true} with PyTorch's DistributedDataParallel, or horovod"
    ),
    "smdistributed.modelparallel": "use torch_distributed: {enabled: true} with PyTorch's FullyShardedDataParallel",
    "parameter_server": "use multi_worker_mirrored_strategy: {enabled: true}, TensorFlow 2's way",
    "pytorchddp": "use torch_distributed: {enabled: true}; the script stays the same",
    "pytorchxla": "use torch_distributed: {enabled: true}; there are no Trainium or TPU devices here",
}
TOOLKIT_ONLY = frozenset(_INSTEAD)
"""Ways of starting ranks that only SageMaker's own toolkit knows."""


def options_rules(engine: str, options: type[BaseModel] | None, data: Data) -> Iterator[Finding]:
    """Yields what is wrong with the options of an engine that headrace does not bring.

    Args:
        engine: its name.
        options: their model; None when it has none.
        data: the job as plain data.
    """
    if options is not None:
        for found in examine(options, mapping(data, "engines", engine)):
            yield replace(found, path=("engines", engine, *found.path))


def own_hosts(data: Data, engine_name: str) -> Iterator[Finding]:
    """What no engine runs whose hosts are the user's own.

    Args:
        data: the job as plain data, as the user wrote it or as `Job.to_data` gives it.
        engine_name: of the engine.
    """
    engine = _named(engine_name)
    yield from _program(data, engine)
    for path, world in worlds(data):
        for way in enabled(world):
            if way in _INSTEAD:
                message = f"{way} runs on SageMaker only"
                yield Finding((*path, *way.split(".")), message, hint=_INSTEAD[way])
    yield from _other_sources(data, engine)
    record = mapping(data, "record").get("uri")
    if isinstance(record, str) and path_types.bucket_of(record) == path_types.LOCAL_BUCKET:
        hint = f"{path_types.LOCAL_BUCKET} is a folder of this machine"
        yield Finding(("record", "uri"), "must be in a bucket of an object store", show(record), hint)
    if (
        data.get("encrypt_inter_container_traffic") is True
        and pick(mapping(data, "data_service").get("tf_data"), "enabled")[1] is True
    ):
        message = "tf.data.service knows no TLS, so its connections would be in clear"
        hint = "leave encrypt_inter_container_traffic out, or use data_service: {feed: {enabled: true}}"
        yield Finding(("encrypt_inter_container_traffic",), message, hint=hint)
    named: list[tuple[Path, object]] = [(("output_path",), data.get("output_path"))]
    named.append((("checkpoint_s3_uri",), data.get("checkpoint_s3_uri")))
    for name, channel in mapping(data, "inputs").items():
        key, text = pick(channel, "s3_data", "path")
        named.append((("inputs", name, key), text) if isinstance(channel, Mapping) else (("inputs", name), channel))
    for path, text in named:
        if isinstance(text, str) and text.startswith("https://"):
            yield Finding(path, f"{engine} reads and writes s3:// URIs", show(text), _s3_form(text))


def _program(data: Data, engine: str) -> Iterator[Finding]:
    groups = data.get("instance_groups")
    own = [bool(pick(group, "entry_point")[1]) for group in groups] if isinstance(groups, (list, tuple)) else []
    if data.get("entry_point") or data.get("command") or (own and all(own)):
        files = all(path_types.is_file(text) for _, text in entry_points(data))
        if not (data.get("command") or data.get("source_dir") or files):
            message = f"is required by {engine}: it cannot take the code from an image"
            yield Finding(("source_dir",), message, hint="name the folder that holds the code")
        return
    extras = mapping(data, "request_extras", "AlgorithmSpecification")
    hint = "name the code and what it runs: source_dir and entry_point, or a command (container_entry_point)"
    if data.get("image_uri"):
        message = f"the image brings the program, {_unfit(engine)}"
        yield Finding(("image_uri",), message, show(data["image_uri"]), hint)
    elif extras.get("AlgorithmName"):
        message = f"the algorithm is an image of AWS, {_unfit(engine)}"
        yield Finding(("request_extras", "AlgorithmSpecification", "AlgorithmName"), message, hint=hint)
    else:
        yield Finding(("entry_point",), f"is required by {engine}", hint=hint)


def _unfit(engine: str) -> str:
    pods = engine == _named("kubernetes")
    return f"which {engine} does not start" if pods else f"and {engine} runs no images"


def _named(engine: str) -> str:
    return f"the {engine} engine"


def _other_sources(data: Data, engine: str) -> Iterator[Finding]:
    """Channels of a request whose data is in a file system or another source."""
    channels = mapping(data, "request_extras").get("InputDataConfig")
    for index, channel in enumerate(channels if isinstance(channels, list) else ()):
        name = channel.get("ChannelName") if isinstance(channel, Mapping) else None
        if isinstance(name, str) and name not in mapping(data, "inputs"):
            kind = next(iter(mapping(channel, "DataSource")), "another source")
            message = f"the channel {name!r} has its data in {kind}, which {engine} cannot reach"
            hint = f"have the data in a folder and name it: --set inputs.{name}.path=FOLDER"
            yield Finding(("request_extras", "InputDataConfig", index), message, hint=hint)


def _s3_form(uri: str) -> str:
    """Says how an S3 address in its https form is written with s3://, where that is plain."""
    host, _, rest = uri.removeprefix("https://").partition("/")
    first, _, domain = host.partition(".")
    if first == "s3" or first.startswith("s3-"):
        return f"write s3://{rest}"
    return f"write s3://{first}/{rest}" if domain.startswith(("s3.", "s3-")) else "write s3://bucket/prefix"


def service_rules(data: Data) -> Iterator[Finding]:
    """What SageMaker refuses of a request."""
    found = [(path, world, enabled(world)) for path, world in worlds(data)]
    started = [(path, world, ways[0]) for path, world, ways in found if ways]
    for path, _, way in [] if each_group_alone(data) else started[1:]:
        message = "SageMaker starts one distribution in a job"
        yield Finding(path, message, way, "keep one; the local engine runs several", code="ValidationException")
    for path, world, way in started:
        names = as_names(world.get("instance_groups"))
        if len(names) > 1:
            message = "Distribution should only contain one instance group name !"
            hint = "A distributed training strategy can be applied only to one instance group; here it can be several"
            yield Finding((*path, "instance_groups"), message, show(names), hint, code="ValueError")
        for name in names or group_names(data):
            if _family(data, name).startswith("trn") and way != "torch_distributed":
                message = f"Provided distribution strategy {way} is not supported for Trainium instances."
                yield Finding(path, message, name, "use torch_distributed", code="ValueError")


def _family(data: Data, group_name: str) -> str:
    """Returns the family of a group's instance type: ``trn1`` of ``ml.trn1.32xlarge``; empty when it is not known."""
    groups = data.get("instance_groups")
    kinds = {HOMOGENEOUS: data.get("instance_type")}
    for group in groups if isinstance(groups, (list, tuple)) else ():
        kinds[str(pick(group, "instance_group_name", "name")[1])] = pick(group, "instance_type", "type")[1]
    kind = kinds.get(group_name)
    return kind.split(".")[1] if isinstance(kind, str) and kind in instance_types.KNOWN else ""


_HERE = "all hosts are on this machine"
_NO_IMAGE = "programs run in the Python that runs headrace, not in an image"
_NO_WAIT = "this machine is there at once"
_DISK = "the run's folder is on this machine's disk"
_SERVICE = "only SageMaker has it"

IDLE_ON_OWN_HOSTS: dict[str, str] = {
    "image_uri": _NO_IMAGE,
    "role": "no AWS role is taken; s3:// uses the credentials of the environment",
    "framework_version": _NO_IMAGE,
    "py_version": _NO_IMAGE,
    "volume_size": _DISK,
    "volume_kms_key": _DISK,
    "output_kms_key": "what is written is not encrypted with it",
    "code_location": "the code is copied into the run's folder",
    "subnets": _HERE,
    "security_group_ids": _HERE,
    "enable_network_isolation": "programs reach what this machine reaches",
    "use_spot_instances": _NO_WAIT,
    "keep_alive_period_in_seconds": _NO_WAIT,
    "training_plan": _NO_WAIT,
    "stopping_condition.max_wait": _NO_WAIT,
    "stopping_condition.max_pending_time": _NO_WAIT,
    "tags": "labels stay in the run's job file",
}

NO_RANGE = {"data_service.feed.workers": "all instances of the groups of data_service serve, from beginning to end"}

_MEMBERS: dict[str, str] = {
    "DebugHookConfig": "the service's debugger does not run here",
    "DebugRuleConfigurations": "the service's debugger does not run here",
    "ProfilerConfig": "the service's profiler does not run here",
    "ProfilerRuleConfigurations": "the service's profiler does not run here",
    "TensorBoardOutputConfig": "TensorBoard files stay where the program writes them",
    "ExperimentConfig": "no experiment is kept by the service",
    "MlflowConfig": "nothing is told to MLflow",
}


@dataclass(frozen=True)
class Unused:
    """A value without effect.

    Attributes:
        field: its place in the job, e.g. ``stopping_condition.max_wait``.
        why: the reason, in a few words.
    """

    field: str
    why: str


def idle(data: Data, reasons: Mapping[str, str]) -> tuple[Unused, ...]:
    """Returns what of a job has no effect, in the order of the job file's keys.

    Args:
        data: the job as plain data.
        reasons: keys that have none in an engine, in sections by dots, with the reason.
    """
    return tuple(_idle(data, reasons))


def _idle(data: Data, reasons: Mapping[str, str]) -> Iterator[Unused]:
    for name, why in reasons.items():
        section, _, key = name.rpartition(".")
        value = mapping(data, *section.split(".")).get(key) if section else data.get(key)
        if value not in (None, (), [], {}, "", False):
            yield Unused(name, why)
    for path in _members(data, mapping(data, "request_extras")):
        yield Unused(field_text(("request_extras", *path)), _MEMBERS.get(str(path[0]), _SERVICE))


def _members(data: Data, extras: Mapping[str, object]) -> Iterator[Path]:
    """Yields the members of a request that the job keeps and that have no effect here; of some, each value inside.

    The texts of hyperparameters, the arguments of a command and the order of channels are not among them: they only
    keep how the request wrote what the job has.
    """
    for name, member in extras.items():
        if name == "InputDataConfig" and isinstance(member, list):
            for index, channel in enumerate(member):
                if isinstance(channel, Mapping) and channel.keys() - {"ChannelName"}:
                    label = channel.get("ChannelName")
                    yield (name, label if isinstance(label, str) else index)
        elif name == "HyperParameters":
            continue
        elif name in ("AlgorithmSpecification", "ResourceConfig", "OutputDataConfig") and isinstance(member, Mapping):
            yield from ((name, key) for key in member if key != "ContainerArguments" or not data.get("command"))
        else:
            yield (name,)


MOST_CHANNELS = 20
OPTIONS = ("engines", "sagemaker")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/?[a-zA-Z0-9_+=,.@/-]+")
_NAME = re.compile(r"[A-Za-z0-9_+=,.@-]{1,64}")  # of a role


def sagemaker_rules(data: Data) -> Iterator[Finding]:
    """Yields what the engine refuses of a job that is given as plain data."""
    yield from _sagemaker_program(data)
    yield from _channels(data)
    yield from _role(data)
    yield from _network(data)
    yield from _capacity(data)
    yield from _image(data)
    yield from _budget(data)


def _sagemaker_program(data: Data) -> Iterator[Finding]:
    """headrace's agent starts the programs, so it must know them."""
    if mapping(data, "request_extras", "AlgorithmSpecification").get("AlgorithmName"):
        path = ("request_extras", "AlgorithmSpecification", "AlgorithmName")
        message = "names an algorithm of AWS, whose container cannot start headrace"
        yield Finding(path, message, hint="give image_uri, and what it runs: source_dir and entry_point, or a command")
    elif not data.get("command") and not any(entry_points(data)):
        hint = "name it: source_dir and entry_point, or `command: [train]` for what the image itself starts"
        yield Finding(("entry_point",), "is required: headrace starts the program in the container", hint=hint)
    for _, text in entry_points(data):
        if not data.get("source_dir") and not path_types.is_file(text):
            message = f"is required: {text!r} is a module or a package in it"
            yield Finding(("source_dir",), message, hint="name the folder that holds the code")
            return


def _channels(data: Data) -> Iterator[Finding]:
    """One channel carries headrace, and the record needs a place."""
    extras = mapping(data, "request_extras").get("InputDataConfig")
    others = [each for each in as_list(extras) if isinstance(each, dict) and each.get("DataSource")]
    names = {*mapping(data, "inputs"), *(each.get("ChannelName") for each in others)}
    if len(names) >= MOST_CHANNELS:
        message = (
            f"must have at most {MOST_CHANNELS - 1} channels: SageMaker takes {MOST_CHANNELS}, one carries headrace"
        )
        yield Finding(("inputs",), message, f"{len(names)}")
    for key in ("output_path", "checkpoint_s3_uri", "code_location"):
        place = data.get(key)
        if isinstance(place, str):
            yield from _place((key,), place, _own_store(data))
    record = mapping(data, "record").get("uri")
    if isinstance(record, str):
        yield from _place(("record", "uri"), record, _own_store(data))


def _own_store(data: Data) -> bool:
    """Tells whether the job names a store of its own in place of AWS's, such as that of `headrace serve`."""
    options = mapping(data, *OPTIONS)
    return bool(options.get("endpoint_url") or mapping(options, "endpoint_urls").get("s3"))


def _place(path: Path, place: str, own: bool) -> Iterator[Finding]:
    """Hosts write to a bucket; the one of this machine is a bucket of `headrace serve` only."""
    bucket = path_types.bucket_of(place)
    if not path_types.is_remote(place):
        hint = "the hosts cannot write to this machine"
        yield Finding(path, "must be an s3:// URI with the name of a bucket", show(place), hint)
    elif not place.startswith("s3://"):
        yield Finding(path, "must be an s3:// URI", show(place), "write s3://bucket/prefix")
    elif bucket == path_types.LOCAL_BUCKET and not own:
        message = f"names the bucket {bucket}, which is a folder of this machine, not a bucket of AWS"
        hint = "name a bucket of your account; for `headrace serve`, give engines.sagemaker.endpoint_url"
        yield Finding(path, message, show(place), hint)
    elif why := why_no_bucket(bucket):
        yield Finding(path, f"must name a bucket: the name {why}", show(place), "write s3://bucket/prefix")


def _role(data: Data) -> Iterator[Finding]:
    """The service takes a role by its ARN only."""
    role = data.get("role")
    if isinstance(role, str) and not _ROLE.fullmatch(role):
        account = "arn:aws:iam::123456789012:role/training"
        named = f"; `aws iam get-role --role-name {role} --query Role.Arn` prints it" if _NAME.fullmatch(role) else ""
        yield Finding(("role",), "must be the ARN of a role", show(role), f"e.g. {account}{named}")


def _network(data: Data) -> Iterator[Finding]:
    """Hosts write the record of the run to S3 while it grows."""
    if data.get("enable_network_isolation") is True:
        message = "keeps hosts from S3, where they write the record of the run"
        hint = "leave it out; in subnets with an endpoint for S3 and no other way out they reach nothing else"
        yield Finding(("enable_network_isolation",), message, "True", hint)


def _capacity(data: Data) -> Iterator[Finding]:
    """Spare capacity, warm pools and reserved capacity exclude each other."""
    spot, warm = data.get("use_spot_instances") is True, data.get("keep_alive_period_in_seconds")
    if spot and mapping(data, "stopping_condition").get("max_wait") is None:
        hint = "write stopping_condition: {max_wait: seconds}: waiting and running together"
        yield Finding(("stopping_condition", "max_wait"), "is required with use_spot_instances", hint=hint)
    if not spot and mapping(data, "stopping_condition").get("max_wait") is not None:
        message = "is possible with use_spot_instances only"
        hint = "max_pending_time limits how long a job waits for instances"
        yield Finding(("stopping_condition", "max_wait"), message, hint=hint)
    if warm and spot:
        yield Finding(
            ("keep_alive_period_in_seconds",), "warm pools cannot be used with use_spot_instances", show(warm)
        )
    if warm and data.get("instance_groups"):
        message = "warm pools cannot be used with instance groups"
        hint = "AWS says so: leave it out, or give instance_type and instance_count"
        yield Finding(("keep_alive_period_in_seconds",), message, show(warm), hint)
    if data.get("training_plan") and spot:
        yield Finding(("training_plan",), "reserved capacity cannot be used with use_spot_instances")


def _image(data: Data) -> Iterator[Finding]:
    """There is an image, or a framework and its version."""
    framework = mapping(data, *OPTIONS).get("framework")
    if data.get("image_uri"):
        return
    if framework is None:
        hint = "give image_uri; or engines.sagemaker.framework (pytorch, tensorflow) with framework_version"
        yield Finding(("image_uri",), "is required: SageMaker runs containers", hint=hint)
    elif data.get("framework_version") is None:
        hint = "e.g. framework_version: '2.6'; or give image_uri"
        yield Finding(("framework_version",), f"is required to find the image of {framework}", hint=hint)


def _budget(data: Data) -> Iterator[Finding]:
    """The prices of a budget are those of the region where the job runs."""
    region, own = mapping(data, "budget").get("region"), mapping(data, *OPTIONS).get("region")
    if isinstance(region, str) and region != DEFAULT_REGION and isinstance(own, str) and region != own:
        message = f"must be the region where the job runs, {own}"
        yield Finding(("budget", "region"), message, show(region), "leave it out: it is taken from there")
