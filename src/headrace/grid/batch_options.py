"""What a user says about AWS Batch: part `batch` of the grid's file. `headrace.grid.batch` uses it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from headrace.catalog.aws_facts import why_no_bucket
from headrace.errors import JobInvalid
from headrace.job.model.field_types import AsMapping, Region, Seconds, one_line, one_of, text_of, whole
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import JobSource, broken, examine

BASE = "public.ecr.aws/docker/library/python:3.12-slim"
"""Docker's own image of Python, from AWS's registry, which needs no login."""

_PLACE = re.compile(r"s3://(?P<bucket>[^/]+)(/[^*?$\s]*)?")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]{1,512}", re.ASCII)


def _place(value: object) -> str:
    uri = text_of(value)
    match = _PLACE.fullmatch(uri)
    if match is None or why_no_bucket(match["bucket"]):
        raise broken("must be a bucket or a prefix in one", hint="such as s3://my-bucket/grids")
    return uri.rstrip("/")


def _account(value: object) -> str:
    number = text_of(value).zfill(12) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(number, str) or not re.fullmatch("[0-9]{12}", number):
        raise broken("must be the number of an account: 12 digits", hint="`aws sts get-caller-identity` shows it")
    return number


def _role(value: object) -> str:
    arn = text_of(value)
    if not _ROLE.fullmatch(arn):
        raise broken("must be the ARN of a role", hint="such as arn:aws:iam::123456789012:role/name")
    return arn


Name = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 512))]
BucketPlace = Annotated[str, BeforeValidator(_place)]
Account = Annotated[str, BeforeValidator(_account)]
RoleArn = Annotated[str, BeforeValidator(_role)]
Platform = Annotated[Literal["fargate", "ec2"], one_of]


class BatchOptions(Part):
    """See the module.

    Attributes:
        queue: job queue, by name or ARN.
        region: of the queue and of the image; None for that of the environment or the profile.
        account: number of the account; None for that of the jobs' role.
        bundle: ``s3://`` prefix below which the lines, their jobs and their code are stored for the children.
        image: URI of the image of the children; None for the one that the exported definition makes.
        base: image with Python from which the exported definition makes it.
        job_role: ARN of the role of the children; None for the one that is exported.
        execution_role: ARN of the role that pulls the image and writes logs; None for the one that is exported.
        platform: what the queue's compute environment is made of.
        vcpus: of a child.
        memory: of a child, in MiB.
        public_ip: whether children on Fargate have a public address, as they need where no NAT leads to AWS.
        attempts: how often Batch starts a child at most.
        timeout: seconds after which Batch ends an attempt; None for no limit: every training job has its own.
        environment: further variables of the children.
    """

    queue: Name | None = None
    region: Region | None = None
    account: Account | None = None
    bundle: BucketPlace | None = None
    image: Name | None = None
    base: Name = BASE
    job_role: RoleArn | None = None
    execution_role: RoleArn | None = None
    platform: Platform = "fargate"
    vcpus: Annotated[int, BeforeValidator(whole(1, 16))] = 1
    memory: Annotated[int, BeforeValidator(whole(512, 122_880))] = 2048
    public_ip: bool = True
    attempts: Annotated[int, BeforeValidator(whole(1, 10))] = 3
    timeout: Seconds | None = None
    environment: Annotated[dict[str, Name], AsMapping] = Field(default_factory=dict)

    def changed(self, given: Mapping[str, object]) -> BatchOptions:
        """Returns the same with other values.

        Args:
            given: by field; None leaves what is there.

        Raises:
            JobInvalid: a value that cannot be.
        """
        data = {
            **self.model_dump(exclude_unset=True),
            **{name: each for name, each in given.items() if each is not None},
        }
        wrong = examine(BatchOptions, data)
        if wrong:
            raise JobInvalid(JobSource().problems(wrong))
        return BatchOptions.model_validate(data)
