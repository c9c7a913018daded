"""The two roles of the children, as a stack of CloudFormation: what this grid needs, and no more. Pure.

The *job role* is what a child acts under: it creates, looks at and stops training jobs whose names begin with the
grid's, gives them their role, and stages and reads their objects. The *execution role* pulls the image and writes the
child's log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from headrace.catalog import aws_facts as actions
from headrace.catalog.aws_facts import partition_of
from headrace.cloud.stack_template import KIND_TAG, Document, StackTemplate
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob
from headrace.grid.batch.batch_names import BatchNames
from headrace.grid.batch.grid_bundle import FrozenCopy
from headrace.grid.batch_options import BatchOptions

KIND = "grid-roles"
_TAKES = "ecs-tasks.amazonaws.com"
"""Who takes both roles: containers of Batch are tasks of ECS."""
_LOG_GROUP = "/aws/batch/job"
_WRITE_LOG = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents")
_COPY = (*actions.READ_OBJECTS, *actions.WRITE_OBJECTS, "s3:ListMultipartUploadParts")
_MOST_RESOURCES = 12
"""Of one statement: all policies of a role have 10,240 characters together."""
_ECR = re.compile(r"(?P<account>[0-9]{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<name>[^:@]+)")


def roles_stack(
    names: BatchNames, options: BatchOptions, planned: Sequence[SageMakerJob], copies: Sequence[FrozenCopy] = ()
) -> StackTemplate | None:
    """Returns the stack of the roles that the user does not name; None when he names both.

    Args:
        names: of the grid.
        options: what the user says.
        planned: the lines' jobs.
        copies: that a job makes before them.
    """
    described = f"grid {names.grid} on AWS Batch"
    resources: Document = {}
    if options.job_role is None:
        statements = job_statements(names, planned, copies)
        resources["JobRole"] = _role(names, names.job_role, f"Children of the {described}", statements)
    if options.execution_role is None:
        statements = execution_statements(names)
        resources["ExecutionRole"] = _role(names, names.execution_role, f"Starts the {described}", statements)
    if not resources:
        return None
    document: Document = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Roles of the {described}",
        "Resources": resources,
        "Outputs": {
            name: {"Description": f"{name} of the job definition", "Value": {"Fn::GetAtt": [name, "Arn"]}}
            for name in resources
        },
    }
    return StackTemplate(KIND, document, capabilities=("CAPABILITY_NAMED_IAM",))


def job_statements(
    names: BatchNames, planned: Sequence[SageMakerJob], copies: Sequence[FrozenCopy] = ()
) -> list[Document]:
    """Returns what the children may do."""
    jobs = dict.fromkeys(arn for each in planned for arn in _jobs(names, each.region))
    roles = dict.fromkeys(each.job.role or "" for each in planned)
    groups = dict.fromkeys(
        f"arn:{partition_of(each.region)}:logs:{each.region}:{names.account}:log-group:{actions.LOG_GROUP}:*"
        for each in planned
    )
    give = _allow("GiveRole", actions.PASS_ROLE, roles)
    give["Condition"] = {"StringEquals": {"iam:PassedToService": actions.SERVICE}}
    stage = (*actions.READ_OBJECTS, *actions.WRITE_OBJECTS, *actions.REMOVE_OBJECTS)
    read, share = actions.READ_OBJECTS, (*actions.READ_OBJECTS, *actions.WRITE_OBJECTS)
    keys = dict.fromkeys(arn for each in planned for arn in _keys(names, each))
    places = [_object(names, place) for each in planned for place in (each.base, _record(each))]
    buckets = dict.fromkeys(place.partition("/")[0] for place in places)
    found = [
        _allow("Jobs", (*actions.CREATE_JOBS, *actions.TAG_JOBS, *actions.READ_TAGS), jobs),
        give,
        _allow("Logs", actions.READ_LOGS, groups),
        _allow("Bundle", read, [f"{_object(names, names.bundles)}/{names.grid}-*"]),
        _allow("Channels", stage, _few(f"{_object(names, each.base)}/channels/{names.beginning}*" for each in planned)),
        _allow("Shared", share, _few(f"{_object(names, each.base)}/shared/*" for each in planned)),
        _allow("Records", read, _few(f"{_object(names, _record(each))}/{names.beginning}*" for each in planned)),
        _allow("Buckets", actions.LIST_BUCKET, buckets),
    ]
    found += [_allow("Keys", actions.USE_ENCRYPTED, keys)] if keys else []
    return [*found, *_copying(names, copies)] if copies else found


def _copying(names: BatchNames, copies: Sequence[FrozenCopy]) -> Iterator[Document]:
    """Yields what copies need: reading the data, and writing below the places for copies."""
    data = [_object(names, copy.place) for copy in copies]
    targets = [_object(names, copy.copy_to) for copy in copies]
    yield _allow("Data", actions.READ_OBJECTS, _few(f"{each}*" for each in data))
    yield _allow("Copies", _COPY, _few(f"{each}/*" for each in targets))
    buckets = dict.fromkeys(each.partition("/")[0] for each in (*data, *targets))
    yield _allow("CopyBuckets", (*actions.LIST_BUCKET, "s3:ListBucketMultipartUploads"), buckets)


def execution_statements(names: BatchNames) -> list[Document]:
    """Returns what starting a child needs: its image and its log."""
    group = f"arn:{names.partition}:logs:{names.region}:{names.account}:log-group:{_LOG_GROUP}"
    found = [_allow("Logs", _WRITE_LOG, [group, f"{group}:*"])]
    place = _ECR.match(names.image)
    if place is not None:
        repository = f"arn:{names.partition}:ecr:{place['region']}:{place['account']}:repository/{place['name']}"
        found.append(_allow("Image", actions.PULL_IMAGE, [repository]))
        found.append(_allow("Registry", actions.ENTER_REGISTRY, ["*"]))
    return found


def _role(names: BatchNames, arn: str, description: str, statements: list[Document]) -> Document:
    trust: Document = {"Effect": "Allow", "Principal": {"Service": _TAKES}, "Action": "sts:AssumeRole"}
    trust["Condition"] = {"StringEquals": {"aws:SourceAccount": names.account}}
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "RoleName": arn.rpartition("/")[2],
            "Description": description,
            "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
            "Policies": [
                {"PolicyName": "grid", "PolicyDocument": {"Version": "2012-10-17", "Statement": statements}},
            ],
            "Tags": [{"Key": KIND_TAG, "Value": KIND}],
        },
    }


def _jobs(names: BatchNames, region: str) -> Iterator[str]:
    """Yields ARNs of the grid's training jobs; SageMaker writes names in small letters there."""
    for beginning in dict.fromkeys((names.beginning, names.beginning.lower())):
        yield f"arn:{partition_of(region)}:sagemaker:{region}:{names.account}:training-job/{beginning}*"


