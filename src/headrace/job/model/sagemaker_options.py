"""Options of the SageMaker engine: where jobs are created, with which image, what follows when there is no capacity.

What the service's own request has is not repeated here: `role`, `output_path`, `image_uri`, `subnets`, `tags` and the
others are keys of the job.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from headrace.catalog.prices import is_region
from headrace.job.model import field_types
from headrace.job.model.field_types import AsList, AsMapping, line, matching, number, one_line, one_of, text_of, whole
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import broken

_LETTERS = ("must be letters, digits, blanks and _.:/=+-@", r"[\w .:/=+\-@]*")
Version = Annotated[str, line(1, 64)]
KmsKey = Annotated[str, matching("must be a key of KMS: its id, ARN or alias", "[a-zA-Z0-9:/_-]*", (0, 2048))]
NetworkId = Annotated[str, matching("must be an id of letters, digits and hyphens", "[-0-9a-zA-Z]+", (1, 32))]
_PLAN_ARN = r"arn:aws[a-z\-]*:sagemaker:[a-z0-9\-]*:[0-9]{12}:training-plan/.*"
TrainingPlan = Annotated[str, matching("must be the ARN of a training plan", _PLAN_ARN, (50, 2048))]


def with_group(value: object) -> str:
    """Returns a regular expression of 1 to 500 characters that has a group."""
    text = one_line(value, 1, 500)
    try:
        compiled = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise broken(
            f"must be a regular expression: {error}", hint=r"write \( for a bracket, \. for a dot, \* for a star"
        ) from None
    if not compiled.groups:
        raise broken("must have a group, which is the figure", hint="put it in brackets, e.g. loss=([0-9.]+)")
    return text


class Tag(Part):
    """A label of the training job.

    Attributes:
        key: 1 to 128 characters, different from the other tags'. Also spelt `Key`.
        value: at most 256 characters. Also spelt `Value`.
    """

    key: Annotated[str, matching(*_LETTERS, (1, 128))] = Field(validation_alias=AliasChoices("key", "Key"))
    value: Annotated[str, matching(*_LETTERS, (0, 256))] = Field(validation_alias=AliasChoices("value", "Value"))


class MetricDefinition(Part):
    """A figure that is found in the logs.

    Attributes:
        name: 1 to 255 characters. Also spelt `Name`.
        regex: regular expression whose first group is the figure, 1 to 500 characters.
            Also spelt `Regex`.
    """

    name: Annotated[str, line(1, 255)] = Field(validation_alias=AliasChoices("name", "Name"))
    regex: Annotated[str, BeforeValidator(with_group)] = Field(validation_alias=AliasChoices("regex", "Regex"))


LONGEST_STOP = 110.0
"""Seconds that a stop may take: the service kills a container 120 s after SIGTERM."""

AUTO_WHEELS, NO_WHEELS = "auto", "none"

_URL = re.compile(r"https?://[^\s/?#]+[^\s?#]*")


def _region(value: object) -> str:
    text = text_of(value)
    if not is_region(text):
        raise broken("must be a region of AWS, such as 'eu-west-1'")
    return text


def _url(value: object) -> str:
    text = text_of(value)
    if not _URL.fullmatch(text):
        raise broken("must be an address such as 'http://127.0.0.1:7080'")
    return text.rstrip("/")


def _some(value: object) -> object:
    if isinstance(value, (list, tuple)) and not value:
        raise broken("must name at least one reason", seen="[]", hint="leave it out for the usual ones")
    return value


Url = Annotated[str, BeforeValidator(_url)]
Profile = Annotated[str, line(1, 256)]
ServiceName = Annotated[Literal["sagemaker", "s3", "logs", "cloudwatch", "sts"], one_of]
Reason = Annotated[
    Literal["CapacityError", "InsufficientCapacityError", "ResourceLimitExceeded", "InternalServerError"], one_of
]
_KILLED = "SageMaker kills a container 120 s after it was asked to stop"
StopGrace = Annotated[
    float, number(f"must be 0 to {LONGEST_STOP:g} seconds", lambda value: 0 <= value <= LONGEST_STOP, _KILLED)
]


class CapacityRetry(Part):
    """What happens when the service has no instances for the job: it is submitted again after a pause.

    Attributes:
        attempts: how often the job is submitted again, 1 to 100.
        on: failures of the service, in its words; by default ``CapacityError`` and ``ResourceLimitExceeded``.
        delay: seconds before it is submitted again, 0 to 3,600; they double each time, to 600 at most.
    """

    attempts: Annotated[int, whole(1, 100)]
    on: Annotated[tuple[Reason, ...], AsList, BeforeValidator(_some)] = ("CapacityError", "ResourceLimitExceeded")
    delay: Annotated[float, number("must be 0 to 3600 seconds", lambda value: 0 <= value <= 3600)] = 10.0


class SageMakerOptions(Part):
    """How Amazon SageMaker plays the hosts; one instance is one host.

    Attributes:
        region: where the job runs; by default ``AWS_REGION``, else the profile's.
        profile: profile of the AWS configuration; by default the environment's.
        endpoint_url: address of all services in place of AWS's, e.g. that of `headrace serve`.
        endpoint_urls: addresses of single services: ``sagemaker``, ``s3``, ``logs``, ``cloudwatch``, ``sts``.
        naming: name of the training job: ``run``: the run's id, new each time; ``job``: the job's name, so that the
            service has it once.
        framework: whose image of AWS is taken, by `framework_version` and perhaps `py_version`, when there is no
            `image_uri`.
        python: interpreter in the image.
        wheels: packages that the image's Python may lack: ``auto`` downloads them once, ``none`` sends none, anything
            else is a folder with wheels.
        retry: whether the job is submitted again when there is no capacity.
        check_storage: whether buckets are looked at before the job is submitted.
        start_timeout: seconds within which the agents of all hosts must have started once the first has.
        stop_grace: seconds between SIGTERM and SIGKILL, 0 to 110: SageMaker kills a container 120 s after it asks it to
            stop.
    """

    region: Annotated[str, BeforeValidator(_region)] | None = None
    profile: Profile | None = None
    endpoint_url: Url | None = None
    endpoint_urls: Annotated[dict[ServiceName, Url], AsMapping] = Field(default_factory=dict)
    naming: Annotated[Literal["run", "job"], one_of] = "run"
    framework: Annotated[Literal["pytorch", "tensorflow"], one_of] | None = None
    python: Profile = "python3"
    wheels: Profile = AUTO_WHEELS
    retry: CapacityRetry | None = None
    check_storage: field_types.Flag = True
    start_timeout: field_types.Seconds = 900.0
    stop_grace: StopGrace = 90.0

    def endpoint_of(self, service: str) -> str | None:
        """Returns the address that a service is asked at; None for AWS's own."""
        return next((url for name, url in self.endpoint_urls.items() if name == service), self.endpoint_url)
