"""Options of the SageMaker engine: where jobs are created, with which image, what follows when there is no capacity.

What the service's own request has is not repeated here: `role`, `output_path`, `image_uri`, `subnets`, `tags` and the
others are keys of the job.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from headrace.job.model import field_types, path_types, platform_options
from headrace.job.model.field_types import AsList, AsMapping, one_line, one_of, text_of, whole
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import broken, show
from headrace.sagemaker_parameters import HOMOGENEOUS

LONGEST_STOP = 110.0
"""Seconds that a stop may take: the service kills a container 120 s after SIGTERM."""

AUTO_WHEELS, NO_WHEELS = "auto", "none"

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]{1,2}")
_URL = re.compile(r"https?://[^\s/?#]+[^\s?#]*")


def _region(value: object) -> str:
    text = text_of(value)
    if not _REGION.fullmatch(text):
        raise broken("must be a region of AWS, such as 'eu-west-1'")
    return text


def _url(value: object) -> str:
    text = text_of(value)
    if not _URL.fullmatch(text):
        raise broken("must be an address such as 'http://127.0.0.1:7080'")
    return text.rstrip("/")


def _stop_grace(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LONGEST_STOP:
        hint = "SageMaker kills a container 120 s after it was asked to stop"
        raise broken(f"must be 0 to {LONGEST_STOP:g} seconds", hint=hint)
    return float(value)


def _delay(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 3600:
        raise broken("must be 0 to 3600 seconds")
    return float(value)


def _types_by_group(value: object) -> object:
    """A list is for all hosts of a job without groups."""
    return {HOMOGENEOUS: value} if isinstance(value, (list, tuple)) else value


def _by_region(value: object) -> object:
    """A list of regions is short for regions in which nothing of the job is another."""
    if isinstance(value, (list, tuple)):
        names = [text_of(name) for name in value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise broken("names a region twice", seen=show(twice))
        return {name: {} for name in names}
    return value


def _some(value: object) -> object:
    if isinstance(value, (list, tuple)) and not value:
        raise broken("must name at least one reason", seen="[]", hint="leave it out for the usual ones")
    return value


AwsRegion = Annotated[str, BeforeValidator(_region)]
Url = Annotated[str, BeforeValidator(_url)]
Profile = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 256))]
FrameworkName = Annotated[Literal["pytorch", "tensorflow"], one_of]
Naming = Annotated[Literal["run", "job"], one_of]
ServiceName = Annotated[Literal["sagemaker", "s3", "logs", "cloudwatch", "sts"], one_of]
Reason = Annotated[
    Literal["CapacityError", "InsufficientCapacityError", "ResourceLimitExceeded", "InternalServerError"], one_of
]
InstanceTypes = Annotated[tuple[field_types.InstanceType, ...], AsList]
StopGrace = Annotated[float, BeforeValidator(_stop_grace)]
Delay = Annotated[float, BeforeValidator(_delay)]
Resubmissions = Annotated[int, BeforeValidator(whole(1, 100))]


class Elsewhere(Part):
    """What of a job is another in another region: buckets, networks, keys and images belong to one region each.

    Attributes:
        inputs: channels whose data is elsewhere there: ``s3://`` URI by name.
        output_path: where model and output go.
        checkpoint_s3_uri: where checkpoints are kept.
        code_location: where code and headrace are uploaded.
        image_uri: container image; AWS's framework images are found without it.
        subnets: subnets of the instances.
        security_group_ids: security groups of the instances.
        volume_kms_key: key of the volumes.
        output_kms_key: key of the output.
        endpoint_url: address that all services are asked at there, in place of AWS's.
        endpoint_urls: the same for single services.
    """

    inputs: Annotated[dict[field_types.ChannelName, path_types.ChannelPath], AsMapping] = Field(default_factory=dict)
    output_path: path_types.OutputPath | None = None
    checkpoint_s3_uri: path_types.OutputPath | None = None
    code_location: path_types.OutputPath | None = None
    image_uri: platform_options.Image | None = None
    subnets: platform_options.Subnets = ()
    security_group_ids: platform_options.SecurityGroups = ()
    volume_kms_key: platform_options.KmsKey | None = None
    output_kms_key: platform_options.KmsKey | None = None
    endpoint_url: Url | None = None
    endpoint_urls: Annotated[dict[ServiceName, Url], AsMapping] = Field(default_factory=dict)


class CapacityRetry(Part):
    """What happens when the service has no instances for the job: it is submitted again, perhaps with others.

    The job's own instances and region come first. Then every row of `instance_types` in the first region, then all of
    these in the next region. After the last one it begins anew.

    Attributes:
        attempts: how often the job is submitted again, 1 to 100.
        on: after which failures of the service; the words are the service's.
        delay: seconds to wait before the same instances are tried again in the same region; it doubles each time, to
            ten minutes at most. Another type or region is tried at once.
        instance_types: other instance types of each group, in order of preference; a list for a job without groups.
        regions: other regions, in order of preference: a list, or what of the job is another there.
    """

    attempts: Resubmissions
    on: Annotated[tuple[Reason, ...], AsList, BeforeValidator(_some)] = ("CapacityError", "ResourceLimitExceeded")
    delay: Delay = 10.0
    instance_types: Annotated[
        dict[field_types.GroupName, InstanceTypes], AsMapping, BeforeValidator(_types_by_group)
    ] = Field(default_factory=dict)
    regions: Annotated[dict[AwsRegion, Elsewhere], AsMapping, BeforeValidator(_by_region)] = Field(default_factory=dict)


class SageMakerOptions(Part):
    """How Amazon SageMaker plays the hosts; one instance is one host.

    Attributes:
        region: where the job runs; by default that of the environment or the profile.
        profile: profile of the AWS configuration whose credentials are used.
        endpoint_url: address that all services are asked at, in place of AWS's.
        endpoint_urls: the same for single services.
        naming: what the training job is called: after the run, so that each has a name of its own; or after the job, so
            that the service has it once, whoever submits it and how often.
        framework: whose image of AWS is taken, with `framework_version` and `py_version`, when there is no `image_uri`.
        python: interpreter in the image.
        wheels: what the image's Python may lack travels with the job: `auto` downloads it once, `none` is for an image
            that lacks nothing, and anything else is a folder of this machine with wheels.
        retry: what happens when there is no capacity.
        check_storage: whether buckets are looked at before the job is submitted, from where it is submitted.
        start_timeout: seconds within which the agents of all hosts must have started once the first has.
        stop_grace: seconds between SIGTERM and SIGKILL, at most 110.
    """

    region: AwsRegion | None = None
    profile: Profile | None = None
    endpoint_url: Url | None = None
    endpoint_urls: Annotated[dict[ServiceName, Url], AsMapping] = Field(default_factory=dict)
    naming: Naming = "run"
    framework: FrameworkName | None = None
    python: Profile = "python3"
    wheels: Profile = AUTO_WHEELS
    retry: CapacityRetry | None = None
    check_storage: field_types.Flag = True
    start_timeout: field_types.Seconds = 900.0
    stop_grace: StopGrace = 90.0

    def endpoint_of(self, service: str) -> str | None:
        """Returns the address that a service is asked at; None for AWS's own."""
        return next((url for name, url in self.endpoint_urls.items() if name == service), self.endpoint_url)
