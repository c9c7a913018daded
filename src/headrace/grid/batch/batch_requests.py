"""What AWS Batch is told of a grid, and what everything is called there: the image and the exit codes of the children,
the job definition, the jobs, the roles. Pure.

The image has the layout that wrappers of AWS Batch have had since they were scripts:

    /api/sage_wrapper.sh    what Batch runs
    headrace                and boto3, which the wrapper calls
    /api/home/wheels        what training images may lack, which children would else download one by one

The wrapper becomes the command (`exec`), so that the command gets Batch's signals and its exit code is the child's.
A child exits as its line ended. Batch starts it again only where that says nothing about the line: its machine was
lost, it was killed, or AWS did not answer. The next attempt adopts the training job that is there.

The two roles are a stack of CloudFormation: what this grid needs, and no more. Under the *job role* a child creates,
looks at and stops training jobs whose names begin with the grid's, gives them their role, and stages and reads their
objects. The *execution role* pulls the image and writes the child's log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from headrace.catalog import aws_facts as actions
from headrace.catalog.aws_facts import ROLE_ARN, partition_of, registry_of
from headrace.cloud.image_files import DOCKERFILE
from headrace.cloud.role_template import ECR_IMAGE, allow, give_role, role_resource, roles_template
from headrace.cloud.stacks import Document, StackTemplate
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob
from headrace.errors import UsageError
from headrace.grid.batch.grid_bundle import FrozenCopy
from headrace.grid.grid_file import BatchOptions
from headrace.job.model.field_types import cut_name

REPOSITORY = "headrace-grid"
"""Of the image, in ECR."""
_LONGEST_BEGINNING = 36
"""What every name of a grid's training jobs begins with is not longer: names are cut where they would be too long."""
_LONGEST_ROLE = 40
"""Characters of a grid's name in the name of a role, which has 64 with its ending."""


@dataclass(frozen=True)
class BatchNames:
    """See the module.

    Attributes:
        grid: the grid's name.
        tag: of its bundle.
        region: of the queue.
        account: number of the account.
        queue: job queue, by name or ARN.
        image: URI of the children's image.
        bundles: ``s3://`` prefix of the bundles.
        job_role, execution_role: ARNs.
    """

    grid: str
    tag: str
    region: str
    account: str
    queue: str
    image: str
    bundles: str
    job_role: str
    execution_role: str

    @property
    def partition(self) -> str:
        """Partition of AWS."""
        return partition_of(self.region)

    @property
    def definition(self) -> str:
        """Name of the job definition."""
        return f"headrace-{self.grid}"

    @property
    def job(self) -> str:
        """Name of the array job: the same for the same bundle."""
        return f"{self.grid}-{self.tag}"

    @property
    def copies(self) -> str:
        """Name of the job that makes the copies which the array job waits for."""
        return f"{self.job}-copies"

    @property
    def bundle(self) -> str:
        """``s3://`` URI of the bundle, without a slash at its end."""
        return f"{self.bundles}/{self.job}"

    @property
    def beginning(self) -> str:
        """What names of the grid's training jobs and runs begin with, and those of few others do."""
        return f"{self.grid}-" if len(self.grid) < _LONGEST_BEGINNING else self.grid[:_LONGEST_BEGINNING]


def batch_names(
    grid: str, tag: str, options: BatchOptions, region: str, planned: Sequence[SageMakerJob], image_tag: str
) -> BatchNames:
    """Returns the names.

    Args:
        grid: the grid's name.
        tag: of its bundle.
        options: what the user says.
        region: of the queue.
        planned: the lines' jobs.
        image_tag: of the image that the exported definition makes.

    Raises:
        UsageError: something must be said that nobody said.
    """
    for name, value, hint in (
        ("queue", options.queue, "queue: NAME; `aws batch describe-job-queues` lists them"),
        ("bundle", options.bundle, "bundle: s3://my-bucket/grids, where children read their lines"),
    ):
        if not value:
            raise UsageError(f"batch.{name} is missing in the grid's file", hint=f"batch: {{{hint}}}")
    account = options.account or _account(planned)
    roles = f"arn:{partition_of(region)}:iam::{account}:role/{cut_name(grid, _LONGEST_ROLE)}"
    return BatchNames(
        grid=grid,
        tag=tag,
        region=region,
        account=account,
        queue=options.queue or "",
        image=options.image or f"{registry_of(account, region)}/{REPOSITORY}:{image_tag}",
        bundles=options.bundle or "",
        job_role=options.job_role or f"{roles}-batch-job",
        execution_role=options.execution_role or f"{roles}-batch-execution",
    )


