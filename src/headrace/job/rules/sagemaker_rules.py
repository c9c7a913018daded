"""What the SageMaker engine refuses of a job beyond what the service's own request does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headrace.catalog.aws_facts import why_no_bucket
from headrace.catalog.prices import DEFAULT_REGION
from headrace.job.model import path_types
from headrace.job.problems.finding import Finding, Path, show
from headrace.job.rules.raw_access import Data, as_list, entry_points, mapping

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