def _keys(names: BatchNames, planned: SageMakerJob) -> Iterator[str]:
    key = planned.job.output_kms_key
    if key:
        every = f"arn:{partition_of(planned.region)}:kms:{planned.region}:{names.account}:key/*"
        yield key if key.startswith("arn:") else every


def _record(planned: SageMakerJob) -> str:
    assert planned.job.record is not None
    return planned.job.record.uri


def _object(names: BatchNames, uri: str) -> str:
    """Returns the ARN of an ``s3://`` place, without a slash at its end."""
    return f"arn:{names.partition}:s3:::{uri.removeprefix('s3://').rstrip('/')}"


def _few(resources: Iterable[str]) -> list[str]:
    """Returns the resources; where they are too many for one policy, a folder of each bucket that holds all of them."""
    found = sorted(set(resources))
    if len(found) <= _MOST_RESOURCES:
        return found
    by_bucket: dict[str, list[str]] = {}
    for each in found:
        by_bucket.setdefault(each.partition("/")[0], []).append(each)
    return [f"{os.path.commonpath(each)}/*" for each in by_bucket.values()]


def _allow(sid: str, allowed: Iterable[str], resources: Iterable[str]) -> Document:
    return {"Sid": sid, "Effect": "Allow", "Action": sorted(allowed), "Resource": sorted(set(resources))}
