"""The role under which jobs run on SageMaker, and the policy of who submits them: what they need, and no more.

Which actions these are stands in `headrace.catalog.aws_facts`; here is on what they are allowed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.catalog import aws_facts as actions
from headrace.catalog.aws_facts import why_no_bucket
from headrace.cloud.stacks import KIND_TAG, Document, StackTemplate
from headrace.errors import CloudError, UsageError

KIND = "role"
FRAMEWORKS = ("pytorch-training", "tensorflow-training")
"""Repositories of AWS's own images, in whatever account a region has them."""
_KEY_ARN = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+")
ECR_IMAGE = re.compile(
    r"(?P<account>[0-9]{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<name>[a-z0-9._/-]+)(?:[:@].+)?"
)


@dataclass(frozen=True)
class Prefix:
    """Objects of a bucket.

    Attributes:
        bucket: its name.
        key: what their keys begin with; empty for all.
    """

    bucket: str
    key: str = ""


@dataclass(frozen=True)
class RoleOptions:
    """What jobs use.

    Attributes:
        storage: where their code, data, checkpoints, records and output are.
        data: what they only read.
        images: URIs of images in ECR; empty for AWS's own.
        keys: ARNs of KMS keys.
        vpc: they have `subnets`.
    """

    storage: tuple[Prefix, ...]
    data: tuple[Prefix, ...] = ()
    images: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    vpc: bool = False


