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

from headrace.catalog.aws_facts import ROLE_ARN, why_no_bucket
from headrace.catalog.prices import DEFAULT_REGION
from headrace.job.model import path_types
from headrace.job.model.job_topology import Structure, each_group_alone, entry_points, module_to_run
from headrace.job.problems.finding import Finding, Path, examine, field_text, show, value_at

_ALGORITHM = ("AlgorithmSpecification", "AlgorithmName")
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


def options_rules(engine: str, options: type[BaseModel] | None, job: Structure) -> Iterator[Finding]:
    """Yields what is wrong with the options of an engine that headrace does not bring.

    Args:
        engine: its name.
        options: their model; None when it has none.
    """
    for finding in examine(options, job.engine_options(engine)) if options is not None else ():
        yield replace(finding, path=("engines", engine, *finding.path))


def own_hosts(job: Structure, engine_name: str) -> Iterator[Finding]:
    """What no engine runs whose hosts are the user's own."""
    engine = f"the {engine_name} engine"
    yield from _program(
        job, engine, "which {} does not start" if engine_name == "kubernetes" else "and {} runs no images"
    )
    for index, world in enumerate(job.distribution):
        for way in set(world.ways) & TOOLKIT_ONLY:
            yield Finding(("distribution", index, *way.split(".")), f"{way} runs on SageMaker only", hint=_INSTEAD[way])
    yield from _other_sources(job, engine)
    if job.record and path_types.bucket_of(job.record.uri) == path_types.LOCAL_BUCKET:
        hint = f"{path_types.LOCAL_BUCKET} is a folder of this machine"
        yield Finding(("record", "uri"), "must be in a bucket of an object store", show(job.record.uri), hint)
    if job.encrypt_inter_container_traffic and job.tf_data:
        message = "tf.data.service knows no TLS, so its connections would be in clear"
        hint = "leave encrypt_inter_container_traffic out, or use data_service: {feed: {enabled: true}}"
        yield Finding(("encrypt_inter_container_traffic",), message, hint=hint)
    named: dict[Path, str | None] = {
        ("inputs", name, "s3_data"): channel.s3_data for name, channel in job.inputs.items()
    }
    named |= {("output_path",): job.output_path, ("checkpoint_s3_uri",): job.checkpoint_s3_uri}
    for path, place in named.items():
        if place and place.startswith("https://"):
            yield Finding(path, f"{engine} reads and writes s3:// URIs", show(place), _s3_form(place))


def _program(job: Structure, engine: str, unfit: str) -> Iterator[Finding]:
    groups = job.instance_groups
    if job.entry_point or job.command or (groups and all(group.entry_point for group in groups)):
        if not (job.command or job.source_dir) and module_to_run(job):
            message = f"is required by {engine}: it cannot take the code from an image"
            yield Finding(("source_dir",), message, hint="name the folder that holds the code")
        return
    hint = "name the code and what it runs: source_dir and entry_point, or a command (container_entry_point)"
    if job.image_uri:
        message = f"the image brings the program, {unfit.format(engine)}"
        yield Finding(("image_uri",), message, show(job.image_uri), hint)
    elif value_at(job.request_extras, _ALGORITHM):
        message = f"the algorithm is an image of AWS, {unfit.format(engine)}"
        yield Finding(("request_extras", *_ALGORITHM), message, hint=hint)
    else:
        yield Finding(("entry_point",), f"is required by {engine}", hint=hint)


def _other_sources(job: Structure, engine: str) -> Iterator[Finding]:
    """Channels of a request whose data is in a file system or another source."""
    for index, name, source in _request_channels(job):
        if name is not None and name not in job.inputs:
            kind = next(iter(source), "another source")
            message = f"the channel {name!r} has its data in {kind}, which {engine} cannot reach"
            hint = f"have the data in a folder and name it: --set inputs.{name}.path=FOLDER"
            yield Finding(("request_extras", "InputDataConfig", index), message, hint=hint)


def _request_channels(job: Structure) -> Iterator[tuple[int, str | None, Mapping[str, object]]]:
    """Yields place, name and source of the channels that are kept as a request has them."""
    channels = job.request_extras.get("InputDataConfig")
    for index, channel in enumerate(channels if isinstance(channels, list) else ()):
        name, source = value_at(channel, ("ChannelName",)), value_at(channel, ("DataSource",))
        yield index, name if isinstance(name, str) else None, source if isinstance(source, Mapping) else {}


