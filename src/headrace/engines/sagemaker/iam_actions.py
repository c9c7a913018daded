"""What a job needs to be allowed: the actions of whoever submits it, and of the role under which it runs. Pure.

The lists are what headrace does, and no more. `headrace plan` shows them with the resources of one job.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.engines.submission import Permission, Submission, Upload
from headrace.instance.storage import split

if TYPE_CHECKING:
    from headrace.engines.sagemaker.sagemaker_job import SageMakerJob

LOG_GROUP = "/aws/sagemaker/TrainingJobs"


def submitter_actions(planned: SageMakerJob) -> tuple[Permission, ...]:
    """Returns what whoever submits the job, looks at it and stops it needs."""
    return tuple(_submitter(planned))


def role_actions(planned: SageMakerJob) -> tuple[Permission, ...]:
    """Returns what the role of the job needs: the service and the job's programs act under it."""
    return tuple(_role(planned))


def submission_of(planned: SageMakerJob) -> Submission:
    """Returns what is sent for a job: the request, what is stored before, and what must be allowed."""
    return Submission(
        operation="CreateTrainingJob",
        region=planned.region,
        request=planned.request(),
        uploads=(Upload("headrace, the job, its code and its secret", planned.channel_uri),),
        permissions={"submitter": submitter_actions(planned), "role": role_actions(planned)},
    )


def _submitter(planned: SageMakerJob) -> Iterator[Permission]:
    job, there = planned.job, _partition(planned.region)
    jobs = (f"arn:{there}:sagemaker:{planned.region}:*:training-job/*",)
    own = ["sagemaker:CreateTrainingJob", "sagemaker:DescribeTrainingJob", "sagemaker:StopTrainingJob"]
    yield Permission((*own, *(["sagemaker:AddTags"] if job.tags else ())), jobs, "the training job")
    yield Permission(("sagemaker:ListTrainingJobs",), ("*",), "to find its jobs")
    yield Permission(("iam:PassRole",), (job.role or "",), "to give it its role")
    yield from _objects(there, "code and headrace", planned.base, read=True, write=True, remove=True)
    yield from _objects(there, "the record of the run", planned.job.record.uri if planned.job.record else "", read=True)
    yield from _objects(there, "model and output", job.output_path or "", read=True)
    streams = (f"arn:{there}:logs:{planned.region}:*:log-group:{LOG_GROUP}:*",)
    yield Permission(("logs:DescribeLogStreams", "logs:GetLogEvents"), streams, "what its containers print")


def _role(planned: SageMakerJob) -> Iterator[Permission]:
    job, there = planned.job, _partition(planned.region)
    yield from _objects(there, "code and headrace", planned.channel_uri, read=True)
    for name, channel in job.inputs.items():
        yield from _objects(there, f"the channel {name}", channel.s3_data, read=True)
    yield from _objects(there, "model and output", job.output_path or "", read=False, write=True)
    yield from _objects(there, "checkpoints", job.checkpoint_s3_uri or "", read=True, write=True, remove=True)
    yield from _objects(
        there, "the record of the run", job.record.uri if job.record else "", read=True, write=True, remove=True
    )
    streams = (f"arn:{there}:logs:{planned.region}:*:log-group:{LOG_GROUP}:*",)
    logs = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")
    yield Permission(logs, streams, "what its containers print")
    yield Permission(("cloudwatch:PutMetricData",), ("*",), "its metrics")
    yield from _images(planned, there)
    if job.subnets:
        network = (
            "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface",
            "ec2:DeleteNetworkInterfacePermission", "ec2:DescribeDhcpOptions", "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs",
        )  # fmt: skip
        yield Permission(network, ("*",), "its network")
    keys = tuple(dict.fromkeys(key for key in (job.volume_kms_key, job.output_kms_key) if key))
    if keys:
        actions = ("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey")
        resources = tuple(key if key.startswith("arn:") else f"arn:{there}:kms:{planned.region}:*:*" for key in keys)
        yield Permission(actions, tuple(dict.fromkeys(resources)), "its keys")


def _images(planned: SageMakerJob, partition: str) -> Iterator[Permission]:
    host, _, path = planned.image.partition("/")
    account, _, rest = host.partition(".dkr.ecr.")
    if not rest:
        return  # no registry of AWS
    region = rest.partition(".")[0]
    repository = path.partition("@")[0].partition(":")[0]
    pull = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
    yield Permission(pull, (f"arn:{partition}:ecr:{region}:{account}:repository/{repository}",), "the image")
    yield Permission(("ecr:GetAuthorizationToken",), ("*",), "the image")


def _objects(
    partition: str, why: str, uri: str, *, read: bool = False, write: bool = False, remove: bool = False
) -> Iterator[Permission]:
    """What is done with the objects of a prefix, and that they are listed."""
    if not uri.startswith("s3://"):
        return
    bucket, key = split(uri)
    wanted = [*(["s3:GetObject"] if read else ()), *(["s3:PutObject", "s3:AbortMultipartUpload"] if write else ())]
    wanted += ["s3:DeleteObject"] if remove else []
    yield Permission(
        tuple(sorted(wanted)), (f"arn:{partition}:s3:::{bucket}/{key.rstrip('/')}{'/' if key else ''}*",), why
    )
    yield Permission(("s3:ListBucket",), (f"arn:{partition}:s3:::{bucket}",), why)


def _partition(region: str) -> str:
    """Returns the partition of AWS that a region is in, as ARNs begin with it."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"