def read_prefix(uri: str) -> Prefix:
    """Returns a bucket, or a part of one.

    Args:
        uri: ``bucket``, ``bucket/prefix``, ``s3://bucket/prefix``.

    Raises:
        UsageError: it is none of these.

    >>> read_prefix("s3://my-bucket/jobs/")
    Prefix(bucket='my-bucket', key='jobs/')
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    wrong = why_no_bucket(bucket)
    why = f"the name {bucket!r} {wrong}" if wrong else ""
    if not why and any(sign in key for sign in "*?$"):
        why = "the prefix has '*', '?' or '$', which mean something else in a policy"
    if why:
        raise UsageError(f"{uri!r} is not a bucket, nor a prefix in one: {why}", hint="e.g. s3://my-bucket/jobs")
    return Prefix(bucket, f"{key.rstrip('/')}/" if key.strip("/") else "")


def role_stack(options: RoleOptions) -> StackTemplate:
    """Returns the stack of a role and a policy. Both have the stack's name; the policy's ends in ``-submit``.

    Raises:
        UsageError: an image or a key that is none.
    """
    statements = role_statements(options)
    described = "Training jobs of headrace on SageMaker"
    role = role_resource({"Ref": "AWS::StackName"}, described, actions.SERVICE, ("training", statements), KIND)
    submit: Document = {
        "Type": "AWS::IAM::ManagedPolicy",
        "Properties": {
            "ManagedPolicyName": {"Fn::Sub": "${AWS::StackName}-submit"},
            "Description": "Submit training jobs of headrace to SageMaker, look at them, stop them",
            "PolicyDocument": _policy(submitter_statements(options)),
        },
    }
    description = "Role of training jobs of headrace on SageMaker, and policy of who submits them"
    outputs = {
        "Role": {"Description": "role of a job", "Value": {"Fn::GetAtt": ["Role", "Arn"]}},
        "SubmitPolicy": {"Description": "policy to attach to who submits", "Value": {"Ref": "SubmitPolicy"}},
    }
    return roles_template(KIND, description, {"Role": role, "SubmitPolicy": submit}, outputs)


def role_resource(
    name: object,
    description: str,
    taker: str,
    policy: tuple[str, list[Document]],
    kind: str,
    condition: Document | None = None,
) -> Document:
    """Returns a role of a stack.

    Args:
        name: of the role, or what CloudFormation makes it of.
        description: of it.
        taker: service that takes it.
        policy: name and statements.
        kind: of the stack.
        condition: under which it is taken; None for none.
    """
    trust: Document = {"Effect": "Allow", "Principal": {"Service": taker}, "Action": "sts:AssumeRole"}
    if condition is not None:
        trust["Condition"] = condition
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "RoleName": name,
            "Description": description,
            "AssumeRolePolicyDocument": _policy([trust]),
            "Policies": [{"PolicyName": policy[0], "PolicyDocument": _policy(policy[1])}],
            "Tags": [{"Key": KIND_TAG, "Value": kind}],
        },
    }


def roles_template(kind: str, description: str, resources: Document, outputs: Document) -> StackTemplate:
    """Returns a stack of roles, which have names of their own."""
    document = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": description,
        "Resources": resources,
        "Outputs": outputs,
    }
    return StackTemplate(kind, document, capabilities=("CAPABILITY_NAMED_IAM",))


def job_lines(outputs: Mapping[str, str]) -> dict[str, object]:
    """Returns the keys of a job file for a job under the role.

    Args:
        outputs: those of the stack.

    Raises:
        CloudError: they are not those of such a stack.
    """
    if "Role" not in outputs:
        raise CloudError("the stack lacks the output Role", "remove it and create it again")
    return {"role": outputs["Role"]}


def role_statements(options: RoleOptions) -> list[Document]:
    """Returns what the role allows.

    Raises:
        UsageError: an image or a key that is none.
    """
    group = f"arn:${{AWS::Partition}}:logs:*:${{AWS::AccountId}}:log-group:{actions.LOG_GROUP}"
    found = [
        *_storage(options),
        allow("Logs", actions.WRITE_LOGS, [group, f"{group}:*"]),
        allow("Metrics", actions.PUT_METRICS, ["*"]),
        allow("Image", actions.PULL_IMAGE, _repositories(options.images)),
        allow("Registry", actions.ENTER_REGISTRY, ["*"]),
    ]
    if options.vpc:
        found.append(allow("Network", actions.USE_NETWORK, ["*"]))
    if options.keys:
        found.append(allow("Keys", actions.USE_KEYS, [_key(key) for key in options.keys]))
    return found


def submitter_statements(options: RoleOptions) -> list[Document]:
    """Returns what the policy of who submits allows."""
    jobs = "arn:${AWS::Partition}:sagemaker:*:${AWS::AccountId}:training-job/*"
    group = f"arn:${{AWS::Partition}}:logs:*:${{AWS::AccountId}}:log-group:{actions.LOG_GROUP}"
    found = [
        allow("Jobs", (*actions.CREATE_JOBS, *actions.TAG_JOBS, *actions.READ_TAGS), [jobs]),
        allow("List", actions.LIST_JOBS, ["*"]),
        give_role([{"Fn::GetAtt": ["Role", "Arn"]}]),
        *_storage(options),
        allow("Logs", actions.READ_LOGS, [group, f"{group}:*"]),
        allow("Metrics", actions.READ_METRICS, ["*"]),
    ]
    if options.keys:
        found.append(allow("Keys", actions.USE_ENCRYPTED, [_key(key) for key in options.keys]))
    return found


def _storage(options: RoleOptions) -> list[Document]:
    every = (*actions.READ_OBJECTS, *actions.WRITE_OBJECTS, *actions.REMOVE_OBJECTS)
    found = [allow("Storage", every, _objects(options.storage))]
    if options.data:
        found.append(allow("Data", actions.READ_OBJECTS, _objects(options.data)))
    buckets = dict.fromkeys(each.bucket for each in (*options.storage, *options.data))
    found.append(allow("Buckets", actions.LIST_BUCKET, [f"arn:${{AWS::Partition}}:s3:::{name}" for name in buckets]))
    return found


def _objects(prefixes: Sequence[Prefix]) -> list[str]:
    return [f"arn:${{AWS::Partition}}:s3:::{each.bucket}/{each.key}*" for each in prefixes]


def _repositories(images: Sequence[str]) -> list[str]:
    if not images:
        return [f"arn:${{AWS::Partition}}:ecr:*:*:repository/{name}" for name in FRAMEWORKS]
    found = []
    for image in images:
        place = ECR_IMAGE.fullmatch(image)
        if place is None:
            hint = "e.g. --image 123456789012.dkr.ecr.eu-west-1.amazonaws.com/training:1"
            raise UsageError(f"--image {image}: not an image in ECR", hint=hint)
        found.append(f"arn:${{AWS::Partition}}:ecr:{place['region']}:{place['account']}:repository/{place['name']}")
    return found


def _key(arn: str) -> str:
    if not _KEY_ARN.fullmatch(arn):
        hint = "its ARN, e.g. arn:aws:kms:eu-west-1:123456789012:key/1234abcd-..."
        raise UsageError(f"--kms-key {arn}: not the ARN of a key", hint=hint)
    return arn


def give_role(roles: Sequence[object]) -> Document:
    """Returns the statement that lets jobs of SageMaker have some roles, each an ARN or what it is made of."""
    condition = {"StringEquals": {"iam:PassedToService": actions.SERVICE}}
    return {**allow("GiveRole", actions.PASS_ROLE, []), "Resource": list(roles), "Condition": condition}


def allow(sid: str, allowed: Iterable[str], resources: Iterable[str]) -> Document:
    """Returns a statement; ARNs with variables of CloudFormation are put together by it."""
    places = [{"Fn::Sub": each} if "${" in each else each for each in resources]
    return {"Sid": sid, "Effect": "Allow", "Action": sorted(allowed), "Resource": places}


def _policy(statements: list[Document]) -> Document:
    return {"Version": "2012-10-17", "Statement": statements}