def _s3_form(uri: str) -> str:
    """Says how an S3 address in its https form is written with s3://, where that is plain."""
    host, _, rest = uri.removeprefix("https://").partition("/")
    first, _, domain = host.partition(".")
    if first == "s3" or first.startswith("s3-"):
        return f"write s3://{rest}"
    return f"write s3://{first}/{rest}" if domain.startswith(("s3.", "s3-")) else "write s3://bucket/prefix"


def service_rules(job: Structure) -> Iterator[Finding]:
    """What SageMaker refuses of a request."""
    started = [(("distribution", index), world) for index, world in enumerate(job.distribution) if world.ways]
    for path, world in [] if each_group_alone(job) else started[1:]:
        message, hint = "SageMaker starts one distribution in a job", "keep one; the local engine runs several"
        yield Finding(path, message, world.ways[0], hint, code="ValidationException")
    for path, world in started:
        names = world.instance_groups or ()
        if len(names) > 1:
            message = "Distribution should only contain one instance group name !"
            hint = "A distributed training strategy can be applied only to one instance group; here it can be several"
            yield Finding((*path, "instance_groups"), message, show([*names]), hint, code="ValueError")
        for name in names or job.hosts:
            trainium = job.group(name).instance_type.startswith("ml.trn")
            if trainium and world.ways[0] != "torch_distributed":
                message = f"Provided distribution strategy {world.ways[0]} is not supported for Trainium instances."
                yield Finding(path, message, name, "use torch_distributed", code="ValueError")


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


def idle(job: Structure, reasons: Mapping[str, str]) -> Iterator[Unused]:
    """Yields what of a job has no effect, in the order of the job file's keys.

    Args:
        job: the job.
        reasons: keys that have none in an engine, in sections by dots, with the reason.
    """
    yield from unused_keys(job, reasons)
    for path in _members(job):
        yield Unused(field_text(("request_extras", *path)), _MEMBERS.get(str(path[0]), _SERVICE))


def unused_keys(job: Structure, reasons: Mapping[str, str]) -> Iterator[Unused]:
    """Yields those of `reasons` that a job has. See `idle`."""
    for name, why in reasons.items():
        value: object = job
        for key in name.split("."):
            value = getattr(value, key, None)
        if value not in (None, (), {}, "", False):
            yield Unused(name, why)


def _members(job: Structure) -> Iterator[Path]:
    """Yields the members of a request that the job keeps and that have no effect here; of some, each value inside.

    The texts of hyperparameters, the arguments of a command and the order of channels are not among them: they only
    keep how the request wrote what the job has.
    """
    for name, member in job.request_extras.items():
        if name == "InputDataConfig" and isinstance(member, list):
            for index, channel in enumerate(member):
                if isinstance(channel, Mapping) and channel.keys() - {"ChannelName"}:
                    label = channel.get("ChannelName")
                    yield (name, label if isinstance(label, str) else index)
        elif name == "HyperParameters":
            continue
        elif name in ("AlgorithmSpecification", "ResourceConfig", "OutputDataConfig") and isinstance(member, Mapping):
            yield from ((name, key) for key in member if key != "ContainerArguments" or not job.command)
        else:
            yield (name,)


MOST_CHANNELS = 20
OPTIONS = ("engines", "sagemaker")
_NAME = re.compile(r"[A-Za-z0-9_+=,.@-]{1,64}")  # of a role


def sagemaker_rules(job: Structure) -> Iterator[Finding]:
    """Yields what the engine refuses of a job."""
    yield from _sagemaker_program(job)
    yield from _channels(job)
    yield from _capacity(job)
    if job.role and not ROLE_ARN.fullmatch(job.role):  # the service takes a role by its ARN only
        account = "arn:aws:iam::123456789012:role/training"
        asks = f"; `aws iam get-role --role-name {job.role} --query Role.Arn` prints it"
        hint = f"e.g. {account}{asks if _NAME.fullmatch(job.role) else ''}"
        yield Finding(("role",), "must be the ARN of a role", show(job.role), hint)
    if job.enable_network_isolation:
        message = "keeps hosts from S3, where they write the record of the run"
        hint = "leave it out; in subnets with an endpoint for S3 and no other way out they reach nothing else"
        yield Finding(("enable_network_isolation",), message, "True", hint)
    if not job.image_uri and job.sagemaker.framework is None:
        hint = "give image_uri; or engines.sagemaker.framework (pytorch, tensorflow) with framework_version"
        yield Finding(("image_uri",), "is required: SageMaker runs containers", hint=hint)
    elif not job.image_uri and job.framework_version is None:
        hint = "e.g. framework_version: '2.6'; or give image_uri"
        message = f"is required to find the image of {job.sagemaker.framework}"
        yield Finding(("framework_version",), message, hint=hint)
    own = job.sagemaker.region
    if job.budget and own and job.budget.region not in (DEFAULT_REGION, own):
        message = f"must be the region where the job runs, {own}"
        yield Finding(("budget", "region"), message, show(job.budget.region), "leave it out: it is taken from there")


