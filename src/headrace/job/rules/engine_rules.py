"""What an engine refuses of a job that is valid: rules of one place, not of jobs.

The engines whose hosts are the user's own run more than SageMaker does (a distribution over several groups, several
distributions) and less (no program that an image brings, no libraries of the service).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import BaseModel

from headrace.catalog import instance_types
from headrace.job.model import path_types
from headrace.job.problems.finding import Finding, Path, show
from headrace.job.problems.pydantic_errors import examine
from headrace.job.rules.raw_access import (
    Data,
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