def _account(planned: Sequence[SageMakerJob]) -> str:
    """Returns the account of the jobs' role: a service takes no role of another one."""
    found = {match["account"] for each in planned if (match := ROLE_ARN.fullmatch(each.job.role or ""))}
    if len(found) != 1:
        seen = ", ".join(sorted(found)) or "none"
        hint = "batch: {account: '123456789012'}"
        raise UsageError(f"the account cannot be told from the roles of the jobs: they name {seen}", hint=hint)
    return found.pop()


_HERE = Path(__file__).parent
WRAPPER = "sage_wrapper.sh"
COMMAND = f"/api/{WRAPPER}"
ARRAY_VARIABLE = "S3_ARRAY_FILE"
LINE_VARIABLE = "GRID_LINE"
"""Index of the line of a job that is no array: Batch has no array of one child."""
RUNS_VARIABLE = "GRID_RUNS"
"""How often a line may run: once, and once more for each submission of the grid that has failed."""

_DOWNLOAD = (
    "from headrace.engines.planning import pack_files as all; [all.downloaded_libraries(each) for each in all.PYTHONS]"
)


def image_definition(base: str, wheel: tuple[str, bytes]) -> dict[str, bytes]:
    """Returns the files of the definition, by name.

    Args:
        base: image to begin with; it has Python, pip and bash.
        wheel: name and content of headrace's wheel.
    """
    name, content = wheel
    dockerfile = rendered("Dockerfile", base=base, wheel=name, download=_DOWNLOAD).encode()
    return {name: content, WRAPPER: (_HERE / WRAPPER).read_bytes(), DOCKERFILE: dockerfile}