def _sagemaker_program(job: Structure) -> Iterator[Finding]:
    """headrace's agent starts the programs, so it must know them."""
    if value_at(job.request_extras, _ALGORITHM):
        message = "names an algorithm of AWS, whose container cannot start headrace"
        hint = "give image_uri, and what it runs: source_dir and entry_point, or a command"
        yield Finding(("request_extras", *_ALGORITHM), message, hint=hint)
    elif not job.command and not any(entry_points(job)):
        hint = "name it: source_dir and entry_point, or `command: [train]` for what the image itself starts"
        yield Finding(("entry_point",), "is required: headrace starts the program in the container", hint=hint)
    if not job.source_dir and (text := module_to_run(job)):
        message = f"is required: {text!r} is a module or a package in it"
        yield Finding(("source_dir",), message, hint="name the folder that holds the code")


def _channels(job: Structure) -> Iterator[Finding]:
    """One channel carries headrace, and the record needs a place."""
    names = {*job.inputs, *(name for _, name, source in _request_channels(job) if source)}
    if len(names) >= MOST_CHANNELS:
        message = (
            f"must have at most {MOST_CHANNELS - 1} channels: SageMaker takes {MOST_CHANNELS}, one carries headrace"
        )
        yield Finding(("inputs",), message, f"{len(names)}")
    for key in ("output_path", "checkpoint_s3_uri", "code_location"):
        if place := getattr(job, key):
            yield from _place((key,), place, job)
    if job.record:
        yield from _place(("record", "uri"), job.record.uri, job)


def _place(path: Path, place: str, job: Structure) -> Iterator[Finding]:
    """Hosts write to a bucket; the one of this machine is a bucket of `headrace serve` only."""
    bucket = path_types.bucket_of(place)
    if not path_types.is_remote(place):
        hint = "the hosts cannot write to this machine"
        yield Finding(path, "must be an s3:// URI with the name of a bucket", show(place), hint)
    elif not place.startswith("s3://"):
        yield Finding(path, "must be an s3:// URI", show(place), "write s3://bucket/prefix")
    elif bucket == path_types.LOCAL_BUCKET and not job.sagemaker.endpoint_of("s3"):
        message = f"names the bucket {bucket}, which is a folder of this machine, not a bucket of AWS"
        hint = "name a bucket of your account; for `headrace serve`, give engines.sagemaker.endpoint_url"
        yield Finding(path, message, show(place), hint)
    elif why := why_no_bucket(bucket):
        yield Finding(path, f"must name a bucket: the name {why}", show(place), "write s3://bucket/prefix")


def _capacity(job: Structure) -> Iterator[Finding]:
    """Spare capacity, warm pools and reserved capacity exclude each other."""
    spot, warm, longest = job.use_spot_instances, job.keep_alive_period_in_seconds, job.stopping_condition.max_wait
    if spot and longest is None:
        hint = "write stopping_condition: {max_wait: seconds}: waiting and running together"
        yield Finding(("stopping_condition", "max_wait"), "is required with use_spot_instances", hint=hint)
    if not spot and longest is not None:
        hint = "max_pending_time limits how long a job waits for instances"
        yield Finding(("stopping_condition", "max_wait"), "is possible with use_spot_instances only", hint=hint)
    if warm and spot:
        message = "warm pools cannot be used with use_spot_instances"
        yield Finding(("keep_alive_period_in_seconds",), message, show(warm))
    if warm and job.instance_groups:
        message = "warm pools cannot be used with instance groups"
        hint = "AWS says so: leave it out, or give instance_type and instance_count"
        yield Finding(("keep_alive_period_in_seconds",), message, show(warm), hint)
    if job.training_plan and spot:
        yield Finding(("training_plan",), "reserved capacity cannot be used with use_spot_instances")