def rendered(name: str, **values: object) -> str:
    """Returns a file that is made of the template of its name beside this module."""
    text = (_HERE / f"{name}.jinja").read_text(encoding="utf-8")
    template = jinja2.Template(text, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    made: str = template.render(**values)
    return made


TRY_AGAIN = 75
"""Exit code of a child that could not reach AWS: EX_TEMPFAIL of sysexits.h. Its line goes on, or has not begun."""
STOPPED = 130
"""Exit code of a child that was asked to end: 128 and SIGINT."""
KILLED = 137
"""Exit code of a container that got SIGKILL: also when it used more memory than it has."""

EXITS = {
    0: "the line's job completed",
    1: "the line's job failed",
    2: "the line cannot start: its job, its role or the bundle is wrong",
    4: "the line's job was stopped because its budget was used up",
    TRY_AGAIN: "AWS could not be asked: Batch tries again",
    STOPPED: "the line's job was stopped",
}
"""Exit codes of `headrace grid step`, in words."""

LOST_HOST = "Host EC2*"
"""How Batch's `statusReason` begins after the loss of an instance: ``Host EC2 (instance i-...) terminated.``"""


def retry_strategy(attempts: int) -> dict[str, object]:
    """Returns `retryStrategy` of a job. The first rule that fits counts, and the last one fits always.

    Args:
        attempts: how often Batch starts a child at most.
    """
    rules = [
        {"onStatusReason": LOST_HOST, "action": "RETRY"},
        {"onExitCode": str(TRY_AGAIN), "action": "RETRY"},
        {"onExitCode": str(KILLED), "action": "RETRY"},
        {"onReason": "*", "action": "EXIT"},
    ]
    return {"attempts": attempts, "evaluateOnExit": rules}


Request = dict[str, Any]
TAG = "headrace-grid"
"""Tag of definitions and jobs; its value is the grid's name."""


def job_definition(names: BatchNames, options: BatchOptions) -> Request:
    """Returns the RegisterJobDefinition request."""
    container: Request = {
        "image": names.image,
        "command": [COMMAND],
        "jobRoleArn": names.job_role,
        "executionRoleArn": names.execution_role,
        "resourceRequirements": [
            {"type": "VCPU", "value": str(options.vcpus)},
            {"type": "MEMORY", "value": str(options.memory)},
        ],
    }
    if options.environment:
        variables = sorted(options.environment.items())
        container["environment"] = [{"name": name, "value": value} for name, value in variables]
    if options.platform == "fargate":
        container["networkConfiguration"] = {"assignPublicIp": "ENABLED" if options.public_ip else "DISABLED"}
    return {
        "jobDefinitionName": names.definition,
        "type": "container",
        "platformCapabilities": [options.platform.upper()],
        "containerProperties": container,
        **_rules(names, options, options.timeout),
    }


def submit_job(names: BatchNames, options: BatchOptions, array: str, lines: int) -> Request:
    """Returns the SubmitJob request.

    Args:
        names: of the grid.
        options: what the user says.
        array: name of the array file.
        lines: number of lines; one line is a job that is no array.
    """
    environment = [{"name": ARRAY_VARIABLE, "value": f"{names.bundle}/{array}"}]
    if lines == 1:
        environment.append({"name": LINE_VARIABLE, "value": "0"})
    return {
        "jobName": names.job,
        "jobQueue": names.queue,
        "jobDefinition": names.definition,
        **({"arrayProperties": {"size": lines}} if lines > 1 else {}),
        "containerOverrides": {"environment": environment},
        **_rules(names, options, options.timeout),
    }


def submit_copies(names: BatchNames, options: BatchOptions) -> Request:
    """Returns the SubmitJob request of the job that makes the copies. An array job that waits for it depends on it.

    Args:
        names: of the grid.
        options: what the user says.
    """
    return {
        "jobName": names.copies,
        "jobQueue": names.queue,
        "jobDefinition": names.definition,
        "containerOverrides": {"command": ["headrace", "grid", "copy", "--bundle", names.bundle]},
        **_rules(names, options, None),
    }


def _rules(names: BatchNames, options: BatchOptions, timeout: float | None) -> Request:
    """Returns what a definition and every job have: when Batch tries again, seconds of an attempt, tags."""
    return {
        "retryStrategy": retry_strategy(options.attempts),
        **({} if timeout is None else {"timeout": {"attemptDurationSeconds": round(timeout)}}),
        "propagateTags": True,
        "tags": {TAG: names.grid},
    }


KIND = "grid-roles"
_TAKES = "ecs-tasks.amazonaws.com"
"""Who takes both roles: containers of Batch are tasks of ECS."""
_LOG_GROUP = "/aws/batch/job"
_WRITE_LOG = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents")
_COPY = (*actions.READ_OBJECTS, *actions.WRITE_OBJECTS, "s3:ListMultipartUploadParts")
_MOST_RESOURCES = 12
"""Of one statement: all policies of a role have 10,240 characters together."""


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
    outputs = {
        name: {"Description": f"{name} of the job definition", "Value": {"Fn::GetAtt": [name, "Arn"]}}
        for name in resources
    }
    return roles_template(KIND, f"Roles of the {described}", resources, outputs)


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
    stage = (*actions.READ_OBJECTS, *actions.WRITE_OBJECTS, *actions.REMOVE_OBJECTS)
    read, share = actions.READ_OBJECTS, (*actions.READ_OBJECTS, *actions.WRITE_OBJECTS)
    keys = dict.fromkeys(arn for each in planned for arn in _keys(names, each))
    places = [_object(names, place) for each in planned for place in (each.base, _record(each))]
    buckets = dict.fromkeys(place.partition("/")[0] for place in places)
    found = [
        _allow("Jobs", (*actions.CREATE_JOBS, *actions.TAG_JOBS, *actions.READ_TAGS), jobs),
        give_role(sorted(roles)),
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
    place = ECR_IMAGE.fullmatch(names.image)
    if place is not None:
        repository = f"arn:{names.partition}:ecr:{place['region']}:{place['account']}:repository/{place['name']}"
        found.append(_allow("Image", actions.PULL_IMAGE, [repository]))
        found.append(_allow("Registry", actions.ENTER_REGISTRY, ["*"]))
    return found


def _role(names: BatchNames, arn: str, description: str, statements: list[Document]) -> Document:
    account = {"StringEquals": {"aws:SourceAccount": names.account}}
    return role_resource(arn.rpartition("/")[2], description, _TAKES, ("grid", statements), KIND, account)


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
    return allow(sid, allowed, sorted(set(resources)))
